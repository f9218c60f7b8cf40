"""One tuning task, from its configurations to a result: recall, agree, restore, run, choose, keep.

What is tuned says how its configurations are run: kernels in processes (`engine.TuningProblem`), Python functions in
place (`function_tuning.FunctionTuning`), what runs in context launch by launch (`context.session.InContext`). Each
alone, or by all ranks of a group.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from tiledsl.autotuner.group.ranks import Alone, Ranks, process_group, session
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import Key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.trial import Trial, config_text, summary_of_failures
from tiledsl.errors import TileError
from tiledsl.settings import current

if TYPE_CHECKING:
    from tiledsl.autotuner.group.agree import Agreed

_log = logging.getLogger("tiledsl")


class Result(Protocol):
    """What a task ends with."""

    @property
    def trials(self) -> Sequence[Trial]: ...

    @property
    def best(self) -> Trial: ...


class Found(NamedTuple):
    """The result of a function or of a kernel in context. complete: all configurations were tried."""

    trials: Sequence[Trial]
    best: Trial
    from_cache: Literal["", "disk"] = ""
    complete: bool = True


R = TypeVar("R", bound=Result)


class Execution(Protocol):
    """How the configurations of a task are run."""

    def prune(self) -> None:
        """End the trials that are not worth running."""

    def run(self) -> None:
        """Give every trial that is new its outcome. KeyboardInterrupt may leave some without."""

    def phase(self) -> str:
        """What is being done now, in a few words for a person; another thread asks."""

    def choose(self) -> CachedResult:
        """The outcome; `best` is None where no trial works, and the same on all ranks."""


class TuningTask(ABC, Generic[R]):
    """What is tuned. values: the call's arguments by name; options: which group tunes, where results are kept, and
    whether progress is shown."""

    name: str
    values: Mapping[str, Any]
    configs: Sequence[dict[str, Any]]
    options: Any

    @property
    def root(self) -> Path:
        """Where results are kept."""
        return Path(self.options.store or current().cache_dir)

    @property
    def limits(self) -> str:
        """A text for what decides which configurations are left out."""
        return ""

    @abstractmethod
    def key(self) -> Key | None:
        """What a stored result depends on; None if results are not stored, or if that cannot be determined."""

    def fields(self) -> Mapping[str, Any]:
        """In place of the key's fields where there is no key."""
        return {"arguments": {name: canonical(value) for name, value in self.values.items()}}

    @abstractmethod
    def recall(self, store: Store) -> R | None:
        """The stored result; None if there is none."""

    @abstractmethod
    def with_best(self, known: R, best: Trial) -> R:
        """A stored result with the winner of rank 0."""

    @property
    def keeps_all(self) -> bool:
        """Whether what every working trial became is kept, not only the winner."""
        return False

    def shows(self, ranks: Ranks) -> bool | None:
        """Whether a progress bar is shown (None: if stderr is a terminal)."""
        return False if ranks.rank else self.options.progress

    def title(self, ranks: Ranks) -> str:
        return f"tuning {self.name}"

    def log_level(self, ranks: Ranks) -> int:
        """At which its progress is logged."""
        return logging.DEBUG

    def restore(self, store: Store | None, done: Mapping[str, Any]) -> list[Trial]:
        """The trials; those that an earlier run has ended as it left them."""
        return [
            (None if store is None else store.restore(index, config, done)) or Trial(index, config)
            for index, config in enumerate(self.configs)
        ]

    @abstractmethod
    def result(self, outcome: CachedResult, complete: bool) -> R:
        """The result of a run. TileError if no trial works."""

    def chosen(self, result: R) -> Any:
        """What is shown of a result at the end."""
        return config_text(result.best.config)


class RunnableTask(TuningTask[R]):
    """A task that runs its configurations by itself, from beginning to end."""

    def for_share(self, neighbours: int) -> RunnableTask[R]:
        """The task for one of several processes that tune on the same machine."""
        return self

    @abstractmethod
    def begin(
        self, trials: Sequence[Trial], store: Store | None, ended: Callable[[Trial], None], ranks: Ranks
    ) -> Execution:
        """Get ready to run. `ended` is told of each trial that ends."""


class FoundTask(TuningTask[Found]):
    """A task of which a stored result is known without building anything."""

    def recall(self, store: Store) -> Found | None:
        from tiledsl.autotuner.selection import winner

        known = store.load(self.configs)
        best = None if known is None else winner(known.trials)
        return None if known is None or best is None else Found(known.trials, best, "disk")

    def with_best(self, known: Found, best: Trial) -> Found:
        return known._replace(best=best)

    def log_level(self, ranks: Ranks) -> int:
        return logging.DEBUG if ranks.rank else logging.INFO

    def result(self, outcome: CachedResult, complete: bool) -> Found:
        if outcome.best is None:
            raise none_works(self.name, outcome.trials)
        return Found(outcome.trials, outcome.trials[outcome.best], "", complete)


