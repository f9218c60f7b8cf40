"""Softmax loops that rescale their sums only when a running maximum rose by much. Part of select-emitter.

A loop of attention scales its sums in each step in which the maximum of a row rises, which at first is nearly every
step. Any number near the maximum would do: it only keeps the exponentials in range. So the loop carries such a
reference beside the maximum, and moves it only where weights would exceed 2 ** 8 (FlashAttention-4, Zadouri et al.
2026):

    m' = max(m, g)                                     ref' = g if g > ref + 8 / slope else ref
                                                       m' = max(m, g)
    weights = 2 ** (x - slope * m')            ==>     weights = 2 ** (x - slope * ref')
    rescale = 2 ** (slope * m - slope * m')            rescale = 2 ** (slope * ref - slope * ref')     mostly 1
    sum' = sum * rescale + f(weights)                  sum' = sum * rescale + f(weights)

After the loop all sums are multiplied by 2 ** (slope * (ref - m)), which gives their original values up to rounding.
This requires that f is linear, that x is at most slope * g, and that nothing else depends on m; `_Dependence` proves
it. Where x may exceed slope * g by a constant, so that weights are at most 2 ** lift from the beginning, the reference
moves where they would exceed 2 ** 8 as well, which is 2 ** (8 - lift) times that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.gluon.tile_loops import dependent_on
from tiledsl.dialects import arith, gluon, scf, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, TensorType
from tiledsl.math_functions import MATH_FUNCTIONS
from tiledsl.passes.index_arithmetic import insert_or_fold

LARGEST_WEIGHT = 8  # its logarithm to base 2: float16 and float8_e4m3 end at 65504 and 448


class _Scaled(Enum):
    """The value is a number independent of the maximum, times this power of it. Values without an entry are
    independent."""

    OLD = "2 ** (-slope * m)"
    NEW = "2 ** (-slope * m')"
    STEP = "2 ** (slope * m - slope * m')"


@dataclass(frozen=True)
class _Shifted:
    """old * m + new * m', plus values that do not depend on the maximum; `old` and `new` are factors."""

    old: float = 0.0
    new: float = 0.0
    free: tuple[_Multiple, ...] = ()

    def times(self, factor: float) -> _Shifted:
        free = tuple(replace(each, number=factor * each.number) for each in self.free)
        return _Shifted(self.old * factor, self.new * factor, free)

    def plus(self, other: _Shifted) -> _Shifted:
        return _Shifted(self.old + other.old, self.new + other.new, self.free + other.free)


class _Other(Exception):
    """A value depends on the maximum in some other way."""


def _require(condition: bool) -> None:
    if not condition:
        raise _Other


@dataclass(frozen=True)
class _Multiple:
    """A value times a number and scalars, whose product is not negative."""

    value: Value
    number: float = 1.0
    scalars: frozenset[Value] = frozenset()

    def is_close(self, other: _Multiple, slope: float) -> bool:
        """Whether both have the same factor, up to a number."""
        return self.scalars == other.scalars and math.isclose(self.number, slope * other.number)


