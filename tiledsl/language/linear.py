"""Integers that are known while a program is built: constants, and differences of values that are not."""

from __future__ import annotations

from typing import Any

from tiledsl.analysis.linear import LinearForm, Reader, single_form
from tiledsl.analysis.same_values import same_value
from tiledsl.ir.core import Value
from tiledsl.language.expression import as_value, is_number


class _Differences(Reader):
    """In which values that are the same for sure are one term."""

    def __init__(self) -> None:
        self.terms: list[Value] = []

    def opaque(self, value: Value) -> LinearForm:
        self.terms.append(next((each for each in self.terms if same_value(each, value)), value))
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
    assert form is not None
    return form.constant if form.is_constant else None
