"""The k largest of rows (benchmarks/programs/selection.py), among them equal ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
from benchmarks.programs import selection


def top_k(x: Any, k: int) -> Any:
    program = selection.top_k
    function = tiledsl.jit(**{**program.options, "target": "interpret"})(program.function)
    sizes = {"M": x.shape[0], "N": x.shape[1], "k": k}
    return function.kernel_for(sizes, {"block_N": 256, "threads": 128, "merge_threads": 128})(x)


@pytest.mark.parametrize("kind", ["normal", "equal", "zeros", "infinite"])
def test_the_largest_are_found_among_equal_ones(kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 1000)
    if kind == "equal":
        x = torch.randint(-3, 3, x.shape).float()
    elif kind == "zeros":
        x = x.clamp(max=0)
    elif kind == "infinite":
        x[:, ::3], x[:, 1::3] = float("inf"), float("-inf")
    values, indices = top_k(x, 16)
    assert torch.equal(values, x.topk(16, dim=1).values)
    assert torch.equal(x.gather(1, indices.long()), values)
    assert all(len(set(row.tolist())) == 16 for row in indices)


def test_of_equal_ones_the_first_are_taken() -> None:
    x = torch.zeros(1, 1000)
    x[0, [7, 500, 900]] = 1.0
    _, indices = top_k(x, 16)
    assert sorted(indices[0].tolist()) == [*range(14), 500, 900]
