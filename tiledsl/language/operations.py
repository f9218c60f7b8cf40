"""Tile operations: copy, fill, gemm, views."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from tiledsl.dialects import scf, tile
from tiledsl.errors import TileError, brief
from tiledsl.ir.core import Region
from tiledsl.ir.types import INT32, BufferType
from tiledsl.language.buffer import Buffer, Reference, Var
from tiledsl.language.expression import (
    Expr,
    Scalar,
    as_index,
    as_value,
    binary,
    compare,
    context,
    describe,
    is_number,
    logical,
    select,
)
from tiledsl.language.float4 import Float4Buffer, Float4Reference, copy_float4, fill_float4, is_float4
from tiledsl.language.loops import check_elements
from tiledsl.language.regions import INNER, element, pair, region_of, shape_text
from tiledsl.legality import verdict

__all__ = [
    "GemmWarpPolicy", "annotate_safe_value", "c2d_im2col", "clear", "copy", "fill", "gemm", "im2col", "reshape",
    "transpose", "view",
]  # fmt: skip


_EVICTIONS = {"evict_normal": "", "evict_first": "evict_first", "evict_last": "evict_last"}


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
    """Copy `src` to `dst`, converting element types. Both are buffers, slices, or places given by a single index.

    Two whole buffers have equal shapes. Slices are matched by their extents other than 1, in order; a place takes its
    extents from the other side, aligned at the right. The tile is as large as the side that is nearest to the registers
    says. Outside of a global buffer, reads give 0 (or T.annotate_safe_value's number) and writes are dropped.
    eviction_policy, "evict_first", "evict_last" or "evict_normal", is how long the cache keeps what goes through
    pointers; TMA copies have none. The other keywords are hints for other compilers and have no effect. Raises
    TileError for another policy, where shapes do not match, where a dimension of one side has no counterpart, and for a
    variable (T.alloc_var) against a tile.

    Example:
        # A = arange(32.0).reshape(4, 8)
        tile = T.alloc_shared((4, 4), "float32")
        T.copy(A[0, 4], tile)  # the tile that begins there
        T.copy(tile, B[:, 0:4])
        # B = A[:, 4:]
    """
    if eviction_policy not in (None, *_EVICTIONS):
        raise TileError(
            f"T.copy: no eviction policy {brief(eviction_policy)}", notes=[f"there are {', '.join(_EVICTIONS)}"]
        )
    if is_float4(src) or is_float4(dst):
        copy_float4(src, dst, copy)
        return
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
    shape, source_axes, target_axes = pair("T.copy", src, dst)
    ctx = context("T.copy")
    a, a_offsets = _place(src)
    b, b_offsets = _place(dst)
    if ctx.is_of_thread(a, b):
        ctx.parallel(shape, lambda at: element(dst, target_axes, at).store(element(src, source_axes, at)))
        return
    ctx.builder.insert(
        tile.CopyOp(
            a.value, a_offsets, b.value, b_offsets, shape=shape, source_axes=source_axes, target_axes=target_axes,
            safe_value=ctx.safe_value(a), eviction=_EVICTIONS[eviction_policy or "evict_normal"],
        )
    )  # fmt: skip


def _ragged(src: Any, dst: Any) -> list[tuple[int, int]]:
    """The pairs of axes along which two slices extend, if both extents are dynamic along one of them; else []."""
    if not isinstance(src, Reference) or not isinstance(dst, Reference):
        return []
    ours, theirs = (
        [axis for axis, extent in enumerate(each.extents) if extent not in (None, 1)] for each in (src, dst)
    )
    pairs = list(zip(ours, theirs, strict=False))
    both = any(src.extents[a] == dst.extents[b] == -1 for a, b in pairs)
    return pairs if both and len(ours) == len(theirs) else []


def _copy_ragged(src: Reference, dst: Reference, pairs: list[tuple[int, int]]) -> None:
    """Copy between slices of dynamic extents: loop over the capacity of the on-chip buffer, with a mask."""
    chip = 0 if INNER[src.buffer.scope()] >= INNER[dst.buffer.scope()] else 1
    shape: list[int] = []
    for both in pairs:
        fixed = [each.extents[axis] for each, axis in zip((src, dst), both, strict=True) if each.extents[axis] != -1]
        dim = fixed[0] if fixed else (src, dst)[chip].buffer.type.shape[both[chip]]
        if not isinstance(dim, int):
            raise TileError(
                f"T.copy: the extent of dimension {both[0]} of {src.name} is not constant on either side",
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
        for number, both in enumerate(pairs):
            for side, (each, axis) in enumerate(zip((src, dst), both, strict=True)):
                at[side][axis] = each.offsets[axis] + indices[number]
                if each.extents[axis] == -1:
                    condition = logical("and", condition, compare("lt", at[side][axis], each.ends[axis]))
                    if side == chip and isinstance(each.offsets[axis], Expr):
                        dim = each.buffer.shape[axis]
                        condition = logical("and", condition, compare("lt", at[side][axis], dim))
        store = lambda: dst.buffer[tuple(at[1])].store(src.buffer[tuple(at[0])])  # noqa: E731
        ctx.branch(as_value(condition, "bool"), store)

    ctx.parallel(shape, body)


def _place(x: Any) -> tuple[Buffer, list[Any]]:
    """The buffer of a buffer or reference, and the position in it: IR values, or none for its beginning."""
    return (x, []) if isinstance(x, Buffer) else (x.buffer, _offsets(x.offsets))


def _offsets(offsets: list[Any]) -> list[Any]:
    if not [offset for offset in offsets if not isinstance(offset, int) or offset != 0]:
        return []
    return [as_index(offset) for offset in offsets]


def whole(
    what: str, x: Any, *, write_back: bool = False, indexed: bool = True, read: bool = True
) -> tuple[Buffer, Any]:
    """An on-chip buffer with what `x` names: itself, or a copy of the slice; and where to copy it back, or None.

    A dimension with a single index counts as one of 1, unless not `indexed`. What is there is not copied unless `read`.
    """
    if isinstance(x, Buffer) and x.scope() != "global":
        return x, None
    buffer, _, extents = region_of(what, x)
    if isinstance(x, Reference) and not x.is_region and not write_back:
        raise TileError(
            f"{what}: {buffer.name}[...] is one element, a tile is needed; pass a slice or the whole buffer"
        )
    sizes = tuple(1 if extent is None else extent for extent in extents if indexed or extent is not None)
    if -1 in sizes:
        raise TileError(f"{what}: the part of {buffer.name} has no constant shape")
    scope = "shared" if buffer.scope() in ("global", "shared") else "fragment"
    type = BufferType(sizes or (1,), buffer.type.dtype, scope)
    part = Buffer(context(what).alloc(type, what, name=f"{buffer.name}_part"))
    ref = x if isinstance(x, Reference) else x[(slice(None),) * x.ndim]
    if read:
        copy(ref, part)
    return part, ref if write_back else None


def _matrix(what: str, x: Any, *, write_back: bool = False, read: bool = True) -> tuple[Buffer, Any]:
    """An on-chip matrix with what `x` names, as whole; dimensions with a single index count where they are needed."""
    indexed = isinstance(x, Reference) and all(extent in (None, 1) for extent in x.extents[:-2])
    return whole(what, x, write_back=write_back, indexed=indexed, read=read)


def fill(buffer: Any, value: Any, annotations: Any = None) -> None:
    """Every element of `buffer`, a buffer or slice of any shape, becomes `value`, a scalar converted to its type.

    Raises TileError for a whole buffer whose shape is not constant, and where `value` is no number or expression.

    Example:
        tile = T.alloc_fragment((2, 2), "int32")
        T.fill(tile, 7)
        T.fill(tile[0, :], 8)
        T.copy(tile, Y)
        # Y = [[8, 8], [7, 7]]
    """
    if isinstance(buffer, (Float4Buffer, Float4Reference)):
        fill_float4(buffer, value)
        return
    if isinstance(buffer, (Var,)) or (isinstance(buffer, Reference) and not buffer.is_region):
        buffer.store(value)
        return
    target, _, extents = region_of("T.fill", buffer)
    builder, of_thread = context("T.fill").builder, context("T.fill").is_of_thread(target)
    if isinstance(buffer, Buffer) and target.scope() != "global" and not (of_thread and isinstance(value, Expr)):
        builder.insert(tile.FillOp(as_value(value, target.dtype), target.value))
        return
    sizes = tuple(extent for extent in extents if extent is not None)
    if -1 in sizes and isinstance(buffer, Reference):
        _fill_ragged(buffer, value)
        return
    if -1 in sizes:
        raise TileError(f"T.fill: {target.name} has no constant shape", notes=["fill it in a T.Parallel loop"])
    if of_thread:
        axes = tuple(axis for axis, extent in enumerate(extents) if extent is not None)
        context("T.fill").parallel(sizes, lambda at: element(buffer, axes, at).store(value))
        return
    part = Buffer(
        context("T.fill").alloc(BufferType(sizes, target.type.dtype, "fragment"), "T.fill", name=f"{target.name}_fill")
    )
    builder.insert(tile.FillOp(as_value(value, target.dtype), part.value))
    copy(part, buffer if isinstance(buffer, Reference) else buffer[(slice(None),) * buffer.ndim])


_CHUNK = 256  # elements of a slice of unknown extent that are filled at once


def _fill_ragged(target: Reference, value: Any) -> None:
    """Fill a slice of dynamic extents: loop over the capacity of the buffer, with a mask.

    Along dimensions of unknown size it goes in chunks.
    """
    axes = [axis for axis, extent in enumerate(target.extents) if extent is not None]
    dims = [target.buffer.type.shape[axis] if target.extents[axis] == -1 else target.extents[axis] for axis in axes]
    chunked = [axis for axis, dim in zip(axes, dims, strict=True) if not isinstance(dim, int)]
    shape = [
        dim if isinstance(dim, int) else _CHUNK if axis == chunked[-1] else 1
        for axis, dim in zip(axes, dims, strict=True)
    ]
    check_elements("T.fill", shape)
    ctx = context("T.fill")
    value = value if is_number(value) else Scalar(as_value(value, target.dtype))

    def chunks(axes_left: list[int], starts: list[Any]) -> None:
        if not axes_left:
            ctx.parallel(shape, lambda indices: body(starts, indices))
            return
        axis = axes_left[0]
        stop = binary("min", target.ends[axis], target.buffer.shape[axis])
        bounds = [as_value(each, "int32") for each in (starts[axis], stop, shape[axes.index(axis)])]
        region = Region([INT32])
        with ctx.inside(region):
            chunks(axes_left[1:], [*starts[:axis], Scalar(region.args[0]), *starts[axis + 1 :]])
        scf.yielding(region)
        ctx.builder.insert(scf.ForOp(*bounds, [], regions=[region]))

    def body(starts: list[Any], indices: list[Any]) -> None:
        condition: Any = True
        at = list(starts)
        for axis, index in zip(axes, indices, strict=True):
            at[axis] = at[axis] + index
            if target.extents[axis] == -1:
                condition = logical("and", condition, compare("lt", at[axis], target.ends[axis]))
                condition = logical("and", condition, compare("lt", at[axis], target.buffer.shape[axis]))
        ctx.branch(as_value(condition, "bool"), lambda: target.buffer[tuple(at)].store(value))

    chunks(chunked, list(target.offsets))


def clear(buffer: Any, annotations: Any = None) -> None:
    """Every element of a buffer or slice of any shape and type becomes 0. Raises TileError as T.fill does.

    Example:
        tile = T.alloc_fragment((4,), "float32")
        T.clear(tile)
        T.copy(tile, Y)
        # Y = zeros(4)
    """
    fill(buffer, 0)


class GemmWarpPolicy(enum.Enum):
    """How T.gemm's product of two tiles is divided among warps. Accepted and logged; Triton decides by itself.

    Example:
        assert T.GemmWarpPolicy.Square.is_square() and not T.GemmWarpPolicy.FullRow.is_square()
    """

    Square = 0
    FullRow = 1
    FullCol = 2

    def is_square(self) -> bool:
        return self is GemmWarpPolicy.Square


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
) -> None:
    """C += op(A) @ op(B), accumulated in C's element type; with clear_accum, C = op(A) @ op(B).

    op(A) is (M, K), op(B) is (K, N) and C is (M, N): tiles or slices, with leading dimensions of 1 allowed.
    `transpose_A` and `transpose_B` say that A is (K, M) and B is (N, K). A and B are both floats, of any two types, or
    both integers of up to 32 bits or bool, which are multiplied exactly. A float32 product is computed as tf32 on
    tensor cores. `clear_accum` may be a scalar of the device. policy, k_pack and wg_wait have no effect. Raises
    TileError where shapes do not match, for other element types (tiledsl/legality.py), and for an mbar.

    Example:
        # A = arange(256.0).reshape(16, 16).half() / 256
        # B = eye(16).half()
        a, b = T.alloc_shared((16, 16), "float16"), T.alloc_shared((16, 16), "float16")
        c = T.alloc_fragment((16, 16), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(c)
        T.gemm(a, b, c, transpose_A=True)
        T.copy(c, C)
        # C = A.T.float()
    """
    ctx = context("T.gemm")
    if mbar is not None:
        raise TileError("T.gemm: mbar has no Triton form; leave it out, T.Pipelined does the waiting")
    constant = not isinstance(clear_accum, Expr)
    (a, _), (b, _) = _matrix("T.gemm", A), _matrix("T.gemm", B)
    c, back = _matrix("T.gemm", C, write_back=True, read=not constant or not clear_accum)
    for operand_ in (a, b, c):
        if operand_.ndim < 2 or {*operand_.type.shape[:-2]} - {1}:
            raise TileError(
                f"T.gemm: {operand_.name} is {shape_text(operand_)}; a matrix of two dimensions is needed",
                code="tile-shapes",
            )
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
            f"T.gemm: {a.name} is {shape_text(a)} and {b.name} is {shape_text(b)}: the inner sizes {k} and {k2} differ",
            notes=notes,
            code="tile-shapes",
        )
    if (m, n) != (cm, cn):
        raise TileError(
            f"T.gemm: {a.name} and {b.name} give ({m}, {n}), but {c.name} is {shape_text(c)}", code="tile-shapes"
        )
    types = a.dtype.name, b.dtype.name, c.dtype.name
    legal = verdict("dot", types)
    if legal.is_refused:
        raise TileError(
            f"T.gemm: {a.name} is {a.dtype} and {b.name} is {b.dtype}; {legal.reason.format(*types)}",
            notes=legal.notes(types),
        )
    if not constant:
        # A clear that depends on the device (such as `k == 0`) multiplies the accumulator by a choice of 0 or itself.
        ctx.elementwise(c, c, lambda old: select(clear_accum, 0, old))
    ctx.builder.insert(
        tile.GemmOp(
            a.value, b.value, c.value,
            trans_a=bool(transpose_A), trans_b=bool(transpose_B), clear=bool(clear_accum) if constant else False,
            policy=policy.name if isinstance(policy, GemmWarpPolicy) else "Square",
        )
    )  # fmt: skip
    if back is not None:
        copy(c, back)


def transpose(src: Any, dst: Any) -> None:
    """dst[j, i] = src[i, j], converted to `dst`'s element type: `src` is (M, N) and `dst` is (N, M).

    Raises TileError for other shapes.

    Example:
        # X = arange(6.0).reshape(2, 3)
        x, y = T.alloc_shared((2, 3), "float32"), T.alloc_shared((3, 2), "float32")
        T.copy(X, x)
        T.transpose(x, y)
        T.copy(y, Y)
        # Y = X.T
    """
    a, _ = whole("T.transpose", src, indexed=False)
    b, back = whole("T.transpose", dst, write_back=True, indexed=False, read=False)
    if a.ndim != 2 or b.type.shape != a.type.shape[::-1]:
        raise TileError(f"T.transpose: {a.name} is {shape_text(a)}, {b.name} is {shape_text(b)}", code="tile-shapes")
    context("T.transpose").builder.insert(
        tile.CopyOp(
            a.value, [], b.value, [], shape=a.type.static_shape, source_axes=(0, 1), target_axes=(1, 0), safe_value=0.0
        )
    )
    if back is not None:
        copy(b, back)


def im2col(
    img: Any, col: Any, nhw_step: Any, c_step: Any, kernel: int, stride: int, dilation: int, pad: int,
    eviction_policy: str | None = None, annotations: Any = None,
) -> None:  # fmt: skip
    """A tile of the matrix whose product with the flattened kernel is a convolution of an image [N, H, W, C].

    Row m of that matrix is an output position (n, oh, ow); column k is an element (kh, kw, c) of the window. `col`, of
    shape (BM, BK), receives the rows from nhw_step * BM and the columns from c_step * BK of `img`, converted to its
    element type; positions in the padding are 0. `kernel`, `stride`, `dilation` and `pad` are integers, the same for
    both directions. Raises TileError unless `img` has four dimensions and `col` two.

    Example:
        # X = arange(16.0).reshape(1, 4, 4, 1)
        columns = T.alloc_fragment((4, 9), "float32")
        T.im2col(X, columns, 0, 0, kernel=3, stride=1, dilation=1, pad=0)
        T.copy(columns, Y)
        # Y = nn.functional.unfold(X.reshape(1, 1, 4, 4), 3)[0].T
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
    """The memory of `src`, a buffer, in another shape, or as elements of another dtype, little-endian.

    `shape` has as many bytes as `src`, row-major; without one it stays. Dimensions of a view of global memory may be
    computed from T.dynamic symbols and scalar parameters. Raises TileError for another size, as far as it is known, for
    other dimensions, and on chip for bool as another `dtype`.

    Example:
        # X = [1.0, -2.0]
        bits = T.view(X, dtype="int32")
        T.copy(bits, Y)
        # Y = [1065353216, -1073741824]
    """
    return context("T.view").view(src, shape, dtype)


def reshape(src: Any, shape: Any) -> Any:
    """The same elements of `src` in another `shape` (row-major); aliases the buffer. Raises TileError as T.view.

    Example:
        # X = [1, 2, 3, 4]
        square = T.reshape(X, (2, 2))
        T.copy(square, Y)
        # Y = [[1, 2], [3, 4]]
    """
    return view(src, shape)


def annotate_safe_value(safe_value_map: dict[Any, Any]) -> None:
    """The values that are read outside of these global buffers, and of views of them, instead of 0: {buffer: number}.

    It holds in the kernel that it stands in. `safe_value_map` with anything else raises TileError.

    Example:
        # X = [1.0, 2.0]
        T.annotate_safe_value({X: -1.0})
        x = T.alloc_fragment((4,), "float32")
        T.copy(X[0], x)
        T.copy(x, Y)
        # Y = [1.0, 2.0, -1.0, -1.0]
    """
    if not isinstance(safe_value_map, Mapping):
        raise TileError(f"T.annotate_safe_value takes {{buffer: number}}, not {describe(safe_value_map)}")
    for buffer, value in safe_value_map.items():
        if not isinstance(buffer, Buffer) or not is_number(value):
            raise TileError(
                f"T.annotate_safe_value takes {{buffer: number}}, not {describe(buffer)}: {describe(value)}"
            )
        context("T.annotate_safe_value").set_safe_value(buffer, float(value))
