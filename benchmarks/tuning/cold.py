"""Part `cold`: tiledsl, triton.autotune and, where it is installed, tilelang.autotune on the same 40 configurations.

Each in a process of its own with empty caches, one after another; then a second shape in the same process.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tuning import processes
from benchmarks.tuning.processes import ROOT
from benchmarks.tuning.report import Report, machine, read_json, table

GOALS = {"triton": 4.0, "tilelang": 20.0}  # how many times as long as tiledsl the others take, at least
_CACHES = ("TRITON_CACHE_DIR", "TILEDSL_CACHE_DIR", "TILELANG_CACHE_DIR", "CUDA_CACHE_PATH")
_TOUCH = """
import compileall, importlib.util, sys, torch, triton, tiledsl, joblib, subprocess
from triton.backends import backends
from pathlib import Path
for path in Path(triton.__file__).parent.rglob("ptxas*"):
    subprocess.run([path, "--version"], capture_output=True)
found = filter(None, map(importlib.util.find_spec, ("tiledsl", "joblib", "lark", "platformdirs", "filelock", "triton")))
for package in [Path(each.origin).parent for each in found]:  # byte code, as pip makes it where it is not told not to
    for folder in (package, *(each for each in package.iterdir() if each.is_dir())):  # some are links in a checkout
        compileall.compile_dir(folder, quiet=2)
torch.zeros(1, device="cuda" if torch.cuda.is_available() else "cpu").add_(1).item()
"""


def installed(system: str) -> bool:
    """Whether a system can be imported here."""
    return importlib.util.find_spec(system) is not None


def environment(folder: Path) -> dict[str, str]:
    """The environment of a process whose caches are empty folders under `folder`."""
    chosen = {name: value for name, value in with_byte_code().items() if not name.startswith("TILEDSL_")}
    return {**chosen, **{name: str(folder / name.lower()) for name in _CACHES}}


def with_byte_code() -> dict[str, str]:
    """This process's environment, but Python keeps byte code as it does by default: where a machine's image has set
    PYTHONDONTWRITEBYTECODE and its packages came without any, every process compiles all that it imports."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run_system(system: str, small: bool, seconds: float = 300.0) -> dict[str, Any]:
    """What cold_system reports of a system; an `error` where it did not end well. It runs in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="tuning-") as name:
        folder = Path(name)
        out = folder / "report.json"
        command = [sys.executable, "-m", "benchmarks.tuning.cold_system", system, "--out", str(out)]
        error = processes.run([*command, *(["--small"] if small else [])], environment(folder), folder, seconds)
        found = read_json(out)
    return {**found, **({"error": error} if error else {})}


def ratios(systems: dict[str, Any]) -> list[dict[str, Any]]:
    """For each shape the seconds of each system, and how many times tiledsl's they are."""
    ours = systems.get("tiledsl", {}).get("rows", [])
    rows = []
    for number, own in enumerate(ours):
        row: dict[str, Any] = {
            "shape": "x".join(map(str, own["shape"])), "caches": "warm process" if number else "cold",
            "tiledsl_s": own["seconds"],
        }  # fmt: skip
        for name in GOALS:
            theirs = systems.get(name, {}).get("rows", [])
            if len(theirs) > number:
                row[f"{name}_s"] = theirs[number]["seconds"]
                row[f"{name}_times"] = round(theirs[number]["seconds"] / own["seconds"], 2)
        rows.append(row)
    return rows


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The goals, for the cold shape."""
    if not rows:
        return ["cold: tiledsl gave no time"]
    found = []
    for name, goal in GOALS.items():
        times = rows[0].get(f"{name}_times")
        if times is None:
            found.append(f"cold: no time of {name}")
        else:
            word = "reached" if times >= goal else "MISSED"
            found.append(f"cold: {name} takes {times:g} times as long (goal {goal:g}): {word}")
    return found


def run(report: Report, small: bool = False, systems: Sequence[str] = ("tiledsl", "triton", "tilelang")) -> None:
    """Measure, with a row a system as soon as it is there."""
    report.put("machine", machine())
    # Reads compilers and libraries from disk, so that the system that comes first does not pay for it. To import torch
    # leaves byte code of it, too, where it came without.
    error = processes.run([sys.executable, "-c", _TOUCH], with_byte_code(), ROOT, 120.0)
    if error:
        report.put("reading_ahead", error)
    found: dict[str, Any] = {}
    for system in systems:
        found[system] = run_system(system, small) if installed(system) else {"error": "not installed"}
        report.put("systems", found)
    report.put("ratios", ratios(found))
    report.put("verdicts", verdicts(report.entries["ratios"]))


def show(entries: dict[str, Any]) -> str:
    """Tables of what `run` found."""
    parts = [table(entries.get("ratios", []))]
    for name, found in entries.get("systems", {}).items():
        if "error" in found:
            parts.append(f"{name}: {found['error'].strip()}")
        for row in found.get("rows", []):
            shape = "x".join(map(str, row["shape"]))
            parts.append(f"{name} {shape}: {row['seconds']} s, chose {row['config']}, {row['ms']:.4f} ms (do_bench)")
            if "stages_s" in row:
                parts.append(
                    f"  {row['compilations']} compilations of {row['compile_sum_s']} s in all, longest "
                    f"{row['compile_longest_s']} s; {row['statuses']}"
                )
                parts += [f"  {seconds:8.3f} s  {stage}" for stage, seconds in row["stages_s"].items()]
                log = row["events_summary"]
                parts.append(
                    f"  first and last compiled after {log.get('compiled_s')} s, measured after {log.get('ran_s')} s; "
                    f"processor time of compilations {log['cpu_s']} s"
                )
                parts.append("  slowest compilations (number, s, processor s): " + ", ".join(map(str, log["slowest"])))
                parts.append(
                    "  of the whole machine, s: " + ", ".join(f"{k} {v}" for k, v in sorted(row["host_s"].items()))
                )
                parts += [f"  {text}" for text in log["processes"]]
                parts.append("  milliseconds from one measured to the next: " + " ".join(map(str, log["steps_ms"])))
                parts.append("  after s (compiling, compiled and not measured): " + ", ".join(
                    f"{after:g} ({compiling}, {running})" for after, compiling, running in row["timeline"]
                ))  # fmt: skip
    return "\n".join(parts)
