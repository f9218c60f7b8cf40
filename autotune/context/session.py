"""The runs of one function until all kernels inside are tuned."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.context.tuning import Offer, Tuning
from tiledsl.autotuner.group.ranks import Ranks, RanksLost, failure_status, session, where
from tiledsl.autotuner.progress import Progress
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.key import Key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.task import Found, TuningTask, recall_together, recalled
from tiledsl.autotuner.trial import Trial, config_text
from tiledsl.errors import TileError
from tiledsl.runtime.timing import Clock, launch_clock
from tiledsl.settings import current

_log = logging.getLogger("tiledsl")
_MOST_NEW = 20  # runs one after another in which kernels are called with keys that no earlier run had


@dataclass(frozen=True)
class Rules:
    """What a function's sessions are told. name: the function's; see tune_in_context for the rest."""

    name: str
    warmup: int
    repeat: int
    cache: bool
    store: Any
    timer: str | None
    group_timeout: float


class InContext(TuningTask[Found]):
    """A kernel with one key: its configurations are run launch by launch, by the function around it."""

    def __init__(self, tuning: Tuning, rules: Rules) -> None:
        self.name, self.options, self._offer = tuning.offer.name, rules, tuning.offer
        self.configs = [trial.config for trial in tuning.trials]

    def key(self) -> Key | None:
        rules = self.options
        key = self._offer.disk_key() if rules.cache else None
        if key is None:
            return None
        context = {"function": rules.name, "launches": [rules.warmup, rules.repeat], "timer": rules.timer}
        return Key(key.kernel, {**key.fields, "context": context}, key.exact)

    def fields(self) -> Mapping[str, Any]:
        return {"key": self._offer.key}

    def recall(self, store: Store) -> Found | None:
        return recalled(store, self.configs)

    def with_best(self, known: Found, best: Trial) -> Found:
        return known._replace(best=best)


@dataclass
class _Turn:
    is_try: bool
    is_first: bool
    time: Callable[[Callable[[], Any]], Any]


class ContextSession:
    """Gives each call of a kernel its configuration, and counts. `group`: a process group whose ranks do the same."""

    def __init__(self, rules: Rules, group: Any, scope: contextlib.ExitStack) -> None:
        self.rules, self._group, self._scope = rules, group, scope
        self._tunings: dict[Hashable, Tuning] = {}
        self._stores: dict[int, Store] = {}  # by the tuning's id
        self._clocks: dict[bool, Clock] = {}
        self._ranks: Ranks | None = None
        self._run = 0
        self._advances = 0  # launches of configurations that are tried
        self._runs_of_new = 0

    def has(self, identity: Hashable) -> bool:
        """Whether this session tunes or has tuned a kernel for a key."""
        return identity in self._tunings

    def call(self, identity: Hashable, offer: Offer) -> Any:
        """Launch a call with the configuration whose turn it is."""
        tuning = self._tunings.get(identity)
        if tuning is None:
            tuning = self._tunings[identity] = self._begin(offer)
        is_first, tuning.last_run = tuning.last_run != self._run, self._run
        if tuning.best is not None:
            return offer.launch(tuning.best.config, _Turn(False, is_first, lambda call: call()))
        while (index := tuning.turn) is not None:
            before = self._advances
            taken: list[Any] = []
            trial = tuning.trials[index]

            def timed(call: Callable[[], Any], trial: Any = trial, taken: list[Any] = taken) -> Any:
                clock = self._clock(offer.on_gpu)
                clock.config = trial.config
                value, mark = clock.time(call)
                taken.append(mark)
                return value

            try:
                value = offer.launch(trial.config, _Turn(True, is_first, timed))
            except RanksLost:
                raise
            except Exception as error:
                self._advances += 1
                trial.fail(failure_status(error), error)
                if all(each.status not in ("new", "ok") for each in tuning.trials):
                    raise tuning.failure() from error
                continue
            if self._advances == before:  # else it was the turn of kernels inside
                tuning.count(index, taken[-1])
                self._advances += 1
            return value
        self._advances += 1
        return offer.launch(tuning.stand_in().config, _Turn(True, is_first, lambda call: call()))

    def end_run(self) -> bool:
        """Choose where all configurations have had their turns. Whether the function is to run again."""
        open_tunings = [tuning for tuning in self._tunings.values() if tuning.best is None]
        is_over = self._advances == 0
        if self._ranks is not None:
            is_over = all(self._ranks.exchange("whether all is tuned", is_over))
        if is_over:
            return False
        for tuning in open_tunings:
            tuning.read(self._clock(tuning.offer.on_gpu).read)
        if self._ranks is not None:
            _agree(self._ranks, open_tunings)
        for tuning in open_tunings:
            if tuning.turn is None:
                self._conclude(tuning)
        called = [tuning for tuning in self._tunings.values() if tuning.last_run == self._run]
        self._runs_of_new = self._runs_of_new + 1 if all(tuning.is_new for tuning in called) else 0
        if self._runs_of_new > _MOST_NEW:
            shown = ", ".join(sorted({tuning.offer.name for tuning in called}))
            raise TileError(
                f"autotune: {self.rules.name}: every run calls {shown} with another key, so that no tuning ends",
                notes=["give the kernels keys that are the same in each run"],
            )
        for tuning in self._tunings.values():
            tuning.is_new = False
        self._run, self._advances = self._run + 1, 0
        return True

    def _begin(self, offer: Offer) -> Tuning:
        """A new tuning, ended if its result is on disk."""
        trials = offer.trials()
        if all(trial.status != "new" for trial in trials):
            raise Tuning(offer, 0, 1, trials, "").failure()
        if len(trials) == 1:
            return Tuning(offer, 0, 1, trials, "", best=trials[0])
        method = self._clock(offer.on_gpu).method
        if self.rules.timer is None:
            method += " in context"
        tuning = Tuning(offer, self.rules.warmup, self.rules.repeat, trials, method)
        found = self._recalled(tuning)
        if found is not None:
            tuning.trials, tuning.best = list(found.trials), found.best
            offer.remember(found.trials, found.best)
        return tuning

    def _recalled(self, tuning: Tuning) -> Found | None:
        task = InContext(tuning, self.rules)
        if self._group is not None:
            if self._ranks is None:
                shown = f"tuning in {self.rules.name}"
                self._ranks = self._scope.enter_context(session(self._group, self.rules.group_timeout, shown))
            _, store, known = recall_together(task, self._ranks)
        else:
            key = task.key()
            store = None if key is None else Store.open(task.root, key)
            known = None if store is None or current().always_tune else task.recall(store)
        if store is not None:
            self._stores[id(tuning)] = store
        return known

    def _conclude(self, tuning: Tuning) -> None:
        tuning.conclude()
        assert tuning.best is not None
        tuning.offer.remember(tuning.trials, tuning.best)
        store = self._stores.get(id(tuning))
        log = None
        if store is not None:
            store.finish(CachedResult(tuning.trials, "measured", None, tuning.best.index))
            log = store.folder / "tuning.log" if store.writing else None
        title = f"tuning {tuning.offer.name} in {self.rules.name}"
        level = logging.INFO if self._ranks is None or self._ranks.rank == 0 else logging.DEBUG
        with Progress(len(tuning.trials), False, log, title, level) as progress:
            for trial in tuning.trials:
                progress.update(trial)
            progress.close(config_text(tuning.best.config))

    def _clock(self, on_gpu: bool) -> Clock:
        if on_gpu not in self._clocks:
            self._clocks[on_gpu] = launch_clock(self.rules.timer, on_gpu)
        return self._clocks[on_gpu]


def _agree(ranks: Ranks, tunings: list[Tuning]) -> None:
    """Bring all ranks to the same turn: the least launches count, the slowest samples, and every failure."""
    said = ranks.exchange("a run of the function", [_state(tuning) for tuning in tunings])
    for place, tuning in enumerate(tunings):
        states = [each[place] for each in said]
        for index, trial in enumerate(tuning.trials):
            failed = {rank: state[index]["failed"] for rank, state in enumerate(states) if state[index]["failed"]}
            if failed:
                first = failed[min(failed)]
                trial.fail(first["status"], where(failed, ranks.size))
                continue
            tuning.launched[index] = min(state[index]["launched"] for state in states)
            tuning.samples[index] = [max(each) for each in zip(*(state[index]["samples"] for state in states))]


def _state(tuning: Tuning) -> list[Mapping[str, Any]]:
    return [
        {
            "launched": tuning.launched[trial.index],
            "samples": tuning.samples[trial.index],
            "failed": None if trial.status == "new" else {"status": trial.status, "text": trial.message},
        }
        for trial in tuning.trials
    ]
