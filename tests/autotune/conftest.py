"""Counted, replaceable stages of the tuner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.autotune import fake_timers
from tests.autotune.run_harness import Harness
from tiledsl.autotuner import task
from tiledsl.autotuner.measuring import measure
from tiledsl.autotuner.measuring.bench_pool import BenchPool


@pytest.fixture(autouse=True)
def _same_everywhere(cache_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds what another one tuned, or a GPU."""
    monkeypatch.setenv("TILEDSL_TARGET", "interpret")


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the engine tuned ("run"), and gave a configuration to a benchmark process ("verify")."""
    counts: Counter[str] = Counter()

    def counted(owner: Any, name: str, shown: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            counts[shown] += 1
            return original(*arguments)

        monkeypatch.setattr(owner, name, call)

    counted(task, "carry_out", "run")
    for pool in (BenchPool, measure.InProcess):
        counted(pool, "submit", "verify")
    return counts


Timer = Callable[[dict[str, Any]], float]


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Timer], list[dict[str, Any]]]:
    """Pretend that this process can measure: `timer(f)` makes f(config) a kernel's milliseconds; returns the timed."""

    def install(milliseconds: Timer) -> list[dict[str, Any]]:
        timed: list[dict[str, Any]] = []

        def clock(config: dict[str, Any]) -> float:
            if config not in timed:
                timed.append(config)
            return milliseconds(config)

        policy_of = measure.policy_of
        monkeypatch.setattr(fake_timers, "installed", [clock])
        monkeypatch.setattr(
            measure,
            "policy_of",
            lambda options: replace(policy_of(options), timer=f"{fake_timers.__name__}:by_fixture"),
        )
        monkeypatch.setattr(measure, "is_measured", lambda target, options: True)
        monkeypatch.setattr(measure, "time_reference", lambda *_: 7.0)
        monkeypatch.setattr(measure, "BenchPool", lambda devices, events: measure.InProcess("cpu", events))
        return timed

    return install


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *given, **named: Harness(monkeypatch, *given, **named)
