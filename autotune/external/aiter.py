"""aiter's files: JSON by buckets of M (`<arch>-<kernel>-N=..-K=...json`), and CSV with a problem in each line."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

from tiledsl.autotuner.external.model import (
    ExternalEntry,
    ExternalFile,
    Format,
    Rule,
    config_at,
    content_of,
    damaged,
    json_object,
    whole_number,
)
from tiledsl.autotuner.tuned.shapes import parse_value
from tiledsl.errors import TileError
from tiledsl.tables import csv_text

_NAME = re.compile(r"(?P<arch>gfx\w+|sm_\w+)-(?P<kernel>.+?)(?P<sizes>(-[A-Z]=\d+)*)")
_BUCKET = re.compile(r"M_(LEQ|GEQ)_(\d+)")
# Of an older schema: the largest M that each is for (README of the tuning scripts), None: all that are larger.
_OLDER = {"small": 31, "medium_M32": 32, "medium_M64": 64, "medium_M128": 128, "large": 256, "xlarge": None}
_ARGUMENTS = {
    "gfx", "cu_num", "B", "M", "N", "K", "E", "token", "model_dim", "inter_dim", "expert", "topk", "act_type", "dtype",
    "q_dtype_a", "q_dtype_w", "q_type", "use_g1u1", "doweight_stage1", "bias", "outdtype", "scaleAB", "bpreshuffle",
}  # fmt: skip
_FIGURES = ("us", "tflops", "bw", "errRatio", "err1", "err2", "us1", "us2")


def _read_json(path: Path) -> ExternalFile:
    matched = _NAME.fullmatch(path.stem)
    sizes = {} if matched is None else dict(re.findall(r"-([A-Z])=(\d+)", matched["sizes"]))
    arguments = {name: int(value) for name, value in sizes.items()}
    entries = []
    for key, value in json_object(path).items():
        config = config_at(path, key, value)
        bucket = _BUCKET.fullmatch(key)
        rule: Rule
        if key == "any":
            rule, own = "any", {}
        elif bucket is not None:
            rule = "at most" if bucket[1] == "LEQ" else "at least"
            own = {"M": whole_number(path, key, bucket[2])}
        elif key in _OLDER:
            most = _OLDER[key]
            rule, own = ("at least", {"M": 257}) if most is None else ("at most", {"M": most})
        else:
            raise damaged(path, key, "it is no bucket: M_LEQ_<number>, M_GEQ_<number>, any, or small to xlarge")
        entries.append(ExternalEntry({**own, **arguments}, config, rule, rest={"key": key}))
    kernel = path.stem if matched is None else matched["kernel"]
    return ExternalFile("aiter", kernel, "" if matched is None else matched["arch"], tuple(entries))


def _write_json(file: ExternalFile) -> bytes:
    written: dict[str, Any] = {}
    others = {json.dumps({n: v for n, v in entry.arguments.items() if n != "M"}) for entry in file.entries if entry.rule != "any"}  # fmt: skip # noqa: E501
    if len(others) > 1:
        raise TileError(f"aiter's JSON is of one N and K a file; {file.kernel} has {len(others)} of them")
    for entry in file.entries:
        key = entry.rest.get("key") or _key(entry)
        if key in written:
            raise TileError(f"aiter's JSON has one configuration for {key}; {file.kernel} has several")
        written[key] = entry.config
    return (json.dumps(written, indent=2, allow_nan=False) + "\n").encode()


def _key(entry: ExternalEntry) -> str:
    if entry.rule == "any":
        return "any"
    return f"M_{'GEQ' if entry.rule == 'at least' else 'LEQ'}_{entry.arguments['M']}"


def _json_name(file: ExternalFile) -> str:
    first = next((each for each in file.entries if each.rule != "any"), None)
    given = {} if first is None else first.arguments
    strange = [name for name in given if name not in ("M", "N", "K", "B")]
    if strange:
        raise TileError(f"the names of aiter's files say B, N and K; {file.kernel} has the argument {strange[0]!r}")
    return f"{file.target}-{file.kernel}{''.join(f'-{n}={given[n]}' for n in 'BNK' if n in given)}.json"


def _read_csv(path: Path) -> ExternalFile:
    try:
        rows = list(csv.reader(io.StringIO(content_of(path).decode("utf-8-sig")), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise damaged(path, "", f"not CSV: {error}") from None
    if not rows or "us" not in rows[0] or not _ARGUMENTS & set(rows[0]):
        raise damaged(path, "line 1", "it does not name the columns, with M, N, K and us among them")
    names, entries = rows[0], []
    if len(set(names)) != len(names):
        raise damaged(path, "line 1", "it names a column twice")
    for number, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(row) != len(names):
            raise damaged(path, f"line {number}", f"it has {len(row)} values for {len(names)} columns")
        cells = dict(zip(names, row))
        try:
            microseconds = float(cells["us"])
        except ValueError:
            raise damaged(path, f"line {number}, us", f"{cells['us'][:40]!r} is no number") from None
        works = math.isfinite(microseconds) and microseconds > 0
        arguments = {name: parse_value(cells[name]) for name in names if name in _ARGUMENTS}
        for name in ("M", "N", "K"):
            if name in arguments and (type(arguments[name]) is not int or arguments[name] < 1):
                raise damaged(path, f"line {number}, {name}", f"{cells[name][:40]!r} is no whole number from 1 on")
        config = {name: parse_value(cells[name]) for name in names if name not in _ARGUMENTS and name not in _FIGURES}
        entries.append(
            ExternalEntry(arguments, config, "exact", microseconds / 1e3 if works else None, {"cells": cells})
        )
    return ExternalFile("aiter-csv", path.stem, "", tuple(entries), rest={"columns": names})


def _write_csv(file: ExternalFile) -> bytes:
    columns = file.rest.get("columns") or list(
        dict.fromkeys([
            *(name for entry in file.entries for name in entry.arguments),
            *(name for entry in file.entries for name in entry.config), "us",
        ])
    )  # fmt: skip
    rows = [columns]
    for entry in file.entries:
        if entry.rule != "exact":
            raise TileError(f"aiter's CSV is of single problems; {file.kernel} has one for {entry.rule}")
        cells = entry.rest.get("cells")
        if cells is None:
            us = "" if entry.latency_ms is None else f"{entry.latency_ms * 1e3:.6g}"
            cells = {**entry.arguments, **entry.config, "us": us}
        rows.append([cells.get(name) for name in columns])
    return csv_text(rows).encode()


JSON = Format(
    "aiter", lambda path: path.suffix == ".json" and _NAME.fullmatch(path.stem) is not None, _read_json, _write_json,
    _json_name,
)  # fmt: skip
CSV = Format("aiter-csv", lambda path: path.suffix == ".csv", _read_csv, _write_csv, lambda file: f"{file.kernel}.csv")
