"""Arguments of tile operations: a whole buffer, a slice or one element, and how the elements of two of them correspond.

A slice keeps all dimensions of its buffer: `A[i, 0:n]` has the extents (1, n).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl.errors import TileError
from tiledsl.language.buffer import Buffer, Reference
from tiledsl.language.expression import context, describe, is_number
from tiledsl.logs import warn_once

INNER = {"global": 0, "shared": 1, "fragment": 2, "local": 2}  # the innermost memory decides what a copy walks over

Extents = list[int | None]  # of each dimension; None at a single index, -1 where it is known only at run time


def region_of(what: str, x: Any) -> tuple[Buffer, list[Any], Extents]:
    """Buffer, offsets and extents of a buffer or reference."""
    if isinstance(x, Buffer):
        dims = x.type.shape
        return x, [0] * len(dims), [dim if type(dim) is int else -1 for dim in dims]
    if isinstance(x, Reference):
        return x.buffer, x.offsets, list(x.extents)
    raise TileError(f"{what} needs a buffer or a part of one, not {describe(x)}")


def element(x: Any, axes: Sequence[int], indices: Sequence[Any]) -> Reference:
    """One element of the tile at a buffer or reference; `indices` are those in the tile, which walks along `axes`."""
    buffer, offsets, _ = region_of("an element", x)
    place = list(offsets)
    for axis, index in zip(axes, indices, strict=True):
        place[axis] = index if is_number(place[axis]) and place[axis] == 0 else place[axis] + index
    return buffer[tuple(place)]


def shape_text(buffer: Buffer) -> str:
    """A buffer's shape, for messages."""
    return "(" + ", ".join(map(str, buffer.shape)) + ")"


