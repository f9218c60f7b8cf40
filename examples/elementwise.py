"""Fused multiply-add over a matrix, with a row vector broadcast over its rows.

out[M, N] = X[M, N] * Y[M, N] + row[N] in bfloat16. Each block works on one (block_M, block_N) tile: T.Parallel says
that the iterations are independent, and indexing row by j alone broadcasts it. Eager torch runs two kernels, and so
writes and reads the product once more.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 37, "N": 100, "block_M": 8, "block_N": 64}


@tiledsl.jit
def multiply_add(X, Y, row, block_M=4, block_N=1024, threads=256):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "bfloat16")
    Y: T.Tensor((M, N), "bfloat16")
    row: T.Tensor((N,), "bfloat16")
    out = T.empty((M, N), "bfloat16")

    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            m, n = by * block_M + i, bx * block_N + j
            # Arithmetic on bfloat16 would round after each step; in float32 it rounds once, at the store.
            out[m, n] = T.cast(X[m, n], "float32") * T.cast(Y[m, n], "float32") + T.cast(row[n], "float32")
    return out


def reference(x, y, row):
    return x * y + row


def main(*, M=8192, N=8192, block_M=4, block_N=1024):
    torch.manual_seed(0)
    x, y = (torch.randn(M, N, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    row = torch.randn(N, dtype=torch.bfloat16, device=DEVICE)

    kernel = multiply_add.compile(x, y, row, block_M=block_M, block_N=block_N)
    exact = (x.float() * y.float() + row.float()).to(torch.bfloat16)
    error = largest_error(kernel(x, y, row), exact, rtol=0, atol=0)  # a product of bfloat16 is exact in float32
    print_speed(
        f"X * Y + row, {M} x {N}", lambda: kernel(x, y, row), lambda: reference(x, y, row), bytes_moved=3 * M * N * 2
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
