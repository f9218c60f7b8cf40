"""Layer normalisation: each row less its mean, divided by its standard deviation, then scaled and shifted.

Y[M, N] = (X - mean) / sqrt(variance + eps) * weight[N] + bias[N] in bfloat16, statistics in float32. A block holds
block_M whole rows in registers, so the variance is the mean of squared differences from the mean (not E[x^2] - E[x]^2,
which cancels) and X is still read only once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 11, "N": 200, "block_M": 4}


@tiledsl.jit(out_idx=[-1])
def layer_norm(M, N, block_M=1, eps=1e-5, threads=256, dtype="bfloat16"):
    @T.prim_func
    def layer_norm(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        bias: T.Tensor((N,), dtype),
        Y: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            squares = T.alloc_fragment((block_M, N), "float32")
            scale = T.alloc_fragment((N,), dtype)
            shift = T.alloc_fragment((N,), dtype)
            mean = T.alloc_fragment((block_M,), "float32")
            variance = T.alloc_fragment((block_M,), "float32")

            T.copy(X[bx * block_M, 0], x)
            T.copy(weight, scale)
            T.copy(bias, shift)
            T.reduce_sum(x, mean, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] -= mean[i] / N
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, variance, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] * T.rsqrt(variance[i] / N + eps) * scale[j] + shift[j]
            T.copy(x, Y[bx * block_M, 0])

    return layer_norm


def reference(x, weight, bias):
    return F.layer_norm(x, (x.shape[1],), weight, bias)


def main(*, M=16384, N=4096, block_M=1):
    kernel = layer_norm(M, N, block_M)
    torch.manual_seed(0)
    x = torch.randn(M, N, dtype=torch.bfloat16, device=DEVICE) * 2 + 1
    weight, bias = (torch.randn(N, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))

    # One bfloat16 step; near zero, where the terms cancel, float32 rounding of terms of size 10.
    error = largest_error(kernel(x, weight, bias), reference(x, weight, bias), rtol=8e-3, atol=1e-4)
    print_speed(
        f"layer norm, {M} x {N}",
        lambda: kernel(x, weight, bias),
        lambda: reference(x, weight, bias),
        bytes_moved=2 * M * N * 2,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
