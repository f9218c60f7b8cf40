"""The gate of Kimi delta attention: how much of its state each head and channel keeps, as a logarithm.

Y[t, h, d] = -exp(A[h]) * softplus(G[t, h * D + d] + bias[h * D + d]) in float32. softplus(x) is log(1 + exp(x)), but x
itself above 20, where the two agree and exp may overflow. A block takes block_T tokens of one head; D need not be a
power of two.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"tokens": 21, "heads": 2, "dim": 12, "block_T": 8}
THRESHOLD = 20.0


def softplus(x):
    return T.if_then_else(x > THRESHOLD, x, T.log(1.0 + T.exp(x)))


@tiledsl.jit(out_idx=[-1])
def kda_gate(tokens, heads, dim, block_T, threads=128, dtype="bfloat16"):
    @T.prim_func
    def kda_gate(
        G: T.Tensor((tokens, heads * dim), dtype),
        A: T.Tensor((heads,), "float32"),
        bias: T.Tensor((heads * dim,), "float32"),
        Y: T.Tensor((tokens, heads, dim), "float32"),
    ):
        with T.Kernel(T.ceildiv(tokens, block_T), heads, threads=threads) as (bx, h):
            rate = -T.exp(A[h])
            for i, d in T.Parallel(block_T, dim):
                t = bx * block_T + i
                x = T.cast(G[t, h * dim + d], "float32") + bias[h * dim + d]
                Y[t, h, d] = rate * softplus(x)

    return kda_gate


def reference(g, a, bias):
    x = (g.float() + bias).unflatten(1, (a.shape[0], -1))
    return -a.exp()[:, None] * F.softplus(x, threshold=THRESHOLD)


def main(*, tokens=16384, heads=32, dim=128, block_T=32):
    kernel = kda_gate(tokens, heads, dim, block_T)
    torch.manual_seed(0)
    g = torch.randn(tokens, heads * dim, dtype=torch.bfloat16, device=DEVICE) * 30
    a = torch.empty(heads, device=DEVICE).uniform_(1, 16).log()
    bias = torch.randn(heads * dim, device=DEVICE)

    # For x near -16, 1 + exp(x) keeps few bits of exp(x) in float32, and torch takes log1p: absolute, not relative.
    error = largest_error(kernel(g, a, bias), reference(g, a, bias), rtol=1e-5, atol=1e-5)
    print_speed(
        f"KDA gate, {tokens} tokens, {heads} heads of {dim}",
        lambda: kernel(g, a, bias),
        lambda: reference(g, a, bias),
        bytes_moved=tokens * heads * dim * (2 + 4),
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
