"""Checks that local variables of a T.Parallel do not depend on the order in which its points are computed."""

from __future__ import annotations

from tiledsl.analysis.dependence import ancestors
from tiledsl.analysis.loops import trip_count
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.dialects import scf, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds


def check_locals(variance: Variance) -> None:
    """Raise TileError for a local variable that carries a value from point to point, or out of the T.Parallel."""
    outside = {buffer for buffer in variance.private if buffer not in variance.allocated}
    # Those that have a value for each point of a T.Parallel further in than the one that allocates them.
    inside = {
        op.out for op in of_kinds(variance.parallel.body.walk(), tile.AllocOp)
        if variance.of(op.out) & ~variance.active_at(op)
    }  # fmt: skip
    if outside or inside:
        _Order(variance, outside | inside).follow(variance.parallel.body, set())
        for buffer in outside:
            _not_read_after(variance.parallel, buffer)


class _Order:
    """Whether each point has written a local variable where it reads it."""

    def __init__(self, variance: Variance, buffers: set[Value]) -> None:
        self.variance, self.buffers = variance, buffers
        self.left: dict[Value, Operation] = {}  # the T.Parallel that has ended, whose points have a value each

    def follow(self, region: Region, written: set[Value]) -> None:
        """Follow the region; `written` becomes the buffers that hold what every point has written behind it."""
        for op in region:
            if isinstance(op, scf.IfOp):
                then, orelse = set(written), set(written)
                self.follow(op.then, then)
                self.follow(op.orelse, orelse)
                written.clear()
                written |= then & orelse
            elif isinstance(op, scf.ForOp):
                inside = set(written)
                self.follow(op.body, inside)
                if written - inside:
                    self.follow(op.body, written & inside)  # as later turns begin
                written &= inside
                if trip_count(op):
                    written |= inside
            elif isinstance(op, scf.WhileOp):
                self.follow(op.before, written)
                inside = set(written)
                self.follow(op.after, inside)
                if written - inside:
                    self.follow(op.before, written & inside)
            elif isinstance(op, tile.ParallelOp):
                self._points(op, written)
            elif isinstance(op, (tile.StoreOp, tile.WriteOp)):
                if op.buffer in self.buffers and (isinstance(op, tile.WriteOp) or op.mask is None):
                    written.add(op.buffer)
            elif isinstance(op, (tile.LoadOp, tile.ReadOp)) and op.buffer in self.buffers and op.buffer not in written:
                if op.buffer in self.left:
                    raise _has_ended(op, self.left[op.buffer])
                raise TileError(
                    f"T.Parallel: {_called(op.buffer)} keeps a value from one iteration to the next",
                    op.loc,
                    ["iterations of T.Parallel have no order: use T.serial, or T.reduce_sum on a tile of the terms"],
                )

    def _points(self, parallel: tile.ParallelOp, written: set[Value]) -> None:
        """What a T.Parallel gives another value at each of its points has none when it begins, and none behind it."""
        own = sum(1 << dim for dim in self.variance.dims[parallel])
        stores: list[tile.StoreOp | tile.WriteOp] = of_kinds(parallel.body.walk(), tile.StoreOp, tile.WriteOp)
        changed = {op.buffer for op in stores if op.buffer in self.buffers and self.variance.of(op.buffer) & own}
        written -= changed
        self.follow(parallel.body, written)
        written -= changed
        self.left |= dict.fromkeys(changed, parallel)


def _not_read_after(parallel: Operation, buffer: Value) -> None:
    assert parallel.parent is not None
    for op in parallel.parent.ops[parallel.parent.index(parallel) + 1 :]:
        for inner in op.walk():
            if buffer not in inner.operands:
                continue
            if isinstance(inner, (tile.LoadOp, tile.ReadOp)) and not is_in_parallel(inner):
                raise _has_ended(inner, parallel)
            return


def _has_ended(read: tile.LoadOp | tile.ReadOp, parallel: Operation) -> TileError:
    """The error that points of a T.Parallel, which has ended, have a value each."""
    return TileError(
        f"{_called(read.buffer)} has a value for each iteration of T.Parallel, so none after it",
        read.loc,
        [("it is written in this T.Parallel", parallel.loc)],
    )


def _called(buffer: Value) -> str:
    return buffer.name or "a local variable"


def is_in_parallel(op: Operation) -> bool:
    """Whether an operation stands in a tile.parallel."""
    return any(isinstance(around, tile.ParallelOp) for around in ancestors(op))
