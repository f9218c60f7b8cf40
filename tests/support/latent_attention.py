"""Decoding with latent attention: scores of two products, and values that are the keys. 64 heads are a block's rows."""

from __future__ import annotations

from typing import Any

import torch

import tiledsl.language as T

ROPE = 32
PAGE = 64


@T.macro
def weigh(s, kv, scale, weights, acc, highest, previous, total, more):
    """A tile of scores: the sums so far are rescaled to the new maxima, and its weighted values are added."""
    T.copy(highest, previous)
    T.reduce_max(s, highest, dim=1)
    for i in T.Parallel(s.shape[0]):
        highest[i] = T.max(previous[i], highest[i] * scale)
    for i, j in T.Parallel(*s.shape):
        s[i, j] = T.exp2(s[i, j] * scale - highest[i])
    T.reduce_sum(s, more, dim=1)
    for i in T.Parallel(s.shape[0]):
        total[i] = total[i] * T.exp2(previous[i] - highest[i]) + more[i]
    for i, j in T.Parallel(*acc.shape):
        acc[i, j] *= T.exp2(previous[i] - highest[i])
    T.copy(s, weights)
    T.gemm(weights, kv, acc)


def decode(batch: int = 1, heads: int = 64, keys: int = 128, dim: int = 64, threads: int = 256, **options: int) -> Any:
    """Keys of one length for all; `rows` and `block` are the tile's heads and keys."""
    rows, block = options.get("rows", 64), options.get("block", 64)
    scale = (dim + ROPE) ** -0.5 * 1.4426950408889634

    @T.prim_func
    def decode(
        Q: T.Tensor((batch, heads, dim), "float16"),
        Q_rope: T.Tensor((batch, heads, ROPE), "float16"),
        KV: T.Tensor((batch, keys, dim), "float16"),
        K_rope: T.Tensor((batch, keys, ROPE), "float16"),
        O: T.Tensor((batch, heads, dim), "float16"),
    ):
        with T.Kernel(heads // rows, batch, threads=threads) as (bx, by):
            q, q_rope = T.alloc_shared((rows, dim), "float16"), T.alloc_shared((rows, ROPE), "float16")
            kv, k_rope = T.alloc_shared((block, dim), "float16"), T.alloc_shared((block, ROPE), "float16")
            weights, out = T.alloc_shared((rows, block), "float16"), T.alloc_shared((rows, dim), "float16")
            s, acc = T.alloc_fragment((rows, block), "float32"), T.alloc_fragment((rows, dim), "float32")
            highest, previous = T.alloc_fragment((rows,), "float32"), T.alloc_fragment((rows,), "float32")
            total, more = T.alloc_fragment((rows,), "float32"), T.alloc_fragment((rows,), "float32")
            T.copy(Q[by, bx * rows, 0], q)
            T.copy(Q_rope[by, bx * rows, 0], q_rope)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, -1e30)
            for t in T.Pipelined(keys // block, num_stages=2):
                T.copy(KV[by, t * block, 0], kv)
                T.copy(K_rope[by, t * block, 0], k_rope)
                T.gemm(q, kv, s, transpose_B=True, clear_accum=True)
                T.gemm(q_rope, k_rope, s, transpose_B=True)
                weigh(s, kv, scale, weights, acc, highest, previous, total, more)
            for i, j in T.Parallel(rows, dim):
                acc[i, j] /= total[i]
            T.copy(acc, out)
            T.copy(out, O[by, bx * rows, 0])

    return decode


def decode_two(keys: int = 128, dim: int = 64) -> Any:
    """Two tiles of 64 keys in each turn, whose weights are tiles of their own."""
    rows, block = 64, 64
    scale = (dim + ROPE) ** -0.5 * 1.4426950408889634

    @T.prim_func
    def decode_two(
        Q: T.Tensor((1, rows, dim), "float16"),
        Q_rope: T.Tensor((1, rows, ROPE), "float16"),
        KV: T.Tensor((1, keys, dim), "float16"),
        K_rope: T.Tensor((1, keys, ROPE), "float16"),
        O: T.Tensor((1, rows, dim), "float16"),
    ):
        with T.Kernel(1, threads=256):
            q, q_rope = T.alloc_shared((rows, dim), "float16"), T.alloc_shared((rows, ROPE), "float16")
            kv, k_rope = T.alloc_shared((block, dim), "float16"), T.alloc_shared((block, ROPE), "float16")
            kv2, k_rope2 = T.alloc_shared((block, dim), "float16"), T.alloc_shared((block, ROPE), "float16")
            weights, weights2 = T.alloc_shared((rows, block), "float16"), T.alloc_shared((rows, block), "float16")
            s, s2 = T.alloc_fragment((rows, block), "float32"), T.alloc_fragment((rows, block), "float32")
            acc, out = T.alloc_fragment((rows, dim), "float32"), T.alloc_shared((rows, dim), "float16")
            highest, previous = T.alloc_fragment((rows,), "float32"), T.alloc_fragment((rows,), "float32")
            total, more = T.alloc_fragment((rows,), "float32"), T.alloc_fragment((rows,), "float32")
            T.copy(Q[0, 0, 0], q)
            T.copy(Q_rope[0, 0, 0], q_rope)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, -1e30)
            for t in T.Pipelined(keys // block // 2, num_stages=2):
                T.copy(KV[0, 2 * t * block, 0], kv)
                T.copy(K_rope[0, 2 * t * block, 0], k_rope)
                T.copy(KV[0, (2 * t + 1) * block, 0], kv2)
                T.copy(K_rope[0, (2 * t + 1) * block, 0], k_rope2)
                T.gemm(q, kv, s, transpose_B=True, clear_accum=True)
                T.gemm(q_rope, k_rope, s, transpose_B=True)
                T.gemm(q, kv2, s2, transpose_B=True, clear_accum=True)
                T.gemm(q_rope, k_rope2, s2, transpose_B=True)
                weigh(s, kv, scale, weights, acc, highest, previous, total, more)
                weigh(s2, kv2, scale, weights2, acc, highest, previous, total, more)
            for i, j in T.Parallel(rows, dim):
                acc[i, j] /= total[i]
            T.copy(acc, out)
            T.copy(out, O[0, 0, 0])

    return decode_two


def decode_paged(batch: int, pages: int, dim: int = 64, block: int = 64) -> Any:
    """Keys in pages, of other lengths for each sequence: the last block is masked."""
    scale = (dim + ROPE) ** -0.5 * 1.4426950408889634
    rows = 64

    @T.prim_func
    def decode_paged(
        Q: T.Tensor((batch, rows, dim), "float16"),
        Q_rope: T.Tensor((batch, rows, ROPE), "float16"),
        KV: T.Tensor((batch * pages * PAGE, dim), "float16"),
        K_rope: T.Tensor((batch * pages * PAGE, ROPE), "float16"),
        table: T.Tensor((batch, pages), "int32"),
        lengths: T.Tensor((batch,), "int32"),
        O: T.Tensor((batch, rows, dim), "float16"),
    ):
        with T.Kernel(batch, threads=256) as by:
            q, q_rope = T.alloc_shared((rows, dim), "float16"), T.alloc_shared((rows, ROPE), "float16")
            kv, k_rope = T.alloc_shared((block, dim), "float16"), T.alloc_shared((block, ROPE), "float16")
            weights, out = T.alloc_shared((rows, block), "float16"), T.alloc_shared((rows, dim), "float16")
            s, acc = T.alloc_fragment((rows, block), "float32"), T.alloc_fragment((rows, dim), "float32")
            highest, previous = T.alloc_fragment((rows,), "float32"), T.alloc_fragment((rows,), "float32")
            total, more = T.alloc_fragment((rows,), "float32"), T.alloc_fragment((rows,), "float32")
            T.copy(Q[by, 0, 0], q)
            T.copy(Q_rope[by, 0, 0], q_rope)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, -1e30)
            blocks = T.ceildiv(lengths[by], block)
            for t in T.Pipelined(blocks, num_stages=2):
                k = blocks - 1 - t
                start = table[by, k * block // PAGE] * PAGE + k * block % PAGE
                T.copy(KV[start : start + block, :], kv)
                T.copy(K_rope[start : start + block, :], k_rope)
                T.clear(s)
                T.gemm(q, kv, s, transpose_B=True)
                T.gemm(q_rope, k_rope, s, transpose_B=True)
                if t == 0:
                    for i, j in T.Parallel(rows, block):
                        s[i, j] = T.if_then_else(k * block + j >= lengths[by], -T.infinity("float32"), s[i, j])
                weigh(s, kv, scale, weights, acc, highest, previous, total, more)
            for i, j in T.Parallel(rows, dim):
                acc[i, j] = T.if_then_else(total[i] > 0, acc[i, j] / total[i], 0.0)
            T.copy(acc, out)
            T.copy(out, O[by, 0, 0])

    return decode_paged


def inputs(batch: int, heads: int, keys: int, dim: int = 64) -> list[torch.Tensor]:
    """Queries and keys, both with their second part."""
    torch.manual_seed(0)
    shapes = [(batch, heads, dim), (batch, heads, ROPE), (batch, keys, dim), (batch, keys, ROPE)]
    return [torch.randn(shape, dtype=torch.float16) for shape in shapes]


def reference(q: torch.Tensor, q_rope: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor) -> torch.Tensor:
    """What decode gives, in float32."""
    scores = q.float() @ kv.float().mT + q_rope.float() @ k_rope.float().mT
    return torch.softmax(scores * (q.shape[-1] + ROPE) ** -0.5, -1) @ kv.float()
