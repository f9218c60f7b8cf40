"""The tuning of a kernel: its problem as a task, what is left out, how its configurations run, what comes of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from tiledsl.autotuner.call_flags import LeftOutBy
from tiledsl.autotuner.group.ranks import Alone, Ranks
from tiledsl.autotuner.measuring.inputs import given_inputs
from tiledsl.autotuner.measuring.metrics import by_latency, function_of, minimised
from tiledsl.autotuner.options import TuneOptions, conditions
from tiledsl.autotuner.results.result import AutotuneResult
from tiledsl.autotuner.results.unbuilt import UnbuiltKernel
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage.artifacts import read_artifacts
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import Key, asked_key, tuning_key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.task import RunnableTask, none_works
from tiledsl.autotuner.trial import Trial, config_text
from tiledsl.autotuner.user_functions import errors_of, named_arguments
from tiledsl.digests import source_digest
from tiledsl.errors import TileError
from tiledsl.kernels.jit import no_program
from tiledsl.kernels.kernel import Kernel
from tiledsl.levels.candidates import reason_to_leave_out
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
        from tiledsl.autotuner.search.own import factory_of

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
    ) -> InProcesses:
        return InProcesses(self, trials, store, ended, ranks)

    def result(self, outcome: CachedResult, complete: bool) -> AutotuneResult:
        return replace(result_of(self, outcome), complete=complete)

    def chosen(self, result: AutotuneResult) -> AutotuneResult:
        return result


class InProcesses:
    """Kernels are compiled, checked and timed in processes, while the search goes on; see run.TuningRun.

    A single kernel waits for no other rank, so ranks need not time a configuration at the same moment; what each finds
    is brought together before the search goes on, before the final round and after it.
    """

    def __init__(
        self,
        problem: TuningProblem,
        trials: Sequence[Trial],
        store: Store | None,
        ended: Callable[[Trial], None],
        ranks: Ranks,
    ) -> None:
        from tiledsl.autotuner.run import TuningRun

        self._problem, self._trials, self._ranks = problem, trials, ranks
        self._order: list[int] = []
        before = ranks.exchange("the last winner", None if store is None else store.previous_winner())[0]
        self._incumbent = next((trial.index for trial in trials if config_key(trial.config) == before), None)
        self._run = TuningRun(problem, trials, ended, self._incumbent, ranks)
        if problem.options.metrics and not self._run.measured:
            raise TileError(
                f"autotune of {problem.name}: metrics are measured, and nothing is on {problem.target} here",
                notes=["leave out metrics and objective for this target, or tune on the GPU"],
            )
        if problem.started is not None:
            problem.started(self._run)

    def prune(self) -> None:
        from tiledsl.autotuner.group.trials import in_common

        self._order = _ordered(self._run, self._problem)
        if self._ranks.size > 1:
            self._order = in_common(self._ranks, self._trials, self._order)

    def run(self) -> None:
        from tiledsl.autotuner import selection
        from tiledsl.autotuner.search import make_strategy

        run, trials, order, options = self._run, self._trials, self._order, self._problem.options
        if order or (run.measured and selection.lacks_final_round(trials)) or options.numerics is not None:
            configs = self._problem.configs
            run.go(make_strategy(options.search, len(trials), order, options.max_trials, 0, configs, options.budget))
        else:
            run.close()

    def phase(self) -> str:
        return self._run.phase()

    def choose(self) -> CachedResult:
        from tiledsl.autotuner import selection
        from tiledsl.autotuner.verifying.certified import certified

        trials, options, ranks, run = self._trials, self._problem.options, self._ranks, self._run
        for trial in trials:
            if trial.same_as is not None:
                trial.share(trials[trial.same_as])

        def winner() -> Trial | None:
            found = selection.winner(trials, self._incumbent, options.min_improvement)
            return None if found is None else trials[ranks.exchange("the winner", found.index)[0]]

        best = certified(trials, winner, options.timeout, ranks) if options.verify else winner()
        kind = "measured" if run.measured else "estimated"
        return CachedResult(list(trials), kind, run.ref_latency, None if best is None else best.index)


def _check_text(problem: TuningProblem) -> None:
    """Raise TileError for mistakes in the function's text that do not depend on a configuration."""
    if problem.program is None:
        return
    if problem.call_inputs is not None:  # the function is the program
        from tiledsl.frontend.parser import parse_function

        parse_function(problem.function)
    elif isinstance(problem.function, FunctionType) and returns_nothing(problem.function):
        raise no_program(problem.name, "nothing")


def _ordered(run: TuningRun, problem: TuningProblem) -> list[int]:
    """See prune_and_order; the run's processes start meanwhile, once the forks are made that look at configurations: a
    fork of a process that has just started threads may wait for a lock that one of them held."""
    prepare = run.prepare if any(trial.status == "new" for trial in run.trials) else None
    try:
        return prune_and_order(run.trials, problem, prepare)
    except BaseException:
        run.close()
        raise


