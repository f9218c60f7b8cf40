"""Along which dimensions of a T.Parallel each value varies, and which local buffers are private to each point."""

from __future__ import annotations

from tiledsl.dialects import scf, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.types import BufferType


class Variance:
    """The variance of values in the body of a tile.parallel and of those nested in it.

    Sets of dimensions are bit masks. `dims` has the dimension numbers of each parallel, `extents` their sizes.
    Parallels side by side share dimensions of equal size. Nothing varies along a dimension of extent 1.
    """

    def __init__(self, parallel: tile.ParallelOp) -> None:
        self.parallel = parallel
        self.axes: dict[Value, int] = {}
        self.dims: dict[Operation, list[int]] = {}
        self.active: dict[Operation, int] = {}  # the dimensions of a parallel and those around it, without extents of 1
        self.extents: list[int] = []
        self.allocated = {op.out for op in of_kinds(parallel.body.walk(), tile.AllocOp)}
        self.indexed_by_point: set[Value] = set()  # local buffers from outside that are addressed by the point
        self._place(parallel, 0)
        self._changed = True
        while self._changed:  # values only gain dimensions, so this ends
            self._changed = False
            self._region(parallel.body, 0, self.active[parallel])
        self.private = [value for value in self.axes if isinstance(value.type, BufferType) and self.axes[value]]

    def of(self, value: Value) -> int:
        return self.axes.get(value, 0)

    def shape(self, axes: int) -> tuple[int, ...]:
        """The shape of a value that varies along these dimensions; () for none."""
        return tuple(extent if axes >> axis & 1 else 1 for axis, extent in enumerate(self.extents)) if axes else ()

    def _place(self, parallel: tile.ParallelOp, outer: int) -> None:
        dims: list[int] = []
        for extent in parallel.extents:
            free = [dim for dim, size in enumerate(self.extents) if size == extent and not outer >> dim & 1]
            free = [dim for dim in free if dim not in dims]
            dims.append(free[0] if free else len(self.extents))
            if not free:
                self.extents.append(extent)
        self.dims[parallel] = dims
        inside = outer | sum(1 << dim for dim in dims)
        self.active[parallel] = sum(1 << dim for dim, size in enumerate(self.extents) if inside >> dim & 1 and size > 1)
        for op in of_kinds(parallel.body.walk(), tile.ParallelOp):
            if _enclosing(op) is parallel:
                self._place(op, inside)

    def _add(self, value: Value, axes: int) -> None:
        old = self.axes.get(value, 0)
        if axes | old != old or value not in self.axes:
            self._changed |= axes | old != old
            self.axes[value] = axes | old

    def _union(self, values: list[Value]) -> int:
        axes = 0
        for value in values:
            axes |= self.axes.get(value, 0)
        return axes

    def _region(self, region: Region, control: int, active: int) -> None:
        if isinstance(region.parent, tile.ParallelOp):
            for arg, dim in zip(region.args, self.dims[region.parent], strict=True):
                self._add(arg, (1 << dim) & self.active[region.parent])
        for op in region:
            if isinstance(op, tile.ParallelOp):
                self._region(op.body, control, self.active[op])
            elif isinstance(op, scf.IfOp):
                branch = self.of(op.condition)
                for inner in op.regions:
                    self._region(inner, control | branch, active)
                    for out, value in zip(op.results, inner.terminator.operands, strict=True):
                        self._add(out, self.of(value) | branch)
            elif isinstance(op, scf.ForOp):
                bounds = self._union([op.lower, op.upper, op.step])
                self._region(op.body, control | bounds, active)
                yielded = op.body.terminator.operands
                for values in zip(op.inits, op.body.args[1:], yielded, op.results, strict=True):
                    for value in values[1:2] + values[3:]:
                        self._add(value, self._union(list(values)) | bounds)
            elif isinstance(op, scf.WhileOp):
                self._while(op, control, active)
            else:
                self._plain(op, control, active)

    def _while(self, op: scf.WhileOp, control: int, active: int) -> None:
        condition = op.before.terminator
        branch = self.of(condition.operands[0])
        self._region(op.before, control | branch, active)
        self._region(op.after, control | branch, active)
        if branch and op.inits:
            raise TileError("a while loop whose condition depends on the point of T.Parallel carries values", op.loc)
        for init, arg, value in zip(op.inits, op.before.args, op.after.terminator.operands, strict=True):
            self._add(arg, self._union([init, arg, value]))
        for handed, arg, out in zip(condition.operands[1:], op.after.args, op.results, strict=True):
            for value in (arg, out):
                self._add(value, self.of(handed))

    def _plain(self, op: Operation, control: int, active: int) -> None:
        if isinstance(op, (tile.StoreOp, tile.WriteOp)):
            buffer = op.buffer
            indices = self._union(op.indices) if isinstance(op, tile.StoreOp) else 0
            own = buffer in self.allocated
            if not own and tile.buffer_type(buffer).scope == "local" and indices:
                self.indexed_by_point.add(buffer)
                self.axes[buffer] = 0
            if own or (tile.buffer_type(buffer).scope == "local" and buffer not in self.indexed_by_point):
                self._add(buffer, self._union(op.operands) | control)
            return
        axes = active if isinstance(op, tile.AtomicOp) else self._union(op.operands)
        for out in op.results:
            if not isinstance(op, tile.AllocOp):
                self._add(out, axes)


def _enclosing(op: Operation) -> Operation | None:
    parent = op.parent_op
    while parent is not None and not isinstance(parent, tile.ParallelOp):
        parent = parent.parent_op
    return parent
