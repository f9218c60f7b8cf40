"""Conditions in a loop that hold for all elements up to some iteration, or from some iteration on.

Sums and products of positions are assumed not to wrap (affine.py), unless ranges say that they may, or a factor is too
large to be a tile size or a row stride: then it is a hash of an index, which is meant to wrap. With other numbers that
are known at run time only, such as loaded offsets, a sum may wrap: a condition comes with the guards that it does not
in the direction that matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tiledsl.analysis.affine import INDEX_DTYPES, LARGEST_FACTOR, is_position
from tiledsl.analysis.ranges import Interval, Ranges, dtype_interval
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value

_SHAPES = (tensor.BroadcastOp, tensor.ReshapeOp, tensor.TransposeOp)
_VAGUE = 2**30  # a range that reaches this far comes of what is known at run time only
_ACCESSES = (tile.LoadOp, tile.StoreOp, tile.AtomicOp)


@dataclass
class Form:
    """`index` * the loop index + the sum of `terms` (scalars from outside the loop) + a number from `low` to `high`."""

    index: int = 0
    terms: dict[Value, int] = field(default_factory=dict)
    low: int = 0
    high: int = 0

    def plus(self, other: Form, factor: int = 1) -> Form:
        """self + factor * other."""
        terms = dict(self.terms)
        for value, coefficient in other.terms.items():
            terms[value] = terms.get(value, 0) + factor * coefficient
            if not terms[value]:
                del terms[value]
        low, high = sorted((factor * other.low, factor * other.high))
        return Form(self.index + factor * other.index, terms, self.low + low, self.high + high)


@dataclass(frozen=True)
class Condition:
    """A comparison that is `wanted` for all of its elements wherever `form` >= 0 and all `guards` >= 0 (ignoring their
    `high`). Guards do not grow with the loop's index."""

    comparison: arith.CmpOp
    wanted: bool
    form: Form
    guards: tuple[Form, ...] = ()


def conditions_of(loop: scf.ForOp, ranges: Ranges) -> Iterator[Condition]:
    """The conditions that change linearly with the loop's index and whose value matters for the work that is done."""
    inside = {value for op in loop.walk() for region in op.regions for value in region.args}
    inside.update(value for op in loop.body.walk() for value in op.results)
    for op in loop.body.walk():
        if isinstance(op, arith.CmpOp) and op.lhs.dtype in INDEX_DTYPES and op.predicate not in ("eq", "ne"):
            lhs, rhs = (_form(value, loop, inside, ranges) for value in (op.lhs, op.rhs))
            wanted = _wanted(op.out)
            if lhs is None or rhs is None or lhs.index == rhs.index or wanted is None:
                continue
            less = op.predicate in ("lt", "le")
            difference = rhs.plus(lhs, -1) if less else lhs.plus(rhs, -1)  # it holds where this is >= 0, or > 0
            strict = op.predicate in ("lt", "gt")
            if not wanted:  # x >= 0 does not hold where -x > 0
                difference, strict = Form().plus(difference, -1), not strict
            sides = (lhs, rhs) if less is wanted else (rhs, lhs)  # of which the first is wanted to be the lesser
            form = difference.plus(Form(low=-1, high=-1)) if strict else difference
            yield Condition(op, wanted, form, _guards(*sides, op.lhs.dtype, loop, ranges))


def _guards(lesser: Form, greater: Form, dtype: str, loop: scf.ForOp, ranges: Ranges) -> tuple[Form, ...]:
    """What must be >= 0, so that sums which wrap cannot undo that one is less than the other.

    Without wrapping it is so. That which is less can only wrap to the greater if it is below all numbers of the type,
    and the greater to the lesser if it is above.
    """
    low, high = map(int, dtype_interval(dtype))
    guards = []
    if _ends(lesser, low, high, loop, ranges)[0] < low:
        guards.append(lesser.plus(Form(low=-low, high=-low)))
    if _ends(greater, low, high, loop, ranges)[1] > high:
        guards.append(Form(low=high, high=high).plus(greater, -1))
    return tuple(_at_first(each, loop) if each.index > 0 else each for each in guards)


def _ends(form: Form, low: int, high: int, loop: scf.ForOp, ranges: Ranges) -> tuple[float, float]:
    """The least and the greatest value of a sum, whose positions together are between `low` and `high`."""
    placed: tuple[float, float] = form.low, form.high
    others: tuple[float, float] = 0, 0
    for value, factor in (*form.terms.items(), (loop.index, form.index)):
        if factor:
            least, most = sorted(factor * end for end in ranges.of(value))
            if is_position(value):
                placed = placed[0] + least, placed[1] + most
            else:
                others = others[0] + least, others[1] + most
    return max(low, placed[0]) + others[0], min(high, placed[1]) + others[1]


