"""The k largest values of each row and where they are, as a router picks experts.

values[M, k], indices[M, k] = top-k of X[M, N], largest first. A block holds block_M rows and takes the maximum k times:
the first column that has it is the answer, and becomes -infinity for the next round.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 21, "N": 50, "k": 3, "block_M": 8}


@tiledsl.jit(out_idx=[1, 2])
def top_k(M, N, k, block_M, threads=128, dtype="float32"):
    @T.prim_func
    def top_k(X: T.Tensor((M, N), dtype), values: T.Tensor((M, k), dtype), indices: T.Tensor((M, k), "int32")):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, N), dtype)
            places = T.alloc_fragment((block_M, N), "int32")
            highest = T.alloc_fragment((block_M,), dtype)
            first = T.alloc_fragment((block_M,), "int32")

            T.copy(X[bx * block_M, 0], x)
            for rank in T.serial(k):
                T.reduce_max(x, highest, dim=1)
                for i, j in T.Parallel(block_M, N):
                    places[i, j] = T.if_then_else(x[i, j] == highest[i], j, N)
                T.reduce_min(places, first, dim=1)
                for i, j in T.Parallel(block_M, N):
                    x[i, j] = T.if_then_else(j == first[i], -T.infinity(dtype), x[i, j])
                for i in T.Parallel(block_M):
                    values[bx * block_M + i, rank] = highest[i]
                    indices[bx * block_M + i, rank] = first[i]

    return top_k


def reference(x, k):
    return torch.topk(x, k, dim=1)


def main(*, M=65536, N=256, k=8, block_M=16):
    kernel = top_k(M, N, k, block_M)
    torch.manual_seed(0)
    x = torch.randn(M, N, device=DEVICE)
    values, indices = kernel(x)

    # Nothing is rounded. Among equal values torch may pick other columns, so the columns are checked by what they hold.
    error = largest_error(values, reference(x, k).values, rtol=0, atol=0)
    error = max(error, largest_error(x.gather(1, indices.long()), values, rtol=0, atol=0))
    ordered = indices.sort(dim=1).values
    assert (ordered[:, 1:] > ordered[:, :-1]).all(), "a column was picked twice"
    print_speed(
        f"top {k} of {N}, {M} rows", lambda: kernel(x), lambda: reference(x, k), bytes_moved=4 * M * N + 8 * M * k
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
