"""Reshaping padded tiles: a reshape where the padding stays at the end, else a gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tiledsl.dialects import arith, tensor
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ScalarType, TensorType
from tiledsl.passes.tile_values import both

Sizes = Callable[[int], int]


def keeps_order(source: Sequence[int], target: Sequence[int], padded: Sizes) -> bool:
    """Whether reshaping the padded tiles gives the padded reshape, for shapes before padding.

    Dimensions are compared in the smallest groups of equal product. A group is fine where both sides are the same but
    for ones, and where only the outermost dimension of either side is padded, which leaves the padding at the end.
    """
    for left, right in groups([size for size in source if size != 1], [size for size in target if size != 1]):
        if left == right:
            continue
        if any(padded(size) != size for size in (*left[1:], *right[1:])):
            return False
        if prod(map(padded, left)) != prod(map(padded, right)):
            return False
    return True


def groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of dimensions with equal products on both sides, in order; for shapes without ones."""
    groups: list[tuple[list[int], list[int]]] = []
    left: list[int] = []
    right: list[int] = []
    remaining = list(target)
    for size in source:
        left.append(size)
        while remaining and prod(right) < prod(left):
            right.append(remaining.pop(0))
        if prod(left) == prod(right):
            groups.append((left, right))
            left, right = [], []
    return groups


def reshape_by_gather(op: tensor.ReshapeOp, source: Sequence[int], target: Sequence[int], padded: Sizes) -> Value:
    """The reshape of an operand that is already padded: every element of the result looks up its place.

    `source` and `target` are the shapes before padding. Inserts before `op` and returns the value to replace its
    result.
    """
    builder = Builder.at(op)
    extent = prod(map(padded, target))
    lane = builder.insert(tensor.IotaOp(axis=0, result_types=[TensorType((extent,), "int32")])).result

    def with_number(make: type[Operation], value: Value, number: int) -> Value:
        if (make is arith.MulOp or make is arith.FloorDivOp) and number == 1:
            return value
        return builder.insert(make(value, builder.constant(number, ScalarType("int32")))).result

    def add(total: Value | None, value: Value) -> Value:
        return value if total is None else builder.insert(arith.AddOp(total, value)).result

    # Where the element stands in the unpadded tile, in row-major order
    position: Value | None = None
    valid: Value | None = None
    stride, padded_stride = prod(target), extent
    for size in target:
        stride, padded_stride = stride // size, padded_stride // padded(size)
        coordinate = with_number(arith.FloorModOp, with_number(arith.FloorDivOp, lane, padded_stride), padded(size))
        position = add(position, with_number(arith.MulOp, coordinate, stride))
        if padded(size) != size:
            limit = builder.constant(size, ScalarType("int32"))
            inside = builder.insert(arith.CmpOp(coordinate, limit, predicate="lt")).result
            valid = both(builder, valid, inside)
    assert position is not None
    # and from there where it stands in the padded source
    index: Value | None = None
    stride, padded_stride = prod(source), prod(map(padded, source))
    for size in source:
        stride, padded_stride = stride // size, padded_stride // padded(size)
        coordinate = with_number(arith.FloorModOp, with_number(arith.FloorDivOp, position, stride), size)
        index = add(index, with_number(arith.MulOp, coordinate, padded_stride))
    assert index is not None
    if valid is not None:
        index = builder.insert(arith.SelectOp(valid, index, builder.constant(0, ScalarType("int32")))).result
    flat = TensorType((prod(map(padded, source)),), op.source.dtype)
    elements = builder.insert(tensor.ReshapeOp(op.source, result_types=[flat])).result
    looked_up = builder.insert(tensor.GatherOp(elements, index, axis=0)).result
    shape = TensorType(tuple(map(padded, target)), op.source.dtype)
    return builder.insert(tensor.ReshapeOp(looked_up, result_types=[shape])).result
