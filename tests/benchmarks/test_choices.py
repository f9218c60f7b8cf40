"""Cases and rows of benchmarks/choices.py, without a GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks.choices import Calls, Case, all_cases, measure, product, show
from benchmarks.programs.gemm import matmul
from benchmarks.programs.tilelang_style import one_loop_attention
from benchmarks.rows.attention_math import forward
from benchmarks.tuning.interleaved import cpu_clock

TILES = {"block_M": 16, "block_N": 16, "block_K": 16, "threads": 32}


def test_every_way_lowers_and_cases_have_names_of_their_own() -> None:
    cases = all_cases()
    assert len({case.title for case in cases}) == len(cases) > 10
    for case in cases:
        sources = {way: case.kernel(way, "cuda:90").source for way in case.ways}
        if "window 256" not in case.title:  # there is nothing that pays to be divided
            assert len(set(sources.values())) > 1, case.title


def test_rows_of_ways_that_run_and_of_one_that_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    def timed(calls: Calls) -> dict[str, list[float]]:
        for call in calls.values():
            call()
        return {way: [2.0, 4.0, 3.0] for way in calls}

    sizes = {"M": 32, "N": 16, "K": 48, **TILES}
    ways = {"plain": {}, "wrong": {"peel-loops.mode": "sideways"}, "parts": {}}
    case = Case("small", matmul, sizes, [(32, 48), (16, 48)], product, 3e9, ways, {"parts": {"splits": 3}})
    plain, wrong, parts = measure(case, "interpret", cpu_clock, timed)
    assert plain["error"] < 1e-3 and parts["error"] < 1e-3 and plain["steady"] > 0
    assert plain["tuner"] == parts["tuner"] == 1.0  # 3e9 operations in 3 ms
    assert "sideways" in wrong["failed"] and "steady" not in wrong
    show([plain, wrong, parts])
    shown = capsys.readouterr().out
    assert "small" in shown and "sideways" in shown and shown.count("1.000x") == 3


def test_a_wrong_result_has_no_time() -> None:
    sizes = {"M": 16, "N": 16, "K": 16, **TILES}
    case = Case("zero", matmul, sizes, [(16, 16)] * 2, lambda a, b: 2 * product(a, b), 1.0, {"plain": {}})
    (row,) = measure(case, "interpret", cpu_clock, lambda calls: {way: [1.0] for way in calls})
    assert "relative error 0.5" in row["failed"] and "steady" not in row


@pytest.mark.parametrize(("causal", "window"), [(False, 0), (True, 0), (True, 5)])
def test_attention_masked_by_hand(causal: bool, window: int) -> None:
    q, k, v = (torch.randn(1, 2, 40, 16, dtype=torch.float16) for _ in range(3))
    sizes = {"batch": 1, "heads": 2, "kv_heads": 2, "queries": 40, "keys": 40, "dim": 16}
    tiles = {"causal": causal, "window": window, "block_M": 16, "block_N": 16, "threads": 32}
    case = Case("small", one_loop_attention, {**sizes, **tiles}, [], product, 1.0, {"plain": {}})
    kernel = case.kernel("plain", "interpret")
    torch.testing.assert_close(kernel(q, k, v).float(), forward(q, k, v, causal, None, window)[0], rtol=1e-2, atol=1e-2)
