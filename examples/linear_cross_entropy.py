"""Cross-entropy of a linear layer's outputs, forward and backward, without the logits in memory.

losses[m] = lse[m] - X[m, :] @ W[targets[m], :] with lse[m] = log(sum(exp(X[m, :] @ W.T))), for the hidden states
X[M, K] and the weights W[N, K] of a vocabulary of N, in bfloat16. A block multiplies a tile of rows and words and keeps
three numbers for each row: the maximum, the sum of exponentials below it, and the target's logit if it is there. A
second kernel joins what the blocks of a row have. The backward pass multiplies again, for a part of the vocabulary at a
time: the logits' gradient of that part, (exp(logit - lse) - [n == target]) * scale, is all that is ever in memory. Two
products with it give the part's share of dX, and its rows of dW.
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


@tiledsl.jit(out_idx=[-1])
def logits_gradient(M, N, K, block_M=128, block_N=256, block_K=64, num_stages=3, threads=256, dtype="bfloat16"):
    """The gradient of sum(losses * scale) by the logits of N words, of which the first has the number `first`."""

    @T.prim_func
    def logits_gradient(
        X: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K), dtype),
        targets: T.Tensor((M,), "int32"),
        first: T.int32,
        lse: T.Tensor((M,), "float32"),
        scale: T.Tensor((M,), "float32"),
        G: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            x = T.alloc_shared((block_M, block_K), dtype)
            w = T.alloc_shared((block_N, block_K), dtype)
            logits = T.alloc_fragment((block_M, block_N), "float32")

            T.use_swizzle(panel_size=8)
            T.clear(logits)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(X[by * block_M, k * block_K], x)
                T.copy(W[bx * block_N, k * block_K], w)
                T.gemm(x, w, logits, transpose_B=True)
            for i, j in T.Parallel(block_M, block_N):
                m, n = by * block_M + i, bx * block_N + j
                share = T.exp2((logits[i, j] - lse[m]) * LOG2_E)
                logits[i, j] = (share - T.if_then_else(first + n == targets[m], 1.0, 0.0)) * scale[m]
            T.copy(logits, G[by * block_M, bx * block_N])

    return logits_gradient


@tiledsl.jit(out_idx=[])
def add_product(M, N, K, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256, dtype="bfloat16"):
    """C[M, N] in float32 += A[M, K] @ B[K, N]."""

    @T.prim_func
    def add_product(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            a = T.alloc_shared((block_M, block_K), dtype)
            b = T.alloc_shared((block_K, block_N), dtype)
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(panel_size=8)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], a)
                T.copy(B[k * block_K, bx * block_N], b)
                T.gemm(a, b, total)
            for i, j in T.Parallel(block_M, block_N):
                C[by * block_M + i, bx * block_N + j] += total[i, j]

    return add_product


@tiledsl.jit(out_idx=[-1])
def product_of_transposed(M, N, K, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256, dtype="bfloat16"):
    """A[K, M].T @ B[K, N]."""

    @T.prim_func
    def product_of_transposed(A: T.Tensor((K, M), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            a = T.alloc_shared((block_K, block_M), dtype)
            b = T.alloc_shared((block_K, block_N), dtype)
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(panel_size=8)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[k * block_K, by * block_M], a)
                T.copy(B[k * block_K, bx * block_N], b)
                T.gemm(a, b, total, transpose_A=True)
            T.copy(total, C[by * block_M, bx * block_N])

    return product_of_transposed


def gradients(x, w, targets, lse, scale, part, **tiles):
    """dX and dW of sum(losses * scale), by `part` words at a time; dX is added up in float32."""
    (M, K), N = x.shape, w.shape[0]
    dx = torch.zeros(M, K, device=x.device)
    dw = torch.empty_like(w)
    for first in range(0, N, part):
        words = w[first : first + part]
        count = words.shape[0]
        g = logits_gradient(M, count, K, **tiles)(x, words, targets, first, lse, scale)
        add_product(M, K, count)(g, words, dx)
        dw[first : first + part] = product_of_transposed(count, K, M)(g, x)
    return dx.to(x.dtype), dw


def reference(x, w, targets):
    logits = x.float() @ w.float().T
    return F.cross_entropy(logits, targets.long(), reduction="none"), torch.logsumexp(logits, 1)


def reference_gradients(x, w, targets, scale):
    """dX and dW in float32, and the sums of the absolute values of what is added up to them."""
    x, w = x.float(), w.float()
    g = torch.softmax(x @ w.T, 1)
    g[torch.arange(x.shape[0], device=x.device), targets.long()] -= 1
    g *= scale[:, None]
    found = g @ w, g.T @ x
    g.abs_()
    return found, (g @ w.abs(), g.T @ x.abs())


def main(*, M=8192, N=128256, K=4096, block_M=128, block_N=256, block_K=64, part=16384):
    tiles = {"block_M": block_M, "block_N": block_N, "block_K": block_K}
    forward = linear_cross_entropy(M, N, K, **tiles)
    torch.manual_seed(0)
    x = torch.randn(M, K, device=DEVICE).bfloat16()
    w = (torch.randn(N, K, device=DEVICE) * K**-0.5).bfloat16()
    targets = torch.randint(0, N, (M,), device=DEVICE, dtype=torch.int32)
    scale = torch.rand(M, device=DEVICE) + 0.5
    losses, lse = forward(x, w, targets)
    expected = reference(x, w, targets)
    error = largest_error(lse, expected[1], rtol=1e-4, atol=1e-4)
    error = max(error, largest_error(losses, expected[0], rtol=1e-4, atol=1e-3))
    dx, dw = gradients(x, w, targets, lse, scale, part, **tiles)
    for found, wanted, terms in zip((dx, dw), *reference_gradients(x, w, targets, scale)):
        # The logits' gradient is rounded to bfloat16, by at most 2 ** -8 of each term, and so is the result.
        error = max(error, largest_error((found.float() - wanted) / terms, torch.zeros_like(terms), rtol=0, atol=2**-7))
    print_speed(
        f"linear cross-entropy, {M} x {N} x {K}",
        lambda: forward(x, w, targets),
        lambda: F.cross_entropy(x @ w.T, targets.long(), reduction="none"),
        operations=2 * M * N * K,
    )
    if DEVICE == "cuda":
        leaves = [each.detach().requires_grad_() for each in (x, w)]
        loss = (F.cross_entropy(leaves[0] @ leaves[1].T, targets.long(), reduction="none") * scale).sum()
        print_speed(
            f"its gradients, {M} x {N} x {K}, by {part} words",
            lambda: gradients(x, w, targets, lse, scale, part, **tiles),
            lambda: torch.autograd.grad(loss, leaves, retain_graph=True),
            operations=6 * M * N * K,
        )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
