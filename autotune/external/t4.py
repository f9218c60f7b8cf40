"""T4, the results of auto-tuners as Kernel Tuner and others exchange them (schema 1.0.0): every trial, in JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiledsl.autotuner.external.model import (
    ExternalEntry,
    ExternalFile,
    Format,
    config_at,
    damaged,
    json_object,
)
from tiledsl.autotuner.storage.journal import number

_SCHEMA = "1.0.0"
_MILLISECONDS = {"ms": 1.0, "milliseconds": 1.0, "s": 1e3, "seconds": 1e3, "us": 1e-3, "microseconds": 1e-3, "": 1.0}


def _read(path: Path) -> ExternalFile:
    data = json_object(path)
    if not isinstance(data.get("results"), list):
        raise damaged(path, "results", "it is missing, or no list")
    entries = []
    for place, result in enumerate(data["results"]):
        key = f"results[{place}]"
        if not isinstance(result, dict):
            raise damaged(path, key, "it is no object")
        config = config_at(path, f"{key}.configuration", result.get("configuration"))
        entries.append(ExternalEntry({}, config, "any", _latency(path, key, result), {"result": result}))
    rest = {name: value for name, value in data.items() if name != "results"}
    return ExternalFile("t4", path.stem, "", tuple(entries), rest=rest)


def _latency(path: Path, key: str, result: dict[str, Any]) -> float | None:
    if result.get("invalidity", "correct") != "correct":
        return None
    names = result.get("objectives") or ["time"]
    for place, measured in enumerate(result.get("measurements") or []):
        where = f"{key}.measurements[{place}]"
        if not isinstance(measured, dict) or "name" not in measured:
            raise damaged(path, where, "it is no measurement with a name")
        if measured["name"] != names[0]:
            continue
        unit = str(measured.get("unit", ""))
        try:
            value = number(measured.get("value"))
        except ValueError:
            value = None
        if value is None or value <= 0 or unit not in _MILLISECONDS:
            raise damaged(path, f"{where}.value", f"{measured.get('value')!r} {unit} is no time")
        return value * _MILLISECONDS[unit]
    return None


def _write(file: ExternalFile) -> bytes:
    results = []
    for entry in file.entries:
        result = entry.rest.get("result")
        if result is None:
            works = entry.latency_ms is not None
            result = {
                "configuration": entry.config,
                "invalidity": "correct" if works else "runtime",
                "correctness": int(works),
                "measurements": [{"name": "time", "value": entry.latency_ms, "unit": "ms"}] if works else [],
                "objectives": ["time"],
            }
            if entry.arguments:
                result["arguments"] = entry.arguments
        results.append(result)
    whole = {"schema_version": _SCHEMA, **file.rest, "results": results}
    return (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode()


T4 = Format(
    "t4", lambda path: path.name.endswith(".t4.json"), _read, _write,
    lambda file: f"{file.kernel.removesuffix('.t4')}.t4.json",
)  # fmt: skip
