"""What a tuning tried, of a kernel or of a Python function, and the ways to look at it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tiledsl.autotuner.trial import Trial
from tiledsl.errors import ends_tracebacks
from tiledsl.files import write_output
from tiledsl.runtime.target import Target


class Tried(ABC):
    """Part of a result: its configurations as a table, as CSV, as a page and in words.

    config, latency: the winner's, in milliseconds; trials: every configuration; latency_kind: "measured" or
    "estimated"; ref_latency: the reference's milliseconds, if measured; minimised: what the winner has least of;
    complete: False if the run was interrupted; in_process: why functions ran in this process. What follows is what is
    known of kernels alone, but for `subject`, which names what was tuned.
    """

    config: dict[str, Any]
    latency: float | None
    trials: tuple[Trial, ...]
    complete: bool
    in_process: str = ""
    latency_kind: Literal["measured", "estimated"]
    ref_latency: float | None
    minimised: str

    @property
    @abstractmethod
    def subject(self) -> str:
        """What was tuned, by its name."""

    @property
    def tuned_on(self) -> Target | None:
        """What it was tuned for; None: the CPU."""
        return None

    @property
    def estimated_for(self) -> str:
        """The GPU that the latencies are estimated for; "" if they are measured."""
        return ""

    @property
    def flops(self) -> float | None:
        """Floating-point operations of a call; None if unknown."""
        return None

    @property
    def bytes_moved(self) -> float | None:
        """Bytes that a call must move to and from memory; None if unknown."""
        return None

    @property
    def best(self) -> Trial:
        """The winner's trial."""
        return next(trial for trial in self.trials if self.is_winner(trial))

    def is_winner(self, trial: Trial) -> bool:
        """Whether a trial is the one that was chosen."""
        return trial.ok and trial.config == self.config

    @cached_property
    def ranks(self) -> dict[int, int]:
        """Ranks, from 1, by trial index, of the trials that work: the winner, then by latency."""
        working = [trial for trial in self.trials if trial.ok]
        cost = {t.index: t.cost if t.latency is not None else 0.0 for t in working}
        working.sort(key=lambda t: (not self.is_winner(t), cost[t.index], t.index))
        return {trial.index: place for place, trial in enumerate(working, 1)}

    def table(self, sort: str = "latency") -> str:
        """The trials as text, by default the best first, then the failures in order. sort: a column, see table.COLUMNS.

        Shared memory is in bytes for a block, spills in bytes for a thread. TFLOPS and GB/s are shown if the program
        determines how much it computes and moves.
        """
        from tiledsl.autotuner.results.table import as_text

        return as_text(self, sort)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The trials as CSV, with a column for each tunable and each number; also written to `path`, if given."""
        from tiledsl.autotuner.results.table import as_csv

        text = as_csv(self)
        if path is not None:
            write_output(path, text.encode())
        return text

    def explain(self) -> str:
        """Why the winner won against the runner-up: of kernels resources, occupancy, waves, bytes, and the model's
        opinion."""
        from tiledsl.autotuner.results.explain import explain

        return explain(self)

    @ends_tracebacks
    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a page of HTML: what won, by how much, what limits it, what failed and why; all configurations with
        search, filters and plots; of a kernel the winner's passes, resources and certificate. One file, which a browser
        shows without a network.

        Raises TileError where `tiledsl[report]` is not installed, or the file cannot be written.
        """
        from tiledsl.autotuner.results.report import tuning_page
        from tiledsl.report.page import write

        return write(tuning_page(self), path)

    def _repr_html_(self) -> str:
        """What a notebook shows: answers to what is asked first, the best ten, and failures by their reasons."""
        from tiledsl.autotuner.results.report import short_html

        return short_html(self)