class _Dependence:
    """How a loop's values depend on the maximum carried at `position`. Raises _Other unless sums may depend so."""

    def __init__(self, loop: scf.ForOp, position: int) -> None:
        body, yielded = loop.body, loop.yielded
        self.old, self.new = body.args[1 + position], yielded[position]
        self.power: tuple[str, float] | None = None  # the exponential function and the slope
        self.lift = 0.0  # the logarithm to base 2 of the largest weight
        risen = self.new.op
        if not isinstance(risen, arith.MaxOp) or self.old not in risen.operands or self.old.dtype != "float32":
            raise _Other
        self.found, self.risen = risen.rhs if risen.lhs is self.old else risen.lhs, [risen]
        while isinstance(again := self.found.op, arith.MaxOp) and self.old in again.operands:  # max(max(m, g), m)
            _require(list(self.found.uses) == [self.risen[-1]])
            self.found = again.rhs if again.lhs is self.old else again.lhs
            self.risen.append(again)
        reached = dependent_on([self.old], body)
        self.sums = [n for n, value in enumerate(yielded) if n != position and value.op in reached]
        _require(bool(self.sums) and all(yielded[number].dtype == "float32" for number in self.sums))
        self.how: dict[Value, _Scaled | _Shifted] = {self.old: _Shifted(old=1)}
        self.how |= {body.args[1 + number]: _Scaled.OLD for number in self.sums}
        for op in body:
            if op is risen:
                _require(self.found not in self.how)
                self.how[self.new] = _Shifted(new=1)
            elif op not in (*self.risen, body.terminator) and any(
                value in self.how for each in op.walk() for value in each.operands
            ):
                self.how[op.result] = self._of(op)
        for number, value in enumerate(yielded):
            if number != position:
                _require(self.how.get(value) is (_Scaled.NEW if number in self.sums else None))

    def _of(self, op: Operation) -> _Scaled | _Shifted:
        if isinstance(op, tensor.SHAPES):
            return self.how[op.source]
        if isinstance(op, arith.NegOp):
            how = self.how[op.source]
            return how if isinstance(how, _Scaled) else how.times(-1)
        if isinstance(op, arith.CastOp) and ELEMENTS[op.out.dtype].kind == "float":
            _require(self._is_weight(op.source))
            return self.how[op.source]
        if isinstance(op, tensor.ReduceOp) and op.kind == "sum" and op.out.dtype == "float32":
            return self._alike(op.operands)
        if isinstance(op, arith.MathOp) and MATH_FUNCTIONS[op.function].base:
            (exponent,) = op.arguments
            return self._power(op.function, self.how[exponent])
        if isinstance(op, arith.SelectOp):
            return self._alike(op.operands[1:])
        if isinstance(op, tensor.DotOp) and op.b not in self.how:
            return self._alike([op.a, op.accumulator])
        if isinstance(op, (arith.AddOp, arith.SubOp)):
            a, b = (self.how.get(value) or _Shifted(free=(_multiple(value),)) for value in op.operands)
            if isinstance(a, _Shifted) and isinstance(b, _Shifted):
                return a.plus(b.times(-1 if isinstance(op, arith.SubOp) else 1))
            return self._alike(op.operands)
        if isinstance(op, arith.MulOp):
            return self._product(*op.operands)
        raise _Other

    def _is_weight(self, value: Value) -> bool:
        """Whether no element exceeds 2 ** LARGEST_WEIGHT. Sums of such elements may be too large for float16."""
        op = value.op
        while isinstance(op, (*tensor.SHAPES, arith.NegOp, arith.CastOp, arith.SelectOp, arith.MulOp)):
            (op, *others) = [each.op for each in op.operands if each in self.how]
            if others:
                return False
        return isinstance(op, arith.MathOp)

    def _power(self, function: str, shift: _Scaled | _Shifted) -> _Scaled:
        if isinstance(shift, _Scaled):
            raise _Other
        slope = -shift.new
        _require(slope > 0 and shift.old in (0, slope) and self.power in (None, (function, slope)))
        self.power = (function, slope)
        if shift.old:
            _require(not shift.free)
            return _Scaled.STEP
        _require(len(shift.free) == 1)
        (free,), bounds = shift.free, _bounded(self.found)
        chain, base = _unmasked(free.value), MATH_FUNCTIONS[function].base
        assert base is not None
        above = [lift for bound, lift in bounds if bound.value in chain and free.is_close(bound, slope)]
        _require(bool(above))
        self.lift = max(self.lift, min(above) * slope * math.log2(base))
        _require(self.lift < LARGEST_WEIGHT)
        return _Scaled.NEW

    def _alike(self, values: Sequence[Value]) -> _Scaled | _Shifted:
        """Of values that all depend so: 0 is 0 times any power, -inf stays what it is however it is shifted."""
        free = [constant_of(_seen_through(value)) for value in values if value not in self.how]
        kinds = {self.how[value] for value in values if value in self.how}
        _require(len(kinds) == 1)
        kind = kinds.pop()
        _require(all(number == (0 if isinstance(kind, _Scaled) else -math.inf) for number in free))
        return kind

    def _product(self, a: Value, b: Value) -> _Scaled | _Shifted:
        if {self.how.get(a), self.how.get(b)} == {_Scaled.OLD, _Scaled.STEP}:
            return _Scaled.NEW
        how = self.how[a if a in self.how else b]
        factor = constant_of(_seen_through(b if a in self.how else a))
        if factor is None:
            raise _Other
        if isinstance(how, _Scaled):
            _require(abs(factor) <= 1)  # weights stay as small as they are supposed to be
            return how
        return how.times(factor)


