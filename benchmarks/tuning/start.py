"""What a process that measures waits for before it can: `python -m benchmarks.tuning.start [--times N]`.

The seconds to import torch in a fresh process, as everybody does and as the measuring process does; alone, and beside
as many processes as there are cores that import what compiling takes, as at the start of a tuning. Before that, how
many of torch's and Triton's files have no byte code on disk: to compile them at each start takes longer than the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tuning.processes import ROOT, with_root
from benchmarks.tuning.report import table

WAYS = {
    "import torch": "import torch",
    "as the measuring process": "import gc; gc.disable(); import torch",
}
_TIMED = "import time; start = time.perf_counter()\n{}\nprint(time.perf_counter() - start, time.process_time())"
_COMPILER = "import os; os.nice(10); import joblib, triton.compiler.code_generator"


def seconds(code: str) -> tuple[float, float]:
    """Of a piece of Python in a fresh process: on the wall, and of processors for the whole process."""
    done = subprocess.run([sys.executable, "-c", _TIMED.format(code)], cwd=ROOT, env=with_root(os.environ),
                          capture_output=True, text=True, check=True)  # fmt: skip
    wall, processor = map(float, done.stdout.split())
    return wall, processor


@contextlib.contextmanager
def others(count: int, code: str) -> Iterator[None]:
    """So many processes beside this one that run a piece of Python once."""
    running = [subprocess.Popen([sys.executable, "-c", code], env=with_root(os.environ)) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.wait()


def measure(ways: dict[str, str], times: int, beside: Sequence[int], other: str = _COMPILER) -> list[dict[str, Any]]:
    """A row for each way and number of other processes: medians of so many times, in turn. `other`: what the
    other processes run."""
    rows = []
    for count in beside:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(times):
            for way, code in ways.items():
                with others(count, other):
                    found[way].append(seconds(code))
        for way, each in found.items():
            wall, processor = (round(statistics.median(column), 3) for column in zip(*each))
            rows.append({"other processes": count, "way": way, "s": wall, "processor s": processor})
    return rows


def without_byte_code(package: str) -> tuple[int, int]:
    """Of an installed package: Python files without byte code for this Python, and all."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is not installed"
    files = list(Path(spec.origin).parent.rglob("*.py"))
    return sum(not os.path.exists(importlib.util.cache_from_source(str(each))) for each in files), len(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    print(f"PYTHONDONTWRITEBYTECODE={os.environ.get('PYTHONDONTWRITEBYTECODE', '')!r}")
    for package in ("torch", "triton"):
        missing, all_files = without_byte_code(package)
        print(f"{package}: {missing} of {all_files} files without byte code")
    print(table(measure(WAYS, times, (0, len(os.sched_getaffinity(0))))))


if __name__ == "__main__":
    main()
