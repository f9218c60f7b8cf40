"""The clocks, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tiledsl.runtime.timing import EventClock, FakeClock, WallClock

CONFIGS: list[Any] = []


def noted(config: Any, call: Callable[[], Any]) -> float:
    CONFIGS.append((config, call()))
    return 2.0


class Device:
    """A GPU that runs what is queued at once, in a millisecond each. `log` is what was queued."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def torch(self) -> Any:
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = -1

            def record(self) -> None:
                device.log.append("event")
                self.at = len(device.log)

            def synchronize(self) -> None:
                assert self.at >= 0

            def elapsed_time(self, end: Event) -> float:
                return end.at - self.at - 1.0

        return SimpleNamespace(cuda=SimpleNamespace(Event=Event, synchronize=lambda: device.log.append("wait")))

    def does(self, what: str) -> Callable[[], Any]:
        return lambda: self.log.append(what)


class NoGpu(EventClock):
    def __init__(self, device: Device, flushes: int) -> None:
        self._torch, self._flushes = device.torch(), flushes
        self._cache = SimpleNamespace(zero_=device.does("flush"))


def test_neither_what_resets_nor_the_flush_is_timed() -> None:
    device = Device()
    clock = NoGpu(device, 2)
    assert clock.times(device.does("call"), 2, device.does("reset")) == [1.0, 1.0]
    assert device.log == ["reset", "flush", "flush", "event", "call", "event"] * 2 + ["wait"]
    value, mark = NoGpu(device, 1).time(lambda: 7)
    assert value == 7 and clock.read(mark) == 0.0
    assert clock.quick(lambda: None) == 1e-4  # never nothing: counts of calls come from it


@pytest.mark.parametrize(
    ("milliseconds", "calls"), [(0.0, [1]), (4.0, [1, 1]), (12.0, [1, 2, 3]), (40.0, [1, 2, 4, 8, 5])]
)
def test_warming_up_runs_at_least_once_and_counts_what_resets(milliseconds: float, calls: list[int]) -> None:
    """A call takes two milliseconds with what resets; between two events are more and more of them."""
    device = Device()
    NoGpu(device, 1).warm(device.does("call"), device.does("reset"), milliseconds)
    assert device.log == [what for count in calls for what in ["event", *["reset", "call"] * count, "event"]]


def test_the_clock_on_the_wall_does_not_time_what_resets() -> None:
    order: list[str] = []
    found = WallClock().times(lambda: order.append("call"), 2, lambda: order.append("reset"))
    assert order == ["reset", "call"] * 2 and all(0 < each < 1000 for each in found)
    prepared = WallClock().prepare(lambda count: [lambda: order.append("call")] * count, 0, 1.0)
    prepared.warm(0.0)
    assert len(prepared.sample(0.0, 1.0)) == 5 == len(order) - 4


def test_a_call_that_times_others_keeps_its_own_configuration() -> None:
    CONFIGS.clear()
    clock = FakeClock(f"{__name__}:noted")

    def outer() -> str:
        clock.config = {"n": 2}
        clock.time(lambda: "inner")
        return "outer"

    clock.config = {"n": 1}
    value, mark = clock.time(outer)
    assert (value, clock.read(mark)) == ("outer", 2.0)
    assert CONFIGS == [({"n": 2}, "inner"), ({"n": 1}, "outer")]
    assert clock.prepare(lambda count: [], 0, 3.0).sample(100.0, 3.0) == [3.0] * 5
