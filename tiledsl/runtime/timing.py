"""The clock: times of calls on a GPU, on the CPU, or as a test states them.

Whoever measures does it here: do_bench, the tuner's processes, functions that are tuned in place, launches in context.
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

FLUSH_BYTES = 256 << 20  # more than any GPU's last-level cache: 50 MB on H100, 126 MB on B200, 256 MB on MI300
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


class Clock:
    """Times calls, in milliseconds. `time` and `read` are the clock's own, the rest follows from them.

    method: how it times, in words. config: what is timed, for clocks that ask.
    """

    method = ""
    config: Mapping[str, Any] = {}

    def time(self, call: Call) -> tuple[Any, Any]:
        """Run a call without waiting for it: its value, and what `read` makes milliseconds of later."""
        raise NotImplementedError

    def read(self, mark: Any) -> float:
        """The milliseconds of a call that `time` has run; waits for its end."""
        raise NotImplementedError

    def warm(self, call: Call, reset: Call | None, milliseconds: float) -> None:
        """Run a call for so long, for clocks and caches to settle. `reset` restores what it changes, before each."""
        raise NotImplementedError

    def times(self, call: Call, count: int, reset: Call | None = None) -> list[float]:
        """Times of `count` calls; `reset` runs before each."""
        marks = []
        for _ in range(count):
            if reset is not None:
                reset()
            marks.append(self.time(call)[1])
        return [self.read(mark) for mark in marks]

    def quick(self, call: Call, reset: Call | None = None) -> float:
        """Milliseconds of a call, from the best of three. Several percent off."""
        self.warm(call, reset, 0.0)
        return max(min(self.times(call, 3, reset)), 1e-4)

    def prepare(
        self, calls: Callable[[int], Sequence[Call]], nbytes: int, quick: float, reset: Call | None = None
    ) -> Prepared:
        """Make a call ready for `Prepared.sample`. `calls(n)` gives n calls on copies of the inputs of `nbytes` bytes;
        `reset` restores inputs that the call changes."""
        return Prepared(self, calls(1)[0], reset, 1, self.method)


class EventClock(Clock):
    """On the current GPU, between two events of the current stream, after the second-level cache was overwritten.

    flush_bytes: that are written before each call; flushes: how many times. While they run, the host launches the call.
    """

    method = "events"

    def __init__(self, flush_bytes: int = FLUSH_BYTES, flushes: int = 1) -> None:
        import torch

        self._torch, self._flushes = torch, flushes
        self._cache = torch.empty(flush_bytes, dtype=torch.int8, device="cuda")

    def flush(self) -> None:
        """Overwrite the second-level cache."""
        for _ in range(self._flushes):
            self._cache.zero_()

    def time(self, call: Call) -> tuple[Any, Any]:
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush()
        start.record()
        value = call()
        end.record()
        return value, (start, end)

    def read(self, mark: Any) -> float:
        start, end = mark
        end.synchronize()
        return float(start.elapsed_time(end))

    def warm(self, call: Call, reset: Call | None, milliseconds: float) -> None:
        """As long as it takes with `reset`, and at least once: more and more calls in a row, lest the GPU idles."""
        mark = start, end = tuple(self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        spent, count = 0.0, 1
        while True:
            start.record()
            for _ in range(count):
                if reset is not None:
                    reset()
                call()
            end.record()
            took = max(self.read(mark), 1e-3)
            spent += took
            if spent >= milliseconds:
                return
            count = max(1, min(2 * count, round((milliseconds - spent) / took * count)))

    def times(self, call: Call, count: int, reset: Call | None = None) -> list[float]:
        found = super().times(call, count, reset)
        self._torch.cuda.synchronize()  # what works on beside the current stream is not to meet what comes next
        return found

    def kernel_time(self, call: Call, count: int) -> float:
        """Mean over `count` calls of the device time of the kernels that each launches, as torch.profiler has it."""
        from torch.profiler import ProfilerActivity, profile

        def kernels(work: Call, times: int) -> dict[str, tuple[int, float]]:
            with profile(activities=[ProfilerActivity.CUDA]) as trace:
                for _ in range(times):
                    self.flush()
                    work()
                self._torch.cuda.synchronize()
            return {event.key: (event.count, float(event.self_device_time_total)) for event in trace.key_averages()}

        flush = kernels(lambda: None, 1)
        total = 0.0
        for name, (found, microseconds) in kernels(call, count).items():
            # The flush has launched its kernels once a call; what is left of the same name is of `call`.
            own = found - count * flush[name][0] if name in flush else found
            total += microseconds * max(own, 0) / found
        return total / count / 1e3


class Stopwatch(EventClock):
    """Times calls on the current GPU, each with a second-level cache that holds none of its inputs.

    Calls of 64 microseconds and more lie between two CUDA events, after the cache was overwritten. Shorter ones run
    many at once in a CUDA graph, over rotating copies of the inputs that together exceed the cache, so that neither
    the launch nor the events count; they are timed like the others where a graph cannot be captured. backend: "event"
    or "cudagraph", to time all calls in one of the ways.
    """

    def __init__(self, backend: str | None = None) -> None:
        # A flush takes some 60 microseconds: while two run, a busy host still launches the call in time.
        super().__init__(flushes=2)
        self._longest_in_graph = longest_in_graph(backend)
        self._cache_bytes = cache_bytes()

    def prepare(
        self, calls: Callable[[int], Sequence[Call]], nbytes: int, quick: float, reset: Call | None = None
    ) -> Prepared:
        """As of any clock; `reset` rules out a graph."""
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
        return super().prepare(calls, nbytes, quick, reset)


class WallClock(Clock):
    """On the CPU: what a call takes until it returns."""

    method = "wall clock"

    def time(self, call: Call) -> tuple[Any, Any]:
        start = perf_counter()
        value = call()
        return value, max((perf_counter() - start) * 1e3, 1e-6)

    def read(self, mark: Any) -> float:
        return float(mark)

    def warm(self, call: Call, reset: Call | None, milliseconds: float) -> None:
        spent = 0.0
        while spent < milliseconds:
            spent += self.times(call, 1, reset)[0]


class FakeClock(Clock):
    """In tests and simulations: `module:function` takes the configuration and the call to time, which it may run or
    not, and returns milliseconds. A call that `time` has run is run no more."""

    method = "fake"

    def __init__(self, timer: str) -> None:
        module, _, name = timer.partition(":")
        self._timer = getattr(importlib.import_module(module), name)

    def time(self, call: Call) -> tuple[Any, Any]:
        config = self.config  # the call may time others
        value = call()
        return value, self._timer(config, lambda: value)

    def read(self, mark: Any) -> float:
        return float(mark)

    def quick(self, call: Call, reset: Call | None = None) -> float:
        return float(self._timer(self.config, call))

    def prepare(
        self, calls: Callable[[int], Sequence[Call]], nbytes: int, quick: float, reset: Call | None = None
    ) -> Prepared:
        return _Stated(self, lambda: quick, None, 1, self.method)


@dataclass
class Prepared:
    """A call that is ready to be timed; `size` is how many times it runs what is asked about, and `keep` owns the
    memory that a graph uses."""

    clock: Clock
    call: Call
    reset: Call | None
    size: int
    method: str
    keep: Any = None

    def warm(self, milliseconds: float) -> None:
        """Run for so long, for clocks and caches to settle."""
        self.clock.warm(self.call, self.reset, milliseconds)

    def rest(self, milliseconds: float) -> None:
        """Leave the GPU idle for so long."""
        sleep(milliseconds * 1e-3)

    def sample(self, milliseconds: float, quick: float) -> list[float]:
        """Times of single calls, as many as fit into the time, at least five."""
        wanted = int(milliseconds / (quick * self.size))
        count = min(_MOST_SAMPLES, max(_LEAST_SAMPLES, wanted))
        return [elapsed / self.size for elapsed in self.clock.times(self.call, count, self.reset)]


class _Stated(Prepared):
    """A call that returns its milliseconds."""

    def warm(self, milliseconds: float) -> None:
        pass

    def rest(self, milliseconds: float) -> None:
        pass

    def sample(self, milliseconds: float, quick: float) -> list[float]:
        return [self.call()] * _LEAST_SAMPLES


def clock(timer: str | None, backend: str | None = None, on_gpu: bool = True) -> Clock:
    """What times configurations: a clock as `timer` says, else a Stopwatch, or the wall's off the GPU."""
    if timer is not None:
        return FakeClock(timer)
    return Stopwatch(backend) if on_gpu else WallClock()


def launch_clock(timer: str | None, on_gpu: bool) -> Clock:
    """What times single launches without waiting for them: what runs beside them goes on as it would."""
    if timer is not None or not on_gpu:
        return clock(timer, on_gpu=on_gpu)
    return EventClock(2 * cache_bytes())


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
