"""Weights in float8 with a scale for each block, back to bfloat16, as a checkpoint is loaded.

Y[M, N] = X[M, N] * scales[ceil(M / block), ceil(N / block)]: each square of `block` rows and columns has one scale.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 70, "N": 96, "block": 32}


@tiledsl.jit(out_idx=[-1])
def weight_dequant(M, N, block, threads=256, dtype="float8_e4m3fn", out_dtype="bfloat16"):
    @T.prim_func
    def weight_dequant(
        X: T.Tensor((M, N), dtype),
        scales: T.Tensor((T.ceildiv(M, block), T.ceildiv(N, block)), "float32"),
        Y: T.Tensor((M, N), out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=threads) as (bx, by):
            x = T.alloc_fragment((block, block), dtype)
            y = T.alloc_fragment((block, block), out_dtype)
            T.copy(X[by * block, bx * block], x)
            for i, j in T.Parallel(block, block):
                y[i, j] = T.cast(x[i, j], "float32") * scales[by, bx]
            T.copy(y, Y[by * block, bx * block])

    return weight_dequant


def reference(x, scales, block):
    whole = scales.repeat_interleave(block, 0)[: x.shape[0]].repeat_interleave(block, 1)[:, : x.shape[1]]
    return (x.float() * whole).to(torch.bfloat16)


def main(*, M=7168, N=2048, block=128):
    kernel = weight_dequant(M, N, block)
    torch.manual_seed(0)
    x = (torch.randn(M, N, device=DEVICE) * 8).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-M // block), -(-N // block), device=DEVICE)

    error = largest_error(kernel(x, scales), reference(x, scales, block), rtol=0, atol=0)  # one rounding, both
    print_speed(
        f"float8 to bfloat16, {M} x {N}, scales of {block} x {block}",
        lambda: kernel(x, scales),
        lambda: reference(x, scales, block),
        bytes_moved=3 * M * N,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
