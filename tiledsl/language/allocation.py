"""Buffers and variables of a kernel, and workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl.errors import TileError
from tiledsl.ir.types import BufferType
from tiledsl.language.buffer import Buffer, Var
from tiledsl.language.dtypes import FLOAT4, canonical, of_elements
from tiledsl.language.expression import (
    context,
    describe,
    plain,
)
from tiledsl.language.float4 import Float4Buffer
from tiledsl.language.loops import check_elements

__all__ = ["alloc_buffer", "alloc_fragment", "alloc_global", "alloc_local", "alloc_shared", "alloc_var"]


def _alloc(what: str, shape: Any, dtype: Any, scope: str) -> Any:
    dims = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    dims = tuple(map(plain, dims))
    for axis, dim in enumerate(dims):
        if isinstance(dim, bool) or not isinstance(dim, int):
            hint = "" if dim is None else "; on-chip buffers need constant shapes"
            raise TileError(f"{what}: dimension {axis} is {describe(dim)}{hint}")
        if dim <= 0:
            raise TileError(f"{what}: dimension {axis} is {dim}; dimensions are at least 1")
    if not dims and what != "T.alloc_var":
        raise TileError(f"{what}: the shape is empty; use T.alloc_var for a scalar")
    check_elements(what, dims)
    dtype = of_elements(dtype)
    if dtype is FLOAT4 and dims:
        return Float4Buffer(Buffer(context(what).alloc(BufferType(dims, "uint8", scope), what)))
    return Buffer(context(what).alloc(BufferType(dims, canonical(dtype).name, scope), what))


def alloc_shared(shape: Any, dtype: Any, scope: str = "shared.dyn") -> Any:
    """A tile of the block in shared memory, initially undefined. Triton decides where it is actually placed.

    `shape` is an integer or several, `dtype` any element type; `scope` has no effect. Raises TileError for a dimension
    that is no constant or below 1, for more than 2^20 elements, and outside of a kernel.

    Example:
        # A = ones(8, 8)
        tile = T.alloc_shared((8, 8), "float32")
        T.copy(A, tile)
        T.copy(tile, B)
        # B = ones(8, 8)
    """
    return _alloc("T.alloc_shared", shape, dtype, "shared")


def alloc_fragment(shape: Any, dtype: Any, scope: str = "local.fragment") -> Any:
    """A tile of the block in registers, initially undefined. `shape`, `dtype` and errors are T.alloc_shared's.

    Raises TileError for a dimension that is no constant or below 1, for more than 2^20 elements, and outside of a
    kernel.

    Example:
        total = T.alloc_fragment((4,), "float32")
        T.fill(total, 2.5)
        T.copy(total, Y)
        # Y = [2.5, 2.5, 2.5, 2.5]
    """
    return _alloc("T.alloc_fragment", shape, dtype, "fragment")


def alloc_local(shape: Any, dtype: Any, scope: str = "local") -> Any:
    """A small array, initially undefined; in a T.Parallel loop, each iteration has its own.

    `shape`, `dtype` are as in T.alloc_shared. Raises TileError for a dimension that is no constant or below 1, for more
    than 2^20 elements, and outside of a kernel.

    Example:
        # X = [1, 2, 3, 4]
        for i in T.Parallel(4):
            own = T.alloc_local((2,), "int32")
            own[0] = X[i]
            own[1] = own[0] * 10
            Y[i] = own[0] + own[1]
        # Y = [11, 22, 33, 44]
    """
    return _alloc("T.alloc_local", shape, dtype, "local")


def alloc_var(dtype: Any, *args: Any, scope: str = "local.var", init: Any = None) -> Var:
    """A mutable scalar of type `dtype`: `x = T.alloc_var(dtype, init)`; later `x = e` and `x += e` store.

    `init` is a number or scalar, converted to `dtype`; without it the variable is undefined. Raises TileError for a
    type that does not exist, and outside of a kernel.

    Example:
        total = T.alloc_var("int32", 0)
        for i in T.serial(5):
            total += i
        Y[0] = total
        # Y = [10]
    """
    if args and init is None and not isinstance(args[0], str):
        init = args[0]
    var = Var(_alloc("T.alloc_var", (), dtype, "local").value)
    if init is not None:
        var.store(init)
    return var


def alloc_global(shape: Any, dtype: Any, scope: str = "global") -> Buffer:
    """A workspace in global memory, allocated at each call of the program and not initialised.

    `shape` has integers of at least 0 and T.dynamic symbols; `dtype` is any element type. Raises TileError for other
    dimensions, and inside of T.Kernel.

    Example:
        @T.prim_func
        def reversed_twice(X: T.Tensor((4,), "int32"), Y: T.Tensor((4,), "int32")):
            between = T.alloc_global((4,), "int32")
            with T.Kernel(1):
                for i in T.Parallel(4):
                    between[i] = X[3 - i]
            with T.Kernel(1):
                for i in T.Parallel(4):
                    Y[i] = between[3 - i]

        x = torch.arange(4, dtype=torch.int32)
        assert tiledsl.compile(reversed_twice, out_idx=-1, target="interpret")(x).tolist() == [0, 1, 2, 3]
    """
    return context("T.alloc_global").workspace(shape, dtype)


def alloc_buffer(
    shape: Any,
    dtype: Any = "float32",
    data: Any = None,
    strides: Any = None,
    elem_offset: Any = None,
    scope: str = "global",
    align: int = -1,
    offset_factor: int = 0,
    buffer_type: str = "default",
    axis_separators: Any = None,
    annotations: Any = None,
) -> Any:
    """A buffer of `shape` and `dtype` in the given scope: global (a workspace), shared, local.fragment or local.

    data, strides and elem_offset, which would determine where the elements are, raise TileError, as do shapes that the
    scope's own function (T.alloc_global, T.alloc_shared, ...) refuses. The other keywords have no effect.

    Example:
        tile = T.alloc_buffer((4,), "int32", scope="local.fragment")
        T.fill(tile, 7)
        T.copy(tile, Y)
        # Y = [7, 7, 7, 7]
    """
    for name, value in (("data", data), ("strides", strides), ("elem_offset", elem_offset)):
        if value is not None:
            raise TileError(f"T.alloc_buffer: {name} has no Triton form; leave it out")
    if scope == "global":
        return alloc_global(shape, dtype)
    kind = "shared" if scope.startswith("shared") else "fragment" if "fragment" in scope else "local"
    return _alloc("T.alloc_buffer", shape, dtype, kind)
