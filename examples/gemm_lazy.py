"""Matrix product with a ReLU, in the lazy style: a builder takes sizes and tiles and returns the program.

C[M, N] = relu(A[M, K] @ B[N, K].T) in float16. A block computes one (block_M, block_N) tile of C: it walks along K in
steps of block_K, keeps the sum in float32 in registers, and applies the ReLU before it rounds and stores. The loads of
the next steps run while the tensor cores work on the present one (T.Pipelined).
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 100, "N": 72, "K": 88, "block_M": 32, "block_N": 32, "block_K": 32}


@tiledsl.jit(out_idx=[-1])
def matmul_relu(M, N, K, block_M, block_N, block_K, num_stages=3, threads=256, dtype="float16"):
    @T.prim_func
    def matmul_relu(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_N, block_K), dtype)
            total = T.alloc_fragment((block_M, block_N), "float32")

            T.use_swizzle(panel_size=8)  # neighbouring blocks share rows of A or B while these are in the L2 cache
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                # Only where the copy starts is said; its extent is the tile's. Outside of A and B it reads zeros.
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[bx * block_N, k * block_K], B_tile)
                T.gemm(A_tile, B_tile, total, transpose_B=True)
            for i, j in T.Parallel(block_M, block_N):
                total[i, j] = T.max(total[i, j], 0)
            T.copy(total, C[by * block_M, bx * block_N])

    return matmul_relu


def reference(a, b):
    return torch.relu(a @ b.T)


def main(*, M=8192, N=8192, K=2048, block_M=128, block_N=256, block_K=64):
    kernel = matmul_relu(M, N, K, block_M, block_N, block_K)
    torch.manual_seed(0)
    a = torch.randn(M, K, dtype=torch.float16, device=DEVICE)
    b = torch.randn(N, K, dtype=torch.float16, device=DEVICE)

    # Both sum in float32 and round once; what differs is the order of the sums, about one float16 step.
    error = largest_error(kernel(a, b), reference(a, b), rtol=2e-3, atol=2e-2)
    print_speed(
        f"relu(A @ B.T), {M} x {N} x {K}", lambda: kernel(a, b), lambda: reference(a, b), operations=2 * M * N * K
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
