"""Programs that memory bounds and that no example fits: quantised rows, hyper-connections, transposes."""

from __future__ import annotations

import tiledsl
import tiledsl.language as T

E4M3_MAX = 448.0


@tiledsl.jit(out_idx=[1, 2])
def quantise_rows(M, N, block_M=1, threads=128):
    """Y[M, N] = X / scales in float8 (e4m3), scales[M] = max(largest |X| of the row, 1e-4) / 448. A token's row, or one
    of its groups of channels, which are rows of a contiguous tensor."""

    @T.prim_func
    def quantise_rows(
        X: T.Tensor((M, N), "bfloat16"), Y: T.Tensor((M, N), "float8_e4m3fn"), scales: T.Tensor((M,), "float32")
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as block:
            x = T.alloc_fragment((block_M, N), "float32")
            largest = T.alloc_fragment((block_M,), "float32")
            inverse = T.alloc_fragment((block_M,), "float32")

            T.copy(X[block * block_M, 0], x)
            T.reduce_absmax(x, largest, dim=1)
            for i in T.Parallel(block_M):
                scales[block * block_M + i] = T.max(largest[i], 1e-4) / E4M3_MAX
                inverse[i] = E4M3_MAX / T.max(largest[i], 1e-4)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = T.clamp(x[i, j] * inverse[i], -E4M3_MAX, E4M3_MAX)
            T.copy(x, Y[block * block_M, 0])

    return quantise_rows


@tiledsl.jit(out_idx=[-1])
def mhc_post(tokens, streams, N, block_N=512, threads=128):
    """Y[t, o] = mix[t, o] * X[t] + the sum over i of comb[t, i, o] * residual[t, i]: rows of N of `streams` streams."""

    @T.prim_func
    def mhc_post(
        X: T.Tensor((tokens, N), "bfloat16"),
        residual: T.Tensor((tokens, streams, N), "bfloat16"),
        mix: T.Tensor((tokens, streams), "float32"),
        comb: T.Tensor((tokens, streams, streams), "float32"),
        Y: T.Tensor((tokens, streams, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), tokens, threads=threads) as (block, t):
            total = T.alloc_fragment((streams, block_N), "float32")
            for o, j in T.Parallel(streams, block_N):
                total[o, j] = mix[t, o] * X[t, block * block_N + j]
            for i in T.unroll(streams):
                for o, j in T.Parallel(streams, block_N):
                    total[o, j] += comb[t, i, o] * residual[t, i, block * block_N + j]
            T.copy(total, Y[t, 0, block * block_N])

    return mhc_post


@tiledsl.jit(out_idx=[-1])
def heads_first(batch, length, heads, dim, block_S=8, block_H=4, threads=128):
    """Y[batch, heads, length, dim] of X[batch, length, heads, dim]."""

    @T.prim_func
    def heads_first(
        X: T.Tensor((batch, length, heads, dim), "bfloat16"), Y: T.Tensor((batch, heads, length, dim), "bfloat16")
    ):
        with T.Kernel(T.ceildiv(heads, block_H), T.ceildiv(length, block_S), batch, threads=threads) as (bh, bs, b):
            for k, i, j in T.Parallel(block_H, block_S, dim):
                s, h = bs * block_S + i, bh * block_H + k
                Y[b, h, s, j] = X[b, s, h, j]

    return heads_first


@tiledsl.jit(out_idx=[-1])
def transpose(M, N, block_M=64, block_N=64, threads=128):
    """Y[N, M] = X[M, N].T, through shared memory."""

    @T.prim_func
    def transpose(X: T.Tensor((M, N), "bfloat16"), Y: T.Tensor((N, M), "bfloat16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            x = T.alloc_shared((block_M, block_N), "bfloat16")
            turned = T.alloc_shared((block_N, block_M), "bfloat16")
            T.copy(X[by * block_M, bx * block_N], x)
            T.transpose(x, turned)
            T.copy(turned, Y[bx * block_N, by * block_M])

    return transpose
