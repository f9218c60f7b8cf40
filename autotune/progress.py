"""What a person sees while tuning: a bar with counts and the best so far, or a line now and then where stderr is no
terminal, a line at the end, and a log file."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import Any

from tiledsl.autotuner.trial import STATUSES, Trial, config_text
from tiledsl.files import make_private

_log = logging.getLogger("tiledsl")
_TITLE = 30  # columns


class Progress:
    """Counts trials as they end. On a terminal a bar stands at the bottom of stderr; elsewhere a line is printed there
    after ten seconds, and every half a minute then.

    enabled: show the bar (None: if stderr is a terminal, else the lines). log: a file, to which each trial's end is
    appended as a line.
    level: at which the logger is told the same lines. beats: seconds until the first line, and from one to the next.
    A context manager: leaving it takes the bar away whatever happened.
    """

    def __init__(
        self,
        total: int,
        enabled: bool | None = None,
        log: Path | str | None = None,
        title: str = "tuning",
        level: int = logging.DEBUG,
        beats: tuple[float, float] = (10.0, 30.0),
    ) -> None:
        self.total = total
        self.phase: Callable[[], str] = str  # what is being done, in a few words
        self._ended = threading.Event()
        is_piped = enabled is None and not _is_terminal(sys.stderr)
        self.enabled = _is_terminal(sys.stderr) if enabled is None else enabled
        self.statuses: dict[int, str] = {}
        self.best: Trial | None = None
        self._title, self._level = title, level
        self._start = time.monotonic()
        self._known = self._start, 0  # since when trials run, and how many had ended before
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
        elif is_piped:
            threading.Thread(target=self._beat, args=beats, daemon=True).start()

    def begin(self) -> None:
        """What has ended up to now took no time."""
        self._known = time.monotonic(), len(self.statuses)

    def line(self) -> str:
        """`12 of 72; 3 to compile, 1 to measure; 1:05, about 5:20 left`"""
        now, (since, before) = time.monotonic(), self._known
        done = len(self.statuses)
        times = _clock(now - self._start)
        if done > before and done < self.total:
            times += f", about {_clock((now - since) * (self.total - done) / (done - before))} left"
        return "; ".join(filter(None, (f"{done} of {self.total}", self.phase(), times)))

    def _beat(self, first: float, then: float) -> None:
        """Print how it stands now and then, whatever the trials do."""
        wait = first
        while not self._ended.wait(wait):
            wait = then
            with contextlib.suppress(OSError, ValueError):  # stderr is closed
                print(f"{self._title}: {self.line()}\n  {self.state()}", file=sys.stderr, flush=True)

    def _open_bar(self) -> None:
        from rich.console import Console, RenderableType
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        progress = self

        class Lines(Bar):
            """The bar, what is being done, and how the trials stand: a line each, cut off where the terminal ends."""

            def get_renderables(self) -> Iterable[RenderableType]:
                yield from super().get_renderables()
                for line in (progress.line(), progress.state()):
                    yield Text(f"  {line}", no_wrap=True, overflow="ellipsis")

        title = self._title if len(self._title) <= _TITLE else f"{self._title[: _TITLE - 3]}..."
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=None))
        console = Console(stderr=True)
        self._bar = Lines(*columns, console=console, transient=True, expand=True, refresh_per_second=4)
        self._task = self._bar.add_task(title, total=self.total)
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
            self._bar.update(self._task, completed=len(self.statuses))

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
        self._write(line)
        had_bar = self._bar is not None
        self.__exit__()
        if had_bar:
            print(line, file=sys.stderr)
        else:
            _log.info("autotune: %s", line)
        return line

    def _write(self, line: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk must not end a tuning run
                self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def _clock(seconds: float) -> str:
    """`1:05`, or `2:01:05`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


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
