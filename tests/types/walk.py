"""Compiles every entry of the table of element types for every target with several Tritons, without a GPU."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tiledsl
import tiledsl.language as T
from tests.types.entries import Entry, program_text

TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942", "hip:gfx950")
COMPILER = Path(__file__).with_name("compile_sources.py")
_BUNDLE = 12


def lowered(entries: Sequence[Entry], target: str) -> Any:
    """The emitted module of one program of all entries. Raises TileError."""
    text = program_text(list(entries))
    tag = f"<{entries[0].name} and {len(entries) - 1} more>"
    linecache.cache[tag] = (len(text), None, text.splitlines(True), tag)
    space: dict[str, Any] = {"T": T}
    exec(compile(text, tag, "exec"), space)
    return tiledsl.compile(space["main"], target=target).module


def job(module: Any, target: str, folder: Path, name: str) -> list[Any]:
    """What compile_sources.py takes."""
    path = folder / f"{name}.py"
    path.write_text(module.source)
    kernels = [
        {
            "name": each.name, "signature": each.signature, "constexprs": each.constexprs,
            "attrs": [[number, facts] for (number,), facts in each.attrs.items()],
            "options": {"num_warps": each.num_warps, "num_stages": each.num_stages, **each.options},
        }
        for each in module.kernels
    ]  # fmt: skip
    return [str(path), kernels, target]


def compile_jobs(jobs: list[list[Any]], python: str, folder: Path) -> list[str]:
    """What went wrong with each job, "" where nothing did."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRITON_INTERPRET")}
    subprocess.run(
        [python, str(COMPILER), str(folder / "jobs.json"), str(folder / "results.json")], env=environment, check=True
    )
    return list(json.loads((folder / "results.json").read_text()))


def failures(entries: Sequence[Entry], target: str, python: str) -> dict[Entry, str]:
    """The entries that an interpreter's Triton refuses, with its words. All are lowered together in bundles first."""
    found: dict[Entry, str] = {}
    waiting = [list(entries[start : start + _BUNDLE]) for start in range(0, len(entries), _BUNDLE)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while waiting:
            jobs = [job(lowered(each, target), target, folder, f"m{number}") for number, each in enumerate(waiting)]
            results = compile_jobs(jobs, python, folder)
            again = []
            for group, result in zip(waiting, results, strict=True):
                if result and len(group) > 1:
                    pieces = 4 if len(group) > 4 else len(group)
                    size = -(-len(group) // pieces)
                    again += [group[start : start + size] for start in range(0, len(group), size)]
                elif result:
                    found[group[0]] = result
            waiting = again
    return found
