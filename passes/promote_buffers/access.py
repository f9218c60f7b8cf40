"""Indexed reads and writes of tile values: what loads and stores on on-chip buffers become.

Scalar indices select; identity indices permute; other regular indices split, repeat or gather along dimensions. All
other reads gather, and all other writes compare every element with the index (one-hot).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tiledsl.analysis.strided_access import Index, backwards, classify, digits, in_order
from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, Shape, TensorType, broadcast_shapes
from tiledsl.passes.tile_values import (
    SCATTER_LIMIT,
    DigitAccess,
    both,
    broadcast,
    compared,
    converted,
    exact_sum,
    inside_of,
    iota,
    is_inside,
    nothing,
    numbered,
    permuted,
    reduced,
    reshaped,
    row_major,
    selected,
    with_digit_axes,
    zero,
)


def load(builder: Builder, source: Value, indices: Sequence[Value], mask: Value | None, other: Value | None) -> Value:
    """The elements of `source` at the indices, in their common shape; `other` (or 0) where the mask is false."""
    if in_order(indices, source.shape):
        out = source
    else:
        shape = _common_shape(indices)
        narrow = [_narrow(builder, index) for index in indices]
        apart = _regular(builder, narrow, source.shape)
        inner = shape
        if apart is not None:
            narrow, inner = apart.indices, apart.shape(shape)
        split, sizes = _split(builder, narrow, source.shape)
        varying = _common_shape(narrow)
        out = _load(builder, reshaped(builder, source, sizes), split, varying)
        out = reshaped(builder, broadcast(builder, out, inner), shape)
    if mask is not None:
        default = zero(builder, (), source.dtype) if other is None else other
        out = selected(builder, mask, out, default)
    return out


def _common_shape(values: Sequence[Value]) -> Shape:
    shape = broadcast_shapes(*(each.shape for each in values))
    assert shape is not None, "the values of one access broadcast to each other"
    return shape


def _regular(builder: Builder, indices: Sequence[Value], shape: Shape, *, writes: bool = False) -> DigitAccess | None:
    """The access with axes for the digits of its indices, if that makes it a regular one."""
    if not _is_irregular(indices, shape, writes=writes):
        return None
    made = with_digit_axes(builder, indices)
    return None if made is None or _is_irregular(made.indices, shape, writes=writes) else made


def _is_irregular(indices: Sequence[Value], shape: Shape, *, writes: bool) -> bool:
    """Whether an access has to gather, or compare each element with each index."""
    walks: list[Value] = []
    sizes: list[int] = []
    for index, dim in zip(indices, shape, strict=True):
        sub_indices = digits(index, dim)
        for walk, size in [(index, dim)] if sub_indices is None else [(part.walk, part.size) for part in sub_indices]:
            if walk is not None:
                walks.append(walk)
                sizes.append(size)
    return any(index.kind == "general" for index in classify(walks, sizes, writes=writes))


def _split(builder: Builder, indices: Sequence[Value], shape: Shape) -> tuple[list[Value], Shape]:
    """The same access with a dimension for each digit of an index such as i * 8 + j."""
    split: list[Value] = []
    sizes: list[int] = []
    for index, dim in zip(indices, shape, strict=True):
        sub_indices = digits(index, dim)
        if sub_indices is None:
            split.append(index)
            sizes.append(dim)
            continue
        for part in sub_indices:
            each = builder.constant(part.offset, INT32) if part.walk is None else converted(builder, part.walk, "int32")
            if part.walk is not None and part.offset:
                each = builder.insert(arith.AddOp(each, builder.constant(part.offset, INT32))).result
            split.append(each)
            sizes.append(part.size)
    return split, tuple(sizes)


def _load(builder: Builder, source: Value, indices: Sequence[Value], shape: Shape) -> Value:
    kinds = classify(indices, source.shape)
    keep = [dim for dim, index in enumerate(kinds) if index.kind != "scalar"]
    for dim, index in enumerate(kinds):
        if index.kind == "scalar":
            source = _pick(builder, source, dim, index.value)
    source = reshaped(builder, source, tuple(source.shape[dim] for dim in keep))
    kinds = [kinds[dim] for dim in keep]
    for dim, index in enumerate(kinds):
        if index.kind == "slice":
            source = _take_slice(builder, source, dim, index)
        elif index.kind in ("strided", "repeated", "wrapped"):
            source = _take_walk(builder, source, dim, index)
    general = [dim for dim, index in enumerate(kinds) if index.kind == "general"]
    axes = [index.axis for index in kinds if index.kind != "general"]
    if general:
        source, merged = _take_general(builder, source, kinds, general)
        axes = [*axes, *merged]
        extents = [source.shape[dim] for dim in range(len(kinds) - len(general))] + [shape[axis] for axis in merged]
        source = reshaped(builder, source, tuple(extents))
    # Dimension i of the source now belongs to axis axes[i] of the result.
    order = sorted(range(len(axes)), key=lambda place: axes[place])
    return reshaped(builder, permuted(builder, source, order), shape)


def _pick(builder: Builder, source: Value, dim: int, index: Value) -> Value:
    """One position along a dimension, which stays with size 1."""
    extent = source.shape[dim]
    if extent == 1:
        return source
    hit = compared(builder, iota(builder, len(source.shape), dim, extent), "eq", index)
    return exact_sum(builder, selected(builder, hit, source, nothing(builder, source.dtype)), dim)


def _take_slice(builder: Builder, source: Value, dim: int, index: Index) -> Value:
    """`extent` positions along a dimension from an offset."""
    size, extent, offset = source.shape[dim], index.extent, index.offset
    known = offset if isinstance(offset, int) and 0 <= offset <= size - extent else None
    if known is not None and known % extent == size % extent == 0 and _splits(extent):
        before, after = source.shape[:dim], source.shape[dim + 1 :]
        split = reshaped(builder, source, (*before, size // extent, extent, *after))
        part = _pick(builder, split, dim, builder.constant(known // extent, INT32))
        return reshaped(builder, part, (*before, extent, *after))
    place = iota(builder, len(source.shape), dim, extent)
    start = builder.constant(offset, INT32) if isinstance(offset, int) else offset
    if constant_of(start) != 0:
        place = builder.insert(arith.AddOp(place, start)).result
    if known is None:
        place = _clamped(builder, place, size)
    return _gather(builder, source, place, dim)


def _take_walk(builder: Builder, source: Value, dim: int, index: Index) -> Value:
    """The positions of a strided, repeated or wrapped walk along a dimension."""
    before, size, after = source.shape[:dim], source.shape[dim], source.shape[dim + 1 :]
    if not _splits(size if index.kind == "wrapped" else index.step):
        return _gather(builder, source, _walk(builder, len(source.shape), dim, size, index), dim)
    if index.kind == "strided":
        assert isinstance(index.offset, int)
        split = reshaped(builder, source, (*before, index.extent, index.step, *after))
        part = _pick(builder, split, dim + 1, builder.constant(index.offset, INT32))
        return reshaped(builder, part, (*before, index.extent, *after))
    pair = (size, 1) if index.kind == "repeated" else (1, size)
    wide = (size, index.step) if index.kind == "repeated" else (index.extent // size, size)
    split = broadcast(builder, reshaped(builder, source, (*before, *pair, *after)), (*before, *wide, *after))
    return reshaped(builder, split, (*before, index.extent, *after))


def _splits(inner: int) -> bool:
    """Whether a dimension of a padded tile can be seen as two, the inner one of this size. Else each of the two is
    padded: (9, 5) as (3, 3, 5) takes 4 * 4 * 8 elements, and 32 * 32 * 8 beside a product over a dimension of 3."""
    return inner & (inner - 1) == 0


def _walk(builder: Builder, rank: int, dim: int, size: int, index: Index) -> Value:
    """The positions of a strided, repeated or wrapped walk, along a dimension of that size."""
    place = iota(builder, rank, dim, index.extent)
    if index.kind == "wrapped":
        return builder.insert(arith.FloorModOp(place, builder.constant(size, INT32))).result
    step = builder.constant(index.step, INT32)
    if index.kind == "repeated":
        return builder.insert(arith.FloorDivOp(place, step)).result
    place = builder.insert(arith.MulOp(place, step)).result
    if index.offset == 0:
        return place
    assert isinstance(index.offset, int)
    return builder.insert(arith.AddOp(place, builder.constant(index.offset, INT32))).result


def _take_general(builder: Builder, source: Value, kinds: list[Index], general: list[int]) -> tuple[Value, list[int]]:
    """Gather along the dimensions with general indices, merged into the last; also the result's axes merged there."""
    plain = [dim for dim in range(len(kinds)) if dim not in general]
    axes = [kinds[dim].axis for dim in plain]
    source = permuted(builder, source, plain + general)
    outer = source.shape[: len(plain)]
    sizes = source.shape[len(plain) :]
    source = reshaped(builder, source, (*outer, prod(sizes)))
    index = _linear(builder, [kinds[dim].value for dim in general], sizes)
    extra = [axis for axis, size in enumerate(index.shape) if size > 1 and axis not in axes]
    index = _arranged(builder, index, axes, extra)
    index = broadcast(builder, index, (*outer, index.shape[-1]))
    return _gather(builder, source, index, len(plain)), extra


