"""The matrix product of examples/gemm_lazy.py under tilelang.autotune. Needs TileLang.

What the function mentions is global, and its annotations are values: TileLang's tuner refuses a function whose closure
has more than numbers and texts.
"""

# mypy: ignore-errors

from collections.abc import Sequence
from typing import Any

import tilelang
import tilelang.language as T


def tuned_builder(configs: Sequence[dict[str, Any]]) -> Any:
    """The builder; called with M, N, K it tunes and returns the best kernel."""

    @tilelang.autotune(configs=list(configs))
    @tilelang.jit(out_idx=[-1])
    def matmul_relu(M, N, K, block_M=None, block_N=None, block_K=None, num_stages=None, threads=None):
        @T.prim_func
        def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
            with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
                A_tile = T.alloc_shared((block_M, block_K), "float16")
                B_tile = T.alloc_shared((block_N, block_K), "float16")
                total = T.alloc_fragment((block_M, block_N), "float32")
                T.use_swizzle(panel_size=8)
                T.clear(total)
                for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                    T.copy(A[by * block_M, k * block_K], A_tile)
                    T.copy(B[bx * block_N, k * block_K], B_tile)
                    T.gemm(A_tile, B_tile, total, transpose_B=True)
                for i, j in T.Parallel(block_M, block_N):
                    total[i, j] = T.max(total[i, j], 0)
                T.copy(total, C[by * block_M, bx * block_N])

        return main

    return matmul_relu
