"""Attention to keys that are chosen one by one: loops whose tiles are gathered rows."""

from __future__ import annotations

import math
from typing import Any

import torch

import tiledsl.language as T


def sparse(
    blocks: int, turns: int, depth: int = 2, rows: int = 64, width: int = 64, block: int = 64, **how: Any
) -> Any:
    """Block b attends to rows of KV that `chosen` has for it; what is no row, as -1, does not count.

    latent: values are the keys; else they follow these in a row. rope: so many further columns of keys, a tile of their
    own. asked: rows are asked for with a condition; else bounds are all that is checked. varying: `lengths` has the
    turns of each block. apart: queries are every so-many-th row.
    """
    latent, rope = how.get("latent", True), how.get("rope", 0)
    asked, varying, apart = how.get("asked", False), how.get("varying", True), how.get("apart", 1)
    columns, inner = width * (1 if latent else 2) + rope, width + rope

    @T.prim_func
    def sparse(
        Q: T.Tensor((blocks * rows, inner), "float16"),
        KV: T.Tensor((T.dynamic("keys"), columns), "float16"),
        chosen: T.Tensor((blocks, turns * block), "int32"),
        lengths: T.Tensor((blocks,), "int32"),
        O: T.Tensor((blocks * rows, width), "float32"),
    ):
        with T.Kernel(blocks, threads=how.get("threads", 256)) as bx:
            q, k = T.alloc_shared((rows, width), "float16"), T.alloc_shared((block, width), "float16")
            q_rope, k_rope = (
                T.alloc_shared((rows, rope or 16), "float16"),
                T.alloc_shared((block, rope or 16), "float16"),
            )
            v, seen = T.alloc_shared((block, width), "float16"), T.alloc_fragment((block,), "bool")
            s, acc = T.alloc_fragment((rows, block), "float32"), T.alloc_fragment((rows, width), "float32")
            weights, total = T.alloc_shared((rows, block), "float16"), T.alloc_fragment((rows,), "float32")
            more, highest = T.alloc_fragment((rows,), "float32"), T.alloc_fragment((rows,), "float32")
            previous = T.alloc_fragment((rows,), "float32")
            if apart == 1:
                T.copy(Q[bx * rows, 0], q)
            else:
                for i, c in T.Parallel(rows, width):
                    q[i, c] = Q[(bx * rows + i) * apart % (blocks * rows), c]
            if rope:
                T.copy(Q[bx * rows, width], q_rope)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, -1e30)
            for t in T.Pipelined(lengths[bx] if varying else turns, num_stages=depth):
                for j in T.Parallel(block):
                    seen[j] = chosen[bx, t * block + j] >= 0
                if asked:
                    for j, c in T.Parallel(block, width):
                        place = chosen[bx, t * block + j]
                        k[j, c] = T.if_then_else(place >= 0, KV[place, c], 0.0)
                else:
                    for j, c in T.Parallel(block, width):
                        k[j, c] = KV[chosen[bx, t * block + j], c]
                for i, j in T.Parallel(rows, block):
                    s[i, j] = T.if_then_else(seen[j], 0, -T.infinity("float32"))
                T.gemm(q, k, s, transpose_B=True)
                if rope:
                    for j, c in T.Parallel(block, rope):
                        k_rope[j, c] = KV[chosen[bx, t * block + j], width + c]
                    T.gemm(q_rope, k_rope, s, transpose_B=True)
                T.copy(highest, previous)
                T.reduce_max(s, highest, dim=1)
                for i in T.Parallel(rows):
                    highest[i] = T.max(previous[i], highest[i] * 0.125)
                for i, j in T.Parallel(rows, block):
                    s[i, j] = T.exp2(s[i, j] * 0.125 - highest[i])
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * T.exp2(previous[i] - highest[i]) + more[i]
                for i, j in T.Parallel(rows, width):
                    acc[i, j] *= T.exp2(previous[i] - highest[i])
                T.copy(s, weights)
                if latent:
                    T.gemm(weights, k, acc)
                else:
                    for j, c in T.Parallel(block, width):
                        v[j, c] = KV[chosen[bx, t * block + j], width + c]
                    T.gemm(weights, v, acc)
            for i, j in T.Parallel(rows, width):
                acc[i, j] = T.if_then_else(total[i] > 0, acc[i, j] / total[i], 0.0)
            T.copy(acc, O[bx * rows, 0])

    return sparse


def inputs(
    lengths: list[int], turns: int, rows: int = 64, width: int = 64, block: int = 64, keys: int = 100, **how: Any
) -> list[torch.Tensor]:
    """Q, KV, which keys are chosen, of which some are none, the turns of each block, and the result's place."""
    torch.manual_seed(0)
    rope = how.get("rope", 0)
    columns = width * (1 if how.get("latent", True) else 2) + rope
    q = torch.randn(len(lengths) * rows, width + rope).half()
    kv = torch.randn(keys, columns).half()
    chosen = torch.randint(-keys // 4, keys, (len(lengths), turns * block), dtype=torch.int32).clamp(min=-1)
    out = torch.full((len(lengths) * rows, width), float("nan"))
    return [q, kv, chosen, torch.tensor(lengths, dtype=torch.int32), out]


def want(
    q: torch.Tensor, kv: torch.Tensor, chosen: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor, apart: int = 1
) -> Any:
    """What sparse gives, by torch."""
    blocks, width = len(lengths), out.shape[1]
    q = q[torch.arange(len(q)) * apart % len(q)]
    rows, block = len(q) // blocks, chosen.shape[1] // max(1, int(lengths.max()))
    found = []
    for at, length in enumerate(lengths.tolist()):
        places = chosen[at, : length * block].long()
        places = places[places >= 0]
        keys, own = kv[places].float(), q[at * rows : (at + 1) * rows].float()
        inner = keys[:, : own.shape[1]] if kv.shape[1] == own.shape[1] else keys[:, :width]
        values = keys[:, :width] if kv.shape[1] == own.shape[1] else keys[:, width:]
        found.append(torch.softmax(own @ inner.T * 0.125 * math.log(2), -1) @ values)
    return torch.cat(found)
