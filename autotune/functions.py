"""Tune any Python function: what launches several kernels, or chooses between ways to do something.

Such a function cannot be sent to another process, so it is run, checked and timed in this one: a configuration that
raises costs only itself, one that hangs or crashes takes the program with it. Kernels inside that are under
@tiledsl.autotune are tuned by themselves, on copies and in their own processes, when a configuration first calls them;
that is before the configuration is timed.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tiledsl.autotuner.function_run import Call, Run
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.space import call_configs, check_configs, fix, given_tunables, tunables
from tiledsl.autotuner.storage.cache import Remembered
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import Key, asked_key, tuning_key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.trial import Trial, config_text, summary_of_failures
from tiledsl.errors import TileError, user_loc
from tiledsl.runtime.target import Target
from tiledsl.settings import current

_log = logging.getLogger("tiledsl")


@dataclass(frozen=True)
class FunctionResult:
    """The best configuration of a function, its milliseconds, and every trial. from_cache: "", "memory" or "disk".

    complete: False where Ctrl-C ended the run before every configuration was tried.
    """

    config: dict[str, Any]
    latency: float
    trials: tuple[Trial, ...]
    from_cache: Literal["", "memory", "disk"] = ""
    complete: bool = True

    @property
    def best(self) -> Trial:
        """The winner's trial."""
        return next(trial for trial in self.trials if trial.ok and trial.config == self.config)

    def table(self) -> str:
        """The trials as text, the best first, the failures with their messages at the end."""
        working = sorted((t for t in self.trials if t.ok), key=lambda t: (t.config != self.config, t.latency, t.index))
        lines = [f"{t.latency:10.4f} ms  {config_text(t.config)}" for t in working]
        return "\n".join([*lines, *summary_of_failures([t for t in self.trials if not t.ok])])


