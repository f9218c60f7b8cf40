"""Counted, replaceable stages of the tuner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tiledsl.autotuner import engine, measure
from tiledsl.runtime.kernel import Kernel


@pytest.fixture(autouse=True)
def _same_everywhere(cache_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds what another one tuned, or a GPU."""
    monkeypatch.setenv("TILEDSL_TARGET", "interpret")


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the engine lowered a list of trials, compiled one, and ran one."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> None:
        original = getattr(engine, name)

        def call(*arguments: Any) -> Any:
            counts[name.lstrip("_")] += 1
            return original(*arguments)

        monkeypatch.setattr(engine, name, call)

    for name in ("_lower", "_compile", "_run", "verify"):
        counted(name)
    return counts


Timer = Callable[[dict[str, Any]], float]


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Timer], list[dict[str, Any]]]:
    """Pretend that this machine can measure: `timer(f)` makes f(config) a kernel's milliseconds; returns the timed."""

    def install(milliseconds: Timer) -> list[dict[str, Any]]:
        timed: list[dict[str, Any]] = []

        def time_kernel(kernel: Kernel, inputs: Sequence[Any], options: Any, best: Any) -> tuple[float, bool]:
            assert kernel.config is not None
            timed.append(kernel.config)
            value = milliseconds(kernel.config)
            return value, options.early_stop and best is not None and value > best * options.early_stop_factor

        monkeypatch.setattr(measure, "can_measure", lambda target: True)
        monkeypatch.setattr(measure, "time_kernel", time_kernel)
        monkeypatch.setattr(measure, "time_call", lambda *_: (7.0, False))
        monkeypatch.setattr(engine, "_device_name", lambda target: "a stopwatch")
        return timed

    return install
