"""Integer values as sums of values times constants, while a program is built."""

from __future__ import annotations

from typing import Any

from tiledsl.dialects import arith
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.language.expression import as_value, is_number


def linear(value: Value) -> tuple[dict[Value, int], int]:
    """An integer value as a sum of values times constants, plus a constant."""
    number = arith.constant_of(value)
    if number is not None:
        return {}, int(number)
    op = value.op
    if isinstance(op, (arith.AddOp, arith.SubOp)):
        (left, a), (right, b) = linear(op.lhs), linear(op.rhs)
        sign = 1 if isinstance(op, arith.AddOp) else -1
        terms = dict(left)
        for term, factor in right.items():
            terms[term] = terms.get(term, 0) + sign * factor
        return {term: factor for term, factor in terms.items() if factor}, a + sign * b
    if isinstance(op, arith.MulOp):
        (left, a), (right, b) = linear(op.lhs), linear(op.rhs)
        for terms, constant, other, factor in ((left, a, right, b), (right, b, left, a)):
            if not other:
                return {term: k * factor for term, k in terms.items() if k * factor}, constant * factor
    return {value: 1}, 0


def difference(upper: Any, lower: Any) -> int | None:
    """`upper - lower` where it is a constant, else None."""
    if is_number(upper) and is_number(lower):
        return int(upper - lower)
    (a, x), (b, y) = linear(as_value(upper)), linear(as_value(lower))
    rest = dict(b)
    for term, factor in a.items():
        found = next((other for other, k in rest.items() if k == factor and _is_same(term, other)), None)
        if found is None:
            return None
        del rest[found]
    return None if rest else x - y


def _is_same(a: Value, b: Value) -> bool:
    """Whether two values are equal for sure: computed alike, from what is read with no write in between."""
    if a is b:
        return True
    first, second = a.op, b.op
    if first is None or second is None or type(first) is not type(second) or a.type != b.type:
        return False
    if len(first.operands) != len(second.operands) or first.attributes != second.attributes or first.regions:
        return False
    if first.effects not in (Effect.NONE, Effect.READ):
        return False
    if first.effects is Effect.READ and not _reads_alike(first, second):
        return False
    return all(map(_is_same, first.operands, second.operands))


def _reads_alike(a: Operation, b: Operation) -> bool:
    """Whether nothing is written between two operations of one region."""
    first, last = (a, b) if a.order < b.order else (b, a)
    if first.parent is None or first.parent is not last.parent:
        return False
    between = first.next
    while between is not None and between is not last:
        if between.effects not in (Effect.NONE, Effect.READ, Effect.ALLOCATE):
            return False
        between = between.next
    return between is last
