"""Writes of a T.Parallel to elements that several of its points share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tiledsl.analysis.affine import bounds, linear_form
from tiledsl.analysis.same_values import same_place
from tiledsl.dialects import arith, tensor, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, Shape, broadcast_shapes, is_float, with_shape
from tiledsl.legality import verdict
from tiledsl.passes.tile_values import (
    COMBINING,
    SCATTER_LIMIT,
    both,
    broadcast,
    combine,
    compared,
    converted,
    exact_sum,
    inside_of,
    iota,
    is_inside,
    nothing,
    reduced,
    reshaped,
    row_major,
    same_bits,
    selected,
    with_digit_axes,
    zero,
)

# Updates at computed indices compare each point with each element if these are no more comparisons; else they scatter.
FEW_COMPARISONS = 1 << 12


def place(indices: Sequence[Value], rank: int) -> Shape:
    """The common shape of indices, with 1 in the dimensions along which the addressed element stays the same."""
    return broadcast_shapes(*(index.shape for index in indices)) or (1,) * rank


def one_writer(
    op: tile.StoreOp | tile.WriteOp, builder: Builder, value: Value, place: Shape, mask: Value | None
) -> tuple[Value, Value | None]:
    """Value and mask of a store without the dimensions along which the written element stays the same.

    A value that is the same along such a dimension is written if the mask holds anywhere. A varying value is taken from
    the one point at which the mask holds; it is an error if the mask does not vary either.
    """
    shared = [axis for axis, size in enumerate(place) if size == 1]
    summed = [axis for axis in shared if varies(value, axis)]
    for axis in shared:
        if mask is not None and varies(mask, axis) and axis not in summed:
            mask = reduced(builder, mask, "or", axis, keep=True)
    if summed:
        if mask is None or not all(varies(mask, axis) for axis in summed):
            raise race(op)
        value = selected(builder, mask, value, nothing(builder, value.dtype))
        for axis in summed:
            value = exact_sum(builder, value, axis)
            mask = reduced(builder, mask, "or", axis, keep=True)
    return one_element(builder, value, place, mask)


def keeps_element(op: tile.StoreOp) -> bool:
    """Whether a store puts back what was just read there, as r[i // 4] |= 0 does once it is folded."""
    read = op.value.op
    if not isinstance(read, tile.LoadOp) or not same_place(read, op):
        return False
    if read.mask is not None or not tile.is_on_chip(op.buffer):
        return False
    between = read.next
    while between is not None and between is not op and (between.is_pure or isinstance(between, tile.LoadOp)):
        between = between.next
    return between is op


def fewer_atomics(
    kind: str, builder: Builder, value: Value, place: Shape, mask: Value | None, takes_neutral: bool = False
) -> tuple[Value, Value | None]:
    """Combine the values for one element before the atomic operation, as far as indices show it; the mask of what is
    left. `takes_neutral`: each element may be combined with what changes none, so that this needs no mask."""
    extra = [axis for axis, size in enumerate(place) if size == 1 and varies(value, axis)]
    if not extra:
        return value, mask
    kind = "sum" if kind == "add" else kind
    if mask is not None:
        value = selected(builder, mask, value, _neutral(builder, kind, value.dtype))
        mask = None if takes_neutral else mask
    for axis in extra:
        value = reduced(builder, value, kind, axis, keep=True)
        if mask is not None and varies(mask, axis):
            mask = reduced(builder, mask, "or", axis, keep=True)
    return one_element(builder, value, place, mask)


def is_on_chip_update(op: tile.AtomicOp) -> bool:
    """Whether it is an update of an on-chip buffer."""
    return tile.buffer_type(op.buffer).scope != "global" and (op.kind in COMBINING or op.kind == "cas")


def combine_on_chip(
    op: tile.AtomicOp, builder: Builder, value: Value, indices: list[Value], mask: Value | None, full: Shape,
    compare: Value | None,
) -> Value | None:  # fmt: skip
    """An update of an on-chip buffer by all points at once, `full` of them: read, combine, write; the old values.

    Points that address one element are combined first: along axes that do not move the element, digits of axes
    included. What is left, such as r[T.min(2, j)], by comparing each point's index with each element's, or by a scatter
    where these are many.
    """
    inside = _inside_of_one(op, builder, indices)
    mask = both(builder, mask, inside)
    shared = place(indices, len(full))
    if op.out.uses or compare is not None:  # in the order of the points
        if full and (shared != full or not _one_to_one(indices, shared)):
            return _scatter(op, builder, value, indices, mask, full, compare)
    else:
        # 0.0 changes an element of -0.0, and an infinity one that is a NaN
        sizes = tile.buffer_type(op.buffer).static_shape
        whole = not is_float(value.dtype) and all(map(is_inside, indices, sizes))
        value, mask = fewer_atomics(op.kind, builder, value, shared, mask, whole)
        apart = None if _one_to_one(indices, shared) else with_digit_axes(builder, indices)
        if apart is not None:
            indices, shared = apart.indices, place(apart.indices, sum(map(len, apart.sizes)))
            value, mask = apart.value(builder, value), None if mask is None else apart.value(builder, mask)
            value, mask = fewer_atomics(op.kind, builder, value, shared, mask, whole)
        if not _one_to_one(indices, shared):
            found = _by_element(op, builder, value, indices, mask)
            if found is None:
                return _scatter(op, builder, value, indices, mask, shared)
            value, indices, mask = found
    old = builder.insert(tile.LoadOp(op.buffer, indices, None, None)).result
    if compare is None:
        new = builder.insert(combine(op.kind, value.dtype)(old, value)).out
    else:
        new = selected(builder, same_bits(builder, old, compare), value, old)
    builder.insert(tile.StoreOp(new, op.buffer, indices, mask))
    if inside is None or not op.out.uses:
        return old
    return selected(builder, inside, old, zero(builder, (), value.dtype))


def _inside_of_one(op: tile.AtomicOp, builder: Builder, indices: Sequence[Value]) -> Value | None:
    """Where indices of dimensions with a single element are 0; None if they are. Accesses on the chip take such an
    index for 0, and an update outside of the buffer takes no part."""
    inside: Value | None = None
    for index, size in zip(indices, tile.buffer_type(op.buffer).static_shape, strict=True):
        if size == 1 and bounds(index) != (0, 0):
            inside = both(builder, inside, compared(builder, index, "eq", zero(builder, (), index.dtype)))
    return inside


def _scatter(
    op: tile.AtomicOp, builder: Builder, value: Value, indices: list[Value], mask: Value | None, full: Shape,
    compare: Value | None = None,
) -> Value | None:  # fmt: skip
    """An update at computed indices, of which several may be the same. Those outside of the buffer take no part."""
    sizes = tile.buffer_type(op.buffer).static_shape
    flat, dtype = (prod(full),), _computed_in(op.kind, value.dtype)
    mask = inside_of(builder, indices, sizes, mask)
    position = row_major(builder, indices, sizes)
    if mask is not None:
        position = selected(builder, mask, position, builder.constant(-1, INT32))
    wanted = [] if compare is None else [compare]
    spread = [reshaped(builder, broadcast(builder, each, full), flat) for each in (value, position, *wanted)]
    old = builder.insert(tile.ReadOp(op.buffer, names=[op.buffer.name])).out
    into, given = (converted(builder, each, dtype) for each in (reshaped(builder, old, (prod(sizes),)), spread[0]))
    wanted = [converted(builder, each, dtype) for each in spread[2:]]
    names = [op.buffer.name, op.out.name]
    scattered = builder.insert(tensor.ScatterOp(into, given, spread[1], *wanted, kind=op.kind, names=names))
    new = reshaped(builder, converted(builder, scattered.results[0], value.dtype), sizes)
    builder.insert(tile.WriteOp(new, op.buffer))
    if not op.out.uses:
        return None
    before = reshaped(builder, converted(builder, scattered.results[1], value.dtype), full)
    return before if mask is None else selected(builder, mask, before, zero(builder, (), value.dtype))


def _computed_in(kind: str, dtype: str) -> str:
    """The element type in which a scatter is computed."""
    return verdict(f"scatter.{kind}", (dtype,)).dtype or dtype


def _by_element(
    op: tile.AtomicOp, builder: Builder, value: Value, indices: list[Value], mask: Value | None
) -> tuple[Value, list[Value], Value | None] | None:
    """What all points contribute to each element, the elements' indices, and which of them change; None for all: what
    is neutral changes none, but for the extremum of it and of a NaN.

    Dimensions of the buffer that a point's own place addresses stay apart; each of the others gets an axis, of all of
    its elements, along which a point's value is neutral but at its index. None for too many comparisons.
    """
    shape = broadcast_shapes(*(index.shape for index in indices), value.shape, () if mask is None else mask.shape) or ()
    alone = [
        isinstance(index.op, tensor.IotaOp)
        and not any(other is not index and other.shape and varies(other, index.op.axis) for other in indices)
        for index in indices
    ]
    kept = {index.op.axis for index, each in zip(indices, alone, strict=True) if each}  # type: ignore[union-attr]
    sizes = tile.buffer_type(op.buffer).static_shape
    general = [dim for dim, index in enumerate(indices) if prod(index.shape) > 1 and not alone[dim]]
    comparisons = prod(shape) * prod(sizes[dim] for dim in general)
    if comparisons > (SCATTER_LIMIT if kept else FEW_COMPARISONS):
        return None
    rank = len(shape) + len(general)

    def spread(each: Value) -> Value:
        return reshaped(builder, each, (*each.shape, *(1 for _ in general))) if each.shape else each

    places: list[Value] = []
    hit: Value | None = None if mask is None else spread(mask)
    for dim, index in enumerate(indices):
        if dim in general:
            element = iota(builder, rank, len(shape) + general.index(dim), sizes[dim], index.dtype)
            hit = both(builder, hit, compared(builder, spread(index), "eq", element))
            places.append(element)
        else:
            places.append(spread(index))
    kind = "sum" if op.kind == "add" else op.kind
    assert hit is not None, "points that differ in no index"
    value = selected(builder, hit, spread(value), _neutral(builder, kind, value.dtype))
    changed = hit if kind in ("max", "min") and is_float(value.dtype) else None
    for axis in range(len(shape)):
        if axis not in kept and value.shape[axis] > 1:
            value = reduced(builder, value, kind, axis, keep=True)
            if changed is not None and varies(changed, axis):
                changed = reduced(builder, changed, "or", axis, keep=True)
    return value, places, changed


def _neutral(builder: Builder, kind: str, dtype: str) -> Value:
    """What changes no element that it is combined with, but for the extremum of it and of a NaN."""
    if kind == "sum":
        return nothing(builder, dtype)
    return builder.constant(tensor.neutral(kind, dtype), with_shape((), dtype))


def _one_to_one(indices: list[Value], shared: Shape) -> bool:
    """Whether the points of a T.Parallel address different elements: each index is looked at as a sum of multiples."""
    extents = {axis: size for axis, size in enumerate(shared) if size > 1}
    return tell_apart([_multiples(index) for index in indices], extents)


def tell_apart(forms: Sequence[dict[int, int] | None], extents: Mapping[int, int]) -> bool:
    """Whether indices differ between all points of a box with these extents.

    The forms have the factors of the points' places by axis, beside what is the same for all; None: anything.
    """
    return not not_told(forms, extents)


def not_told(forms: Sequence[dict[int, int] | None], extents: Mapping[int, int]) -> dict[int, int]:
    """The extents without those of axes of which indices tell the point's place, as `tell_apart` has them."""
    left = dict(extents)
    while told := {axis for form in forms for axis in _told_by(form or {}, left)}:
        left = {axis: size for axis, size in left.items() if axis not in told}
    return left


def _told_by(form: Mapping[int, int], extents: Mapping[int, int]) -> set[int]:
    """The axes among these whose places an index tells, if each of its factors is more than all smaller ones reach."""
    factors = sorted((abs(factor), axis) for axis, factor in form.items() if axis in extents and factor)
    reach = 0
    for factor, axis in factors:
        if factor <= reach:
            return set()
        reach += factor * (extents[axis] - 1)
    return {axis for _, axis in factors}


def _multiples(index: Value) -> dict[int, int] | None:
    """Of an index that is a scalar plus multiples of the point's indices: the factors, by dimension; else None."""
    multiples: dict[int, int] = {}
    for (factor, *others), coefficient in linear_form(index).split()[1].terms.items():
        if others or not isinstance(factor.op, tensor.IotaOp):
            return None
        axis = factor.op.axis
        multiples[axis] = multiples.get(axis, 0) + coefficient
    return multiples


def one_element(builder: Builder, value: Value, place: Shape, mask: Value | None) -> tuple[Value, Value | None]:
    """Scalars, if only one element is written in total."""
    if place == (1,) * len(place):
        value = reshaped(builder, value, ()) if value.shape == place else value
        mask = reshaped(builder, mask, ()) if mask is not None and mask.shape == place else mask
    return value, mask


def race(op: tile.StoreOp | tile.WriteOp) -> TileError:
    """The error that iterations write different values to one element."""
    buffer, made = op.buffer, op.value.op
    notes: list[str] = []
    if isinstance(made, arith.BinaryOp) and any(
        isinstance(each.op, tile.LoadOp) and each.op.buffer is buffer for each in made.operands
    ):
        notes.append(
            "to add up along a dimension, write the terms to a tile and use T.reduce_sum on it, or T.alloc_reducer"
        )
    name = buffer.name or "one buffer"
    return TileError(f"T.Parallel: iterations write the same element of {name}", op.loc, notes)


def varies(value: Value, axis: int) -> bool:
    return bool(value.shape) and value.shape[axis] > 1
