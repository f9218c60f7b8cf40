"""Do in forks of this process what may end it: to run builders of the user's, to lower what they return, to compile.

Forks have the user's functions as they are; these cannot be sent to other processes, since the frontend reads their
source and they may close over anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Generic, TypeVar

from tiledsl.autotuner.trial import Status
from tiledsl.child_processes import end_of, kill_group, last_words

Item = TypeVar("Item")

_TRIES, _PAUSE = 100, 0.01  # of a fork; seconds between


@dataclass(frozen=True)
class Ended:
    """How a fork came to its end on an item: `hung`, after the time limit, or by itself; the text says how."""

    hung: bool
    message: str

    @property
    def status(self) -> Status:
        """A trial's status of this kind."""
        return "compile_timeout" if self.hung else "crash"


def in_forks(
    call: Callable[[Item], Any],
    items: Sequence[Item],
    seconds: float,
    processes: int = 1,
    meanwhile: Callable[[], None] | None = None,
) -> list[Any | Ended | None]:
    """`call` of each item, in forks among which the items are divided; it gives a JSON value. Ended stands for an item
    on which the fork ended or which took longer than `seconds`, None for one of which `call` raised an exception.

    meanwhile: called beside the forks.
    """
    size = -(-len(items) // max(1, processes))
    parts = [Forked(call, items[start : start + size], seconds) for start in range(0, len(items), size)]
    with contextlib.ExitStack() as stack:
        for part in parts:
            stack.enter_context(part)
        if meanwhile is not None:
            meanwhile()
        return [answer for part in parts for answer in part]


class Forked(Generic[Item]):
    """Iterates over `call` of each item, as `in_forks` does, while the fork goes on with the next ones.

    Where the fork ends, or is ended, another one begins with the item after. A context manager: at its end no fork
    is left, nor what it started. What prints does so into a file that is gone with the fork: who does the same again
    prints it anew.
    """

    late, ended = "still being built", "building it ended the process with"  # as an item's message says it
    tries_again = True  # where it hangs: a fork beside threads may wait for a lock that one of them held

    def __init__(self, call: Callable[[Item], Any], items: Sequence[Item], seconds: float) -> None:
        self._call, self._items, self._seconds = call, items, seconds
        self._child, self._pipe = 0, -1
        self._log: IO[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Forked[Item]:
        if self._items:
            self._start(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __iter__(self) -> Iterator[Any | Ended | None]:
        tried_again = False
        place = 0
        while place < len(self._items):
            if not self._child:
                self._start(place)
            line = self._line()
            if isinstance(line, Ended):
                again = self.tries_again and line.hung and threading.active_count() > 1 and not tried_again
                tried_again = again
                if again:
                    continue
                yield line
            else:
                tried_again = False
                yield json.loads(line)
            place += 1

    def _start(self, first: int) -> None:
        self._log = tempfile.TemporaryFile(prefix="tiledsl-builder-")  # noqa: SIM115
        read, write = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)  # so that it need not wait while others are listened to
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = _fork()
        if child:
            os.close(write)
            self._child, self._pipe, self._unread = child, read, b""
            return
        try:
            os.close(read)
            self._go_on(first, write)
        finally:
            os._exit(0)

    def _go_on(self, first: int, pipe: int) -> None:
        """What the fork does."""
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: when this process's parent is killed
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is told to the parent
        assert self._log is not None
        for stream in (1, 2):
            os.dup2(self._log.fileno(), stream)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  (a notebook's, too)
        faulthandler.enable(self._log)
        for item in self._items[first:]:
            try:
                answer = json.dumps(self._call(item))
            except (Exception, SystemExit):
                answer = "null"
            data = answer.encode() + b"\n"
            while data:
                data = data[os.write(pipe, data) :]

    def _line(self) -> bytes | Ended:
        """The next answer."""
        deadline = time.monotonic() + self._seconds
        while b"\n" not in self._unread:
            if not select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._end()
                return Ended(True, f"{self.late} after {self._seconds:g} s; given up")
            chunk = os.read(self._pipe, 1 << 16)
            if not chunk:
                return Ended(False, self._obituary())
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _obituary(self) -> str:
        """How the fork ended, with the end of what it printed."""
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        assert self._log is not None
        printed = last_words(self._log)
        self._end()
        return "\n".join([f"{self.ended} {end_of(os.waitstatus_to_exitcode(status))}", *printed])

    def _end(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._child:
            kill_group(self._child)  # it is ours until waitpid, so the number means no other process
            os.waitpid(self._child, 0)
            self._child = 0
        if self._log is not None:
            self._log.close()
            self._log = None


def _fork() -> int:
    """As os.fork, which a library may refuse for the moment in which another thread must not be copied (filelock 4)."""
    for _ in range(_TRIES):
        with contextlib.suppress(RuntimeError):
            return os.fork()
        time.sleep(_PAUSE)
    return os.fork()
