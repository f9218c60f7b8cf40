"""The tuning of a kernel: its problem as a task, what is left out, how its configurations run, what comes of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from tiledsl.autotuner.group.ranks import Ranks
from tiledsl.autotuner.measuring.inputs import given_inputs
from tiledsl.autotuner.measuring.metrics import by_latency, function_of, minimised
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.results.result import AutotuneResult
from tiledsl.autotuner.results.unbuilt import UnbuiltKernel
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage.artifacts import read_artifacts
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import Key, asked_key, tuning_key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.task import RunnableTask, none_works
from tiledsl.autotuner.trial import Trial
from tiledsl.digests import source_digest
from tiledsl.kernels.jit import no_program
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.python_source import returns_nothing
from tiledsl.runtime.target import Target
from tiledsl.settings import current

if TYPE_CHECKING:
    from tiledsl.autotuner.run import TuningRun
    from tiledsl.dialects.tile import FuncOp

_log = logging.getLogger("tiledsl")


class BoundCall(NamedTuple):
    """A call of a tuned function. values: its arguments by name, with defaults; given: only those that it gives."""

    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    values: dict[str, Any]
    given: dict[str, Any]
    target: Target


@dataclass
class TuningProblem(RunnableTask[AutotuneResult]):
    """What is tuned: a builder and the arguments of one call.

    `build` makes the kernel of a configuration for a target; `program` only elaborates it. `values` are the call's
    arguments, tunables included, and `function` is the builder; both matter only for the key. Without `program` nothing
    is known of a configuration before it is compiled, as of a kernel of Triton: none is predicted.
    """

    name: str
    function: Callable[..., Any]
    build: Callable[[Mapping[str, Any], Target], Kernel]
    program: Callable[[Mapping[str, Any]], tuple[FuncOp, Mapping[str, Any]]] | None
    values: Mapping[str, Any]
    configs: Sequence[dict[str, Any]]
    target: Target
    options: TuneOptions
    compile_options: Mapping[str, Any] = field(default_factory=dict)  # out_idx, pass_configs
    call_inputs: dict[str, Any] | None = None  # an eager call's arguments
    started: Callable[[Any], None] | None = None  # is told of the TuningRun

    def key(self) -> Key | None:
        """What a stored result depends on; None if results are not stored, or if that cannot be determined."""
        options = self.options
        if not options.cache:
            return None
        policy: dict[str, Any] = {
            "supply_type": str(options.supply_type),
            "check": [options.rtol, options.atol, options.max_mismatched_ratio, options.skip_check],
            "verify_at": canonical(options.verify_at),
            "timing": [options.warmup, options.rep, options.timer, options.backend],
        }
        if options.metrics or not by_latency(options):
            functions = {name: function_of(each) for name, each in (options.metrics or {}).items()}
            policy["objective"] = canonical([functions, options.objective])
        if options.numerics is not None:
            from tiledsl.autotuner.numerics import reference_index

            reference = self.configs[reference_index(self.configs, options.reference_config)]
            policy["numerics"] = [options.numerics, config_key(reference), options.rows or options.bucket]
        if options.verify:
            policy["verify"] = True
        if options.named_by_config:
            policy["named_by_config"] = True
        if options.key is not None:
            policy["key"] = canonical(asked_key(options.key, self.values))
        return tuning_key(
            self.name,
            self.function,
            self.values,
            self.configs,
            self.target,
            self.target.kind != "interpret" and self.target.runs_here,
            shared=options.do_not_specialize,
            inputs=given_inputs(),
            compile_options=self.compile_options,
            references=[options.ref_prog, options.supply_prog, options.manual_check_prog],
            policy=policy,
            device=options.devices[0] if options.devices else None,
        )

    @property
    def limits(self) -> str:
        options = self.options
        parts = [self._search, options.max_trials, options.budget, options.prune, options.early_stop]
        return canonical(parts if options.prune_fn is None else [*parts, options.prune_fn])

    @property
    def _search(self) -> Any:
        """The option `search`, with the code behind a name that a user has registered."""
        search = self.options.search
        if search == "auto":
            return search
        from tiledsl.autotuner.search import factory_of

        return factory_of(search) or search

    @property
    def keeps_all(self) -> bool:
        return self.options.keep_all

    def recall(self, store: Store) -> AutotuneResult | None:
        """The stored winner, its kernel built again; None if there is none, or if its source has changed since."""
        remembered = store.load(self.configs)
        if remembered is None or not any(trial.ok for trial in remembered.trials):
            return None
        for trial in remembered.trials:
            trial.build = partial(self.build, trial.config, self.target)
        unseen = store.key.exact or remembered.other_versions  # the key says all there is to say: built when first used
        try:
            result = result_of(self, remembered, store if unseen else None)
        except Exception as error:
            _log.warning("autotune: what %s was tuned to no longer builds (%s); tuning again", self.name, error)
            return None
        compare = not unseen and not self.options.do_not_specialize
        if compare and source_digest(result.kernel.source) != result.best.source_hash:
            _log.info("autotune: the source of %s has changed since it was tuned; tuning again", self.name)
            return None
        return replace(result, from_cache="disk")

    def with_best(self, known: AutotuneResult, best: Trial) -> AutotuneResult:
        outcome = CachedResult(list(known.trials), known.latency_kind, known.ref_latency, best.index)
        return replace(result_of(self, outcome), from_cache="disk")

    def for_share(self, neighbours: int) -> TuningProblem:
        """For a rank that shares its machine: it measures on its own GPU, and compiles in fewer processes."""
        from tiledsl.autotuner.measuring.measure import can_measure

        options = self.options
        jobs = max(1, current(jobs=options.jobs).workers // neighbours)
        devices = options.devices
        if devices is None and can_measure(self.target):
            import torch

            devices = (torch.cuda.current_device(),)
        return replace(self, options=replace(options, jobs=jobs, devices=devices))

    def restore(self, store: Store | None, done: Mapping[str, Any]) -> list[Trial]:
        """As of any task, unless their source has changed since. TileError for mistakes in the function's text."""
        _check_text(self)
        trials = super().restore(store, done)
        for index, trial in enumerate(trials):
            trial.build = partial(self.build, trial.config, self.target)
            if trial.source_hash and not self.options.do_not_specialize:
                with contextlib.suppress(Exception):
                    if source_digest(trial.build().source) != trial.source_hash:
                        trials[index] = Trial(index, trial.config, build=trial.build)
        return trials

    def begin(
        self, trials: Sequence[Trial], store: Store | None, ended: Callable[[Trial], None], ranks: Ranks
    ) -> TuningRun:
        from tiledsl.autotuner.run import TuningRun

        return TuningRun(self, trials, store, ended, ranks)

    def result(self, outcome: CachedResult, complete: bool) -> AutotuneResult:
        return replace(result_of(self, outcome), complete=complete)

    def chosen(self, result: AutotuneResult) -> AutotuneResult:
        return result


