"""Integers that are known while a program is built: constants, and differences of values that are not."""

from __future__ import annotations

from typing import Any

from tiledsl.analysis.linear import LinearForm, Reader, single_form
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.language.expression import as_value, is_number


class _Differences(Reader):
    """In which values that are equal for sure are one term."""

    def __init__(self) -> None:
        self.terms: list[Value] = []

    def opaque(self, value: Value) -> LinearForm:
        self.terms.append(next((each for each in self.terms if _is_same(each, value)), value))
        return single_form(self.terms[-1])


def linear(x: Any) -> LinearForm:
    """An integer expression as a sum of values times constants, modulo 2**bits."""
    form = Reader().read(as_value(x))
    assert form is not None
    return form


def difference(upper: Any, lower: Any) -> int | None:
    """`upper - lower` where it is a constant, else None."""
    if is_number(upper) and is_number(lower):
        return int(upper - lower)
    form = _Differences().plus(as_value(upper), as_value(lower), -1)
    return form.constant if form is not None and form.is_constant else None


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
