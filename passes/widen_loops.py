"""widen-loops: short loops over tiles that lie side by side, or one below the other, become one larger tile."""

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
from tiledsl.ir.types import ELEMENTS, Type, is_float, with_shape
from tiledsl.passes.index_arithmetic import materialize
from tiledsl.passes.tile_values import combine, iota

_LINE = 1024  # bits of a line of the cache
_LOADED = 128  # bytes that a thread may load at once
_KINDS = ("sum", "max", "min")


@dataclass(frozen=True)
class WidenLoops(Pass):
    """Load tiles that are neighbours in a tensor as one, where they are only combined and then reduced.

    Before:  %t = scf.for %c0, %c4, %c1[%zeros] (%k, %a: tensor<32x32xfloat32>) {
               %x = tile.load %X[%rows, %k * 32 + %columns] : tensor<32x32xfloat32>
               %n = arith.add %a, %x
               scf.yield [%n] }
             %s = tensor.reduce %t {kind = "sum", axis = 1}
    After:   %x = tile.load %X[%rows, %columns] : tensor<32x128xfloat32>
             %s = tensor.reduce %x {kind = "sum", axis = 1}
    Each row of a tile that has less than a line of the cache, 128 bytes, is read in several pieces at different times,
    of lines that may be gone then; rows of one tile after the other wait for memory once for each tile. Only loops of a
    known number of iterations that load, compute element by element and carry nothing else, whose tiles together have
    no more than 128 bytes for each thread. Sums of floats are added in another order then. Measured on an H200: sums of
    products of rows of 128 float16 in pieces of 32, 40.5 to 33.3 us; means of 128 rows of 128 float8, 64 at a time, in
    128 blocks, 5.1 to 3.3.
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
    """A loop that is one iteration over wider tiles. extent: of its tiles along the axis in which they are neighbours.
    terms: what it combines with each carried value, and how. axes: what computes that, in order, each with the number
    of that axis in its result, counted from the last one, -1."""

    loop: scf.ForOp
    trips: int
    extent: int
    terms: list[tuple[Value, str]]
    axes: dict[Operation, int]

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
        axes = _data_of(loop, [value for value, _ in reductions], axis - len(shape))
        if axes is None:
            return None
        wide = cls(loop, len(indices), shape[axis], [(value, op.kind) for value, op in reductions], axes)
        walks = [load for load in of_kinds(list(axes), tile.LoadOp) if not _is_narrow(load.out, axes[load])]
        row = wide.extent * max((ELEMENTS[load.out.dtype].bits for load in walks), default=_LINE)
        in_rows = all(wide._is_fixed(index, -1) for load in walks for index in load.indices[:-1])
        gains = walks and (row < _LINE and in_rows if axis == len(shape) - 1 else True)
        few = wide.trips * sum(tensor_bytes(load.out) for load in walks) <= _LOADED * threads
        return wide if gains and few and all(map(wide._can_widen, axes)) else None

    def _can_widen(self, op: Operation) -> bool:
        """Whether an operation needs the loop's index and the place along the axis only as the place in all tiles."""
        axis = self.axes[op]
        if isinstance(op, tile.LoadOp):
            return op.mask is None and op.other is None and all(self._is_place(index, axis) for index in op.indices)
        outside = [value for value in op.operands if value.op not in self.axes]
        return all(constant_of(value) is not None or self._is_fixed(value, axis) for value in outside)

    def _is_place(self, index: Value, axis: int) -> bool:
        form = linear_form(index, through_names=True)
        walk = _walk(form, axis)
        if walk is None:
            return self._is_fixed(index, axis)
        begin = form.plus(LinearForm({(self.loop.index,): self.extent, (walk,): 1}), -1)
        return all(self._is_fixed(value, axis) for value in chain.from_iterable(begin.terms))

    def _is_fixed(self, value: Value, axis: int) -> bool:
        """Whether a value is the same in all iterations, and at all places along the axis."""
        return not depends_on(value, {self.loop.index}) and _is_narrow(value, axis)

    def replace_loop(self) -> None:
        loop, builder = self.loop, Builder.at(self.loop)
        mapping: dict[Value, Value] = {}
        own = {loop.index, *(op.result for op in self.axes)}
        for op in list(loop.body):
            if op not in self.axes and not any(depends_on(each, own) for each in op.operands):
                op.move_before(loop)
        for op, axis in self.axes.items():
            builder.loc = op.loc
            for value in op.operands:
                number = constant_of(value)
                if number is not None:
                    mapping[value] = builder.constant(number, self._widened(value, axis))
            if isinstance(op, tile.LoadOp):
                indices = [self._placed(builder, index, axis) for index in op.indices]
                widened: Operation = tile.LoadOp(
                    op.buffer, indices, None, None, **op.attributes, names=[op.out.name]
                )  # fmt: skip
            else:
                widened = op.clone(mapping)
                widened.result.set_type(self._widened(op.result, axis))
            mapping[op.result] = builder.insert(widened).result
        for (value, _), result in zip(self.terms, loop.results, strict=True):
            result.replace_with(mapping[value])
        loop.erase()

    def _widened(self, value: Value, axis: int) -> Type:
        shape = list(value.shape)
        if not _is_narrow(value, axis):
            shape[axis] *= self.trips
        return with_shape(tuple(shape), value.dtype)

    def _placed(self, builder: Builder, index: Value, axis: int) -> Value:
        form = linear_form(index, through_names=True)
        walk = _walk(form, axis)
        if walk is None:
            return index
        rank = len(walk.shape)
        wide = iota(builder, rank, rank + axis, self.extent * self.trips, walk.dtype)
        form = form.plus(LinearForm({(self.loop.index,): self.extent, (walk,): 1}), -1).plus(single_form(wide))
        return materialize(builder, form, index.dtype)


