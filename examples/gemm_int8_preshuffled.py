"""An int8 product with weights that lie in memory in the order in which the kernel reads them.

C[M, N] = (A[M, K] @ W[N, K].T) * row_scales[M, 1] * column_scales[N]. `shuffled` cuts W into pieces of 16 rows and 16
columns, once, when a checkpoint is loaded: W[n, k] lies at [n // 16, k // 32, k % 32 // 16, n % 16, k % 16], so that
each piece is 256 bytes in a row.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 21, "N": 48, "K": 96, "block_M": 16, "block_N": 32, "block_K": 32}


def shuffled(w):
    """W[N, K] as [N / 16, K / 32, 2, 16, 16]."""
    N, K = w.shape
    return w.view(N // 16, 16, K // 32, 2, 16).permute(0, 2, 3, 1, 4).contiguous()


@tiledsl.jit(out_idx=[-1])
def gemm_int8_preshuffled(M, N, K, block_M, block_N, block_K, num_stages=3, threads=128, out_dtype="bfloat16"):
    @T.prim_func
    def gemm_int8_preshuffled(
        A: T.Tensor((M, K), "int8"),
        W: T.Tensor((N // 16, K // 32, 2, 16, 16), "int8"),
        row_scales: T.Tensor((M,), "float32"),
        column_scales: T.Tensor((N,), "float32"),
        C: T.Tensor((M, N), out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), "int8")
            pieces = T.alloc_shared((block_N // 16, block_K // 32, 2, 16, 16), "int8")
            W_tile = T.alloc_shared((block_N, block_K), "int8")
            sums = T.alloc_fragment((block_M, block_N), "int32")
            T.clear(sums)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(W[bx * (block_N // 16), k * (block_K // 32), 0, 0, 0], pieces)
                for i, j in T.Parallel(block_N, block_K):
                    W_tile[i, j] = pieces[i // 16, j // 32, j % 32 // 16, i % 16, j % 16]
                T.gemm(A_tile, W_tile, sums, transpose_B=True)
            for i, j in T.Parallel(block_M, block_N):
                if by * block_M + i < M and bx * block_N + j < N:
                    scale = row_scales[by * block_M + i] * column_scales[bx * block_N + j]
                    C[by * block_M + i, bx * block_N + j] = sums[i, j] * scale

    return gemm_int8_preshuffled


def reference(a, w, row_scales, column_scales):
    return ((a.double() @ w.double().T) * row_scales[:, None] * column_scales).to(torch.bfloat16)


def main(*, M=512, N=4096, K=4096, block_M=64, block_N=128, block_K=128):
    kernel = gemm_int8_preshuffled(M, N, K, block_M, block_N, block_K)
    torch.manual_seed(0)
    a, w = (torch.randint(-128, 128, (rows, K), dtype=torch.int8, device=DEVICE) for rows in (M, N))
    row_scales, column_scales = (torch.rand(rows, device=DEVICE) / 1000 for rows in (M, N))
    pieces = shuffled(w)

    # The sums are exact; the two scales are multiplied in another order before the one rounding to bfloat16.
    expected = reference(a, w, row_scales, column_scales)
    error = largest_error(kernel(a, pieces, row_scales, column_scales), expected, rtol=1e-2, atol=1e-6)
    print_speed(
        f"int8 product of preshuffled weights, {M} x {N} x {K}",
        lambda: kernel(a, pieces, row_scales, column_scales),
        lambda: reference(a, w, row_scales, column_scales),
        operations=2 * M * N * K,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
