"""Many matrix products in one launch: rows come in groups of different sizes, each with a matrix of its own.

C[rows of g] = A[rows of g] @ B[g].T for each group g: the rows offsets[g] .. offsets[g + 1] - 1 of A[total, K] and
C[total, N]. B[groups, N, K] are the experts of a mixture. Sizes are data, so the launch has as many row tiles as there
can be (each group may end in a part-filled one), and every block first finds its group: as many groups lie before it as
have all their tiles before its own. Rows past the group's end are loaded, which is harmless, but not stored.
"""

from __future__ import annotations

import itertools

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"groups": 4, "total": 100, "N": 72, "K": 80, "block_M": 32, "block_N": 32, "block_K": 32}


@tiledsl.jit(out_idx=[-1])
def grouped_matmul(groups, total, N, K, block_M, block_N, block_K, num_stages=3, threads=256, dtype="bfloat16"):
    most_tiles = T.ceildiv(total, block_M) + groups - 1  # each group but one may waste less than a tile

    @T.prim_func
    def grouped_matmul(
        A: T.Tensor((total, K), dtype),
        B: T.Tensor((groups, N, K), dtype),
        offsets: T.Tensor((groups + 1,), "int32"),
        C: T.Tensor((total, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), most_tiles, threads=threads) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_N, block_K), dtype)
            sums = T.alloc_fragment((block_M, block_N), "float32")

            tiles = T.alloc_fragment((groups,), "int32")  # row tiles of each group
            ends = T.alloc_fragment((groups,), "int32")  # row tiles up to and with each group
            passed = T.alloc_fragment((groups,), "int32")  # whether the group's tiles all come before this one
            group = T.alloc_fragment((1,), "int32")
            first = T.alloc_fragment((1,), "int32")  # the first row tile of this block's group
            for g in T.Parallel(groups):
                tiles[g] = T.ceildiv(offsets[g + 1] - offsets[g], block_M)
            T.cumsum(tiles, ends)
            for g in T.Parallel(groups):
                passed[g] = T.if_then_else(ends[g] <= by, 1, 0)
                tiles[g] = T.if_then_else(ends[g] <= by, tiles[g], 0)
            T.reduce_sum(passed, group)
            T.reduce_sum(tiles, first)

            if group[0] < groups:  # else more tiles were launched than there are
                row = offsets[group[0]] + (by - first[0]) * block_M
                end = offsets[group[0] + 1]
                T.clear(sums)
                for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                    T.copy(A[row, k * block_K], A_tile)
                    T.copy(B[group[0], bx * block_N, k * block_K], B_tile)
                    T.gemm(A_tile, B_tile, sums, transpose_B=True)
                for i, j in T.Parallel(block_M, block_N):
                    if row + i < end:
                        C[row + i, bx * block_N + j] = sums[i, j]

    return grouped_matmul


def reference(a, b, sizes):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    for rows, matrix, out in zip(a.split(sizes), b, c.split(sizes), strict=True):
        torch.mm(rows, matrix.T, out=out)
    return c


def main(*, groups=64, total=16384, N=2048, K=2048, block_M=128, block_N=128, block_K=64):
    kernel = grouped_matmul(groups, total, N, K, block_M, block_N, block_K)
    torch.manual_seed(0)
    cuts = torch.randint(0, total + 1, (groups - 1,)).sort().values.tolist()
    bounds = [0, *cuts, total]
    sizes = [end - start for start, end in itertools.pairwise(bounds)]
    offsets = torch.tensor(bounds, dtype=torch.int32, device=DEVICE)
    a = torch.randn(total, K, dtype=torch.bfloat16, device=DEVICE)
    b = torch.randn(groups, N, K, dtype=torch.bfloat16, device=DEVICE) / K**0.5

    # One rounding to bfloat16 each.
    error = largest_error(kernel(a, b, offsets), reference(a, b, sizes), rtol=1e-2, atol=1e-2)
    print_speed(
        f"grouped product, {groups} groups of 0 to {max(sizes)} rows, {total} x {N} x {K}",
        lambda: kernel(a, b, offsets),
        lambda: reference(a, b, sizes),
        operations=2 * total * N * K,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