def _linear(builder: Builder, indices: Sequence[Value], sizes: Shape) -> Value:
    """The position in the merged dimension; indices that lie outside go to the nearest element."""
    pairs = zip(indices, sizes, strict=True)
    nearest = [index if is_inside(index, size) else _clamped(builder, index, size) for index, size in pairs]
    return row_major(builder, nearest, sizes)


def _arranged(builder: Builder, value: Value, axes: Sequence[int], extra: Sequence[int]) -> Value:
    """A value with dimensions `axes`, then all of `extra` merged into one. Its other dimensions are 1."""
    rest = [axis for axis in range(len(value.shape)) if axis not in axes and axis not in extra]
    value = permuted(builder, value, [*axes, *extra, *rest])
    return reshaped(builder, value, (*value.shape[: len(axes)], prod(value.shape[len(axes) :])))


def _gather(builder: Builder, source: Value, index: Value, dim: int) -> Value:
    shape = tuple(index.shape[dim] if axis == dim else size for axis, size in enumerate(source.shape))
    index = broadcast(builder, index, shape)
    if source.dtype == "bool":
        wide = builder.insert(tensor.GatherOp(converted(builder, source, "int32"), index, axis=dim)).result
        return converted(builder, wide, "bool")
    return builder.insert(tensor.GatherOp(source, index, axis=dim)).result


