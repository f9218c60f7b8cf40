"""How benchmarks/choices.py times on a GPU what the tuner would time."""

from __future__ import annotations

import pytest
import torch

from benchmarks.choices import as_the_tuner

pytestmark = pytest.mark.gpu


def test_short_and_long_calls_have_times() -> None:
    x, y = (torch.randn(size, size, device="cuda") for size in (256, 4096))  # in a graph, and between events
    times = as_the_tuner({"short": lambda: x.sum(), "long": lambda: y @ y})
    assert 0 < max(times["short"]) < min(times["long"])
