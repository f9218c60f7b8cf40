"""Cheaper forms of row-wise arithmetic, for kernels whose rows are divided among consumers. Part of select-emitter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tiledsl.analysis.affine import form_interval, is_position, linear_form
from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.linear import LinearForm
from tiledsl.analysis.ranges import Interval, Ranges, dtype_interval
from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import MIRRORED, constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, TensorType
from tiledsl.passes.index_arithmetic import materialize


def merge_limits(ops: Iterable[Operation]) -> None:
    """`row < column or column >= n or m` becomes `column > limit`, with a limit for each row: min(row, n - 1), or what
    is less than any column where m holds. Elements are compared once. `and` is that of what does not hold.
    """
    chains = [op for op in ops if isinstance(op, (arith.OrOp, arith.AndOp)) and len(op.result.shape) == 2]
    ranges = Ranges.around(chains[0]) if chains else Ranges()
    parts = {side for op in chains for side in op.operands if type(side.op) is type(op) and len(side.uses) == 1}
    for op in chains:
        if op.result not in parts and op.result.shape[0] > 1:
            _merge(op, ranges)


def _merge(root: arith.OrOp | arith.AndOp, ranges: Ranges) -> None:
    def sides(value: Value) -> list[Value]:
        value = stripped(value, tensor.BroadcastOp)
        return [each for side in value.op.operands for each in sides(side)] if type(value.op) is type(root) else [value]

    is_or, leaves = isinstance(root, arith.OrOp), sides(root.result)
    limits = {leaf: found for leaf in leaves if (found := _limit(leaf, is_or)) is not None}
    columns = [column for column, _, _ in limits.values()]
    if not columns:
        return
    column = max(columns, key=columns.count)
    low = _least(column, ranges)
    at = Builder.at(root)
    least = at.constant(low - 1, INT32) if low > dtype_interval("int32").lo else None
    rows = [leaf for leaf in leaves if leaf not in limits and leaf.shape in ((), (root.result.shape[0], 1))]
    merged = [*rows, *(leaf for leaf, (each, _, _) in limits.items() if each is column)]
    if least is None or len(merged) < 2:
        return
    limit: Value | None = None
    for leaf in merged[len(rows) :]:
        _, bound, is_itself = limits[leaf]
        if not is_itself:
            above = at.insert(arith.MaxOp(bound, at.constant(low, INT32))).result
            bound = at.insert(arith.SubOp(above, at.constant(1, INT32))).result
        limit = bound if limit is None else at.insert(arith.MinOp(limit, bound)).result
    for leaf in rows:
        limit = at.insert(arith.SelectOp(leaf, *((least, limit) if is_or else (limit, least)))).out
    limit = at.insert(arith.MaxOp(limit, least, names=["limit"])).result
    result = at.insert(arith.CmpOp(column, limit, predicate="gt" if is_or else "le", names=[root.result.name])).out
    for leaf in leaves:
        if leaf not in merged:
            result = at.insert(type(root)(result, leaf)).result
    if result.type != root.result.type:
        result = at.insert(tensor.BroadcastOp(result, result_types=[root.result.type])).out
    root.result.replace_with(result)
    root.erase()


def _limit(condition: Value, exceeds: bool) -> tuple[Value, Value, bool] | None:
    """The column and x of `column > x` and `column >= x`, or, if it is not to exceed, of `<=` and `<`; and whether x is
    what the column exceeds."""
    op = condition.op
    if not isinstance(op, arith.CmpOp) or op.lhs.dtype != "int32":
        return None
    lhs, rhs, predicate = stripped(op.lhs, tensor.BroadcastOp), stripped(op.rhs, tensor.BroadcastOp), op.predicate
    if _varies(rhs) and not _varies(lhs):
        lhs, rhs, predicate = rhs, lhs, MIRRORED[predicate]
    if not _varies(lhs) or _varies(rhs) or predicate not in (("gt", "ge") if exceeds else ("le", "lt")):
        return None
    return lhs, rhs, predicate in ("gt", "le")


def _varies(value: Value) -> bool:
    """Whether a value is one of columns; else it is the same in a row."""
    return len(value.shape) == 2 and value.shape[1] > 1


def _least(column: Value, ranges: Ranges) -> int:
    """The least number of a position's columns."""
    limits = dtype_interval("int32")
    return int(form_interval(linear_form(column), ranges, limits, lambda factors, _: all(map(is_position, factors))).lo)


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
        small = all(_is_small(each, coefficient, ranges) for each, coefficient in others.terms.items())
        if not small and not _fits(others, ranges):
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


def _fits(form: LinearForm, ranges: Ranges) -> bool:
    """Whether no part of a sum leaves int32, positions being what is left of it below those of the limits."""
    limits, ends = dtype_interval("int32"), [Interval(0, 0)]
    for factors, coefficient in form.terms.items():
        term = LinearForm({factors: coefficient})
        ends.append(form_interval(term, ranges, limits, lambda factors, _: all(map(is_position, factors))))
    return sum(min(each.lo, 0) for each in ends) >= limits.lo and sum(max(each.hi, 0) for each in ends) <= limits.hi


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
        mask = stripped(op.accumulator, tensor.BroadcastOp).op if isinstance(op, tensor.DotOp) else None
        sides = (mask.on_true, mask.on_false) if isinstance(mask, arith.SelectOp) else ()
        if (
            isinstance(op, tensor.DotOp)
            and isinstance(mask, arith.SelectOp)
            and {*map(constant_of, sides)} == {0, -math.inf}
        ):
            yield op, mask


def mask_after_products(ops: Iterable[Operation]) -> None:
    """`select(seen, 0, -inf) + a @ b` becomes `select(seen, a @ b, -inf)`: the product need not wait for the mask. So
    do sums of several products.

    Masked elements become -inf even where a product is infinite or NaN.
    """
    for op, mask in list(masked_products(ops)):
        zeros = Builder.at(op).constant(0.0, op.out.type)
        op.set_field("accumulator", [zeros])
        last = op
        while len(last.out.uses) == 1 and isinstance(user := next(iter(last.out.uses)), tensor.DotOp):
            if user.accumulator is not last.out or user.parent is not op.parent:
                break
            last = user
        assert last.parent is not None
        users = list(last.out.uses)
        at = Builder(last.parent, last.next, last.loc)
        chosen = [last.out if constant_of(side) == 0 else side for side in (mask.on_true, mask.on_false)]
        masked = at.insert(arith.SelectOp(mask.condition, *chosen, names=[last.out.name])).out
        for user in users:
            user.set_operands([masked if value is last.out else value for value in user.operands])
