"""Attention, forward, of float8 (e4m3) queries, keys and values with a scale for each head; float16 out.

O = softmax(q_scale k_scale Q K^T / sqrt(dim)) V v_scale, for Q[batch, heads, queries, dim], K[batch, kv_heads, keys,
dim] and V[batch, kv_heads, dim, keys]: Hopper multiplies float8 tiles only if what is summed lies side by side, so that
V is given transposed. The weights are rounded to float8, too. They are at most 2^4 then, not 1, which the division by
their sum takes back: e4m3 reaches 448, which leaves room for maxima that rise, and its smallest numbers count for less.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, backend, print_speed, run_script
from attention import LOWEST, seen_pairs

import tiledsl
import tiledsl.language as T

SMALL = {"batch": 1, "heads": 4, "kv_heads": 2, "queries": 64, "keys": 96, "dim": 32, "block_M": 32, "block_N": 32}
LIFT = 4.0  # the largest weight's logarithm


@tiledsl.jit(out_idx=[-1])
def attention_fp8(
    batch, heads, kv_heads, queries, keys, dim, causal=False, block_M=128, block_N=128, threads=256, num_stages=2
):
    group = heads // kv_heads
    base = math.log2(math.e) / math.sqrt(dim)
    past = keys - queries  # query i is at position past + i
    dtype = "float8_e4m3fn"

    @T.prim_func
    def attention_fp8(
        Q: T.Tensor((batch, heads, queries, dim), dtype),
        K: T.Tensor((batch, kv_heads, keys, dim), dtype),
        V: T.Tensor((batch, kv_heads, dim, keys), dtype),
        q_scale: T.Tensor((batch, heads), "float32"),
        k_scale: T.Tensor((batch, kv_heads), "float32"),
        v_scale: T.Tensor((batch, kv_heads), "float32"),
        O: T.Tensor((batch, heads, queries, dim), "float16"),
    ):
        with T.Kernel(T.ceildiv(queries, block_M), heads, batch, threads=threads) as (bx, head, b):
            q = T.alloc_shared((block_M, dim), dtype)
            k = T.alloc_shared((block_N, dim), dtype)
            v = T.alloc_shared((dim, block_N), dtype)
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
            scale = T.abs(q_scale[b, head] * k_scale[b, kv_head]) * base  # positive, as all scales are

            @T.macro
            def visit(tile, masked):
                T.copy(K[b, kv_head, tile * block_N, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                if masked:
                    for i, j in T.Parallel(block_M, block_N):
                        key = tile * block_N + j
                        seen = key <= position + i if causal else key < keys
                        scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
                T.copy(highest, previous)
                T.reduce_max(scores, highest, dim=1)
                for i in T.Parallel(block_M):
                    highest[i] = T.max(previous[i], highest[i] * scale - LIFT)
                    rescale[i] = T.exp2(previous[i] - highest[i])
                for i, j in T.Parallel(block_M, block_N):
                    scores[i, j] = T.exp2(scores[i, j] * scale - highest[i])
                T.reduce_sum(scores, tile_total, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * rescale[i] + tile_total[i]
                for i, j in T.Parallel(block_M, dim):
                    acc[i, j] *= rescale[i]
                T.copy(scores, weights)
                T.copy(V[b, kv_head, 0, tile * block_N], v)
                T.gemm(weights, v, acc, transpose_B=True)

            T.copy(Q[b, head, bx * block_M, 0], q)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, LOWEST)
            full = keys // block_N
            end = T.ceildiv(keys, block_N)
            if causal:
                full = T.min(full, T.max(0, position + 1) // block_N)
                end = T.min(end, T.ceildiv(T.max(0, position + block_M), block_N))
            for tile in T.Pipelined(0, full, num_stages=num_stages):
                visit(tile, False)
            if causal or keys % block_N:
                for tile in T.Pipelined(full, end, num_stages=num_stages):
                    visit(tile, True)

            for i, j in T.Parallel(block_M, dim):
                acc[i, j] *= v_scale[b, kv_head] / total[i]
            T.copy(acc, O[b, head, bx * block_M, 0])

    return attention_fp8


def reference(q, k, v, q_scale, k_scale, v_scale, causal=False):
    """The same in float64, of the float8 values."""
    group = q.shape[1] // k.shape[1]
    q = q.double() * q_scale.double()[..., None, None]
    k = (k.double() * k_scale.double()[..., None, None]).repeat_interleave(group, dim=1)
    v = (v.double() * v_scale.double()[..., None, None]).repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        queries, keys = scores.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v.transpose(-1, -2)


def quantised(x):
    """A tensor [batch, heads, ...] as float8, and a scale for each head."""
    scale = x.abs().amax(dim=(-2, -1)).float() / 448
    return (x / scale[..., None, None]).to(torch.float8_e4m3fn), scale


def random_inputs(batch, heads, kv_heads, queries, keys, dim):
    """Normal numbers, quantised: Q, K and the transposed V, and their scales."""
    torch.manual_seed(0)
    shapes = (batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, dim, keys)
    tensors, scales = zip(*(quantised(torch.randn(shape, device=DEVICE)) for shape in shapes))
    return *tensors, *scales


def main(*, batch=4, heads=32, kv_heads=32, queries=4096, keys=4096, dim=128, causal=0, block_M=128, block_N=128):
    kernel = attention_fp8(batch, heads, kv_heads, queries, keys, dim, bool(causal), block_M, block_N)
    inputs = random_inputs(batch, heads, kv_heads, queries, keys, dim)
    out = kernel(*inputs)
    few = [each[:1, :2] if each.shape[1] == heads else each[:1, : max(1, 2 * kv_heads // heads)] for each in inputs]
    expected = reference(*few, causal=bool(causal))
    # Weights have 4 bits, and the tensor cores add up some 14 bits of float8 products.
    relative = float((out[:1, :2].double() - expected).norm() / expected.norm())
    if not relative < 0.03:
        raise AssertionError(f"the result is wrong by {relative:.3f} of its norm")
    wide = [
        torch.randn(batch, each, length, dim, device=DEVICE, dtype=torch.float16)
        for each, length in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    ]
    kind = f"float8 {'causal ' if causal else ''}attention"
    print_speed(
        f"{kind}, {batch} x {heads}/{kv_heads} heads, {queries} x {keys}, dim {dim}, {backend(kernel)}, beside float16",
        lambda: kernel(*inputs),
        lambda: F.scaled_dot_product_attention(*wide, is_causal=bool(causal), enable_gqa=heads != kv_heads),
        operations=4 * batch * heads * seen_pairs(queries, keys, bool(causal)) * dim,
    )
    return relative


if __name__ == "__main__":
    run_script(main, SMALL)
