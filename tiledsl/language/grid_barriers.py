"""T.sync_grid: what comes after it in a kernel is a launch of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.dialects import thread, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.language.expression import context

__all__ = ["sync_grid"]

_TWO_KERNELS = "or write two T.Kernel blocks, which run in order"


def sync_grid() -> None:
    """Wait for all blocks of the kernel: what they wrote to tensors before, each of them reads after it.

    It is a statement of no shape or type, and stands in the kernel itself: not in a loop, nor in an `if`. The kernel is
    launched once for what comes before it and once for what comes after, with any number of blocks; so on-chip buffers
    and what was read begin anew. Raises TileError elsewhere, and for what would be needed from before.

    Example:
        # X = [3, 1, 2]
        # Y = [0, 0, 0]
        # Z = [0, 0, 0]
        for i in T.Parallel(3):
            Y[i] = 2 * X[i]
        T.sync_grid()
        for i in T.Parallel(3):
            Z[i] = Y[2 - i]
        # Z = [4, 2, 6]
    """
    ctx = context("T.sync_grid")
    if ctx.kernel is None or ctx.threads is None:
        raise TileError("T.sync_grid stands in a kernel")
    ctx.threads.grid_barriers.append(ctx.builder.insert(thread.BarrierOp()))


def split_at_grid_barriers(
    kernel: tile.KernelOp, barriers: Sequence[Operation], of_tiles: set[Operation | None]
) -> list[tile.KernelOp]:
    """The launches that a finished kernel is made of: itself, cut off at the first barrier, and new ones, detached.

    `of_tiles`, a set of operations, gets their copies.
    """
    launches = []
    for barrier in reversed(barriers):
        body = barrier.parent
        parent = body.parent if body is not None else None
        threads = isinstance(parent, tile.ParallelOp) and parent.lockstep and parent.parent is kernel.body
        if body is None or parent is None or parent is not kernel and not threads:
            raise TileError(
                "T.sync_grid stands in a loop or a branch, and what comes after it could not be a launch of its own",
                barrier.loc,
                [f"move it to the kernel's own statements, {_TWO_KERNELS}"],
            )
        values: dict[Value, Value] = {}
        tail = kernel.clone(values)
        assert isinstance(tail, tile.KernelOp)
        of_tiles |= {values[each.results[0]].op for each in of_tiles if each is not None and each.results[0] in values}
        tail_body = tail.body if parent is kernel else tail.body.ops[kernel.body.index(parent)].regions[0]
        place = body.index(barrier)
        for op in body.ops[: place - 1 if place else None : -1]:
            op.erase()
        for op in tail_body.ops[place::-1]:
            _leave_out(op, barrier)
        for region in {kernel.body: None, tail.body: None}:
            for op in reversed(region):
                if isinstance(op, tile.AllocOp) and not op.out.uses:
                    op.erase()
        for buffer in [op.out for op in kernel.body if isinstance(op, tile.AllocOp)]:
            if values[buffer].uses and not _begins_anew(values[buffer], tail_body):
                raise TileError(
                    f"{buffer.name or 'an on-chip buffer'} is used before T.sync_grid and after it, where a block has "
                    "nothing on the chip from before",
                    barrier.loc,
                    [f"write it to a tensor and read that, {_TWO_KERNELS}"],
                )
        launches.append(tail)
    return launches[::-1]


def _leave_out(op: Operation, barrier: Operation) -> None:
    """Erase an operation before the barrier from what comes after; what only computes stays where it is used."""
    used = [each for each in op.results if each.uses]
    if not used:
        op.erase()
    elif op.regions or op.effects & ~Effect.ALLOCATE:
        raise TileError(
            f"{used[0].name or 'a value'} was read before T.sync_grid, and is used after it",
            barrier.loc,
            [f"read it again after T.sync_grid, {_TWO_KERNELS}"],
        )


def _begins_anew(buffer: Value, body: Region) -> bool:
    """Whether the first thing that is done with a buffer writes all of it."""
    first = next(op for op in body.walk() if buffer in op.operands)
    if first.parent is not body or first.operands.count(buffer) != 1:
        return False
    if isinstance(first, tile.CopyOp):
        shape = tile.buffer_type(buffer).shape
        return buffer is first.target and not first.target_offsets and first.shape == shape
    if isinstance(first, tile.GemmOp):
        return buffer is first.c and first.clear
    if isinstance(first, tile.ReduceOp):
        return buffer is first.target and first.clear
    return isinstance(first, tile.FillOp)
