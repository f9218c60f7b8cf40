"""Along which dimensions of a T.Parallel each value varies, and which local buffers are private to each point."""

from __future__ import annotations

from math import prod

from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import scf, thread, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.types import BufferType


class Variance:
    """The variance of values in the body of a tile.parallel and of those nested in it.

    Sets of dimensions are bit masks. `dims` has the dimension numbers of each parallel, `extents` their sizes.
    Parallels side by side share dimensions of equal size. Nothing varies along a dimension of extent 1.

    Of a parallel whose points are threads, `threads` are the dimensions, and `apart` the parallels in it in which
    nothing differs from thread to thread: these are operations of the whole block, and have no dimensions here.
    """

    def __init__(self, parallel: tile.ParallelOp) -> None:
        self.parallel = parallel
        self.allocated = {op.out for op in of_kinds(parallel.body.walk(), tile.AllocOp)}
        self.apart: frozenset[Operation] = frozenset()
        self._homes: dict[Value, Operation | None] = {}
        self._settle()
        if parallel.lockstep:
            inner = of_kinds(parallel.body.walk(), tile.ParallelOp)
            self.apart = frozenset(op for op in inner if self._is_of_block(op))
            if self.apart:
                self._settle()

    def _settle(self) -> None:
        parallel = self.parallel
        self.axes: dict[Value, int] = {}
        self.dims: dict[Operation, list[int]] = {}
        self.active: dict[Operation, int] = {}  # the dimensions of a parallel and those around it, without extents of 1
        self.extents: list[int] = []
        self.indexed_by_point: set[Value] = set()  # local buffers from outside that are addressed by the point
        self._place(parallel, 0)
        self.threads = self.active[parallel] if parallel.lockstep else 0
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

    def active_at(self, op: Operation) -> int:
        """The dimensions of the points for which an operation is done."""
        around = _enclosing(op)
        assert around is not None, "it stands in a parallel"
        return self.active[around]

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
            if _enclosing(op) is parallel and op not in self.apart:
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
                if op not in self.apart:
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
                yielded = op.yielded
                for values in zip(op.inits, op.iter_args, yielded, op.results, strict=True):
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
            indices = self._union(op.indices if isinstance(op, tile.StoreOp) else [])
            own = buffer in self.allocated
            if self.threads:
                self._store_of_thread(op, buffer, indices, control)
                return
            if not own and tile.buffer_type(buffer).scope == "local" and indices:
                self.indexed_by_point.add(buffer)
                self.axes[buffer] = 0
            if own or (tile.buffer_type(buffer).scope == "local" and buffer not in self.indexed_by_point):
                self._add(buffer, self._union(op.operands) | control)
            return
        if isinstance(op, tile.AtomicOp) and self.threads and tile.buffer_type(op.buffer).scope == "local":
            self._add(op.buffer, self.threads)  # each adds to its own
        axes = active if isinstance(op, tile.AtomicOp) else self._union(op.operands)
        if isinstance(op, (thread.ShuffleOp, thread.ReduceOp)):
            axes = self._exchanged(op)
        for out in op.results:
            if not isinstance(op, tile.AllocOp):
                self._add(out, axes)

    # Threads

    def _store_of_thread(self, op: Operation, buffer: Value, indices: int, control: int) -> None:
        """A local buffer is each thread's own, and each point's of a parallel in the body unless they index it."""
        if tile.buffer_type(buffer).scope != "local":
            return
        if self._home(buffer) is not None:
            control &= ~self.threads  # who comes there is no matter of what is only known there
        points = indices & ~self.threads
        if points:
            self.indexed_by_point.add(buffer)
            self.axes[buffer] = self.axes.get(buffer, 0) & self.threads
        axes = self._union(op.operands[:1]) | indices | control
        self._add(buffer, axes & self.threads if buffer in self.indexed_by_point else axes)

    def _exchanged(self, op: thread.ShuffleOp | thread.ReduceOp) -> int:
        """Threads that exchange one value all have it, and so have those of one group for the whole block."""
        axes = self._union(op.operands)
        if not self.of(op.value) & self.threads or isinstance(op, thread.ReduceOp) and op.group >= self.count:
            return axes & ~self.threads
        return axes | self.threads

    @property
    def count(self) -> int:
        """The number of points of the outermost parallel."""
        return prod(self.parallel.extents)

    def _home(self, buffer: Value) -> Operation | None:
        """The parallel directly in the outermost one in which all that is done to a buffer stands."""
        if buffer not in self._homes:
            places = {self._outermost(user) for user in buffer.uses}
            self._homes[buffer] = places.pop() if len(places) == 1 else None
        return self._homes[buffer]

    def _outermost(self, op: Operation) -> Operation | None:
        """The parallel directly in the outermost one around an operation."""
        outermost: Operation | None = None
        around = _enclosing(op)
        while around is not None and around is not self.parallel:
            outermost, around = around, _enclosing(around)
        return outermost

    def _is_of_block(self, op: tile.ParallelOp) -> bool:
        """Whether a parallel in the body does the same in all threads."""
        if _enclosing(op) is not self.parallel:
            return False
        values = [*op.body.args, *(value for inner in op.body.walk() for value in inner.operands)]
        exchanged = any(isinstance(inner, (thread.ShuffleOp, thread.ReduceOp)) for inner in op.body.walk())
        return not exchanged and not self._union(values) & self.threads


def _enclosing(op: Operation) -> Operation | None:
    return next((around for around in ancestors(op) if isinstance(around, tile.ParallelOp)), None)
