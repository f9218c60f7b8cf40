"""The process in which `apart` has an edited level compiled: reads what it is from stdin, writes the error or None."""

from __future__ import annotations

import os
import pickle
import sys

from tiledsl.errors import TileError
from tiledsl.levels.build import make
from tiledsl.levels.bundle import LevelFile
from tiledsl.levels.record import parsed
from tiledsl.runtime.compile import failures_as_errors
from tiledsl.runtime.target import Target


def _error(asked: bytes) -> TileError | None:
    level, data, path, described, target, folder, key = pickle.loads(asked)
    where = Target.parse(target)
    try:
        record = parsed(described, "what is known of it")
        with failures_as_errors(record.name, where, _printed):
            make(LevelFile(level, data, None, path), record, where, folder, key, _printed)
    except TileError as error:
        return error
    return None


def _printed() -> str:
    """What this process has printed, which is in a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    return os.pread(2, os.fstat(2).st_size, 0).decode(errors="replace")


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # Triton prints whole modules
        answer.write(pickle.dumps(_error(sys.stdin.buffer.read()), protocol=4))
