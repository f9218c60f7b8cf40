"""Softmax of rows too wide for one tile: two passes over column tiles.

Y[M, N] = softmax(X[M, N]) along N, bfloat16 in and out. The first pass keeps the largest value so far and the sum of
exponentials relative to it; when a tile raises the maximum, the old sum is scaled down to the new one. The second pass
reads X again and writes Y. It goes backwards, because the end of the row is what the L2 cache still has.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 7, "N": 300, "block_M": 2, "block_N": 64}
LOG2_E = 1.4426950408889634


@tiledsl.jit(out_idx=[-1])
def online_softmax(M, N, block_M, block_N, threads=512, dtype="bfloat16"):
    tiles = T.ceildiv(N, block_N)

    @T.prim_func
    def online_softmax(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, block_N), "float32")
            weight = T.alloc_fragment((block_M, block_N), "float32")
            before = T.alloc_fragment((block_M,), "float32")
            highest = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            tile_total = T.alloc_fragment((block_M,), "float32")

            T.annotate_safe_value({X: -T.infinity("float32")})  # what reads past the end of a row give, instead of 0
            T.fill(highest, -T.infinity("float32"))
            T.clear(total)
            for tile in T.serial(tiles):
                T.copy(X[bx * block_M, tile * block_N], x)
                T.copy(highest, before)
                T.reduce_max(x, highest, dim=1, clear=False)
                for i, j in T.Parallel(block_M, block_N):
                    weight[i, j] = T.exp2((x[i, j] - highest[i]) * LOG2_E)
                T.reduce_sum(weight, tile_total, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * T.exp2((before[i] - highest[i]) * LOG2_E) + tile_total[i]

            for tile in T.serial(tiles):
                start = (tiles - 1 - tile) * block_N
                T.copy(X[bx * block_M, start], x)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.exp2((x[i, j] - highest[i]) * LOG2_E) / total[i]
                T.copy(x, Y[bx * block_M, start])

    return online_softmax


def reference(x):
    return torch.softmax(x, dim=1)


def main(*, M=2048, N=128256, block_M=1, block_N=8192):
    kernel = online_softmax(M, N, block_M, block_N)
    torch.manual_seed(0)
    x = torch.randn(M, N, dtype=torch.bfloat16, device=DEVICE) * 3

    error = largest_error(kernel(x), reference(x), rtol=8e-3, atol=1e-9)  # one bfloat16 step
    print_speed(f"online softmax, {M} x {N}", lambda: kernel(x), lambda: reference(x), bytes_moved=3 * M * N * 2)
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
