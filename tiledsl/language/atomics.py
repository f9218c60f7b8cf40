"""Atomic operations on global and on-chip memory: one element, or a whole tile at once."""

from __future__ import annotations

from typing import Any

from tiledsl.dialects import tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
from tiledsl.language.allocation import alloc_fragment
from tiledsl.language.buffer import Buffer, Reference, Var
from tiledsl.language.expression import Expr, Scalar, as_value, context, describe, is_number, plain
from tiledsl.language.operations import fill
from tiledsl.language.regions import element, pair
from tiledsl.legality import permitted

__all__ = [
    "atomic_add", "atomic_addx2", "atomic_addx4", "atomic_cas", "atomic_load", "atomic_max", "atomic_min", "atomic_or",
    "atomic_store",
]  # fmt: skip

_ORDERS = {
    None: "relaxed", "relaxed": "relaxed", "consume": "acquire", "acquire": "acquire", "release": "release",
    "acq_rel": "acq_rel", "seq_cst": "acq_rel",
}  # fmt: skip


# What C++ allows of a read alone and of a write alone ([atomics.types.operations]).
_READS = ("relaxed", "consume", "acquire", "seq_cst")
_WRITES = ("relaxed", "release", "seq_cst")


def _semantics(what: str, order: str | None, kind: str) -> str:
    allowed = _READS if kind == "load" else _WRITES if kind == "store" else tuple(filter(None, _ORDERS))
    if order is not None and order not in allowed:
        raise TileError(f"{what}: no memory order {order!r}; there are {', '.join(allowed)}")
    return _ORDERS[order]


def _element(what: str, kind: str, place: Reference, value: Any, order: str | None, compare: Any = None) -> Value:
    ctx, dtype, semantics = context(what), place.buffer.dtype, _semantics(what, order, kind)
    on_chip = place.buffer.scope() != "global"
    if on_chip and kind in ("load", "store"):  # nobody comes between
        if kind == "store":
            place.store(value)
        return as_value(place if kind == "load" else value, dtype)
    permitted(what, f"scatter.{kind}" if on_chip else f"atomic.{kind}.{semantics}", dtype.name)
    value = as_value(value, dtype)
    wanted = None if compare is None else as_value(compare, dtype)
    made = tile.AtomicOp(value, place.buffer.value, place.indices(), None, wanted, kind=kind, semantics=semantics)
    return ctx.builder.insert(made).result


def _atomic(what: str, kind: str, dst: Any, value: Any, order: str | None, return_prev: bool) -> Any:
    if isinstance(dst, Var):
        raise TileError(f"{what}: a variable is private to the block; assign to it")
    if isinstance(dst, Buffer):
        dst = dst[(slice(None),) * dst.ndim] if not _is_scalar(value) or dst.type.shape != (1,) else dst[0]
    if not isinstance(dst, Reference):
        raise TileError(f"{what} needs a place in a buffer, not {describe(dst)}")
    if _is_scalar(value) and not dst.is_region:
        old = _element(what, kind, dst, value, order)
        return Scalar(old) if return_prev else None
    if return_prev:
        raise TileError(f"{what}: the previous values of a whole tile cannot be returned; use it inside T.Parallel")
    _tile(what, kind, dst, value, order)
    return None


def _is_scalar(value: Any) -> bool:
    value = plain(value)
    return is_number(value) or (isinstance(value, Expr) and not (isinstance(value, Reference) and value.is_region))


def _tile(what: str, kind: str, dst: Reference, value: Any, order: str | None) -> None:
    """An atomic update of a tile: a parallel loop over the elements that a copy of the same arguments would touch."""

    ctx = context(what)
    if _is_scalar(value):
        sizes = [extent for extent in dst.extents if extent is not None]
        if -1 in sizes:
            raise TileError(f"{what}: the part of {dst.name} has no constant shape")
        part = alloc_fragment(sizes, dst.dtype)
        fill(part, value)
        value = part
    shape, source_axes, target_axes = pair(what, value, dst)

    def body(indices: list[Any]) -> None:
        place, part = element(dst, target_axes, indices), element(value, source_axes, indices).value()
        ctx.of_tiles |= {part.op, _element(what, kind, place, Scalar(part), order).op}

    ctx.parallel(shape, body)


def atomic_add(dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, use_tma: bool = False, annotations: Any = None) -> Any:  # fmt: skip # noqa: E501
    """dst += value in one step; dst is an element or a tile of a buffer. With return_prev, the old element.

    `value` is a scalar or a tile that matches as in T.copy. In global memory the element type is float32, float64 or an
    integer of 32 or 64 bits; float16 and bfloat16 add up, too. memory_order is relaxed (default), consume, acquire,
    release, acq_rel or seq_cst. On the chip it is any number type; the iterations of a T.Parallel come one after the
    other, in the order of their indices, and those with an index outside take no part. use_tma and annotations have no
    effect, here and below. Raises TileError for other types and orders, shapes that do not match, and return_prev of a
    tile.

    Example:
        # X = [0, 2, 2, 1]
        # Y = [0, 0, 0]
        for i in T.Parallel(4):
            T.atomic_add(Y[X[i]], 1)
        # Y = [1, 1, 2]
    """
    return _atomic("T.atomic_add", "add", dst, value, memory_order, return_prev)


def atomic_max(dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, annotations: Any = None) -> Any:  # fmt: skip # noqa: E501
    """dst = max(dst, value) in one step, in global memory for element types of 32 and 64 bits.

    `dst`, `value` (scalars or tiles), memory_order and return_prev are T.atomic_add's. Raises TileError as that does.

    Example:
        # X = [2, 9, 4, 3]
        # Y = [5, 5]
        for i in T.Parallel(4):
            T.atomic_max(Y[i % 2], X[i])
        # Y = [5, 9]
    """
    return _atomic("T.atomic_max", "max", dst, value, memory_order, return_prev)


