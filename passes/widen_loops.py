"""widen-loops: short loops over tiles that lie side by side in memory become one wide tile."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.dependence import depends_on
from tiledsl.analysis.linear import single_form
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

_LINE = 128  # bytes of a line of the cache
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
        bounds = [constant_of(each) for each in (loop.lower, loop.upper, loop.step)]
        trips = int(bounds[1] or 0)
        if bounds[0] != 0 or bounds[2] != 1 or trips < 2 or trips & trips - 1 or loop.num_stages or not loop.inits:
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
        wide = cls(loop, trips, axis, shape[axis], [(value, op.kind) for value, op in reductions], ops)
        loads = of_kinds(ops, tile.LoadOp)
        walks = [load for load in loads if len(load.out.shape) == len(shape) and load.out.shape[axis] == wide.extent]
        widths = [ELEMENTS[load.out.dtype].bits // 8 for load in walks]
        bytes = sum(trips * width * prod(load.out.shape) for load, width in zip(walks, widths, strict=True))
        gains = bool(walks) and max(widths) * wide.extent < _LINE and bytes <= _LOADED * threads
        return wide if gains and all(map(wide._can_widen, ops)) else None

    def _can_widen(self, op: Operation) -> bool:
        """Whether an operation needs the loop's index and the place along the axis only as the place in all tiles."""
        if isinstance(op, tile.LoadOp):
            if op.mask is not None:
                return False
            return all(self._is_place(index, last=index is op.indices[-1]) for index in op.indices)
        outside = [value for value in op.operands if value.op not in self.ops]
        return all(
            not depends_on(value, {self.loop.index})
            and (len(value.shape) <= self.axis or value.shape[self.axis] == 1 or constant_of(value) is not None)
            for value in outside
        )

    def _is_place(self, index: Value, last: bool) -> bool:
        form = linear_form(index, through_names=True)
        moving = [factors for factors in form.terms if self.loop.index in factors or any(map(self._walks, factors))]
        if not moving:
            return not depends_on(index, {self.loop.index}) and self._is_narrow(index)
        walks = [factors[0] for factors in moving if len(factors) == 1 and self._walks(factors[0])]
        return (
            last
            and {*moving} == {(self.loop.index,), *((each,) for each in walks)}
            and [form.coefficient(each) for each in walks] == [1]
            and form.coefficient(self.loop.index) == self.extent
            and not form.slack
            and not any(
                depends_on(value, {self.loop.index}) or not self._is_narrow(value)
                for factors in form.terms
                if factors not in moving
                for value in factors
            )
        )

    def _walks(self, value: Value) -> bool:
        return isinstance(value.op, tensor.IotaOp) and value.op.axis == self.axis and value.shape[self.axis] > 1

    def _is_narrow(self, value: Value) -> bool:
        """Whether a value is the same at all places along the axis."""
        return len(value.shape) <= self.axis or value.shape[self.axis] == 1

    def replace_loop(self) -> None:
        loop, builder = self.loop, Builder.at(self.loop)
        mapping: dict[Value, Value] = {}
        own = {loop.index, *loop.iter_args, *(op.results[0] for op in self.ops)}
        for op in [op for op in loop.body if op.is_pure and not op.regions and not op.is_terminator]:
            if not depends_on(op.results[0], own):
                builder.insert(op.clone(mapping))
        for op in self.ops:
            builder.loc = op.loc
            if isinstance(op, tile.LoadOp):
                indices = [self._placed(builder, index, mapping) for index in op.indices]
                widened: Operation = tile.LoadOp(
                    mapping.get(op.buffer, op.buffer), indices, None, None, **op.attributes,
                    names=[op.out.name], result_types=[self._widened(op.out)],
                )  # fmt: skip
            else:
                widened = op.clone(mapping)
                widened.results[0].set_type(self._widened(op.results[0]))
            builder.insert(widened)
            mapping[op.results[0]] = widened.results[0]
        for (value, _), result in zip(self.terms, loop.results, strict=True):
            result.replace_with(mapping[value])
        loop.erase()

    def _widened(self, value: Value) -> Type:
        shape = value.shape
        if self._is_narrow(value):
            return value.type
        return TensorType((*shape[: self.axis], shape[self.axis] * self.trips), value.dtype)

    def _placed(self, builder: Builder, index: Value, mapping: dict[Value, Value]) -> Value:
        form = linear_form(index, through_names=True)
        walk = next((factors[0] for factors in form.terms if len(factors) == 1 and self._walks(factors[0])), None)
        if walk is None:
            return mapping.get(index, index)
        wide = iota(builder, len(walk.shape), self.axis, self.extent * self.trips, walk.dtype)
        form = form.substituted(self.loop.index, single_form(builder.constant(0, self.loop.index.type)))
        form = form.substituted(walk, single_form(wide))
        form.terms = {tuple(mapping.get(each, each) for each in factors): n for factors, n in form.terms.items()}
        return materialize(builder, form, index.dtype)


def _reduction(loop: scf.ForOp, number: int) -> tuple[Value, tensor.ReduceOp] | None:
    """What a loop combines with a carried tile, which begins with nothing, and the reduction that alone uses it."""
    value, made, result = loop.iter_args[number], loop.yielded[number], loop.results[number]
    op, update = next(iter(result.uses), None), made.op
    if len(result.uses) != 1 or not isinstance(op, tensor.ReduceOp) or op.kind not in _KINDS or op.propagate_nan:
        return None
    if update is None or type(update) is not combine(op.kind, value.dtype) or update.parent is not loop.body:
        return None
    if constant_of(loop.inits[number]) != tensor.neutral(op.kind, value.dtype) or list(value.uses.values()) != [1]:
        return None
    terms = [each for each in update.operands if each is not value]
    bits = ELEMENTS[value.dtype].bits
    return (terms[0], op) if len(terms) == 1 and terms[0].type == value.type and bits >= 32 else None


def _data_of(loop: scf.ForOp, values: list[Value]) -> list[Operation] | None:
    """The loads of a loop and what computes values from them; None if the loop does more."""
    ops, pending = set[Operation](), [value.op for value in values]
    while pending:
        op = pending.pop()
        if op is None or op.parent is not loop.body or op in ops or isinstance(op, arith.ConstantOp):
            continue
        if not isinstance(op, (tile.LoadOp, arith.Elementwise, tensor.BroadcastOp)):
            return None
        if not isinstance(op, tile.LoadOp) and _is_index(op):
            continue
        ops.add(op)
        pending += [] if isinstance(op, tile.LoadOp) else [each.op for each in op.operands]
    if any(not op.is_terminator and not op.is_pure and op not in ops for op in loop.body):
        return None
    return sorted(ops, key=lambda op: op.order)


def _is_index(op: Operation) -> bool:
    """Whether an operation computes what no load has part in."""
    pending, visited = [op], set[Operation]()
    while pending:
        each = pending.pop()
        if isinstance(each, tile.LoadOp):
            return False
        if each not in visited:
            visited.add(each)
            pending += [value.op for value in each.operands if value.op is not None and value.op.parent is op.parent]
    return True
