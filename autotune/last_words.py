"""What a process that is gone has printed at its end."""

from __future__ import annotations

import os
from typing import IO

_LINES = 12
_BYTES = 1 << 16


def last_words(log: IO[bytes]) -> list[str]:
    """The last lines of a file, or the first ones of what Python's faulthandler wrote there."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _BYTES))
    lines = log.read().decode(errors="replace").strip().splitlines()
    fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return lines[fatal[-1] :][:_LINES] if fatal else lines[-_LINES:]
