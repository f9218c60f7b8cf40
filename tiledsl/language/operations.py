"""Tile operations: allocation, copy, fill, gemm, reductions, scans, views."""

from __future__ import annotations

import difflib
import enum
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from tiledsl.dialects import tensor, tile
from tiledsl.errors import TileError
from tiledsl.ir.types import BufferType, ScalarType
from tiledsl.language.buffer import Buffer, Reference, Var
from tiledsl.language.dtypes import canonical
from tiledsl.language.expression import (
    Expr,
    as_value,
    compare,
    context,
    describe,
    is_number,
    logical,
    plain,
    select,
)
from tiledsl.language.loops import check_elements

_INNER = {"global": 0, "shared": 1, "fragment": 2, "local": 2}


def _alloc(what: str, shape: Any, dtype: Any, scope: str) -> Buffer:
    dims = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    dims = tuple(plain(dim) for dim in dims)
    for axis, dim in enumerate(dims):
        if isinstance(dim, bool) or not isinstance(dim, int):
            hint = "" if dim is None else "; on-chip buffers need constant shapes"
            raise TileError(f"{what}: dimension {axis} is {describe(dim)}{hint}")
        if dim <= 0:
            raise TileError(f"{what}: dimension {axis} is {dim}; dimensions are at least 1")
    if not dims and what != "T.alloc_var":
        raise TileError(f"{what}: the shape is empty; use T.alloc_var for a scalar")
    check_elements(what, dims)
    return Buffer(context(what).alloc(BufferType(dims, str(canonical(dtype)), scope), what))


def alloc_shared(shape: Any, dtype: Any, scope: str = "shared.dyn") -> Buffer:
    """A block's tile in shared memory, undefined at first. Triton decides where it really lies."""
    return _alloc("T.alloc_shared", shape, dtype, "shared")


def alloc_fragment(shape: Any, dtype: Any, scope: str = "local.fragment") -> Buffer:
    """A block's tile in registers, undefined at first."""
    return _alloc("T.alloc_fragment", shape, dtype, "fragment")


def alloc_local(shape: Any, dtype: Any, scope: str = "local") -> Buffer:
    """A small array, undefined at first; in a T.Parallel loop each iteration has its own."""
    return _alloc("T.alloc_local", shape, dtype, "local")


def alloc_var(dtype: Any, *args: Any, scope: str = "local.var", init: Any = None) -> Var:
    """A mutable scalar: `x = T.alloc_var(dtype, init)`; later `x = e` and `x += e` store."""
    if args and init is None and not isinstance(args[0], str):
        init = args[0]
    var = Var(_alloc("T.alloc_var", (), dtype, "local").value)
    if init is not None:
        var.store(init)
    return var


def alloc_global(shape: Any, dtype: Any, scope: str = "global") -> Buffer:
    """A workspace in global memory, allocated at each call of the program. Outside of T.Kernel."""
    return context("T.alloc_global").workspace(shape, dtype)


def alloc_buffer(shape: Any, dtype: Any = "float32", scope: str = "global", **_: Any) -> Buffer:
    """A buffer in the given scope: global (a workspace), shared, local.fragment or local."""
    if scope == "global":
        return alloc_global(shape, dtype)
    kind = "shared" if scope.startswith("shared") else "fragment" if "fragment" in scope else "local"
    return _alloc("T.alloc_buffer", shape, dtype, kind)


# Regions


def _place(what: str, x: Any) -> tuple[Buffer, list[Any], list[int | None]]:
    """Buffer, offsets and extents of a buffer or reference."""
    if isinstance(x, Buffer):
        return x, [0] * x.ndim, [dim if isinstance(dim, int) else -1 for dim in x.type.shape]
    if isinstance(x, Reference):
        return x.buffer, x.offsets, list(x.extents)
    raise TileError(f"{what} needs a buffer or a part of one, not {describe(x)}")


