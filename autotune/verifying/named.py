"""Say which function of the user's a process has ended in.

Functions such as ref_prog run in the tuner's own process: they may close over anything, and their tensors are there.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

from tiledsl.autotuner.user_functions import errors_of

# Waits for a line, which says that all went well; the end of the input says that the process is gone.
_WATCH = 'trap "" INT TERM HUP; read -r line || printf "%s\\n" "$0" >&2'


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    """Name a function of the user's, `what`, as where the block's errors come from.

    What it raises, SystemExit included, becomes a TileError; KeyboardInterrupt stays. For its end see `watched`.
    """
    with errors_of(f"autotune: {what}"), watched(what):
        yield


@contextlib.contextmanager
def watched(what: str) -> Iterator[None]:
    """Where the process ends while the block runs, a line on stderr says that it was inside `what`."""
    message = f"tiledsl: autotune: the process ended inside {what}: it crashed, was killed, or called os._exit"
    watch = None
    with contextlib.suppress(OSError, RuntimeError):  # the latter as in forks
        watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, message], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield
    finally:
        if watch is not None:
            with contextlib.suppress(OSError):
                watch.communicate(b"\n")
