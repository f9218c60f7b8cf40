"""Loads of products' operands of which a select keeps some rows. Part of select-emitter."""

from __future__ import annotations

from tiledsl.analysis.dependence import stripped
from tiledsl.dialects import arith, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Effect, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, is_float
from tiledsl.passes.dce import erase_unused
from tiledsl.passes.tile_values import both


def mask_loads(body: Region) -> None:
    """`select(kept, load, 0)` becomes `load mask=kept`, where a product alone reads it. Conversions there and back
    between are of no effect."""
    for product in of_kinds(body.walk(), tensor.DotOp):
        for operand in (product.a, product.b):
            value = operand.op.source if isinstance(operand.op, tensor.TransposeOp) else operand
            select = stripped(value, arith.CastOp).op
            if not isinstance(select, arith.SelectOp) or repr(constant_of(select.on_false)) not in ("0", "0.0"):
                continue
            source = stripped(select.on_true, arith.CastOp)
            load = source.op
            if not isinstance(load, tile.LoadOp) or load.out.type != value.type or load.parent is not select.parent:
                continue
            if (
                load.other is None
                and _keeps(source, value)
                and len(load.out.uses) == 1
                and _mask(load, select.condition)
            ):
                value.replace_with(load.out)
    erase_unused(body, lambda op: op.is_pure)


def _keeps(source: Value, value: Value) -> bool:
    """Whether all types between two values of one type, which is a float, have all of its values."""
    while value is not source:
        op = value.op
        value = op.source if isinstance(op, arith.CastOp) else op.on_true  # type: ignore[union-attr]
        if value.dtype not in (source.dtype, "float32"):
            return False
    return is_float(source.dtype) and ELEMENTS[source.dtype].bits <= 32


def _mask(load: tile.LoadOp, condition: Value) -> bool:
    """Leave out what a condition behind a load does not keep; False where something is written between them."""
    assert load.parent is not None
    ops = list(load.parent)
    if condition.op in ops and ops.index(condition.op) > ops.index(load):
        between = ops[ops.index(load) + 1 : ops.index(condition.op) + 1]
        if any(each.effects & (Effect.WRITE | Effect.ORDERED) for op in between for each in op.walk()):
            return False
        load.move_before(ops[ops.index(condition.op) + 1])
    load.set_field("mask", [both(Builder.at(load), load.mask, condition)])
    return True