def atomic_min(dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, annotations: Any = None) -> Any:  # fmt: skip # noqa: E501
    """dst = min(dst, value) in one step, in global memory for element types of 32 and 64 bits.

    `dst`, `value` (scalars or tiles), memory_order and return_prev are T.atomic_add's. Raises TileError as that does.

    Example:
        # X = [2, 9, 4, 3]
        # Y = [5, 5]
        for i in T.Parallel(4):
            T.atomic_min(Y[i % 2], X[i])
        # Y = [2, 3]
    """
    return _atomic("T.atomic_min", "min", dst, value, memory_order, return_prev)


def atomic_or(dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, annotations: Any = None) -> Any:  # fmt: skip # noqa: E501
    """dst |= value in one step, for integers, in global memory of 32 and 64 bits.

    `dst`, `value` (scalars or tiles), memory_order and return_prev are T.atomic_add's. Raises TileError as that does.

    Example:
        # Y = [0]
        for i in T.Parallel(4):
            T.atomic_or(Y[0], 1 << i)
        # Y = [15]
    """
    return _atomic("T.atomic_or", "or", dst, value, memory_order, return_prev)


def atomic_cas(dst: Any, compare: Any, value: Any, memory_order: str | None = None) -> Any:
    """The element `dst` of a buffer (the first one, if it is whole), which becomes `value` if it was `compare`.

    `compare` and `value` are scalars; bits are compared, so that a NaN equals itself and 0.0 is not -0.0. In global
    memory the element type has 16, 32 or 64 bits, on the chip it is any but bool. memory_order is T.atomic_add's. On
    the chip the iterations of a T.Parallel come one after the other, in the order of their indices; where they may
    address one element, that is a loop. Raises TileError for slices, and for other orders and types.

    Example:
        # Y = [3, 4]
        for i in T.Parallel(2):
            Z[i] = T.atomic_cas(Y[i], 3, 30)
        # Y = [30, 4]
        # Z = [3, 4]
    """
    what = "T.atomic_cas"
    if isinstance(dst, Var):
        raise TileError(f"{what}: a variable is private to the block; use T.if_then_else")
    for name, each in (("compare", compare), ("value", value)):
        if not _is_scalar(each):
            raise TileError(f"{what}: {name} is {describe(each)}, not a scalar; use it inside T.Parallel")
    return Scalar(_element(what, "cas", _single(what, dst), value, memory_order, compare))


def atomic_load(src: Any, memory_order: str = "seq_cst") -> Any:
    """The element `src` of a buffer (the first one, if it is whole), read in one step.

    memory_order is relaxed, consume, acquire or seq_cst. An element type of 8 bits, and integers of 16, are read
    relaxed only. Raises TileError for slices, and for other orders and types.

    Example:
        # X = [5, 6]
        Y[0] = T.atomic_load(X[1], memory_order="acquire")
        # Y = [6]
    """
    return Scalar(_element("T.atomic_load", "load", _single("T.atomic_load", src), 0, memory_order))


def atomic_store(dst: Any, src: Any, memory_order: str = "seq_cst") -> None:
    """dst = src in one step: `dst` is an element of a buffer (the first one, if it is whole), `src` a scalar.

    memory_order is relaxed, release or seq_cst; types below 32 bits are written relaxed only. Raises TileError for
    slices, and for other orders and types.

    Example:
        T.atomic_store(Y[0], 6, memory_order="release")
        # Y = [6]
    """
    _element("T.atomic_store", "store", _single("T.atomic_store", dst), src, memory_order)


def _single(what: str, place: Any) -> Reference:
    """The element that a place in a buffer names; of a whole buffer it is the first."""
    place = place[(0,) * place.ndim] if isinstance(place, Buffer) else place
    if not isinstance(place, Reference) or {*place.extents} - {None, 1}:
        wrong = f"a slice of {place.name}" if isinstance(place, Reference) else describe(place)
        raise TileError(f"{what} needs one element of a buffer, not {wrong}")
    return place


def _vector(name: str, lanes: int) -> Any:
    def function(dst: Any, value: Any, return_prev: bool = False) -> Any:
        places = [place[(0,) * place.ndim] if isinstance(place, Buffer) else place for place in (dst, value)]
        if not all(isinstance(place, Reference) for place in places):
            raise TileError(f"T.{name} needs two places, dst[i, j] and value[k, l]")
        target, source = places
        old = [
            Scalar(_element(f"T.{name}", "add", _neighbour(target, lane), _neighbour(source, lane), None))
            for lane in range(lanes)
        ]
        return tuple(old) if return_prev else None

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""T.atomic_add of {lanes} neighbours in the last dimension: elements at `value` to `dst`'s.

    `dst` and `value` are places: elements, or slices and whole buffers, of which the first element counts. With
    return_prev, a tuple of the {lanes} old elements, scalars. Types are T.atomic_add's. Raises TileError as that does,
    and unless both are places.

    Example:
        # X = [1.0, 2.0, 3.0, 4.0]
        # Y = [10.0, 10.0, 10.0, 10.0]
        T.{name}(Y[0], X[0])
        # Y = {[10.0 + each if each <= lanes else 10.0 for each in (1.0, 2.0, 3.0, 4.0)]}
    """
    return function


def _neighbour(place: Reference, lane: int) -> Reference:
    return place.buffer[(*place.offsets[:-1], place.offsets[-1] + lane)]


atomic_addx2, atomic_addx4 = _vector("atomic_addx2", 2), _vector("atomic_addx4", 4)
