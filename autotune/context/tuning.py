"""What becomes of one kernel with one key while the function around it runs again and again."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tiledsl.autotuner import selection
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.key import Key
from tiledsl.autotuner.task import none_works
from tiledsl.autotuner.trial import Trial
from tiledsl.errors import TileError
from tiledsl.runtime.timing import summarize


class Turn(Protocol):
    """How a call is to be launched. is_try: a configuration is tried, which may be undone; is_first: of this kernel and
    key in this run of the function. `time` runs what is to be timed, once."""

    is_try: bool
    is_first: bool

    def time(self, call: Callable[[], Any]) -> Any: ...


@dataclass(frozen=True)
class Offer:
    """A call of a kernel that can be tuned.

    key: a text that is equal for calls that one result serves. launch: runs the call with a configuration. trials: one
    for each configuration, those that are left out ended. disk_key: what a result on disk depends on; None: it is not
    kept. remember: keeps the trials and the best one in memory.
    """

    name: str
    key: str
    on_gpu: bool
    launch: Callable[[Mapping[str, Any], Turn], Any]
    trials: Callable[[], list[Trial]]
    disk_key: Callable[[], Key | None]
    remember: Callable[[Sequence[Trial], Trial], None]


@dataclass
class Tuning:
    """Configurations one after another, each launched `warmup + repeat` times. `best` is set when all have been."""

    offer: Offer
    warmup: int
    repeat: int
    trials: list[Trial]
    method: str
    best: Trial | None = None
    is_new: bool = True  # in this run
    last_run: int = -1  # in which it was called
    launched: list[int] = field(default_factory=list)
    taken: list[list[Any]] = field(default_factory=list)  # not read yet
    samples: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.launched = [0] * len(self.trials)
        self.taken, self.samples = [[] for _ in self.trials], [[] for _ in self.trials]

    @property
    def turn(self) -> int | None:
        """The configuration whose turn it is; None if all have had theirs."""
        enough = self.warmup + self.repeat
        return next((t.index for t in self.trials if t.status == "new" and self.launched[t.index] < enough), None)

    def count(self, index: int, taken: Any) -> None:
        """A launch has ended."""
        self.launched[index] += 1
        if self.launched[index] > self.warmup:
            self.taken[index].append(taken)

    def read(self, read: Callable[[Any], float]) -> None:
        """Read the clock for the launches since the last time."""
        for taken, samples in zip(self.taken, self.samples):
            samples += map(read, taken)
            taken.clear()

    def choose(self) -> CachedResult:
        """The outcome, where every configuration has had its turns."""
        for trial, samples in zip(self.trials, self.samples):
            if trial.status == "new":
                trial.status, trial.timing, trial.latency = "ok", self.method, statistics.median(samples)
                trial.spread = summarize(samples, "").spread
        best = selection.winner(self.trials)
        return CachedResult(self.trials, "measured", None, None if best is None else best.index)

    def stand_in(self) -> Trial:
        """A configuration that works, for calls of the same run after the last one's turn."""
        return next(trial for trial in self.trials if trial.status in ("new", "ok"))

    def failure(self) -> TileError:
        """What is raised where no configuration works."""
        return none_works(self.offer.name, self.trials)
