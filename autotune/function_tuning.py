"""One tuning of a Python function, from configurations to trials and a winner: alone, or by the ranks of a group."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tiledsl.autotuner import selection
from tiledsl.autotuner.engine import left_out
from tiledsl.autotuner.function_options import FunctionOptions
from tiledsl.autotuner.function_run import Call, Run
from tiledsl.autotuner.group.agree import agree_on_problem, recalled_by_all
from tiledsl.autotuner.group.ranks import Ranks
from tiledsl.autotuner.progress import Progress
from tiledsl.autotuner.storage.cache import Remembered
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import Key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.trial import Trial, config_text, summary_of_failures
from tiledsl.errors import TileError
from tiledsl.settings import current

_log = logging.getLogger("tiledsl")
Found = tuple[Sequence[Trial], Trial, Literal["", "disk"], bool]  # trials, the best, where from, whether all were tried


class FunctionTuning:
    """A function's call with its configurations. key: what a result on disk depends on; None: it is not kept."""

    def __init__(
        self, name: str, call: Call, configs: Sequence[dict[str, Any]], key: Key | None, options: FunctionOptions
    ) -> None:
        self.name, self.call, self.configs, self.key, self.options = name, call, configs, key, options
        self.root = Path(options.store or current().cache_dir)
        self.limits = canonical(options.prune)

    def alone(self, ranks: Ranks) -> Found:
        """Tune in this process, unless the result is on disk."""
        if self.key is None:
            return self._tuned(None, {}, ranks)
        always_tune = current().always_tune
        store = Store.open(self.root, self.key, self.limits)
        with store.lock():  # another process may be tuning it
            known = None if always_tune else store.load(self.configs)
            if known is not None and (best := selection.winner(known.trials)) is not None:
                return known.trials, best, "disk", True
            return self._tuned(store, {} if always_tune else store.finished(), ranks)

    def together(self, ranks: Ranks) -> Found:
        """Tune on all ranks, unless all have a result on disk: then that of rank 0 counts.

        One process of those that keep results in the same place writes. They take no lock: others that tune the same
        at the same time would wait for those that wait for them.
        """
        agreed = agree_on_problem(
            ranks, self.name, self.configs, self.key, self._fields(), self.limits, self.root, current().always_tune
        )
        if agreed.key is None:
            return self._tuned(None, {}, ranks)
        store = Store.open(self.root, agreed.key, agreed.limits)
        store.writing = agreed.writes
        known = recalled_by_all(ranks, store, self.configs, agreed.always_tune)
        if known is not None:
            return known[0], known[1], "disk", True
        done = store.finished() if ranks.rank == 0 and not agreed.always_tune else {}
        return self._tuned(store, ranks.exchange("trials of earlier runs", done)[0], ranks)

    def _fields(self) -> Mapping[str, Any]:
        if self.key is not None:
            return self.key.fields
        return {"arguments": {name: canonical(value) for name, value in self.call.values.items()}}

    def _tuned(self, store: Store | None, done: Mapping[str, Any], ranks: Ranks) -> Found:
        trials = [
            (store.restore(index, config, done) if store is not None else None) or Trial(index, config)
            for index, config in enumerate(self.configs)
        ]
        self._prune(trials, ranks)
        complete = True
        log = None if store is None or not store.writing else store.folder / "tuning.log"
        shown = False if ranks.rank else self.options.progress
        title = f"tuning {self.name}" if ranks.size == 1 else f"tuning {self.name} on {ranks.size} ranks"
        level = logging.DEBUG if ranks.rank else logging.INFO
        with Progress(len(trials), shown, log, title, level) as progress:
            run = Run(self.call, trials, self.options, ranks)
            try:
                for trial in trials:
                    if trial.status == "new":
                        run.first(trial)
                        if store is not None:
                            store.append(trial)
                    progress.update(trial)
                run.settle()
                run.final()
            except KeyboardInterrupt:
                if ranks.size > 1 or selection.winner(trials) is None:
                    raise
                complete = False
                _log.warning("autotune: interrupted; the result is the best of those tried so far")
            best = selection.winner(trials)
            if best is not None:
                best = trials[ranks.exchange("the winner", best.index)[0]]
            if store is not None and complete:
                store.finish(Remembered(trials, "measured", None, None if best is None else best.index))
            progress.close(None if best is None else config_text(best.config))
        if best is None:
            raise TileError(
                f"autotune: none of {len(trials)} configurations of {self.name} works",
                notes=summary_of_failures(trials),
            )
        return trials, best, "", complete

    def _prune(self, trials: Sequence[Trial], ranks: Ranks) -> None:
        """Leave out what `prune` leaves out on any rank."""
        condition = self.options.prune
        if condition is None:
            return
        every = ranks.together("pruning", lambda: list(left_out(trials, condition, self.call.values).items()))
        unwanted = {index: reason for each in reversed(every) for index, reason in each}
        for index, reason in unwanted.items():
            trials[index].fail("pruned", reason)
        if unwanted:
            left = len(trials) - len(unwanted)
            _log.info("autotune: %s: %d of %d configurations are left", self.name, left, len(trials))
