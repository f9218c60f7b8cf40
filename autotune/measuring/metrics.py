"""Metrics of users: numbers besides the time that a configuration is measured by, and what of them is minimised."""

from __future__ import annotations

import importlib
import math
import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.user_functions import errors_of
from tiledsl.errors import TileError, brief

if TYPE_CHECKING:
    from tiledsl.autotuner.options import TuneOptions
    from tiledsl.autotuner.trial import Trial

LATENCY = "latency"
_BATCH = 0.02  # seconds of calls between two looks at the time


@dataclass(frozen=True)
class Measurement:
    """What a metric is computed from, in the process that measures, after a configuration was timed.

    config: the configuration; of values that are neither numbers nor texts, their repr. latency, spread: milliseconds
    of a call, the median and the interquartile range; samples: each time that was taken. call: launches the kernel on
    the tuning's inputs, in the current stream, and does not wait; wait: waits for what was launched.
    """

    config: Mapping[str, Any]
    latency: float
    spread: float
    samples: tuple[float, ...]
    call: Callable[[], Any]
    wait: Callable[[], None]

    def repeat(self, seconds: float) -> tuple[int, float]:
        """Call the kernel again and again for at least so many seconds: how many calls, and the seconds they took.

        What a kernel adds to its inputs adds up meanwhile.
        """
        count = max(1, int(_BATCH / max(self.latency * 1e-3, 1e-6)))
        self.wait()
        calls, start = 0, time.perf_counter()
        while True:
            for _ in range(count):
                self.call()
            self.wait()
            calls += count
            taken = time.perf_counter() - start
            if taken >= seconds:
                return calls, taken


def function_of(metric: Any) -> Callable[..., Any]:
    """The function of a metric, or that `module:function` names. TileError if there is none."""
    if not isinstance(metric, str):
        return metric  # type: ignore[no-any-return]
    module, _, name = metric.partition(":")
    try:
        function = operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise TileError(f"autotune: the metric {metric} is not found: {error}") from None
    if not callable(function):
        raise TileError(f"autotune: the metric {metric} is {function!r}, not a function")
    return function  # type: ignore[no-any-return]


def name_of(metric: Any) -> str:
    """`module:function` of a metric, under which another process finds it; "" where that leads elsewhere."""
    if isinstance(metric, str):
        return metric
    module, name = getattr(metric, "__module__", None), getattr(metric, "__qualname__", "")
    if module in (None, "__main__"):
        return ""
    try:
        found = operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return ""
    return f"{module}:{name}" if found is metric else ""


def check_metrics(options: TuneOptions) -> None:
    """TileError for metrics or an objective that cannot be had."""
    metrics, objective = options.metrics or {}, options.objective
    for name, metric in metrics.items():
        if options.isolate and not name_of(metric):
            raise TileError(
                f"autotune: the metric {name!r} is a function that another process cannot import",
                notes=["define it in a module, or name it as 'module:function'", "or pass isolate=False"],
            )
    if isinstance(objective, str) and objective not in (LATENCY, *metrics):
        known = ", ".join([LATENCY, *metrics])
        raise TileError(f"autotune: objective is {objective!r}, which is no metric", notes=[f"there are {known}"])
    if objective not in (None, LATENCY):
        if options.group not in (None, False):
            raise TileError("autotune: the ranks of a group agree on latencies; an objective is for one process")
        if options.early_stop:
            raise TileError("autotune: early_stop compares latencies, which is not what the objective minimises")


def minimised(options: TuneOptions) -> str:
    """What is minimised, in a word: "latency", a metric's name, or that of the function `objective`."""
    objective = options.objective
    if objective is None or isinstance(objective, str):
        return objective or LATENCY
    return str(getattr(objective, "__name__", "objective"))


def by_latency(options: TuneOptions) -> bool:
    """Whether the fastest configuration wins."""
    return options.objective in (None, LATENCY)


def evaluate(metrics: Mapping[str, Any], measurement: Measurement) -> dict[str, float]:
    """The metrics of a configuration. TileError for what a function of the user's raises, or returns in place of a
    finite number."""
    return {name: _called(f"the metric {name}", function_of(each), measurement) for name, each in metrics.items()}


def objective_of(options: TuneOptions, trial: Trial) -> float | None:
    """What a trial that works has for the objective, the less the better; None where the latency counts."""
    if by_latency(options) or trial.latency is None:
        return None
    known = {LATENCY: trial.latency, **(trial.metrics or {})}
    objective = options.objective
    return known.get(objective) if isinstance(objective, str) else _called("autotune: objective", objective, known)


def _called(what: str, function: Any, given: Any) -> float:
    with errors_of(what):
        value = function(given)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # numpy's and torch's numbers
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise TileError(f"{what} is {brief(value)}; it must be a finite number")
        return number
    return float(value)