def _check_text(problem: TuningProblem) -> None:
    """Raise TileError for mistakes in the function's text that do not depend on a configuration."""
    if problem.program is None:
        return
    if problem.call_inputs is not None:  # the function is the program
        from tiledsl.frontend.parser import parse_function

        parse_function(problem.function)
    elif isinstance(problem.function, FunctionType) and returns_nothing(problem.function):
        raise no_program(problem.name, "nothing")


def result_of(problem: TuningProblem, outcome: CachedResult, store: Store | None = None) -> AutotuneResult:
    """The winner's kernel with what is known of it; built now, or with a store when it is first looked into."""
    if outcome.best is None:
        from tiledsl.autotuner.selection import winner

        best = winner(outcome.trials)
    else:
        best = outcome.trials[outcome.best]
    if best is None:
        raise none_works(problem.name, outcome.trials, f" on {problem.target}")
    if store is None:
        kernel = best.kernel
    else:
        recall = None if outcome.other_versions else partial(read_artifacts, store.folder / "artifacts", best)
        kernel = UnbuiltKernel(lambda: best.kernel, best.source_hash, recall)
        kernel.target = problem.target  # known without the program
    kernel.config, kernel.latency, kernel.ref_latency = dict(best.config), best.latency, outcome.ref_latency
    if best.certificate is not None:
        from tiledsl.autotuner.verifying.certified import attach

        attach(kernel, best.certificate, best.source_hash)
    kind: Any = outcome.latency_kind
    return AutotuneResult(
        kernel, dict(best.config), best.latency, outcome.ref_latency, tuple(outcome.trials), kind,
        minimised=minimised(problem.options),
    )  # fmt: skip
