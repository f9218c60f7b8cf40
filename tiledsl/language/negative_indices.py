"""Indices that count from the end: those that are negative whatever the loops' variables are."""

from __future__ import annotations

from collections.abc import Set

from tiledsl.dialects import arith, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ScalarType

Access = tile.LoadOp | tile.StoreOp | tile.AtomicOp


def count_from_the_end(func: tile.FuncOp, of_tiles: Set[Operation | None] = frozenset()) -> None:
    """Add the dimension to every index of an element that is proven to be negative, as `x[-1 - i]` is for i >= 0.

    An index that may be either is left as it is: what lies outside of a tensor reads 0 and is not written. So is where
    a tile begins, in a copy and in `of_tiles`.
    """
    from tiledsl.analysis.ranges import Ranges

    accesses: list[Access] = of_kinds(func.walk(), tile.LoadOp, tile.StoreOp, tile.AtomicOp)
    suspects = [op for op in accesses if op not in of_tiles and any(map(_may_be_negative, op.indices))]
    if not suspects:
        return
    ranges = Ranges(func)
    for op in suspects:
        indices = list(op.indices)
        for axis, index in enumerate(op.indices):
            if ranges.of(index).hi < 0:
                indices[axis] = _from_end(func, op, axis, index)
        op.set_field("indices", indices)


def _may_be_negative(index: Value) -> bool:
    """Whether the expression has anything in it that makes numbers negative: most have not, and need no ranges."""
    op = index.op
    if isinstance(op, (arith.SubOp, arith.NegOp)):
        return True
    if isinstance(op, arith.ConstantOp):
        return bool(op.value < 0)
    return isinstance(op, (arith.AddOp, arith.MulOp, arith.CastOp)) and any(map(_may_be_negative, op.operands))


def _from_end(func: tile.FuncOp, op: Access, axis: int, index: Value) -> Value:
    builder, dim = Builder.at(op), tile.buffer_type(op.buffer).shape[axis]
    size = builder.constant(dim, ScalarType(index.dtype)) if isinstance(dim, int) else func.symbol(dim)
    if size.dtype != index.dtype:
        size = builder.insert(arith.CastOp(size, result_types=[ScalarType(index.dtype)])).result
    return builder.insert(arith.AddOp(size, index)).result