def tune(task: RunnableTask[R]) -> R:
    """The best configuration's result, from disk if it is known there. TileError if none works.

    Ctrl-C ends a run: its result is the best so far, with a warning. It is not stored as the result, but the trials
    that had ended are. KeyboardInterrupt if none had.
    """
    group = process_group(task.options.group, task.values)
    if group is not None:
        with session(group, task.options.group_timeout, f"tuning {task.name}") as ranks:
            return _tune_together(task, ranks)
    store, recalled = recall(task)
    if recalled is not None and store is not None:
        _log.info("autotune: %s runs with %s, from %s", task.name, config_text(recalled.best.config), store.folder)
        return recalled
    if store is None:
        return carry_out(task, None, {}, Alone())
    always_tune = current().always_tune
    with store.lock():
        recalled = None if always_tune else task.recall(store)  # another process may just have tuned it
        return recalled or carry_out(task, store, {} if always_tune else store.finished(), Alone())


def _tune_together(task: RunnableTask[R], ranks: Ranks) -> R:
    """On all ranks. One process of those that keep results in the same place writes. They take no lock: others that
    tune the same at the same time would wait for those that wait for them."""
    agreed, store, known = recall_together(task, ranks)
    if known is not None:
        return known
    task = task.for_share(agreed.neighbours)
    if store is None:
        return carry_out(task, None, {}, ranks)
    done = store.finished() if ranks.rank == 0 and not agreed.always_tune else {}
    return carry_out(task, store, ranks.exchange("trials of earlier runs", done)[0], ranks)


def recall(task: TuningTask[R]) -> tuple[Store | None, R | None]:
    """Where the result is kept, and the stored one."""
    key = task.key()
    store = None if key is None else Store(task.root, key, task.limits)
    return store, None if store is None or current().always_tune else task.recall(store)


def recall_together(task: TuningTask[R], ranks: Ranks) -> tuple[Agreed, Store | None, R | None]:
    """What the ranks agree on, where the result is kept, and the stored one, if all ranks have one: then that of rank 0
    counts."""
    from tiledsl.autotuner.group.agree import agree_on_problem

    key = task.key()
    fields = task.fields() if key is None else key.fields
    agreed = agree_on_problem(
        ranks, task.name, task.configs, key, fields, task.limits, task.root, current().always_tune
    )
    if agreed.key is None:
        return agreed, None, None
    store = Store(task.root, agreed.key, agreed.limits)
    store.writing = agreed.writes
    recalled = None if agreed.always_tune else task.recall(store)
    places = ranks.exchange("what is remembered", None if recalled is None else recalled.best.index)
    if recalled is None or any(place is None for place in places):
        return agreed, store, None
    best = recalled.trials[places[0]]
    if not all(ranks.exchange("whether it works", best.ok)):
        return agreed, store, None
    return agreed, store, recalled if recalled.best.index == places[0] else task.with_best(recalled, best)


class Run(Generic[R]):
    """A task under way, and how it ends. A context manager: leaving it takes the progress bar away."""

    def __init__(self, task: TuningTask[R], store: Store | None, done: Mapping[str, Any], ranks: Ranks) -> None:
        """done: what earlier runs have left of the task."""
        from tiledsl.autotuner.progress import Progress  # recalling a result takes less time than loading it

        self._task, self._store = task, store
        self.trials = task.restore(store, done)
        name = "tuning.log" if store is not None and store.writing else f"tuning.rank{ranks.rank}.log"
        log = None if store is None or (ranks.size == 1 and not store.writing) else store.folder / name
        self._progress = Progress(len(self.trials), task.shows(ranks), log, task.title(ranks), task.log_level(ranks))

    def __enter__(self) -> Run[R]:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.__exit__()

    def show(self, phase: Callable[[], str] = str) -> None:
        """Show how all trials stand, and from now on what is being done."""
        for trial in self.trials:
            self._progress.update(trial)
        self._progress.phase = phase
        self._progress.begin()

    def ended(self, trial: Trial) -> None:
        """Show and keep the outcome of a trial."""
        self._progress.update(trial)
        if self._store is not None:
            self._store.append(trial)

    def finish(self, outcome: CachedResult, complete: bool = True) -> R:
        """Keep the outcome if the run is complete. TileError if no trial works."""
        if self._store is not None and complete:
            self._store.finish(outcome, self._task.keeps_all)
        if outcome.best is None:
            self._progress.close()
        result = self._task.result(outcome, complete)
        self._progress.close(self._task.chosen(result))
        return result


def carry_out(task: RunnableTask[R], store: Store | None, done: Mapping[str, Any], ranks: Ranks) -> R:
    """Run a task. done: what earlier runs have left of it."""
    with Run(task, store, done, ranks) as run:
        execution, complete = task.begin(run.trials, store, run.ended, ranks), True
        try:
            execution.prune()
            run.show(execution.phase)
            execution.run()
        except KeyboardInterrupt:
            if ranks.size > 1 or not any(trial.ok for trial in run.trials):
                raise
            complete = False
            _log.warning("autotune: interrupted; the result is the best of those tried so far")
        return run.finish(execution.choose(), complete)


def none_works(name: str, trials: Sequence[Trial], where: str = "") -> TileError:
    """What is raised where no configuration works."""
    return TileError(
        f"autotune: none of {len(trials)} configurations of {name} works{where}",
        notes=summary_of_failures(trials),
        code="nothing-works",
    )
