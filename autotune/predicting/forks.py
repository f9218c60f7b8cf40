"""Map a function over a list in forks of this process.

Forks have the user's functions as they are; these cannot be sent to other processes, since the frontend reads their
source and they may close over anything.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_LEAST_SECONDS = 10.0  # that a fork gets; otherwise several times what this process took for its part
_PATIENCE = 4.0

Item = TypeVar("Item")


def in_processes(call: Callable[[Sequence[Item]], list[Any]], items: Sequence[Item], processes: int) -> list[Any]:
    """`call` of consecutive parts of the items, in order; it gives a JSON value for each item. This process does the
    first part. None stands for the items of a fork that failed or took too long."""
    size = -(-len(items) // processes)
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    forks = [_fork(call, part) for part in parts[1:]]
    start = time.monotonic()
    try:
        found = call(parts[0])
        deadline = time.monotonic() + max(_LEAST_SECONDS, _PATIENCE * (time.monotonic() - start))
        for (_, pipe), part in zip(forks, parts[1:]):
            answer = _answer(pipe, deadline)
            found += answer if len(answer) == len(part) else [None] * len(part)
    finally:
        for child, pipe in forks:
            os.close(pipe)
            os.kill(child, signal.SIGKILL)  # it is ours until waitpid, so the number means no other process
            os.waitpid(child, 0)
    return found


def _fork(call: Callable[[Sequence[Item]], list[Any]], items: Sequence[Item]) -> tuple[int, int]:
    """The fork's number, and the pipe on which it answers."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the fork needs none of them
        child = os.fork()
    if child:
        os.close(write)
        return child, read
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: when this process is killed
        os.close(read)
        answer = json.dumps(call(items)).encode()
        while answer:
            answer = answer[os.write(write, answer) :]
    finally:
        os._exit(0)


def _answer(pipe: int, deadline: float) -> list[Any]:
    """What a fork wrote; empty if it ended, or did not end, without an answer."""
    data = bytearray()
    while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(pipe, 1 << 16)
        if not chunk:
            break
        data += chunk
    else:
        return []
    try:
        answer = json.loads(data)
    except ValueError:
        return []
    return answer if isinstance(answer, list) else []
