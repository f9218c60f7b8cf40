"""One tuning run, from configurations to a result: recall, lower, prune, order, run, choose."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.group.ranks import Ranks
from tiledsl.autotuner.measuring.inputs import given_inputs
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.results.result import AutotuneResult
from tiledsl.autotuner.results.unbuilt import UnbuiltKernel
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import Key, asked_key, tuning_key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.trial import Trial, config_text, summary_of_failures
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


@dataclass
class TuningProblem:
    """What is tuned: a builder and the arguments of one call.

    `build` makes the kernel of a configuration for a target; `program` only elaborates it. `values` are the call's
    arguments, tunables included, and `function` is the builder; both matter only for the key.
    """

    name: str
    function: Callable[..., Any]
    build: Callable[[Mapping[str, Any], Target], Kernel]
    program: Callable[[Mapping[str, Any]], tuple[FuncOp, Mapping[str, Any]]]
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
        if options.numerics is not None:
            from tiledsl.autotuner.numerics import reference_index

            reference = self.configs[reference_index(self.configs, options.reference_config)]
            policy["numerics"] = [options.numerics, config_key(reference), options.rows or options.bucket]
        if options.verify:
            policy["verify"] = True
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


def limits_of(options: TuneOptions) -> str:
    """A text for what decides which configurations are left out."""
    return canonical([options.search, options.max_trials, options.budget, options.prune, options.early_stop])


def tune_here(problem: TuningProblem, store: Store | None, done: Mapping[str, Any], ranks: Ranks) -> AutotuneResult:
    # What recalls a result loads none of these: they take longer to import than it takes.
    from tiledsl.autotuner import selection
    from tiledsl.autotuner.group.trials import in_common
    from tiledsl.autotuner.progress import Progress
    from tiledsl.autotuner.run import TuningRun
    from tiledsl.autotuner.search import make_strategy
    from tiledsl.autotuner.verifying.certified import certified

    _check_text(problem)
    options = problem.options
    trials = _restore(problem, store, done)
    log = None if store is None or not store.writing else store.folder / "tuning.log"
    with Progress(len(trials), False if ranks.rank else options.progress, log, f"tuning {problem.name}") as progress:

        def ended(trial: Trial) -> None:
            progress.update(trial)
            if store is not None:
                store.append(trial)

        before = ranks.exchange("the last winner", None if store is None else store.previous_winner())[0]
        incumbent = next((trial.index for trial in trials if config_key(trial.config) == before), None)
        run = TuningRun(problem, trials, ended, incumbent, ranks)
        if problem.started is not None:
            problem.started(run)
        complete = True
        try:
            order = _ordered(run, problem)
            if ranks.size > 1:
                order = in_common(ranks, trials, order)
            for trial in trials:
                progress.update(trial)
            if order or (run.measured and selection.lacks_final_round(trials)) or options.numerics is not None:
                run.go(
                    make_strategy(
                        options.search, len(trials), order, options.max_trials, 0, problem.configs, options.budget
                    )
                )
            else:
                run.close()
        except KeyboardInterrupt:
            if ranks.size > 1 or not any(trial.ok for trial in trials):
                raise
            complete = False
            _log.warning("autotune: interrupted; the result is the best of those tried so far")
        for trial in trials:
            if trial.same_as is not None:
                trial.share(trials[trial.same_as])

        def choose() -> Trial | None:
            found = selection.winner(trials, incumbent, options.min_improvement)
            return None if found is None else trials[ranks.exchange("the winner", found.index)[0]]

        best = certified(trials, choose, options.timeout, ranks) if options.verify else choose()
        ref_latency = run.ref_latency
        outcome = CachedResult(
            trials, "measured" if run.measured else "estimated", ref_latency, None if best is None else best.index
        )
        if store is not None and complete:
            store.finish(outcome, options.keep_all)
        result = replace(result_of(problem, outcome), complete=complete)
        progress.close(result)
    return result


def _check_text(problem: TuningProblem) -> None:
    """Raise TileError for mistakes in the function's text that do not depend on a configuration."""
    if problem.call_inputs is not None:  # the function is the program
        from tiledsl.frontend.parser import parse_function

        parse_function(problem.function)
    elif isinstance(problem.function, FunctionType) and returns_nothing(problem.function):
        raise no_program(problem.name, "nothing")


