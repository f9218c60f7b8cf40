"""Configurations that come to the same source or the same binary are compiled and measured once."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.autotuner.trial import Trial


class Duplicates:
    """Which trials take over the outcome of another one. Those that an earlier run has ended count as well."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = trials
        self._sources: dict[str, int] = {}
        self._binaries: dict[str, int] = {}
        self._waiting: dict[int, list[Trial]] = {}
        for trial in trials:
            if trial.status != "new" and trial.source_hash:
                self.by_source(trial)
                self.by_binary(trial)

    def by_source(self, trial: Trial) -> Trial | None:
        """The first trial with this one's source; None if that is this one."""
        return self._first(self._sources, trial.source_hash, trial)

    def by_binary(self, trial: Trial) -> Trial | None:
        """The first trial with this one's binary; None if that is this one."""
        return self._first(self._binaries, trial.binary_hash, trial)

    def _first(self, known: dict[str, int], text: str, trial: Trial) -> Trial | None:
        first = known.setdefault(text, trial.index) if text else trial.index
        return None if first == trial.index else self._trials[first]

    def follow(self, trial: Trial, first: Trial) -> None:
        """Let a trial share another one's outcome: now if that has ended, else when `followers` is asked."""
        trial.same_as = first.index
        if first.status == "new":
            self._waiting.setdefault(first.index, []).append(trial)
        else:
            trial.share(first)

    def followers(self, trial: Trial) -> list[Trial]:
        """The trials that waited for this one, with its outcome; each once."""
        waiting = self._waiting.pop(trial.index, [])
        for each in waiting:
            each.same_as = trial.index if trial.same_as is None else trial.same_as
            each.share(trial)
        return waiting
