"""A folder for tensors on their way between the tuner and its benchmark processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "tiledsl-scratch-"
_ENOUGH = 8 << 30  # bytes free, for the folder to lie in memory
_SETTLED = 60.0  # seconds after which a folder without an owner was left by a process that was killed


class Scratch:
    """A new folder, in memory if that has room. Those that killed processes left behind are removed."""

    def __init__(self) -> None:
        root = Path(tempfile.gettempdir())
        shared = Path("/dev/shm")
        with contextlib.suppress(OSError):
            found = os.statvfs(shared)
            if os.access(shared, os.W_OK) and found.f_bavail * found.f_frsize > _ENOUGH:
                root = shared
        _remove_left(root)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        self._owner = os.open(self.path / "owner", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._owner)


def _remove_left(root: Path) -> None:
    for path in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < _SETTLED:
                continue
            owner = os.open(path / "owner", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(owner)
