"""Tune any Python function: what launches several kernels, or chooses between ways to do something.

A function that its module defines, and arguments that are tensors and plain values, get to another process, where a
configuration that hangs or crashes costs only itself. Another one is run, checked and timed in this process, and takes
the program with it. Kernels inside that are under @tiledsl.autotune are tuned by themselves, on copies and in their own
processes, when a configuration first calls them; that is before the configuration is timed.

In a torch.distributed job, `group=` has the ranks of a group tune together, so that functions with collectives can be
tuned: see group.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from tiledsl.autotuner.call_flags import NONE, CallFlags, split_flags, verbose
from tiledsl.autotuner.context.active import active
from tiledsl.autotuner.function_options import FunctionOptions
from tiledsl.autotuner.function_run import Call, copy_config
from tiledsl.autotuner.numerics import reference_index
from tiledsl.autotuner.option import takes, with_changes
from tiledsl.autotuner.results.tried import Tried
from tiledsl.autotuner.space import call_configs, called_back, check_configs, config_key, fix, given_tunables, tunables
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import Key, asked_key, tuning_key
from tiledsl.autotuner.task import tune
from tiledsl.autotuner.trial import Trial, config_text, own_trials
from tiledsl.errors import TileError, ends_tracebacks, user_loc
from tiledsl.kernels.signatures import check_given
from tiledsl.runtime.launch_triton import traced_as, without_values
from tiledsl.runtime.target import Target
from tiledsl.settings import current

Configs = Iterable[Mapping[str, Any]] | Callable[..., Any]
_log = logging.getLogger("tiledsl")


@dataclass(frozen=True)
class FunctionResult(Tried):
    """The best configuration of a function, its milliseconds, and every trial. from_cache: "", "memory" or "disk".

    complete: False where Ctrl-C ended the run before every configuration was tried. in_process: why configurations ran
    in this process, which one that crashes or hangs takes along; "" where they ran in another one, or none was tried.
    name: the function's; target: the GPU's; None: it ran on the CPU.
    """

    latency_kind = "measured"
    ref_latency = None
    minimised = "latency"

    config: dict[str, Any]
    latency: float
    trials: tuple[Trial, ...]
    from_cache: Literal["", "memory", "disk"] = ""
    complete: bool = True
    in_process: str = ""
    name: str = ""
    target: Target | None = None

    @property
    def subject(self) -> str:
        return self.name

    @property
    def tuned_on(self) -> Target | None:
        return self.target

    def table(self, sort: str = "latency") -> str:
        """As Tried.table, and a line where configurations ran in this process, with the reason."""
        here = f"\nconfigurations ran in this process: {self.in_process}" if self.in_process else ""
        return super().table(sort) + here

    def __repr__(self) -> str:
        return f"<tuned {self.subject}: {config_text(self.config)}, {self.latency:.4f} ms, {len(self.trials)} trials>"


class TunedFunction:
    """A function under @tune_function: called without its tunables it runs with the best configuration for such
    arguments, which it finds at the first call. A tunable that a call passes is fixed, and the others are tuned."""

    def __init__(self, function: Callable[..., Any], configs: Any, options: FunctionOptions) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = function.__name__
        self.signature = inspect.signature(function)
        self.configs = configs if callable(configs) else check_configs(configs, self.signature, self.name)
        self.options = options
        self._results: dict[str, FunctionResult] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True  # from pytest: see tracebacks.py
        if without_values((*arguments, *keywords.values())):
            return self._traced_call(*arguments, **keywords)
        if active.get() is not None:
            from tiledsl.autotuner.context.calls import call_function

            return call_function(self, arguments, split_flags(keywords, self.signature)[1])
        flags, keywords = split_flags(keywords, self.signature)
        if not flags.autotune:
            return self.untuned(*arguments, **keywords)
        config = self._tuned(arguments, keywords, flags).config
        return self.function(*arguments, **{**keywords, **copy_config(config)})

    def _traced_call(self, *arguments: Any, **keywords: Any) -> Any:
        from tiledsl.autotuner.function_in_graph import traced_call

        return traced_call(self, *arguments, **keywords)

    traced_as(__call__, _traced_call)

    def untuned(self, *arguments: Any, **keywords: Any) -> Any:
        """Run with the first configuration; nothing is tuned, read or remembered."""
        _, configs = self._problem(arguments, keywords)
        return self.function(*arguments, **{**keywords, **copy_config(configs[0])})

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    @ends_tracebacks
    def tune(self, *arguments: Any, **keywords: Any) -> FunctionResult:
        """The best configuration for these arguments, which are not changed. TileError if none works. The caller may
        change what is returned."""
        flags, keywords = split_flags(keywords, self.signature)
        found = self._tuned(arguments, keywords, flags)
        trials = tuple(own_trials(found.trials))
        return replace(found, config=copy.deepcopy(found.config), trials=trials)

    def _tuned(self, arguments: Any, keywords: Mapping[str, Any], flags: CallFlags) -> FunctionResult:
        """The result as it is remembered."""
        call, configs = self._problem(arguments, keywords, flags)
        memory_key = self._memory_key(call.values, configs)
        known = self.known(memory_key)
        if known is not None:
            _log.info("autotune: %s runs with %s, from memory", self.name, config_text(known.config))
            return known
        options = self.options
        if flags.autotune_pg is not None:
            options = replace(options, group=flags.autotune_pg)
        with verbose(flags.autotune_verbose):
            result = self._from_disk_or_tuned(call, configs, options)
        if result.complete:
            self._results[memory_key] = replace(result, from_cache="memory")
        return result

    def known(self, memory_key: str) -> FunctionResult | None:
        """The result in memory."""
        return None if current().always_tune else self._results.get(memory_key)

    def remember(self, memory_key: str, call: Call, trials: Sequence[Trial], best: Trial) -> None:
        """Keep the result of a call in memory."""
        self._results[memory_key] = self._result(call, trials, best, "memory", True)

    def _problem(
        self, arguments: Any, keywords: Mapping[str, Any], flags: CallFlags = NONE
    ) -> tuple[Call, list[dict[str, Any]]]:
        """A call without its tunables, and the configurations to choose from."""
        try:
            bound = self.signature.bind_partial(*arguments, **keywords).arguments
        except TypeError as error:
            raise TileError(f"{self.name}: {error}", user_loc()) from None
        configs = self.configs
        if callable(configs):
            chosen = call_configs(configs, arguments, keywords, bound)
            configs = check_configs(chosen, self.signature, self.name)
        configs = called_back(configs, self.options.config_callback, self.signature)
        names = tunables(configs)
        flags.check_given(bound, names, self.name)
        check_given(self.name, self.signature, {*bound, *names})
        values = {name: value for name, value in bound.items() if name not in names}
        return Call(self.function, values, self.options.as_is), fix(configs, given_tunables(bound, names))

    def _memory_key(self, values: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> str:
        own = self.options.key
        wanted = values if own is None else asked_key(own, values)
        return canonical([wanted, [dict(config) for config in configs]])

    def _from_disk_or_tuned(
        self, call: Call, configs: Sequence[dict[str, Any]], options: FunctionOptions
    ) -> FunctionResult:
        from tiledsl.autotuner.function_tuning import FunctionTuning
        from tiledsl.autotuner.in_graph import refuse_while_capturing

        refuse_while_capturing(self.name, f"{self.name}.tune(...)")
        key = self._key(call, configs) if self.options.cache else None
        task = FunctionTuning(self.name, call, configs, key, options)
        found = tune(task)
        result = self._result(call, found.trials, found.best, found.from_cache, found.complete)
        return replace(result, in_process=task.in_process)

    def _result(
        self, call: Call, trials: Sequence[Trial], best: Trial, source: Literal["", "memory", "disk"], complete: bool
    ) -> FunctionResult:
        config, target = dict(best.config), _target(call)
        return FunctionResult(config, best.latency or 0.0, tuple(trials), source, complete, "", self.name, target)

    def _key(self, call: Call, configs: Sequence[dict[str, Any]]) -> Key | None:
        options = self.options
        policy = {
            "check": [options.rtol, options.atol, options.max_mismatched_ratio],
            "timing": [options.warmup, options.rep, options.timer],
            **self._numerics(configs),
            "host": "" if call.on_gpu else f"{platform.machine()} x {os.cpu_count()}",
        }
        values: Mapping[str, Any] = call.values
        if options.key is not None:
            values = {"key": asked_key(options.key, call.values)}
        target = _target(call) or Target.parse("interpret")
        references = [options.ref_prog]
        return tuning_key(
            self.name, self.function, values, configs, target, call.on_gpu, references=references, policy=policy
        )

    def _numerics(self, configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        mode = self.options.numerics
        if mode is None:
            return {}
        return {"numerics": [mode, config_key(configs[reference_index(configs, self.options.reference_config)])]}

    def __repr__(self) -> str:
        return f"<tuned function {self.name}>"


def _target(call: Call) -> Target | None:
    """The GPU that a call runs on; None: the CPU."""
    return Target.parse("auto") if call.on_gpu else None


if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class _Arguments(FunctionOptions):
        configs: Configs = field(kw_only=False)

else:
    _Arguments = FunctionOptions


@takes(_Arguments)
def tune_function(configs: Configs, **options: Any) -> Callable[[Callable[..., Any]], TunedFunction]:
    """Decorator for any function: choose the best of several configurations, dicts of some of its parameters.

    For the options, see FunctionOptions. A result holds for arguments of the same values, and tensors of the same
    shapes, strides and dtypes; `key`, a function of the arguments by name without the tunables, says otherwise.
    Functions of CPU tensors are timed by the clock on the wall. group: all ranks run a configuration at the same time
    and equally often, so that it may hold collectives. If it fails on one rank before one, others wait there for as
    long as torch lets them.
    numerics: with "same-bits" only configurations can win whose results had the bits of the reference configuration's,
    on the call's values and on some whose sums cancel; what a function computes is tried, not known.

    Example: `@tune_function([{"split": 1}, {"split": 4}], ref_prog=torch.matmul)` above `def product(A, B, split)`
    """
    chosen = with_changes(FunctionOptions(), options, "tune_function")

    def decorate(function: Callable[..., Any]) -> TunedFunction:
        if not inspect.isfunction(function):
            raise TileError(f"tune_function stands above a function, not {function!r}")
        return TunedFunction(function, configs, chosen)

    return decorate
