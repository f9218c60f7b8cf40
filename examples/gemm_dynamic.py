"""One kernel for every number of rows: M is known only when the kernel is called.

Y[M, N] = silu(X[M, K] @ W[N, K].T) in bfloat16. T.dynamic makes M an argument of the kernel, read from X's shape at
each call: the grid follows it, and rows past the end are masked. N and K stay constants, so that the masks along them
vanish where the tiles divide them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"N": 72, "K": 80, "block_M": 32, "block_N": 32, "block_K": 32, "rows": (1, 33, 70)}


@tiledsl.jit(out_idx=[-1])
def linear_silu(N, K, block_M, block_N, block_K, num_stages=3, threads=256, dtype="bfloat16"):
    M = T.dynamic("M")

    @T.prim_func
    def linear_silu(X: T.Tensor((M, K), dtype), W: T.Tensor((N, K), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            X_tile = T.alloc_shared((block_M, block_K), dtype)
            W_tile = T.alloc_shared((block_N, block_K), dtype)
            total = T.alloc_fragment((block_M, block_N), "float32")

            T.use_swizzle(panel_size=8)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(X[by * block_M, k * block_K], X_tile)
                T.copy(W[bx * block_N, k * block_K], W_tile)
                T.gemm(X_tile, W_tile, total, transpose_B=True)
            for i, j in T.Parallel(block_M, block_N):
                total[i, j] *= T.sigmoid(total[i, j])
            T.copy(total, Y[by * block_M, bx * block_N])

    return linear_silu


def reference(x, w):
    return F.silu(x @ w.T)


def main(*, N=8192, K=2048, block_M=128, block_N=256, block_K=64, rows=(2048, 5000, 8192)):
    kernel = linear_silu(N, K, block_M, block_N, block_K)
    torch.manual_seed(0)
    w = torch.randn(N, K, dtype=torch.bfloat16, device=DEVICE) / K**0.5
    worst = 0.0
    for M in rows:
        x = torch.randn(M, K, dtype=torch.bfloat16, device=DEVICE)
        # Torch rounds to bfloat16 before and after silu, we only after.
        worst = max(worst, largest_error(kernel(x, w), reference(x, w), rtol=1.6e-2, atol=1e-2))
        print_speed(
            f"silu(X @ W.T) for any M, {M} x {N} x {K}",
            lambda: kernel(x, w),
            lambda: reference(x, w),
            operations=2 * M * N * K,
        )
    return worst


if __name__ == "__main__":
    run_script(main, SMALL)
