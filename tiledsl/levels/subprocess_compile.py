"""Compile an edited level in a process of its own: LLVM and MLIR end the process on much that they cannot read."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path

from tiledsl.child_processes import ask_module, end_of
from tiledsl.levels.bundle import LevelFile
from tiledsl.levels.record import Record
from tiledsl.location import Loc
from tiledsl.runtime.compile import CompileError
from tiledsl.runtime.target import Target


def compile_in_subprocess(file: LevelFile, record: Record, target: Target, folder: Path, key: str) -> None:
    """`build.make` in another process (compile_worker). Raises what that raises, CompileError too if it dies."""
    asked = pickle.dumps(
        (file.level, file.data, file.path, record.text(), str(target), folder.absolute(), key), protocol=4
    )
    status, answer, printed, _ = ask_module("tiledsl.levels.compile_worker", asked)
    if status != 0:
        raise _died(file, status, printed)
    error = pickle.loads(answer)
    if error is not None:
        raise error
    sys.stderr.write(printed)


def _died(file: LevelFile, status: int, printed: str) -> CompileError:
    """What a process said before it ended, with the line of the file that LLVM names."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    if status > 0:  # it did not get as far as to compile
        what = lines[-1] if lines else f"it ended with status {status}"
        return CompileError(f"{file.what}: the process that is to compile it does not run: {what}")
    found = re.search(r"LLVM ERROR: (?:failed to parse IR: )?(.+)", printed)
    said = found[1] if found is not None else lines[0] if lines else "it says nothing more"
    message, _, number = said.partition("lineno: ")
    how = f"the compiler ended with {end_of(status)}"
    error = CompileError(f"{file.what} is no valid {file.level}: {message.strip()} ({how})")
    if number.isdigit() and file.path is not None:
        error.loc = Loc(str(file.path), int(number), 1, int(number), 1000)
    error.stage = file.level
    return error