def pair(what: str, source: Any, target: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The tile shape of a copy, and the axes along which it walks in the source and the target.

    An element takes its extents from the other side, aligned at the right. Where both sides have as many extents other
    than 1, these are matched in order; otherwise they are aligned at the right, and an extent of 1 gives way if it is
    an element's or a whole tensor's. The tile's extents are those of the innermost memory (fragment, then shared, then
    global; the source in a tie); what another side lacks must lie outside of its tensor.
    """
    try:
        return _paired(what, source, target)
    except TileError as error:
        for each in (source, target):
            if isinstance(each, Reference) and each.given < each.buffer.ndim:
                rest = ", ".join([*"ijklmnop"[: each.given], *["0"] * (each.buffer.ndim - each.given)])
                counts = f"{each.given} of the {each.buffer.ndim} dimensions of {each.buffer.name} have an index"
                place = f"{each.buffer.name}[{rest}] is the place where a tile begins"
                error.notes.append(f"{counts}, so that the others are whole: {place}")
        raise


def _paired(what: str, source: Any, target: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    (a, _, a_extents), (b, _, b_extents) = region_of(what, source), region_of(what, target)
    if isinstance(source, Buffer) and isinstance(target, Buffer) and a.type.shape != b.type.shape:
        raise TileError(
            f"{what}: {a.name} is {shape_text(a)} and {b.name} is {shape_text(b)}: two whole buffers must be equal",
            code="tile-shapes",
        )
    if a_extents.count(None) == len(a_extents):
        a_extents = _aligned(what, a, b, b_extents)
    elif b_extents.count(None) == len(b_extents):
        b_extents = _aligned(what, b, a, a_extents)
    ours = {axis: extent for axis, extent in enumerate(a_extents) if extent is not None and extent != 1}
    theirs = {axis: extent for axis, extent in enumerate(b_extents) if extent is not None and extent != 1}
    if len(ours) != len(theirs):
        ours, theirs = _widened(what, (source, a, a_extents), (target, b, b_extents))
    base_is_source = INNER[a.scope()] >= INNER[b.scope()]
    shape = []
    for (axis_a, x), (axis_b, y) in zip(ours.items(), theirs.items(), strict=True):
        chosen, other = (x, y) if base_is_source else (y, x)
        chosen = other if chosen == -1 else chosen
        if chosen == -1:
            raise TileError(f"{what}: the extent of dimension {axis_a} of {a.name} is not constant on either side")
        if x != y and -1 not in (x, y):
            _check_unequal(what, (source, axis_a, x), (target, axis_b, y), chosen)
        shape.append(chosen)
    return tuple(shape), tuple(ours), tuple(theirs)


def _check_unequal(what: str, source: tuple[Any, int, int], target: tuple[Any, int, int], chosen: int) -> None:
    """Extents that differ: nothing outside of a slice may be touched but what lies outside of its tensor, too."""
    (a_place, axis_a, x), (b_place, axis_b, y) = source, target
    a, b = region_of(what, a_place)[0], region_of(what, b_place)[0]
    sides = ((a_place, a, axis_a, x), (b_place, b, axis_b, y))
    if chosen < x or any(extent < chosen and not _ends_outside(*side) for *side, extent in sides):
        raise TileError(
            f"{what}: {a.name} and {b.name} do not fit: dimension {axis_a} of {a.name} gives {x}, dimension "
            f"{axis_b} of {b.name} takes {y}",
            notes=[f"{a.name} is {shape_text(a)}, {b.name} is {shape_text(b)}"],
            code="tile-shapes",
        )
    if chosen < y:
        place = f"{context(what).builder.loc}: {what}"
        warn_once(f"{place}: only {chosen} of the {y} in dimension {axis_b} of {b.name} are written")


def _ends_outside(each: Any, buffer: Buffer, axis: int) -> bool:
    """Whether a slice reaches the end of a tensor, so that what follows reads as 0 and is not written."""
    _, offsets, extents = region_of("", each)
    dim, offset, extent = buffer.type.shape[axis], offsets[axis], extents[axis]
    known = isinstance(dim, int) and is_number(offset) and extent is not None
    return buffer.scope() == "global" and known and bool(offset + extent >= dim)


def _aligned(what: str, single: Buffer, other: Buffer, extents: Extents) -> Extents:
    sizes: Extents = [1 if extent is None else extent for extent in extents]
    extra = len(sizes) - single.ndim
    if any(size != 1 for size in sizes[: max(extra, 0)]):
        sizes = [size for size in sizes if size != 1]
        extra = len(sizes) - single.ndim
        if extra > 0:
            raise TileError(
                f"{what}: {other.name} gives {len(sizes)} dimensions, but {single.name} has {single.ndim}",
                code="tile-shapes",
            )
    return [*[1] * max(-extra, 0), *sizes[max(extra, 0) :]]


Walk = dict[int, int]  # axes with their extents


def _widened(what: str, source: tuple[Any, Buffer, Extents], target: tuple[Any, Buffer, Extents]) -> tuple[Walk, Walk]:
    """Both sides aligned at the right, where one walks along more dimensions than the other."""
    (a_place, a, a_extents), (b_place, b, b_extents) = source, target
    # What is dynamic takes the extent of the innermost memory, also where that is 1.
    one_of_many = (1, -1) if INNER[a.scope()] >= INNER[b.scope()] else (-1, 1)
    ours: Walk = {}
    theirs: Walk = {}
    count = max(len(a_extents), len(b_extents))
    padded = [[1] * (count - len(each)) + [extent or 1 for extent in each] for each in (a_extents, b_extents)]
    for number, (x, y) in enumerate(zip(*padded, strict=True)):
        if x == y == 1 or (x, y) == one_of_many:
            continue
        axis_a, axis_b = number - count + a.ndim, number - count + b.ndim
        for axis, extent, each, buffer, wanted, other in (
            (axis_a, x, a_place, a, y, b), (axis_b, y, b_place, b, x, a),
        ):  # fmt: skip
            if axis < 0 or extent == 1 != wanted and not _may_widen(each, buffer):
                raise TileError(
                    f"{what}: {a.name} gives {_listed(a_extents)} and {b.name} takes {_listed(b_extents)} elements; a "
                    f"dimension of {wanted} of {other.name} has no counterpart in {buffer.name}",
                    notes=["copy row by row, or read it in a T.Parallel loop, to repeat a tile"],
                    code="tile-shapes",
                )
        ours[axis_a] = x if x != 1 else y
        theirs[axis_b] = y if y != 1 else x
    return ours, theirs


def _may_widen(each: Any, buffer: Buffer) -> bool:
    """An element's extents come from the other side; a whole tensor may be read and written outside of its bounds."""
    return isinstance(each, Reference) and not each.is_region or isinstance(each, Buffer) and buffer.scope() == "global"


def _listed(extents: Extents) -> str:
    return " x ".join("?" if extent == -1 else str(extent or 1) for extent in extents)
