"""Causal attention with sinks over sequences of any lengths, which may have fewer keys than queries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

import tiledsl.language as T

DIM, BLOCK = 128, 128


def ragged_attention(queries: int, keys: int, batch: int, heads: int, kv_heads: int, most: int) -> Any:
    """Sequences lie one after the other; the last query of each sees its last key. `most`: queries of a sequence."""
    group, scale = heads // kv_heads, math.log2(math.e) / math.sqrt(DIM)

    @T.prim_func
    def ragged_attention(
        Q: T.Tensor((queries, heads, DIM), "float16"),
        K: T.Tensor((keys, kv_heads, DIM), "float16"),
        V: T.Tensor((keys, kv_heads, DIM), "float16"),
        q_starts: T.Tensor((batch + 1,), "int32"),
        k_starts: T.Tensor((batch + 1,), "int32"),
        sinks: T.Tensor((heads,), "float32"),
        O: T.Tensor((queries, heads, DIM), "float16"),
    ):
        with T.Kernel(T.ceildiv(most, BLOCK), heads, batch, threads=256) as (bx, head, b):
            q = T.alloc_shared((BLOCK, DIM), "float16")
            k = T.alloc_shared((BLOCK, DIM), "float16")
            v = T.alloc_shared((BLOCK, DIM), "float16")
            scores = T.alloc_fragment((BLOCK, BLOCK), "float32")
            weights = T.alloc_fragment((BLOCK, BLOCK), "float16")
            acc = T.alloc_fragment((BLOCK, DIM), "float32")
            highest = T.alloc_fragment((BLOCK,), "float32")
            previous = T.alloc_fragment((BLOCK,), "float32")
            rescale = T.alloc_fragment((BLOCK,), "float32")
            total = T.alloc_fragment((BLOCK,), "float32")
            tile_total = T.alloc_fragment((BLOCK,), "float32")
            sink = T.alloc_fragment((BLOCK,), "float32")

            first = q_starts[b]
            first_key = k_starts[b]
            length = q_starts[b + 1] - first
            keys_here = k_starts[b + 1] - first_key
            past = keys_here - length
            T.copy(Q[first + bx * BLOCK : first + (bx + 1) * BLOCK, head, :], q)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, -T.infinity("float32"))
            for i in T.Parallel(BLOCK):
                sink[i] = sinks[head]
            seen = T.min(T.ceildiv(past + (bx + 1) * BLOCK, BLOCK), T.ceildiv(keys_here, BLOCK))
            for tile in T.Pipelined(seen, num_stages=2):
                at = first_key + tile * BLOCK
                T.copy(K[at : at + BLOCK, head // group, :], k)
                for i, j in T.Parallel(BLOCK, BLOCK):
                    row, column = bx * BLOCK + i, tile * BLOCK + j
                    hidden = (row + past < column) | (row >= length) | (column >= keys_here)
                    scores[i, j] = T.if_then_else(hidden, -T.infinity("float32"), 0)
                T.gemm(q, k, scores, transpose_B=True)
                T.copy(highest, previous)
                T.reduce_max(scores, highest, dim=1, clear=False)
                for i in T.Parallel(BLOCK):
                    rescale[i] = T.exp2((previous[i] - highest[i]) * scale)
                for i, j in T.Parallel(BLOCK, BLOCK):
                    scores[i, j] = T.exp2((scores[i, j] - highest[i]) * scale)
                T.reduce_sum(scores, tile_total, dim=1)
                for i in T.Parallel(BLOCK):
                    total[i] = total[i] * rescale[i] + tile_total[i]
                T.copy(scores, weights)
                for i, d in T.Parallel(BLOCK, DIM):
                    acc[i, d] *= rescale[i]
                T.copy(V[at : at + BLOCK, head // group, :], v)
                T.gemm(weights, v, acc)
            for i in T.Parallel(BLOCK):
                total[i] += T.exp2((sink[i] - highest[i]) * scale)
            for i, d in T.Parallel(BLOCK, DIM):
                acc[i, d] = T.if_then_else(bx * BLOCK + i + past < 0, 0, acc[i, d] / total[i])
            for i, d in T.Parallel(BLOCK, DIM):
                if bx * BLOCK + i < length:
                    O[first + bx * BLOCK + i, head, d] = acc[i, d]

    return ragged_attention


def starts(lengths: Sequence[int], device: str = "cpu") -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


def expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int], keys: Sequence[int], sinks: torch.Tensor
) -> torch.Tensor:
    """In float32, sequence by sequence. A row that sees no key is 0."""
    out, group = [], q.shape[1] // k.shape[1]
    for one_q, one_k, one_v in zip(q.split([*lengths]), k.split([*keys]), v.split([*keys]), strict=True):
        all_k, all_v = (each.float().repeat_interleave(group, 1).transpose(0, 1) for each in (one_k, one_v))
        scores = one_q.float().transpose(0, 1) @ all_k.mT / math.sqrt(DIM)
        hidden = torch.ones(scores.shape[1:], device=q.device).triu(1 + len(one_k) - len(one_q)).bool()
        scores = scores.masked_fill(hidden, -math.inf)
        sink = (sinks.float() / math.sqrt(DIM))[:, None, None].expand(*scores.shape[:2], 1)
        weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
        out.append((weights @ all_v).transpose(0, 1))
    return torch.cat(out)
