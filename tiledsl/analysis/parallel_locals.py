"""Checks that local variables of a T.Parallel do not depend on the order in which its points are computed."""

from __future__ import annotations

from tiledsl.analysis.dependence import ancestors
from tiledsl.analysis.loops import trip_count
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.dialects import scf, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value


def check_locals(variance: Variance) -> None:
    """Raise TileError for a local variable that carries a value from point to point, or out of the T.Parallel."""
    outside = {buffer for buffer in variance.private if buffer not in variance.allocated}
    if outside:
        _first_writes(variance.parallel.body, outside, set())
        for buffer in outside:
            _not_read_after(variance.parallel, buffer)


def _first_writes(region: Region, buffers: set[Value], written: set[Value]) -> None:
    """Follow the region; `written` receives the buffers that every point has written."""
    for op in region:
        if isinstance(op, scf.IfOp):
            then, orelse = set(written), set(written)
            _first_writes(op.then, buffers, then)
            _first_writes(op.orelse, buffers, orelse)
            written |= then & orelse
        elif isinstance(op, scf.ForOp):
            inside = set(written)
            _first_writes(op.body, buffers, inside)
            if trip_count(op):
                written |= inside
        elif isinstance(op, scf.WhileOp):
            _first_writes(op.before, buffers, written)
            _first_writes(op.after, buffers, set(written))
        elif isinstance(op, tile.ParallelOp):
            _first_writes(op.body, buffers, written)
        elif isinstance(op, (tile.StoreOp, tile.WriteOp)):
            if op.buffer in buffers and (isinstance(op, tile.WriteOp) or op.mask is None):
                written.add(op.buffer)
        elif isinstance(op, (tile.LoadOp, tile.ReadOp)) and op.buffer in buffers and op.buffer not in written:
            raise TileError(
                f"T.Parallel: {_called(op.buffer)} keeps a value from one iteration to the next",
                op.loc,
                ["iterations of T.Parallel have no order: use T.serial, or T.reduce_sum on a tile of the terms"],
            )


def _not_read_after(parallel: Operation, buffer: Value) -> None:
    assert parallel.parent is not None
    for op in parallel.parent.ops[parallel.parent.index(parallel) + 1 :]:
        for inner in op.walk():
            if buffer not in inner.operands:
                continue
            if isinstance(inner, (tile.LoadOp, tile.ReadOp)) and not is_in_parallel(inner):
                raise TileError(
                    f"{_called(buffer)} has a value for each iteration of T.Parallel, so none after it",
                    inner.loc,
                    [("it is written in this T.Parallel", parallel.loc)],
                )
            return


def _called(buffer: Value) -> str:
    return buffer.name or "a local variable"


def is_in_parallel(op: Operation) -> bool:
    """Whether an operation stands in a tile.parallel."""
    return any(isinstance(around, tile.ParallelOp) for around in ancestors(op))
