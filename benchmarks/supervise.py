"""Rows run in a process of their own, so that one that crashes, hangs or breaks the device costs itself only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_POLL = 0.2


@dataclass(frozen=True)
class Limits:
    """Seconds that a row may take, and that starting a process and measuring the ceilings may."""

    row: float = 150.0
    start: float = 180.0


def supervise(
    names: Sequence[str],
    command: Callable[[Sequence[str], Path], list[str]],
    folder: Path,
    limits: Limits,
    deadline: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Results of the rows as they come: {"about": ...} once a process, then {"row": ...} or {"lost": name, "why": ...}.

    command: the command line of a process that works on these rows and appends lines of JSON to the file. It may end at
    any time: another one goes on behind the row it was at. deadline: time.monotonic() after which no row is begun.
    """
    left = list(names)
    number = 0
    while left:
        if deadline is not None and time.monotonic() >= deadline:
            for name in left:
                yield {"skipped": name}
            return
        number += 1
        path = folder / f"results-{number}.jsonl"
        path.touch()
        process = subprocess.Popen(command(left, path), start_new_session=True)
        try:
            yield from _follow(process, path, left, limits, deadline)
        finally:
            with contextlib.suppress(ProcessLookupError):  # its group: it has started compilers
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _follow(
    process: subprocess.Popen[bytes], path: Path, left: list[str], limits: Limits, deadline: float | None
) -> Iterator[dict[str, Any]]:
    """Yield what the process writes; on return `left` is shorter by one row at least, or the process was stopped by
    the deadline."""
    position, begun, since, at_first = 0, False, time.monotonic(), len(left)
    while True:
        ended = process.poll() is not None  # asked before reading: what was written until then is read
        before = len(left)
        for message, behind in _messages(path, position):
            position = behind
            since = time.monotonic()
            if "about" in message:
                begun = True
            elif left:
                left.pop(0)
            yield message
        if not left:
            return
        if ended:
            why = f"its process ended with status {process.returncode}"
            # A row that was reached by the end of others gets a fresh process; if it ends that one too, it is lost.
            # Where not even the ceilings could be measured, no row can be.
            lost = left[:] if not begun else left[:1] if len(left) == at_first else []
            del left[: len(lost)]
            for name in lost:
                yield {"lost": name, "why": why}
            return
        waited = time.monotonic() - since
        if waited > (limits.row if begun else limits.start):
            yield {"lost": left.pop(0), "why": f"not done after {waited:.0f} s"}
            return
        if deadline is not None and len(left) < before and time.monotonic() >= deadline:
            return  # a row has just ended, and there is no time for another one
        time.sleep(_POLL)


def _messages(path: Path, position: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Whole lines behind a position, and the position behind each; a line that is still being written is left."""
    with path.open("rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n"):
                return
            position += len(line)
            yield json.loads(line), position


def worker_command(options: Sequence[str]) -> Callable[[Sequence[str], Path], list[str]]:
    """The command line of the worker, see __main__.work."""

    def command(names: Sequence[str], path: Path) -> list[str]:
        listed = path.with_suffix(".rows.json")
        listed.write_text(json.dumps(list(names)), encoding="utf-8")
        return [sys.executable, "-m", "benchmarks", "--worker", str(listed), str(path), *options]

    return command
