"""The file of results: one for each GPU, rows replaced as they are measured again."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
SCHEMA = 1
_ROW_KEYS = {
    "family": str, "case": str, "tags": list, "unit": str, "operations": (int, float), "bytes": (int, float),
    "date": str, "candidates": list, "ratios": dict,
}  # fmt: skip
_STATUSES = ("ok", "wrong", "missing", "failed")


class BadResults(Exception):
    """A file is not what `validate` describes."""


def path_for(gpu: str, kind: str = "suite") -> Path:
    """Where the last results of a GPU lie."""
    return RESULTS / f"{kind}-{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}.json"


def empty() -> dict[str, Any]:
    """Results without rows."""
    return {"schema": SCHEMA, "runs": {}, "rows": []}


def load(path: Path) -> dict[str, Any]:
    """The results in a file, or empty ones if there is none. BadResults if it makes no sense."""
    if not path.exists():
        return empty()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadResults(f"{path}: {error}") from error
    validate(data, str(path))
    return data  # type: ignore[no-any-return]


def save(path: Path, data: Mapping[str, Any]) -> None:
    """Write results, replacing the file in one step."""
    validate(data, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False, encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
    os.replace(file.name, path)


def name_of(row: Mapping[str, Any]) -> str:
    """Family and case."""
    return f"{row['family']}: {row['case']}"


def merge(data: dict[str, Any], run: str, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Put rows of a run into the results, in place of older ones of the same name; forget runs without rows."""
    fresh = {name_of(row): {**row, "run": run} for row in rows}
    data["rows"] = [fresh.pop(name_of(row), row) for row in data["rows"]] + list(fresh.values())
    data["runs"][run] = dict(about)
    used = {row["run"] for row in data["rows"]}
    data["runs"] = {key: value for key, value in data["runs"].items() if key in used}


def merge_file(data: dict[str, Any], path: Path) -> None:
    """Put the rows of another file into the results. FileNotFoundError if there is none."""
    if not path.exists():
        raise FileNotFoundError(f"no results in {path}")
    other = load(path)
    for run, about in other["runs"].items():
        merge(data, run, about, [row for row in other["rows"] if row["run"] == run])


def validate(data: Any, where: str = "results") -> None:
    """BadResults unless the value is a dict of schema, runs (versions, date, ceilings by run) and rows."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BadResults(f"{where}: not results of schema {SCHEMA}")
    for row in data.get("rows", ()):
        for key, kind in _ROW_KEYS.items():
            if not isinstance(row.get(key), kind):
                raise BadResults(f"{where}: {row.get('family')}: {row.get('case')} has no proper {key!r}")
        if row.get("run") not in data["runs"]:
            raise BadResults(f"{where}: {name_of(row)} is of a run {row.get('run')!r} that is not described")
        for entry in row["candidates"]:
            if entry.get("status") not in _STATUSES or not isinstance(entry.get("kind"), str):
                raise BadResults(f"{where}: {name_of(row)} has a candidate without status: {entry}")
            timed = [regime for regime in ("steady", "burst") if regime in entry]
            if entry["status"] != "ok" and timed:
                raise BadResults(f"{where}: {name_of(row)}: {entry['kind']} is {entry['status']} and has times")
            for regime in timed:
                if not 0 < entry[regime]["min"] <= entry[regime]["median"] <= entry[regime]["max"]:
                    raise BadResults(f"{where}: {name_of(row)}: {entry['kind']} has impossible times")
