"""What became of the calls of a tuning offline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tiledsl.autotuner.trial import config_text
from tiledsl.autotuner.tuned.entry import TunedEntry

Status = Literal["tuned", "replaced", "kept", "skipped", "failed", "planned", "left"]


@dataclass(frozen=True)
class Outcome:
    """What became of one call. status: "tuned" (it was not yet), "replaced" (by another configuration), "kept" (tuned
    again, and not enough is gained), "skipped" (tuned before), "failed", "planned" (dry_run), "left" (interrupted
    before). message: why; seconds: that it took."""

    call: str
    status: Status
    message: str = ""
    entry: TunedEntry | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.call}: {self.status}{', ' if self.message else ''}{self.message}"

    def line(self) -> str:
        """What became of it, with the entry that there is now."""
        entry, parts = self.entry, [str(self)]
        if entry is not None:
            parts.append(f"{config_text(entry.config)}, {entry.latency_ms:.4g} ms {entry.latency_kind}")
            if entry.reference_ms:
                parts.append(f"{entry.reference_ms / entry.latency_ms:.2f}x the reference")
            parts += [f"{rate:.4g} {unit}" for rate, unit in entry.rates]
        if self.seconds:
            parts.append(f"{self.seconds:.1f} s")
        return ", ".join(parts)


@dataclass(frozen=True)
class TuneReport:
    """What became of all calls, in their order, and the file."""

    path: Path
    outcomes: tuple[Outcome, ...]
    interrupted: bool = False

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The calls that cannot be tuned, with the reason."""
        return tuple(each for each in self.outcomes if each.status == "failed")

    def summary(self, failures: bool = True) -> str:
        """How many of each kind, and with `failures` each failure."""
        counts = {each.status: sum(e.status == each.status for e in self.outcomes) for each in self.outcomes}
        shown = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing to tune"
        lines = [f"{self.path}: {shown}"]
        lines += [f"  {each}" for each in self.failed if failures]
        if self.interrupted:
            lines.append("interrupted; the same again goes on from here")
        return "\n".join(lines)
