"""`tiledsl compile`: what Triton makes of one level of a kernel."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tiledsl.commands.report import give
from tiledsl.errors import TileError
from tiledsl.levels.build import build, unknown_option
from tiledsl.levels.bundle import LevelFile, check_level, open_level
from tiledsl.levels.checks import ALLOWED, checked, facts_of
from tiledsl.levels.record import Record
from tiledsl.runtime.kernel_files import LEVELS
from tiledsl.runtime.resources import Resources
from tiledsl.runtime.target import Target

EMIT = (*LEVELS, "sass", "resources")


def compile_file(file: Path, target: str | None, emit: str, options: Mapping[str, Any]) -> str | bytes:
    """What a level's file becomes; the resources as lines. Raises TileError for what does not fit or compile.

    target: by default what the JSON file beside it says. options: of Triton, before those that the JSON file has.
    """
    if emit not in EMIT:
        raise TileError(f"--emit {emit}: it is one of {', '.join(EMIT)}")
    if file.is_dir():
        raise TileError(f"{file} is a folder", notes=["give one of its files"])
    level = check_level(file.suffix[1:])
    opened = open_level(level, file, file.stem)
    record, where = _record(opened, target, options)
    unknown = unknown_option(options, where)
    if unknown:
        raise TileError(f"--option {unknown}: Triton has no such option for {where}")
    if emit == "resources" and opened.record is None and level not in ("ttir", "ttgir"):
        raise TileError(
            f"{file} does not say how much shared memory it takes",
            notes=["put the JSON file that was saved with it beside it, or emit the sass"],
        )
    compiled = build(opened, record, where)
    if emit == "resources":
        give(resources=asdict(compiled.resources))
        return _lines(compiled.resources)
    if emit not in compiled.asm:
        raise TileError(f"{file} for {where} has no {emit}; it has {', '.join(compiled.asm)}")
    made = compiled.asm[emit]
    if made is None:
        raise TileError(f"{emit} cannot be shown: the tool that makes it is missing")
    return made if isinstance(made, bytes) else str(made)


def _record(opened: LevelFile, target: str | None, options: Mapping[str, Any]) -> tuple[Record, Target]:
    given = opened.record
    said = given.target if target is None and given is not None else None
    if said is None and target is None:
        raise TileError(f"nothing says which GPU {opened.what} is for", notes=["say --target cuda:90, or another one"])
    where = said or Target.parse(str(target))
    if where.kind == "interpret":
        raise TileError("the target 'interpret' compiles nothing", notes=["say --target cuda:90, or another GPU"])
    facts = facts_of(opened.what, opened.level, opened.content, where)
    if given is None:
        warps = {"num_warps": facts.warps} if facts.warps is not None else {}
        given = Record(facts.name or str(opened.path), where, {"shared": 0, "num_warps": 4, **warps}, warps)
    record, remarks = checked(opened.what, opened.level, facts, given, where, ALLOWED)
    for text in remarks:
        print(text, file=sys.stderr)
    return replace(record, options={**record.options, **options}), where


def _lines(resources: Resources) -> str:
    blocks, limiting = resources.occupancy_limit
    shown = {
        "shared memory": f"{resources.shared_bytes} bytes",
        "registers": f"{resources.registers} a thread",
        "spills": f"{resources.spills} bytes a thread",
        "stack": f"{resources.stack} bytes a thread",
        "warps": f"{resources.num_warps} a block",
        "occupancy": f"{blocks} blocks a multiprocessor, limited by {limiting}",
    }
    return "\n".join(f"{name:14} {text}" for name, text in shown.items())