def _narrow(builder: Builder, index: Value) -> Value:
    """An index as int32; one element is a scalar."""
    return converted(builder, reshaped(builder, index, ()) if prod(index.shape) == 1 else index, "int32")


def _clamped(builder: Builder, index: Value, size: int) -> Value:
    last = builder.constant(size - 1, INT32)
    limited = builder.insert(arith.MinOp(index, last)).result
    return builder.insert(arith.MaxOp(limited, builder.constant(0, INT32))).result


def replace(builder: Builder, value: Value, indices: Sequence[Value], shape: Shape) -> Value:
    """The new content of a buffer that a store covers as a whole."""
    if not shape:
        return value
    if in_order(indices, shape):
        return broadcast(builder, value, shape)
    split, sizes = _split(builder, [_narrow(builder, index) for index in indices], shape)
    value = _laid_out(builder, value, classify(split, sizes))
    return reshaped(builder, broadcast(builder, value, sizes), shape)


def store(builder: Builder, old: Value, value: Value, indices: Sequence[Value], mask: Value | None) -> Value:
    """`old` with `value` at the indices where the mask holds.

    Where several writes hit one element, the one of the last point in row-major order stays.
    """
    narrow = [_narrow(builder, index) for index in indices]
    apart = _regular(builder, narrow, old.shape, writes=True)
    if apart is not None:
        narrow, value = apart.indices, apart.value(builder, value)
        mask = None if mask is None else apart.value(builder, mask)
    narrow, value, mask = _forwards(builder, narrow, value, mask)
    split, sizes = _split(builder, narrow, old.shape)
    made = _store(builder, reshaped(builder, old, sizes), value, split, mask)
    return reshaped(builder, made, old.shape)


