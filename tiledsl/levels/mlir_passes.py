"""What each of Triton's own MLIR passes makes of a kernel, one by one. No GPU is needed."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiledsl.child_processes import ask_module
from tiledsl.codegen.emitted import EmittedKernel
from tiledsl.errors import TileError
from tiledsl.files import write_output
from tiledsl.runtime.target import Target

# MLIR writes "Inliner (inline)" in Triton 3.6 and "InlinerPass: inline{...}" later; names of functions may have spaces.
_HEAD = re.compile(r"// -----// IR Dump Before (\w+)(?:: (.*)| \((.*)\)) \('([\w.]+)' operation(?:: @.+)?\) //----- //")
_LOCATION = re.compile(r" loc\((?:[^()]|\([^()]*\))*\)|^#loc\d* = .*\n", re.MULTILINE)
_NUMBERED = re.compile(r"#loc\d*\b")


@dataclass(frozen=True)
class TritonPass:
    """One run of a pass. name: its class; spec: its name in a pipeline with its options; before, after: the module's
    text without locations, "" for what comes after the last one; changed: whether they differ."""

    name: str
    spec: str
    before: str
    after: str
    changed: bool


def triton_passes(name: str, source: str, kernel: EmittedKernel, target: Target) -> list[TritonPass]:
    """Compile a kernel of a module in a process of its own, in which MLIR prints the module before each pass.

    Raises TileError for a target that compiles nothing, and where the compilation fails.
    """
    if target.kind == "interpret":
        raise TileError(
            "the target 'interpret' compiles nothing, so that Triton runs no passes",
            notes=["name a GPU: target='cuda:90'"],
        )
    with tempfile.TemporaryDirectory(prefix="tiledsl-passes-") as folder:
        asked = {"name": name, "source": source, "kernel": asdict(kernel), "target": str(target), "folder": folder}
        own = {"MLIR_ENABLE_DUMP": "1", "TRITON_ALWAYS_COMPILE": "1", "TRITON_CACHE_DIR": f"{folder}/triton"}
        status, answer, text, _ = ask_module("tiledsl.levels.passes_worker", json.dumps(asked).encode(), None, **own)
    if status != 0 or answer.strip():
        last = answer.decode().strip() or text.strip().rpartition("\n")[2]
        raise TileError(f"{kernel.name} does not compile for {target}: {last}")
    return parsed(text)


def parsed(printed: str) -> list[TritonPass]:
    """The passes of what MLIR has printed. A pass over single functions, which prints those, is left to the pass over
    the module that it is part of."""
    heads = list(_HEAD.finditer(printed))
    whole: list[tuple[str, str, str]] = []
    for number, head in enumerate(heads):
        name, long, short, kind = head.groups()
        if kind != "builtin.module":
            continue
        end = heads[number + 1].start() if number + 1 < len(heads) else len(printed)
        whole.append((name, re.sub(r"\s+", " ", long or short), _module(printed[head.end() : end])))
    found = []
    for (name, spec, before), following in zip(whole, [*whole[1:], ("", "", "")]):
        after = following[2]
        found.append(TritonPass(name, spec, before, after, bool(after) and after != before))
    return found


def _module(text: str) -> str:
    """A module's text without locations, and without what passes print after it."""
    text = re.split(r"^// -----//", text, maxsplit=1, flags=re.MULTILINE)[0]
    while True:
        shorter = _LOCATION.sub("", text)
        if shorter == text:
            break
        text = shorter
    return _NUMBERED.sub("", text).strip() + "\n"


def save_passes(passes: Sequence[TritonPass], folder: str | os.PathLike[str]) -> list[Path]:
    """Write the module before each pass, `<number>[-changed]-<name>.mlir`, and return the paths. The mark says that the
    pass changes what its file has."""
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    width = len(str(len(passes)))
    written = []
    for number, each in enumerate(passes, 1):
        path = where / f"{number:0{width}}{'-changed' if each.changed else ''}-{each.name}.mlir"
        written.append(write_output(path, f"// before {each.spec}\n{each.before}".encode()))
    return written


def passes_of(kernel: Any, name: str = "") -> list[TritonPass]:
    """The passes over a GPU kernel of a program, by default its first one. TileError for one that there is not."""
    if kernel.origin is not None:
        raise TileError(f"{kernel.name} does not run from its source", notes=["ask the kernel from which it was made"])
    names = [each.name for each in kernel.module.kernels]
    if name and name not in names:
        raise TileError(f"{kernel.name} has no GPU kernel {name!r}; it has {', '.join(names)}")
    chosen = kernel.module.kernels[names.index(name) if name else 0]
    return triton_passes(kernel.name, kernel.source, chosen, kernel.target)
