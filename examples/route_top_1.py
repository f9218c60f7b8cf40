"""The one expert of each token, by the sigmoid of its score.

expert[M], weight[M] = where X[M, K] @ W[K, N] is largest in its row, and the sigmoid of that. The sigmoid grows with
the score, so it is taken of the largest alone. The product, its maximum and its place are one kernel.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 37, "N": 20, "K": 64, "block_M": 16, "block_K": 32}


@tiledsl.jit(out_idx=[2, 3])
def route_top_1(M, N, K, block_M, block_K, num_stages=3, threads=128, dtype="bfloat16"):
    experts = max(16, 1 << (N - 1).bit_length())  # columns of the tile; those behind N are never chosen

    @T.prim_func
    def route_top_1(
        X: T.Tensor((M, K), dtype),
        W: T.Tensor((K, N), dtype),
        expert: T.Tensor((M,), "int32"),
        weight: T.Tensor((M,), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_shared((block_M, block_K), dtype)
            w = T.alloc_shared((block_K, experts), dtype)
            scores = T.alloc_fragment((block_M, experts), "float32")
            best = T.alloc_fragment((block_M,), "float32")
            place = T.alloc_fragment((block_M,), "int32")
            T.clear(scores)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(X[bx * block_M, k * block_K], x)
                T.copy(W[k * block_K, 0], w)
                T.gemm(x, w, scores)
            for i, j in T.Parallel(block_M, experts):
                scores[i, j] = T.if_then_else(j < N, scores[i, j], -T.infinity("float32"))
            T.reduce_max(scores, best, dim=1)
            T.argmax(scores, place, dim=1)
            for i in T.Parallel(block_M):
                best[i] = T.sigmoid(best[i])
            T.copy(place, expert[bx * block_M])
            T.copy(best, weight[bx * block_M])

    return route_top_1


def reference(x, w):
    weight, expert = torch.sigmoid(x.float() @ w.float()).max(dim=1)
    return expert.int(), weight


def main(*, M=16384, N=128, K=4096, block_M=64, block_K=64):
    kernel = route_top_1(M, N, K, block_M, block_K)
    torch.manual_seed(0)
    x = torch.randn(M, K, dtype=torch.bfloat16, device=DEVICE)
    w = torch.randn(K, N, dtype=torch.bfloat16, device=DEVICE) / K**0.5
    expert, weight = kernel(x, w)

    # Of scores that are nearly equal torch may pick another: the choice is checked by its weight.
    error = largest_error(weight, reference(x, w)[1], rtol=1e-3, atol=1e-3)
    chosen = torch.sigmoid(x.float() @ w.float()).gather(1, expert.long()[:, None])[:, 0]
    error = max(error, largest_error(chosen, weight, rtol=1e-3, atol=1e-3))
    print_speed(
        f"top-1 of {N} experts by sigmoid, {M} tokens of {K}",
        lambda: kernel(x, w),
        lambda: reference(x, w),
        operations=2 * M * N * K,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
