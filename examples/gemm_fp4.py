"""Matrix product of float16 with float4 (e2m1) weights, dequantised on the way, accumulated in float32, float16 out.

C[M, N] = A[M, K] @ (B[N, K] * scales[N, K / 32]).T. Weights take half a byte each: B is a torch tensor of uint8
[N, K / 2], whose lower bits are the first of two elements, and each 32 of a row share a scale. What a tile of them is
in float16 is computed in registers, beside the product.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 40, "N": 72, "K": 192, "block_M": 32, "block_N": 32, "block_K": 64}
GROUP = 32
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@tiledsl.jit(out_idx=[-1])
def matmul_fp4(M, N, K, block_M, block_N, block_K, num_stages=3, threads=256):
    @T.prim_func
    def matmul_fp4(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float4_e2m1fn"),
        scales: T.Tensor((N, K // GROUP), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), "float16")
            packed = T.alloc_shared((block_N, block_K), "float4_e2m1fn")
            B_tile = T.alloc_fragment((block_N, block_K), "float16")
            total = T.alloc_fragment((block_M, block_N), "float32")

            T.use_swizzle(panel_size=8)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[bx * block_N, k * block_K], packed)
                for i, j in T.Parallel(block_N, block_K):
                    B_tile[i, j] = packed[i, j] * scales[bx * block_N + i, (k * block_K + j) // GROUP]
                T.gemm(A_tile, B_tile, total, transpose_B=True)
            T.copy(total, C[by * block_M, bx * block_N])

    return matmul_fp4


def dequantised(b, scales):
    values = torch.tensor([*VALUES, *(-value for value in VALUES)], dtype=torch.float16, device=b.device)
    codes = torch.stack([b & 15, b >> 4], dim=-1).flatten(1)
    return values[codes.long()] * scales.repeat_interleave(GROUP, dim=1)


def reference(a, b, scales):
    return a @ dequantised(b, scales).T


def main(*, M=4096, N=8192, K=4096, block_M=128, block_N=128, block_K=64):
    kernel = matmul_fp4(M, N, K, block_M, block_N, block_K)
    torch.manual_seed(0)
    a = torch.randn(M, K, device=DEVICE, dtype=torch.float16)
    b = torch.randint(0, 256, (N, K // 2), device=DEVICE, dtype=torch.uint8)
    scales = (torch.rand(N, K // GROUP, device=DEVICE) * K**-0.5).half()

    # The same float16 operands; sums in another order, rounded once to float16.
    error = largest_error(kernel(a, b, scales), reference(a, b, scales), rtol=2e-3, atol=4e-3)
    print_speed(
        f"float16 A @ e2m1 B.T, {M} x {N} x {K}",
        lambda: kernel(a, b, scales),
        lambda: reference(a, b, scales),
        operations=2 * M * N * K,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
