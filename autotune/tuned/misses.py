"""Calls that tuned-config files do not serve, collected as CSV for `tiledsl tune --shapes`: a file for each function
and architecture, a line for each call, from any number of processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.engine import BoundCall
from tiledsl.autotuner.space import tunables
from tiledsl.autotuner.tuned import arguments as of_calls
from tiledsl.autotuner.tuned.entry import as_text
from tiledsl.autotuner.tuned.file import path_of
from tiledsl.autotuner.tuned.shapes import parse_value
from tiledsl.files import append_lines, open_to_append
from tiledsl.settings import current

if TYPE_CHECKING:
    from tiledsl.autotuner.decorator import AutotunedFunction

_LARGEST_ROW = 4096  # bytes
_LARGEST = 8 << 20  # bytes of a file; some 200,000 calls
_PATIENCE = 0.02  # seconds for a lock that another process has

_lock = threading.Lock()


@dataclass
class _Seen:
    """What this process knows of a file: which one it is, how far it is read, and its lines. tried: those of its own
    calls, also where they could not be written."""

    identity: tuple[int, int] = (0, 0)
    offset: int = 0
    rows: set[bytes] = field(default_factory=set)
    tried: set[bytes] = field(default_factory=set)


_seen: dict[Path, _Seen] = {}


def collect(function: AutotunedFunction, call: BoundCall) -> str:
    """Add a call to the file of its function in the folder that the setting tuned_configs has with `*.csv`, unless it
    is there.

    Never raises: what keeps a call from being written is returned, "" if nothing does.
    """
    folder = current().tuned_misses
    if folder is None:
        return ""
    path = path_of(folder, function.name, call.target).with_suffix(".csv")
    try:
        configs = function._problem(call).configs if callable(function.configs) else function.configs
        found = of_calls.given_arguments(function, call.values, tunables(configs))
        found.pop(of_calls.OWN_KEY, None)  # which follows from the others
        add(path, found, of_calls.defaults(function))
    except Exception as error:  # whatever is wrong with a file or with the user's functions, the call goes on
        return f"{path} does not get the calls that are not tuned: {error}"
    return ""


def add(path: Path, arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Append a line for a call, and before the first one the line of names; arguments that are as the defaults are
    empty. OSError or ValueError if the file cannot be written or is another table."""
    header = ",".join(arguments).encode()
    row = ",".join(
        "" if name in defaults and as_text(defaults[name]) == as_text(value) else _cell(value)
        for name, value in arguments.items()
    ).encode()
    row = row or b'""'  # an empty line would be no call
    if len(row) > _LARGEST_ROW:
        raise ValueError(f"a line of {len(row)} bytes is too long")
    if not _lock.acquire(timeout=_PATIENCE):  # held by a thread that a fork has left behind
        return
    try:
        seen = _seen.setdefault(path, _Seen())
        if row not in seen.tried:
            seen.tried.add(row)
            _append(path, seen, header, row)
    finally:
        _lock.release()


def _append(path: Path, seen: _Seen, header: bytes, row: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_to_append(path) as descriptor:  # whose end gives the lock back
        locked = _locked(descriptor)
        there = os.fstat(descriptor)
        if there.st_size > _LARGEST:
            raise ValueError(f"it has {there.st_size} bytes; tune what it names, and delete it")
        _read_on(descriptor, there, seen, header)
        if row in seen.rows or not (there.st_size or locked):  # whoever has the lock is writing the names
            return
        try:
            append_lines(descriptor, (b"" if there.st_size else header + b"\n") + row + b"\n")
        except OSError:
            if locked:
                os.ftruncate(descriptor, there.st_size)
            raise


def _locked(descriptor: int) -> bool:
    """Lock a file; False if another process keeps it locked, or if it cannot be. Then a line may come twice, which
    those who read the file leave out."""
    end = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.001)


def _read_on(descriptor: int, there: os.stat_result, seen: _Seen, header: bytes) -> None:
    """Read what is new in a file. ValueError if it has other names."""
    identity = (there.st_dev, there.st_ino)
    if seen.identity != identity or there.st_size < seen.offset:
        seen.identity, seen.offset, seen.rows = identity, 0, set()
    data = os.pread(descriptor, there.st_size - seen.offset, seen.offset)
    lines = [line.strip() for line in data.split(b"\n")]
    if seen.offset == 0 and there.st_size:
        names = next((line for line in lines if line and not line.startswith(b"#")), b"").removeprefix(b"\xef\xbb\xbf")
        if [name.strip() for name in names.split(b",")] != header.split(b","):
            raise ValueError(f"it names {names.decode(errors='replace')!r}, and the call {header.decode()!r}")
    seen.rows.update(lines)
    seen.offset = there.st_size - len(lines[-1])  # a line that is not ended is read again


def _cell(value: Any) -> str:
    """A value as shapes.parse_value reads it: a text as it is where that tells it from other literals."""
    plain = isinstance(value, str) and value.isprintable() and value and value[0] not in "#\"'"
    text = value if plain and parse_value(value) == value else repr(value)
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text
