"""Reductions and scans along a dimension of a tile."""

from __future__ import annotations

from typing import Any

from tiledsl.dialects import tensor, tile
from tiledsl.errors import TileError
from tiledsl.ir.types import BufferType
from tiledsl.language.allocation import alloc_fragment
from tiledsl.language.buffer import Buffer, Reference, Var
from tiledsl.language.expression import context, describe, plain
from tiledsl.language.operations import copy, whole
from tiledsl.language.regions import region_of, shape_text
from tiledsl.legality import permitted

__all__ = [
    "cummax", "cumsum", "reduce", "reduce_absmax", "reduce_abssum", "reduce_bitand", "reduce_bitor", "reduce_bitxor",
    "reduce_max", "reduce_min", "reduce_sum",
]  # fmt: skip


def axis_of(what: str, x: Any, dim: Any) -> int:
    """The dimension of a buffer or slice that `dim` denotes; negative numbers count from the end."""
    buffer, _, extents = region_of(what, x)
    dim = plain(dim)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TileError(f"{what}: dim is {describe(dim)}, not an integer")
    if not -len(extents) <= dim < len(extents):
        shape = tuple(extent or 1 for extent in extents)
        raise TileError(f"{what}: {buffer.name} is {shape} and has no dimension {dim}", code="tile-shapes")
    return dim % len(extents)


def reduce(
    buffer: Any,
    out: Any,
    reduce_type: str,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    annotations: Any = None,
) -> None:
    """Combine the elements of `buffer` along `dim` into `out`, whose shape lacks that dimension or has 1 there.

    `reduce_type` is sum, max, min, abssum, absmax (all element types), or bitand, bitor, bitxor (integers and bool).
    `buffer` is a buffer or slice of constant shape, converted to `out`'s type first; `out` may be a variable. With
    clear=False, the old `out` takes part. max and min drop a NaN unless `nan_propagate`; `batch` has no effect. Raises
    TileError for another reduce_type or dim, and where the shapes or types do not fit.

    Example:
        # X = [[1.0, -4.0], [3.0, 2.0]]
        x, out = T.alloc_fragment((2, 2), "float32"), T.alloc_fragment((2,), "float32")
        T.copy(X, x)
        T.reduce(x, out, "absmax", dim=1)
        T.copy(out, Y)
        # Y = [4.0, 3.0]
    """
    kind = str(reduce_type).removeprefix("bit")
    what = f"T.reduce_{reduce_type}"
    if kind not in tensor.REDUCTIONS:
        raise TileError(f"T.reduce: no reduction {reduce_type!r}")
    if isinstance(out, Var):
        part = alloc_fragment((1,), out.dtype)
        if not clear:
            part[0] = out
        reduce(buffer, part, reduce_type, dim, clear, nan_propagate=nan_propagate)
        out.store(part[0])
        return
    axis, from_indexed, to_indexed = reduced_axis(what, buffer, out, dim)
    source, _ = whole(what, buffer, indexed=from_indexed)
    target, back = whole(what, out, write_back=True, indexed=to_indexed, read=not clear)
    shape = source.type.static_shape
    for each in (source, target):
        permitted(what, f"reduce.{kind}", each.dtype.name)
    if source.dtype != target.dtype:
        wide = Buffer(
            context(what).alloc(BufferType(shape, target.type.dtype, "fragment"), what, name=f"{source.name}_cast")
        )
        copy(source, wide)
        source = wide
    context(what).builder.insert(
        tile.ReduceOp(
            source.value, target.value, kind=kind, axis=axis, clear=bool(clear), propagate_nan=bool(nan_propagate)
        )
    )
    if back is not None:
        copy(target, back)


def reduced_axis(what: str, buffer: Any, out: Any, dim: Any) -> tuple[int, bool, bool]:
    """The axis of a reduction, and whether dimensions with a single index count in the source and in the target."""
    (source, _, extents), (target, _, into) = region_of(what, buffer), region_of(what, out)
    rank_axis = axis_of(what, buffer, dim)
    for from_indexed in (True, False) if extents[rank_axis] is not None else (True,):
        kept = [axis for axis, extent in enumerate(extents) if from_indexed or extent is not None]
        shape, axis = [extents[each] or 1 for each in kept], kept.index(rank_axis)
        fitting = (shape[:axis] + shape[axis + 1 :] or [1], [*shape[:axis], 1, *shape[axis + 1 :]])
        for to_indexed in (True, False):
            sizes = [extent or 1 for extent in into if to_indexed or extent is not None] or [1]
            if sizes in fitting:
                return axis, from_indexed, to_indexed
    shape = [extent or 1 for extent in extents]
    notes = []
    if isinstance(buffer, Reference) and None in extents:
        notes.append(f"a single index of a slice counts as a dimension of 1, so dim={dim} is that of {source.name}")
    raise TileError(
        f"{what}: {source.name} is {tuple(shape)}, so along dimension {dim} it gives "
        f"{tuple(shape[:rank_axis] + shape[rank_axis + 1 :]) or (1,)}, but {target.name} is "
        f"{tuple(extent or 1 for extent in into)}",
        notes=notes,
        code="tile-shapes",
    )


