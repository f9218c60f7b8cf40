"""Matrix product of float8 (e4m3) matrices, accumulated in float32, bfloat16 out.

C[M, N] = scale * A[M, K] @ B[N, K].T. Tiled as gemm_lazy.py, with twice the depth block_K, since an element takes half
the room. Hopper's float8 tensor cores want both operands with K contiguous, which [N, K] weights have.

Torch's `@` does not take float8, so the reference converts to bfloat16, which holds every e4m3 value exactly. (The
library call for float8 is torch._scaled_mm, which has rules of its own for shapes and scales.)
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 70, "N": 100, "K": 144, "block_M": 32, "block_N": 32, "block_K": 64}


@tiledsl.jit(out_idx=[-1])
def matmul_fp8(M, N, K, scale, block_M, block_N, block_K, num_stages=3, threads=256):
    @T.prim_func
    def matmul_fp8(
        A: T.Tensor((M, K), "float8_e4m3fn"),
        B: T.Tensor((N, K), "float8_e4m3fn"),
        C: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), "float8_e4m3fn")
            B_tile = T.alloc_shared((block_N, block_K), "float8_e4m3fn")
            total = T.alloc_fragment((block_M, block_N), "float32")

            T.use_swizzle(panel_size=8)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[bx * block_N, k * block_K], B_tile)
                T.gemm(A_tile, B_tile, total, transpose_B=True)
            for i, j in T.Parallel(block_M, block_N):
                total[i, j] *= scale
            T.copy(total, C[by * block_M, bx * block_N])

    return matmul_fp8


def reference(a, b, scale):
    return (a.to(torch.bfloat16) @ b.to(torch.bfloat16).T) * scale


def main(*, M=8192, N=8192, K=4096, block_M=128, block_N=256, block_K=128):
    scale = K**-0.5  # the result is then of unit variance
    kernel = matmul_fp8(M, N, K, scale, block_M, block_N, block_K)
    torch.manual_seed(0)
    a = torch.randn(M, K, device=DEVICE).to(torch.float8_e4m3fn)
    b = torch.randn(N, K, device=DEVICE).to(torch.float8_e4m3fn)

    # Two bfloat16 roundings in the reference against one, and Hopper's float8 tensor cores keep 14 bits of a sum.
    error = largest_error(kernel(a, b), reference(a, b, scale), rtol=1.6e-2, atol=2e-2)
    print_speed(
        f"e4m3 A @ B.T, {M} x {N} x {K}",
        lambda: kernel(a, b),
        lambda: reference(a, b, scale),
        operations=2 * M * N * K,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
