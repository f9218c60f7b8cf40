"""The clock of a CUDA device, and what describes it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tiledsl.runtime.timing import capture

_MOST_NODES = 1000  # calls in one graph
_HIDING_CYCLES = 600_000  # a third of a millisecond: while the device spins, the host queues what is timed


@dataclass
class Launched:
    """Calls in a row, as a CUDA graph or from the host."""

    launch: Callable[[], Any]
    calls: int
    how: str
    keep: Any = None


class CudaClock:
    """Times launches between two events, with the host's own time hidden behind a spinning kernel."""

    def elapsed(self, launch: Callable[[], Any], times: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(_HIDING_CYCLES)
        start.record()
        for _ in range(times):
            launch()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    def idle(self, seconds: float) -> None:
        torch.cuda.synchronize()
        time.sleep(seconds)

    def runner(self, calls: Sequence[Callable[[], Any]], count: int, graph: bool) -> Launched:
        rounds = -(-min(count, _MOST_NODES) // len(calls))
        total = rounds * len(calls)

        def launch() -> None:
            for _ in range(rounds):
                for call in calls:
                    call()

        if graph:
            try:
                captured = capture(calls, rounds)
                return Launched(captured.replay, total, "graph", (captured, calls))
            except Exception:  # it waits for the device, or does something else that a graph cannot hold
                torch.cuda.synchronize()
        return Launched(launch, total, "host", calls)


def describe() -> dict[str, Any]:
    """The GPU and the versions of what is measured."""
    import triton

    import tiledsl

    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "tiledsl": tiledsl.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    try:
        import tilelang

        versions["tilelang"] = getattr(tilelang, "__version__", "?")
    except Exception:  # not installed, or it does not load here
        versions["tilelang"] = None
    return {
        "gpu": torch.cuda.get_device_name(),
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "driver": _driver(),
        "versions": versions,
    }


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except Exception:  # no such module: the driver's version is only for the record
        return ""