def _forwards(
    builder: Builder, indices: list[Value], value: Value, mask: Value | None
) -> tuple[list[Value], Value, Value | None]:
    """The same write with each index that walks backwards, such as n - 1 - i, made one that walks forwards.

    What is written is turned round along that axis. The points that write one element lie at one place of the axis, so
    they keep their order. Where another index varies along the axis, too, nothing changes.
    """
    for dim, index in enumerate(indices):
        walk = backwards(index)
        if walk is None:
            continue
        axis, extent, step, first, offset = walk
        if any(each.shape and each.shape[axis] > 1 for each in indices[:dim] + indices[dim + 1 :]):
            continue
        value = _turned(builder, value, axis)
        mask = None if mask is None else _turned(builder, mask, axis)
        place = iota(builder, len(index.shape), axis, extent)
        if step != 1:
            place = builder.insert(arith.MulOp(place, builder.constant(step, INT32))).result
        last, number = offset + step * (extent - 1), constant_of(first)
        start = builder.constant(last if number is None else int(number) - last, INT32)
        if number is None:
            start = builder.insert(arith.SubOp(first, start)).result
        if constant_of(start) != 0:
            place = builder.insert(arith.AddOp(place, start)).result
        indices = [*indices[:dim], place, *indices[dim + 1 :]]
    return indices, value, mask


def _turned(builder: Builder, value: Value, axis: int) -> Value:
    """A value in the opposite order along an axis."""
    if not value.shape or value.shape[axis] == 1:
        return value
    last = builder.constant(value.shape[axis] - 1, INT32)
    place = builder.insert(arith.SubOp(last, iota(builder, len(value.shape), axis, value.shape[axis]))).result
    return _gather(builder, value, place, axis)


def _store(builder: Builder, old: Value, value: Value, indices: Sequence[Value], mask: Value | None) -> Value:
    shape = old.shape
    kinds = classify(indices, shape, writes=True)
    if not shape:
        return value if mask is None else selected(builder, mask, value, old)
    general = [index.value for index in kinds if index.kind == "general"]
    if _extra_axes([value, mask, *general], [index.axis for index in kinds]):
        return _scatter(builder, old, value, kinds, mask)

    def spread(value: Value) -> Value:
        """Over the buffer's dimensions; anything outside of slices."""
        value = _laid_out(builder, value, kinds)
        for dim, index in enumerate(kinds):
            if index.kind in ("slice", "strided"):
                value = _spread(builder, value, dim, shape[dim], index)
        return value

    condition: Value | None = None
    for dim, index in enumerate(kinds):
        if index.kind == "slice":
            condition = both(builder, condition, _inside_slice(builder, len(shape), dim, shape[dim], index))
        elif index.kind == "strided":
            lane = arith.FloorModOp(iota(builder, len(shape), dim, shape[dim]), builder.constant(index.step, INT32))
            offset = index.offset if isinstance(index.offset, Value) else builder.constant(index.offset, INT32)
            condition = both(builder, condition, compared(builder, builder.insert(lane).result, "eq", offset))
        elif index.kind == "general" or index.kind == "scalar" and shape[dim] > 1:
            place = iota(builder, len(shape), dim, shape[dim])
            condition = both(builder, condition, compared(builder, place, "eq", spread(index.value)))
    condition = both(builder, condition, None if mask is None else spread(mask))
    value = spread(value)
    return broadcast(builder, value if condition is None else selected(builder, condition, value, old), shape)


def _extra_axes(values: Sequence[Value | None], axes: Sequence[int]) -> list[int]:
    """The axes along which some value varies beside `axes`."""
    shapes = [value.shape for value in values if value is not None]
    return sorted({axis for shape in shapes for axis, size in enumerate(shape) if size > 1 and axis not in axes})