def _restore(problem: TuningProblem, store: Store | None, done: Mapping[str, Any]) -> list[Trial]:
    """The trials; those that an earlier run has ended as it left them, unless their source has changed since."""
    trials = []
    for index, config in enumerate(problem.configs):
        trial = store.restore(index, config, done) if store is not None else None
        build = partial(problem.build, config, problem.target)
        if trial is not None and trial.source_hash and not problem.options.do_not_specialize:
            with contextlib.suppress(Exception):
                if source_digest(build().source) != trial.source_hash:
                    trial = None
        trials.append(trial or Trial(index, config))
        trials[-1].build = build
    return trials


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
    unwanted = left_out(trials, problem.options.prune, problem.values) if callable(problem.options.prune) else {}
    for index, reason in unwanted.items():
        trials[index].fail("pruned", reason)
    for trial in trials:
        reason = reason_to_leave_out(trial.config) if "from_level" in trial.config and trial.status == "new" else ""
        if reason:
            unwanted[trial.index] = reason
            trial.fail("pruned", reason)
    if all(trial.status != "new" for trial in trials):
        return []
    from tiledsl.autotuner.predicting.forks import Ended
    from tiledsl.autotuner.predicting.rank import rank

    options = problem.options
    workers = current(jobs=options.jobs).workers
    left = [index for index in range(len(trials)) if index not in unwanted]
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


def _raise_shared(errors: Sequence[Any]) -> None:
    """Raise the error that all configurations have in common, if there is one: it is a mistake in the program."""
    if isinstance(errors[0], TileError) and len(errors) > 1 and len(set(map(str, errors))) == 1:
        errors[0].notes.append(f"so in all {len(errors)} configurations")
        raise errors[0]


def left_out(trials: Sequence[Trial], condition: Callable[..., Any], values: Mapping[str, Any]) -> dict[int, str]:
    """The configurations that the user's function leaves out, and why. It also gets the call's values that it names."""
    found = {}
    named = _named(condition, values)
    for trial in trials:
        try:
            answer = condition(dict(trial.config), **named)
        except Exception as error:
            shown = f"autotune: prune raises {type(error).__name__}: {error}"
            raise TileError(shown, notes=[f"for {config_text(trial.config)}"]) from error
        if answer:
            found[trial.index] = answer if isinstance(answer, str) else "left out by prune"
    return found


def _named(condition: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a call's values that a function of a configuration asks for, by the names of its further parameters."""
    try:
        parameters = list(inspect.signature(condition).parameters.values())[1:]
    except ValueError:  # a built-in function that does not say
        return {}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return {name: value for name, value in values.items() if takes_all or name in names}


def result_of(problem: TuningProblem, outcome: CachedResult, store: Store | None = None) -> AutotuneResult:
    """The winner's kernel with what is known of it; built now, or with a store when it is first looked into."""
    best = _winner(outcome.trials) if outcome.best is None else outcome.trials[outcome.best]
    if best is None:
        raise TileError(
            f"autotune: none of {len(outcome.trials)} configurations of {problem.name} works on {problem.target}",
            notes=summary_of_failures(outcome.trials),
        )
    if store is None:
        kernel = best.kernel
    else:
        recall = None if outcome.other_versions else partial(store.recall_kernel, best)
        kernel = UnbuiltKernel(lambda: best.kernel, best.source_hash, recall)
    kernel.config, kernel.latency, kernel.ref_latency = dict(best.config), best.latency, outcome.ref_latency
    if best.certificate is not None:
        from tiledsl.autotuner.verifying.certified import attach

        attach(kernel, best.certificate, best.source_hash)
    kind: Any = outcome.latency_kind
    return AutotuneResult(kernel, dict(best.config), best.latency, outcome.ref_latency, tuple(outcome.trials), kind)


def _winner(trials: Sequence[Trial]) -> Trial | None:
    from tiledsl.autotuner import selection

    return selection.winner(trials)


def recall(problem: TuningProblem, store: Store) -> AutotuneResult | None:
    """The stored winner, its kernel built again; None if there is none, or if its source has changed since."""
    remembered = store.load(problem.configs)
    if remembered is None or not any(trial.ok for trial in remembered.trials):
        return None
    for trial in remembered.trials:
        trial.build = partial(problem.build, trial.config, problem.target)
    unseen = store.key.exact or remembered.other_versions  # the key says all there is to say: built when first used
    try:
        result = result_of(problem, remembered, store if unseen else None)
    except Exception as error:
        _log.warning("autotune: what %s was tuned to no longer builds (%s); tuning again", problem.name, error)
        return None
    compare = not unseen and not problem.options.do_not_specialize
    if compare and source_digest(result.kernel.source) != result.best.source_hash:
        _log.info("autotune: the source of %s has changed since it was tuned; tuning again", problem.name)
        return None
    return replace(result, from_cache="disk")
