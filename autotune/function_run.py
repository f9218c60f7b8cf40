"""Run, check and time configurations of a Python function, in this process."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner import selection
from tiledsl.autotuner.group.agree import merged
from tiledsl.autotuner.group.clock import AgreedClock
from tiledsl.autotuner.group.ranks import Ranks, RanksLost, failure_status
from tiledsl.autotuner.measuring.final_round import Racer, race
from tiledsl.autotuner.measuring.inputs import changed, copies
from tiledsl.autotuner.measuring.timing import clock, summarize
from tiledsl.autotuner.trial import Trial
from tiledsl.autotuner.verifying.reference import Reference, tensors
from tiledsl.autotuner.verifying.tolerance import Tolerance
from tiledsl.autotuner.verifying.verify import Ran, judge
from tiledsl.errors import TileError

_FIRST_PASS = 0.25  # of `rep`, in the first measurement


class Call:
    """A function with the arguments of one call, tunables left out. as_is: names of tensors that are never copied."""

    def __init__(self, function: Callable[..., Any], values: Mapping[str, Any], as_is: Collection[str] = ()) -> None:
        self.function = function
        self.values = dict(values)
        self.signature = inspect.signature(function)
        self._copied = [name for name in values if name not in as_is]
        tensors = [value for value in values.values() if hasattr(value, "data_ptr")]
        self.on_gpu = any(tensor.is_cuda for tensor in tensors)
        self.nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def fresh(self) -> dict[str, Any]:
        """The arguments, with copies of the tensors."""
        return {**self.values, **dict(zip(self._copied, copies([self.values[name] for name in self._copied])))}

    def run(self, values: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        bound = self.signature.bind_partial()
        bound.arguments.update({**values, **own(config)})
        return self.function(*bound.args, **bound.kwargs)


def own(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration for a function to keep: one of Triton's in it is a copy, since functions do change them."""
    return {name: copy.deepcopy(value) if hasattr(value, "all_kwargs") else value for name, value in config.items()}


class Run:
    """Runs, checks and times configurations in this process; together with those of other ranks, if there are any."""

    def __init__(self, call: Call, trials: Sequence[Trial], options: Mapping[str, Any], ranks: Ranks) -> None:
        self._call, self._trials, self._options, self._ranks = call, trials, options, ranks
        self._references: list[Any] = []
        if options["ref_prog"] is not None:
            self._ranks.together("running ref_prog", self._run_reference)
        watch = _clock(options["timer"], call.on_gpu)
        self._watch = watch if ranks.size == 1 else AgreedClock(watch, ranks)

    def _run_reference(self) -> None:
        self._references = Reference(self._options["ref_prog"], list(self._call.values.values())).candidates

    def first(self, trial: Trial) -> None:
        """Check a configuration and time it. What the function raises ends only this trial."""
        options = self._options
        try:
            given, touched = self._try(trial, self._check)
            if trial.status == "new":
                quick, prepared = self._prepare(trial, given, touched)
                prepared.warm(options["warmup"] * _FIRST_PASS)
                self._record(trial, prepared.sample(options["rep"] * _FIRST_PASS, quick), prepared.method)
        except RanksLost:
            raise
        except Exception as error:  # whatever the function or the driver raises
            trial.fail(failure_status(error), error)

    def _try(self, trial: Trial, check: Callable[..., dict[str, Any]] | None) -> tuple[dict[str, Any], list[str]]:
        """Run a configuration once; its arguments, and the names of those that it changed, here."""
        given: dict[str, Any] = {}
        touched: list[str] = []

        def attempt() -> dict[str, Any]:
            given.update(self._call.fresh())
            returned = self._call.run(given, trial.config)
            touched.extend(name for name, old in self._call.values.items() if changed(given[name], old))
            return {} if check is None else check(returned, given, touched)

        outcomes = self._ranks.together(f"configuration {trial.index}", attempt)
        trial.record(merged(outcomes))
        return given, touched

    def _check(self, returned: Any, given: Mapping[str, Any], touched: Sequence[str]) -> dict[str, Any]:
        if not self._references:
            return {}
        names = list(given)
        ran = Ran(names, tensors(returned), list(given.values()), [names.index(name) for name in touched])
        options = self._options
        return judge(
            ran, self._references, Tolerance(options["rtol"], options["atol"], options["max_mismatched_ratio"])
        )

    def _prepare(self, trial: Trial, given: dict[str, Any], touched: Sequence[str]) -> tuple[float, Any]:
        def restore() -> None:
            for name in touched:
                given[name].copy_(self._call.values[name])

        reset = restore if touched else None
        restore()
        self._watch.config = trial.config
        call = lambda: self._call.run(given, trial.config)  # noqa: E731
        quick = self._watch.quick(call, reset)
        return quick, self._watch.prepare(lambda count: [call], self._call.nbytes, quick, reset)

    def _record(self, trial: Trial, samples: Sequence[float], method: str) -> None:
        timing = summarize(samples, method)
        trial.status, trial.latency = "ok", timing.median
        trial.spread, trial.timing = timing.spread, timing.method

    def final(self) -> None:
        """Time the best few and the default against each other."""
        failures: dict[str, Any] = {}
        racers = []
        for trial in selection.finalists(self._trials):
            try:
                given, touched = self._try(trial, None)
                quick, prepared = self._prepare(trial, given, touched)
                racers.append(Racer(str(trial.index), prepared, quick))
            except RanksLost:
                raise
            except Exception as error:
                message = str(error) if isinstance(error, TileError) else f"{type(error).__name__}: {error}"
                failures[str(trial.index)] = {"status": failure_status(error), "message": message}
        rounds, lasting = race(racers, self._options["rep"], lambda name: None, self._call.on_gpu)
        selection.record_final(self._trials, {"rounds": rounds, "lasting": lasting, "failures": failures})


def _clock(timer: str | None, on_gpu: bool) -> Any:
    return clock(timer, "event") if timer is not None or on_gpu else _WallClock()


class _WallClock:
    """Times functions that run on the CPU; the interface is timing.Stopwatch's."""

    method = "wall clock"
    config: Mapping[str, Any]

    def quick(self, call: Callable[[], Any], reset: Callable[[], Any] | None) -> float:
        return min(self._sample(call, reset) for _ in range(3))

    def prepare(self, calls: Callable[[int], Sequence[Any]], nbytes: int, quick: float, reset: Any) -> _Timed:
        return _Timed(self, calls(1)[0], reset)

    def _sample(self, call: Callable[[], Any], reset: Callable[[], Any] | None) -> float:
        if reset is not None:
            reset()
        start = time.perf_counter()
        call()
        return max((time.perf_counter() - start) * 1e3, 1e-6)


@dataclass
class _Timed:
    watch: _WallClock
    call: Callable[[], Any]
    reset: Callable[[], Any] | None
    method: str = "wall clock"

    def warm(self, milliseconds: float) -> None:
        spent = 0.0
        while spent < milliseconds:
            spent += self.watch._sample(self.call, self.reset)

    def sample(self, milliseconds: float, quick: float) -> list[float]:
        count = min(1000, max(5, int(milliseconds / quick)))
        return [self.watch._sample(self.call, self.reset) for _ in range(count)]
