"""A program at its own tile shapes, but with problem sizes of a few blocks: what can be executed in a moment.

Sizes of global buffers, grids and trip counts of loops over global memory shrink; nothing else changes. What comes out
is a program of its own, with a meaning of its own, which the same passes lower: in a global buffer every access is
checked against the buffer's size until guard-accesses has put that check into masks. Each size keeps its remainder by
the tiles that walk along it, so that what was ragged stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm, prod

from tiledsl.analysis.dependence import ancestors, depends_on
from tiledsl.dialects import arith, scf, thread, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BufferType
from tiledsl.ir.verifier import VerifyError, verify

ALIGNMENT = 16  # elements: what decides about blocks that hardware copies must not change
FEW_ELEMENTS = 1 << 16
_BLOCKS = 2  # full ones along a size
_TRIPS = 4
_MOST_BLOCKS = 12
_FEW_BLOCKS = 9  # if there are more, a size with a remainder keeps one full block beside it


def reduced(root: tile.FuncOp, blocks: int = _BLOCKS) -> tile.FuncOp | None:
    """A smaller program, or None where the program is small or cannot be made so. The program itself is not changed.

    blocks: how many full ones there are beside a remainder.
    """
    if all((_elements(value.type) or 0) <= FEW_ELEMENTS for value in root.body.args) and not _many_blocks(root):
        return None
    twin = root.clone({})
    assert isinstance(twin, tile.FuncOp)
    counts = _shrink_buffers(twin, blocks)
    for op in list(twin.walk()):
        if isinstance(op, tile.KernelOp):
            grid = [_capped(constant_of(each), counts) for each in op.grid]
            for axis, most in _plain_indices(op).items():
                number = grid[axis]
                grid[axis] = number if number is None else min(number, most)
            if blocks > 1 and prod(each or 1 for each in grid) > _FEW_BLOCKS:
                return reduced(root, blocks=1)
            if prod(each or 1 for each in grid) > _MOST_BLOCKS:
                grid = [each and min(each, _BLOCKS + 1) for each in grid]
            made = [old if new is None else _constant(op, new, old) for new, old in zip(grid, op.grid, strict=True)]
            op.set_field("grid", made)
        elif isinstance(op, scf.ForOp) and (_walks_memory(op) and not _walks_tile(op) or _meets_roles(op)):
            _shorten(op, counts)
    try:
        verify(twin)
    except VerifyError:
        return None
    return twin


def _elements(type: object) -> int | None:
    return prod(type.static_shape) if isinstance(type, BufferType) and type.is_static else None


def _many_blocks(root: tile.FuncOp) -> bool:
    grids = [[constant_of(each) for each in op.grid] for op in root.body if isinstance(op, tile.KernelOp)]
    return any(prod(int(each or 1) for each in grid) > 64 for grid in grids)


def _buffers(op: Operation) -> list[Value]:
    """The global buffers that an operation or its regions bring in."""
    values = [*op.results, *(arg for region in op.regions for arg in region.args)]
    return [each for each in values if isinstance(each.type, BufferType) and each.type.scope == "global"]


def tiles_along(root: tile.FuncOp) -> dict[tuple[Value, int], set[int]]:
    """The extents of the tiles that walk along a dimension of a buffer."""
    walked: dict[tuple[Value, int], set[int]] = {}
    for op in root.walk():
        if isinstance(op, tile.CopyOp):
            for buffer, axes in ((op.source, op.source_axes), (op.target, op.target_axes)):
                for axis, extent in zip(axes, op.shape, strict=True):
                    walked.setdefault((buffer, axis), set()).add(extent)
        elif isinstance(op, (tile.LoadOp, tile.StoreOp, tile.AtomicOp)):
            parallel = next((around for around in ancestors(op) if isinstance(around, tile.ParallelOp)), None)
            for axis, index in enumerate(op.indices):
                for lane, extent in zip(parallel.body.args, parallel.extents, strict=True) if parallel else ():
                    if depends_on(index, [lane]):
                        walked.setdefault((op.buffer, axis), set()).add(extent)
    return walked


def _shrink_buffers(root: tile.FuncOp, blocks: int) -> dict[int, int]:
    """Make the buffers smaller; returns how many blocks are left of so many along each size."""
    walked = tiles_along(root)
    buffers = dict.fromkeys(each for op in root.walk() for each in _buffers(op))
    left: dict[tuple[Value, int], tuple[int, int, int]] = {}  # of each dimension its size, what is left, and the unit
    counts: dict[int, int] = {}
    for buffer in buffers:
        type = tile.buffer_type(buffer)
        for axis, size in enumerate(type.shape if type.strides is None else ()):
            extents = walked.get((buffer, axis), {1})
            unit = lcm(*extents) if extents == {1} else lcm(ALIGNMENT, *extents)
            if isinstance(size, int) and size > (_BLOCKS + 1) * unit:
                left[buffer, axis] = size, (blocks if size % unit else _BLOCKS) * unit + size % unit, unit
            if isinstance(size, int) and (buffer, axis) not in left:
                counts.update({-(-size // extent): -(-size // extent) for extent in extents})
    full: dict[int, int] = {}  # the same of full blocks
    # What has one size and nearly one tile is the same thing: the rows of K and V, and those of Q, in attention.
    for (buffer, axis), (size, small, unit) in left.items():
        for other, most, _ in left.values():
            if other == size and small < most <= 4 * small and (size - most) % unit == 0:
                small = most
        type = tile.buffer_type(buffer)
        shape = (*type.shape[:axis], small, *type.shape[axis + 1 :])
        buffer.set_type(BufferType(shape, type.dtype, type.scope))
        for extent in walked.get((buffer, axis), {1}):
            tiles = -(-size // extent)
            counts[tiles] = max(counts.get(tiles, 0), -(-small // extent))
            if size % extent:
                full[size // extent] = max(full.get(size // extent, 0), small // extent)
    return {**full, **counts}


def _plain_indices(kernel: tile.KernelOp) -> dict[int, int]:
    """Of axes of the grid that are indices as they are, as batches and heads: the sizes of what they index.

    Otherwise an axis of as many blocks as a size has tiles would keep as many as that.
    """
    sizes: dict[int, int] = {}
    for axis, arg in enumerate(kernel.body.args):
        for op in arg.uses:
            indexed: list[tuple[Value, Sequence[Value], Sequence[int]]] = []
            if isinstance(op, tile.CopyOp):
                indexed.append((op.source, op.source_offsets, op.source_axes))
                indexed.append((op.target, op.target_offsets, op.target_axes))
            elif isinstance(op, (tile.LoadOp, tile.StoreOp, tile.AtomicOp)):
                indexed.append((op.buffer, op.indices, ()))
            for buffer, indices, tiled in indexed:
                for dimension, (size, index) in enumerate(zip(tile.buffer_type(buffer).shape, indices, strict=False)):
                    if index is arg and dimension not in tiled and isinstance(size, int):
                        sizes[axis] = max(sizes.get(axis, 0), size)
    return sizes


def _capped(number: object, counts: dict[int, int]) -> int | None:
    return counts.get(number, min(number, _BLOCKS + 1)) if type(number) is int else None


def _constant(before: Operation, number: int, like: Value) -> Value:
    return Builder.at(before).constant(number, like.type)


def _walks_memory(loop: scf.ForOp) -> bool:
    for op in loop.walk():
        if isinstance(op, (tile.CopyOp, tile.LoadOp)):
            buffer = op.operands[0].type
            if isinstance(buffer, BufferType) and buffer.scope == "global":
                return True
    return False


def _walks_tile(loop: scf.ForOp) -> bool:
    """Whether each iteration stores into places of its own in an on-chip tile: it is whole after all of them."""
    return any(
        _is_stepped(index, loop.index)
        for op in loop.walk()
        if isinstance(op, tile.StoreOp) and tile.buffer_type(op.buffer).scope != "global"
        for index in op.indices
    )


def _is_stepped(value: Value, index: Value) -> bool:
    """Whether a value is a sum with a multiple of an index; not where a remainder is taken, as in a ring of tiles."""
    if isinstance(value.op, (arith.AddOp, arith.SubOp, arith.MulOp, arith.CastOp)):
        return any(_is_stepped(each, index) for each in value.op.operands)
    return value is index


def _meets_roles(loop: scf.ForOp) -> bool:
    """Whether a role's turns are met by those of others, which may walk through memory."""
    return any(isinstance(op, (thread.ArriveOp, thread.WaitOp)) for op in loop.walk())