def _multiple(value: Value) -> _Multiple:
    """A value as a number, and scalars that are not negative, times another value."""
    number, scalars = 1.0, set()
    while isinstance(op := value.op, arith.MulOp):
        for one, other in (op.operands, op.operands[::-1]):
            factor = _seen_through(other)
            constant = constant_of(factor)
            if constant is not None:
                number, value = number * constant, one
                break
            if not factor.shape and _multiple(factor).value not in scalars and _is_not_negative(factor):
                inner = _multiple(factor)
                number, value = number * inner.number, one
                scalars |= {inner.value, *inner.scalars}
                break
        else:
            break
    return _Multiple(value, number, frozenset(scalars))


def _is_not_negative(value: Value) -> bool:
    """Whether a scalar is an absolute value, times numbers that are not negative; NaN is none."""
    op = value.op
    if isinstance(op, arith.MulOp):
        return all(map(_is_not_negative, op.operands))
    number = constant_of(value)
    return isinstance(op, arith.MathOp) and op.function == "abs" or number is not None and number >= 0


def _bounded(value: Value) -> list[tuple[_Multiple, float]]:
    """Tiles, times a number and scalars, of which no element in a row exceeds the row's `value` by more than that."""
    value = _seen_through(value)
    op = value.op
    if isinstance(op, (arith.SubOp, arith.AddOp)) and (number := constant_of(_seen_through(op.rhs))) is not None:
        above = number if isinstance(op, arith.SubOp) else -number
        return [(bound, max(0.0, lift + above)) for bound, lift in _bounded(op.lhs)]
    found = _multiple(value)
    value = _seen_through(found.value)
    op = value.op
    if found.number <= 0:
        return []
    if isinstance(op, tensor.ReduceOp) and op.kind == "max" and op.axis == 1:
        return [(replace(found, value=op.source), 0.0)]
    if isinstance(op, arith.MaxOp) and not found.scalars:
        inner = [each for operand in op.operands for each in _bounded(operand)]
        return [(replace(bound, number=found.number * bound.number), found.number * lift) for bound, lift in inner]
    return []


def _unmasked(value: Value) -> list[Value]:
    """The value, and what it is but for elements that it replaces by -inf."""
    chain = [value]
    while isinstance(op := chain[-1].op, arith.SelectOp):
        kept = [each for each in op.operands[1:] if constant_of(_seen_through(each)) != -math.inf]
        if len(kept) != 1:
            break
        chain += kept
    return chain


def _seen_through(value: Value) -> Value:
    return stripped(value, tensor.BroadcastOp, tensor.ReshapeOp)


def rescale_lazily(loops: Sequence[scf.ForOp]) -> bool:
    """Let loops, each of which passes its values to the next, rescale their sums lazily; return whether that was
    possible."""
    inits = loops[0].inits
    for position, maximum in enumerate(inits):
        try:
            first, *others = dependences = [_Dependence(loop, position) for loop in loops]
        except _Other:
            continue
        same = all((one.power, one.sums) == (first.power, first.sums) for one in others)
        if same and all(_row_shape(inits[number], maximum) is not None for number in first.sums):
            _Lazily(loops, dependences, position).run()
            return True
    return False


def _row_shape(value: Value, rows: Value) -> tuple[int, ...] | None:
    """The shape in which one value for each row multiplies `value`; None if there is none."""
    if value.shape == rows.shape or not rows.shape:
        return rows.shape
    if value.shape[:1] != rows.shape[:1] or rows.shape[1:] not in ((), (1,)):
        return None
    return (rows.shape[0], 1) if len(value.shape) == 2 else rows.shape[:1] if len(value.shape) == 1 else None