_OF_ROWS = {  # of the rows (1, -4) and (3, 2), for examples
    "sum": [-3, 5], "max": [1, 3], "min": [-4, 2], "abssum": [5, 5], "absmax": [4, 3], "bitand": [0, 2],
    "bitor": [-3, 3], "bitxor": [-3, 1],
}  # fmt: skip


def _named_reduction(kind: str) -> Any:
    def reduce_named(buffer: Any, out: Any, dim: int = -1, clear: bool = True, batch: int = 1, nan_propagate: bool = False, annotations: Any = None) -> None:  # fmt: skip # noqa: E501
        reduce(buffer, out, kind, dim, clear, batch, nan_propagate)

    reduce_named.__name__ = reduce_named.__qualname__ = f"reduce_{kind}"
    reduce_named.__doc__ = f"""T.reduce of `buffer` into `out` with reduce_type={kind!r}.

    Its shapes, types and errors (TileError) are T.reduce's.

    Example:
        # X = [[1, -4], [3, 2]]
        x, out = T.alloc_fragment((2, 2), "int32"), T.alloc_fragment((2,), "int32")
        T.copy(X, x)
        T.reduce_{kind}(x, out, dim=1)
        T.copy(out, Y)
        # Y = {_OF_ROWS[kind]}
    """
    return reduce_named


reduce_sum, reduce_max, reduce_min = map(_named_reduction, ("sum", "max", "min"))
reduce_abssum, reduce_absmax = map(_named_reduction, ("abssum", "absmax"))
reduce_bitand, reduce_bitor, reduce_bitxor = map(_named_reduction, ("bitand", "bitor", "bitxor"))


def _scan(what: str, kind: str, src: Any, dst: Any, dim: int, reverse: bool) -> None:
    axis = axis_of(what, src, dim)
    source, back = whole(what, src, write_back=dst is None)
    target = source
    if dst is not None:
        buffer, _, extents = region_of(what, dst)
        sizes, wanted = ([size for size in each if size not in (None, 1)] for each in (extents, source.type.shape))
        if sizes != wanted:
            raise TileError(
                f"{what}: {source.name} is {shape_text(source)}, but {buffer.name} is {shape_text(buffer)}",
                code="tile-shapes",
            )
        if source.dtype != buffer.dtype:
            raise TileError(f"{what}: {source.name} is {source.dtype}, but {buffer.name} is {buffer.dtype}")
        if isinstance(dst, Buffer) and dst.scope() != "global" and dst.type.shape == source.type.shape:
            target = dst
        else:
            target = Buffer(context(what).alloc(source.type, what, name=f"{buffer.name}_part"))
            back = dst if isinstance(dst, Reference) else dst[(slice(None),) * dst.ndim]
    context(what).builder.insert(tile.ScanOp(source.value, target.value, kind=kind, axis=axis, reverse=bool(reverse)))
    if back is not None:
        copy(target, back)


def cumsum(src: Any, dst: Any = None, dim: int = 0, reverse: bool = False, annotations: Any = None) -> None:
    """Inclusive prefix sums along `dim` (from the end, if `reverse`) into `dst`, or in place.

    `src` and `dst` are buffers or slices of one shape (up to dimensions of 1) and one element type. Raises TileError
    where these differ, and for a `dim` that `src` lacks.

    Example:
        # X = [3, 1, 4]
        x = T.alloc_fragment((3,), "int32")
        T.copy(X, x)
        T.cumsum(x)
        T.copy(x, Y)
        # Y = [3, 4, 8]
    """
    _scan("T.cumsum", "sum", src, dst, dim, reverse)


def cummax(src: Any, dst: Any = None, dim: int = 0, reverse: bool = False, annotations: Any = None) -> None:
    """Inclusive prefix maxima along `dim` (from the end, if `reverse`) into `dst`, or in place.

    `src` and `dst` are buffers or slices of one shape (up to dimensions of 1) and one element type. Raises TileError
    where these differ, and for a `dim` that `src` lacks.

    Example:
        # X = [3, 1, 4]
        x = T.alloc_fragment((3,), "int32")
        T.copy(X, x)
        T.cummax(x)
        T.copy(x, Y)
        # Y = [3, 3, 4]
    """
    _scan("T.cummax", "max", src, dst, dim, reverse)
