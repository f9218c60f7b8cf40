"""Lowers every entry of the table of element types for every target, and compiles it with several Tritons.

No GPU is needed: `python -m tests.legality`, or `make types`.
"""

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
from tests.legality.entries import Entry, ir_text, program_text
from tiledsl.errors import TileError
from tiledsl.ir.parser import parse_op
from tiledsl.runtime.lowering import lower
from tiledsl.runtime.target import Target

TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942", "hip:gfx950")
COMPILER = Path(__file__).with_name("compile_sources.py")
_BUNDLE = 12  # entries that are compiled as one program, which saves the start of each
_BUNDLED_PRODUCTS = 3


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


def accepted(entries: Sequence[Entry], target: str) -> list[Entry]:
    parsed = Target.parse(target)
    return [entry for entry in entries if entry.refusal(parsed.kind, parsed.arch) is None]


def _job(module: Any, target: str, folder: Path, name: str) -> list[Any]:
    """What compile_sources.py takes."""
    path = folder / f"{name}.py"
    path.write_text(module.source)
    kernels = [
        {
            "name": each.name,
            "signature": each.signature,
            "constexprs": each.constexprs,
            "attrs": [[number, facts] for (number,), facts in each.attrs.items()],
            "options": {"num_warps": each.num_warps, "num_stages": each.num_stages, **each.options},
        }
        for each in module.kernels
    ]
    return [str(path), kernels, target]


def _compile(jobs: list[list[Any]], python: str, folder: Path, last: str) -> list[str]:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRITON_INTERPRET")}
    command = [python, str(COMPILER), str(folder / "jobs.json"), str(folder / "results.json"), last]
    subprocess.run(command, env=environment, check=True)
    return list(json.loads((folder / "results.json").read_text()))


def failures(entries: Sequence[Entry], target: str, python: str, last: str = "") -> dict[str, str]:
    """Names of the entries that an interpreter's Triton refuses, with its words.

    Several are compiled as one program, and one by one only where that fails. `last` is the stage to stop behind; ""
    for the one before assembling.
    """
    found: dict[str, str] = {}
    sizes = [1 if each.is_ir else _BUNDLED_PRODUCTS if each.name.startswith("gemm") else _BUNDLE for each in entries]
    waiting = []
    for size in set(sizes):
        alike = [entry for entry, own in zip(entries, sizes, strict=True) if own == size]
        waiting += [alike[start : start + size] for start in range(0, len(alike), size)]
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
