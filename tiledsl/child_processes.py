"""Processes that this one starts: what they can import, how they ended, and what they said at their end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, NamedTuple, TextIO

_LINES = 12
_BYTES = 1 << 16


def search_path() -> list[str]:
    """The folders in which this process finds modules, for one that runs in another folder."""
    return [os.path.abspath(entry) for entry in sys.path if entry is not None]


def python_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module in a Python of its own."""
    return [sys.executable, "-m", name, *arguments]


def python_environment(**own: str) -> dict[str, str]:
    """The environment in which another Python finds the modules that this one finds; `own` replaces variables."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(search_path()), **own}


class Answer(NamedTuple):
    """What a process has answered: its status, its stdout, its stderr, and whether it ended in the time it had."""

    status: int
    output: bytes
    printed: str
    in_time: bool


def ask_module(name: str, request: bytes, timeout: float | None = None, **own: str) -> Answer:
    """Run a module in a Python of its own, with the request as its stdin, until it ends or `timeout` seconds are over;
    then nothing is left of its group. Both outputs are files. `own` are variables of its environment."""
    prefix, in_time = "tiledsl-process-", True
    with tempfile.TemporaryFile(prefix=prefix) as output, tempfile.TemporaryFile(prefix=prefix) as log:
        process = subprocess.Popen(
            python_module(name), stdin=subprocess.PIPE, stdout=output, stderr=log, cwd="/",
            env=python_environment(**own), start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(request, timeout)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            kill_group(process.pid)
            process.wait()
        output.seek(0)
        log.seek(0)
        return Answer(process.returncode, output.read(), log.read().decode(errors="replace"), in_time)


def end_of(status: int) -> str:
    """How a process ended, by its status as subprocess gives it: `SIGSEGV` or `exit status 3`."""
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def kill_group(process: int) -> None:
    """End a process and all of its group now; the process alone where it has not made its group yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(process, signal.SIGKILL)


def family(process: int) -> list[int]:
    """A process and all that descend from it, in whatever session, parents first; itself alone without /proc."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parents[int(path.parent.name)] = int(path.read_bytes().rpartition(b")")[2].split()[1])
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def last_words(log: IO[bytes]) -> list[str]:
    """The last lines of a file, or the first ones of what Python's faulthandler wrote there."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _BYTES))
    lines = log.read().decode(errors="replace").strip().splitlines()
    fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return lines[fatal[-1] :][:_LINES] if fatal else lines[-_LINES:]


def pipes_apart() -> tuple[TextIO, TextIO]:
    """This process's stdin and stdout, for the caller alone: who reads stdin finds nothing, stdout leads to stderr."""
    sys.stdout.flush()
    own = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(own[0], "r", encoding="utf-8"), os.fdopen(own[1], "w", encoding="utf-8")


def reason_of(printed: str) -> str:
    """The line of what a process printed that says what went wrong: the last error's message."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    for line in reversed(lines):
        if re.search(r"(^|\s)(error: |\w*(Error|Exception|Failure|Skip\w*)\b.*: )", line):
            return line
    return lines[-1] if lines else ""
