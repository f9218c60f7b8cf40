"""One tuning of a Python function: its configurations run in this process, alone or on all ranks of a group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from tiledsl.autotuner import selection
from tiledsl.autotuner.engine import left_out
from tiledsl.autotuner.function_options import FunctionOptions
from tiledsl.autotuner.function_run import Call, FunctionRun
from tiledsl.autotuner.group.ranks import Ranks
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import Key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.task import Found, FoundTask, RunnableTask
from tiledsl.autotuner.trial import Trial

_log = logging.getLogger("tiledsl")


class FunctionTuning(FoundTask, RunnableTask[Found]):
    """A function's call with its configurations. key: what a result on disk depends on; None: it is not kept."""

    def __init__(
        self, name: str, call: Call, configs: Sequence[dict[str, Any]], key: Key | None, options: FunctionOptions
    ) -> None:
        self.name, self.call, self.values, self.configs, self.options = name, call, call.values, configs, options
        self._key = key

    @property
    def limits(self) -> str:
        return canonical(self.options.prune)

    def key(self) -> Key | None:
        return self._key

    def title(self, ranks: Ranks) -> str:
        return super().title(ranks) + (f" on {ranks.size} ranks" if ranks.size > 1 else "")

    def begin(
        self, trials: Sequence[Trial], store: Store | None, ended: Callable[[Trial], None], ranks: Ranks
    ) -> InPlace:
        return InPlace(self, trials, ended, ranks)


class InPlace:
    """Configurations are called one after another, by all ranks at the same time; see function_run.FunctionRun."""

    def __init__(
        self, task: FunctionTuning, trials: Sequence[Trial], ended: Callable[[Trial], None], ranks: Ranks
    ) -> None:
        self._task, self._trials, self._ended, self._ranks = task, trials, ended, ranks

    def prune(self) -> None:
        """Leave out what `prune` leaves out on any rank."""
        task, trials, condition = self._task, self._trials, self._task.options.prune
        if condition is None:
            return
        every = self._ranks.together("pruning", lambda: list(left_out(trials, condition, task.values).items()))
        unwanted = {index: reason for each in reversed(every) for index, reason in each}
        for index, reason in unwanted.items():
            trials[index].fail("pruned", reason)
        if unwanted:
            left = len(trials) - len(unwanted)
            _log.info("autotune: %s: %d of %d configurations are left", task.name, left, len(trials))

    def run(self) -> None:
        run = FunctionRun(self._task.call, self._trials, self._task.options, self._ranks)
        for trial in self._trials:
            if trial.status == "new":
                run.first(trial)
                self._ended(trial)
        run.settle()
        run.final()

    def choose(self) -> CachedResult:
        best = selection.winner(self._trials)
        index = None if best is None else self._ranks.exchange("the winner", best.index)[0]
        return CachedResult(list(self._trials), "measured", None, index)
