"""Time calls on a GPU. Runs where the kernels run: in a benchmark process, or in this one under `isolate=False`."""

from __future__ import annotations

import importlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_FLUSH_BYTES = 256 << 20  # more than any GPU's last-level cache: 50 MB on H100, 126 MB on B200, 256 MB on MI300
_FLUSHES = 2  # of some 60 microseconds each: while they run, a busy host still launches the call in time
_SHORT = 0.064  # milliseconds: shorter calls are timed many at once, in a CUDA graph
_GRAPH_MILLISECONDS = 1.0  # of one replay
_MOST_IN_GRAPH = 500  # calls; capturing each takes the host some 20 microseconds
_LEAST_SAMPLES, _MOST_SAMPLES = 5, 1000
_ROTATED_BYTES = 1 << 29  # copies of the inputs take no more
_MOST_COPIES = 32

Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """The median of the samples and their interquartile range, in milliseconds; how they were taken."""

    median: float
    spread: float
    samples: tuple[float, ...]
    method: str


def summarize(samples: Sequence[float], method: str) -> Timing:
    """Median and interquartile range of samples."""
    if len(samples) < 2:
        return Timing(samples[0], 0.0, tuple(samples), method)
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(statistics.median(samples), high - low, tuple(samples), method)


def longest_in_graph(backend: str | None) -> float:
    """Milliseconds of the longest calls that are timed in graphs."""
    return {"event": 0.0, "cudagraph": math.inf}.get(backend or "", _SHORT)


def cache_bytes() -> int:
    """Size of the current GPU's second-level cache."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(getattr(properties, "L2_cache_size", 0)) or (64 << 20)


def capture(calls: Sequence[Call], rounds: int) -> Any:
    """A CUDA graph of all calls, so many times in a row; it has run once. Raises where a call waits for the GPU, or
    does something else that a graph cannot hold."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    torch.cuda.synchronize()
    return graph


class Stopwatch:
    """Times calls on the current GPU, each with a second-level cache that holds none of its inputs.

    Calls of 64 microseconds and more lie between two CUDA events, after the cache was overwritten. Shorter ones run
    many at once in a CUDA graph, over rotating copies of the inputs that together exceed the cache, so that neither
    the launch nor the events count; they are timed like the others where a graph cannot be captured. backend: "event"
    or "cudagraph", to time all calls in one of the ways.
    """

    def __init__(self, backend: str | None = None) -> None:
        import torch

        self._longest_in_graph = longest_in_graph(backend)
        self._torch = torch
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._cache_bytes = cache_bytes()

    def quick(self, call: Call, reset: Call | None = None) -> float:
        """Milliseconds of a call, from the best of three after one to warm up. Several percent off."""
        self._warm(call, reset, 0.0)
        return max(min(self._events(call, reset, 3)), 1e-4)

    def prepare(
        self, calls: Callable[[int], Sequence[Call]], nbytes: int, quick: float, reset: Call | None = None
    ) -> Prepared:
        """Make a call ready for `Prepared.sample`. `calls(n)` gives n calls on copies of the inputs of `nbytes` bytes;
        `reset` restores inputs that the call changes, which rules out a graph."""
        if quick < self._longest_in_graph and reset is None:
            copies = min(
                _MOST_COPIES, max(1, _ROTATED_BYTES // max(1, nbytes)), 1 + 2 * self._cache_bytes // max(1, nbytes)
            )
            try:
                rotated = calls(max(1, copies))
                rounds = max(1, round(min(_GRAPH_MILLISECONDS / quick, _MOST_IN_GRAPH) / len(rotated)))
                graph = capture(rotated, rounds)
                return Prepared(self, graph.replay, None, rounds * len(rotated), "graph", rotated)
            except Exception:  # the host function waits for the GPU, or does something else that a graph cannot hold
                self._torch.cuda.synchronize()
        return Prepared(self, calls(1)[0], reset, 1, "events")

    def _warm(self, call: Call, reset: Call | None, milliseconds: float) -> None:
        torch = self._torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        spent = 0.0
        while True:
            start.record()
            if reset is not None:
                reset()
            call()
            end.record()
            end.synchronize()
            spent += max(start.elapsed_time(end), 1e-3)
            if spent >= milliseconds:
                return

    def _events(self, call: Call, reset: Call | None, count: int) -> list[float]:
        torch = self._torch
        starts = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        for start, end in zip(starts, ends):
            if reset is not None:
                reset()
            for _ in range(_FLUSHES):
                self._flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [float(start.elapsed_time(end)) for start, end in zip(starts, ends)]


@dataclass
class Prepared:
    """A call that is ready to be timed; `size` is how many times it runs what is asked about, and `keep` owns the
    memory that a graph uses."""

    watch: Stopwatch
    call: Call
    reset: Call | None
    size: int
    method: str
    keep: Any = None

    def warm(self, milliseconds: float) -> None:
        """Run for so long, for clocks and caches to settle."""
        self.watch._warm(self.call, self.reset, milliseconds)

    def rest(self, milliseconds: float) -> None:
        """Leave the GPU idle for so long."""
        time.sleep(milliseconds * 1e-3)

    def sample(self, milliseconds: float, quick: float) -> list[float]:
        """Times of single calls, as many as fit into the time, at least five."""
        wanted = int(milliseconds / (quick * self.size))
        count = min(_MOST_SAMPLES, max(_LEAST_SAMPLES, wanted))
        return [elapsed / self.size for elapsed in self.watch._events(self.call, self.reset, count)]


def clock(timer: str | None, backend: str | None = None) -> Any:
    """What times calls: a Stopwatch, or what `timer` says."""
    return Stopwatch(backend) if timer is None else _Fake(timer)


class _Fake:
    """Stands for the clock, in tests and simulations: `module:function` takes the configuration and the call to time,
    which it may run or not, and returns milliseconds."""

    method = "fake"

    def __init__(self, timer: str) -> None:
        module, _, name = timer.partition(":")
        self._timer = getattr(importlib.import_module(module), name)
        self.config: dict[str, Any] = {}
        self._quick = 0.0

    def quick(self, call: Callable[[], Any], reset: Any) -> float:
        self._quick = float(self._timer(self.config, call))
        return self._quick

    def prepare(self, calls: Callable[[int], Sequence[Any]], nbytes: int, quick: float, reset: Any) -> _Sampled:
        return _Sampled(quick)


@dataclass
class _Sampled:
    quick: float
    method: str = "fake"

    def warm(self, milliseconds: float) -> None:
        pass

    def rest(self, milliseconds: float) -> None:
        pass

    def sample(self, milliseconds: float, quick: float) -> list[float]:
        return [self.quick] * 5
