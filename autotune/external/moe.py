"""Fused MoE configurations of vLLM and SGLang: `E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tiledsl.autotuner.external.model import (
    ExternalEntry,
    ExternalFile,
    Format,
    config_at,
    damaged,
    json_object,
    whole_number,
)
from tiledsl.autotuner.tuned.shapes import parse_value
from tiledsl.errors import TileError

_PARTS = re.compile(r",(?![^\[]*\])")
_SPOKEN = "triton_version"  # a field beside the batch sizes, of newer files


def _read(path: Path) -> ExternalFile:
    problem: dict[str, Any] = {}
    for part in _PARTS.split(path.stem):
        name, sign, value = part.partition("=")
        if not sign or not name.isidentifier() or name in problem:
            raise damaged(path, part, "the file's name is not E=...,N=...,device_name=...")
        problem[name] = value if name in ("device_name", "dtype") else parse_value(value)
    for name in ("E", "N"):
        if type(problem.get(name)) is not int or problem[name] < 1:
            raise damaged(path, name, f"the file's name says {problem.get(name)!r}, no whole number from 1 on")
    gpu = problem.pop("device_name", "")
    entries, spoken = [], {}
    for key, value in json_object(path).items():
        if key == _SPOKEN:
            spoken[key] = value
            continue
        number = whole_number(path, key, key)
        entries.append(ExternalEntry({"M": number, **problem}, config_at(path, key, value), "nearest"))
    return ExternalFile("moe", "fused_moe", gpu, tuple(entries), rest={**spoken, "stem": path.stem})


def _write(file: ExternalFile) -> bytes:
    written: dict[str, Any] = {name: value for name, value in file.rest.items() if name == _SPOKEN}
    for entry in file.entries:
        if entry.rule == "any":
            raise TileError("vLLM's and SGLang's files have no configuration for any M; leave the default out")
        key = str(entry.arguments["M"])
        if key in written:
            raise TileError(f"vLLM's and SGLang's files have one configuration for M={key}; {file.kernel} has several")
        written[key] = entry.config
    return (json.dumps(written, indent=4, allow_nan=False) + "\n").encode()


def _name(file: ExternalFile) -> str:
    if "stem" in file.rest:
        return f"{file.rest['stem']}.json"
    given = dict(file.entries[0].arguments)
    if not {"E", "N", "M"} <= given.keys() or not file.target:
        raise TileError(
            f"the names of vLLM's and SGLang's files say E, N and the GPU's name; {file.kernel} has "
            f"{', '.join(given)} on {file.target or 'no GPU'}"
        )
    del given["M"]
    parts = [f"E={given.pop('E')}", f"N={given.pop('N')}", f"device_name={file.target.replace(' ', '_')}"]
    parts += [f"{name}={str(value).replace(' ', '')}" for name, value in given.items()]
    return f"{','.join(parts)}.json"


MOE = Format(
    "moe", lambda path: path.suffix == ".json" and path.name.startswith("E=") and ",N=" in path.name,
    _read, _write, _name,
)  # fmt: skip