def _walk(form: LinearForm, axis: int) -> Value | None:
    """The place along the axis among what is added up."""
    values = chain.from_iterable(form.terms)
    return next((each for each in values if isinstance(each.op, tensor.IotaOp) and not _is_narrow(each, axis)), None)


def _is_narrow(value: Value, axis: int) -> bool:
    """Whether a value has no elements along the axis but one."""
    return not value.shape or value.shape[axis] == 1


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


def _data_of(loop: scf.ForOp, values: list[Value], axis: int) -> dict[Operation, int] | None:
    """The loads of a loop and what computes values from them, in order, each with the axis in its result that is this
    one of the values, counted from the last; None if the loop does more."""

    def inside(node: tuple[Value, int]) -> list[tuple[Value, int]]:
        value, axis = node
        sources = [] if isinstance(value.op, tile.LoadOp) else operands_of(value)
        local = [each for each in sources if each.op is not None and each.op.parent is loop.body]
        before = _before(value.op, axis) if isinstance(value.op, tensor.ReshapeOp) else axis
        return [(each, before) for each in local if constant_of(each) is None]

    found = list(reached([(value, axis) for value in values], inside))
    kinds = (tile.LoadOp, arith.Elementwise, tensor.BroadcastOp, tensor.ReshapeOp)
    axes = {value.op: axis for value, axis in found if isinstance(value.op, kinds) and value.op.parent is loop.body}
    others = [op for op in loop.body if not op.is_terminator and not op.is_pure and op not in axes]
    if others or len(axes) < len(found) or 0 in axes.values():
        return None
    return dict(sorted(axes.items(), key=lambda each: each[0].order))


def _before(op: tensor.ReshapeOp, axis: int) -> int:
    """The axis that becomes this one of a tile that only gets, or loses, dimensions of one; 0, which is none, if it
    gets others, or if this is one of those."""
    before, after = (
        {dim - len(each.shape): size for dim, size in enumerate(each.shape) if size > 1} for each in (op.source, op.out)
    )
    if [*before.values()] != [*after.values()] or axis not in after:
        return 0
    return [*before][[*after].index(axis)]
