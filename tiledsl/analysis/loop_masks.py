"""Conditions in a loop that hold for all elements up to some iteration, or from some iteration on.

Sums and products of positions are assumed not to wrap (affine.py), unless ranges say that they may, or a factor is too
large to be a tile size or a row stride: then it is a hash of an index, which is meant to wrap. With other numbers that
are known at run time only, such as loaded offsets, a sum may wrap: a condition comes with the guards that it does not
in the direction that matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tiledsl.analysis.affine import INDEX_DTYPES, LARGEST_FACTOR, bounds, form_interval, is_position, widens_index
from tiledsl.analysis.linear import LinearForm, Reader, constant_form, single_form
from tiledsl.analysis.ranges import Interval, Ranges, dtype_interval
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value

_VAGUE = 2**30  # a range that reaches this far comes of what is known at run time only
_ACCESSES = (tile.LoadOp, tile.StoreOp, tile.AtomicOp)


@dataclass(frozen=True)
class Condition:
    """A comparison that is `wanted` for all of its elements wherever `form` >= 0 and all `guards` >= 0 (whatever the
    slack adds). They are sums of the loop's index and of scalars from outside; guards do not grow with the index."""

    comparison: arith.CmpOp
    wanted: bool
    form: LinearForm
    guards: tuple[LinearForm, ...] = ()


def conditions_of(loop: scf.ForOp, ranges: Ranges) -> Iterator[Condition]:
    """The conditions that change linearly with the loop's index and whose value matters for the work that is done."""
    reader = _LoopReader(loop, ranges)
    for op in loop.body.walk():
        if isinstance(op, arith.CmpOp) and op.lhs.dtype in INDEX_DTYPES and op.predicate not in ("eq", "ne"):
            lhs, rhs = map(reader.read, (op.lhs, op.rhs))
            wanted = _wanted(op.out)
            if lhs is None or rhs is None or wanted is None:
                continue
            less = op.predicate in ("lt", "le")
            difference = rhs.plus(lhs, -1) if less else lhs.plus(rhs, -1)  # it holds where this is >= 0, or > 0
            if not difference.coefficient(loop.index):
                continue
            strict = op.predicate in ("lt", "gt")
            if not wanted:  # x >= 0 does not hold where -x > 0
                difference, strict = LinearForm().plus(difference, -1), not strict
            sides = (lhs, rhs) if less is wanted else (rhs, lhs)  # of which the first is wanted to be the lesser
            form = difference.plus(constant_form(-1)) if strict else difference
            yield Condition(op, wanted, form, _guards(*sides, op.lhs.dtype, loop, ranges))


def _guards(
    lesser: LinearForm, greater: LinearForm, dtype: str, loop: scf.ForOp, ranges: Ranges
) -> tuple[LinearForm, ...]:
    """What must be >= 0, so that sums which wrap cannot undo that one is less than the other.

    Without wrapping it is so. That which is less can only wrap to the greater if it is below all numbers of the type,
    and the greater to the lesser if it is above.
    """
    low, high = map(int, dtype_interval(dtype))
    guards = []
    if _ends(lesser, dtype, ranges).lo < low:
        guards.append(lesser.plus(constant_form(-low)))
    if _ends(greater, dtype, ranges).hi > high:
        guards.append(constant_form(high).plus(greater, -1))
    first = single_form(loop.lower)
    return tuple(each.substituted(loop.index, first) if each.coefficient(loop.index) > 0 else each for each in guards)


def _ends(form: LinearForm, dtype: str, ranges: Ranges) -> Interval:
    """The least and the greatest value of a sum, whose positions together are numbers of the type."""
    return form_interval(form, ranges, dtype_interval(dtype), lambda factors, _: all(map(is_position, factors)))


class _LoopReader(Reader):
    """Sums of the loop's index and of scalars from outside of it, with constant factors. All else is slack."""

    def __init__(self, loop: scf.ForOp, ranges: Ranges) -> None:
        self.loop, self.ranges = loop, ranges
        self.inside = {value for op in loop.walk() for region in op.regions for value in region.args}
        self.inside.update(value for op in loop.body.walk() for value in op.results)

    def stops(self, value: Value) -> bool:
        return value is self.loop.index or not value.shape and value not in self.inside

    def looks_through(self, op: Operation) -> bool:
        return isinstance(op, tensor.SHAPES) or widens_index(op)

    def holds(self, value: Value, form: LinearForm) -> bool:
        op = value.op
        if isinstance(op, tensor.SHAPES):
            return True
        if isinstance(op, arith.CastOp):
            everything, ends = dtype_interval(op.source.dtype), _ends(form, op.source.dtype, self.ranges)
            return everything.lo <= ends.lo and ends.hi <= everything.hi
        if bounds(value, self.ranges) is not None:
            return True
        # It may wrap: by terms that are far from the limits, or that guards are about, but by none that is slack.
        assert op is not None
        if form.slack >= _VAGUE or _is_hash(form):
            return False
        return any(_is_vague(self.ranges.of(each)) for each in op.operands)

    def opaque(self, value: Value) -> LinearForm | None:
        ends = bounds(value, self.ranges)
        return None if ends is None else LinearForm(constant_form(ends[0]).terms, ends[1] - ends[0])


def _is_hash(form: LinearForm) -> bool:
    return any(factors and abs(coefficient) > LARGEST_FACTOR for factors, coefficient in form.terms.items())


def _is_vague(found: Interval) -> bool:
    return found.lo < found.hi and (found.lo <= -_VAGUE or found.hi >= _VAGUE)


def _wanted(condition: Value) -> bool | None:
    """The value of a condition for which the loop does most of its work; None if its uses do not tell."""
    wishes = {_wish(user, condition) for user in condition.uses}
    return True if True in wishes else False if False in wishes else None


def _wish(user: Operation, condition: Value) -> bool | None:
    if isinstance(user, _ACCESSES):
        return True if user.mask is condition else None
    if isinstance(user, tensor.SHAPES):
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
    products, others = (sum(isinstance(each, tensor.DotOp) for each in branch) for branch in (then, orelse))
    return len(then) < len(orelse) if products == others else products > others
