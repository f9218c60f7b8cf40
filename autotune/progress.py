"""What a person sees while tuning: a bar with counts and the best so far, a line at the end, and a log file."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import Counter
from io import FileIO
from pathlib import Path
from typing import Any

from tiledsl.autotuner.trial import STATUSES, Trial, config_text
from tiledsl.files import make_private

_log = logging.getLogger("tiledsl")


class Progress:
    """Counts trials as they end. On a terminal a bar stands at the bottom of stderr; elsewhere nothing is printed.

    enabled: show the bar (None: if stderr is a terminal). log: a file, to which each trial's end is appended as a line.
    level: at which the logger is told the same lines.
    A context manager: leaving it takes the bar away whatever happened.
    """

    def __init__(
        self,
        total: int,
        enabled: bool | None = None,
        log: Path | str | None = None,
        title: str = "tuning",
        level: int = logging.DEBUG,
    ) -> None:
        self.total = total
        self.enabled = _is_terminal(sys.stderr) if enabled is None else enabled
        self.statuses: dict[int, str] = {}
        self.best: Trial | None = None
        self._title, self._level = title, level
        self._start = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._file: FileIO | None = None
        if log is not None:
            try:
                make_private(Path(log).parent)
                self._file = open(log, "ab", buffering=0)  # noqa: SIM115  (unbuffered: closing has nothing to write)
                self._write(f"start: {title}, {total} configurations")
            except OSError as error:
                _log.warning("autotune: no log is kept in %s (%s)", log, error)
        if self.enabled:
            self._open_bar()

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, TextColumn("{task.fields[state]}"), console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._title, total=self.total, state="")
        self._bar.start()

    def update(self, trial: Trial) -> None:
        """A trial has a new status; one that is "new" has not ended yet. The last status of a trial counts."""
        if trial.status == "new":
            return
        self.statuses[trial.index] = trial.status
        if (
            trial.ok
            and trial.latency is not None
            and (self.best is None or trial.milliseconds < self.best.milliseconds)
        ):
            self.best = trial
        line = _log_line(trial)
        self._write(line)
        _log.log(self._level, "autotune: %s: %s", self._title, line)
        if self._bar is not None:
            self._bar.update(self._task, completed=len(self.statuses), state=self.state())

    def state(self) -> str:
        """`37 ok, 2 pruned, best 0.2034 ms: block_M=128 ...`"""
        counts = Counter(self.statuses.values())
        parts = [f"{counts[status]} {status.replace('_', ' ')}" for status in STATUSES if counts[status]]
        text = ", ".join(parts) or "nothing yet"
        if self.best is not None:
            text += f"; best {self.best.milliseconds:.4f} ms: {config_text(self.best.config)}"
        return text

    def close(self, result: Any = None) -> str:
        """Take the bar away; returns the summary line, which is printed on a terminal and logged elsewhere."""
        line = f"{self._title}: {self.state()}; {time.monotonic() - self._start:.1f} s"
        if result is not None:
            line = f"{line}; chosen {result!r}"
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            print(line, file=sys.stderr)
        else:
            _log.info("autotune: %s", line)
        self._write(line)
        self._close_file()
        return line

    def _write(self, line: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk must not end a tuning run
                self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._close_file()


def _log_line(trial: Trial) -> str:
    parts = [f"{trial.index} {trial.status}", config_text(trial.config)]
    if trial.latency is not None:
        parts.append(f"{trial.latency:.4f} ms")
    if trial.compile_seconds is not None:
        parts.append(f"compiled in {trial.compile_seconds:.1f} s")
    if trial.message.strip():
        parts.append(trial.message.strip().splitlines()[0])
    return "; ".join(parts)


def _is_terminal(file: Any) -> bool:
    try:
        return bool(file.isatty())
    except (AttributeError, ValueError):
        return False
