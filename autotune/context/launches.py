"""Time single launches without waiting for them: what runs beside them goes on as it would."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tiledsl.autotuner.measuring.timing import cache_bytes

Call = Callable[[], Any]


class LaunchClock(Protocol):
    """`time` runs a call once; its value, and what `read` makes milliseconds of later."""

    method: str

    def time(self, config: Mapping[str, Any], call: Call) -> tuple[Any, Any]: ...

    def read(self, taken: Any) -> float: ...


class Events:
    """On a GPU: between two events of the current stream, after the second-level cache was overwritten."""

    method = "events in context"

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._flush = torch.empty(2 * cache_bytes(), dtype=torch.int8, device="cuda")

    def time(self, config: Mapping[str, Any], call: Call) -> tuple[Any, Any]:
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        start.record()
        value = call()
        end.record()
        return value, (start, end)

    def read(self, taken: Any) -> float:
        start, end = taken
        end.synchronize()
        return float(start.elapsed_time(end))


class WallClock:
    """On the CPU."""

    method = "wall clock in context"

    def time(self, config: Mapping[str, Any], call: Call) -> tuple[Any, Any]:
        start = time.perf_counter()
        value = call()
        return value, (time.perf_counter() - start) * 1e3

    def read(self, taken: Any) -> float:
        return float(taken)


class Fake:
    """`module:function` in place of a clock, as for timing.clock; the call has run when it is asked."""

    method = "fake"

    def __init__(self, timer: str) -> None:
        module, _, name = timer.partition(":")
        self._timer = getattr(importlib.import_module(module), name)

    def time(self, config: Mapping[str, Any], call: Call) -> tuple[Any, Any]:
        value = call()
        return value, self._timer(config, lambda: value)

    def read(self, taken: Any) -> float:
        return float(taken)
