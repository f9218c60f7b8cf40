"""Quantise activations to float8 (e4m3), with a scale for each token and each 128 channels.

For a row and a group of 128 columns: scale = max(amax, 1e-4) / 448, Y = X / scale, 448 being the largest e4m3 value.
X[M, N] is bfloat16, Y[M, N] float8, scales[M, ceil(N / 128)] float32: what gemm_fp8_blockscale.py takes. Each block
quantises block_M rows of one group, in registers; X is read once.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 19, "N": 300, "block_M": 8}
GROUP = 128
E4M3_MAX = 448.0


@tiledsl.jit(out_idx=[1, 2])
def cast_fp8(M, N, block_M, threads=128):
    groups = T.ceildiv(N, GROUP)

    @T.prim_func
    def cast_fp8(
        X: T.Tensor((M, N), "bfloat16"),
        Y: T.Tensor((M, N), "float8_e4m3fn"),
        scales: T.Tensor((M, groups), "float32"),
    ):
        with T.Kernel(groups, T.ceildiv(M, block_M), threads=threads) as (group, by):
            x = T.alloc_fragment((block_M, GROUP), "float32")
            y = T.alloc_fragment((block_M, GROUP), "float8_e4m3fn")
            largest = T.alloc_fragment((block_M,), "float32")
            scale = T.alloc_fragment((block_M,), "float32")

            T.copy(X[by * block_M, group * GROUP], x)
            T.reduce_absmax(x, largest, dim=1)
            for i in T.Parallel(block_M):
                scale[i] = T.max(largest[i], 1e-4) / E4M3_MAX
                scales[by * block_M + i, group] = scale[i]
            for i, j in T.Parallel(block_M, GROUP):
                y[i, j] = T.clamp(x[i, j] / scale[i], -E4M3_MAX, E4M3_MAX)
            T.copy(y, Y[by * block_M, group * GROUP])

    return cast_fp8


def reference(x):
    M, N = x.shape
    wide = torch.nn.functional.pad(x.float(), (0, -N % GROUP)).view(M, -1, GROUP)
    scales = wide.abs().amax(dim=2).clamp(min=1e-4) / E4M3_MAX
    y = (wide / scales[..., None]).clamp(-E4M3_MAX, E4M3_MAX)
    return y.view(M, -1)[:, :N].to(torch.float8_e4m3fn), scales


def main(*, M=16384, N=7168, block_M=32):
    kernel = cast_fp8(M, N, block_M)
    torch.manual_seed(0)
    x = torch.randn(M, N, dtype=torch.bfloat16, device=DEVICE)
    (y, scales), (expected_y, expected_scales) = kernel(x), reference(x)

    error = largest_error(scales, expected_scales, rtol=1e-6, atol=0)
    # A quotient that lies half way between two float8 values may fall to either side: an eighth, and not often.
    largest_error(y, expected_y, rtol=0.125, atol=2**-9)
    assert (y.float() == expected_y.float()).float().mean() > 0.999
    print_speed(f"cast to e4m3 per token, {M} x {N}", lambda: kernel(x), lambda: reference(x), bytes_moved=3 * M * N)
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
