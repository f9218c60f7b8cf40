"""Calls of Python functions, watched for what neither the clock nor a check of their results would see.

A function that is tuned may do part of its work on another stream or in another thread, return something that computes
when it is looked at, leave its results to memory that happens to hold right ones, keep them from an earlier call, or
replace what measures it. None of that need be meant so, and all of it makes a configuration look faster than it is.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner import selection
from tiledsl.autotuner.measuring import final_round, inputs
from tiledsl.autotuner.measuring.inputs import changed, copies, poison
from tiledsl.errors import TileError
from tiledsl.runtime import timing
from tiledsl.runtime.profiler import tensors
from tiledsl.runtime.timing import WallClock

_JOIN_SECONDS = 1.0
_LATE_MS, _LATE_SHARE = 0.05, 0.1  # of work on other streams: what waiting itself takes, and a share of the call's time
_TRIES = 8  # others may use the GPU in some
_COPIES = 3  # of each output's size, of memory that is free again
_STEPS = 4.0  # of a float's last bit, by which inputs differ from call to call


@dataclass
class Observed:
    """What a call gave. results, given: its tensors and its arguments by name as they were when it returned; late: what
    it went on doing, in words, or ""."""

    results: list[Any]
    given: dict[str, Any]
    late: str = ""


def observe(call: Callable[[], Any], arguments: Mapping[str, Any], alike: Sequence[Any], on_gpu: bool) -> Observed:
    """Run a function once. arguments: its own, which it may change; alike: tensors of the size of its results.

    TileError if it returns something that is no plain tensor: its value need not be computed yet.
    """
    for tensor in alike:
        spoil_free_memory(tensor)
    before = threading.enumerate()
    returned = call()
    results = plain_tensors(returned)
    seen, later = copies(results), dict(zip(arguments, copies(list(arguments.values()))))
    if on_gpu:
        import torch

        torch.cuda.synchronize()
    _join_others(before)
    moved = any(changed(now, old) for now, old in zip(results, seen))
    moved = moved or any(changed(now, later[name]) for name, now in arguments.items())
    late = "changes its results after it has returned: a thread or a stream of its own still works" if moved else ""
    return Observed(seen, later, late)


def plain_tensors(returned: Any) -> list[Any]:
    """The tensors of what a function returned. TileError for a subclass of torch.Tensor."""
    import torch

    returned_tensors = tensors(returned)
    for tensor in returned_tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise TileError(
                f"it returns {type(tensor).__module__}.{type(tensor).__qualname__}, which is no plain torch.Tensor: "
                "its value may be computed only when it is looked at"
            )
    return returned_tensors


def spoil_free_memory(like: Any) -> None:
    """Have the allocator hand out memory that holds NaN (integers: a far-off number) where a tensor's size is asked for
    next: what is returned without being written then shows."""
    import torch

    held = []
    for dtype in {like.dtype, torch.float32 if like.dtype is torch.float64 else like.dtype}:
        for _ in range(_COPIES):
            held.append(torch.empty(like.shape, dtype=dtype, device=like.device))
            poison(held[-1])
    del held


def late_milliseconds(call: Callable[[], Any], reset: Callable[[], Any] | None) -> float:
    """For how long the GPU works on after the current stream has done a call; the least of a few. What waiting takes
    when there is nothing to wait for is not counted: on a GPU that others use it may be long."""
    import torch

    waits: list[float] = []
    idle: list[float] = []
    wall = WallClock()
    for _ in range(_TRIES):
        if reset is not None:
            reset()
        torch.cuda.synchronize()
        call()
        torch.cuda.current_stream().synchronize()
        for times in (waits, idle):
            times.append(wall.read(wall.time(torch.cuda.synchronize)[1]))
    return max(0.0, min(waits) - min(idle))


def is_late(milliseconds: float, quick: float) -> str:
    """Why work after the current stream's end makes a call's time wrong; "" if there is none to speak of."""
    if milliseconds <= _LATE_MS + _LATE_SHARE * quick:
        return ""
    return f"works on for {milliseconds:.3g} ms on another stream, which the current one does not wait for"


def other_bits(base: Any, generator: Any) -> Any:
    """A tensor's values, all times one random number from a half to one, and each larger by a random part of a few
    steps of its type: zeros, signs and order stay."""
    import torch

    chance = torch.rand(base.shape, generator=generator, device=base.device, dtype=torch.float32)
    step = _STEPS * torch.finfo(base.dtype).eps
    scale = 0.5 + 0.49 * torch.rand((), generator=generator, device=base.device, dtype=torch.float32)
    return base * (scale.to(base.dtype) + chance.to(base.dtype) * (step / 2))


def may_differ(value: Any) -> bool:
    """Whether a tensor holds floats whose last bits may change from call to call."""
    return hasattr(value, "data_ptr") and value.dtype.is_floating_point and value.element_size() > 1


def joined(call: Callable[[], Any]) -> Callable[[], Any]:
    """A call that ends when the threads that it has started have."""

    def waited() -> Any:
        before = threading.active_count()
        known = threading.enumerate()
        value = call()
        if threading.active_count() > before:
            _join_others(known)
        return value

    return waited


def _join_others(known_threads: Sequence[threading.Thread]) -> None:
    """Wait for all threads but those that are known, for a second each."""
    for thread in threading.enumerate():
        end = time.monotonic() + _JOIN_SECONDS
        while thread not in known_threads and time.monotonic() < end:
            try:
                thread.join(_JOIN_SECONDS)
                break
            except RuntimeError:  # listed, but another thread is only just starting it
                time.sleep(1e-4)


class Guard:
    """What measures and checks, as it was: see `meddled`."""

    def __init__(self, *more: Any) -> None:
        """more: modules and classes of which every function is watched too."""
        self._known = [
            (owner, name, vars(owner).get(name)) for owner, names in _guarded(more).items() for name in names
        ]  # None: inherited

    def meddled(self) -> list[str]:
        """What has been replaced since, by name. It is put back."""
        replaced = []
        for owner, name, original in self._known:
            if vars(owner).get(name) is not original:
                replaced.append(f"{owner.__name__}.{name}")
                with contextlib.suppress(AttributeError, TypeError):
                    delattr(owner, name) if original is None else setattr(owner, name, original)
        return replaced


def _guarded(more: Sequence[Any]) -> dict[Any, tuple[str, ...]]:
    import torch

    from tiledsl.autotuner.verifying import compare, reference, tolerance, verify

    names: dict[Any, tuple[str, ...]] = {
        time: ("perf_counter", "perf_counter_ns", "monotonic", "time", "process_time", "sleep"),
        statistics: ("median", "quantiles"),
        math: ("sqrt", "isfinite"),
        threading: ("enumerate", "active_count"),
        torch: ("isclose", "allclose", "isfinite", "isnan", "where", "equal", "rand", "empty", "full"),
        torch.Tensor: (*"clone copy_ to item sum max abs all any double".split(), "__eq__", "__sub__"),
        torch.cuda: ("synchronize", "Event", "current_stream", "Stream"),
        torch.cuda.Event: ("record", "elapsed_time", "synchronize", "wait"),
        torch.cuda.Stream: ("synchronize", "wait_stream", "wait_event"),
    }
    clocks = (timing, timing.Clock, timing.EventClock, timing.Stopwatch, timing.WallClock, timing.Prepared)
    ours = (selection, final_round, inputs, compare, reference, tolerance, verify, tolerance.Tolerance, *clocks)
    for owner in (*ours, *more):
        names[owner] = tuple(name for name, value in vars(owner).items() if callable(value))
    return names
