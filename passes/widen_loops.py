"""widen-loops: short loops over tiles that lie side by side in memory become one wide tile."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.dependence import depends_on, operands_of, reached
from tiledsl.analysis.linear import LinearForm, single_form
from tiledsl.analysis.loops import indices_of
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, TensorType, Type, is_float
from tiledsl.passes.index_arithmetic import materialize
from tiledsl.passes.tile_values import combine, iota

_LINE = 1024  # bits of a line of the cache
_LOADED = 128  # bytes that a thread may load at once
_KINDS = ("sum", "max", "min")


@dataclass(frozen=True)
class WidenLoops(Pass):
    """Load tiles that lie side by side in memory as one, where they are only combined and then reduced.

    Before:  %t = scf.for %c0, %c4, %c1[%zeros] (%k, %a: tensor<32x32xfloat32>) {
               %x = tile.load %X[%rows, %k * 32 + %columns] : tensor<32x32xfloat32>
               %n = arith.add %a, %x
               scf.yield [%n] }
             %s = tensor.reduce %t {kind = "sum", axis = 1}
    After:   %x = tile.load %X[%rows, %columns] : tensor<32x128xfloat32>
             %s = tensor.reduce %x {kind = "sum", axis = 1}
    Each row of a tile that has less than a line of the cache, 128 bytes, is read in several pieces at different times,
    of lines that may be gone then. Only loops of a known number of iterations that load, compute element by element and
    carry nothing else, whose tiles together have no more than 128 bytes for each thread. Sums of floats are added in
    another order then. Measured on an H200: sums of products of rows of 128 float16 in pieces of 32, 40.5 to 33.3 us.
    Needs:   promote-buffers. Runs after reduce-after-loops, which makes such loops of those that reduce by themselves.
    """

    name = "widen-loops"
    enabled: bool = True

    def allowances(self, program: Program) -> frozenset[str]:
        return frozenset({"reassociation"} if self._rewrite(program.root.clone({})) else ())

    def run(self, program: Program) -> None:
        self._rewrite(program.root)

    def _rewrite(self, root: Operation) -> bool:
        """Rewrite all such loops; return whether floats are added in another order now."""
        reordered = False
        for kernel in of_kinds(root.walk(), tile.KernelOp) if self.enabled else ():
            for loop in () if targets_gluon(kernel) else of_kinds(list(kernel.walk()), scf.ForOp):
                wide = _Wide.of(loop, kernel.threads)
                if wide is not None:
                    reordered |= any(kind == "sum" and is_float(each.dtype) for each, kind in wide.terms)
                    wide.replace_loop()
        return reordered


@dataclass(frozen=True)
class _Wide:
    """A loop that is one iteration over wider tiles. axis, extent: of its tiles, where they lie side by side. terms:
    what it combines with each carried value, and how. ops: what computes that, in order."""

    loop: scf.ForOp
    trips: int
    axis: int
    extent: int
    terms: list[tuple[Value, str]]
    ops: list[Operation]

    @classmethod
    def of(cls, loop: scf.ForOp, threads: int) -> _Wide | None:
        indices = indices_of(loop)
        if indices is None or indices != range(len(indices)) or len(indices).bit_count() != 1 or loop.num_stages:
            return None
        found = [_reduction(loop, number) for number in range(len(loop.inits))]
        reductions = [each for each in found if each is not None]
        shapes = {(op.source.shape, op.axis) for _, op in reductions}
        if len(reductions) < len(found) or len(shapes) != 1:
            return None
        ((shape, axis),) = shapes
        ops = _data_of(loop, [value for value, _ in reductions])
        if ops is None or axis != len(shape) - 1:
            return None
        wide = cls(loop, len(indices), axis, shape[axis], [(value, op.kind) for value, op in reductions], ops)
        walks = [load.out for load in of_kinds(ops, tile.LoadOp) if not wide._is_narrow(load.out)]
        row = wide.extent * max((ELEMENTS[value.dtype].bits for value in walks), default=_LINE)
        gains = row < _LINE and wide.trips * sum(map(tensor_bytes, walks)) <= _LOADED * threads
        return wide if gains and all(map(wide._can_widen, ops)) else None

    def _can_widen(self, op: Operation) -> bool:
        """Whether an operation needs the loop's index and the place along the axis only as the place in all tiles."""
        if isinstance(op, tile.LoadOp):
            *outer, column = op.indices
            whole = op.mask is None and op.other is None
            return whole and all(map(self._is_fixed, outer)) and self._is_place(column)
        outside = [value for value in op.operands if value.op not in self.ops]
        return all(constant_of(value) is not None or self._is_fixed(value) for value in outside)

    def _is_place(self, index: Value) -> bool:
        form = linear_form(index, through_names=True)
        walk = self._walk(form)
        if walk is None:
            return self._is_fixed(index)
        begin = form.plus(LinearForm({(self.loop.index,): self.extent, (walk,): 1}), -1)
        return all(map(self._is_fixed, chain.from_iterable(begin.terms)))

    def _walk(self, form: LinearForm) -> Value | None:
        """The place along the axis among what is added up."""
        values = chain.from_iterable(form.terms)
        return next((each for each in values if isinstance(each.op, tensor.IotaOp) and not self._is_narrow(each)), None)

    def _is_fixed(self, value: Value) -> bool:
        """Whether a value is the same in all iterations, and at all places along the axis."""
        return not depends_on(value, {self.loop.index}) and self._is_narrow(value)

    def _is_narrow(self, value: Value) -> bool:
        return not value.shape or value.shape[self.axis] == 1

    def replace_loop(self) -> None:
        loop, builder = self.loop, Builder.at(self.loop)
        mapping: dict[Value, Value] = {}
        own = {loop.index, *(op.result for op in self.ops)}
        for op in list(loop.body):
            if op not in self.ops and not any(depends_on(each, own) for each in op.operands):
                op.move_before(loop)
        for op in self.ops:
            builder.loc = op.loc
            for value in op.operands:
                number = constant_of(value)
                if number is not None:
                    mapping[value] = builder.constant(number, self._widened(value))
            if isinstance(op, tile.LoadOp):
                *outer, column = op.indices
                widened: Operation = tile.LoadOp(
                    op.buffer, [*outer, self._placed(builder, column)], None, None, **op.attributes,
                    names=[op.out.name],
                )  # fmt: skip
            else:
                widened = op.clone(mapping)
                widened.result.set_type(self._widened(op.result))
            mapping[op.result] = builder.insert(widened).result
        for (value, _), result in zip(self.terms, loop.results, strict=True):
            result.replace_with(mapping[value])
        loop.erase()

    def _widened(self, value: Value) -> Type:
        if self._is_narrow(value):
            return value.type
        return TensorType((*value.shape[: self.axis], self.extent * self.trips), value.dtype)

    def _placed(self, builder: Builder, index: Value) -> Value:
        form = linear_form(index, through_names=True)
        walk = self._walk(form)
        if walk is None:
            return index
        wide = iota(builder, len(walk.shape), self.axis, self.extent * self.trips, walk.dtype)
        form = form.plus(LinearForm({(self.loop.index,): self.extent, (walk,): 1}), -1).plus(single_form(wide))
        return materialize(builder, form, index.dtype)


