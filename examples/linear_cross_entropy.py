"""Cross-entropy of a linear layer's outputs, forward and backward, without the logits in memory.

losses[m] = lse[m] - X[m, :] @ W[targets[m], :] with lse[m] = log(sum(exp(X[m, :] @ W.T))), for the hidden states
X[M, K] and the weights W[N, K] of a vocabulary of N, in bfloat16. A block multiplies a tile of rows and words and keeps
three numbers for each row: the maximum, the sum of exponentials below it, and the target's logit if it is there. A
second kernel joins what the blocks of a row have. The backward pass multiplies again, for a part of the vocabulary at a
time: the logits' gradient of that part, (exp(logit - lse) - [n == target]) * scale, is all that is ever in memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 40, "N": 200, "K": 64, "block_M": 32, "block_N": 64, "block_K": 32, "part": 128}
LOG2_E = 1.4426950408889634


@tiledsl.jit(out_idx=[3, 4])
def linear_cross_entropy(M, N, K, block_M=128, block_N=256, block_K=64, num_stages=3, threads=256, dtype="bfloat16"):
    tiles = T.ceildiv(N, block_N)

    @T.prim_func
    def linear_cross_entropy(
        X: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K), dtype),
        targets: T.Tensor((M,), "int32"),
        losses: T.Tensor((M,), "float32"),
        lse: T.Tensor((M,), "float32"),
    ):
        maxima = T.alloc_global((tiles, M), "float32")
        sums = T.alloc_global((tiles, M), "float32")
        picked = T.alloc_global((tiles, M), "float32")
        with T.Kernel(tiles, T.ceildiv(M, block_M), threads=threads) as (bx, by):
            x = T.alloc_shared((block_M, block_K), dtype)
            w = T.alloc_shared((block_N, block_K), dtype)
            logits = T.alloc_fragment((block_M, block_N), "float32")
            hits = T.alloc_fragment((block_M, block_N), "float32")
            highest = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            hit = T.alloc_fragment((block_M,), "float32")

            T.use_swizzle(panel_size=8)
            T.clear(logits)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(X[by * block_M, k * block_K], x)
                T.copy(W[bx * block_N, k * block_K], w)
                T.gemm(x, w, logits, transpose_B=True)
            for i, j in T.Parallel(block_M, block_N):
                n = bx * block_N + j
                hits[i, j] = T.if_then_else(n == targets[by * block_M + i], logits[i, j], 0.0)
                logits[i, j] = T.if_then_else(n < N, logits[i, j] * LOG2_E, -T.infinity("float32"))
            T.reduce_sum(hits, hit, dim=1)
            T.reduce_max(logits, highest, dim=1)
            for i, j in T.Parallel(block_M, block_N):
                logits[i, j] = T.exp2(logits[i, j] - highest[i])
            T.reduce_sum(logits, total, dim=1)
            T.copy(highest, maxima[bx, by * block_M])
            T.copy(total, sums[bx, by * block_M])
            T.copy(hit, picked[bx, by * block_M])

        with T.Kernel(T.ceildiv(M, 32), threads=32) as bx:
            highest = T.alloc_fragment((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            hit = T.alloc_fragment((32,), "float32")
            T.fill(highest, -T.infinity("float32"))
            T.clear(total)
            T.clear(hit)
            for tile in T.serial(tiles):
                for i in T.Parallel(32):
                    above = T.max(highest[i], maxima[tile, bx * 32 + i])
                    share = sums[tile, bx * 32 + i] * T.exp2(maxima[tile, bx * 32 + i] - above)
                    total[i] = total[i] * T.exp2(highest[i] - above) + share
                    highest[i] = above
                    hit[i] += picked[tile, bx * 32 + i]
            for i in T.Parallel(32):
                found = (highest[i] + T.log2(total[i])) / LOG2_E
                lse[bx * 32 + i] = found
                losses[bx * 32 + i] = found - hit[i]

    return linear_cross_entropy


def reference(x, w, targets):
    logits = x.float() @ w.float().T
    return F.cross_entropy(logits, targets.long(), reduction="none"), torch.logsumexp(logits, 1)


def main(*, M=8192, N=128256, K=4096, block_M=128, block_N=256, block_K=64, part=8192):
    forward = linear_cross_entropy(M, N, K, block_M, block_N, block_K)
    torch.manual_seed(0)
    x = torch.randn(M, K, device=DEVICE).bfloat16()
    w = (torch.randn(N, K, device=DEVICE) * K**-0.5).bfloat16()
    targets = torch.randint(0, N, (M,), device=DEVICE, dtype=torch.int32)
    losses, lse = forward(x, w, targets)
    expected = reference(x, w, targets)
    error = largest_error(lse, expected[1], rtol=1e-4, atol=1e-4)
    error = max(error, largest_error(losses, expected[0], rtol=1e-4, atol=1e-3))
    print_speed(
        f"linear cross-entropy, {M} x {N} x {K}",
        lambda: forward(x, w, targets),
        lambda: F.cross_entropy(x @ w.T, targets.long(), reduction="none"),
        operations=2 * M * N * K,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
