"""The runs of one function until all kernels inside are tuned."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.context.options import ContextOptions
from tiledsl.autotuner.context.tuning import Offer, Tuning
from tiledsl.autotuner.group.ranks import Alone, Ranks, RanksLost, failure_status, session, where
from tiledsl.autotuner.storage.key import Key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.task import FoundTask, Run, recall, recall_together
from tiledsl.autotuner.trial import Trial
from tiledsl.errors import TileError
from tiledsl.runtime.timing import Clock, launch_clock

_MOST_NEW = 20  # runs one after another in which kernels are called with keys that no earlier run had


class InContext(FoundTask):
    """A kernel with one key: its configurations are run launch by launch, by the function around it, of that name."""

    def __init__(self, offer: Offer, trials: list[Trial], options: ContextOptions, function: str) -> None:
        self.name, self.options, self._function = offer.name, options, function
        self._offer, self._trials = offer, trials
        self.configs = [trial.config for trial in trials]

    def key(self) -> Key | None:
        options = self.options
        key = self._offer.disk_key() if options.cache else None
        if key is None:
            return None
        launches = [options.n_warmup, options.n_repeat]
        context = {"function": self._function, "launches": launches, "timer": options.timer}
        return Key(key.kernel, {**key.fields, "context": context}, key.exact)

    def fields(self) -> Mapping[str, Any]:
        return {"key": self._offer.key}

    def restore(self, store: Store | None, done: Mapping[str, Any]) -> list[Trial]:
        return self._trials

    def shows(self, ranks: Ranks) -> bool:
        return False  # several tasks run in turns

    def title(self, ranks: Ranks) -> str:
        return f"tuning {self.name} in {self._function}"


@dataclass
class _Turn:
    is_try: bool
    is_first: bool
    time: Callable[[Callable[[], Any]], Any]


class ContextSession:
    """Gives each call of a kernel its configuration, and counts. function: the name of the one around the kernels;
    group: a process group whose ranks do the same."""

    def __init__(self, function: str, options: ContextOptions, group: Any, scope: contextlib.ExitStack) -> None:
        self._function, self._options, self._group, self._scope = function, options, group, scope
        self._tunings: dict[Hashable, Tuning] = {}
        self._tasks: dict[int, tuple[InContext, Store | None]] = {}  # by the tuning's id
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
                f"autotune: {self._function}: every run calls {shown} with another key, so that no tuning ends",
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
        if self._options.timer is None:
            method += " in context"
        tuning = Tuning(offer, self._options.n_warmup, self._options.n_repeat, trials, method)
        task = InContext(offer, trials, self._options, self._function)
        if self._group is None:
            store, recalled = recall(task)
        else:
            if self._ranks is None:
                entered = session(self._group, self._options.group_timeout, f"tuning in {self._function}")
                self._ranks = self._scope.enter_context(entered)
            _, store, recalled = recall_together(task, self._ranks)
        self._tasks[id(tuning)] = task, store
        if recalled is not None:
            tuning.trials, tuning.best = list(recalled.trials), recalled.best
            offer.remember(recalled.trials, recalled.best)
        return tuning

    def _conclude(self, tuning: Tuning) -> None:
        task, store = self._tasks[id(tuning)]
        with Run(task, store, {}, self._ranks or Alone()) as run:
            outcome = tuning.choose()
            run.show()
            tuning.best = run.finish(outcome).best
        tuning.offer.remember(tuning.trials, tuning.best)

    def _clock(self, on_gpu: bool) -> Clock:
        if on_gpu not in self._clocks:
            self._clocks[on_gpu] = launch_clock(self._options.timer, on_gpu)
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