def _reduction(loop: scf.ForOp, number: int) -> tuple[Value, tensor.ReduceOp] | None:
    """What a loop combines with a carried tile, which begins with nothing, and the reduction that alone uses it."""
    value, update, result = loop.iter_args[number], loop.yielded[number].op, loop.results[number]
    op = next(iter(result.uses), None)
    if len(result.uses) != 1 or not isinstance(op, tensor.ReduceOp) or op.kind not in _KINDS or op.propagate_nan:
        return None
    if not isinstance(update, combine(op.kind, value.dtype)) or value.uses != {update: 1}:
        return None
    term = update.rhs if update.lhs is value else update.lhs
    if constant_of(loop.inits[number]) != tensor.neutral(op.kind, value.dtype) or term.type != value.type:
        return None
    return (term, op) if ELEMENTS[value.dtype].bits >= 32 else None


def _data_of(loop: scf.ForOp, values: list[Value]) -> list[Operation] | None:
    """The loads of a loop and what computes values from them; None if the loop does more."""

    def inside(value: Value) -> list[Value]:
        sources = [] if isinstance(value.op, tile.LoadOp) else operands_of(value)
        local = [each for each in sources if each.op is not None and each.op.parent is loop.body]
        return [each for each in local if constant_of(each) is None]

    found = [value.op for value in reached(values, inside)]
    kinds = (tile.LoadOp, arith.Elementwise, tensor.BroadcastOp)
    ops = [op for op in found if isinstance(op, kinds) and op.parent is loop.body]
    others = [op for op in loop.body if not op.is_terminator and not op.is_pure and op not in ops]
    return None if others or len(ops) < len(found) else sorted(ops, key=lambda op: op.order)
