"""One tuning run: lower every configuration, compile, verify, measure, choose, remember."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tiledsl.autotuner import cache, compile_pool, estimate, measure
from tiledsl.autotuner.fingerprint import OPAQUE, canonical, digest
from tiledsl.autotuner.inputs import given_inputs, make_inputs
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.result import AutotuneResult
from tiledsl.autotuner.space import tunables
from tiledsl.autotuner.trial import Trial, summary_of_failures
from tiledsl.autotuner.verify import Reference, verify
from tiledsl.errors import TileError
from tiledsl.runtime.kernel import Kernel
from tiledsl.runtime.target import Target
from tiledsl.settings import current

_MOST_INTERPRETED_OPERATIONS = 1e11  # a matrix product of 3700 cubed: some minutes in the interpreter
_MOST_INTERPRETED_BLOCKS = 1 << 14
_log = logging.getLogger("tiledsl")


@dataclass
class Problem:
    """What is tuned: a builder and the arguments of one call.

    `build` makes the kernel of a configuration for a target; `values` are the call's arguments, tunables included, and
    `function` the builder; both only count in the key.
    """

    name: str
    function: Callable[..., Any]
    build: Callable[[Mapping[str, Any], Target], Kernel]
    values: Mapping[str, Any]
    configs: Sequence[dict[str, Any]]
    target: Target
    options: TuneOptions
    compile_options: Mapping[str, Any] = field(default_factory=dict)  # out_idx, pass_configs
    call_inputs: dict[str, Any] | None = None  # an eager call's tensors

    def key(self) -> cache.Key | None:
        """What a remembered result depends on: program, arguments, hardware, versions and how it was checked and timed.
        None if that cannot be told for an argument, such as an object without a repr of its own."""
        import tiledsl

        options = self.options
        hidden = {*tunables(self.configs), *options.do_not_specialize}
        arguments = {n: canonical(v) for n, v in sorted(self.values.items()) if n not in hidden}
        fields = {
            "program": digest(canonical(self.function)),
            "arguments": arguments,
            "inputs": canonical(given_inputs()),
            "compile_options": canonical(dict(sorted(self.compile_options.items()))),
            "target": str(self.target),
            "device": _device_name(self.target),
            "tiledsl": tiledsl.__version__,
            "triton": importlib.metadata.version("triton"),
            "reference": digest(canonical([options.ref_prog, options.supply_prog, options.manual_check_prog])),
            "supply_type": str(options.supply_type),
            "check": [options.rtol, options.atol, options.max_mismatched_ratio, options.skip_check],
            "timing": [options.warmup, options.rep],
        }
        known = self.options.cache and not any(OPAQUE in text for text in arguments.values())
        return cache.Key(self.name, fields) if known else None


def tune(problem: Problem) -> AutotuneResult:
    """The best configuration's kernel, from disk if it is known there. TileError if none works."""
    settings = current()
    key = problem.key()
    if key is not None and not settings.always_tune:
        remembered = cache.load(settings.cache_dir, key, problem.configs)
        result = None if remembered is None else _recall(problem, remembered)
        if result is not None:
            return result
    trials = [
        Trial(index, config, build=partial(problem.build, config, problem.target))
        for index, config in enumerate(problem.configs)
    ]
    kernels = _lower(trials)
    unique = {index: kernel for index, kernel in kernels.items() if trials[index].same_as is None}
    if problem.target.kind != "interpret":
        _compile(trials, unique, problem.options)
    ref_latency = _run(problem, trials, unique)
    for trial in trials:
        if trial.same_as is not None:
            _share(trial, trials[trial.same_as])
    kind = "measured" if measure.can_measure(problem.target) else "estimated"
    outcome = cache.Remembered(trials, kind, ref_latency)
    result = _choose(problem, outcome)
    if key is not None:
        cache.store(settings.cache_dir, key, outcome)
    _log.info("autotune: %r", result)
    return result


def _lower(trials: Sequence[Trial]) -> dict[int, Kernel]:
    """Kernels by trial. Trials with the source of an earlier one are marked."""
    kernels: dict[int, Kernel] = {}
    first: dict[str, int] = {}
    for trial in trials:
        try:
            kernel = trial.kernel
        except Exception as error:  # the builder is the user's code and may raise anything for a bad configuration
            trial.fail("compile_error", error)
            continue
        kernels[trial.index] = kernel
        trial.source_hash = digest(kernel.source)
        earlier = first.setdefault(kernel.source, trial.index)
        if earlier != trial.index:
            trial.same_as = earlier
    return kernels


