"""Of benchmarks/rules.py: which kernels of a script have a row, and what it says; the GPU's times are stood in for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from benchmarks import rules
from tiledsl.commands.beside.recording import Call


@T.prim_func
def row_sums(A: T.Tensor((32, 256), "float32"), O: T.Tensor((32,), "float32")):
    with T.Kernel(1, threads=128):
        part, s = T.alloc_fragment((32, 128), "float32"), T.alloc_fragment((32,), "float32")
        T.clear(s)
        for k in T.serial(2):
            T.copy(A[0, k * 128], part)
            T.reduce_sum(part, s, dim=1, clear=False)
        T.copy(s, O)


@T.prim_func
def doubled(A: T.Tensor((32,), "float32"), O: T.Tensor((32,), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(32):
            O[i] = A[i] * 2


def test_kernels_that_the_options_change_have_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def turns(kernels: dict[str, Any], arguments: Sequence[Any]) -> dict[str, float]:
        return {"on": 2.0, "off": 3.0}

    monkeypatch.setattr(rules, "turns", turns)
    calls = [Call("broken", error="it fails")]
    for program in (row_sums, doubled):
        kernel = tiledsl.compile(program, target="interpret", out_idx=-1)
        calls.append(Call(kernel.name, [torch.ones(kernel.params[0].shape)], kernel, kernel=kernel))
    (row,) = rules.rows(calls, {"reduce-after-loops.enabled": False})
    assert row["kernel"] == "row_sums" and row["off / on"] == 1.5 and row["difference"] == "0.0e+00"
    assert rules.rows(calls, {}) == []


def test_differences_are_relative_and_infinite_where_one_is_not_finite() -> None:
    one, two = [torch.tensor([1.0, 4.0])], [torch.tensor([1.0, 2.0])]
    assert rules.difference(one, two) == 1.0 and rules.difference(one, one) == 0.0
    assert rules.difference(one, [torch.tensor([1.0, float("nan")])]) == float("inf")
