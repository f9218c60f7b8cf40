"""`python -m tests.legality [TARGETS [PYTHONS [NAMES]]]`: every entry of the table of element types, compiled.

TARGETS and PYTHONS are lists with commas: "cuda:90,hip:gfx942", and interpreters that have a Triton (this one counts as
"newest"); "" stands for all. NAMES is a regular expression that entries' names begin with. The exit status is 1 if
lowering or some Triton disagrees with the table.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

from tests.legality.entries import every
from tests.legality.walk import TARGETS, accepted, disagreements, failures


def _version(python: str) -> str:
    command = [python, "-c", "from importlib.metadata import version; print(version('triton'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main(targets: str = "", pythons: str = "", names: str = "") -> int:
    entries, wrong = [entry for entry in every() if re.match(names, entry.name)], 0
    chosen = [sys.executable, *filter(None, [os.environ.get("TILEDSL_TEST_TRITON36")])]
    if pythons:
        chosen = [sys.executable if each == "newest" else each for each in pythons.split(",")]
    for target in filter(None, targets.split(",")) if targets else TARGETS:
        start = time.perf_counter()
        differ = disagreements(entries, target)
        there = [entry for entry in accepted(entries, target) if entry.name not in differ]
        took = time.perf_counter() - start
        print(f"{target}: {len(entries)} entries, {len(there)} legal, {len(differ)} differ, {took:.0f} s", flush=True)
        for name, text in differ.items():
            print(f"  {name}: {text}")
        wrong += len(differ)
        for python in chosen:
            start = time.perf_counter()
            refused = failures(there, target, python)
            took = time.perf_counter() - start
            print(
                f"{target}: Triton {_version(python)} refuses {len(refused)} of {len(there)}, {took:.0f} s", flush=True
            )
            for name, text in refused.items():
                print(f"  {name}: {text}")
            wrong += len(refused)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
