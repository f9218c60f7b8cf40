"""Builders that the tuner's tests tune."""

from __future__ import annotations

from typing import Any

import tiledsl
import tiledsl.language as T

SIZE = 64


@T.macro
def scale_block(A, B, bx, block, factor):
    """Block bx of B: A's times a factor."""
    x = T.alloc_fragment((block,), A.dtype)
    T.copy(A[bx * block], x)
    for i in T.Parallel(block):
        x[i] = x[i] * factor
    T.copy(x, B[bx * block])


def scale_builder(block: int | None = None, factor: float = 2.0, variant: str = "right", size: int = SIZE) -> Any:
    """B = 2 * A. `variant` makes configurations that are wrong in some way."""
    if variant == "raises":
        raise ValueError(f"no block of {block}")
    if variant == "refused":
        block = 48 // (block - block)  # type: ignore[operator]  (a division by zero in the builder)

    written = {"unwritten": 0, "half": 1}.get(variant, size)  # blocks

    @T.prim_func
    def scale(A: T.Tensor((size,), "float32"), B: T.Tensor((size,), "float32")):
        with T.Kernel(T.ceildiv(size, block), threads=128) as bx:
            if bx < written:
                scale_block(A, B, bx, block, factor)

    return scale


def gemm_builder(block: int = 64, stages: int = 2, size: int = 256) -> Any:
    """C = A @ B."""

    @T.prim_func
    def gemm(
        A: T.Tensor((size, size), "float16"), B: T.Tensor((size, size), "float16"), C: T.Tensor((size, size), "float16")
    ):
        with T.Kernel(T.ceildiv(size, block), T.ceildiv(size, block), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block, 64), "float16")
            B_shared = T.alloc_shared((64, block), "float16")
            C_local = T.alloc_fragment((block, block), "float32")
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(size, 64), num_stages=stages):
                T.copy(A[by * block, k * 64], A_shared)
                T.copy(B[k * 64, bx * block], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block, bx * block])

    return gemm


def twice(A: Any) -> Any:
    return A * 2


def scale_program(size: int, block: int, dtype: Any = "float32", factor: float = 2.0) -> Any:
    """B = A * factor, without variants."""

    @T.prim_func
    def scale(A: T.Tensor((size,), dtype), B: T.Tensor((size,), dtype)):
        with T.Kernel(T.ceildiv(size, block), threads=128) as bx:
            scale_block(A, B, bx, block, factor)

    return scale


@tiledsl.jit
def eager_scale(A, factor=2.0, block=None):
    """The same in the eager style."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
        scale_block(A, B, bx, block, factor)
    return B


def doubled(rows: int, tile: int = 16) -> Any:
    """Y = X * 2 for rows of 64 elements."""

    @T.prim_func
    def doubled(X: T.Tensor((rows, 64), "float32"), Y: T.Tensor((rows, 64), "float32")):
        with T.Kernel(T.ceildiv(rows, tile), threads=128) as by:
            for i, j in T.Parallel(tile, 64):
                Y[by * tile + i, j] = X[by * tile + i, j] * 2

    return doubled