def _laid_out(builder: Builder, value: Value, kinds: Sequence[Index]) -> Value:
    """A value over the access' axes as one over the buffer's dimensions; scalars stay."""
    if not value.shape:
        return value
    axes = [index.axis for index in kinds if index.axis >= 0 and index.kind != "general"]
    rest = [axis for axis in range(len(value.shape)) if axis not in axes]
    value = permuted(builder, value, axes + rest)
    sizes = iter(value.shape)
    return reshaped(
        builder, value, tuple(next(sizes) if index.axis >= 0 and index.kind != "general" else 1 for index in kinds)
    )


def _inside_slice(builder: Builder, rank: int, dim: int, size: int, index: Index) -> Value | None:
    """Which positions of the dimension the slice covers; None: all."""
    place = iota(builder, rank, dim, size)
    low = index.offset
    if isinstance(low, int):
        condition: Value | None = None
        if low > 0:
            condition = compared(builder, place, "ge", builder.constant(low, INT32))
        if low + index.extent < size:
            end = builder.constant(low + index.extent, INT32)
            condition = both(builder, condition, compared(builder, place, "lt", end))
        return condition
    high = builder.insert(arith.AddOp(low, builder.constant(index.extent, INT32))).result
    return both(builder, compared(builder, place, "ge", low), compared(builder, place, "lt", high))