def _shorten(loop: scf.ForOp, counts: dict[int, int]) -> None:
    """Fewer iterations of a loop: as many as are left of the size, or, between constant bounds, the first few."""
    bounds = [constant_of(each) for each in (loop.lower, loop.upper, loop.step)]
    if any(type(each) is not int for each in bounds):
        _shorten_limits(loop, counts)
        return
    lower, upper, step = (int(each) for each in bounds if each is not None)
    trips = len(range(lower, upper, step)) if step else 0
    if lower > 0 and step == 1 and counts.get(lower, lower) < lower:  # what is left behind another loop
        start = counts[lower]
        end = _constant(loop, counts.get(upper, start + min(trips, _TRIPS)), loop.upper)
        loop.set_operands([_constant(loop, start, loop.lower), end, *loop.operands[2:]])
        return
    if trips <= _TRIPS and trips not in counts:
        return
    left = min(trips, counts.get(trips, _TRIPS))
    operands = [loop.lower, _constant(loop, lower + left * step, loop.upper), *loop.operands[2:]]
    loop.set_operands(operands)


def _shorten_limits(loop: scf.ForOp, counts: dict[int, int]) -> None:
    """Of computed bounds, as a causal loop has them: the numbers of blocks that they end at or are limited to."""
    pending: list[Operation] = [loop]
    while pending:
        op = pending.pop()
        for number, value in enumerate(op.operands[:2]):
            blocks = constant_of(value)
            if type(blocks) is int and counts.get(blocks, blocks) < blocks:
                op.set_operands(
                    [*op.operands[:number], _constant(op, counts[blocks], value), *op.operands[number + 1 :]]
                )
            elif isinstance(value.op, (arith.MinOp, arith.MaxOp)):
                pending.append(value.op)
