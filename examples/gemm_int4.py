"""Matrix product of float16 with four-bit weights (w4a16): of few rows, as decoding has them, and of many.

C[M, N] = A[M, K] @ W[N, K].T, W[n, k] = (q[n, k] - 8) * scales[k / 128, n]: weights from 0 to 15, and a scale for each
128 of a row. `pack` puts four of them into each word of 16 bits, those of four groups that follow each other: word j of
a row's 512 weights has the numbers j, 128 + j, 256 + j and 384 + j. A tile of words, shifted and masked, is then the
tile of a group, and neighbours stay neighbours. Sums of a group meet its scale in float32, so that the weights
themselves are small integers, which become float16 by two operations for each pair (legalize-arith).

Few rows: a block reads its columns' weights once; `splits` blocks share those of a column where there are few columns.
Many rows: the transposed product, so that weights are the left operand, which matrix instructions of Hopper read from
registers. What one turn makes of a tile of words are operands of as many products with 256 rows of A, and the tensor
cores multiply one while the next is made.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 3, "N": 48, "K": 1024, "block_N": 16}
GROUP, FIELDS = 128, 4
FEW = 128  # rows
WIDTH = GROUP * FIELDS


@tiledsl.jit(out_idx=[-1])
def matmul_int4(M, N, K, block_M=16, block_N=64, splits=1, num_stages=4, threads=128, dtype="float16"):
    """K is a multiple of 512 * splits."""
    steps = K // (WIDTH * splits)

    @T.macro
    def multiply(A, W, scales, bx, by, step, total):
        words = T.alloc_shared((block_N, GROUP), "uint16")
        T.copy(W[bx * block_N, step * GROUP], words)
        for field in T.unroll(FIELDS):
            tile = T.alloc_shared((block_M, GROUP), dtype)
            weights = T.alloc_fragment((block_N, GROUP), dtype)
            part = T.alloc_fragment((block_M, block_N), "float32")
            T.copy(A[by * block_M, step * WIDTH + field * GROUP], tile)
            for i, j in T.Parallel(block_N, GROUP):
                weights[i, j] = T.cast((words[i, j] >> (4 * field)) & 15, dtype) - 8
            T.gemm(tile, weights, part, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(block_M, block_N):
                total[i, j] += part[i, j] * scales[step * FIELDS + field, bx * block_N + j]

    @T.prim_func
    def matmul_int4(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K // FIELDS), "uint16"),
        scales: T.Tensor((K // GROUP, N), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            T.pdl_trigger()  # what follows is as short: its blocks may come, and wait
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(total)
            for step in T.Pipelined(steps, num_stages=num_stages):
                multiply(A, W, scales, bx, by, step, total)
            T.copy(total, C[by * block_M, bx * block_N])

    @T.prim_func
    def matmul_int4_split(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K // FIELDS), "uint16"),
        scales: T.Tensor((K // GROUP, N), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        parts = T.alloc_global((splits, M, N), "float32")
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), splits, threads=threads) as (bx, by, part):
            T.pdl_trigger()
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(total)
            for step in T.Pipelined(steps, num_stages=num_stages):
                multiply(A, W, scales, bx, by, part * steps + step, total)
            T.copy(total, parts[part, by * block_M, bx * block_N])
        with T.Kernel(T.ceildiv(N, 256), M, threads=64) as (bx, row):
            T.pdl_trigger()
            total = T.alloc_fragment((256,), "float32")
            T.clear(total)
            for part in T.serial(splits):
                for j in T.Parallel(256):
                    total[j] += parts[part, row, bx * 256 + j]
            T.copy(total, C[row, bx * 256])

    return matmul_int4 if splits == 1 else matmul_int4_split


@tiledsl.jit(out_idx=[-1])
def matmul_int4_many(M, N, K, block_M=256, block_N=128, depth=32, num_stages=2, threads=256, dtype="float16"):
    """K is a multiple of 512, and 128 of depth."""
    parts = GROUP // depth

    @T.prim_func
    def matmul_int4_many(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K // FIELDS), "uint16"),
        scales: T.Tensor((K // GROUP, N), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            words = T.alloc_shared((block_N, depth), "uint16")
            weights = T.alloc_fragment((block_N, depth), dtype)
            total = T.alloc_fragment((block_N, block_M), "float32")
            T.clear(total)
            for turn in T.Pipelined(K // (FIELDS * depth), num_stages=num_stages):
                step, at = turn // parts, turn % parts * depth
                T.copy(W[bx * block_N, step * GROUP + at], words)
                for field in T.unroll(FIELDS):
                    tile = T.alloc_shared((block_M, depth), dtype)
                    T.copy(A[by * block_M, step * WIDTH + field * GROUP + at], tile)
                    for i, j in T.Parallel(block_N, depth):
                        number = T.cast((words[i, j] >> (4 * field)) & 15, dtype) - 8
                        weights[i, j] = number * scales[step * FIELDS + field, bx * block_N + i]
                    T.gemm(weights, tile, total, transpose_B=True)
            for j, i in T.Parallel(block_M, block_N):
                C[by * block_M + j, bx * block_N + i] = total[i, j]

    return matmul_int4_many


def pack(q):
    """Integers from 0 to 15 [N, K] as words [N, K / 4]."""
    groups = q.to(torch.int32).unflatten(1, (-1, FIELDS, GROUP))
    words = sum(groups[:, :, field] << (4 * field) for field in range(FIELDS))
    return words.flatten(1).to(torch.uint16)


def unpack(words):
    """What was packed."""
    groups = words.to(torch.int32).unflatten(1, (-1, GROUP))
    return torch.stack([groups >> (4 * field) & 15 for field in range(FIELDS)], dim=2).flatten(1).to(torch.uint8)


def dequantised(q, scales):
    """The weights [N, K] in float32."""
    return (q.float() - 8) * scales.float().repeat_interleave(GROUP, 0).T


def random_weights(N, K, dtype=torch.float16):
    q = torch.randint(0, 16, (N, K), device=DEVICE, dtype=torch.uint8)
    return q, (torch.rand(K // GROUP, N, device=DEVICE) * K**-0.5).to(dtype)


def main(*, M=16, N=8192, K=8192, block_N=64, splits=1):
    many = M > FEW
    kernel = matmul_int4_many(M, N, K) if many else matmul_int4(M, N, K, block_N=block_N, splits=splits)
    torch.manual_seed(0)
    a = torch.randn(M, K, device=DEVICE, dtype=torch.float16)
    q, scales = random_weights(N, K)
    packed, wide = pack(q), dequantised(q, scales)

    # Sums in float32 of the same weights, in another order; the result is rounded once to float16.
    error = largest_error(kernel(a, packed, scales), a.float() @ wide.T, rtol=2e-3, atol=4e-3)
    half = wide.half()
    print_speed(
        f"float16 A @ int4 W.T, {M} x {N} x {K}, beside a product of float16",
        lambda: kernel(a, packed, scales),
        lambda: a @ half.T,
        **{"operations": 2 * M * N * K} if many else {"bytes_moved": N * K / 2 + 2 * scales.numel() + 2 * M * (N + K)},
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
