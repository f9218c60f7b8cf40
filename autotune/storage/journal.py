"""Trials as lines of strict JSON: written one by one as they finish, read back with suspicion.

A line names a configuration by its canonical text and gives numbers and messages for it. Nothing in a file becomes a
value of a configuration, a path, or code.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.trial import STATUSES, Trial, value_text
from tiledsl.files import append_lines, open_to_append, read_file, write_file
from tiledsl.strict_json import NONSENSE, json_text, parse, plain

SCHEMA = 2
Record = dict[str, Any]  # a trial as it is written; what reading returns has been checked
_LARGEST_LINE = 1 << 20
_LONGEST_MESSAGE = 20_000

# A trial's fields that are kept; those that compare=False marks belong to the running process.
_KEPT = {each.name: (str(each.type), each.default) for each in fields(Trial) if each.compare}
for _name in ("index", "config", "same_as"):
    del _KEPT[_name]


def encode(trial: Trial) -> Record:
    """A trial as a record. Numbers that JSON does not have become null, values of a configuration text."""
    values = {name: plain(getattr(trial, name)) for name in _KEPT}
    values["message"] = trial.message[:_LONGEST_MESSAGE]
    shown = {name: value if plain(value) is value else value_text(value) for name, value in trial.config.items()}
    return {"schema": SCHEMA, "time": round(time.time(), 6), "key": config_key(trial.config), "config": shown, **values}


def decode(index: int, config: dict[str, Any], record: Mapping[str, Any], timed: bool = True) -> Trial:
    """The trial of a record, with the configuration of the running program. ValueError if the record makes no sense,
    or with `timed` if it works and has no latency."""
    if not isinstance(record, Mapping) or record.get("schema") != SCHEMA or not isinstance(record.get("key"), str):
        raise ValueError(f"not a trial of schema {SCHEMA}")
    number(record["time"])
    trial = Trial(index, config)
    for name, (kind, default) in _KEPT.items():
        value = record.get(name, default)
        if value is not default:
            setattr(trial, name, _checked(name, kind, value))
    if "status" not in record or trial.status == "new":
        raise ValueError("a trial that has not ended")
    if timed and trial.ok and trial.latency is None:
        raise ValueError("ok without a latency")
    return trial


def _checked(name: str, kind: str, value: Any) -> Any:
    if name == "status":
        good = isinstance(value, str) and value in STATUSES
    elif name == "objective":  # which may be below 0
        good = value is None or type(value) in (int, float)
    elif kind == "float | None":
        return number(value)
    else:
        first = kind.partition("[")[0].removesuffix(" | None")
        known = {"str": str, "bool": bool, "int": int, "float": float, "dict": dict, "list": list, "tuple": list}
        expected = known.get(first)
        good = (value is None and kind.endswith("None")) or expected is None or type(value) is expected
        good = good and not (type(value) is int and abs(value) >> 63)
        if good and first == "tuple" and value is not None:
            return tuple(value)
    if not good:
        raise ValueError(f"{name} is {str(value)[:40]!r}")
    return value


def number(value: Any) -> float | None:
    """A finite number from 0, or None. ValueError for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{str(value)[:40]!r} is not a time or error")
    return float(value)


def read_journal(path: Path) -> tuple[dict[str, Record], int]:
    """The trials of a journal by the canonical text of their configuration, the last of each; and how many lines make
    no sense. A last line that was cut short counts as not written. OSError or ValueError if the file cannot be read."""
    *lines, tail = read_file(path).split(b"\n")
    records: dict[str, Record] = {}
    wrong = 0
    for line in [*lines, tail]:
        if not line.strip():
            continue
        try:
            if len(line) > _LARGEST_LINE:
                raise ValueError("a line too long")
            record = parse(line)
            decode(0, {}, record)
        except NONSENSE:
            wrong += line is not tail
            continue
        records.pop(record["key"], None)
        records[record["key"]] = record
    return records, wrong


def line_of(record: Mapping[str, Any]) -> bytes:
    """A record as a line. Bytes beyond ASCII do not occur, so that a cut anywhere leaves valid text."""
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def append(path: Path, line: bytes, sync: bool = False) -> None:
    """Add a line, as append_lines does. `sync`: return when the file is on the disk."""
    with open_to_append(path) as descriptor:
        append_lines(descriptor, line)
        if sync:
            os.fdatasync(descriptor)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """As write_file, strict JSON that people can read."""
    write_file(path, json_text(data))


def write_journal(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replace a journal in one step."""
    write_file(path, b"".join(line_of(record) for record in records))
