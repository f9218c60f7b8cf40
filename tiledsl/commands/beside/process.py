"""A side's process as the one that supervises it sees it: lines of JSON, a log, and its time, pauses left out."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl.child_processes import (
    end_of,
    family,
    kill_group,
    python_environment,
    python_module,
    reason_of,
    search_path,
)

SIDES = ("tiledsl", "tilelang")
_LOG_BYTES = 1 << 16
_CACHES = ("TRITON_CACHE_DIR", "TILEDSL_CACHE_DIR", "TILELANG_CACHE_DIR", "CUDA_CACHE_PATH")
_END = None  # of a side's lines


@dataclass(frozen=True)
class Job:
    """A script to be run under both compilers. `name` is what rows call it; `entry` is Python text run in its namespace
    in place of its main part; `paths` are more folders from which it imports."""

    name: str
    script: Path
    arguments: tuple[str, ...] = ()
    entry: str | None = None
    paths: tuple[str, ...] = ()


def outside(start: float, end: float, pauses: Iterable[tuple[float, float]]) -> float:
    """The seconds from start to end that lie in no pause."""
    return end - start - sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in pauses)


class SideProcess:
    """One side of a job, from its start. `told` is what it said when the script had ended, None until then; `why` is
    why it can be asked nothing any more, "" while it can."""

    def __init__(self, job: Job, side: str, caches: Path, verify: bool = False) -> None:
        self.side, self.why = side, ""
        self.told: dict[str, Any] | None = None
        self.pauses: list[tuple[float, float]] = []
        self._paused: float | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        request = {
            "side": side,
            "script": str(job.script.resolve()),
            "arguments": list(job.arguments),
            "entry": job.entry,
            "verify": verify,
        }
        own = {name: str(caches / side / name.lower()) for name in _CACHES}
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):  # packages may have come without: once is enough
            own |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(caches / "bytecode")}
        environment = python_environment(
            **own, PYTHONPATH=os.pathsep.join([*job.paths, *search_path()]), PYTHONUNBUFFERED="1"
        )
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            python_module("tiledsl.commands.beside.side", json.dumps(request)), cwd=job.script.resolve().parent,
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode())
        self._lines.put(_END)

    @property
    def settled(self) -> bool:
        """Whether the script has ended, or the process has."""
        return self.told is not None or bool(self.why)

    def poll(self, limit: float) -> None:
        """See whether the script has ended. One that takes more than `limit` seconds is killed."""
        if self.settled:
            return
        try:
            self._take(self._lines.get_nowait())
        except queue.Empty:
            if outside(self.started, time.monotonic(), self.pauses) > limit:
                self.end(f"not done after {limit:g} s")

    def _take(self, line: str | None) -> dict[str, Any]:
        if line is _END:
            status = self.process.wait()
            said = reason_of(self.printed())
            self.end(f"its process ended with {end_of(status)}" + (f": {said}" if said else ""))
            return {"error": self.why}
        found: dict[str, Any] = json.loads(line)
        if self.told is None:
            self.told = found
        return found

    def ask(self, limit: float, **request: Any) -> dict[str, Any]:
        """The answer to a request; `error` says why there is none. A side that takes too long is killed."""
        if self.why:
            return {"error": self.why}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            return self._take(self._lines.get(timeout=limit))
        except queue.Empty:
            self.end(f"no answer after {limit:g} s")
        except BrokenPipeError:
            return self._take(_END)
        return {"error": self.why}

    def pause(self) -> None:
        """Stop the process and those that it has started, until `go_on`."""
        if self.settled:  # it waits
            return
        self._paused = time.monotonic()
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause."""
        if self._paused is not None:
            self._signal(signal.SIGCONT)
            self.pauses.append((self._paused, time.monotonic()))
            self._paused = None

    def _signal(self, number: int) -> None:
        for each in family(self.process.pid):  # a tuner's processes have sessions of their own
            with contextlib.suppress(OSError):
                os.kill(each, number)

    def printed(self) -> str:
        """The end of what the script printed."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_BYTES))
        return self._log.read().decode(errors="replace")

    def failure(self) -> str:
        """Why the script did not end well; "" if it did."""
        if self.why and self.told is None:
            return self.why
        told = self.told or {}
        if told.get("error"):
            return str(told["error"])
        return (reason_of(self.printed()) or f"exit status {told['status']}") if told.get("status") else ""

    @property
    def calls(self) -> Sequence[dict[str, Any]]:
        """What it recorded."""
        return [] if self.told is None else list(self.told["calls"])

    def end(self, why: str = "") -> None:
        """End the process with all that it has started."""
        self.why = self.why or why or "it was ended"
        self._signal(signal.SIGKILL)
        kill_group(self.process.pid)
        self.process.wait()
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
