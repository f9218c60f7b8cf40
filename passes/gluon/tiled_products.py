"""Rewriting loops over tiles of products. Part of select-emitter."""

from __future__ import annotations

from tiledsl.dialects import arith, tensor, tile
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import TensorType

_ELEMENTWISE = (arith.BinaryOp, arith.CmpOp, arith.SelectOp, arith.CastOp, arith.NegOp, arith.NotOp, arith.MathOp)


def widen_columns(body: Region) -> None:
    """One-dimensional tiles that are seen as one row of columns become that from the start: `bias[None, :]`.

    What is left of one dimension has a value for each row.
    """
    widened: dict[Value, Value] = {}
    for op in list(body.walk()):
        if isinstance(op, tensor.ReshapeOp) and len(op.out.shape) == 2 and op.out.shape == (1, *op.source.shape):
            wide = _as_row(op.source, widened)
            if wide is not None:
                op.out.replace_with(wide)
                op.erase()
    for value in reversed(widened):
        if value.op is not None and not value.op.is_used:
            value.op.erase()


def _as_row(value: Value, rows: dict[Value, Value]) -> Value | None:
    """The value as one row; None where what computes it cannot be."""
    op = value.op
    if value in rows or not value.shape:
        return rows.get(value, value)
    if op is None:
        return None
    at = Builder.at(op)
    shape = (1, *value.shape)
    if isinstance(op, tensor.IotaOp):
        row: Operation = tensor.IotaOp(axis=1, result_types=[TensorType(shape, value.dtype)], names=[value.name])
    elif isinstance(op, arith.ConstantOp):
        rows[value] = at.constant(op.value, TensorType(shape, value.dtype))
        return rows[value]
    elif isinstance(op, (*_ELEMENTWISE, tile.LoadOp)):
        mapping: dict[Value, Value] = {}
        for operand in op.operands:
            wide = operand if isinstance(op, tile.LoadOp) and operand is op.buffer else _as_row(operand, rows)
            if wide is None:
                return None
            mapping[operand] = wide
        row = op.clone(mapping)
        row.result.set_type(TensorType(shape, value.dtype))
    else:
        return None
    op.parent.insert(row, op.next)  # type: ignore[union-attr]
    rows[value] = row.result
    return rows[value]
