"""A T.Parallel whose points are the threads of the block: what they exchange, and what all of them do together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from math import prod

from tiledsl.analysis.affine import bounds, linear_form
from tiledsl.analysis.block_access import root_buffer
from tiledsl.analysis.dependence import read_by
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.dialects import arith, scf, tensor, thread, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, BufferType, Shape, TensorType, broadcast_shapes
from tiledsl.passes.tile_values import (
    broadcast,
    compared,
    converted,
    exact_sum,
    iota,
    nothing,
    reduced,
    reshaped,
    selected,
)
from tiledsl.passes.vectorize_parallel.writes import one_element, place, varies

Number = bool | int | float


class Block:
    """Emits what threads do with each other, and the operations on whole tiles between what each thread does."""

    def __init__(self, variance: Variance, map: Mapping[Value, Value], private: Mapping[Value, Value]) -> None:
        self.variance = variance
        self.map = map
        self.private = private
        self.extents: Shape = variance.parallel.extents
        self.admitted: Value | None = None  # the mask under which the block as a whole comes here
        self.waits = _exchanges_in_global_memory(variance.parallel)

    @contextmanager
    def admitting(self, mask: Value) -> Iterator[None]:
        outer, self.admitted = self.admitted, mask
        yield
        self.admitted = outer

    def takes(self, op: Operation) -> bool:
        """Whether this operation is emitted here."""
        return isinstance(op, (thread.BarrierOp, thread.ShuffleOp, thread.ReduceOp)) or self._is_of_block(op)

    def acts_in(self, around: Operation | Region) -> bool:
        """Whether an operation of the whole block is in a branch or loop."""
        return any(self._is_of_block(op) for op in around.walk())

    def _is_of_block(self, op: Operation) -> bool:
        if op.regions:
            return op in self.variance.apart
        return any(isinstance(value.type, TensorType) for value in (*op.operands, *op.results))

    def emit(self, op: Operation, builder: Builder, mask: Value | None) -> None:
        if isinstance(op, thread.BarrierOp):
            if mask is not None and mask is not self.admitted and threads_where(mask) != prod(self.extents):
                raise TileError(
                    "T.sync_threads where not all threads of the block come: the others would wait for ever",
                    op.loc,
                    ["put it behind the `if`, or write a loop that has as many turns in all threads"],
                    code="threads-apart",
                )
            if self.waits:
                builder.insert(thread.BarrierOp(loc=op.loc))
        elif isinstance(op, thread.ShuffleOp):
            self.map[op.out] = self._shuffled(op, builder)  # type: ignore[index]
        elif isinstance(op, thread.ReduceOp):
            self.map[op.out] = self._reduced(op, builder)  # type: ignore[index]
        else:
            self._together(op, builder, mask)

    # Operations of the whole block

    def _together(self, op: Operation, builder: Builder, mask: Value | None) -> None:
        if mask is not None and mask is not self.admitted:
            if Effect.WRITE not in op.effects and not op.regions:
                mask = None  # of what is only computed nothing is to be seen
            else:
                raise TileError(
                    "this is done by all threads of the block together, but stands in a loop that has more turns in "
                    "some threads than in others",
                    op.loc,
                    ["write it for one thread, with T.serial and T.vectorized loops"],
                    code="threads-apart",
                )
        if isinstance(op, tile.WriteOp) and op.buffer in self.private:
            self._fill(op, builder, mask)
            return
        for old in {*read_by(op)}:
            if old in self.private or self._mapped(old).shape != old.shape:
                name = old.name or "a value in it"
                raise TileError(
                    f"this is done by all threads of the block together, but {name} differs from thread to thread",
                    op.loc,
                    ["write it for one thread, with T.serial and T.vectorized loops"],
                    code="threads-apart",
                )
        builder.insert(op.clone(self.map))  # type: ignore[arg-type]

    def _fill(self, op: tile.WriteOp, builder: Builder, mask: Value | None) -> None:
        """A tile that is the same in all threads becomes the content of an array that each of them has."""
        target = self.private[op.buffer]
        shape, lanes = tile.buffer_type(target).static_shape, len(self.variance.extents)
        value = self._mapped(op.value)
        value = reshaped(builder, value, (1,) * lanes + shape[lanes:])
        if mask is not None:
            old = builder.insert(tile.ReadOp(target)).out
            where = reshaped(builder, mask, mask.shape + (1,) * (len(shape) - lanes))
            value = selected(builder, where, value, old)
        builder.insert(tile.WriteOp(broadcast(builder, value, shape), target, loc=op.loc))

    def check_order(self, op: scf.IfOp) -> None:
        """Refuse branches that run at the same time in different threads, of which one sees what the other writes."""
        apart = {inner for outer in op.walk() if outer in self.variance.apart for inner in outer.walk()}
        used: list[dict[Value, None]] = []  # in each branch
        written, together = set[Value](), set[Value]()  # by the whole block
        for region in op.regions:
            ops = [each for each in region.walk() if not each.regions]
            accesses = [(value, each) for each in ops for value in each.operands if isinstance(value.type, BufferType)]
            used.append(dict.fromkeys(buffer for buffer, _ in accesses))
            written.update(buffer for buffer, each in accesses if Effect.WRITE in each.effects)
            together.update(buffer for buffer, each in accesses if each in apart or self.takes(each))
        then, orelse = used
        for buffer in then:
            if buffer in orelse and buffer in written & together:
                raise TileError(
                    f"the two branches run at the same time, in different threads; {buffer.name or 'a buffer'} is "
                    "written in one of them and used in the other",
                    op.loc,
                    ["write two `if` statements, in the order that is meant"],
                    code="threads-apart",
                )

    # Exchange

    def _shuffled(self, op: thread.ShuffleOp, builder: Builder) -> Value:
        value, source = self._mapped(op.value), self._mapped(op.source)
        if not self.variance.of(op.value) & self.variance.threads:
            return value
        last = op.group - 1
        known = bounds(source)
        if known is None or known[0] < 0 or known[1] > last:
            source = builder.insert(arith.MinOp(source, builder.constant(last, INT32))).result
            source = builder.insert(arith.MaxOp(source, builder.constant(0, INT32))).result
        rest = broadcast_shapes(value.shape[len(self.extents) :], source.shape[len(self.extents) :])
        assert rest is not None
        groups, axis = self._groups(builder, converted(builder, value, _gathered(value.dtype)), op.group, rest)
        index, _ = self._groups(builder, source, op.group, rest)
        made = builder.insert(tensor.GatherOp(groups, index, axis=axis, names=[op.out.name])).result
        return converted(builder, reshaped(builder, made, (*self.extents, *rest)), value.dtype)

    def _reduced(self, op: thread.ReduceOp, builder: Builder) -> Value:
        value, count = self._mapped(op.value), prod(self.extents)
        group = min(op.group, count)
        if not self.variance.of(op.value) & self.variance.threads:
            inner_shape = value.shape
            wide = broadcast(builder, reshaped(builder, value, (1, *inner_shape)), (group, *inner_shape))
            return reduced(builder, wide, op.kind, 0)
        inner_shape = value.shape[len(self.extents) :]
        groups, axis = self._groups(builder, value, group, inner_shape)
        made = reduced(builder, groups, op.kind, axis, keep=True)
        if group == count:
            return reshaped(builder, made, (*(1 for _ in self.extents), *inner_shape))
        return reshaped(builder, broadcast(builder, made, groups.shape), (*self.extents, *inner_shape))

    def _groups(self, builder: Builder, value: Value, group: int, rest: Shape) -> tuple[Value, int]:
        """A value of all threads with a dimension for the threads of a group, and which one that is."""
        value = broadcast(builder, value, (*self.extents, *rest))
        inner = (prod(rest),) if prod(rest) > 1 else ()
        outer = (prod(self.extents) // group,) if prod(self.extents) > group else ()
        return reshaped(builder, value, (*outer, group, *inner)), len(outer)

    def _mapped(self, value: Value) -> Value:
        return self.map.get(value, value)


def _exchanges_in_global_memory(parallel: tile.ParallelOp) -> bool:
    """Whether a global buffer is both written and read. Tiles on the chip are values, which need no barrier."""
    used: dict[Effect, set[Value]] = {Effect.READ: set(), Effect.WRITE: set()}
    for op in parallel.body.walk():
        for value in op.operands:
            if isinstance(value.type, BufferType) and value.type.scope == "global":
                for effect, buffers in used.items():
                    if effect in op.effects:
                        buffers.add(root_buffer(value))
    return bool(used[Effect.READ] & used[Effect.WRITE])


def _gathered(dtype: str) -> str:
    return "int32" if dtype == "bool" else dtype


# Several threads that write one element


def last_writer(
    op: tile.StoreOp | tile.WriteOp,
    builder: Builder,
    value: Value,
    indices: Sequence[Value],
    mask: Value | None,
    lanes: int,
    rank: int,
) -> tuple[Value, Value | None]:
    """Value and mask of a store by threads, without the dimensions along which the written element stays the same.

    Of threads that write one element, all of which may write the same value, the last one does. TileError where it is
    evident that they write different ones. The first `lanes` of `rank` dimensions are those of the threads; further
    ones are those of a T.Parallel that each thread runs.
    """
    _check_writers(op, value, indices, mask)
    shared = place(indices, rank)
    for axis in range(lanes):
        if rank > lanes and shared[axis] == 1 and varies(value, axis) and not (mask is not None and varies(mask, axis)):
            raise TileError(
                f"T.Parallel: all threads run this loop and write the same elements of {op.buffer.name or 'a buffer'}, "
                "but what they write differs from thread to thread",
                op.loc,
                ["index with the thread, too, or write the loop without what differs: then it is done once, by all"],
            )
    is_global = tile.buffer_type(op.buffer).scope == "global"
    for axis, size in enumerate(shared):
        if size != 1 or is_global and varies(value, axis):
            continue
        if varies(value, axis):
            extent = value.shape[axis]
            here = iota(builder, rank, axis, extent)
            last: Value = builder.constant(extent - 1, INT32)
            if mask is not None and varies(mask, axis):
                chosen = selected(builder, mask, here, builder.constant(-1, INT32))
                last = reduced(builder, chosen, "max", axis, keep=True)
            only = compared(builder, here, "eq", last)
            value = exact_sum(builder, selected(builder, only, value, nothing(builder, value.dtype)), axis)
        if mask is not None and varies(mask, axis):
            somewhere = prod(mask.shape) == mask.shape[axis] and threads_where(mask)
            mask = None if somewhere else reduced(builder, mask, "or", axis, keep=True)
    return one_element(builder, value, shared, mask)


def _check_writers(op: tile.StoreOp | tile.WriteOp, value: Value, indices: Sequence[Value], mask: Value | None) -> None:
    forms = [linear_form(index).split()[1].terms for index in indices]
    factors = [value for form in forms for operand in form for value in operand]
    involved = [operand for operand in (value, *factors, mask) if operand is not None and operand.shape]
    extents = [max(sizes) for sizes in zip(*(operand.shape for operand in involved), strict=True)]
    wrote: dict[tuple[int, ...], tuple[tuple[int, ...], Number]] = {}
    try:
        for point in product(*map(range, extents)):
            if mask is not None and not _at(mask, point):
                continue
            number = _at(value, point)
            where = tuple(
                sum(factor * prod(int(_at(operand, point)) for operand in values) for values, factor in form.items())
                for form in forms
            )
            other, old = wrote.setdefault(where, (point, number))
            if old != number:
                name = op.buffer.name or "a buffer"
                who = f"threads {_told(other)} and {_told(point)}"
                raise TileError(
                    f"{who} write {old} and {number} to one element of {name}: their order would decide which stays",
                    op.loc,
                    ["let one thread write it, under a condition such as `if T.get_thread_binding() == 0`"],
                )
    except _Unknown:
        return


def _told(point: tuple[int, ...]) -> str:
    return str(point[0]) if len(point) == 1 else str(point[::-1])


def threads_where(mask: Value) -> int | None:
    """In how many points a mask holds, if that is the same in all blocks and shown by indices and constants alone."""
    try:
        return sum(bool(_at(mask, point)) for point in product(*map(range, mask.shape)))
    except _Unknown:
        return None


class _Unknown(Exception):
    """A value depends on more than the point."""


def _at(value: Value, point: tuple[int, ...]) -> Number:
    """A value at a point. Raises _Unknown."""
    number, op = arith.constant_of(value), value.op
    if number is not None:
        return number
    if isinstance(op, tensor.IotaOp):
        return point[op.axis] if value.shape[op.axis] > 1 else 0
    if isinstance(op, tensor.BroadcastOp):
        return _at(op.source, point)
    if isinstance(op, arith.NotOp) and value.dtype == "bool":
        return not _at(op.source, point)
    if isinstance(op, arith.CmpOp):
        return bool(arith.PREDICATES[op.predicate](_at(op.lhs, point), _at(op.rhs, point)))
    if isinstance(op, arith.CastOp) and op.source.dtype in ("bool", "int32"):
        return _as_stored(_at(op.source, point), value.dtype)
    if isinstance(op, arith.BinaryOp) and value.dtype in ("bool", "int32", "float32"):
        lhs, rhs = (_at(each, point) for each in op.operands)
        with suppress(ArithmeticError, ValueError, TypeError, NotImplementedError):
            return _as_stored(op.compute(lhs, rhs), value.dtype)
    raise _Unknown


def _as_stored(number: Number, dtype: str) -> Number:
    return arith.rounded(arith.as_constant(number, dtype), dtype)