def prune_and_order(
    trials: Sequence[Trial], problem: TuningProblem, meanwhile: Callable[[], None] | None = None
) -> list[int]:
    """The trials to run, the most promising first. The others end here, with a reason. See rank for `meanwhile`."""
    unwanted = leave_out(trials, problem.options, problem.values)
    for trial in trials:
        reason = reason_to_leave_out(trial.config) if "from_level" in trial.config and trial.status == "new" else ""
        if reason:
            unwanted[trial.index] = reason
            trial.fail("pruned", reason)
    if all(trial.status != "new" for trial in trials):
        return []
    from tiledsl.autotuner.forks import Ended
    from tiledsl.autotuner.predicting.rank import Ranking, rank

    options = problem.options
    workers = current(jobs=options.jobs).workers
    left = [index for index in range(len(trials)) if index not in unwanted]
    if problem.program is None:
        ranking = Ranking(left, failed=_unbuildable(trials, left))
        if meanwhile is not None:
            meanwhile()
    else:
        ranking = rank(
            problem.program,
            [problem.configs[i] for i in left],
            problem.target,
            bool(options.prune),
            workers,
            options.timeout if options.isolate else None,
            meanwhile,
        ).of(left)
    if len(ranking.failed) == len(trials):
        _raise_shared(list(ranking.failed.values()))
    for index, error in ranking.failed.items():
        if trials[index].status != "new":
            continue
        if isinstance(error, Ended):
            trials[index].fail(error.status, error.message)
        else:
            trials[index].fail("compile_error", error)
    for index, reason in ranking.pruned.items():
        if trials[index].status == "new":
            trials[index].fail("pruned", reason)
    seeds = {config_key(config) for config in options.seed_configs}
    order = [index for index in ranking.order if trials[index].status == "new"]
    return sorted(order, key=lambda index: config_key(trials[index].config) not in seeds)


def _unbuildable(trials: Sequence[Trial], indices: Sequence[int]) -> dict[int, BaseException | Any]:
    """What building a configuration raises, by its index, where that is cheap: nothing is lowered."""
    found: dict[int, BaseException | Any] = {}
    for index in indices:
        try:
            _ = trials[index].kernel if trials[index].status == "new" else None
        except Exception as error:
            found[index] = error
    return found


def _raise_shared(errors: Sequence[Any]) -> None:
    """Raise the error that all configurations have in common, if there is one: it is a mistake in the program."""
    if isinstance(errors[0], TileError) and len(errors) > 1 and len(set(map(str, errors))) == 1:
        errors[0].notes.append(f"so in all {len(errors)} configurations")
        raise errors[0]


def leave_out(
    trials: Sequence[Trial], options: Any, values: Mapping[str, Any], ranks: Ranks | None = None
) -> dict[int, str]:
    """End the trials that functions of the user's leave out on any rank; returns them, and why. The functions also get
    the call's values that they name. TileError for one that says True, which to others means to keep a configuration.
    """

    def own() -> list[tuple[int, str]]:
        return [pair for each in reversed(wanted) for pair in _left_out_by(each, trials, values).items()]

    wanted = conditions(options)
    every = (ranks or Alone()).together("pruning", own) if wanted else []
    unwanted = {index: reason for each in reversed(every) for index, reason in each}
    for index, reason in unwanted.items():
        trials[index].fail("pruned", reason)
    return unwanted


def _left_out_by(condition: Callable[..., Any], trials: Sequence[Trial], values: Mapping[str, Any]) -> dict[int, str]:
    reasons = {}
    by_call = isinstance(condition, LeftOutBy)
    name, named = ("prune_fn", values) if by_call else ("prune", named_arguments(condition, values, 1))
    for trial in trials:
        with errors_of(f"autotune: {name}", f"for {config_text(trial.config)}"):
            answer = condition(dict(trial.config), **named)
        if answer and not isinstance(answer, str):
            raise TileError(
                f"autotune: prune returns {answer!r} for {config_text(trial.config)}, which might mean either",
                notes=["prune returns a reason to leave a configuration out, or None to keep it",
                       "a function that returns True to keep a configuration is prune_fn=..."],
            )  # fmt: skip
        if answer:
            reasons[trial.index] = answer
    return reasons


def result_of(problem: TuningProblem, outcome: CachedResult, store: Store | None = None) -> AutotuneResult:
    """The winner's kernel with what is known of it; built now, or with a store when it is first looked into."""
    best = _winner(outcome.trials) if outcome.best is None else outcome.trials[outcome.best]
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


def _winner(trials: Sequence[Trial]) -> Trial | None:
    from tiledsl.autotuner import selection

    return selection.winner(trials)
