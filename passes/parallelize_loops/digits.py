"""Sums over parts of a dimension: what splits a dimension in two, only to be summed over both, stays whole."""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import tile
from tiledsl.dialects.arith import AddOp, MulOp, constant_of
from tiledsl.ir.core import Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, BufferType, is_float
from tiledsl.passes.parallelize_loops.independent import has_views
from tiledsl.passes.vectorize_parallel.updates import updates_alone


def sum_at_once(buffers: Iterable[Value]) -> bool:
    """Keep of each buffer that is filled with 0, added to, and summed along an axis no more than these sums.

    Return whether a sum of floats is another one now.

    p[i, j] += x[i, k * 4 + j]; reduce(p, s, axis=1)  ==>  p[i, 0] += x[i, k * 4 + j]; reduce(p, s, axis=1)
    """
    reordered = False
    for buffer in buffers:
        axis = _summed_axis(buffer)
        if axis is None:
            continue
        type = tile.buffer_type(buffer)
        for op in list(buffer.uses):
            if isinstance(op, (tile.LoadOp, tile.StoreOp)):
                operands = [*op.operands]
                operands[operands.index(buffer) + 1 + axis] = Builder.at(op).constant(0, INT32)
                op.set_operands(operands)
        shape = (*type.shape[:axis], 1, *type.shape[axis + 1 :])
        buffer.set_type(BufferType(shape, type.dtype, type.scope))
        reordered |= is_float(type.dtype)
    return reordered


def _summed_axis(buffer: Value) -> int | None:
    """The axis along which all that reads a buffer sums it; None if something else is done to it."""
    if not isinstance(buffer.op, tile.AllocOp) or has_views(buffer):
        return None
    updates, axes = [], set[int]()
    for op in buffer.uses:
        if isinstance(op, (tile.LoadOp, tile.StoreOp)):
            if any(isinstance(around, tile.ParallelOp) and around.lockstep for around in ancestors(op)):
                return None
            updates.append(op)
        elif isinstance(op, tile.ReduceOp) and op.kind == "sum" and op.target is not buffer:
            if op.target.dtype != buffer.dtype:
                return None
            axes.add(op.axis)
        elif not (isinstance(op, tile.FillOp) and constant_of(op.value) == 0):
            return None
    found = updates_alone(updates) or []
    if len(axes) != 1 or {each.kind for each in found} != {"add"}:
        return None
    axis = axes.pop()
    return axis if tile.buffer_type(buffer).shape[axis] != 1 else None


def merge_digits(parallel: tile.ParallelOp) -> None:
    """parallel (%k, %j) { f(%k * extent of %j + %j) }  ==>  parallel (%j) { f(%j) }"""
    while not parallel.lockstep and (found := _digits(parallel)) is not None:
        high, low, wholes = found
        extents = dict(zip(parallel.body.args, parallel.extents, strict=True))
        extents[low] *= extents.pop(high)
        body = Region([arg.type for arg in extents], [arg.name for arg in extents])
        mapping = dict(zip(extents, body.args, strict=True))
        builder = Builder(body, loc=parallel.loc)
        for whole in wholes:
            whole.out.replace_with(low)
            whole.erase()
        for arg, new in mapping.items():
            arg.replace_with(new)
        for op in list(parallel.body):
            builder.insert(op.detach())
        for op in list(high.uses):
            op.erase()
        made = type(parallel)(
            regions=[body], loc=parallel.loc, **{**parallel.attributes, "extents": tuple(extents.values())}
        )
        Builder.at(parallel).insert(made)
        parallel.erase()
        parallel = made


def _digits(parallel: tile.ParallelOp) -> tuple[Value, Value, list[AddOp]] | None:
    """Two indices that are no more than the digits of a number, and the numbers."""
    extents = dict(zip(parallel.body.args, parallel.extents, strict=True))
    for low, extent in extents.items():
        wholes = [op for op in low.uses if isinstance(op, AddOp)]
        if len(wholes) != len(low.uses):
            continue
        scaled = {_other(op, low) for op in wholes}
        highs = {_scaled(value, extent) for value in scaled}
        high = highs.pop() if len(highs) == 1 else None
        if high not in extents:
            continue
        makers = {value.op for value in scaled}
        if {*high.uses} == makers and all({*value.uses} <= {*wholes} for value in scaled):
            return high, low, wholes
    return None


def _other(op: AddOp, value: Value) -> Value:
    return op.rhs if op.lhs is value else op.lhs


def _scaled(value: Value, extent: int) -> Value | None:
    """What is multiplied by an extent to make a value."""
    if not isinstance(value.op, MulOp):
        return None
    lhs, rhs = value.op.lhs, value.op.rhs
    return lhs if constant_of(rhs) == extent else rhs if constant_of(lhs) == extent else None
