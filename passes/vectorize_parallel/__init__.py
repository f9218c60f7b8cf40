"""vectorize-parallel: the body of a T.Parallel, written for one point, becomes operations on whole tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tiledsl.analysis.parallel_locals import check_locals, is_in_parallel
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.dialects import arith, scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BOOL, INT32, BufferType, broadcast_shapes, with_shape
from tiledsl.passes.tile_values import (
    both,
    broadcast,
    converted,
    iota,
    is_inside,
    reduced,
    selected,
)
from tiledsl.passes.vectorize_parallel.arrays import split_arrays
from tiledsl.passes.vectorize_parallel.threads import Block, last_writer, threads_where
from tiledsl.passes.vectorize_parallel.updates import apply_update, shared_updates
from tiledsl.passes.vectorize_parallel.writes import (
    combine_on_chip,
    fewer_atomics,
    is_on_chip_update,
    keeps_element,
    one_writer,
    place,
)

Operand = TypeVar("Operand", Value, Value | None)


@dataclass(frozen=True)
class VectorizeParallel(Pass):
    """Compute all points of a tile.parallel at once.

    Each index becomes a tensor.iota along its own dimension; values that do not vary stay scalar, or 1 in that
    dimension. An `if` on a varying condition becomes a mask on stores and atomics. Local buffers that every point
    writes before reading them become fragments with one element for each point.

    tile.atomic on on-chip buffers becomes a read, the combination of all points (a tensor.scatter, where several may
    have one computed index), and a write; so does r[i] = r[i] + x[i, j], where points share an element.

    Before:  tile.parallel {extents = (128, 64)} (%i, %j) {    After:  %i = tensor.iota : tensor<128x1xint32>
               %x = tile.load %s[%i]                                   %j = tensor.iota : tensor<1x64xint32>
               tile.store %x, %y[%i, %j]                               %x = tile.load %s[%i]
             }                                                         tile.store %x, %y[%i, %j]
    Errors:  several points write different values to one element of an on-chip buffer.
    """

    name = "vectorize-parallel"

    def allowances(self, program: Program) -> frozenset[str]:
        # A reducer says nothing of its order.
        atomics = (op for op in program.root.walk() if isinstance(op, tile.AtomicOp))
        shared = any(tile.is_on_chip(op.buffer) for op in atomics) or any(
            shared_updates(Variance(op))
            for op in of_kinds(program.root.walk(), tile.ParallelOp)
            if not is_in_parallel(op)
        )
        return frozenset({"reassociation"} if shared else ())

    def run(self, program: Program) -> None:
        pending = list(program.root.regions)
        while pending:
            region = pending.pop()
            for op in list(region.nested):
                if isinstance(op, tile.ParallelOp):
                    pending += [region] if op.lockstep else []  # once more, for what its whole block does
                    _Vectorizer(op).run()
                else:
                    pending.extend(op.regions)
        for op in of_kinds(program.root.walk(), tile.AtomicOp):  # those outside of every T.Parallel
            if is_on_chip_update(op):
                before = combine_on_chip(op, Builder.at(op), op.value, list(op.indices), op.mask, (), op.compare)
                if before is not None:
                    op.out.replace_with(before)
                op.erase()


class _Vectorizer:
    """Emits the tile form of one outermost tile.parallel before it, and erases it."""

    def __init__(self, parallel: tile.ParallelOp) -> None:
        self.parallel = parallel
        if parallel.lockstep:
            split_arrays(parallel)
        self.variance = Variance(parallel)
        if updates := shared_updates(self.variance):
            for update in updates:
                apply_update(update)
            self.variance = Variance(parallel)
        self.rank = len(self.variance.extents)
        self.map: dict[Value, Value] = {}
        self.private: dict[Value, Value] = {}
        self.points: dict[int, Value] = {}  # dimension -> its index
        self.block = Block(self.variance, self.map, self.private) if parallel.lockstep else None

    def run(self) -> None:
        if self.block is None:
            check_locals(self.variance)
        builder = Builder.at(self.parallel)
        for buffer in self.variance.private:
            own = tile.buffer_type(buffer)
            own_shape = own.static_shape if own.numel() != 1 else ()
            type = BufferType(self.variance.shape(self.variance.of(buffer)) + own_shape, own.dtype, "fragment")
            self.private[buffer] = builder.insert(tile.AllocOp(result_types=[type], names=[buffer.name])).result
        self._parallel(self.parallel, builder, None)
        self.parallel.erase()

    def _parallel(self, op: tile.ParallelOp, builder: Builder, mask: Value | None) -> None:
        for arg, dim in zip(op.body.args, self.variance.dims[op], strict=True):
            if dim not in self.points:
                extent = self.variance.extents[dim]
                if extent == 1:
                    self.points[dim] = builder.constant(0, INT32)
                else:
                    self.points[dim] = iota(builder, self.rank, dim, extent)
                    self.points[dim].name = arg.name
            self.map[arg] = self.points[dim]
        if 0 not in op.extents:
            self._body(op.body, builder, mask)

    def _body(self, region: Region, builder: Builder, mask: Value | None) -> None:
        for op in region:
            builder.loc = op.loc
            if self.block is not None and self.block.takes(op):
                self.block.emit(op, builder, mask)
            elif isinstance(op, tile.ParallelOp):
                self._nested(op, builder, mask)
            elif isinstance(op, scf.IfOp):
                self._if(op, builder, mask)
            elif isinstance(op, scf.ForOp):
                self._for(op, builder, mask)
            elif isinstance(op, scf.WhileOp):
                self._while(op, builder, mask)
            elif isinstance(op, (scf.YieldOp, scf.ConditionOp)):
                continue
            elif isinstance(op, tile.LoadOp):
                self._load(op, builder, mask)
            elif isinstance(op, tile.ReadOp):
                self._read(op, builder)
            elif isinstance(op, tile.StoreOp):
                self._store(op, builder, mask)
            elif isinstance(op, tile.WriteOp):
                self._write(op, builder, mask)
            elif isinstance(op, tile.AtomicOp):
                self._atomic(op, builder, mask)
            elif isinstance(op, tile.AllocOp) and op.result in self.private:
                continue
            else:
                self._plain(op, builder, mask)

    def _nested(self, op: tile.ParallelOp, builder: Builder, mask: Value | None) -> None:
        # Inside another region the indices of its dimensions must not be reused outside of it.
        kept = dict(self.points)
        self._parallel(op, builder, mask)
        self.points = kept

    def _plain(self, op: Operation, builder: Builder, mask: Value | None) -> None:
        values = [self.map.get(value, value) for value in op.operands]
        varies = any(new.shape != old.shape for old, new in zip(op.operands, values, strict=True))
        if not varies or isinstance(op, tile.PrintOp):
            builder.insert(op.clone(self.map))
        elif any(value.shape for value in (*op.operands, *op.results)):
            raise _whole_tile(op)
        elif isinstance(op, arith.Elementwise):
            shape = broadcast_shapes(*(value.shape for value in values))
            assert shape is not None, f"{op.name}: the operands' shapes do not go together"
            copy = type(op)(
                *([values] if isinstance(op, arith.MathOp) else values),
                result_types=[with_shape(shape, op.result.dtype)],
                loc=op.loc,
                names=[op.result.name],
                **op.attributes,
            )
            self.map[op.result] = builder.insert(copy).result
        elif isinstance(op, tile.AssertOp):
            (condition,) = values
            if mask is not None:
                skipped = builder.insert(arith.NotOp(mask)).result
                condition = builder.insert(arith.OrOp(skipped, condition)).result
            builder.insert(tile.AssertOp(condition, message=op.message))
        elif not isinstance(op, tile.AssumeOp):
            raise _whole_tile(op)

    # Control flow

    def _if(self, op: scf.IfOp, builder: Builder, mask: Value | None) -> None:
        condition = self._mapped(op.condition)
        if condition.shape and self.block is not None and self.block.acts_in(op):
            self._apart(op, condition, builder, mask)
            return
        if condition.shape:
            self._body(op.then, builder, both(builder, mask, condition))
            if op.orelse.first is not op.orelse.last:
                negated = builder.insert(arith.NotOp(condition)).result
                self._body(op.orelse, builder, both(builder, mask, negated))
            for out, on_true, on_false in zip(
                op.results, op.then.terminator.operands, op.orelse.terminator.operands, strict=True
            ):
                self.map[out] = selected(builder, condition, self._mapped(on_true), self._mapped(on_false))
            return
        regions = []
        for inner in op.regions:
            region = Region()
            branch = Builder(region, loc=op.loc)
            self._body(inner, branch, mask)
            values = [
                self._spread(branch, value, self.variance.of(out))
                for out, value in zip(op.results, inner.terminator.operands, strict=True)
            ]
            regions.append(scf.yielding(region, values))
        then, _ = regions
        types = [value.type for value in then.terminator.operands]
        copy = builder.insert(scf.IfOp(condition, result_types=types, regions=regions, loc=op.loc))
        self._results(op, copy)

    def _apart(self, op: scf.IfOp, condition: Value, builder: Builder, mask: Value | None) -> None:
        """Branches that some threads take, with statements of the whole block: each runs once, if any thread does."""
        assert self.block is not None, "only threads have a block"
        self.block.check_order(op)
        negated = builder.insert(arith.NotOp(condition)).result
        for branch, where in ((op.then, condition), (op.orelse, negated)):
            taken = both(builder, mask, where)
            assert taken is not None, "a branch has a condition"
            takers = threads_where(taken)
            if takers == 0 or branch.first is branch.last:
                continue
            if takers or not self.block.acts_in(branch):
                with self.block.admitting(taken):
                    self._body(branch, builder, taken)
                continue
            inner = Region()
            with self.block.admitting(taken):
                self._body(branch, Builder(inner, loc=op.loc), taken)
            regions = [scf.yielding(inner), scf.yielding(Region())]
            anyone = self._over_all(builder, taken, "or")
            builder.insert(scf.IfOp(anyone, regions=regions, loc=op.loc))

    def _for(self, op: scf.ForOp, builder: Builder, mask: Value | None) -> None:
        lower, upper, step = (self._mapped(value) for value in (op.lower, op.upper, op.step))
        lanes: list[tuple[str, Value]] = []
        ahead: Value | None = None
        if lower.shape or upper.shape or step.shape:
            lower, upper, lanes, ahead = self._common_bounds(op, builder, mask, lower, upper, step)
        inits = [
            self._spread(builder, init, self.variance.of(out)) for init, out in zip(op.inits, op.results, strict=True)
        ]
        body = Region([op.index.type, *(init.type for init in inits)], [arg.name for arg in op.body.args])
        self.map.update(zip(op.body.args, body.args, strict=True))
        inner = Builder(body, loc=op.loc)
        here: Value | None = None
        for predicate, bound in lanes:
            here = both(inner, here, inner.insert(arith.CmpOp(body.args[0], bound, predicate=predicate)).result)
        if ahead is not None:
            self.map[op.index] = inner.insert(arith.AddOp(body.args[0], ahead)).result
        self._body(op.body, inner, both(inner, mask, here))
        yielded = []
        for arg, value, out in zip(body.args[1:], op.body.terminator.operands, op.results, strict=True):
            made = self._spread(inner, value, self.variance.of(out))
            yielded.append(made if here is None else selected(inner, here, made, arg))
        scf.yielding(body, yielded)
        copy = scf.ForOp(lower, upper, step, inits, regions=[body], loc=op.loc, **op.attributes)
        self._results(op, builder.insert(copy))

    def _common_bounds(
        self, op: scf.ForOp, builder: Builder, mask: Value | None, lower: Value, upper: Value, step: Value
    ) -> tuple[Value, Value, list[tuple[str, Value]], Value | None]:
        """Bounds that hold the iterations of every point, and the comparisons that pick a point's own.

        With steps other than 1, points are at different numbers at a time: the last result is how far each is ahead.
        """
        number = constant_of(step)
        if not number:
            raise TileError(
                "the loop's step depends on the point of T.Parallel, or is not known: write a number", op.loc
            )
        if mask is not None:  # bounds of points that do not take part may be anything
            upper = selected(builder, mask, upper, lower)
        up = number > 0
        before, nearest, farthest = ("lt", "min", "max") if up else ("gt", "max", "min")
        first = self._over_all(builder, lower, nearest)
        ahead: Value | None = None
        lanes = [(before, upper)]
        if lower.shape and abs(number) != 1:
            # Between a point's start and its end nothing wraps, and where it has no iterations they are the same.
            some = builder.insert(arith.CmpOp(lower, upper, predicate=before)).result
            ahead = builder.insert(arith.SubOp(lower, first)).result
            upper = builder.insert(arith.SubOp(selected(builder, some, upper, lower), ahead)).result
            lanes = [(before, upper)]
        elif lower.shape:
            lanes = [("ge" if up else "le", lower), (before, upper)]
        return first, self._over_all(builder, upper, farthest), lanes, ahead

    def _while(self, op: scf.WhileOp, builder: Builder, mask: Value | None) -> None:
        inits = [
            self._spread(builder, init, self.variance.of(arg))
            for init, arg in zip(op.inits, op.before.args, strict=True)
        ]
        before = Region([init.type for init in inits], [arg.name for arg in op.before.args])
        self.map.update(zip(op.before.args, before.args, strict=True))
        test = Builder(before, loc=op.loc)
        self._body(op.before, test, mask)
        end = op.before.terminator
        condition, handed = self._mapped(end.operands[0]), [self._mapped(value) for value in end.operands[1:]]
        varies = bool(condition.shape)
        if varies:
            active = both(test, mask, condition)
            assert active is not None
            condition, handed = self._over_all(test, active, "or"), [active]
        before.insert(scf.ConditionOp(condition, handed))
        names = ["active"] if varies else [arg.name for arg in op.after.args]
        after = Region([value.type for value in handed], names)
        if not varies:
            self.map.update(zip(op.after.args, after.args, strict=True))
        body = Builder(after, loc=op.loc)
        self._body(op.after, body, after.args[0] if varies else mask)
        yielded = [
            self._spread(body, value, self.variance.of(arg))
            for value, arg in zip(op.after.terminator.operands, op.before.args, strict=True)
        ]
        scf.yielding(after, yielded)
        types = [value.type for value in handed]
        copy = builder.insert(scf.WhileOp(inits, result_types=types, regions=[before, after], loc=op.loc))
        if not varies:
            self._results(op, copy)

    # Memory

    def _load(self, op: tile.LoadOp, builder: Builder, mask: Value | None) -> None:
        buffer, indices = op.buffer, [self._mapped(index) for index in op.indices]
        if op.result.shape and any(new.shape != old.shape for old, new in zip(op.indices, indices, strict=True)):
            raise _whole_tile(op)
        own_mask, other = self._mapped(op.mask), self._mapped(op.other)
        if other is not None and other.shape:
            raise TileError("a load's default value varies inside T.Parallel", op.loc)
        is_global = tile.buffer_type(buffer).scope == "global"
        if mask is not None and (is_global or self.block is not None and not self._fits(buffer, indices)):
            shape = broadcast_shapes(*(index.shape for index in indices))
            if broadcast_shapes(shape, mask.shape) == shape:
                own_mask = both(builder, own_mask, mask)
        place = self._indices(builder, buffer, indices)
        names = [op.result.name]
        load = tile.LoadOp(self._target(buffer), place, own_mask, other, loc=op.loc, names=names, **op.attributes)
        self.map[op.result] = builder.insert(load).result

    def _read(self, op: tile.ReadOp, builder: Builder) -> None:
        if op.buffer not in self.private:
            builder.insert(op.clone(self.map))
            return
        if op.result.shape:
            raise TileError(f"{op.buffer.name or 'a buffer'} is read as a whole inside T.Parallel", op.loc)
        place = self._indices(builder, op.buffer, [])
        load = tile.LoadOp(self._target(op.buffer), place, loc=op.loc, names=[op.result.name])
        self.map[op.result] = builder.insert(load).result

    def _fits(self, buffer: Value, indices: list[Value]) -> bool:
        """Whether indices lie inside of an on-chip buffer, as far as their operations show."""
        return all(map(is_inside, indices, tile.buffer_type(buffer).static_shape))

    def _store(self, op: tile.StoreOp, builder: Builder, mask: Value | None) -> None:
        if not keeps_element(op):
            indices = [self._mapped(index) for index in op.indices]
            self._put(op, builder, indices, both(builder, mask, self._mapped(op.mask)))

    def _put(self, op: tile.StoreOp | tile.WriteOp, builder: Builder, indices: list[Value], mask: Value | None) -> None:
        value, target = self._mapped(op.value), self._target(op.buffer)
        indices = self._indices(builder, op.buffer, indices)
        if self.block is not None:
            value, mask = last_writer(op, builder, value, indices, mask, len(self.parallel.extents), self.rank)
        elif tile.buffer_type(target).scope != "global":
            value, mask = one_writer(op, builder, value, place(indices, self.rank), mask)
        attributes = op.attributes if isinstance(op, tile.StoreOp) else {}
        builder.insert(tile.StoreOp(value, target, indices, mask, loc=op.loc, **attributes))

    def _write(self, op: tile.WriteOp, builder: Builder, mask: Value | None) -> None:
        if op.value.shape:
            self._write_tile(op, self._mapped(op.value), builder, mask)
        else:
            self._put(op, builder, [], mask)

    def _write_tile(self, op: tile.WriteOp, value: Value, builder: Builder, mask: Value | None) -> None:
        """A fill of a whole buffer inside the body."""
        target = self._target(op.buffer)
        number = constant_of(value)
        shape = tile.buffer_type(target).static_shape
        if number is None or mask is not None:
            if target is not op.buffer or mask is not None:
                raise TileError(f"{op.buffer.name or 'a buffer'} is written as a whole inside T.Parallel", op.loc)
            builder.insert(op.clone(self.map))
            return
        builder.insert(tile.WriteOp(builder.constant(number, with_shape(shape, value.dtype)), target, loc=op.loc))

    def _atomic(self, op: tile.AtomicOp, builder: Builder, mask: Value | None) -> None:
        value, indices = self._mapped(op.value), [self._mapped(index) for index in op.indices]
        compare = self._mapped(op.compare)
        mask = both(builder, mask, self._mapped(op.mask))
        full = self.variance.shape(self.variance.active_at(op))
        if is_on_chip_update(op):
            if op.buffer in self.variance.allocated:
                raise TileError(
                    f"{op.buffer.name or 'a reducer'} is allocated inside T.Parallel; allocate it before", op.loc
                )
            if self.block is not None and tile.buffer_type(op.buffer).scope == "local":
                self._update_own(op, builder, value, indices, mask)
                return
            value = broadcast(builder, value, full) if full else value
            before = combine_on_chip(op, builder, value, indices, mask, full, compare)
            if before is not None:
                self.map[op.out] = before
            return
        if full:
            value = broadcast(builder, value, full)  # every point takes part, also where nothing varies
            if not op.out.uses and op.kind in ("add", "max", "min"):
                value, mask = fewer_atomics(op.kind, builder, value, place(indices, self.rank), mask)
        made = tile.AtomicOp(value, op.buffer, indices, mask, compare, loc=op.loc, names=[op.out.name], **op.attributes)
        self.map[op.out] = builder.insert(made).result

    def _update_own(
        self, op: tile.AtomicOp, builder: Builder, value: Value, indices: list[Value], mask: Value | None
    ) -> None:
        """An update of an element of each thread's own, by all points of a T.Parallel that the thread runs."""
        full = self.variance.shape(self.variance.active_at(op) & ~self.variance.threads | self.variance.of(op.buffer))
        value = broadcast(builder, value, full) if full else value
        indices = self._indices(builder, op.buffer, indices)
        made = tile.AtomicOp(value, self._target(op.buffer), indices, mask, loc=op.loc, **op.attributes)
        combine_on_chip(made, builder, value, indices, mask, full, None)
        made.erase()

    # Values

    def _mapped(self, value: Operand) -> Operand:
        return value if value is None else self.map.get(value, value)

    def _target(self, buffer: Value) -> Value:
        return self.private.get(buffer) or self._mapped(buffer)

    def _indices(self, builder: Builder, buffer: Value, indices: list[Value]) -> list[Value]:
        """The indices into a buffer, or into the element of its private form that belongs to the point."""
        if buffer not in self.private:
            return indices
        axes = self.variance.of(buffer)
        point = [
            self._point(builder, axis) if axes >> axis & 1 else builder.constant(0, INT32) for axis in range(self.rank)
        ]
        return point + (indices if tile.buffer_type(buffer).numel() != 1 else [])

    def _point(self, builder: Builder, axis: int) -> Value:
        if axis not in self.points:  # read outside of the nested parallel that has this dimension
            return iota(builder, self.rank, axis, self.variance.extents[axis])
        return self.points[axis]

    def _spread(self, builder: Builder, value: Value, axes: int) -> Value:
        """The value in the shape that a carried value or result needs."""
        value = self._mapped(value)
        return broadcast(builder, value, self.variance.shape(axes)) if axes else value

    def _over_all(self, builder: Builder, value: Value, kind: str) -> Value:
        """One scalar for all points."""
        if kind == "or":
            value = converted(builder, value, "int32")
            kind = "max"
            made = self._over_all(builder, value, kind)
            return builder.insert(arith.CastOp(made, result_types=[BOOL])).result
        while value.shape:
            value = reduced(builder, value, kind, len(value.shape) - 1)
        return value

    def _results(self, op: Operation, copy: Operation) -> None:
        for old, new in zip(op.results, copy.results, strict=True):
            new.name = old.name
            self.map[old] = new


def _whole_tile(op: Operation) -> TileError:
    return TileError("T.Parallel: an operation on a whole tile depends on the iteration", op.loc)
