"""Calls of tiledsl's tuned functions and kernels, as they are inside of a function that is tuned in context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.context.active import active
from tiledsl.autotuner.context.tuning import Offer, Turn
from tiledsl.autotuner.engine import BoundCall, TuningProblem
from tiledsl.autotuner.function_run import copy_config
from tiledsl.autotuner.left_out import leave_out, prune_and_order
from tiledsl.autotuner.results.result import AutotuneResult
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.trial import Trial

if TYPE_CHECKING:
    from tiledsl.autotuner.decorator import AutotunedFunction
    from tiledsl.autotuner.functions import TunedFunction


def call_function(tuned: TunedFunction, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Run a function under @tune_function with the configuration whose turn it is, on its arguments themselves."""
    session = active.get()
    assert session is not None
    call, configs = tuned._problem(arguments, keywords)
    key = tuned._memory_key(call.values, configs)
    known = tuned.known(key)
    identity = (id(tuned), key)
    if known is not None and not session.has(identity):
        return tuned.function(*arguments, **{**keywords, **copy_config(known.config)})

    def launch(config: Mapping[str, Any], turn: Turn) -> Any:
        return turn.time(lambda: tuned.function(*arguments, **{**keywords, **copy_config(config)}))

    def trials() -> list[Trial]:
        found = [Trial(index, config) for index, config in enumerate(configs)]
        leave_out(found, tuned.options, call.values)
        return found

    offer = Offer(
        name=tuned.name,
        key=key,
        on_gpu=call.on_gpu,
        launch=launch,
        trials=trials,
        disk_key=lambda: tuned._key(call, configs) if tuned.options.cache else None,
        remember=lambda trials, best: tuned.remember(key, call, trials, best),
    )
    return session.call(identity, offer)


def call_kernel(tuned: AutotunedFunction, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """A call of a kernel under @tiledsl.autotune: eager style runs it; lazy style returns what runs it when called."""
    session = active.get()
    assert session is not None
    call = tuned._call(arguments, keywords)
    key = tuned._memory_key(call)
    result = tuned.known(key, call)
    if result is None and tuned.looks_into_files and not session.has((id(tuned), key)):
        result = tuned.from_files(call)
        if result is None and tuned.options.on_miss != "tune":
            result = tuned.compile(*arguments, **keywords)
        if result is not None:
            tuned.remember(key, result)
    if result is not None and not session.has((id(tuned), key)):
        if not tuned.jit.is_eager:
            return result
        kernel: Any = result.kernel
    else:
        in_context = KernelInContext(tuned, key, call, tuned._problem(call))
        if not tuned.jit.is_eager:
            return in_context
        kernel = in_context
    return kernel(*[call.values[param.name] for param in kernel.params if not param.is_output])


@dataclass
class KernelInContext:
    """The kernel of a call, with the configuration whose turn it is when it is called; else it is as a kernel."""

    tuned: AutotunedFunction
    key: Any
    call: BoundCall
    problem: TuningProblem

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        problem, tuned, session = self.problem, self.tuned, active.get()
        if session is None:  # it was kept
            return problem.build(self._config(), problem.target)(*arguments, **keywords)

        def launch(config: Mapping[str, Any], turn: Turn) -> Any:
            kernel = problem.build(config, problem.target)
            return turn.time(lambda: kernel(*arguments, **keywords))

        def trials() -> list[Trial]:
            trials_of_call = [
                Trial(i, c, build=partial(problem.build, c, problem.target)) for i, c in enumerate(problem.configs)
            ]
            prune_and_order(trials_of_call, problem)
            return trials_of_call

        def remember(trials: Sequence[Trial], best: Trial) -> None:
            for trial in trials:
                trial.build = partial(problem.build, trial.config, problem.target)
            result = AutotuneResult(
                best.kernel, dict(best.config), best.latency, None, tuple(trials), "measured", "memory"
            )
            tuned.remember(self.key, result)

        on_gpu = problem.target.kind != "interpret"
        offer = Offer(tuned.name, canonical(self.key), on_gpu, launch, trials, problem.key, remember)
        return session.call((id(tuned), self.key), offer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.problem.build(self._config(), self.problem.target), name)

    def _config(self) -> dict[str, Any]:
        known = self.tuned.known(self.key, self.call)
        return self.problem.configs[0] if known is None else known.config
