"""Which configurations end before they run, with what reason, and in what order the others run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.call_flags import LeftOutBy
from tiledsl.autotuner.forks import Ended
from tiledsl.autotuner.group.ranks import Alone, Ranks
from tiledsl.autotuner.options import conditions
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.trial import Trial, config_text
from tiledsl.autotuner.user_functions import errors_of, named_arguments
from tiledsl.errors import TileError
from tiledsl.levels.candidates import reason_to_leave_out
from tiledsl.settings import current

if TYPE_CHECKING:
    from tiledsl.autotuner.engine import TuningProblem


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
    from tiledsl.autotuner.predicting.rank import Ranking, rank

    options = problem.options
    workers = current(jobs=options.jobs).workers
    remaining = [index for index in range(len(trials)) if index not in unwanted]
    if problem.program is None:
        ranking = Ranking(remaining, failed=_unbuildable(trials, remaining))
        if meanwhile is not None:
            meanwhile()
    else:
        ranking = rank(
            problem.program,
            [problem.configs[i] for i in remaining],
            problem.target,
            bool(options.prune),
            workers,
            options.timeout if options.isolate else None,
            meanwhile,
        ).of(remaining)
    if len(ranking.failed) == len(trials):
        _raise_shared(list(ranking.failed.values()))
    for index, error in ranking.failed.items():
        if trials[index].status != "new":
            continue
        if isinstance(error, Ended):
            trials[index].fail(error.status, error.message)
        else:
            trials[index].fail("compile_error", error)
    seeds = {config_key(config) for config in options.seed_configs}
    seeded = {index for index in range(len(trials)) if config_key(trials[index].config) in seeds}
    slow = [index for index in ranking.slow if index in seeded and index not in ranking.order]  # by the model alone
    for index, reason in ranking.pruned.items():
        if trials[index].status == "new" and index not in slow:
            trials[index].fail("pruned", reason)
    order = [index for index in (*ranking.order, *slow) if trials[index].status == "new"]
    return sorted(order, key=lambda index: index not in seeded)


def _unbuildable(trials: Sequence[Trial], indices: Sequence[int]) -> dict[int, BaseException | Any]:
    """What building a configuration raises, by its index, where that is cheap: nothing is lowered."""
    errors: dict[int, BaseException | Any] = {}
    for index in indices:
        try:
            _ = trials[index].kernel if trials[index].status == "new" else None
        except Exception as error:
            errors[index] = error
    return errors


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
