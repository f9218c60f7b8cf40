"""How rows are timed: candidates interleaved in one process, in two regimes.

steady: a candidate back to back, after a warm-up: the card is then limited by its power, and the numbers repeat to
within a per cent. burst: a few launches after some idling: not limited, what a lone kernel in a model sees. In every
round each candidate has one window of each regime, in an order that rotates, so that drifting clocks meet all alike;
ratios are taken within a round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

REGIMES = ("steady", "burst")


@dataclass(frozen=True)
class Plan:
    """Seconds of warm-up before the first round, of each window's untimed start, of its timed rest, and of idling."""

    warm: float = 0.3
    lead: float = 0.05
    window: float = 0.12
    rounds: int = 5
    idle: float = 0.05
    burst: float = 0.0003  # a burst has at least this many seconds of work, and four launches


QUICK = Plan(warm=0.1, lead=0.02, window=0.05, rounds=3)
_LEAST_BURST = 4


class Runner(Protocol):
    """A candidate on the device: `launch` starts `calls` calls of it."""

    calls: int

    def launch(self) -> None: ...


class Clock(Protocol):
    """What times launches."""

    def elapsed(self, launch: Callable[[], Any], times: int) -> float:
        """Milliseconds on the device of `times` launches in a row."""
        ...

    def idle(self, seconds: float) -> None:
        """Leave the device alone."""
        ...

    def runner(self, calls: Sequence[Callable[[], Any]], count: int, graph: bool) -> Runner:
        """`count` calls (or a multiple of len(calls)) as one launch, cycling through `calls`."""
        ...


@dataclass
class Prepared:
    """A candidate's two runners, and milliseconds of one call as first estimated."""

    steady: Runner
    burst: Runner
    estimate: float


_LAUNCH = 2.0  # milliseconds of work that one launch of a steady runner should have


def prepare(calls: Sequence[Callable[[], Any]], clock: Clock, plan: Plan, graph: bool) -> Prepared:
    """Make runners: some milliseconds of work a launch for steady, a few calls for burst."""

    def once() -> None:
        for call in calls:
            call()

    once()
    estimate = max(min(clock.elapsed(once, 1) for _ in range(3)) / len(calls), 1e-4)
    few = max(_LEAST_BURST, math.ceil(plan.burst * 1e3 / estimate))
    steady = clock.runner(calls, max(1, math.ceil(_LAUNCH / estimate)), graph)
    estimate = max(min(clock.elapsed(steady.launch, 1) for _ in range(2)) / steady.calls, 1e-4)
    return Prepared(steady, clock.runner(calls, few, graph), estimate)


def measure(prepared: Mapping[str, Prepared], clock: Clock, plan: Plan) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of a call: by candidate, by regime, one number a round."""
    names = list(prepared)
    found: dict[str, dict[str, list[float]]] = {name: {regime: [] for regime in REGIMES} for name in names}
    for name in names:
        _run(prepared[name], clock, plan.warm)
    for number in range(plan.rounds):
        shift = number % len(names) if names else 0
        order = names[shift:] + names[:shift]
        for name in order:
            if plan.lead:
                _run(prepared[name], clock, plan.lead)
            found[name]["steady"].append(_run(prepared[name], clock, plan.window))
        for name in order:
            clock.idle(plan.idle)
            runner = prepared[name].burst
            found[name]["burst"].append(clock.elapsed(runner.launch, 1) / runner.calls)
    return found


def _run(prepared: Prepared, clock: Clock, seconds: float) -> float:
    runner = prepared.steady
    times = max(1, math.ceil(seconds * 1e3 / (prepared.estimate * runner.calls)))
    return clock.elapsed(runner.launch, times) / (times * runner.calls)


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Least, median and most of the rounds, and the rounds themselves."""
    return {
        "min": min(values), "median": statistics.median(values), "max": max(values), "rounds": list(values)
    }  # fmt: skip


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """How many times faster than theirs ours is, round by round."""
    return summary([b / a for a, b in zip(ours, theirs, strict=True)])


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(statistics.fmean(math.log(value) for value in values))
