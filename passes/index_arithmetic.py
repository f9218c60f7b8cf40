"""Computing indices in the IR: sums as operations, and arithmetic without operations that fold."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from tiledsl.analysis.linear import Factors, LinearForm
from tiledsl.dialects import arith
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, ScalarType, with_shape


def product_of(at: Builder, factors: Factors, amount: int, dtype: str) -> Value:
    """amount * product of values, in an integer type."""
    values = list(factors)
    for place, factor in enumerate(factors):
        if factor.dtype != dtype:
            values[place] = at.insert(arith.CastOp(factor, result_types=[with_shape(factor.shape, dtype)])).result
    if amount != 1 or not values:
        values.append(at.constant(arith.wrap(amount, dtype), ScalarType(dtype)))
    return reduce(lambda total, value: at.insert(arith.MulOp(total, value)).result, values)


def materialize(
    at: Builder, form: LinearForm, dtype: str = "int32",
    product: Callable[[Builder, Factors, int, str], Value] = product_of,
) -> Value:  # fmt: skip
    """The operations for a sum, all in one integer type: scalars first, and what is subtracted behind what is added.
    `product` makes its terms."""
    total: Value | None = None
    for part in form.split():
        for factors, coefficient in sorted(part.terms.items(), key=lambda item: (item[1] < 0, not item[0])):
            term = product(at, factors, coefficient if total is None else abs(coefficient), dtype)
            if total is None:
                total = term
            else:
                total = at.insert((arith.SubOp if coefficient < 0 else arith.AddOp)(total, term)).result
    return at.constant(0, ScalarType(dtype)) if total is None else total


def insert_or_fold(at: Builder, op: Operation) -> Value:
    """What a new operation with one result folds to (then it is erased); else its result, after it was inserted."""
    folded = op.fold()
    if folded is None:
        return at.insert(op).result
    (value,) = folded
    type = op.result.type
    op.erase()
    return value if isinstance(value, Value) else at.constant(value, type)


class IndexArithmetic:
    """Inserts int32 arithmetic at a point; constants are folded."""

    def __init__(self, at: Builder) -> None:
        self.at = at

    def constant(self, number: int) -> Value:
        return self.at.constant(number, INT32)

    def apply(self, op_type: type[arith.BinaryOp], lhs: Value, rhs: Value, name: str = "") -> Value:
        """The result of `op_type(lhs, rhs)`, under this name where it is a new value."""
        op = op_type(lhs, rhs)
        op.result.name = name
        return insert_or_fold(self.at, op)
