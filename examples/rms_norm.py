"""Root-mean-square normalisation of rows.

Y[M, N] = X / sqrt(mean(X^2) + eps) * weight[N] in bfloat16, in float32 inside. A block holds block_M whole rows, 7168
wide by default: padded to 8192 and masked, and read from memory once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 9, "N": 96, "block_M": 2}


@tiledsl.jit
def rms_norm(X, weight, block_M=1, eps=1e-6, threads=256):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "bfloat16")
    weight: T.Tensor((N,), "bfloat16")
    Y = T.empty((M, N), "bfloat16")

    with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
        x = T.alloc_fragment((block_M, N), "float32")
        squares = T.alloc_fragment((block_M, N), "float32")
        total = T.alloc_fragment((block_M,), "float32")
        scale = T.alloc_fragment((N,), "bfloat16")

        T.copy(X[bx * block_M, 0], x)
        T.copy(weight, scale)
        for i, j in T.Parallel(block_M, N):
            squares[i, j] = x[i, j] * x[i, j]
        T.reduce_sum(squares, total, dim=1)
        for i, j in T.Parallel(block_M, N):
            x[i, j] *= T.rsqrt(total[i] / N + eps) * scale[j]
        T.copy(x, Y[bx * block_M, 0])
    return Y


def reference(x, weight, eps=1e-6):
    return F.rms_norm(x, (x.shape[1],), weight, eps)


def main(*, M=16384, N=7168, block_M=1):
    torch.manual_seed(0)
    x = torch.randn(M, N, dtype=torch.bfloat16, device=DEVICE)
    weight = torch.randn(N, dtype=torch.bfloat16, device=DEVICE)
    kernel = rms_norm.compile(x, weight, block_M=block_M)

    # Torch's unfused form rounds to bfloat16 before it multiplies with the weight: two steps.
    error = largest_error(kernel(x, weight), reference(x, weight), rtol=1.6e-2, atol=1e-6)
    print_speed(
        f"RMS norm, {M} x {N}",
        lambda: kernel(x, weight),
        lambda: reference(x, weight),
        bytes_moved=2 * M * N * 2,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
