"""Run in a process of its own, with TRITON_INTERPRET=1: every family's rows at small shapes, all candidates checked.

Prints a line of JSON for each row. TileLang is tiledsl's stand-in for it. No bfloat16 where Triton's interpreter would
multiply it: it takes the raw bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import triton.language as tl

from benchmarks.execute import run_row
from benchmarks.handwritten import tuned_attention, tuned_gemm
from benchmarks.handwritten.variants import by_hand
from benchmarks.ours import tiledsl_candidate
from benchmarks.programs import selection, wide_rows
from benchmarks.programs.gemm import matmul
from benchmarks.row import Context, Row
from benchmarks.rows import (
    any_width,
    attention,
    backward,
    elementwise,
    float8,
    gemm,
    grouped,
    linear_attention,
    linear_losses,
    moves,
    quantised,
    sorting,
)
from benchmarks.timing import Plan
from tiledsl import compat


@dataclass
class Instant:
    calls: int

    def launch(self) -> None: ...


class NoClock:
    """Every launch takes a millisecond and does nothing: it is the candidates' results that count here."""

    def elapsed(self, launch: Callable[[], Any], times: int) -> float:
        return 1.0 * times

    def idle(self, seconds: float) -> None: ...

    def runner(self, calls: Sequence[Callable[[], Any]], count: int, graph: bool) -> Instant:
        return Instant(count)


def only(row: Row, case: str, *candidates: Any) -> Row:
    return replace(row, case=case, candidates=candidates)


def by_others(row: Row) -> Row:
    """Without Triton by hand: its interpreter rounds to float8 towards zero."""
    return replace(row, candidates=tuple(each for each in row.candidates if each.kind != "triton"))


def held(make: Callable[[int, int], Row], program: Any, **more: int) -> Row:
    """Rows that several blocks hold: one each here, for blocks that wait for each other are interpreted in turn."""
    row = make(5, 200)
    config = {"block_N": 256, "blocks": 2, **more}
    return only(row, "held by blocks", tiledsl_candidate(program, {"M": 5, "N": 200}, [config]))


def rows() -> list[Row]:
    product = gemm.gemm_row(20, 104, 160, "fp16")
    sizes = {"M": 20, "N": 104, "K": 160, "dtype": "float16"}
    split = {"block_M": 64, "block_N": 64, "block_K": 32, "splits": 3}
    plain = attention.attention_row(1, 2, 1, 160, 16, True, kind="gqa")
    return [
        gemm.gemm_row(130, 272, 96, "fp16"),
        gemm.gemm_row(1, 48, 160, "fp16"),
        gemm.gemm_row(64, 48, 160, "fp16"),
        only(product, "split by tiledsl", tiledsl_candidate(matmul, sizes, [split])),
        *(only(product, f"by hand, {each.name}", by_hand([each])) for each in tuned_gemm.gemm_variants(70)),
        float8.float8_row(48, 80, 144),
        float8.block_scaled_row(40, 128, 256),
        plain,
        *(only(plain, f"by hand, {each.name}", by_hand([each])) for each in tuned_attention.attention_variants(True)),
        attention.attention_row(1, 2, 2, 256, 16, False),
        attention.attention_row(1, 2, 1, 160, 48, True, kind="gqa", value_dim=24),
        attention.attention_row(1, 2, 2, 100, 16, False, kind="ragged"),
        attention.attention_row(1, 2, 2, 100, 16, True, kind="ragged"),
        attention.attention_row(1, 2, 1, 160, 16, True, kind="sink"),
        attention.attention_row(1, 2, 1, 200, 16, True, kind="sink", window=50),
        backward.backward_row(1, 2, 256, 16, True),
        backward.backward_row(1, 2, 128, 16, False),
        elementwise.softmax_row(13, 229),
        elementwise.layer_norm_row(11, 200),
        elementwise.rms_norm_row(9, 96),
        elementwise.elementwise_row(37, 1124),
        *(make(13, 200) for make in any_width.MAKERS),
        held(any_width.softmax_row, wide_rows.softmax, parts=1),
        held(any_width.softmax_backward_row, wide_rows.softmax_gradient),
        held(any_width.rms_norm_row, wide_rows.rms_norm),
        held(any_width.layer_norm_row, wide_rows.layer_norm),
        held(any_width.rms_norm_backward_row, wide_rows.rms_norm_gradient),
        held(any_width.layer_norm_backward_row, wide_rows.layer_norm_gradient),
        by_others(moves.quantise_row(11, 200)),
        by_others(moves.quantise_row(6, 256, 128)),
        moves.rope_row(2, 10, 4, 16),
        moves.swiglu_row(7, 300),
        moves.swiglu_backward_row(7, 300),
        moves.mhc_post_row(5, 4, 160),
        moves.heads_first_row(2, 20, 4, 16),
        moves.transpose_row(40, 72),
        sorting.sort_row(2, 50),
        only(
            sorting.scan_row(1000), "by one block",
            tiledsl_candidate(selection.cumulative_sum, {"N": 1000}, [{"block_N": 32, "blocks": 1}]),
        ),
        sorting.top_k_row(2, 4000, 8),
        grouped.grouped_row(4, 100, 72, 128, "fp16"),
        quantised.four_bit_row(3, 48, 1024),
        quantised.four_bit_row(130, 48, 1024),
        quantised.four_bit_float8_row(20, 48, 512),
        quantised.float8_attention_row(1, 2, 160, 32, True),
        linear_losses.cross_entropy_row(40, 200, 96, torch.float16),
        *(by_others(linear_attention.chunked_row(kind, 1, 2, 70, 16)) for kind in linear_attention.KINDS),
        by_others(linear_attention.gated_row("retention", 1, 2, 2, 70, 16, 32)),
        by_others(linear_attention.gated_row("Mamba-2", 1, 2, 1, 70, 16, 32)),
    ]  # fmt: skip


def patch_language_once() -> None:
    """Triton's interpreter looks through its whole language at every launch and call of a function, to patch it."""
    from triton.runtime import interpreter

    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda fn: SimpleNamespace(restore=lambda: None)


def main() -> None:
    compat.install()
    patch_language_once()
    for row in rows():
        result = run_row(row, Context("cpu", tune=False), NoClock(), Plan(rounds=2))
        print(json.dumps({"name": row.name, **result}, default=str), flush=True)


if __name__ == "__main__":
    main()
