"""A command in a process of its own, that can be stopped with all it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SHOWN = 3000  # characters of what it printed


def with_root(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which the checkout can be imported."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    return {**environment, "PYTHONPATH": paths}


def run(command: Sequence[str], environment: Mapping[str, str], folder: Path, seconds: float) -> str:
    """Run to the end, or until `seconds` are over. Returns what went wrong with the end of what was printed, or "".

    What it prints goes to a file: a pipe would stay open as long as one of the processes that it leaves behind.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        child = subprocess.Popen(
            list(command),
            cwd=folder,
            env=with_root(environment),
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        try:
            status = child.wait(seconds)
            wrong = f"ended with {status}" if status else ""
        except subprocess.TimeoutExpired:
            wrong = f"stopped after {seconds:g} s"
        finally:
            _kill_group(child)
        printed.seek(0)
        return f"{wrong}\n{printed.read()[-_SHOWN:]}".strip() if wrong else ""


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.wait()
