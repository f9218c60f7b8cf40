"""Float8 matrix product with a scale for each 1 x 128 block of X and each 128 x 128 block of W.

Y[m, n] = sum over blocks kb of x_scale[m, kb] * w_scale[n // 128, kb] * (sum over k in kb of X[m, k] * W[n, k]), in
bfloat16. A step along K is one scale block, so each step's product is made from zero on the tensor cores, scaled in
registers and then added to the float32 total. Since block_N divides 128, a block's columns lie in one row of w_scale.
cast_fp8_per_token.py makes X and x_scale.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 48, "N": 160, "K": 300, "block_M": 32, "block_N": 64}
GROUP = 128  # elements along K, and along N for the weights, that share a scale


@tiledsl.jit(out_idx=[-1])
def matmul_blockscale(M, N, K, block_M, block_N, num_stages=3, threads=256):
    assert GROUP % block_N == 0, f"block_N={block_N} does not divide {GROUP}"
    groups = T.ceildiv(K, GROUP)

    @T.prim_func
    def matmul_blockscale(
        X: T.Tensor((M, K), "float8_e4m3fn"),
        W: T.Tensor((N, K), "float8_e4m3fn"),
        x_scale: T.Tensor((M, groups), "float32"),
        w_scale: T.Tensor((T.ceildiv(N, GROUP), groups), "float32"),
        Y: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            X_tile = T.alloc_shared((block_M, GROUP), "float8_e4m3fn")
            W_tile = T.alloc_shared((block_N, GROUP), "float8_e4m3fn")
            scales = T.alloc_fragment((block_M,), "float32")
            product = T.alloc_fragment((block_M, block_N), "float32")
            total = T.alloc_fragment((block_M, block_N), "float32")

            T.use_swizzle(panel_size=8)
            T.clear(total)
            for kb in T.Pipelined(groups, num_stages=num_stages):
                T.copy(X[by * block_M, kb * GROUP], X_tile)
                T.copy(W[bx * block_N, kb * GROUP], W_tile)
                for i in T.Parallel(block_M):
                    scales[i] = x_scale[by * block_M + i, kb] * w_scale[bx * block_N // GROUP, kb]
                T.gemm(X_tile, W_tile, product, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    total[i, j] += product[i, j] * scales[i]
            T.copy(total, Y[by * block_M, bx * block_N])

    return matmul_blockscale


def reference(x, w, x_scale, w_scale):
    wide_x = x.float() * x_scale.repeat_interleave(GROUP, 1)[:, : x.shape[1]]
    per_row = w_scale.repeat_interleave(GROUP, 0)[: w.shape[0]]
    wide_w = w.float() * per_row.repeat_interleave(GROUP, 1)[:, : w.shape[1]]
    return F.linear(wide_x, wide_w).to(torch.bfloat16)


def main(*, M=4096, N=6144, K=7168, block_M=128, block_N=128):
    kernel = matmul_blockscale(M, N, K, block_M, block_N)
    torch.manual_seed(0)
    groups = -(-K // GROUP)
    x = (torch.rand(M, K, device=DEVICE) - 0.5).to(torch.float8_e4m3fn)
    w = (torch.rand(N, K, device=DEVICE) - 0.5).to(torch.float8_e4m3fn)
    x_scale = torch.rand(M, groups, device=DEVICE)
    w_scale = torch.rand(-(-N // GROUP), groups, device=DEVICE)

    # One bfloat16 rounding each, plus the 14 bits in which Hopper's tensor cores sum 128 float8 products.
    error = largest_error(kernel(x, w, x_scale, w_scale), reference(x, w, x_scale, w_scale), rtol=1e-2, atol=1e-2)
    print_speed(
        f"block-scaled e4m3 X @ W.T, {M} x {N} x {K}",
        lambda: kernel(x, w, x_scale, w_scale),
        lambda: reference(x, w, x_scale, w_scale),
        operations=2 * M * N * K,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
