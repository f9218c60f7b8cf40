"""One tuning of a Python function: in processes, or in this one, alone or on all ranks of a group."""

from __future__ import annotations

import logging
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner import selection
from tiledsl.autotuner.function_options import FunctionOptions
from tiledsl.autotuner.function_run import Call, FunctionRun, settle
from tiledsl.autotuner.group.ranks import Ranks
from tiledsl.autotuner.left_out import leave_out
from tiledsl.autotuner.reachable import Unreachable
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import Key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.task import Found, FoundTask, RunnableTask
from tiledsl.autotuner.trial import Trial
from tiledsl.autotuner.waiting import Budget

if TYPE_CHECKING:
    from tiledsl.autotuner.function_apart import Apart

_log = logging.getLogger("tiledsl")


class FunctionTuning(FoundTask, RunnableTask[Found]):
    """A function's call with its configurations. key: what a result on disk depends on; None: it is not kept."""

    def __init__(
        self, name: str, call: Call, configs: Sequence[dict[str, Any]], key: Key | None, options: FunctionOptions
    ) -> None:
        self.name, self.call, self.values, self.configs, self.options = name, call, call.values, configs, options
        self._key = key
        self.in_process = ""  # why its configurations ran in this process

    @property
    def limits(self) -> str:
        options = self.options
        return canonical(options.prune if options.prune_fn is None else [options.prune, options.prune_fn])

    def key(self) -> Key | None:
        return self._key

    def title(self, ranks: Ranks) -> str:
        return super().title(ranks) + (f" on {ranks.size} ranks" if ranks.size > 1 else "")

    def begin(
        self, trials: Sequence[Trial], store: Store | None, ended: Callable[[Trial], None], ranks: Ranks
    ) -> InPlace:
        return InPlace(self, trials, ended, ranks)


class InPlace:
    """Configurations are tried in other processes, see function_apart; those of functions that cannot get there are
    called one after another, by all ranks at the same time, see function_run.FunctionRun."""

    def __init__(
        self, task: FunctionTuning, trials: Sequence[Trial], ended: Callable[[Trial], None], ranks: Ranks
    ) -> None:
        self._task, self._trials, self._ended, self._ranks = task, trials, ended, ranks

    def prune(self) -> None:
        """Leave out what `prune` leaves out on any rank."""
        task, trials = self._task, self._trials
        unwanted = leave_out(trials, task.options, task.values, self._ranks)
        if unwanted:
            left = len(trials) - len(unwanted)
            _log.info("autotune: %s: %d of %d configurations are left", task.name, left, len(trials))

    def run(self) -> None:
        apart = self._apart()
        if apart is not None:
            apart.run()
            return
        budget = Budget(self._task.options.budget)
        run = FunctionRun(self._task.call, self._trials, self._task.options, self._ranks)
        for trial in self._trials:
            if trial.status == "new":
                if self._ranks.size == 1 and budget.is_over(self._trials):
                    trial.fail("pruned", budget.reason)
                else:
                    run.first(trial)
                self._ended(trial)
        settle(self._trials, self._task.options)
        run.final()

    def phase(self) -> str:
        return ""

    def _apart(self) -> Apart | None:
        """What runs the configurations in other processes; None where that cannot be, which the task notes."""
        task, options = self._task, self._task.options
        reason = ""
        if self._ranks.size > 1:
            reason = "it runs on all ranks of a group at the same time"
        elif not options.isolate:
            reason = "isolate=False"
        elif multiprocessing.current_process().daemon or _measures():
            reason = "this is a process that measures"
        if not reason:
            from tiledsl.autotuner.function_apart import Apart

            try:
                return Apart(task.call, self._trials, options, self._ended)
            except Unreachable as why:
                reason = str(why)
        task.in_process = reason
        _log.info("autotune: configurations of %s run in this process: %s", task.name, reason)
        return None

    def choose(self) -> CachedResult:
        best = selection.winner(self._trials)
        index = None if best is None else self._ranks.exchange("the winner", best.index)[0]
        return CachedResult(list(self._trials), "measured", None, index)


def _measures() -> bool:
    """Whether this is itself a process that measures."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "tiledsl.autotuner.measuring.bench_worker"
