"""Softmax of rows that fit into one tile, however wide: the width need not be a power of two.

Y[M, N] = softmax(X[M, N]) along N, float16 in and out, float32 inside. A block holds block_M whole rows in registers,
so that X is read once. Triton's tiles are powers of two; a tile of 5000 columns becomes one of 8192 whose surplus is
masked, and which a maximum sees as -infinity and a sum as 0.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 13, "N": 229, "block_M": 4}
LOG2_E = 1.4426950408889634


@tiledsl.jit(out_idx=[-1])
def softmax(M, N, block_M=1, threads=256, dtype="float16"):
    @T.prim_func
    def softmax(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            highest = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")

            T.copy(X[bx * block_M, 0], x)
            T.reduce_max(x, highest, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = T.exp2((x[i, j] - highest[i]) * LOG2_E)
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] /= total[i]
            T.copy(x, Y[bx * block_M, 0])

    return softmax


def reference(x):
    return torch.softmax(x, dim=1)


def main(*, M=16384, N=5000, block_M=1):
    kernel = softmax(M, N, block_M)
    torch.manual_seed(0)
    x = torch.randn(M, N, dtype=torch.float16, device=DEVICE) * 3

    # One rounding to float16 each; the smallest results are subnormal, with steps of 6e-8.
    error = largest_error(kernel(x), reference(x), rtol=2e-3, atol=1e-7)
    print_speed(f"softmax, {M} x {N}", lambda: kernel(x), lambda: reference(x), bytes_moved=2 * M * N * 2)
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