class _Lazily:
    """The rewrite of one chain of loops."""

    def __init__(self, loops: Sequence[scf.ForOp], each: Sequence[_Dependence], position: int) -> None:
        self.loops, self.each, self.position = loops, each, position
        assert each[0].power is not None
        self.function, self.slope = each[0].power

    def run(self) -> None:
        maximum = self.loops[0].inits[self.position]
        last: scf.ForOp | None = None
        for loop, dependence in zip(self.loops, self.each, strict=True):
            inits = [*loop.inits, maximum] if last is None else list(last.results)
            self._move_reference(loop, dependence)
            last = self._with_maximum(loop, inits)
        assert last is not None
        self._finish(self.loops[-1], last)
        for loop in reversed(self.loops):
            loop.erase()

    def _move_reference(self, loop: scf.ForOp, dependence: _Dependence) -> None:
        """Carry a reference in the maximum's place, and the maximum after the other values."""
        body, old, highest = loop.body, dependence.old, dependence.found
        at = Builder.at(dependence.risen[0])
        maximum = body.add_arg(old.type, "top")
        top = at.insert(arith.MaxOp(maximum, highest, names=["top"])).result
        base = MATH_FUNCTIONS[self.function].base
        assert base is not None, "what is shifted is an exponential function's argument"
        lift = max(each.lift for each in self.each)
        rise = at.constant((LARGEST_WEIGHT - lift) / (self.slope * math.log2(base)), old.type)
        limit = at.insert(arith.AddOp(old, rise)).result
        raised = at.insert(arith.CmpOp(highest, limit, predicate="gt")).out
        reference = at.insert(arith.SelectOp(raised, highest, old, names=[dependence.new.name])).result
        dependence.new.replace_with(reference)
        for op in dependence.risen:
            op.erase()
        body.terminator.set_field("values", [*body.terminator.operands, top])

    def _with_maximum(self, loop: scf.ForOp, inits: list[Value]) -> scf.ForOp:
        """The loop with its changed body, which carries one more value; the old loop is left without a body."""
        body = loop.body
        body.parent = None
        loop.regions[:] = [Region()]
        names = [*(value.name for value in loop.results), "top"]
        made = scf.ForOp(*loop.operands[:3], inits, regions=[body], names=names, loc=loop.loc, **loop.attributes)
        return Builder.at(loop).insert(made)

    def _finish(self, loop: scf.ForOp, rebuilt: scf.ForOp) -> None:
        """Scale the sums from the reference to the maximum; where both are infinite, by 1."""
        at = Builder.at(loop)
        reference, maximum = rebuilt.results[self.position], rebuilt.results[-1]
        distance = at.insert(arith.SubOp(reference, maximum)).result
        distance = insert_or_fold(at, arith.MulOp(distance, at.constant(self.slope, distance.type)))
        power = at.insert(arith.MathOp([distance], function=self.function)).result
        same = at.insert(arith.CmpOp(reference, maximum, predicate="eq")).out
        factor = at.insert(arith.SelectOp(same, at.constant(1.0, power.type), power, names=["catch_up"])).result
        for number, (old, new) in enumerate(zip(loop.results, rebuilt.results)):
            if number == self.position:
                new = maximum
            elif number in self.each[0].sums:
                new = at.insert(arith.MulOp(new, _reshaped(at, factor, new), names=[new.name])).result
            old.replace_with(new)


def _reshaped(at: Builder, factor: Value, like: Value) -> Value:
    shape = _row_shape(like, factor)
    assert shape is not None
    if shape == factor.shape:
        return factor
    return at.insert(tensor.ReshapeOp(factor, result_types=[TensorType(shape, factor.dtype)])).out


def name_rescaling(loops: Iterable[scf.ForOp], skip: bool) -> None:
    """Turn the multiplication of accumulators by one value for each row into gluon.rescale, where loops allow it.

    A loop must do nothing to the accumulator but that and the next product. `skip`: a warp whose factors are all 1 may
    skip the multiplication.
    """
    for accumulator in (value for loop in loops for value in loop.iter_args):
        op = next(iter(accumulator.uses)) if len(accumulator.uses) == 1 else None
        if not isinstance(op, arith.MulOp) or op.lhs is op.rhs or op.result.type != accumulator.type:
            continue
        product = next(iter(op.result.uses)) if len(op.result.uses) == 1 else None
        if not isinstance(product, tensor.DotOp) or product.accumulator is not op.result:
            continue
        factor = _seen_through(op.rhs if op.lhs is accumulator else op.lhs)
        rows = accumulator.shape[0]
        if factor.shape in ((rows,), (rows, 1)):
            named = gluon.RescaleOp(accumulator, factor, skip=skip, names=[op.result.name])
            op.result.replace_with(Builder.at(op).insert(named).out)
            op.erase()
