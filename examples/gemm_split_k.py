"""Matrix product of few rows and a long inner dimension, cut along K, summed with atomics.

C[M, N] = A[M, K] @ B[N, K].T, float16 in and float32 out. With small M and N there are fewer output tiles than
multiprocessors, so K is cut into `splits` parts and each (tile, part) gets a block of its own. The parts of a tile are
added into C in memory. The program has two kernels, launched in order: the first sets C to zero.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 40, "N": 72, "K": 300, "block_M": 32, "block_N": 32, "block_K": 32, "splits": 3}


@tiledsl.jit(out_idx=[-1])
def matmul_split_k(M, N, K, block_M, block_N, block_K, splits, num_stages=4, threads=256, dtype="float16"):
    steps = T.ceildiv(K, block_K * splits)  # steps along K of one part; the last part may reach past K and adds zeros

    @T.prim_func
    def matmul_split_k(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            zeros = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(zeros)
            T.copy(zeros, C[by * block_M, bx * block_N])

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
            T.atomic_add(C[by * block_M, bx * block_N], total)

    return matmul_split_k


def reference(a, b):
    return a.float() @ b.float().T


def main(*, M=128, N=4096, K=16384, block_M=128, block_N=128, block_K=64, splits=4):
    kernel = matmul_split_k(M, N, K, block_M, block_N, block_K, splits)
    torch.manual_seed(0)
    a = torch.randn(M, K, dtype=torch.float16, device=DEVICE)
    b = torch.randn(N, K, dtype=torch.float16, device=DEVICE)

    # Products of float16 are exact in float32, so all of the difference is the order of K float32 additions, which the
    # atomics change from run to run.
    error = largest_error(kernel(a, b), reference(a, b), rtol=1e-3, atol=1e-5 * K)
    # For speed, torch too may use float16 tensor cores; it then rounds to float16 before the conversion.
    print_speed(
        f"A @ B.T in {splits} parts, {M} x {N} x {K}",
        lambda: kernel(a, b),
        lambda: (a @ b.T).float(),
        operations=2 * M * N * K,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
