"""Causal attention with attention sinks and an optional sliding window, grouped-query, forward.

Each head has one learned logit, its sink, that takes part in the softmax of every query but has no value: attention
that goes there is lost (Xiao et al. 2023; gpt-oss). O = sum_j exp(s_j) V_j / (exp(sink) + sum_j exp(s_j)), in bfloat16,
for Q[batch, heads, queries, dim] and K, V[batch, kv_heads, keys, dim]; the last query is at the last key's position.

In the online softmax a sink costs nothing: it is where the running maximum and sum start, highest = sink and total = 1
instead of -inf and 0. With a window of w a query sees the w keys up to its own position, and the walk over the keys
starts at the first tile that some query of the block sees. Windows are taken to be short, a few tiles, so that all of
these are masked; attention.py leaves out what a long one does not need.
"""

from __future__ import annotations

import math

import torch
from _check_and_time import DEVICE, backend, largest_error, print_speed, run_script
from attention import add_tile, random_inputs, seen_pairs

import tiledsl
import tiledsl.language as T

SMALL = {"batch": 1, "heads": 4, "kv_heads": 2, "queries": 40, "keys": 56, "dim": 16, "block_M": 16, "block_N": 16}
LOG2E = math.log2(math.e)


@tiledsl.jit(out_idx=[4])
def attention_sink(
    batch,
    heads,
    kv_heads,
    queries,
    keys,
    dim,
    window=0,
    dtype="bfloat16",
    block_M=128,
    block_N=64,
    threads=128,
    num_stages=2,
):
    group = heads // kv_heads
    scale = LOG2E / math.sqrt(dim)
    past = keys - queries

    @T.prim_func
    def attention_sink_forward(
        Q: T.Tensor((batch, heads, queries, dim), dtype),
        K: T.Tensor((batch, kv_heads, keys, dim), dtype),
        V: T.Tensor((batch, kv_heads, keys, dim), dtype),
        sinks: T.Tensor((heads,), "float32"),
        O: T.Tensor((batch, heads, queries, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(queries, block_M), heads, batch, threads=threads) as (bx, head, b):
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

            position = bx * block_M + past  # of the block's first query
            kv_head = head // group

            @T.macro
            def visit(tile, masked):
                T.copy(K[b, kv_head, tile * block_N, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                if masked:
                    for i, j in T.Parallel(block_M, block_N):
                        age = position + i - (tile * block_N + j)
                        seen = age >= 0
                        if window:
                            seen = seen and age < window
                        scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
                add_tile(scores, scale, highest, previous, rescale, total, tile_total, acc)
                T.copy(scores, weights)
                T.copy(V[b, kv_head, tile * block_N, 0], v)
                T.gemm(weights, v, acc)

            T.copy(Q[b, head, bx * block_M, 0], q)
            T.clear(acc)
            T.fill(total, 1)
            T.fill(highest, sinks[head] * LOG2E)

            end = T.min(T.ceildiv(keys, block_N), T.ceildiv(T.max(0, position + block_M), block_N))
            if window:
                for tile in T.Pipelined(T.max(0, position - window + 1) // block_N, end, num_stages=num_stages):
                    visit(tile, True)
            else:
                full = T.min(keys // block_N, T.max(0, position + 1) // block_N)
                for tile in T.Pipelined(full, num_stages=num_stages):
                    visit(tile, False)
                for tile in T.Pipelined(full, end, num_stages=num_stages):
                    visit(tile, True)

            for i, j in T.Parallel(block_M, dim):
                acc[i, j] /= total[i]
            T.copy(acc, O[b, head, bx * block_M, 0])

    return attention_sink_forward


def reference(q, k, v, sinks, window=0):
    """The same in torch operations, in the tensors' own dtype: the sink is one more column of scores."""
    group, (queries, keys) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    age = torch.arange(keys - queries, keys, device=q.device)[:, None] - torch.arange(keys, device=q.device)
    hidden = (age < 0) | (age >= window) if window else age < 0
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
    column = sinks.to(q.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
    weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    return weights @ v


def main(*, batch=2, heads=64, kv_heads=8, queries=4096, keys=4096, dim=64, window=128, block_M=128, block_N=64):
    kernel = attention_sink(batch, heads, kv_heads, queries, keys, dim, window, block_M=block_M, block_N=block_N)
    q, k, v = random_inputs(batch, heads, kv_heads, queries, keys, dim, torch.bfloat16)
    sinks = torch.randn(heads, device=DEVICE)

    # bfloat16 keeps 8 bits: the weights are rounded before they meet V, and the result once more.
    expected = reference(q.float(), k.float(), v.float(), sinks, window)
    error = largest_error(kernel(q, k, v, sinks), expected, rtol=2e-2, atol=1e-2)
    shape = f"{batch} x {heads}/{kv_heads} heads, {queries} x {keys}, dim {dim}, window {window or 'none'}"
    print_speed(
        f"attention with sinks, {shape}, in {backend(kernel)}",
        lambda: kernel(q, k, v, sinks),
        lambda: reference(q, k, v, sinks, window),
        operations=4 * batch * heads * seen_pairs(queries, keys, True, window) * dim,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
