"""Arrays of a thread whose elements are always named by numbers become buffers of their own, one for each element."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.dialects import arith, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BufferType, with_shape

_ACCESSES = (tile.LoadOp, tile.StoreOp)


def split_arrays(parallel: tile.ParallelOp) -> None:
    """Divide the local arrays that the threads of a parallel use along each axis whose index is always a number.

    Else the element would be picked from a tile by comparisons, and the whole array stay in registers with it.
    """
    accesses: dict[Value, list[Operation]] = {}
    for op in parallel.body.walk():
        for value in op.operands:
            if isinstance(value.type, BufferType) and value.type.scope == "local":
                accesses.setdefault(value, []).append(op)
    for buffer, ops in accesses.items():
        if isinstance(buffer.op, tile.AllocOp) and len({*buffer.uses}) == len(ops) and all(map(_is_simple, ops)):
            axes = _constant_axes(buffer, ops)
            if axes:
                _split(buffer.op, ops, axes)


def _is_simple(op: Operation) -> bool:
    return isinstance(op, _ACCESSES) or isinstance(op, tile.WriteOp) and constant_of(op.value) is not None


def _constant_axes(buffer: Value, ops: Sequence[Operation]) -> list[int]:
    """The axes along which each access is at a number inside of the array."""
    shape = tile.buffer_type(buffer).static_shape
    indexed = [op.indices for op in ops if isinstance(op, _ACCESSES)]
    return [
        axis
        for axis, size in enumerate(shape)
        if all((number := constant_of(indices[axis])) is not None and 0 <= number < size for indices in indexed)
    ]


def _split(alloc: tile.AllocOp, ops: Sequence[Operation], axes: Sequence[int]) -> None:
    type = tile.buffer_type(alloc.out)
    local = BufferType(tuple(n for axis, n in enumerate(type.static_shape) if axis not in axes), type.dtype, "local")
    parts: dict[tuple[object, ...], Value] = {}
    builder = Builder.at(alloc)
    for op in ops:
        if isinstance(op, _ACCESSES):
            place = tuple(constant_of(op.indices[axis]) for axis in axes)
            if place not in parts:
                made = tile.AllocOp(result_types=[local], names=[alloc.out.name], loc=alloc.loc)
                parts[place] = builder.insert(made).out
    for op in ops:
        here = Builder.at(op)
        if isinstance(op, _ACCESSES):
            part = parts[tuple(constant_of(op.indices[axis]) for axis in axes)]
            indices = [index for axis, index in enumerate(op.indices) if axis not in axes]
            if isinstance(op, tile.LoadOp):
                load = tile.LoadOp(part, indices, op.mask, op.other, loc=op.loc, names=[op.out.name], **op.attributes)
                op.out.replace_with(here.insert(load).result)
            else:
                here.insert(tile.StoreOp(op.value, part, indices, op.mask, loc=op.loc, **op.attributes))
        elif isinstance(op, tile.WriteOp):
            number = constant_of(op.value)
            assert number is not None, "a fill is of a number"
            for part in parts.values():
                value = here.constant(arith.as_constant(number, type.dtype), with_shape(local.static_shape, type.dtype))
                here.insert(tile.WriteOp(value, part, loc=op.loc) if local.shape else tile.StoreOp(value, part, []))
        op.erase()
    alloc.erase()
