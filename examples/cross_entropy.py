"""Cross-entropy of wide rows of logits, forward and backward, without a probability in memory.

losses[m] = lse[m] - X[m, targets[m]] with lse[m] = log(sum(exp(X[m, :]))), and the gradient of sum(losses * scale),
dX[m, n] = (exp(X[m, n] - lse[m]) - [n == targets[m]]) * scale[m]; X[M, N] is bfloat16, statistics are float32. The
forward pass reads X once, in pieces of block_N columns: when a piece raises the maximum, the sum so far is scaled down.
The backward pass, which has lse, is elementwise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 7, "N": 300, "block_M": 2, "block_N": 128}
LOG2_E = 1.4426950408889634


@tiledsl.jit(out_idx=[2, 3])
def cross_entropy(M, N, block_M=1, block_N=8192, num_stages=2, threads=256, dtype="bfloat16"):
    @T.prim_func
    def cross_entropy(
        X: T.Tensor((M, N), dtype),
        targets: T.Tensor((M,), "int32"),
        losses: T.Tensor((M,), "float32"),
        lse: T.Tensor((M,), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, block_N), "float32")
            before = T.alloc_fragment((block_M,), "float32")
            highest = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            tile_total = T.alloc_fragment((block_M,), "float32")

            T.annotate_safe_value({X: -T.infinity("float32")})  # what reads past the end of a row give, instead of 0
            T.fill(highest, -T.infinity("float32"))
            T.clear(total)
            for piece in T.Pipelined(T.ceildiv(N, block_N), num_stages=num_stages):
                T.copy(X[bx * block_M, piece * block_N], x)
                T.copy(highest, before)
                T.reduce_max(x, highest, dim=1, clear=False)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.exp2((x[i, j] - highest[i]) * LOG2_E)
                T.reduce_sum(x, tile_total, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * T.exp2((before[i] - highest[i]) * LOG2_E) + tile_total[i]
            for i in T.Parallel(block_M):
                m = bx * block_M + i
                found = highest[i] + T.log(total[i])
                lse[m] = found
                losses[m] = found - X[m, targets[m]]

    return cross_entropy


@tiledsl.jit(out_idx=[-1])
def cross_entropy_gradient(M, N, block_M=1, block_N=8192, threads=512, dtype="bfloat16"):
    @T.prim_func
    def cross_entropy_gradient(
        X: T.Tensor((M, N), dtype),
        targets: T.Tensor((M,), "int32"),
        lse: T.Tensor((M,), "float32"),
        scale: T.Tensor((M,), "float32"),
        dX: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            for i, j in T.Parallel(block_M, block_N):
                m, n = by * block_M + i, bx * block_N + j
                share = T.exp2((T.cast(X[m, n], "float32") - lse[m]) * LOG2_E)
                dX[m, n] = (share - T.if_then_else(n == targets[m], 1.0, 0.0)) * scale[m]

    return cross_entropy_gradient


def reference(x, targets):
    x = x.float()
    return F.cross_entropy(x, targets.long(), reduction="none"), torch.logsumexp(x, 1)


def reference_gradient(x, targets, lse, scale):
    share = torch.exp(x.float() - lse[:, None])
    share[torch.arange(x.shape[0], device=x.device), targets.long()] -= 1
    return (share * scale[:, None]).to(x.dtype)


def main(*, M=4096, N=128256, block_M=1, block_N=8192):
    forward, backward = cross_entropy(M, N, block_M, block_N), cross_entropy_gradient(M, N, block_M, block_N)
    torch.manual_seed(0)
    x = torch.randn(M, N, dtype=torch.bfloat16, device=DEVICE) * 3
    targets = torch.randint(0, N, (M,), dtype=torch.int32, device=DEVICE)
    scale = torch.rand(M, device=DEVICE)

    (losses, lse), (expected, expected_lse) = forward(x, targets), reference(x, targets)
    error = largest_error(losses, expected, rtol=1e-5, atol=1e-5)
    largest_error(lse, expected_lse, rtol=1e-6, atol=1e-5)
    dx = backward(x, targets, lse, scale)
    # One bfloat16 step; a share of a target near 1 cancels to some steps of float32.
    largest_error(dx, reference_gradient(x, targets, expected_lse, scale), rtol=8e-3, atol=1e-6)
    print_speed(
        f"cross-entropy, {M} x {N}",
        lambda: forward(x, targets),
        lambda: reference(x, targets),
        bytes_moved=2 * M * N,
    )
    print_speed(
        f"its gradient, {M} x {N}",
        lambda: backward(x, targets, lse, scale),
        lambda: reference_gradient(x, targets, lse, scale),
        bytes_moved=4 * M * N,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
