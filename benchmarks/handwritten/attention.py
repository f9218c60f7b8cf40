"""Attention forward in Triton by hand, the usual way, with the configuration of examples/attention.py: a yardstick.

attention(q, k, v, causal=False) takes float16 or bfloat16 tensors [batch, heads, length, dim], the head counts of K and
V dividing that of Q, and returns the output and each row's logarithm to base 2 of its sum of exponentials.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl


@triton.jit
def _visit(
    acc, total, highest, q, k_base, v_base, offs_k, start, end, position, keys, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    offs_n = tl.arange(0, BLOCK_N)
    for n in tl.range(start, end, BLOCK_N, num_stages=STAGES):
        if MASKED:
            k = tl.load(k_base + n * DIM + offs_k, mask=(n + offs_n)[:, None] < keys, other=0.0)
        else:
            k = tl.load(k_base + n * DIM + offs_k)
        qk = tl.dot(q, tl.trans(k))
        if MASKED:
            seen = (n + offs_n)[None, :] < keys
            if CAUSAL:
                seen = (n + offs_n)[None, :] <= position[:, None]
            qk = tl.where(seen, qk, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(qk, 1) * scale)
        p = tl.exp2(qk * scale - new_highest[:, None])
        alpha = tl.exp2(highest - new_highest)
        total = total * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        if MASKED:
            v = tl.load(v_base + n * DIM + offs_k, mask=(n + offs_n)[:, None] < keys, other=0.0)
        else:
            v = tl.load(v_base + n * DIM + offs_k)
        acc = tl.dot(p.to(v.dtype), v, acc)
        highest = new_highest
    return acc, total, highest


@triton.jit
def attention_kernel(
    Q, K, V, O, LSE, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    b = tl.program_id(2)
    q_row = (b * HEADS + head) * QUERIES + start_m
    kv_base = (b * KV_HEADS + head // (HEADS // KV_HEADS)) * KEYS * DIM

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, DIM)
    offs_q = offs_m[:, None] * DIM + offs_d[None, :]
    offs_k = tl.arange(0, BLOCK_N)[:, None] * DIM + offs_d[None, :]
    ragged: tl.constexpr = QUERIES % BLOCK_M != 0
    inside = start_m + offs_m < QUERIES
    if ragged:
        q = tl.load(Q + q_row * DIM + offs_q, mask=inside[:, None], other=0.0)
    else:
        q = tl.load(Q + q_row * DIM + offs_q)

    acc = tl.zeros((BLOCK_M, DIM), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    highest = tl.full((BLOCK_M,), -1e30, tl.float32)
    first = start_m + KEYS - QUERIES  # the position of the block's first query
    full = KEYS // BLOCK_N * BLOCK_N
    end = KEYS
    if CAUSAL:
        full = tl.minimum(full, tl.maximum(0, first + 1) // BLOCK_N * BLOCK_N)
        end = tl.minimum(KEYS, first + BLOCK_M)
    position = first + offs_m
    acc, total, highest = _visit(
        acc, total, highest, q, K + kv_base, V + kv_base, offs_k, 0, full, position, KEYS, scale,
        False, CAUSAL, BLOCK_N, DIM, STAGES,
    )  # fmt: skip
    if CAUSAL or KEYS % BLOCK_N != 0:
        acc, total, highest = _visit(
            acc, total, highest, q, K + kv_base, V + kv_base, offs_k, full, end, position, KEYS, scale,
            True, CAUSAL, BLOCK_N, DIM, STAGES,
        )  # fmt: skip
    acc = acc / total[:, None]
    lse = highest + tl.log2(total)
    if ragged:
        tl.store(O + q_row * DIM + offs_q, acc.to(O.dtype.element_ty), mask=inside[:, None])
        tl.store(LSE + q_row + offs_m, lse, mask=inside)
    else:
        tl.store(O + q_row * DIM + offs_q, acc.to(O.dtype.element_ty))
        tl.store(LSE + q_row + offs_m, lse)


def attention(q, k, v, causal=False, *, block_M=128, block_N=128, num_warps=8, num_stages=2):
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1:3]
    out = torch.empty_like(q)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    attention_kernel[(triton.cdiv(queries, block_M), heads, batch)](
        q, k, v, out, lse, math.log2(math.e) / math.sqrt(dim),
        HEADS=heads, KV_HEADS=kv_heads, QUERIES=queries, KEYS=keys, DIM=dim, CAUSAL=causal,
        BLOCK_M=block_M, BLOCK_N=block_N, STAGES=num_stages, num_warps=num_warps,
    )  # fmt: skip
    return out, lse
