"""Attention forward rows: full and causal, grouped queries, sinks, ragged lengths; dim 64 and 128, 1k to 16k long."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.handwritten.tuned_attention import attention_by_hand
from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.library import fused_attention
from benchmarks.peers.tilelang import tilelang_candidate
from benchmarks.programs import example
from benchmarks.row import Candidate, Row
from benchmarks.rows.attention_math import forward, seen_pairs
from benchmarks.rows.gemm import DTYPES
from benchmarks.rows.spaces import GLUON, GLUON_EACH, GLUON_LAZY, TRITON, TRITON_TMA, walk

SPACE = [
    walk(128, 128, 2, 8, GLUON), walk(128, 64, 2, 4, TRITON_TMA), walk(128, 64, 2, 4, TRITON),
    walk(128, 128, 2, 8, TRITON), walk(128, 64, 3, 4, TRITON_TMA), walk(128, 64, 3, 4, TRITON),
    walk(128, 128, 2, 8, TRITON_TMA), walk(64, 64, 3, 4), walk(64, 128, 2, 4), walk(128, 64, 2, 8, GLUON),
]  # fmt: skip
NARROW_SPACE = [  # a third consumer has registers enough for dim 64 only
    *SPACE, walk(192, 128, 2, 8, GLUON), walk(192, 128, 2, 8, GLUON_EACH), walk(128, 128, 2, 8, GLUON_LAZY),
]  # fmt: skip
WIDE_SPACE = [  # parts of 128 and 64: a tile of 128 keys leaves room for two stages where values have 128 alone
    walk(128, 64, 2, 8, GLUON), walk(128, 96, 2, 8, GLUON), walk(128, 128, 2, 8, GLUON),
    walk(128, 64, 2, 8, TRITON_TMA), walk(128, 64, 2, 8, TRITON), walk(128, 64, 3, 8, TRITON_TMA),
]  # fmt: skip
TILELANG = [walk(128, 128, 2, 8), walk(128, 64, 3, 8), walk(128, 64, 2, 4), walk(64, 128, 2, 4)]
WIDE_TILELANG = [walk(128, 64, 2, 8), walk(128, 128, 1, 8), walk(128, 64, 1, 8)]


def attention_row(
    batch: int,
    heads: int,
    kv_heads: int,
    length: int,
    dim: int,
    causal: bool,
    *,
    kind: str = "",
    window: int = 0,
    dtype: str = "fp16",
    quick: bool = False,
    value_dim: int = 0,
) -> Row:
    """One row; queries and keys are equally many. kind: "", gqa, sink or ragged. window: with sinks only. value_dim:
    how long the heads of values are, where those of keys are longer."""
    sink, torch_dtype, values = kind == "sink", DTYPES[dtype], value_dim or dim
    sizes: dict[str, Any] = {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": length, "keys": length, "dim": dim
    }  # fmt: skip

    def inputs(device: str) -> list[Any]:
        sizes = ((heads, dim), (kv_heads, dim), (kv_heads, values))
        shapes = [(batch, each, length, columns) for each, columns in sizes]
        made = [torch.randn(shape, device=device).to(torch_dtype) for shape in shapes]
        return [*made, torch.randn(heads, device=device)] if sink else made

    def reference(q: Any, k: Any, v: Any, sinks: Any = None) -> list[Any]:
        out, lse = forward(q, k, v, causal, sinks, window)
        return [out] if sink else [out, lse]

    sizes["dtype"] = str(torch_dtype)[6:]
    arguments = {**sizes, "window": window} if sink else {**sizes, "causal": causal, "value_dim": value_dim}
    space = NARROW_SPACE if dim <= 64 else SPACE if dim <= 128 else WIDE_SPACE
    others = TILELANG if dim <= 128 else WIDE_TILELANG
    candidates: list[Candidate]
    if sink:
        candidates = [tiledsl_candidate(example("attention_sink").attention_sink, arguments, space)]
    else:
        candidates = [
            tiledsl_candidate(example("attention").attention, arguments, space),
            fused_attention(causal),
        ]
    candidates.append(attention_by_hand(causal, sink=sink, window=window, ragged=kind == "ragged"))
    if not sink:
        candidates.append(
            tilelang_candidate("benchmarks.programs.tilelang_style", "one_loop_attention", arguments, others)
        )
    shape = (batch, heads, length)
    outputs: tuple[Any, ...] = (((*shape, values), torch_dtype),)
    if not sink:
        outputs = (*outputs, (shape, torch.float32))
    groups = f"{heads}" if heads == kv_heads else f"{heads}/{kv_heads}"
    columns = f"{dim}/{value_dim}" if value_dim else f"{dim}"
    title = (
        f"{dtype} {'causal' if causal else 'full'} {kind + ' ' if kind else ''}B{batch} H{groups} S{length} D{columns}"
    )
    return Row(
        family="attention",
        case=title + (f" window {window}" if window else ""),
        inputs=inputs,
        reference=reference,
        outputs=outputs,
        candidates=tuple(candidates),
        operations=2.0 * batch * heads * seen_pairs(length, length, causal, window) * (dim + values),
        bytes_moved=2.0 * batch * length * (dim + values) * (heads + kv_heads),
        tags=frozenset({kind or "plain", "causal" if causal else "full", f"D{dim}"}),
        quick=quick,
    )


def rows() -> list[Row]:
    """The lengths keep the tokens of a batch about constant."""
    plain = [
        attention_row(batch, 32, 32, length, dim, causal, quick=(length, dim) == (4096, 128))
        for dim in (128, 64)
        for batch, length in ((4, 4096), (16, 1024), (1, 16384))
        for causal in (False, True)
    ]
    variants = [
        attention_row(4, 32, 8, 4096, 128, True, kind="gqa", quick=True),
        attention_row(4, 32, 8, 4096, 128, False, kind="gqa"),
        attention_row(4, 32, 4, 4096, 64, True, kind="gqa"),
        attention_row(2, 64, 8, 4096, 64, True, kind="sink", dtype="bf16"),
        attention_row(2, 64, 8, 4096, 64, True, kind="sink", window=128, dtype="bf16"),
        attention_row(4, 32, 32, 4001, 128, True, kind="ragged"),
        attention_row(4, 32, 32, 4001, 128, False, kind="ragged"),
        attention_row(4, 32, 32, 4096, 192, False),
        attention_row(4, 32, 32, 4096, 192, True),
        attention_row(4, 32, 8, 4096, 192, True, kind="gqa"),
        attention_row(4, 32, 32, 4096, 192, False, value_dim=128),
        attention_row(4, 32, 32, 4096, 192, True, value_dim=128),
    ]
    return [*plain, *variants]
