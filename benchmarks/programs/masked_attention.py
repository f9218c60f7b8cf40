"""Attention whose one loop masks every tile by hand, as programs in TileLang's style often do."""

from __future__ import annotations

import math

import tiledsl
import tiledsl.language as T


@tiledsl.jit(out_idx=[-1])
def masked_attention(
    batch, heads, length, dim, causal, window=0, block_M=128, block_N=64, num_stages=2, threads=128, dtype="float16"
):
    """O = softmax(Q K^T / sqrt(dim)) V for Q, K, V, O[batch, heads, length, dim]; with a window, causal too."""
    scale = math.log2(math.e) / math.sqrt(dim)
    shape = (batch, heads, length, dim)

    @T.prim_func
    def masked_attention(
        Q: T.Tensor(shape, dtype), K: T.Tensor(shape, dtype), V: T.Tensor(shape, dtype), O: T.Tensor(shape, dtype)
    ):
        with T.Kernel(T.ceildiv(length, block_M), heads, batch, threads=threads) as (bx, head, b):
            q = T.alloc_shared((block_M, dim), dtype)
            k = T.alloc_shared((block_N, dim), dtype)
            v = T.alloc_shared((block_N, dim), dtype)
            scores = T.alloc_fragment((block_M, block_N), "float32")
            weights = T.alloc_fragment((block_M, block_N), dtype)
            acc = T.alloc_fragment((block_M, dim), "float32")
            highest = T.alloc_fragment((block_M,), "float32")
            previous = T.alloc_fragment((block_M,), "float32")
            rescale = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            tile_total = T.alloc_fragment((block_M,), "float32")
            T.copy(Q[b, head, bx * block_M, 0], q)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, -1e30)
            first = T.max(0, bx * block_M - window + 1) // block_N if window else 0
            end = T.ceildiv(length, block_N)
            if causal:
                end = T.min(end, T.ceildiv((bx + 1) * block_M, block_N))
            for tile in T.Pipelined(first, end, num_stages=num_stages):
                T.copy(K[b, head, tile * block_N, 0], k)
                for i, j in T.Parallel(block_M, block_N):
                    row, key = bx * block_M + i, tile * block_N + j
                    seen = key <= row if causal else key < length
                    if window:
                        seen = seen and row < key + window
                    scores[i, j] = T.if_then_else(seen, 0, -T.infinity("float32"))
                T.gemm(q, k, scores, transpose_B=True)
                T.copy(highest, previous)
                T.reduce_max(scores, highest, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    rescale[i] = T.exp2(previous[i] * scale - highest[i] * scale)
                for i, j in T.Parallel(block_M, block_N):
                    scores[i, j] = T.exp2(scores[i, j] * scale - highest[i] * scale)
                T.reduce_sum(scores, tile_total, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * rescale[i] + tile_total[i]
                T.copy(scores, weights)
                for i, j in T.Parallel(block_M, dim):
                    acc[i, j] *= rescale[i]
                T.copy(V[b, head, tile * block_N, 0], v)
                T.gemm(weights, v, acc)
            for i, j in T.Parallel(block_M, dim):
                acc[i, j] /= total[i]
            T.copy(acc, O[b, head, bx * block_M, 0])

    return masked_attention
