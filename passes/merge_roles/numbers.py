"""Numbers that scalars are, of some that are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiledsl.dialects import arith
from tiledsl.ir.core import Value

Number = bool | int | float


def number_of(value: Value, known: Callable[[Value], Number | None]) -> Number | None:
    """A scalar's number, where `known` says those that it is computed from; else None."""
    number = known(value)
    if number is not None:
        return number
    op = value.op
    if op is None or value.shape:
        return None
    if isinstance(op, arith.ConstantOp):
        return op.attributes["value"]  # type: ignore[no-any-return]
    if op.has_effects:
        return None
    numbers = [number_of(each, known) for each in op.operands]
    if isinstance(op, arith.SelectOp) and numbers[0] is not None:
        return numbers[1] if numbers[0] else numbers[2]
    if None in numbers:
        return None
    return _computed(op, numbers)


def _computed(op: Any, numbers: list[Any]) -> Number | None:
    dtype = op.result.dtype
    try:
        first, *_ = numbers
        if isinstance(op, arith.CmpOp):
            return bool(arith.PREDICATES[op.predicate](*numbers))
        if isinstance(op, arith.NotOp):
            return not first if dtype == "bool" else arith.as_constant(~first, dtype)
        if isinstance(op, arith.CastOp):
            return arith.as_constant(first, dtype)
        if isinstance(op, arith.BinaryOp):
            return arith.as_constant(op.compute(*numbers), dtype)
    except (ArithmeticError, ValueError, TypeError):
        return None
    return None
