"""What Python processes that this one starts are given."""

from __future__ import annotations

import os
import sys


def import_path() -> list[str]:
    """The folders of sys.path, for a process that is started in another folder."""
    return [os.path.abspath(entry) for entry in sys.path if entry is not None]


def environment(**more: str) -> dict[str, str]:
    """The variables of such a process: this one's, with PYTHONPATH so that it imports the same, and `more`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(import_path()), **more}
