"""Attention, forward: multi-head or grouped-query, causal or not, with an optional sliding window.

O = softmax(Q K^T / sqrt(dim)) V in float16, for Q[batch, heads, queries, dim], K[batch, kv_heads, keys, dim] and
V[batch, kv_heads, keys, value_dim], whose heads are as long unless `value_dim` says otherwise.
Each block keeps block_M queries of one head in registers and walks over the keys in tiles of block_N; the running
maximum and sum of each row rescale what has been accumulated so far (Milakov and Gimelshein 2018; Dao et al. 2022), so
that the scores never reach memory. Exponentials are powers of two, with log2(e) folded into the scale.

With `causal` the last query sees the last key. With a window of w, a query sees no key before the w last ones up to its
own position. The walk starts at the first tile that some query of the block sees and ends with the last one. Only tiles
that are not seen in full are masked: at the window's start, on the diagonal, and the ragged last one. LSE, the
logarithm to base 2 of each row's sum of exponentials, is what attention_backward.py needs.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, backend, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"batch": 1, "heads": 4, "kv_heads": 2, "queries": 40, "keys": 56, "dim": 16, "block_M": 16, "block_N": 16}
LOWEST = -1e30  # finite, so that a row that has seen no key yet does not compute inf - inf


@T.macro
def add_tile(scores, scale, highest, previous, rescale, total, tile_total, acc):
    """Make weights of a tile's scores, 2 ** (scores * scale - highest), and add their sums to `total`.

    Before, `total` and `acc` are rescaled to what `highest`, the rows' maximum, becomes.
    """
    rows, keys = scores.shape
    T.copy(highest, previous)
    T.reduce_max(scores, highest, dim=1)
    for i in T.Parallel(rows):
        highest[i] = T.max(previous[i], highest[i] * scale)
        rescale[i] = T.exp2(previous[i] - highest[i])
    for i, j in T.Parallel(rows, keys):
        scores[i, j] = T.exp2(scores[i, j] * scale - highest[i])
    T.reduce_sum(scores, tile_total, dim=1)
    for i in T.Parallel(rows):
        total[i] = total[i] * rescale[i] + tile_total[i]
    for i, j in T.Parallel(rows, acc.shape[1]):
        acc[i, j] *= rescale[i]


@tiledsl.jit(out_idx=[3, 4])
def attention(
    batch,
    heads,
    kv_heads,
    queries,
    keys,
    dim,
    causal=False,
    window=0,
    dtype="float16",
    block_M=128,
    block_N=128,
    threads=256,
    num_stages=2,
    value_dim=0,
):
    group = heads // kv_heads
    value_dim = value_dim or dim
    scale = math.log2(math.e) / math.sqrt(dim)
    past = keys - queries  # query i is at position past + i
    some_rows_empty = causal and past < 0

    @T.prim_func
    def attention_forward(
        Q: T.Tensor((batch, heads, queries, dim), dtype),
        K: T.Tensor((batch, kv_heads, keys, dim), dtype),
        V: T.Tensor((batch, kv_heads, keys, value_dim), dtype),
        O: T.Tensor((batch, heads, queries, value_dim), dtype),
        LSE: T.Tensor((batch, heads, queries), "float32"),
    ):
        with T.Kernel(T.ceildiv(queries, block_M), heads, batch, threads=threads) as (bx, head, b):
            q = T.alloc_shared((block_M, dim), dtype)
            k = T.alloc_shared((block_N, dim), dtype)
            v = T.alloc_shared((block_N, value_dim), dtype)
            scores = T.alloc_fragment((block_M, block_N), "float32")
            weights = T.alloc_fragment((block_M, block_N), dtype)
            acc = T.alloc_fragment((block_M, value_dim), "float32")
            highest = T.alloc_fragment((block_M,), "float32")
            previous = T.alloc_fragment((block_M,), "float32")
            rescale = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            tile_total = T.alloc_fragment((block_M,), "float32")

            position = bx * block_M + past  # of the block's first query
            kv_head = head // group

            @T.macro
            def visit(tile, masked):
                T.copy(K[b, kv_head, tile * block_N, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                if masked:
                    for i, j in T.Parallel(block_M, block_N):
                        key = tile * block_N + j
                        seen = key <= position + i if causal else key < keys
                        if window:
                            seen = seen and key > position + i - window
                        scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
                add_tile(scores, scale, highest, previous, rescale, total, tile_total, acc)
                T.copy(scores, weights)
                T.copy(V[b, kv_head, tile * block_N, 0], v)
                T.gemm(weights, v, acc)

            T.copy(Q[b, head, bx * block_M, 0], q)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, LOWEST)
            # Tiles from `first` to `inner` begin before some window, and those from `full` to `end` have later keys.
            inner = 0
            full = keys // block_N
            end = T.ceildiv(keys, block_N)
            if causal:
                full = T.min(full, T.max(0, position + 1) // block_N)
                end = T.min(end, T.ceildiv(T.max(0, position + block_M), block_N))
            if window:
                first = T.max(0, position - window + 1) // block_N
                inner = T.min(end, T.ceildiv(T.max(0, position + block_M - window), block_N))
                full = T.max(inner, full)
                for tile in T.Pipelined(first, inner, num_stages=num_stages):
                    visit(tile, True)
            for tile in T.Pipelined(inner, full, num_stages=num_stages):
                visit(tile, False)
            if causal or keys % block_N:
                for tile in T.Pipelined(full, end, num_stages=num_stages):
                    visit(tile, True)

            if some_rows_empty:
                for i in T.Parallel(block_M):
                    total[i] = T.if_then_else(total[i] == 0, 1, total[i])
            for i, j in T.Parallel(block_M, value_dim):
                acc[i, j] /= total[i]
            T.copy(acc, O[b, head, bx * block_M, 0])
            for i in T.Parallel(block_M):
                total[i] = highest[i] + T.log2(total[i])
            T.copy(total, LSE[b, head, bx * block_M])

    return attention_forward


def reference(q, k, v, causal=False, window=0):
    """softmax(Q K^T / sqrt(dim)) V in torch operations, in the tensors' own dtype; 0 for a query that sees no key."""
    group, (queries, keys) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal or window:
        distance = torch.arange(keys - queries, keys, device=q.device)[:, None] - torch.arange(keys, device=q.device)
        hidden = distance < 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
        if window:
            hidden |= distance >= window
        scores = scores.masked_fill(hidden, float("-inf"))
        weights = torch.softmax(scores, dim=-1).masked_fill(hidden.all(dim=-1, keepdim=True), 0)
    else:
        weights = torch.softmax(scores, dim=-1)
    return weights @ v


