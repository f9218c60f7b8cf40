"""Standard streams for processes that were started without them, as some services are."""

from __future__ import annotations

import os
import sys


def have_streams() -> None:
    """Put /dev/null in place of standard streams that are closed.

    joblib flushes sys.stdout and sys.stderr without asking whether there are any; and a file that is opened while
    descriptor 2 is free gets that number, and in it what the compiler prints.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (for as long as the process lives)
