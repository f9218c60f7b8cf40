"""Trials of kernels that every rank has run for itself: brought together, and asked for in steps that all take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tiledsl.autotuner.group.agree import merged
from tiledsl.autotuner.group.ranks import Ranks
from tiledsl.autotuner.search import Strategy
from tiledsl.autotuner.trial import NOT_TRIED, OUTCOME, Trial

# Bits and metrics are of one rank's GPU.
_COMMON = (*{*OUTCOME} - {"output_bits", "doubts", "metrics"}, "resources", "bit_class", "same_as")


def agree_on_trials(ranks: Ranks, trials: Sequence[Trial], indices: Collection[int]) -> None:
    """Give these trials one outcome on all ranks, where they have ended on some; see `merged`."""
    own = [[n, {name: getattr(trials[n], name) for name in _COMMON}] for n in indices if trials[n].status != "new"]
    said = [dict(each) for each in ranks.exchange("trials", own)]
    for index in sorted(set().union(*said)):
        trials[index].update(merged([each.get(index, {"status": "new"}) for each in said]))
        latencies = [each.get(index, {}).get("latency") for each in said]
        if all(isinstance(each, float) for each in latencies):
            trials[index].by_rank = latencies
        if trials[index].status == "new":
            trials[index].fail("pruned", f"{NOT_TRIED}the search of a rank chose others")


def in_common(ranks: Ranks, trials: Sequence[Trial], order: Sequence[int]) -> list[int]:
    """The order of rank 0 for those trials that no rank has ended before they run, such as by pruning."""
    agree_on_trials(ranks, trials, range(len(trials)))
    return [index for index in ranks.exchange("the order", list(order))[0] if trials[index].status == "new"]


class InStep:
    """A strategy that all ranks ask alike: it is told what all of them found, when all have ended what it asked for.

    is_late: whether the budget is used up here; then nothing more is asked on any rank. agreed: is told of the trials
    whose outcome is common.
    """

    def __init__(
        self,
        inner: Strategy,
        ranks: Ranks,
        trials: Sequence[Trial],
        is_late: Callable[[], bool],
        agreed: Callable[[Trial], Any],
    ) -> None:
        self._inner, self._ranks, self._trials = inner, ranks, trials
        self._is_late, self._agreed = is_late, agreed
        self._asked: list[int] = []
        self._waiting: set[int] = set()
        self._stopped = False

    @property
    def done(self) -> bool:
        return not self._asked and (self._stopped or self._inner.done)

    def ask(self, n: int) -> list[int]:
        if self._waiting:
            return []
        if self._asked:
            agree_on_trials(self._ranks, self._trials, self._asked)
            self._stopped = any(self._ranks.exchange("the budget", self._is_late()))
            for index in self._asked:
                trial = self._trials[index]
                self._inner.tell(index, trial.latency if trial.ok else None)
                self._agreed(trial)
        self._asked = [] if self._stopped else list(self._inner.ask(n))
        self._waiting = set(self._asked)
        return list(self._asked)

    def share(self, index: int) -> float:
        return self._inner.share(index)

    def tell(self, index: int, latency: float | None) -> None:
        self._waiting.discard(index)
