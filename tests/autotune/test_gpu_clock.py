"""Waiting for a GPU's clock, told by a stand-in for NVIDIA's library."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tiledsl.autotuner.measuring.gpu_clock import reader, wait_for_clock


def test_it_works_until_the_clock_is_high() -> None:
    clocks = iter([(600, 1980), (1200, 1980), (1960, 1980), (0, 0)])
    worked: list[int] = []
    assert wait_for_clock(60.0, lambda: next(clocks), lambda: worked.append(1)) and worked == [1, 1]
    assert not wait_for_clock(0.0, lambda: (600, 1980), lambda: worked.append(1)) and worked == [1, 1]
    assert not wait_for_clock(60.0, None, lambda: worked.append(1))


def test_the_clock_is_the_current_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Library:
        failure = 0

        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> int:
                asked.append((name, *[each for each in arguments if isinstance(each, (bytes, int))]))
                if name.endswith("ClockInfo"):
                    arguments[-1]._obj.value = 1980 if "Max" in name else 600
                return self.failure

            return call

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=f"abc-{number}"))
    read = reader(Library())
    assert read is not None and read() == (600, 1980)
    assert asked[:2] == [("nvmlInit_v2",), ("nvmlDeviceGetHandleByUUID", b"GPU-abc-1")]
    assert asked[2:] == [("nvmlDeviceGetClockInfo", 1), ("nvmlDeviceGetMaxClockInfo", 1)]
    broken = Library()
    broken.failure = 9
    assert reader(broken) is None
