"""Cheaper forms of row-wise arithmetic, for kernels whose rows are divided among consumers. Part of select-emitter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tiledsl.analysis.affine import is_position, linear_form
from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.linear import LinearForm
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import MIRRORED, constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import TensorType
from tiledsl.passes.index_arithmetic import materialize


def compare_columns(ops: Iterable[Operation]) -> None:
    """`a + column < b + row` becomes `column < b + row - a`, so that the elements of a row differ only in a constant.

    Positions are far from the limits of int32, so the difference does not overflow if the sum does not. Other numbers
    must be known to be: those that were loaded, or handed to the kernel, may make a sum that wraps.
    """
    ops = list(ops)
    ranges = Ranges.around(ops[0]) if ops else Ranges()
    for op in ops:
        if not isinstance(op, arith.CmpOp) or op.lhs.dtype != "int32" or len(op.out.shape) != 2:
            continue
        form = linear_form(op.lhs).plus(linear_form(op.rhs), -1)
        columns = [(each, factor) for each, factor in form.terms.items() if _is_column(each)]
        if len(columns) != 1 or columns[0][1] not in (1, -1):
            continue
        (((column,), factor),) = columns
        others = LinearForm().plus(form.substituted(column, LinearForm()), -factor)
        values = [value for each in others.terms for value in each]
        if any(value.dtype != "int32" or value.shape not in ((), (op.out.shape[0], 1)) for value in values):
            continue
        if not all(_is_small(each, coefficient, ranges) for each, coefficient in others.terms.items()):
            continue
        if op.out.shape[0] != 1 and not any(value.shape for value in values):
            continue  # the rows differ in nothing
        limit = materialize(Builder.at(op), others)
        if {op.lhs, op.rhs} == {column, limit}:
            continue
        predicate = op.predicate if factor == 1 else MIRRORED[op.predicate]
        made = Builder.at(op).insert(arith.CmpOp(column, limit, predicate=predicate, names=[op.out.name]))
        op.out.replace_with(made.out)
        op.erase()


def _is_small(factors: tuple[Value, ...], coefficient: int, ranges: Ranges) -> bool:
    """Whether a term is of positions alone, or a number that is known to be far from the limits of int32."""
    if all(map(is_position, factors)):
        return True
    found = ranges.of(factors[0])
    return len(factors) == 1 and abs(coefficient) * max(map(abs, found)) <= 2**28


def _is_column(factors: tuple[Value, ...]) -> bool:
    op = factors[0].op if len(factors) == 1 else None
    return isinstance(op, tensor.IotaOp) and op.axis == 1 and len(op.out.shape) == 2


def divide_rows_once(ops: Iterable[Operation]) -> None:
    """`tile / row` becomes `tile * (1 / row)`: one division for each row. Results may differ in their last bit."""
    for op in list(ops):
        if not isinstance(op, arith.DivOp) or len(op.result.shape) != 2 or op.result.dtype != "float32":
            continue
        divisor = stripped(op.rhs, tensor.BroadcastOp)
        if divisor.shape != (op.result.shape[0], 1) or op.lhs.shape != op.result.shape or constant_of(op.lhs) == 1:
            continue
        at = Builder.at(op)
        assert isinstance(divisor.type, TensorType)
        inverse = at.insert(arith.DivOp(at.constant(1.0, divisor.type), divisor, names=["inverse"])).result
        product = at.insert(arith.MulOp(op.lhs, inverse, names=[op.result.name])).result
        op.result.replace_with(product)
        op.erase()


def multiply_rows_once(ops: Iterable[Operation]) -> None:
    """`tile * row * other row` becomes `tile * (row * other row)`; results may differ in their last bit."""
    for op in list(ops):
        inner = op.lhs.op if isinstance(op, arith.MulOp) else None
        if not isinstance(op, arith.MulOp) or not isinstance(inner, arith.MulOp) or len(inner.result.uses) > 1:
            continue
        row = (op.result.shape[0], 1) if len(op.result.shape) == 2 else None
        if inner.lhs.type == op.result.type == inner.result.type and inner.rhs.shape == op.rhs.shape == row:
            factor = Builder.at(op).insert(arith.MulOp(inner.rhs, op.rhs, names=[op.rhs.name])).result
            op.set_operands([inner.lhs, factor])
            inner.erase()


def masked_products(ops: Iterable[Operation]) -> Iterator[tuple[tensor.DotOp, arith.SelectOp]]:
    """Products that are added to a mask of 0 and -inf, with the mask."""
    for op in ops:
        mask = op.accumulator.op if isinstance(op, tensor.DotOp) else None
        sides = (mask.on_true, mask.on_false) if isinstance(mask, arith.SelectOp) else ()
        if (
            isinstance(op, tensor.DotOp)
            and isinstance(mask, arith.SelectOp)
            and {*map(constant_of, sides)} == {0, -math.inf}
        ):
            yield op, mask


def mask_after_products(ops: Iterable[Operation]) -> None:
    """`select(seen, 0, -inf) + a @ b` becomes `select(seen, a @ b, -inf)`: the product need not wait for the mask.

    Masked elements become -inf even where the product is infinite or NaN.
    """
    for op, mask in list(masked_products(ops)):
        at = Builder.at(op)
        zeros = at.constant(0.0, op.out.type)
        product = at.insert(tensor.DotOp(op.a, op.b, zeros, precision=op.precision, names=[op.out.name])).out
        chosen = [product if constant_of(side) == 0 else side for side in (mask.on_true, mask.on_false)]
        op.out.replace_with(at.insert(arith.SelectOp(mask.condition, *chosen, names=[op.out.name])).out)
        op.erase()
