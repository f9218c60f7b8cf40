"""What depends on the order of a tile's elements: sorts, the largest, their places; scans with a function; counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiledsl.dialects import tile
from tiledsl.errors import TileError
from tiledsl.ir.types import BufferType
from tiledsl.language.allocation import alloc_fragment
from tiledsl.language.atomics import atomic_add
from tiledsl.language.buffer import Buffer, Var
from tiledsl.language.expression import (
    compare,
    context,
    describe,
    plain,
    select,
)
from tiledsl.language.loops import check_elements
from tiledsl.language.operations import clear, copy, whole
from tiledsl.language.reductions import axis_of, reduce, reduced_axis
from tiledsl.language.regions import region_of, shape_text

__all__ = ["argmax", "argmin", "associative_scan", "histogram", "sort", "topk"]

_INTEGERS = ("int", "uint")


def sort(src: Any, dst: Any = None, dim: int = -1, descending: bool = False, indices: Any = None) -> None:
    """Sort along `dim`, ascending unless `descending`, into `dst`, or in place; `indices` gets the places in `src`.

    `src` is a tile or slice of any shape and element type; `dst` and `indices` (integers of 32 or 64 bits) are of its
    shape, up to dimensions of 1. Equal elements stay in order, and NaN is greater than all numbers. Raises TileError
    where shapes or element types do not fit, and for a `dim` that `src` lacks. The network is Batcher's; it takes
    log2(n) * (log2(n) + 1) / 2 steps for n elements.

    Example:
        # X = [3, 1, 2]
        x, places = T.alloc_fragment((3,), "int32"), T.alloc_fragment((3,), "int32")
        T.copy(X, x)
        T.sort(x, indices=places)
        T.copy(x, Y)
        T.copy(places, Z)
        # Y = [1, 2, 3]
        # Z = [1, 2, 0]
    """
    values, order = _sorted("T.sort", src, dim, descending)
    _put("T.sort", values, src if dst is None else dst)
    if indices is not None:
        _put_places("T.sort", order, indices)


def topk(src: Any, values: Any, indices: Any = None, dim: int = -1, largest: bool = True) -> None:
    """The first elements of `src` in descending order along `dim` (ascending unless `largest`), and their places.

    `values`, of `src`'s element type, has `src`'s shape but for `dim`, whose size k says how many; `indices` (integers
    of 32 or 64 bits) has the same shape. Of equal elements the first comes first, and NaN is the largest. Raises
    TileError where shapes or element types do not fit, and for a `dim` that `src` lacks.

    Example:
        # X = [3.0, 1.0, 4.0, 2.0]
        x = T.alloc_fragment((4,), "float32")
        best, places = T.alloc_fragment((2,), "float32"), T.alloc_fragment((2,), "int32")
        T.copy(X, x)
        T.topk(x, best, places)
        T.copy(best, Y)
        T.copy(places, Z)
        # Y = [4.0, 3.0]
        # Z = [2, 0]
    """
    what = "T.topk"
    axis = axis_of(what, src, dim)
    in_order, order = _sorted(what, src, dim, bool(largest))
    target, _, extents = region_of(what, values)
    count = extents[axis] if len(extents) == in_order.ndim else None
    if count is None or count < 0:
        raise TileError(f"{what}: {in_order.name} is {shape_text(in_order)}, but {target.name} is {shape_text(target)}")
    if not 0 < count <= in_order.type.static_shape[axis]:
        raise TileError(f"{what}: {target.name} asks for {count} of {in_order.type.static_shape[axis]} elements")
    part = tuple(slice(0, count) if each == axis else slice(None) for each in range(in_order.ndim))
    _put(what, in_order, values, part)
    if indices is not None:
        _put_places(what, order, indices, part)


def argmax(buffer: Any, out: Any, dim: int = -1) -> None:
    """The place of the largest element along `dim` into `out`, whose shape lacks that dimension or has 1 there.

    `buffer` is a tile or slice of any element type but bool, `out` one of integers of 32 or 64 bits, or a variable. Of
    equal elements it is the first; a NaN is passed over, and of nothing but NaN the place is 0. Raises TileError where
    shapes or types do not fit, and for a `dim` that `buffer` lacks.

    Example:
        # X = [[1.0, 5.0], [3.0, 2.0]]
        x, places = T.alloc_fragment((2, 2), "float32"), T.alloc_fragment((2,), "int32")
        T.copy(X, x)
        T.argmax(x, places, dim=1)
        T.copy(places, Y)
        # Y = [1, 0]
    """
    _extreme_place("T.argmax", "max", buffer, out, dim)


def argmin(buffer: Any, out: Any, dim: int = -1) -> None:
    """The place of the smallest element along `dim` into `out`, whose shape lacks that dimension or has 1 there.

    `buffer`, `out` and errors (TileError) are T.argmax's, and so is what is done with NaN and equal elements.

    Example:
        # X = [[1.0, 5.0], [3.0, 2.0]]
        x, places = T.alloc_fragment((2, 2), "float32"), T.alloc_fragment((2,), "int32")
        T.copy(X, x)
        T.argmin(x, places, dim=1)
        T.copy(places, Y)
        # Y = [0, 1]
    """
    _extreme_place("T.argmin", "min", buffer, out, dim)


def histogram(src: Any, dst: Any, clear: bool = True) -> None:
    """Count the elements of `src` that are 0, 1, 2, ... into `dst`; others are left out. Adds to it unless `clear`.

    `src` is a tile or slice of integers of any shape; `dst` is a tile on the chip of one dimension, of integers, with
    an element for each bin. Raises TileError for anything else.

    Example:
        # X = [0, 2, 2, 1, 7]
        x, counts = T.alloc_fragment((5,), "int32"), T.alloc_fragment((3,), "int32")
        T.copy(X, x)
        T.histogram(x, counts)
        T.copy(counts, Y)
        # Y = [1, 1, 2]
    """
    what = "T.histogram"
    source, _ = whole(what, src)
    _check_integers(what, source, "counted")
    if not isinstance(dst, Buffer) or dst.scope() == "global" or dst.ndim != 1:
        raise TileError(f"{what} needs a tile on the chip of one dimension to count into, not {describe(dst)}")
    _check_integers(what, dst, "a count")
    if clear:
        _clear(dst)
    context(what).parallel(source.type.static_shape, lambda indices: atomic_add(dst[source[tuple(indices)]], 1))


_clear = clear


def associative_scan(
    function: Callable[..., Any], src: Any, dst: Any = None, dim: int = 0, reverse: bool = False
) -> None:
    """Inclusive scan along `dim` (from the end, if `reverse`) with an associative function, into `dst`, or in place.

    `function(a, b)` gives the combination of two elements, a before b, as a scalar. `src` is a tile or slice, or a list
    of some of one shape: then the function takes the elements of all at one place, those of all at the other, and gives
    as many scalars. `dst` is of the same shapes and element types. Raises TileError where shapes differ, for a
    `dim` that `src` lacks, and where the function gives anything else. After k steps, each element is combined with the
    2^k - 1 before it (Hillis, Steele: Data parallel algorithms, CACM 29(12), 1986).

    Example:
        # X = [1.0, 2.0, 3.0, 4.0]
        x = T.alloc_fragment((4,), "float32")
        T.copy(X, x)
        T.associative_scan(lambda a, b: a * b, x)
        T.copy(x, Y)
        # Y = [1.0, 2.0, 6.0, 24.0]
    """
    what = "T.associative_scan"
    sources = list(src) if isinstance(src, (list, tuple)) else [src]
    targets = sources if dst is None else list(dst) if isinstance(dst, (list, tuple)) else [dst]
    if not sources or len(targets) != len(sources):
        raise TileError(f"{what}: {len(sources)} tiles into {len(targets)}")
    if not callable(function):
        raise TileError(f"{what} needs a function of two elements, not {describe(function)}")
    axis = axis_of(what, sources[0], dim)
    tiles = [whole(what, tile)[0] for tile in sources]
    shape = tiles[0].type.static_shape
    for item in tiles[1:]:
        if item.type.shape != shape:
            raise TileError(f"{what}: {tiles[0].name} is {shape_text(tiles[0])}, but {item.name} is {shape_text(item)}")
    far = 1
    while far < shape[axis]:
        made = [alloc_fragment(shape, tile.dtype) for tile in tiles]
        _scan_step(what, function, tiles, made, axis, far, bool(plain(reverse)))
        tiles, far = made, 2 * far
    for item, target in zip(tiles, targets, strict=True):
        _put(what, item, target)


def _scan_step(
    what: str, function: Callable[..., Any], tiles: list[Buffer], outs: list[Buffer], axis: int, far: int, reverse: bool
) -> None:
    extent = tiles[0].type.static_shape[axis]

    def body(indices: list[Any]) -> None:
        place = indices[axis]
        other = place + far if reverse else place - far
        there = compare("lt", other, extent) if reverse else compare("ge", other, 0)
        at = [*indices[:axis], select(there, other, place), *indices[axis + 1 :]]
        before, here = ([tile_[tuple(each)] for tile_ in tiles] for each in (at, indices))
        found = function(*before, *here)
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        if len(found) != len(tiles) or any(isinstance(each, (Buffer, type(None))) for each in found):
            raise TileError(f"{what}: the function gives {describe(found)} for {len(tiles)} tiles")
        for target, old, new in zip(outs, here, found, strict=True):
            target[tuple(indices)].store(select(there, new, old))

    check_elements(what, tiles[0].type.static_shape)
    context(what).parallel(tiles[0].type.static_shape, body)


def _sorted(what: str, src: Any, dim: Any, descending: Any) -> tuple[Buffer, Buffer]:
    """New tiles with the sorted elements, and with their places before."""
    axis = axis_of(what, src, dim)
    source, _ = whole(what, src)
    ctx = context(what)
    target = Buffer(
        ctx.alloc(BufferType(source.type.shape, source.type.dtype, "fragment"), what, name=f"{source.name}_sorted")
    )
    order = Buffer(ctx.alloc(BufferType(source.type.shape, "int32", "fragment"), what, name=f"{source.name}_order"))
    ctx.builder.insert(
        tile.SortOp(source.value, target.value, order.value, axis=axis, descending=bool(plain(descending)))
    )
    return target, order


def _extreme_place(what: str, kind: str, buffer: Any, out: Any, dim: Any) -> None:
    if isinstance(out, Var):
        part = alloc_fragment((1,), "int32")
        _extreme_place(what, kind, buffer, part, dim)
        out.store(part[0])
        return
    axis, from_indexed, _ = reduced_axis(what, buffer, out, dim)
    source, _ = whole(what, buffer, indexed=from_indexed)
    if source.dtype.name == "bool":
        raise TileError(f"{what}: {source.name} is bool", notes=["copy it to a tile of int32 first"])
    shape = source.type.static_shape
    extent, kept = shape[axis], (*shape[:axis], 1, *shape[axis + 1 :])
    best, places = alloc_fragment(kept, source.dtype), alloc_fragment(shape, "int32")
    first = alloc_fragment(kept, "int32")
    reduce(source, best, kind, axis)

    def body(indices: list[Any]) -> None:
        of_best = (*indices[:axis], 0, *indices[axis + 1 :])
        is_best = compare("eq", source[tuple(indices)], best[of_best])
        places[tuple(indices)].store(select(is_best, indices[axis], extent))

    context(what).parallel(shape, body)
    reduce(places, first, "min", axis)
    ctx = context(what)
    ctx.elementwise(first, first, lambda place: select(compare("lt", place, extent), place, 0))
    _put_places(what, first, out)


def _check_integers(what: str, buffer: Buffer, needed: str) -> None:
    if not buffer.dtype.name.startswith(_INTEGERS):
        raise TileError(f"{what}: {buffer.name} is {buffer.dtype}, and what is {needed} is an integer")


def _put_places(what: str, order: Buffer, out: Any, part: tuple[slice, ...] | None = None) -> None:
    target, _, _ = region_of(what, out)
    if target.dtype.name not in ("int32", "int64", "uint32", "uint64"):
        raise TileError(f"{what}: {target.name} is {target.dtype}, and a place is an integer of 32 or 64 bits")
    _put(what, order, out, part, converts=True)


def _put(what: str, result: Buffer, out: Any, part: tuple[slice, ...] | None = None, converts: bool = False) -> None:
    """Copy a tile, or a part of it, to where it is wanted. TileError where that has another shape or element type."""
    target, _, extents = region_of(what, out)
    source: Any = result if part is None else result[part]
    _, _, given = region_of(what, source)
    ours, theirs = ([size for size in each if size not in (None, 1)] for each in (given, extents))
    if ours != theirs:
        raise TileError(f"{what}: {result.name} gives {tuple(given)}, but {target.name} is {tuple(extents)}")
    if result.dtype != target.dtype and not converts:
        raise TileError(f"{what}: {result.name} is {result.dtype}, but {target.name} is {target.dtype}")
    if isinstance(out, Buffer) and isinstance(source, Buffer) and out.type.shape != source.type.shape:
        source, out = source[(slice(None),) * source.ndim], out[(slice(None),) * out.ndim]
    copy(source, out)