def _compile(trials: Sequence[Trial], kernels: dict[int, Kernel], options: TuneOptions) -> None:
    """Compile the kernels; those that fail are taken out of `kernels`."""
    tasks = [compile_pool.task_for(index, kernel, options.timeout) for index, kernel in kernels.items()]
    workers = current(jobs=options.jobs).workers
    waiting = {task.index for task in tasks}
    try:
        for outcome in compile_pool.compile_all(tasks, workers):
            waiting.discard(outcome.index)
            trial = trials[outcome.index]
            trial.compile_seconds, trial.resources = outcome.seconds, outcome.resources
            if outcome.status != "ok":
                trial.fail(outcome.status, outcome.message)
    except Exception as error:  # the pool itself broke, as it does when the system kills a worker for its memory
        for index in waiting:
            trials[index].fail("crash", error)
    for index in [index for index in kernels if trials[index].status != "new"]:
        del kernels[index]


def _run(problem: Problem, trials: Sequence[Trial], kernels: Mapping[int, Kernel]) -> float | None:
    """Verify and time (or estimate) each kernel on the same inputs. Returns ref_prog's latency where it is measured."""
    options, measured = problem.options, measure.can_measure(problem.target)
    inputs: list[Any] | None = None
    reference: Reference | None = None
    ref_latency: float | None = None
    best: float | None = None
    for index, kernel in kernels.items():
        trial = trials[index]
        runner = _runner(problem, trial, kernel)
        if runner is not None:
            if inputs is None:
                inputs = make_inputs(runner, options, problem.call_inputs)
                if options.checks and options.ref_prog is not None:
                    reference = Reference(options.ref_prog, inputs)
                    if measured:
                        ref_latency, _ = measure.time_call(options.ref_prog, inputs, options)
            verify(trial, runner, inputs, reference, options)
        if trial.status != "new":
            continue
        try:
            if measured:
                assert inputs is not None
                trial.latency, hopeless = measure.time_kernel(kernel, inputs, options, best)
            else:
                resources = trial.resources or {}
                occupancy = resources.get("occupancy_limit", (None,))[0]
                trial.latency = estimate.estimate(kernel, problem.target, occupancy, resources.get("spills"))
                hopeless = False
        except Exception as error:
            trial.fail("launch_error", error)
            continue
        trial.status = "screened" if hopeless else "ok"
        if trial.ok:
            best = trial.latency if best is None or trial.latency is None else min(best, trial.latency)
    return ref_latency


def _runner(problem: Problem, trial: Trial, kernel: Kernel) -> Kernel | None:
    """The kernel that can run here: itself, or its twin for the interpreter. None where that would take too long, or is
    not wanted: on a machine that cannot measure, running serves the check alone."""
    if problem.target.runs_here and (problem.options.checks or measure.can_measure(problem.target)):
        return kernel
    if not problem.options.checks:
        return None
    work = estimate.block_work(kernel)
    blocks = sum(each.blocks for each in work)
    if blocks > _MOST_INTERPRETED_BLOCKS or sum(w.blocks * w.operations for w in work) > _MOST_INTERPRETED_OPERATIONS:
        trial.message = "not verified: too large for the interpreter"
        return None
    return problem.build(trial.config, Target("interpret"))


def _share(trial: Trial, other: Trial) -> None:
    """Give a trial the outcome of the one with the same source."""
    for name in (
        "status", "message", "latency", "verified", "max_error", "mismatched_ratio", "resources", "compile_seconds"
    ):  # fmt: skip
        setattr(trial, name, getattr(other, name))


def _choose(problem: Problem, outcome: cache.Remembered) -> AutotuneResult:
    """The fastest trial that works, the first of equals."""
    working = [trial for trial in outcome.trials if trial.ok]
    if not working:
        raise TileError(
            f"autotune: none of {len(outcome.trials)} configurations of {problem.name} works on {problem.target}",
            notes=summary_of_failures(outcome.trials),
        )
    best = min(working, key=lambda trial: (trial.latency, trial.index))
    kernel = best.kernel
    kernel.config, kernel.latency, kernel.ref_latency = dict(best.config), best.latency, outcome.ref_latency
    kind: Any = outcome.latency_kind
    return AutotuneResult(kernel, dict(best.config), best.latency, outcome.ref_latency, tuple(outcome.trials), kind)


def _recall(problem: Problem, remembered: cache.Remembered) -> AutotuneResult | None:
    """The remembered winner, its kernel built again; None if none works, or its source is no longer what was tuned."""
    for trial in remembered.trials:
        trial.build = partial(problem.build, trial.config, problem.target)
    if not any(trial.ok for trial in remembered.trials):
        return None
    try:
        result = _choose(problem, remembered)
    except Exception as error:
        _log.warning("autotune: what %s was tuned to no longer builds (%s); tuning again", problem.name, error)
        return None
    if not problem.options.do_not_specialize and digest(result.kernel.source) != result.best.source_hash:
        _log.info("autotune: the source of %s has changed since it was tuned; tuning again", problem.name)
        return None
    return replace(result, from_cache="disk")


def _device_name(target: Target) -> str:
    """The GPU's name and multiprocessors where the target runs on one here."""
    if not measure.can_measure(target):
        return ""
    import torch

    return f"{torch.cuda.get_device_name()}, {target.sm_count} multiprocessors"