def seen_pairs(queries, keys, causal=False, window=0):
    """How many (query, key) pairs count: 4 * dim operations each."""
    if not causal and not window:
        return queries * keys
    positions = torch.arange(keys - queries, keys)
    last = positions.clamp(-1, keys - 1) if causal else torch.full_like(positions, keys - 1)
    first = (positions - window + 1).clamp(min=0) if window else torch.zeros_like(positions)
    return int((last - first + 1).clamp(min=0).sum())


def random_inputs(batch, heads, kv_heads, queries, keys, dim, dtype=torch.float16):
    torch.manual_seed(0)
    q = torch.randn(batch, heads, queries, dim, dtype=dtype, device=DEVICE)
    k, v = (torch.randn(batch, kv_heads, keys, dim, dtype=dtype, device=DEVICE) for _ in range(2))
    return q, k, v


def main(
    *, batch=4, heads=32, kv_heads=32, queries=4096, keys=4096, dim=128, causal=0, window=0, block_M=128, block_N=128
):
    kernel = attention(
        batch, heads, kv_heads, queries, keys, dim, bool(causal), window, block_M=block_M, block_N=block_N
    )
    q, k, v = random_inputs(batch, heads, kv_heads, queries, keys, dim)

    # The weights are rounded to float16 before they meet V, here before the division by their sum, in torch after it.
    out = kernel(q, k, v)[0]
    error = largest_error(out, reference(q.float(), k.float(), v.float(), causal, window), rtol=5e-3, atol=2e-3)
    kind = f"{'causal ' if causal else ''}attention{f' with a window of {window}' if window else ''}"
    print_speed(
        f"{kind}, {batch} x {heads}/{kv_heads} heads, {queries} x {keys}, dim {dim}, in {backend(kernel)}",
        lambda: kernel(q, k, v),
        lambda: reference(q, k, v, causal, window),
        operations=4 * batch * heads * seen_pairs(queries, keys, causal, window) * dim,
    )
    if DEVICE == "cuda" and not window and (not causal or queries == keys):  # torch's causal mask is another otherwise
        options = {"is_causal": bool(causal), "enable_gqa": heads != kv_heads}
        ours = tiledsl.do_bench(lambda: kernel(q, k, v))
        fused = tiledsl.do_bench(lambda: F.scaled_dot_product_attention(q, k, v, **options))
        print(f"  {fused / ours:.2f}x the speed of torch's scaled_dot_product_attention ({fused:.4f} ms)")
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
