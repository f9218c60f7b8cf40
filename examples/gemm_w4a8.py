"""Matrix product of float8 (e4m3) with four-bit weights (e2m1) that have a scale for each 128 of a row (w4a8).

C[M, N] = (a_scale[m] A[m, :]) @ W[N, K].T, W[n, k] = e2m1(code[n, k]) * scales[k / 128, n]. `pack` puts two codes into
each byte, those of two groups that follow each other: byte j of a row's 256 weights has the numbers j and 128 + j.

A code's sign, exponent and bit of mantissa, moved apart, are a number of e4m3, smaller by 2^6: three operations for
four of them. The product is the transposed one, so that weights are the left operand, which matrix instructions of
Hopper read from registers; sums of a group meet its scale in float32.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 3, "N": 48, "K": 512, "block_M": 16}
GROUP, FIELDS = 128, 2
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of e2m1


@tiledsl.jit(out_idx=[-1])
def matmul_w4a8(M, N, K, block_M=128, block_N=128, num_stages=3, threads=256):
    """K is a multiple of 256."""
    dtype = "float8_e4m3fn"

    @T.prim_func
    def matmul_w4a8(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K // FIELDS), "uint8"),
        scales: T.Tensor((K // GROUP, N), "float32"),
        a_scale: T.Tensor((M,), "float32"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            codes = T.alloc_shared((block_N, GROUP), "uint8")
            weights = T.alloc_fragment((block_N, GROUP), dtype)
            part = T.alloc_fragment((block_N, block_M), "float32")
            total = T.alloc_fragment((block_N, block_M), "float32")
            T.clear(total)
            for turn in T.Pipelined(K // (FIELDS * GROUP), num_stages=num_stages):
                T.copy(W[bx * block_N, turn * GROUP], codes)
                for field in T.unroll(FIELDS):
                    tile = T.alloc_shared((block_M, GROUP), dtype)
                    T.copy(A[by * block_M, (turn * FIELDS + field) * GROUP], tile)
                    for i, j in T.Parallel(block_N, GROUP):
                        high = codes[i, j] << (4 - 4 * field)
                        weights[i, j] = T.reinterpret(T.cast((high & 0x80) | ((high & 0x70) >> 2), "uint8"), dtype)
                    T.gemm(weights, tile, part, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(block_N, block_M):
                        total[i, j] += part[i, j] * scales[turn * FIELDS + field, bx * block_N + i]
            for i, j in T.Parallel(block_N, block_M):
                total[i, j] *= a_scale[by * block_M + j] * 64
            for j, i in T.Parallel(block_M, block_N):
                C[by * block_M + j, bx * block_N + i] = total[i, j]

    return matmul_w4a8


def pack(codes):
    """Codes of e2m1 [N, K] as bytes [N, K / 2]."""
    groups = codes.unflatten(1, (-1, FIELDS, GROUP))
    return (groups[:, :, 0] | groups[:, :, 1] << 4).flatten(1)


def unpack(packed):
    """What was packed."""
    groups = packed.unflatten(1, (-1, GROUP))
    return torch.stack([groups & 15, groups >> 4], dim=2).flatten(1)


def dequantised(codes, scales):
    """The weights [N, K] in float32."""
    magnitude = torch.tensor(MAGNITUDES, device=codes.device)[(codes & 7).long()]
    return torch.where(codes > 7, -magnitude, magnitude) * scales.repeat_interleave(GROUP, 0).T


def random_inputs(M, N, K):
    """A, packed weights, their scales and those of A's rows."""
    a = torch.randn(M, K, device=DEVICE)
    a_scale = a.abs().amax(dim=1) / 448
    codes = torch.randint(0, 16, (N, K), device=DEVICE, dtype=torch.uint8)
    scales = torch.rand(K // GROUP, N, device=DEVICE) * K**-0.5
    return (a / a_scale[:, None]).to(torch.float8_e4m3fn), pack(codes), scales, a_scale


def main(*, M=4096, N=8192, K=8192, block_M=128):
    kernel = matmul_w4a8(M, N, K, block_M=block_M)
    torch.manual_seed(0)
    a, packed, scales, a_scale = random_inputs(M, N, K)
    wide, rows = dequantised(unpack(packed), scales), a.float() * a_scale[:, None]

    # The tensor cores add up some 14 bits of float8 products, 128 at a time; the result is rounded once to float16.
    error = largest_error(kernel(a, packed, scales, a_scale), rows @ wide.T, rtol=2e-2, atol=2e-2)
    half, wide = rows.half(), wide.half()
    print_speed(
        f"float8 A @ e2m1 W.T, {M} x {N} x {K}, beside a product of float16",
        lambda: kernel(a, packed, scales, a_scale),
        lambda: half @ wide.T,
        operations=2 * M * N * K,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
