"""Lowers every entry of the table of element types for every target, and compiles it with several Tritons.

No GPU is needed: `python -m tests.legality`, or `make types`.
"""

from __future__ import annotations

import json
import linecache
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tiledsl
import tiledsl.language as T
from tests.legality.entries import Entry, ir_text, program_text
from tests.support.compile_emitted import described, environment
from tiledsl.errors import TileError
from tiledsl.ir.parser import parse_op
from tiledsl.runtime.lowering import lower
from tiledsl.runtime.target import Target

TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942", "hip:gfx950")
_BUNDLE = 40  # entries that are compiled as one program, which saves the start of each


def lowered(entries: Sequence[Entry], target: str) -> Any:
    """The emitted module of one program of all entries. Raises TileError."""
    if entries[0].is_ir:
        return lower(lambda: parse_op(ir_text(entries[0])), Target.parse(target), {}).module
    text, tag = program_text(list(entries)), f"<{entries[0].name}>"
    linecache.cache[tag] = (len(text), None, text.splitlines(True), tag)
    space: dict[str, Any] = {"T": T}
    exec(compile(text, tag, "exec"), space)
    return tiledsl.compile(space["main"], target=target).module


def disagreement(entry: Entry, target: str) -> str:
    """How lowering an entry differs from what the table says; "" if it does not."""
    parsed = Target.parse(target)
    refused = entry.refusal(parsed.kind, parsed.arch)
    try:
        lowered([entry], target)
    except TileError as error:
        if refused is None:
            return f"the table has it, and it is refused: {error.message}"
        inside = entry.is_ir or (error.loc is not None and error.loc.line >= (4 if refused[0] != "value" else 2))
        return "" if inside else f"refused at {error.loc}: {error.message}"
    return "" if refused is None else f"the table refuses {refused}, and it is lowered"


def disagreements(entries: Sequence[Entry], target: str) -> dict[str, str]:
    """How lowering differs from the table, by the entry's name. What is legal is lowered several at once."""
    found: dict[str, str] = {}
    legal = accepted(entries, target)
    for group in _bundles(legal):
        try:
            lowered(group, target)
        except TileError:
            found |= {entry.name: disagreement(entry, target) for entry in group}
    names = {entry.name for entry in legal}
    found |= {entry.name: disagreement(entry, target) for entry in entries if entry.name not in names}
    return {name: text for name, text in found.items() if text}


def accepted(entries: Sequence[Entry], target: str) -> list[Entry]:
    parsed = Target.parse(target)
    return [entry for entry in entries if entry.refusal(parsed.kind, parsed.arch) is None]


def _bundles(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries that go into one program: products of the same operands together, those of the IR alone."""
    alike: dict[object, list[Entry]] = {}
    for entry in entries:
        alike.setdefault(entry if entry.is_ir else entry.pair, []).append(entry)
    return [each[start : start + _BUNDLE] for each in alike.values() for start in range(0, len(each), _BUNDLE)]


def _job(module: Any, target: str, folder: Path, name: str) -> list[Any]:
    """What compile_sources.py takes."""
    path = folder / f"{name}.py"
    path.write_text(module.source)
    return [str(path), [described(each) for each in module.kernels], target]


def _compile(jobs: list[list[Any]], python: str, folder: Path, last: str) -> list[str]:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [
        python,
        "-m",
        "tests.legality.compile_sources",
        str(folder / "jobs.json"),
        str(folder / "results.json"),
        last,
    ]
    subprocess.run(command, env=environment(), check=True)
    return list(json.loads((folder / "results.json").read_text()))


def failures(entries: Sequence[Entry], target: str, python: str, last: str = "") -> dict[str, str]:
    """Names of the entries that an interpreter's Triton refuses, with its words.

    Several are compiled as one program, and one by one only where that fails. `last` is the stage to stop behind; ""
    for the one before assembling.
    """
    found: dict[str, str] = {}
    waiting = _bundles(entries)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while waiting:
            jobs = [_job(lowered(each, target), target, folder, f"m{number}") for number, each in enumerate(waiting)]
            results = _compile(jobs, python, folder, last)
            again = []
            for group, result in zip(waiting, results, strict=True):
                if result and len(group) > 1:
                    size = -(-len(group) // 4)
                    again += [group[start : start + size] for start in range(0, len(group), size)]
                elif result:
                    found[group[0].name] = result
            waiting = again
    return found