def _spread(builder: Builder, value: Value, dim: int, size: int, index: Index) -> Value:
    """A value over a slice or strided walk as one over the whole dimension, anything beside the walk."""
    if not value.shape or value.shape[dim] == 1:
        return value
    before, extent, after = value.shape[:dim], value.shape[dim], value.shape[dim + 1 :]
    if index.kind == "strided" and not _splits(index.step):
        step = builder.constant(index.step, INT32)
        place = builder.insert(arith.FloorDivOp(iota(builder, len(value.shape), dim, size), step)).result
        return _gather(builder, value, place, dim)
    if index.kind == "strided":
        split = reshaped(builder, value, (*before, extent, 1, *after))
        return reshaped(
            builder, broadcast(builder, split, (*before, extent, index.step, *after)), (*before, size, *after)
        )
    if isinstance(index.offset, int) and index.offset % extent == size % extent == 0 and _splits(extent):
        split = reshaped(builder, value, (*before, 1, extent, *after))
        split = broadcast(builder, split, (*before, size // extent, extent, *after))
        return reshaped(builder, split, (*before, size, *after))
    place = iota(builder, len(value.shape), dim, size)
    start = builder.constant(index.offset, INT32) if isinstance(index.offset, int) else index.offset
    if constant_of(start) != 0:
        place = builder.insert(arith.SubOp(place, start)).result
    return _gather(builder, value, _clamped(builder, place, extent), dim)


def _scatter(builder: Builder, old: Value, value: Value, kinds: Sequence[Index], mask: Value | None) -> Value:
    """Write along general indices: find for each element the last point that writes it, and take that one's value."""
    shape = old.shape
    # As rare as that is, other walks are general indices too.
    kinds = [index if index.kind in ("scalar", "identity") else Index("general", index.value) for index in kinds]
    if _comparisons(shape, [value, mask], kinds) > SCATTER_LIMIT:
        return _scatter_by_place(builder, old, value, [index.value for index in kinds], mask)
    general = [dim for dim, index in enumerate(kinds) if index.kind == "general"]
    axes = [index.axis for index in kinds if index.kind == "identity"]
    involved = [value, mask, *(kinds[dim].value for dim in general)]
    extra = _extra_axes(involved, axes)
    rank = len(shape)
    sizes = {axis: max(each.shape[axis] for each in involved if each is not None and each.shape) for axis in extra}
    count = prod(sizes.values())

    def lay_out(value: Value) -> Value:
        """Over the buffer's dimensions and then one of all extra points; 1 where it does not vary."""
        if not value.shape:
            return value
        full = tuple(sizes.get(axis, size) for axis, size in enumerate(value.shape))
        if any(value.shape[axis] > 1 for axis in extra):
            value = broadcast(builder, value, full)
        arranged = _arranged(builder, value, axes, extra)
        dims = iter(arranged.shape)
        return reshaped(
            builder, arranged, (*(next(dims) if index.kind == "identity" else 1 for index in kinds), arranged.shape[-1])
        )

    hit: Value | None = None if mask is None else lay_out(mask)
    for dim, index in enumerate(kinds):
        if index.kind != "identity" and (shape[dim] > 1 or index.kind == "general"):
            place = iota(builder, rank + 1, dim, shape[dim])
            hit = both(builder, hit, compared(builder, place, "eq", lay_out(index.value)))
    point = iota(builder, rank + 1, rank, count)
    nobody = builder.constant(-1, INT32)
    if hit is None:
        last = builder.constant(count - 1, INT32)
        written: Value | None = None
    else:
        chosen = selected(builder, hit, point, nobody)
        last = reduced(builder, chosen, "max", rank)
        written = compared(builder, last, "ge", builder.constant(0, INT32))
        written = broadcast(builder, written, shape)
    value = lay_out(value)
    if value.shape and value.shape[-1] > 1:
        value = _of_last(builder, value, last, [index.kind == "identity" for index in kinds], shape)
    elif value.shape:
        value = reshaped(builder, value, value.shape[:-1])
    return broadcast(builder, value, shape) if written is None else selected(builder, written, value, old)


def _comparisons(shape: Shape, values: Sequence[Value | None], kinds: Sequence[Index]) -> int:
    """How many comparisons find the last point that writes each element; see _scatter."""
    involved = [*values, *(index.value for index in kinds if index.kind == "general")]
    varying = set(_extra_axes(involved, []))
    extra = _extra_axes(involved, [index.axis for index in kinds if index.kind == "identity"])
    count = prod(max(each.shape[axis] for each in involved if each is not None and each.shape) for axis in extra)
    sizes = (1 if index.kind == "identity" and index.axis not in varying else dim for index, dim in zip(kinds, shape))
    return prod(sizes) * count


def _scatter_by_place(
    builder: Builder, old: Value, value: Value, indices: Sequence[Value], mask: Value | None
) -> Value:
    """The same with a tensor.scatter of the points' numbers, of which the greatest stays."""
    points = _common_shape([value, *indices, *([] if mask is None else [mask])])
    count, size, zero = prod(points), prod(old.shape), builder.constant(0, INT32)
    mask = inside_of(builder, indices, old.shape, mask)
    place = row_major(builder, indices, old.shape)
    if mask is not None:
        place = selected(builder, mask, place, builder.constant(-1, INT32))
    place, value = (reshaped(builder, broadcast(builder, each, points), (count,)) for each in (place, value))
    nobody = builder.constant(-1, TensorType((size,), "int32"))
    last = builder.insert(tensor.ScatterOp(nobody, numbered(builder, count), place, kind="max")).results[0]
    made = _gather(builder, value, builder.insert(arith.MaxOp(last, zero)).result, 0)
    written = compared(builder, last, "ge", zero)
    flat = selected(builder, written, made, reshaped(builder, old, (size,)))
    return reshaped(builder, flat, old.shape)


def _of_last(builder: Builder, value: Value, last: Value, identity: Sequence[bool], shape: Shape) -> Value:
    """For each element of a buffer the value of the point `last`. `value` varies along identities and points only."""
    count = value.shape[-1]
    if not last.shape:
        picked = _pick(builder, value, len(shape), last)
        return reshaped(builder, picked, picked.shape[:-1])
    order = sorted(range(len(shape)), key=lambda dim: not identity[dim])
    outer = tuple(shape[dim] for dim in order if identity[dim])
    inner = tuple(shape[dim] for dim in order if not identity[dim])
    varying = tuple(value.shape[dim] for dim in order if identity[dim])
    source = reshaped(builder, permuted(builder, value, [*order, len(shape)]), (*varying, count))
    source = broadcast(builder, source, (*outer, count))
    at = permuted(builder, broadcast(builder, _clamped(builder, last, count), shape), order)
    made = _gather(builder, source, reshaped(builder, at, (*outer, prod(inner))), len(outer))
    back = [order.index(dim) for dim in range(len(shape))]
    return permuted(builder, reshaped(builder, made, (*outer, *inner)), back)
