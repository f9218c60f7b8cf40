"""Attention forward in Triton by hand, tuned by its own tuner: a yardstick.

Two variants with the same walk over the keys, whole tiles first and masked ones (the diagonal, the ragged end) last:
loads through pointers, and through tensor descriptors, which fill heads up to a power of two with zeros. Exponentials
are powers of two. SINK: each head has a logit that takes part in the softmax and has no value.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.handwritten.variants import Variant, by_hand, descriptor, takes_descriptors
from benchmarks.row import Candidate


@triton.jit
def _keys(
    acc, total, highest, q, k_source, v_source, first_row, start, end, keys, position, scale,
    DESCRIPTORS: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_N: tl.constexpr, DIM: tl.constexpr, STAGES: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK_N)
    if not DESCRIPTORS:
        offs = columns[:, None] * DIM + tl.arange(0, DIM)[None, :]
    for n in tl.range(start, end, BLOCK_N, num_stages=STAGES):
        if DESCRIPTORS:
            k = k_source.load([first_row + n, 0])
        elif MASKED:
            k = tl.load(k_source + n * DIM + offs, mask=(n + columns)[:, None] < keys, other=0.0)
        else:
            k = tl.load(k_source + n * DIM + offs)
        scores = tl.dot(q, k.T)
        if MASKED:
            seen = (n + columns)[None, :] < keys
            if CAUSAL:
                seen = (n + columns)[None, :] <= position[:, None]
            if WINDOW > 0:
                seen = seen & ((n + columns)[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        now = tl.maximum(highest, tl.max(scores, 1) * scale)
        p = tl.math.exp2(scores * scale - now[:, None])
        rescale = tl.math.exp2(highest - now)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None]
        if DESCRIPTORS:
            v = v_source.load([first_row + n, 0])
        elif MASKED:
            v = tl.load(v_source + n * DIM + offs, mask=(n + columns)[:, None] < keys, other=0.0)
        else:
            v = tl.load(v_source + n * DIM + offs)
        acc = tl.dot(p.to(v.dtype), v, acc)
        highest = now
    return acc, total, highest


@triton.jit
def attention_kernel(
    q_source, k_source, v_source, O, LSE, sinks, heads, kv_heads, queries, keys, scale,
    DTYPE: tl.constexpr, DESCRIPTORS: tl.constexpr, CAUSAL: tl.constexpr, SINK: tl.constexpr, WINDOW: tl.constexpr,
    EVEN: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # The longest walks of a causal launch start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    start_m = block * BLOCK_M
    head, b = tl.program_id(1), tl.program_id(2)
    q_row = (b * heads + head) * queries + start_m
    kv_row = (b * kv_heads + head // (heads // kv_heads)) * keys
    rows = tl.arange(0, BLOCK_M)
    inside = start_m + rows < queries
    if DESCRIPTORS:
        q = q_source.load([q_row, 0])
        k_place, v_place = k_source, v_source
    else:
        offs = rows[:, None] * DIM + tl.arange(0, DIM)[None, :]
        q = tl.load(q_source + q_row.to(tl.int64) * DIM + offs, mask=inside[:, None], other=0.0)
        k_place, v_place = k_source + kv_row.to(tl.int64) * DIM, v_source + kv_row.to(tl.int64) * DIM

    acc = tl.zeros((BLOCK_M, VALUE_WIDTH), tl.float32)
    if SINK:
        highest = tl.zeros((BLOCK_M,), tl.float32) + tl.load(sinks + head) * 1.4426950408889634
        total = tl.full((BLOCK_M,), 1.0, tl.float32)
    else:
        highest = tl.full((BLOCK_M,), -1e30, tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
    past = keys - queries
    position = start_m + past + rows
    start = 0
    full = keys // BLOCK_N * BLOCK_N
    end = keys
    if CAUSAL:
        full = tl.minimum(full, tl.maximum(0, start_m + past + 1) // BLOCK_N * BLOCK_N)
        end = tl.minimum(keys, tl.maximum(0, start_m + past + BLOCK_M))
    if WINDOW > 0:
        start = tl.maximum(0, start_m + past - WINDOW + 1) // BLOCK_N * BLOCK_N
        full = start
    acc, total, highest = _keys(
        acc, total, highest, q, k_place, v_place, kv_row, start, full, keys, position, scale,
        DESCRIPTORS, False, CAUSAL, BLOCK_N, DIM, STAGES, WINDOW,
    )  # fmt: skip
    if CAUSAL or not EVEN:
        acc, total, highest = _keys(
            acc, total, highest, q, k_place, v_place, kv_row, full, end, keys, position, scale,
            DESCRIPTORS, True, CAUSAL, BLOCK_N, DIM, STAGES, WINDOW,
        )  # fmt: skip
    acc = acc / total[:, None]
    columns = tl.arange(0, VALUE_WIDTH)[None, :]
    stored = inside[:, None]
    if VALUE_WIDTH != VALUE_DIM:
        stored = stored & (columns < VALUE_DIM)
    tl.store(O + q_row.to(tl.int64) * VALUE_DIM + rows[:, None] * VALUE_DIM + columns, acc.to(DTYPE), mask=stored)
    tl.store(LSE + q_row + rows, highest + tl.math.log2(total), mask=inside)


def _set_blocks(arguments: dict[str, Any]) -> None:
    m, n, width = arguments["BLOCK_M"], arguments["BLOCK_N"], triton.next_power_of_2(arguments["DIM"])
    arguments["q_source"].block_shape = [m, width]
    arguments["k_source"].block_shape = [n, width]
    arguments["v_source"].block_shape = [n, arguments["VALUE_WIDTH"]]


def _configs(hook: Any) -> list[Any]:
    tiles = [
        (128, 64, 2, 4), (128, 64, 3, 4), (128, 128, 2, 8), (128, 128, 3, 8), (64, 64, 3, 4), (128, 64, 3, 8),
        (64, 128, 2, 4),
    ]  # fmt: skip
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "STAGES": stages}, num_warps=warps, pre_hook=hook)
        for m, n, stages, warps in tiles
    ]


_TORCH_TO_TRITON = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
_kernel = triton.heuristics({"EVEN": lambda args: args["keys"] % args["BLOCK_N"] == 0})(attention_kernel)


def _launch(descriptors: bool, causal: bool, sink: bool, window: int) -> Any:
    def launch(kernel: Any, inputs: Any, outputs: Any) -> None:
        q, k, v = inputs[:3]
        out = outputs[0]
        batch, heads, queries, dim = q.shape
        kv_heads, keys = k.shape[1:3]
        lse = outputs[1] if len(outputs) > 1 else _scratch((batch, heads, queries), q.device)
        value_dim = v.shape[-1]
        sources = [each.view(-1, each.shape[-1]) for each in (q, k, v)]
        if descriptors:
            sources = [descriptor(each) for each in sources]
        kernel[lambda meta: (triton.cdiv(queries, meta["BLOCK_M"]), heads, batch)](
            *sources, out, lse, inputs[3] if sink else lse, heads, kv_heads, queries, keys,
            math.log2(math.e) / math.sqrt(dim), DTYPE=_TORCH_TO_TRITON[q.dtype], DESCRIPTORS=descriptors,
            CAUSAL=causal, SINK=sink, WINDOW=window, DIM=dim, VALUE_DIM=value_dim,
            VALUE_WIDTH=triton.next_power_of_2(value_dim),
        )  # fmt: skip

    return launch


_lse: dict[Any, Any] = {}


def _scratch(shape: tuple[int, ...], device: Any) -> Any:
    """Where the kernel's second output goes if nobody wants it; allocated once for each shape."""
    key = (shape, str(device))
    if key not in _lse:
        _lse[key] = torch.empty(shape, dtype=torch.float32, device=device)
    return _lse[key]


def _is_plain(inputs: Any) -> bool:
    """Whether all heads are equally long, and that is a power of two."""
    dim, value_dim = (each.shape[-1] for each in inputs[1:3])
    return bool(dim == value_dim == triton.next_power_of_2(dim))


def attention_variants(causal: bool, *, sink: bool = False, window: int = 0, ragged: bool = False) -> list[Variant]:
    """The ways to write attention over q, k, v (and sinks). ragged: descriptors would read on into the next head, whose
    keys are masked but whose values may be NaN, so pointers only."""
    key = ["heads", "kv_heads", "queries", "keys", "DIM", "VALUE_DIM", "CAUSAL", "SINK", "WINDOW"]
    variants = [Variant("pointers", _kernel, _configs(None), key, _launch(False, causal, sink, window), _is_plain)]
    if not ragged:
        launch = _launch(True, causal, sink, window)
        variants.insert(0, Variant("descriptors", _kernel, _configs(_set_blocks), key, launch, takes_descriptors))
    return variants


def attention_by_hand(causal: bool, *, sink: bool = False, window: int = 0, ragged: bool = False) -> Candidate:
    """A candidate for attention; see attention_variants."""
    return by_hand(attention_variants(causal, sink=sink, window=window, ragged=ragged))