class TunedFunction:
    """A function under @tune_function: called without its tunables it runs with the best configuration for such
    arguments, which it finds at the first call. A tunable that a call passes is fixed, and the others are tuned."""

    def __init__(self, function: Callable[..., Any], configs: Any, options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = function.__name__
        self.signature = inspect.signature(function)
        self.configs = configs if callable(configs) else check_configs(configs, self.signature, self.name)
        self.options = dict(options)
        self._results: dict[str, FunctionResult] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        config = self.tune(*arguments, **keywords).config
        return self.function(*arguments, **{**keywords, **config})

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    def tune(self, *arguments: Any, **keywords: Any) -> FunctionResult:
        """The best configuration for these arguments, which are not changed. TileError if none works."""
        try:
            given = self.signature.bind_partial(*arguments, **keywords).arguments
        except TypeError as error:
            raise TileError(f"{self.name}: {error}", user_loc()) from None
        configs = self.configs
        if callable(configs):
            found = call_configs(configs, arguments, keywords, given)
            configs = check_configs(found, self.signature, self.name)
        names = tunables(configs)
        self._check_given(given, names)
        call = Call(self.function, {name: value for name, value in given.items() if name not in names})
        configs = fix(configs, given_tunables(given, names))
        memory_key = self._memory_key(call.values, configs)
        known = None if current().always_tune else self._results.get(memory_key)
        if known is not None:
            return known
        result = self._from_disk_or_tuned(call, configs)
        if result.complete:
            self._results[memory_key] = replace(result, from_cache="memory")
        return result

    def _check_given(self, given: Mapping[str, Any], names: Sequence[str]) -> None:
        for name, parameter in self.signature.parameters.items():
            variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if parameter.default is parameter.empty and not variadic and name not in given and name not in names:
                raise TileError(f"{self.name} is called without {name!r}, which is no tunable", user_loc())

    def _memory_key(self, values: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> str:
        own = self.options["key"]
        wanted = values if own is None else asked_key(own, values)
        return canonical([wanted, [dict(config) for config in configs]])

    def _from_disk_or_tuned(self, call: Call, configs: Sequence[dict[str, Any]]) -> FunctionResult:
        key = self._key(call, configs) if self.options["cache"] else None
        if key is None:
            return self._tuned(call, configs, None, {})
        settings = current()
        limits = canonical(self.options["prune"])
        store = Store.open(Path(self.options["store"] or settings.cache_dir), key, limits)
        with store.lock():  # another process may be tuning it
            known = None if settings.always_tune else store.load(configs)
            if known is not None and (best := _best(known.trials)) is not None:
                return FunctionResult(dict(best.config), best.latency or 0.0, tuple(known.trials), "disk")
            return self._tuned(call, configs, store, {} if settings.always_tune else store.finished())

    def _key(self, call: Call, configs: Sequence[dict[str, Any]]) -> Key | None:
        options = self.options
        policy = {
            "check": [options["rtol"], options["atol"], options["max_mismatched_ratio"]],
            "timing": [options["warmup"], options["rep"], options["timer"]],
            "host": "" if call.on_gpu else f"{platform.machine()} x {os.cpu_count()}",
        }
        values: Mapping[str, Any] = call.values
        if options["key"] is not None:
            values = {"key": asked_key(options["key"], call.values)}
        target = Target.parse("auto" if call.on_gpu else "interpret")
        references = [options["ref_prog"]]
        return tuning_key(
            self.name, self.function, values, configs, target, call.on_gpu, references=references, policy=policy
        )

    def _tuned(
        self, call: Call, configs: Sequence[dict[str, Any]], store: Store | None, done: Mapping[str, Any]
    ) -> FunctionResult:
        from tiledsl.autotuner.engine import left_out
        from tiledsl.autotuner.progress import Progress

        trials = [
            (store.restore(index, config, done) if store is not None else None) or Trial(index, config)
            for index, config in enumerate(configs)
        ]
        unwanted = left_out(trials, self.options["prune"]) if self.options["prune"] is not None else {}
        for index, reason in unwanted.items():
            trials[index].fail("pruned", reason)
        if unwanted:
            _log.info("autotune: %s: %d of %d configurations are left", self.name, len(trials) - len(unwanted), len(trials))  # fmt: skip # noqa: E501
        complete = True
        log = None if store is None or not store.writing else store.folder / "tuning.log"
        with Progress(len(trials), self.options["progress"], log, f"tuning {self.name}") as progress:
            run = Run(call, trials, self.options)
            try:
                for trial in trials:
                    if trial.status == "new":
                        run.first(trial)
                        if store is not None:
                            store.append(trial)
                    progress.update(trial)
                run.final()
            except KeyboardInterrupt:
                if _best(trials) is None:
                    raise
                complete = False
                _log.warning("autotune: interrupted; the result is the best of those tried so far")
            best = _best(trials)
            if store is not None and complete:
                store.finish(Remembered(trials, "measured", None, None if best is None else best.index))
            progress.close(None if best is None else config_text(best.config))
        if best is None:
            raise TileError(
                f"autotune: none of {len(trials)} configurations of {self.name} works",
                notes=summary_of_failures(trials),
            )
        return FunctionResult(dict(best.config), best.latency or 0.0, tuple(trials), "", complete)

    def __repr__(self) -> str:
        return f"<tuned function {self.name}>"


def _best(trials: Sequence[Trial]) -> Trial | None:
    from tiledsl.autotuner import selection

    return selection.winner(trials)


def tune_function(
    configs: Iterable[Mapping[str, Any]] | Callable[..., Any],
    *,
    ref_prog: Callable[..., Any] | None = None,
    key: Callable[..., Any] | None = None,
    prune: Callable[[dict[str, Any]], Any] | None = None,
    warmup: float = 25,
    rep: float = 100,
    rtol: float = 1e-2,
    atol: float = 1e-2,
    max_mismatched_ratio: float = 0.01,
    cache: bool = True,
    store: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    timer: str | None = None,
) -> Callable[[Callable[..., Any]], TunedFunction]:
    """Decorator for any function: choose the best of several configurations, dicts of some of its parameters.

    Options are those of @tiledsl.autotune. A result holds for arguments of the same values, and tensors of the same
    shapes, strides and dtypes; `key`, a function of the arguments by name without the tunables, says otherwise.
    Functions of CPU tensors are timed by the clock on the wall.

    Example: `@tune_function([{"split": 1}, {"split": 4}], ref_prog=torch.matmul)` above `def product(A, B, split)`
    """
    named: dict[str, Any] = {
        "ref_prog": ref_prog, "key": key, "prune": prune, "warmup": warmup, "rep": rep, "rtol": rtol, "atol": atol,
        "max_mismatched_ratio": max_mismatched_ratio, "cache": cache, "store": store, "progress": progress,
        "timer": timer,
    }  # fmt: skip
    if prune is not None and not callable(prune):
        raise TileError(f"tune_function: prune is {prune!r}; it is a function of a configuration")
    TuneOptions(**{name: value for name, value in named.items() if name != "prune"})  # raises for what is wrong

    def decorate(function: Callable[..., Any]) -> TunedFunction:
        if not inspect.isfunction(function):
            raise TileError(f"tune_function stands above a function, not {function!r}")
        return TunedFunction(function, configs, named)

    return decorate