def _pair(what: str, source: Any, target: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The tile shape of a copy, and the axes along which it walks in the source and the target.

    A single index takes its extents from the other side, aligned at the right. Where both sides have as many extents
    other than 1, these are matched in order; otherwise extents are aligned at the right and 1 gives way. The tile's
    extents are those of the innermost memory (fragment, then shared, then global; the source in a tie).
    """
    (a, _, a_extents), (b, _, b_extents) = _place(what, source), _place(what, target)
    if isinstance(source, Buffer) and isinstance(target, Buffer) and a.type.shape != b.type.shape:
        raise TileError(f"{what}: {a.name} is {_dims(a)} and {b.name} is {_dims(b)}: two whole buffers must be equal")
    if all(extent is None for extent in a_extents):
        a_extents = _aligned(what, a, b, b_extents)
    elif all(extent is None for extent in b_extents):
        b_extents = _aligned(what, b, a, a_extents)
    ours = [(axis, extent) for axis, extent in enumerate(a_extents) if extent not in (None, 1)]
    theirs = [(axis, extent) for axis, extent in enumerate(b_extents) if extent not in (None, 1)]
    if len(ours) != len(theirs):
        ours, theirs = _promote(a_extents, b_extents)
    base_is_source = _INNER[a.scope()] >= _INNER[b.scope()]
    shape = []
    for (axis_a, x), (axis_b, y) in zip(ours, theirs, strict=True):
        assert x is not None and y is not None
        if x != y and -1 not in (x, y):
            raise TileError(
                f"{what}: {a.name} and {b.name} do not fit: dimension {axis_a} of {a.name} gives {x}, dimension "
                f"{axis_b} of {b.name} takes {y}",
                notes=[f"{a.name} is {_dims(a)}, {b.name} is {_dims(b)}"],
            )
        chosen, other = (x, y) if base_is_source else (y, x)
        chosen = other if chosen == -1 else chosen
        if chosen == -1:
            raise TileError(f"{what}: the extent of dimension {axis_a} of {a.name} is not constant on either side")
        shape.append(chosen)
    return tuple(shape), tuple(axis for axis, _ in ours), tuple(axis for axis, _ in theirs)


def _dims(buffer: Buffer) -> str:
    return "(" + ", ".join(map(str, buffer.shape)) + ")"


def _aligned(what: str, single: Buffer, other: Buffer, extents: list[int | None]) -> list[int | None]:
    sizes = [1 if extent is None else extent for extent in extents]
    extra = len(sizes) - single.ndim
    if any(size != 1 for size in sizes[: max(extra, 0)]):
        sizes = [size for size in sizes if size != 1]
        extra = len(sizes) - single.ndim
        if extra > 0:
            raise TileError(f"{what}: {other.name} gives {len(sizes)} dimensions, but {single.name} has {single.ndim}")
    return [*[1] * max(-extra, 0), *sizes[max(extra, 0) :]]


def _promote(a: list[int | None], b: list[int | None]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    ours, theirs = [], []
    for back in range(1, min(len(a), len(b)) + 1):
        x, y = a[-back] or 1, b[-back] or 1
        if x != 1 or y != 1:
            ours.append((len(a) - back, x if x != 1 else y))
            theirs.append((len(b) - back, y if y != 1 else x))
    return ours[::-1], theirs[::-1]


def copy(
    src: Any,
    dst: Any,
    *,
    coalesced_width: int | None = None,
    disable_tma: bool = False,
    eviction_policy: str | None = None,
    prefer_instruction: str | None = None,
    annotations: dict[str, Any] | None = None,
    loop_layout: Any = None,
) -> None:
    """Copy between buffers, slices or places given by a single index, converting elements.

    Outside a global buffer reads give 0 and writes are dropped. The keywords but eviction_policy are hints of other
    compilers and have no effect.
    """
    if isinstance(src, Var) or isinstance(dst, Var):
        if not isinstance(dst, (Var, Reference)) or (isinstance(dst, Reference) and dst.is_region):
            raise TileError("T.copy: a variable can only be copied to or from one element")
        dst.store(src)
        return
    if isinstance(src, Reference) and isinstance(dst, Reference) and not src.is_region and not dst.is_region:
        dst.store(src)
        return
    ragged = _ragged(src, dst)
    if ragged:
        _copy_ragged(src, dst, ragged)
        return
    shape, source_axes, target_axes = _pair("T.copy", src, dst)
    ctx = context("T.copy")
    (a, a_offsets, _), (b, b_offsets, _) = _place("T.copy", src), _place("T.copy", dst)
    ctx.builder.insert(
        tile.CopyOp(
            a.value,
            _offsets(a_offsets),
            b.value,
            _offsets(b_offsets),
            shape=shape,
            source_axes=source_axes,
            target_axes=target_axes,
            safe_value=ctx.safe_value(a),
        )
    )


def _ragged(src: Any, dst: Any) -> list[tuple[int, int]]:
    """The pairs of axes along which two slices walk, where along one of them both extents are dynamic; else []."""
    if not isinstance(src, Reference) or not isinstance(dst, Reference):
        return []
    ours, theirs = (
        [axis for axis, extent in enumerate(each.extents) if extent not in (None, 1)] for each in (src, dst)
    )
    pairs = list(zip(ours, theirs, strict=False))
    both = any(src.extents[a] == dst.extents[b] == -1 for a, b in pairs)
    return pairs if both and len(ours) == len(theirs) else []


def _copy_ragged(src: Reference, dst: Reference, pairs: list[tuple[int, int]]) -> None:
    """Copy between slices of dynamic extents: the loop is over what the on-chip buffer could hold, with a mask."""
    chip = 0 if _INNER[src.buffer.scope()] >= _INNER[dst.buffer.scope()] else 1
    shape: list[int] = []
    for pair in pairs:
        fixed = [each.extents[axis] for each, axis in zip((src, dst), pair, strict=True) if each.extents[axis] != -1]
        dim = fixed[0] if fixed else (src, dst)[chip].buffer.type.shape[pair[chip]]
        if not isinstance(dim, int):
            raise TileError(
                f"T.copy: the extent of dimension {pair[0]} of {src.name} is not constant on either side",
                notes=["go through a fragment or shared tile of a constant shape"],
            )
        shape.append(dim)
    check_elements("T.copy", shape)
    ctx = context("T.copy")
    if ctx.safe_value(src.buffer):
        raise TileError("T.copy: T.annotate_safe_value with slices of dynamic extents on both sides")

    def body(indices: list[Any]) -> None:
        condition: Any = True
        at: list[list[Any]] = [list(src.offsets), list(dst.offsets)]
        for number, pair in enumerate(pairs):
            for side, (each, axis) in enumerate(zip((src, dst), pair, strict=True)):
                at[side][axis] = each.offsets[axis] + indices[number]
                if each.extents[axis] == -1:
                    condition = logical("and", condition, compare("lt", at[side][axis], each.ends[axis]))
                    if side == chip and isinstance(each.offsets[axis], Expr):
                        dim = each.buffer.shape[axis]
                        condition = logical("and", condition, compare("lt", at[side][axis], dim))
        store = lambda: dst.buffer[tuple(at[1])].store(src.buffer[tuple(at[0])])  # noqa: E731
        ctx.branch(as_value(condition, "bool"), store)

    ctx.parallel(shape, body)


def _offsets(offsets: list[Any]) -> list[Any]:
    if all(isinstance(offset, int) and offset == 0 for offset in offsets):
        return []
    return [as_value(offset, None if isinstance(offset, Expr) and offset.dtype in ("int32", "int64") else "int32") for offset in offsets]  # fmt: skip # noqa: E501


def _whole(what: str, x: Any, *, write_back: bool = False) -> tuple[Buffer, Any]:
    """An on-chip buffer with what `x` names: itself, or a copy of the slice; and where to copy it back, or None."""
    if isinstance(x, Buffer) and x.scope() != "global":
        return x, None
    buffer, _, extents = _place(what, x)
    if isinstance(x, Reference) and not x.is_region:
        raise TileError(
            f"{what}: {buffer.name}[...] is one element, a tile is needed; pass a slice or the whole buffer"
        )
    sizes = [1 if extent is None else extent for extent in extents]
    if -1 in sizes:
        raise TileError(f"{what}: the part of {buffer.name} has no constant shape")
    keep = [size for extent, size in zip(extents, sizes, strict=True) if extent is not None] or sizes
    scope = "shared" if buffer.scope() in ("global", "shared") else "fragment"
    part = Buffer(context(what).alloc(BufferType(tuple(keep), buffer.dtype, scope), what, name=f"{buffer.name}_part"))
    ref = x if isinstance(x, Reference) else x[(slice(None),) * x.ndim]
    copy(ref, part)
    return part, ref if write_back else None


def fill(buffer: Any, value: Any, annotations: Any = None) -> None:
    """Every element of a buffer or slice becomes `value`."""
    if isinstance(buffer, (Var,)) or (isinstance(buffer, Reference) and not buffer.is_region):
        buffer.store(value)
        return
    target, _, extents = _place("T.fill", buffer)
    builder = context("T.fill").builder
    if isinstance(buffer, Buffer) and target.scope() != "global":
        builder.insert(tile.FillOp(as_value(value, target.dtype), target.value))
        return
    sizes = tuple(extent for extent in extents if extent is not None)
    if -1 in sizes:
        raise TileError(f"T.fill: the part of {target.name} has no constant shape")
    part = Buffer(
        context("T.fill").alloc(BufferType(sizes, target.dtype, "fragment"), "T.fill", name=f"{target.name}_fill")
    )
    builder.insert(tile.FillOp(as_value(value, target.dtype), part.value))
    copy(part, buffer if isinstance(buffer, Reference) else buffer[(slice(None),) * buffer.ndim])


def clear(buffer: Any, annotations: Any = None) -> None:
    """Every element of a buffer or slice becomes 0."""
    fill(buffer, 0)


class GemmWarpPolicy(enum.Enum):
    """How a matrix product is shared among warps. Triton decides by itself; accepted and noted."""

    Square = 0
    FullRow = 1
    FullCol = 2

    def is_square(self) -> bool:
        return self is GemmWarpPolicy.Square


def _check_hints(what: str, given: Mapping[str, Any], function: Any) -> None:
    """Refuse an argument that the function does not have: it would be a misspelt one."""
    for name in given:
        known = [each for each in inspect.signature(function).parameters if each not in ("ignored", "_")]
        near = difflib.get_close_matches(name, known, 1)
        raise TileError(
            f"{what} has no argument {name!r}; "
            + (f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}")
        )


def gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    k_pack: int = 1,
    wg_wait: int = 0,
    mbar: Any = None,
    annotations: Any = None,
    **ignored: Any,
) -> None:
    """C += op(A) @ op(B), accumulated in C's element type; with clear_accum, C = op(A) @ op(B).

    A, B and C are tiles or slices of two dimensions (leading dimensions of 1 allowed). A float32 product is computed as
    tf32 on tensor cores.
    """
    ctx = context("T.gemm")
    _check_hints("T.gemm", ignored, gemm)
    for name, value in (("mbar", mbar),):
        if value is not None:
            raise TileError(f"T.gemm: {name} has no Triton form; leave it out, T.Pipelined does the waiting")
    (a, _), (b, _), (c, back) = _whole("T.gemm", A), _whole("T.gemm", B), _whole("T.gemm", C, write_back=True)
    for operand_ in (a, b, c):
        if operand_.ndim < 2 or any(dim != 1 for dim in operand_.type.shape[:-2]):
            raise TileError(f"T.gemm: {operand_.name} is {_dims(operand_)}; a matrix of two dimensions is needed")
    (m, k), (k2, n), (cm, cn) = (each.type.static_shape[-2:] for each in (a, b, c))
    m, k = (k, m) if transpose_A else (m, k)
    k2, n = (n, k2) if transpose_B else (k2, n)
    if k != k2:
        notes: list[Any] = [(f"{x.name} was allocated", x.value.op.loc) for x in (a, b) if x.value.op is not None]
        if not transpose_B and n == k and (m, k2) == (cm, cn):
            notes.append("did you mean transpose_B=True?")
        elif not transpose_A and m == k2 and (k, n) == (cm, cn):
            notes.append("did you mean transpose_A=True?")
        raise TileError(
            f"T.gemm: {a.name} is {_dims(a)} and {b.name} is {_dims(b)}: the inner sizes {k} and {k2} differ",
            notes=notes,
        )
    if (m, n) != (cm, cn):
        raise TileError(f"T.gemm: {a.name} and {b.name} give ({m}, {n}), but {c.name} is {_dims(c)}")
    fp = {x.dtype.is_float() for x in (a, b)}
    if len(fp) == 2:
        raise TileError(
            f"T.gemm: {a.name} is {a.dtype} and {b.name} is {b.dtype}; both must be floats or both integers"
        )
    constant = not isinstance(clear_accum, Expr)
    if not constant:
        from tiledsl.language.expression import select

        # A clear that depends on the device (such as `k == 0`) multiplies the accumulator by a choice of 0 or itself.
        zero = Buffer(ctx.alloc(c.type, "T.gemm", name=f"{c.name}_kept"))
        ctx.elementwise(c, zero, lambda old: select(clear_accum, 0, old))
        ctx.elementwise(zero, c, lambda old: old)
    ctx.builder.insert(
        tile.GemmOp(
            a.value, b.value, c.value,
            trans_a=bool(transpose_A), trans_b=bool(transpose_B), clear=bool(clear_accum) if constant else False,
            policy=policy.name if isinstance(policy, GemmWarpPolicy) else "Square",
        )
    )  # fmt: skip
    if back is not None:
        copy(c, back)


def _axis(what: str, buffer: Buffer, dim: Any) -> int:
    dim = plain(dim)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TileError(f"{what}: dim is {describe(dim)}, not an integer")
    if not -buffer.ndim <= dim < buffer.ndim:
        raise TileError(f"{what}: {buffer.name} is {_dims(buffer)} and has no dimension {dim}")
    return dim % buffer.ndim


def reduce(
    buffer: Any,
    out: Any,
    reduce_type: str,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    **_: Any,
) -> None:
    """Combine the elements of `buffer` along `dim` into `out`, whose shape lacks that dimension or has 1 there.

    `reduce_type` is sum, max, min, abssum, absmax, bitand, bitor or bitxor. With clear=False the old `out` takes part.
    """
    kind = reduce_type.removeprefix("bit")
    what = f"T.reduce_{reduce_type}"
    if kind not in tensor.REDUCTIONS:
        raise TileError(f"T.reduce: no reduction {reduce_type!r}")
    (source, _), (target, back) = _whole(what, buffer), _whole(what, out, write_back=True)
    axis = _axis(what, source, dim)
    shape = source.type.static_shape
    without, kept = shape[:axis] + shape[axis + 1 :], (*shape[:axis], 1, *shape[axis + 1 :])
    if target.type.static_shape not in (without or (1,), kept):
        raise TileError(f"{what}: {source.name} is {_dims(source)}, so along dimension {dim} it gives {without or (1,)}, but {target.name} is {_dims(target)}")  # fmt: skip # noqa: E501
    if source.dtype != target.dtype:
        wide = Buffer(
            context(what).alloc(BufferType(shape, target.dtype, "fragment"), what, name=f"{source.name}_cast")
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


def _named_reduction(kind: str) -> Any:
    def reduce_named(buffer: Any, out: Any, dim: int = -1, clear: bool = True, batch: int = 1, nan_propagate: bool = False, annotations: Any = None) -> None:  # fmt: skip # noqa: E501
        reduce(buffer, out, kind, dim, clear, batch, nan_propagate)

    reduce_named.__name__ = reduce_named.__qualname__ = f"reduce_{kind}"
    reduce_named.__doc__ = f"T.reduce with reduce_type={kind!r}."
    return reduce_named


reduce_sum, reduce_max, reduce_min = map(_named_reduction, ("sum", "max", "min"))
reduce_abssum, reduce_absmax = map(_named_reduction, ("abssum", "absmax"))
reduce_bitand, reduce_bitor, reduce_bitxor = map(_named_reduction, ("bitand", "bitor", "bitxor"))


def _scan(what: str, kind: str, src: Any, dst: Any, dim: int, reverse: bool) -> None:
    (source, back) = _whole(what, src, write_back=dst is None)
    target = source
    if dst is not None:
        target, back = _whole(what, dst, write_back=True)
    axis = _axis(what, source, dim)
    if source.type.shape != target.type.shape:
        raise TileError(f"{what}: {source.name} is {_dims(source)}, but {target.name} is {_dims(target)}")
    if source.dtype != target.dtype:
        raise TileError(f"{what}: {source.name} is {source.dtype}, but {target.name} is {target.dtype}")
    context(what).builder.insert(tile.ScanOp(source.value, target.value, kind=kind, axis=axis, reverse=bool(reverse)))
    if back is not None:
        copy(target, back)


def cumsum(src: Any, dst: Any = None, dim: int = 0, reverse: bool = False) -> None:
    """Inclusive prefix sums along `dim` (from the end if `reverse`) into `dst`, or in place."""
    _scan("T.cumsum", "sum", src, dst, dim, reverse)


def cummax(src: Any, dst: Any = None, dim: int = 0, reverse: bool = False) -> None:
    """Inclusive prefix maxima along `dim` (from the end if `reverse`) into `dst`, or in place."""
    _scan("T.cummax", "max", src, dst, dim, reverse)


def transpose(src: Any, dst: Any) -> None:
    """dst[j, i] = src[i, j]."""
    (a, _), (b, back) = _whole("T.transpose", src), _whole("T.transpose", dst, write_back=True)
    if a.ndim != 2 or b.type.shape != a.type.shape[::-1]:
        raise TileError(f"T.transpose: {a.name} is {_dims(a)}, {b.name} is {_dims(b)}")
    context("T.transpose").builder.insert(
        tile.CopyOp(
            a.value, [], b.value, [], shape=a.type.static_shape, source_axes=(0, 1), target_axes=(1, 0), safe_value=0.0
        )
    )
    if back is not None:
        copy(b, back)


def im2col(
    img: Any, col: Any, nhw_step: Any, c_step: Any, kernel: int, stride: int, dilation: int, pad: int, **_: Any
) -> None:  # fmt: skip
    """A tile of the matrix whose product with the flattened kernel is a convolution of an image [N, H, W, C].

    Row m of that matrix is an output position (n, oh, ow), column k a (kh, kw, c) of the window; `col`, of shape
    (BM, BK), gets rows nhw_step * BM ... and columns c_step * BK ...; positions in the padding are 0.
    """
    what = "T.im2col"
    if not isinstance(img, Buffer) or img.ndim != 4 or not isinstance(col, Buffer) or col.ndim != 2:
        raise TileError(f"{what} takes a global image [N, H, W, C] and a tile of two dimensions")
    _, height, width, channels = img.shape
    rows, columns = col.type.static_shape
    out_h = (height + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    out_w = (width + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1

    def body(indices: list[Any]) -> None:
        m, k = nhw_step * rows + indices[0], c_step * columns + indices[1]
        h = m % (out_h * out_w) // out_w * stride + k // (kernel * channels) * dilation - pad
        w = m % out_w * stride + k // channels % kernel * dilation - pad
        # Loads outside of the image give 0; a column behind the last one would otherwise wrap into the next row.
        value = select(compare("lt", k, kernel * kernel * channels), img[m // (out_h * out_w), h, w, k % channels], 0)
        col[tuple(indices)].store(value)

    context(what).parallel((rows, columns), body)


c2d_im2col = im2col


def view(src: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The same memory in another shape: of a global buffer, or of one on chip (then without a change of dtype)."""
    if not isinstance(src, Buffer):
        raise TileError(f"T.view needs a buffer, not {describe(src)}")
    dims = (
        tuple(plain(dim) for dim in (shape if isinstance(shape, Sequence) else (shape,)))
        if shape is not None
        else src.type.shape
    )
    for axis, dim in enumerate(dims):
        if isinstance(dim, bool) or not isinstance(dim, (int, Expr)) and dim not in src.type.shape:
            raise TileError(f"T.view: dimension {axis} is {describe(dim)}, not an integer")
    return context("T.view").view(src, dims, canonical(dtype) if dtype is not None else src.dtype)


def reshape(src: Any, shape: Any) -> Any:
    """The same elements in another shape (row-major); aliases the buffer."""
    return view(src, shape)


def annotate_safe_value(safe_value_map: dict[Any, Any]) -> None:
    """What T.copy reads outside of these global buffers, instead of 0."""
    for buffer, value in safe_value_map.items():
        if not isinstance(buffer, Buffer) or not is_number(value):
            raise TileError(
                f"T.annotate_safe_value takes {{buffer: number}}, not {describe(buffer)}: {describe(value)}"
            )
        context("T.annotate_safe_value").safe_values[buffer.value] = float(value)


def scalar_type(dtype: Any) -> ScalarType:
    """The IR type of one element."""
    return ScalarType(canonical(dtype))
