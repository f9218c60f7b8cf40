"""A linear layer with bias, activation and residual in one kernel, in the eager style: the function is the program.

Y[M, N] = R[M, N] + act(X[M, K] @ W[N, K].T + bias[N]) in bfloat16, act being gelu or relu. The product is tiled as in
gemm_lazy.py. What follows the product works on the float32 tile while it is still in registers; eager torch writes and
reads Y once more for the activation and once more for the residual.

An eager function is called with tensors. T.const names the sizes that it finds in them; other sizes compile anew.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 70, "N": 100, "K": 72, "block_M": 32, "block_N": 64, "block_K": 32}


def gelu(x):
    # An ordinary function that returns an expression; it is called while the program is read. The tanh form of gelu,
    # x / 2 * (1 + tanh(u)), is x * sigmoid(2 * u), which needs fewer registers than a tanh or an erf.
    return x * T.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


def relu(x):
    return T.max(x, 0.0)


@tiledsl.jit
def linear(X, W, bias, R, activation=gelu, block_M=128, block_N=256, block_K=64, num_stages=3, threads=256):
    M, N, K = T.const("M, N, K")
    X: T.Tensor((M, K), "bfloat16")
    W: T.Tensor((N, K), "bfloat16")
    bias: T.Tensor((N,), "bfloat16")
    R: T.Tensor((M, N), "bfloat16")
    Y = T.empty((M, N), "bfloat16")

    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        X_tile = T.alloc_shared((block_M, block_K), "bfloat16")
        W_tile = T.alloc_shared((block_N, block_K), "bfloat16")
        total = T.alloc_fragment((block_M, block_N), "float32")
        R_tile = T.alloc_fragment((block_M, block_N), "bfloat16")
        bias_tile = T.alloc_fragment((block_N,), "bfloat16")

        T.use_swizzle(panel_size=8)
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(X[by * block_M, k * block_K], X_tile)
            T.copy(W[bx * block_N, k * block_K], W_tile)
            T.gemm(X_tile, W_tile, total, transpose_B=True)

        T.copy(bias[bx * block_N], bias_tile)
        for i, j in T.Parallel(block_M, block_N):
            total[i, j] = activation(total[i, j] + bias_tile[j])
        T.copy(R[by * block_M, bx * block_N], R_tile)
        for i, j in T.Parallel(block_M, block_N):
            total[i, j] += R_tile[i, j]
        T.copy(total, Y[by * block_M, bx * block_N])
    return Y


def torch_gelu(x):
    return F.gelu(x, approximate="tanh")


def reference(x, w, bias, residual, activation=torch_gelu):
    return residual + activation(F.linear(x, w, bias))


def main(*, M=8192, N=8192, K=2048, block_M=128, block_N=256, block_K=64):
    torch.manual_seed(0)
    x = torch.randn(M, K, dtype=torch.bfloat16, device=DEVICE)
    w = torch.randn(N, K, dtype=torch.bfloat16, device=DEVICE) / K**0.5
    bias = torch.randn(N, dtype=torch.bfloat16, device=DEVICE)
    residual = torch.randn(M, N, dtype=torch.bfloat16, device=DEVICE)
    tiles = {"block_M": block_M, "block_N": block_N, "block_K": block_K}

    worst = 0.0
    for ours, theirs in ((gelu, torch_gelu), (relu, F.relu)):
        actual = linear(x, w, bias, residual, activation=ours, **tiles)
        # Torch rounds to bfloat16 (8 bits) after each of three steps and we do once: up to three steps apart.
        expected = reference(x, w, bias, residual, theirs)
        worst = max(worst, largest_error(actual, expected, rtol=1.6e-2, atol=3e-2))

    kernel = linear.compile(x, w, bias, residual, **tiles)  # what the calls above made, without looking it up each time
    print_speed(
        f"residual + gelu(linear), {M} x {N} x {K}",
        lambda: kernel(x, w, bias, residual),
        lambda: reference(x, w, bias, residual),
        operations=2 * M * N * K,
    )
    return worst


if __name__ == "__main__":
    run_script(main, SMALL)
