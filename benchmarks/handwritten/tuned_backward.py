"""Attention backward in Triton by hand, tuned by its own tuner: a yardstick.

Given Q, K, V, O, dO and LSE (base 2), three kernels: D = rowsum(O * dO); dK and dV, a block of keys a program; dQ, a
block of queries a program. No atomics. Lengths are multiples of the tiles, widths of heads are powers of two, and each
K/V head serves heads / kv_heads.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.handwritten.variants import Variant, autotuned
from benchmarks.row import Candidate, Context, Ready, Row, Tensors, Unavailable


@triton.jit
def row_products_kernel(O, dO, D, DIM: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = rows.to(tl.int64)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    product = tl.load(O + place).to(tl.float32) * tl.load(dO + place).to(tl.float32)
    tl.store(D + rows, tl.sum(product, 1))


@triton.jit
def _queries(
    dk, dv, k, v, Q, dO, LSE, D, start, end, first_key, scale,
    MASKED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK_M)
    offs = columns[:, None] * DIM + tl.arange(0, DIM)[None, :]
    for m in tl.range(start, end, BLOCK_M, num_stages=STAGES):
        q = tl.load(Q + m * DIM + offs)
        lse = tl.load(LSE + m + columns)
        p = tl.math.exp2(tl.dot(k, q.T) * scale - lse[None, :])
        if MASKED:
            p = tl.where(first_key + tl.arange(0, BLOCK_N)[:, None] <= (m + columns)[None, :], p, 0.0)
        do = tl.load(dO + m * DIM + offs)
        dv = tl.dot(p.to(do.dtype), do, dv)
        ds = p * (tl.dot(v, do.T) - tl.load(D + m + columns)[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def key_value_kernel(
    Q, K, V, dO, LSE, D, dK, dV, heads, kv_heads, length, scale, root,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    first_key = tl.program_id(0) * BLOCK_N
    kv_head, b = tl.program_id(1), tl.program_id(2)
    group = heads // kv_heads
    offs = tl.arange(0, BLOCK_N)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    place = ((b * kv_heads + kv_head) * length + first_key).to(tl.int64) * DIM + offs
    k, v = tl.load(K + place), tl.load(V + place)
    dk = tl.zeros((BLOCK_N, DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, DIM), tl.float32)
    full = 0
    if CAUSAL:
        full = tl.minimum(length, tl.cdiv(first_key + BLOCK_N, BLOCK_M) * BLOCK_M)
    for member in range(group):
        row = ((b * heads + kv_head * group + member) * length).to(tl.int64)
        if CAUSAL:
            dk, dv = _queries(
                dk, dv, k, v, Q + row * DIM, dO + row * DIM, LSE + row, D + row, first_key // BLOCK_M * BLOCK_M, full,
                first_key, scale, True, BLOCK_M, BLOCK_N, DIM, STAGES,
            )  # fmt: skip
        dk, dv = _queries(
            dk, dv, k, v, Q + row * DIM, dO + row * DIM, LSE + row, D + row, full, length,
            first_key, scale, False, BLOCK_M, BLOCK_N, DIM, STAGES,
        )  # fmt: skip
    tl.store(dK + place, (dk * root).to(dK.dtype.element_ty))
    tl.store(dV + place, dv.to(dV.dtype.element_ty))


@triton.jit
def _keys(
    dq, q, do, lse, d, K, V, start, end, position, scale,
    MASKED: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK_N)
    offs = columns[:, None] * DIM + tl.arange(0, DIM)[None, :]
    for n in tl.range(start, end, BLOCK_N, num_stages=STAGES):
        k, v = tl.load(K + n * DIM + offs), tl.load(V + n * DIM + offs)
        p = tl.math.exp2(tl.dot(q, k.T) * scale - lse[:, None])
        if MASKED:
            p = tl.where((n + columns)[None, :] <= position[:, None], p, 0.0)
        ds = p * (tl.dot(do, v.T) - d[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit
def query_kernel(
    Q, K, V, dO, LSE, D, dQ, heads, kv_heads, length, scale, root,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0) * BLOCK_M
    head, b = tl.program_id(1), tl.program_id(2)
    rows = tl.arange(0, BLOCK_M)
    row = (b * heads + head) * length + start_m
    place = row.to(tl.int64) * DIM + rows[:, None] * DIM + tl.arange(0, DIM)[None, :]
    kv = ((b * kv_heads + head // (heads // kv_heads)) * length).to(tl.int64) * DIM
    q, do = tl.load(Q + place), tl.load(dO + place)
    lse, d = tl.load(LSE + row + rows), tl.load(D + row + rows)
    dq = tl.zeros((BLOCK_M, DIM), tl.float32)
    full = length
    if CAUSAL:
        full = start_m // BLOCK_N * BLOCK_N
    dq = _keys(dq, q, do, lse, d, K + kv, V + kv, 0, full, start_m + rows, scale, False, BLOCK_N, DIM, STAGES)
    if CAUSAL:
        end = tl.minimum(length, start_m + BLOCK_M)
        dq = _keys(dq, q, do, lse, d, K + kv, V + kv, full, end, start_m + rows, scale, True, BLOCK_N, DIM, STAGES)
    tl.store(dQ + place, (dq * root).to(dQ.dtype.element_ty))


def _configs(tiles: list[tuple[int, int, int, int]]) -> list[Any]:
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "STAGES": stages}, num_warps=warps) for m, n, stages, warps in tiles
    ]


_KEY = ["heads", "kv_heads", "length", "DIM", "CAUSAL"]
_TILES_KV = [(64, 128, 2, 8), (32, 128, 2, 4), (64, 64, 2, 4), (64, 128, 3, 8), (32, 64, 3, 4), (128, 128, 2, 8)]
_TILES_Q = [(128, 64, 2, 8), (128, 32, 2, 4), (64, 64, 2, 4), (128, 64, 3, 8), (64, 32, 3, 4), (128, 128, 2, 8)]


def _size(inputs: Tensors) -> tuple[int, int, int, int, int]:
    batch, heads, length, dim = inputs[0].shape
    return batch, heads, inputs[1].shape[1], length, dim


def backward_by_hand(causal: bool) -> Candidate:
    """A candidate for (dQ, dK, dV) from (q, k, v, out, dout, lse)."""

    def launch_row_products(inputs: Tensors, d: Any) -> None:
        batch, heads, _, length, dim = _size(inputs)
        row_products_kernel[(batch * heads * length // 16,)](inputs[3], inputs[4], d, DIM=dim, BLOCK=16)

    def launch_key_value(kernel: Any, inputs: Tensors, outputs: Tensors) -> None:
        q, k, v, _, do, lse, d = inputs
        batch, heads, kv_heads, length, dim = _size(inputs)
        kernel[lambda meta: (length // meta["BLOCK_N"], kv_heads, batch)](
            q, k, v, do, lse, d, outputs[1], outputs[2], heads, kv_heads, length,
            math.log2(math.e) / math.sqrt(dim), dim**-0.5, CAUSAL=causal, DIM=dim,
        )  # fmt: skip

    def launch_query(kernel: Any, inputs: Tensors, outputs: Tensors) -> None:
        q, k, v, _, do, lse, d = inputs
        batch, heads, kv_heads, length, dim = _size(inputs)
        kernel[lambda meta: (length // meta["BLOCK_M"], heads, batch)](
            q, k, v, do, lse, d, outputs[0], heads, kv_heads, length,
            math.log2(math.e) / math.sqrt(dim), dim**-0.5, CAUSAL=causal, DIM=dim,
        )  # fmt: skip

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        length, dim = inputs[0].shape[2:]
        if length % 128:
            raise Unavailable(f"written for lengths that are multiples of 128, not {length}")
        if dim & (dim - 1):
            raise Unavailable(f"written for heads whose width is a power of two, not {dim}")
        start = time.perf_counter()
        key_value = autotuned(Variant("dK, dV", key_value_kernel, _configs(_TILES_KV), _KEY, launch_key_value), context)
        query = autotuned(Variant("dQ", query_kernel, _configs(_TILES_Q), _KEY, launch_query), context)

        def bind(given: Tensors, outputs: Tensors) -> Any:
            d = torch.empty_like(given[5])
            everything = (*given, d)

            def call() -> None:
                launch_row_products(everything, d)
                launch_key_value(key_value, everything, outputs)
                launch_query(query, everything, outputs)

            return call

        bind(inputs, row.empty_outputs(str(inputs[0].device)))()
        chosen = {
            name: str(getattr(kernel, "best_config", "")) for name, kernel in (("dK, dV", key_value), ("dQ", query))
        }
        return Ready(bind, chosen, time.perf_counter() - start)

    return Candidate("triton", "Triton by hand", prepare)
