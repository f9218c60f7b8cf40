"""Gradients of attention: which of two ways the suite takes, and what it then calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.ours import Tuned
from benchmarks.row import Context
from benchmarks.rows import backward

AT_ONCE = ["begin", "gradients_at_once", "finish"]
APART = ["row_products", "key_value_gradients", "query_gradient"]


def called(monkeypatch: pytest.MonkeyPatch, at_once: float, tuned: bool = True) -> tuple[list[str], dict[str, Any]]:
    """The kernels that the suite's candidate calls, and its configuration, where all gradients at once take so many ms
    and each other kernel 1."""
    calls: list[str] = []

    def tune(context: Any, jit: Any, arguments: dict[str, Any], *rest: Any) -> Tuned:
        name = jit.function.__name__
        ms = at_once if name == "gradients_at_once" else 1.0
        return Tuned(name, {"of": name}, 2.0, [{"ms": ms}, {"ms": 9.0}, {"status": "wrong"}])

    monkeypatch.setattr(backward, "tune", tune)
    monkeypatch.setattr(backward, "kernel_call", lambda kernel, *_: lambda: calls.append(kernel))
    row = backward.backward_row(1, 1, 256, 16, False)
    given = [torch.zeros(1, 1, 256, 16).half()] * 5 + [torch.zeros(1, 1, 256)]
    ready = row.candidates[0].prepare(Context("cpu", tune=tuned), row, given)
    ready.bind(given, [torch.zeros(1, 1, 256, 16).half()] * 3)()
    return calls, ready.config


def test_the_faster_way_is_taken_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert called(monkeypatch, 0.9) == (AT_ONCE, {"of": "gradients_at_once"})
    assert called(monkeypatch, 1.1) == (APART, {"of": "key_value_gradients"})


def test_what_is_not_tuned_computes_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert called(monkeypatch, 2.0, tuned=False)[0] == AT_ONCE


@pytest.mark.parametrize("causal", [False, True])
def test_last_waves_are_cut_where_all_blocks_are_as_long(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    """Both ways find them; begin, finish and row_products have no products."""
    cut: dict[str, int] = {}

    def tune(context: Any, jit: Any, arguments: dict[str, Any], configs: Any, *rest: Any) -> Tuned:
        options = [each.get("pass_configs", {}) for each in configs]
        cut[jit.function.__name__] = sum("split-last-wave.programs" in each for each in options)
        return Tuned(jit, {})

    monkeypatch.setattr(backward, "tune", tune)
    row = backward.backward_row(1, 1, 256, 16, causal)
    given = [torch.zeros(1, 1, 256, 16).half()] * 5 + [torch.zeros(1, 1, 256)]
    row.candidates[0].prepare(Context("cpu", tune=True), row, given)
    none = dict.fromkeys(("begin", "finish", "row_products"), 0)
    ways = {"gradients_at_once": 4, "key_value_gradients": 1, "query_gradient": 1}
    assert cut == {**none, **(dict.fromkeys(ways, 0) if causal else ways)}
