"""SwiGLU: one half of a layer's outputs gates the other, forward and backward.

Y[M, N] = silu(X[:, :N]) * X[:, N:], where X[M, 2 N] holds gates and values side by side, as one product with both
weights gives them; silu(a) = a * sigmoid(a). The backward pass takes X and dY. bfloat16, in float32 inside.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 13, "N": 100, "block_M": 4, "block_N": 64}


@tiledsl.jit(out_idx=[-1])
def swiglu(M, N, block_M=1, block_N=2048, threads=128, dtype="bfloat16"):
    @T.prim_func
    def swiglu(X: T.Tensor((M, 2 * N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            gate = T.alloc_fragment((block_M, block_N), "float32")
            value = T.alloc_fragment((block_M, block_N), "float32")
            T.copy(X[by * block_M, bx * block_N], gate)
            T.copy(X[by * block_M, N + bx * block_N], value)
            for i, j in T.Parallel(block_M, block_N):
                value[i, j] *= gate[i, j] * T.sigmoid(gate[i, j])
            T.copy(value, Y[by * block_M, bx * block_N])

    return swiglu


@tiledsl.jit(out_idx=[-1])
def swiglu_gradient(M, N, block_M=1, block_N=2048, threads=128, dtype="bfloat16"):
    @T.prim_func
    def swiglu_gradient(X: T.Tensor((M, 2 * N), dtype), dY: T.Tensor((M, N), dtype), dX: T.Tensor((M, 2 * N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            for i, j in T.Parallel(block_M, block_N):
                m, n = by * block_M + i, bx * block_N + j
                if n < N:
                    gate, value = T.cast(X[m, n], "float32"), T.cast(X[m, N + n], "float32")
                    dy, share = T.cast(dY[m, n], "float32"), T.sigmoid(T.cast(X[m, n], "float32"))
                    dX[m, n] = dy * value * share * (1 + gate * (1 - share))
                    dX[m, N + n] = dy * gate * share

    return swiglu_gradient


def reference(x):
    gate, value = x.float().chunk(2, dim=1)
    return (F.silu(gate) * value).to(x.dtype)


def reference_gradient(x, dy):
    gate, value = x.float().chunk(2, dim=1)
    share, dy = torch.sigmoid(gate), dy.float()
    return torch.cat([dy * value * share * (1 + gate * (1 - share)), dy * gate * share], dim=1).to(x.dtype)


def main(*, M=8192, N=14336, block_M=1, block_N=2048):
    forward, backward = swiglu(M, N, block_M, block_N), swiglu_gradient(M, N, block_M, block_N)
    torch.manual_seed(0)
    x = torch.randn(M, 2 * N, dtype=torch.bfloat16, device=DEVICE)
    dy = torch.randn(M, N, dtype=torch.bfloat16, device=DEVICE)

    error = largest_error(forward(x), reference(x), rtol=8e-3, atol=1e-6)  # one bfloat16 step
    # The derivative of silu has a zero near -1.28, where terms cancel.
    largest_error(backward(x, dy), reference_gradient(x, dy), rtol=8e-3, atol=1e-5)
    for name, run, plain, units in (
        ("SwiGLU", lambda: forward(x), lambda: reference(x), 3),
        ("its gradient", lambda: backward(x, dy), lambda: reference_gradient(x, dy), 5),
    ):
        print_speed(f"{name}, {M} x {N}", run, plain, bytes_moved=2 * units * M * N)
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