def _at_first(form: Form, loop: scf.ForOp) -> Form:
    """The form in the loop's first iteration."""
    number = constant_of(loop.lower)
    lower = Form(terms={loop.lower: 1}) if number is None else Form(low=int(number), high=int(number))
    return replace(form, index=0).plus(lower, form.index)


def _form(value: Value, loop: scf.ForOp, inside: set[Value], ranges: Ranges) -> Form | None:
    """A value as a Form; None if nothing is known about it."""
    number = constant_of(value)
    if number is not None:
        return Form(low=int(number), high=int(number))
    if value is loop.index:
        return Form(index=1)
    if not value.shape and value not in inside:
        return Form(terms={value: 1})
    op = value.op
    if isinstance(op, _SHAPES):
        return _form(op.source, loop, inside, ranges)
    if isinstance(op, arith.CastOp) and (op.source.dtype, value.dtype) == INDEX_DTYPES:
        made, (low, high) = _form(op.source, loop, inside, ranges), map(int, dtype_interval(op.source.dtype))
        if made is not None:
            least, most = _ends(made, low, high, loop, ranges)
            if low <= least and most <= high:
                return made
    if isinstance(op, (arith.AddOp, arith.SubOp, arith.MulOp)) and not _may_wrap(op, ranges):
        lhs, rhs = (_form(each, loop, inside, ranges) for each in (op.lhs, op.rhs))
        factor = constant_of(op.rhs)
        if lhs is not None and rhs is not None and not isinstance(op, arith.MulOp):
            return lhs.plus(rhs, 1 if isinstance(op, arith.AddOp) else -1)
        if lhs is not None and factor is not None and isinstance(op, arith.MulOp):
            product = Form().plus(lhs, int(factor))
            if not _is_hash(product) or ranges.of(op.out) != dtype_interval(op.out.dtype):
                return product
    found = ranges.of(value)
    if found == dtype_interval(value.dtype) or math.isinf(found.lo) or math.isinf(found.hi):
        return None
    return Form(low=int(found.lo), high=int(found.hi))


def _may_wrap(op: arith.BinaryOp, ranges: Ranges) -> bool:
    if ranges.of(op.out) != dtype_interval(op.out.dtype):
        return False
    return not any(_is_vague(ranges.of(each)) for each in (op.lhs, op.rhs))


def _is_hash(form: Form) -> bool:
    return any(abs(factor) > LARGEST_FACTOR for factor in (form.index, *form.terms.values()))


def _is_vague(found: Interval) -> bool:
    return found.lo < found.hi and (found.lo <= -_VAGUE or found.hi >= _VAGUE)


def _wanted(condition: Value) -> bool | None:
    """The value of a condition for which the loop does most of its work; None if its uses do not tell."""
    wishes = {_wish(user, condition) for user in condition.uses}
    return True if True in wishes else False if False in wishes else None


def _wish(user: Operation, condition: Value) -> bool | None:
    if isinstance(user, _ACCESSES):
        return True if user.mask is condition else None
    if isinstance(user, _SHAPES):
        return _wanted(user.out)
    if isinstance(user, arith.CastOp):
        return True
    if isinstance(user, arith.NotOp):
        wanted = _wanted(user.out)
        return None if wanted is None else not wanted
    if isinstance(user, (arith.AndOp, arith.OrOp)):
        wanted = _wanted(user.out)
        # Both must be true for `and` to be, and false for `or`; of what one of the two decides, nothing is asked.
        return wanted if wanted is isinstance(user, arith.AndOp) else None
    if isinstance(user, arith.SelectOp):
        return _kept(user) if user.condition is condition else _wanted(user.out)
    if isinstance(user, scf.IfOp):
        return _busier(user)
    return None


def _kept(op: arith.SelectOp) -> bool | None:
    """The side of a select that is not filler: what is computed, what is finite, the greater of two numbers."""
    a, b = constant_of(op.on_true), constant_of(op.on_false)
    if a is None or b is None:
        return None if a is b else a is None
    if math.isinf(a) != math.isinf(b):
        return math.isinf(b)
    return a > b


def _busier(op: scf.IfOp) -> bool:
    """The branch that most iterations take: the one with products, else the one with less work."""
    then, orelse = ([*region.walk()] for region in (op.then, op.orelse))
    products = [sum(isinstance(each, tensor.DotOp) for each in branch) for branch in (then, orelse)]
    return products[0] > products[1] if products[0] != products[1] else len(then) < len(orelse)
