"""Tuning results on disk: one folder for each kernel and key, with key.json and best.json.

Nothing read from disk is executed or used as a value of a configuration: a file names configurations of the running
program by their text, and gives numbers and messages for them.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl.autotuner.fingerprint import digest
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.trial import STATUSES, Trial

SCHEMA = 1
_LARGEST_FILE = 64 << 20
_NUMBERS = ("latency", "max_error", "mismatched_ratio", "compile_seconds")
_log = logging.getLogger("tiledsl")


@dataclass(frozen=True)
class Key:
    """What a remembered result depends on, by name. The list of configurations is not part of it."""

    kernel: str
    fields: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """24 hexadecimal digits."""
        return digest(json.dumps(self.fields, sort_keys=True))[:24]

    def folder(self, root: Path) -> Path:
        name = re.sub(r"\W", "_", self.kernel)[:80] or "kernel"
        return root / "autotune" / name / self.digest


@dataclass
class Remembered:
    """What a best.json says about the configurations of this run."""

    trials: list[Trial]
    latency_kind: str
    ref_latency: float | None


def load(root: Path, key: Key, configs: Sequence[dict[str, Any]]) -> Remembered | None:
    """What is remembered for all of these configurations; None if there is nothing, or not all of them are there.

    A file that cannot be read or makes no sense counts as nothing, with a warning.
    """
    path = key.folder(root) / "best.json"
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError("too large")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("autotune: cannot read %s (%s); tuning again", path, error)
        return None
    try:
        return _parse(text, configs)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        _log.warning("autotune: %s makes no sense (%s: %s); tuning again", path, type(error).__name__, error)
        return None


def _parse(text: str, configs: Sequence[dict[str, Any]]) -> Remembered | None:
    data = json.loads(text, parse_constant=_no_constant)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"not schema {SCHEMA}")
    kind, ref_latency = data["latency_kind"], _number(data["ref_latency"])
    if kind not in ("measured", "estimated") or not isinstance(data["trials"], list):
        raise ValueError("unknown latency_kind, or no list of trials")
    stored = {entry["key"]: entry for entry in data["trials"]}
    trials = []
    for index, config in enumerate(configs):
        entry = stored.get(config_key(config))
        if entry is None:
            return None
        trials.append(_trial(index, config, entry))
    return Remembered(trials, kind, ref_latency)


def _trial(index: int, config: dict[str, Any], entry: Mapping[str, Any]) -> Trial:
    status, message, verified, source_hash = (entry[name] for name in ("status", "message", "verified", "source_hash"))
    if status not in STATUSES or not isinstance(message, str) or not isinstance(verified, bool):
        raise ValueError(f"trial {index}: status, message or verified")
    if not isinstance(source_hash, str) or not isinstance(entry["resources"], (dict, type(None))):
        raise ValueError(f"trial {index}: source_hash or resources")
    trial = Trial(index, config, status, message, verified=verified, source_hash=source_hash)
    trial.resources = entry["resources"]
    for name in _NUMBERS:
        setattr(trial, name, _number(entry[name]))
    if trial.ok and trial.latency is None:
        raise ValueError(f"trial {index}: ok without a latency")
    return trial


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no time or error")
    return float(value)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} in a file")


def store(root: Path, key: Key, remembered: Remembered) -> None:
    """Write key.json and best.json, each in one step. A folder that cannot be written costs a warning, no more."""
    folder = key.folder(root)
    trials = [_entry(trial) for trial in remembered.trials]
    best = {
        "schema": SCHEMA,
        "latency_kind": remembered.latency_kind,
        "ref_latency": remembered.ref_latency,
        "trials": trials,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "key.json", {"schema": SCHEMA, "kernel": key.kernel, **key.fields})
        _write(folder / "best.json", best)
    except OSError as error:
        _log.warning("autotune: the result cannot be kept in %s (%s)", folder, error)


def _entry(trial: Trial) -> dict[str, Any]:
    names = ("status", "message", "verified", "source_hash", "resources", *_NUMBERS)
    values = {name: getattr(trial, name) for name in names}
    for name in _NUMBERS:  # an error may be infinite, and JSON has no such number
        if values[name] is not None and not math.isfinite(values[name]):
            values[name] = None
    shown = {name: value if _is_plain(value) else repr(value) for name, value in trial.config.items()}
    return {"key": config_key(trial.config), "config": shown, **values}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))


def _write(path: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(data, indent=1, allow_nan=False)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
