"""tune_all: several calls of one function, tuned one after another or each on a GPU of its own."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.results.result import AutotuneResult
from tiledsl.autotuner.waiting import WAKE_SECONDS
from tiledsl.errors import TileError
from tiledsl.runtime.target import Target

Call = tuple[Sequence[Any], Mapping[str, Any]]
Tune = Callable[..., AutotuneResult]  # of arguments, keywords, options, and what is told of the Run

_log = logging.getLogger("tiledsl")


def split_calls(calls: Any, what: str) -> list[Call]:
    """Calls as positional and named arguments each. TileError, in which `what` takes them, for what is no list of
    tuples or dicts."""
    example = "write a list, [(arguments of a call), (of another), ...], of tuples or of dicts of arguments by name"
    if not isinstance(calls, Iterable) or isinstance(calls, (str, Mapping)):
        raise TileError(f"{what}: the calls are {calls!r}", notes=[example])
    split: list[Call] = []
    for number, call in enumerate(calls):
        if not isinstance(call, (list, tuple, Mapping)):
            raise TileError(f"{what}: call {number} is {call!r}, no tuple or dict", notes=[example])
        split.append(((), dict(call)) if isinstance(call, Mapping) else (tuple(call), {}))
    return split


def tune_all(tune: Tune, calls: Sequence[Call], target: Target, options: TuneOptions) -> list[AutotuneResult]:
    """See AutotunedFunction.tune_all."""
    from tiledsl.autotuner.measuring.measure import device_numbers

    numbers = device_numbers(target, options) if options.shape_grouped else []
    outcomes: dict[int, AutotuneResult | BaseException] = {}
    if len(numbers) > 1:
        _Grouped(tune, calls, target, options, outcomes).run(numbers)
    else:
        for place, (arguments, keywords) in enumerate(calls):
            try:
                outcomes[place] = tune(arguments, keywords, options)
            except TileError as error:  # the others are tuned all the same
                outcomes[place] = error
            except KeyboardInterrupt:
                _warn_of_interruption(outcomes, calls)
                break
            if not _is_whole(outcomes[place]):
                _warn_of_interruption(outcomes, calls)
                break
    failures = [each for _, each in sorted(outcomes.items()) if isinstance(each, BaseException)]
    serious = next((each for each in failures if not isinstance(each, (TileError, KeyboardInterrupt))), None)
    if serious is not None:
        raise serious
    if failures and isinstance(failures[0], TileError):
        if len(calls) == 1:
            raise failures[0]
        wrong = [place for place in sorted(outcomes) if isinstance(outcomes[place], TileError)]
        shown = ", ".join(map(str, wrong))
        raise TileError(
            f"autotune: {len(wrong)} of {len(calls)} calls cannot be tuned (numbers {shown}); the others are",
            notes=[str(failures[0])],
        ) from failures[0]
    return [each for _, each in sorted(outcomes.items()) if isinstance(each, AutotuneResult)]


def _is_whole(outcome: Any) -> bool:
    return not isinstance(outcome, AutotuneResult) or outcome.complete


def _warn_of_interruption(outcomes: Mapping[int, Any], calls: Sequence[Call]) -> None:
    """Of the results so far there must be one."""
    found = sum(isinstance(each, AutotuneResult) for each in outcomes.values())
    if not found:
        raise KeyboardInterrupt
    _log.warning("autotune: interrupted; %d of %d calls have a result", found, len(calls))


class _Grouped:
    """A thread for each GPU takes calls from one queue and measures each call's configurations on its GPU."""

    def __init__(
        self, tune: Tune, calls: Sequence[Call], target: Target, options: TuneOptions, outcomes: dict[int, Any]
    ) -> None:
        self._tune, self._calls, self._target, self._options = tune, calls, target, options
        self._outcomes = outcomes
        self._left: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(len(calls)):
            self._left.put(place)
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._runs: list[Any] = []
        self._interrupted = False
        self._lock = threading.Lock()

    def run(self, numbers: Sequence[int]) -> None:
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(self._serve, number), daemon=True)
            for number in numbers[: len(self._calls)]
        ]
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:  # Thread.join, once interrupted, takes a thread for ended (before Python 3.13)
            try:
                while running:
                    with contextlib.suppress(queue.Empty):
                        self._ended.get(timeout=WAKE_SECONDS)
                        running -= 1
            except KeyboardInterrupt:
                self._interrupt()
        if self._interrupted:
            _warn_of_interruption(self._outcomes, self._calls)

    def _interrupt(self) -> None:
        """The runs end with the best so far; calls that wait are left out."""
        with self._lock:
            self._interrupted = True
            for run in self._runs:
                run.interrupt()

    def _started(self, run: Any) -> None:
        with self._lock:
            self._runs.append(run)
            if self._interrupted:
                run.interrupt()

    def _serve(self, number: int) -> None:
        try:
            with self._on(number):
                while not self._interrupted:
                    self._take_one(number)
        except queue.Empty:
            return
        finally:
            self._ended.put(number)

    def _take_one(self, number: int) -> None:
        """Raises queue.Empty when none is left."""
        place = self._left.get_nowait()
        arguments, keywords = self._calls[place]
        try:
            own = replace(self._options, devices=(number,), progress=False)  # bars would overwrite each other
            self._outcomes[place] = self._tune(arguments, keywords, own, self._started)
        except BaseException as error:  # told in the caller's thread
            self._outcomes[place] = error

    def _on(self, number: int) -> Any:
        """The GPU is this thread's current one: the inputs and the reference belong there."""
        from tiledsl.autotuner.measuring.measure import can_measure

        if not can_measure(self._target):
            return contextlib.nullcontext()
        import torch

        return torch.cuda.device(number)
