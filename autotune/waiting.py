"""Waiting for what is tuned: how often a wait wakes up, and when the time for it is up."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tiledsl.autotuner.trial import NOT_TRIED, Trial

WAKE_SECONDS = 0.25
"""Ctrl-C does not end a wait without a limit where the system tells another thread of it."""


class Budget:
    """The seconds after which no further configuration is tried, counted from here; None: there is no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._start = seconds, time.monotonic()

    @property
    def is_used(self) -> bool:
        return self._seconds is not None and self.left <= 0

    def is_over(self, trials: Iterable[Trial]) -> bool:
        """Whether no further configuration is tried: until one works, the limit does not count."""
        return self.is_used and any(trial.ok for trial in trials)

    @property
    def left(self) -> float:
        """Seconds."""
        return float("inf") if self._seconds is None else self._start + self._seconds - time.monotonic()

    @property
    def reason(self) -> str:
        """What is said of a configuration that comes too late."""
        return f"{NOT_TRIED}the budget of {self._seconds} s was used up"
