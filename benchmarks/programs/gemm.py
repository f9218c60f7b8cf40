"""C[M, N] = A[M, K] @ B[N, K].T, plain or cut along K, without an epilogue."""

from __future__ import annotations

import tiledsl
import tiledsl.language as T


@tiledsl.jit(out_idx=[-1])
def matmul(
    M, N, K, block_M, block_N, block_K, num_stages=3, threads=256, splits=1, panel=8, dtype="float16", out_dtype=None
):
    """splits: parts along K, each summed by a block of its own into a workspace; a second kernel adds them in order.
    out_dtype: the result's; None: as the factors'."""
    out_dtype = out_dtype or dtype
    steps = T.ceildiv(K, block_K * splits)

    @T.prim_func
    def matmul(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), out_dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_N, block_K), dtype)
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(panel_size=panel)
            T.clear(total)
            for k in T.Pipelined(steps, num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[bx * block_N, k * block_K], B_tile)
                T.gemm(A_tile, B_tile, total, transpose_B=True)
            T.copy(total, C[by * block_M, bx * block_N])

    @T.prim_func
    def matmul_split(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), out_dtype)):
        parts = T.alloc_global((splits, M, N), "float32")
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), splits, threads=threads) as (bx, by, part):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_N, block_K), dtype)
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(total)
            for step in T.Pipelined(steps, num_stages=num_stages):
                k = (part * steps + step) * block_K
                T.copy(A[by * block_M, k], A_tile)
                T.copy(B[bx * block_N, k], B_tile)
                T.gemm(A_tile, B_tile, total, transpose_B=True)
            T.copy(total, parts[part, by * block_M, bx * block_N])

        with T.Kernel(T.ceildiv(N, 256), M, threads=64) as (bx, row):
            total = T.alloc_fragment((256,), "float32")
            T.clear(total)
            for part in T.serial(splits):
                for j in T.Parallel(256):
                    total[j] += parts[part, row, bx * 256 + j]
            T.copy(total, C[row, bx * 256])

    return matmul if splits == 1 else matmul_split
