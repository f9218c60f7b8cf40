"""Time calls against each other: windows of back-to-back launches, in rounds of alternating order.

Back to back the card holds its power-capped clock, at which windows of one call differ by less than a per cent.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeVar

Name = TypeVar("Name", bound=Hashable)
Call = Callable[[], Any]

LEAD_MS = 20.0  # of the window before the timed part: what ran before no longer counts
WINDOW_MS = 80.0
WARM_MS = 500.0
FAR = 1.25  # times the best: slower ones are not measured on after the first rounds
FIRST_ROUNDS = 2


class Clock(Protocol):
    """Milliseconds of one call, the mean of `times` calls back to back."""

    def __call__(self, run: Call, times: int) -> float: ...


def gpu_clock(run: Call, times: int) -> float:
    """Between two CUDA events on the current stream."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / times


def cpu_clock(run: Call, times: int) -> float:
    """Of a single call: for trying programs without a GPU."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def interleaved(
    calls: Mapping[Name, Call], rounds: int, clock: Clock, *, window: float = WINDOW_MS, screen: bool = True
) -> dict[Name, list[float]]:
    """Milliseconds of a call in each round, by name. With `screen`, calls much slower than the best end early, with
    the first rounds' times."""
    quick = {name: max(clock(call, 3), 1e-4) for name, call in calls.items()}
    first = next(iter(calls), None)
    if first is None:
        return {}
    clock(calls[first], max(1, int(WARM_MS / quick[first])))
    times: dict[Name, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        if screen and number == FIRST_ROUNDS:
            best = min(map(statistics.median, times.values()))
            quick = {name: q for name, q in quick.items() if statistics.median(times[name]) <= best * FAR}
        for name in quick if number % 2 == 0 else [*quick][::-1]:
            clock(calls[name], max(1, int(LEAD_MS / quick[name])))
            times[name].append(clock(calls[name], max(1, int(window / quick[name]))))
    return times


def medians(times: Mapping[Name, list[float]]) -> dict[Name, float]:
    """The median of each call's rounds."""
    return {name: statistics.median(each) for name, each in times.items() if each}
