"""Times that all ranks have in common."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.group.ranks import Ranks

Call = Callable[[], Any]
_log = logging.getLogger("tiledsl")


class AgreedClock:
    """A clock whose times are the largest over the ranks, on all of them; see timing.Clock for the methods.

    All ranks make the same number of calls and begin at the same time, so that a function with collectives inside ends.
    """

    def __init__(self, inner: Any, ranks: Ranks) -> None:
        self._inner, self._ranks = inner, ranks

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration that is timed."""
        config: Mapping[str, Any] = self._inner.config
        return config

    @config.setter
    def config(self, config: Mapping[str, Any]) -> None:
        self._inner.config = config

    def quick(self, call: Call, reset: Call | None = None) -> float:
        return float(max(self._aligned(lambda: self._inner.quick(call, reset))))

    def prepare(
        self, calls: Callable[[int], Sequence[Call]], nbytes: int, quick: float, reset: Call | None = None
    ) -> AgreedPrepared:
        prepared = self._inner.prepare(calls, nbytes, quick, reset)
        return AgreedPrepared(prepared, self._aligned, quick, self._ranks.rank == 0)

    def _aligned(self, call: Call) -> list[Any]:
        self._ranks.exchange("a barrier", None)
        return self._ranks.together("timing", call)


@dataclass
class AgreedPrepared:
    """A call that is ready to be timed by all ranks."""

    inner: Any
    aligned: Callable[[Call], list[Any]]
    quick: float
    is_first: bool  # of the ranks
    by_rank: list[float] | None = None  # medians of the last samples

    @property
    def method(self) -> str:
        return str(self.inner.method)

    def warm(self, milliseconds: float) -> None:
        self.aligned(lambda: self.inner.sample(milliseconds, self.quick))  # by the clock, ranks would call it unequally

    def rest(self, milliseconds: float) -> None:
        self.inner.rest(milliseconds)

    def sample(self, milliseconds: float, quick: float) -> list[float]:
        every = self.aligned(lambda: self.inner.sample(milliseconds, quick))
        self.by_rank = [statistics.median(each) for each in every]
        if self.is_first and _log.isEnabledFor(logging.INFO):
            medians = ", ".join(f"{each:.4f}" for each in self.by_rank)
            _log.info("autotune: milliseconds on each rank: %s", medians)
        return [max(each) for each in zip(*every)]
