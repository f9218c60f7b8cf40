"""Rotary position embedding: each pair of channels of a head is turned by an angle that grows with the position.

Y[b, s, h, j] = X[b, s, h, j] * cos[s, j] - X[b, s, h, D / 2 + j] * sin[s, j] for j < D / 2, and the other half with
sin and cos exchanged; X is bfloat16, the angles float32. A block has block_S positions and block_H heads, and reads
each angle once for all of these heads.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"batch": 2, "length": 11, "heads": 3, "dim": 16, "block_S": 4, "block_H": 2}


@tiledsl.jit(out_idx=[-1])
def rope(batch, length, heads, dim, block_S=2, block_H=16, threads=128, dtype="bfloat16"):
    half = dim // 2

    @T.prim_func
    def rope(
        X: T.Tensor((batch, length, heads, dim), dtype),
        cos: T.Tensor((length, half), "float32"),
        sin: T.Tensor((length, half), "float32"),
        Y: T.Tensor((batch, length, heads, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(heads, block_H), T.ceildiv(length, block_S), batch, threads=threads) as (bh, bs, b):
            low = T.alloc_fragment((block_S, block_H, half), "float32")
            high = T.alloc_fragment((block_S, block_H, half), "float32")
            c = T.alloc_fragment((block_S, half), "float32")
            d = T.alloc_fragment((block_S, half), "float32")
            T.copy(X[b, bs * block_S, bh * block_H, 0], low)
            T.copy(X[b, bs * block_S, bh * block_H, half], high)
            T.copy(cos[bs * block_S, 0], c)
            T.copy(sin[bs * block_S, 0], d)
            for i, k, j in T.Parallel(block_S, block_H, half):
                turned = low[i, k, j] * c[i, j] - high[i, k, j] * d[i, j]
                high[i, k, j] = high[i, k, j] * c[i, j] + low[i, k, j] * d[i, j]
                low[i, k, j] = turned
            T.copy(low, Y[b, bs * block_S, bh * block_H, 0])
            T.copy(high, Y[b, bs * block_S, bh * block_H, half])

    return rope


def angles(length, dim, device, base=10000.0):
    """Cosines and sines of each position and pair of channels."""
    frequencies = base ** (-torch.arange(0, dim, 2, device=device) / dim)
    turned = torch.arange(length, device=device)[:, None] * frequencies[None, :]
    return turned.cos(), turned.sin()


def reference(x, cos, sin):
    low, high = x.float().chunk(2, dim=-1)
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)


def main(*, batch=4, length=4096, heads=32, dim=128, block_S=2, block_H=16):
    kernel = rope(batch, length, heads, dim, block_S, block_H)
    torch.manual_seed(0)
    x = torch.randn(batch, length, heads, dim, dtype=torch.bfloat16, device=DEVICE)
    cos, sin = angles(length, dim, DEVICE)

    # One bfloat16 step; where the terms cancel, float32 rounding of terms of size 5.
    error = largest_error(kernel(x, cos, sin), reference(x, cos, sin), rtol=8e-3, atol=1e-6)
    print_speed(
        f"RoPE, {batch} x {length} x {heads} x {dim}",
        lambda: kernel(x, cos, sin),
        lambda: reference(x, cos, sin),
        bytes_moved=4 * x.numel(),
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
