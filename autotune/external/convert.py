"""Files of other projects as tuned-config files, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.external.folder import renamed
from tiledsl.autotuner.external.model import ExternalEntry, ExternalFile
from tiledsl.autotuner.tuned import arguments as of_calls
from tiledsl.autotuner.tuned.entry import TunedEntry, as_text
from tiledsl.autotuner.tuned.file import Default, TunedFile
from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.autotuner.decorator import AutotunedFunction


def to_tuned(
    file: ExternalFile,
    path: str,
    function: AutotunedFunction,
    names: Mapping[str, str],
    further: Mapping[str, Any],
    target: str,
    now: str,
) -> TunedFile:
    """The entries as of a function: names: what arguments and tunables are called there; further: further arguments of
    all entries; target: an architecture, as in the name of a tuned-config file; now: ISO 8601.

    What is for any number becomes the default. Entries that failed are left out. TileError for a configuration that the
    function does not take, and if there is none.
    """
    entries, default = [], None
    gpu = file.target.replace("_", " ") if file.format == "moe" else ""
    for theirs in file.entries:
        if not theirs.works:
            continue
        config = renamed(theirs.config, names)
        reason = of_calls.mismatch_reason(function, config)
        if reason:
            raise TileError(f"{path}: {function.name} does not take {as_text(config)}: it {reason}")
        source = function.tuned_configs.source(frozenset(config))
        if theirs.rule == "any" and (file.format != "t4" or default is None):
            default = Default(config, source, f"imported from {path.rpartition('/')[2]}")
        if theirs.rule == "any":
            continue
        latency = math.inf if theirs.latency_ms is None else theirs.latency_ms
        entries.append(
            TunedEntry(
                {**renamed(theirs.arguments, names), **further}, config, latency,
                "measured" if math.isfinite(latency) else "unknown", source, now, gpu=gpu,
            )
        )  # fmt: skip
    if not entries and default is None:
        raise TileError(f"{path} has no configuration that works")
    result = TunedFile(function.name, target, (), default)
    for entry in entries:
        result = result.with_entry(entry)
    return result


def from_tuned(file: TunedFile, format: str, names: Mapping[str, str], bucket: str = "M") -> list[ExternalFile]:
    """The entries as files of a format: names: what arguments and tunables are called there; bucket: the argument, as
    it is called there, by which such a file tells its entries apart. TileError for what the format cannot carry."""
    rule: Any = {"aiter": "at most", "moe": "nearest", "aiter-csv": "exact", "t4": "exact"}[format]
    groups: dict[str, list[tuple[dict[str, Any], TunedEntry]]] = {}
    for entry in file.entries:
        arguments = renamed(entry.arguments, names)
        if format in ("aiter", "moe") and type(arguments.get(bucket)) is not int:
            raise TileError(f"{file.function}: an entry has no {bucket}, by which {format} tells entries apart")
        rest = {name: value for name, value in arguments.items() if name != bucket}
        key = as_text([rest, entry.gpu]) if format in ("aiter", "moe") else entry.gpu if format == "t4" else ""
        groups.setdefault(key, []).append((arguments, entry))
    files = []
    for pairs in groups.values():
        pairs = sorted(pairs, key=lambda pair: pair[0].get(bucket, 0)) if format in ("aiter", "moe") else pairs
        entries = [
            ExternalEntry(
                _plain(arguments), _plain(renamed(entry.config, names)), rule,
                entry.latency_ms if math.isfinite(entry.latency_ms) else None,
            )
            for arguments, entry in pairs
        ]  # fmt: skip
        if format == "aiter" and file.default is not None:
            entries.append(ExternalEntry({}, _plain(renamed(file.default.config, names)), "any"))
        if format == "aiter" and file.default is None:
            raise TileError(f"{file.function}: aiter's JSON needs a configuration for any M; the file has no default")
        target = pairs[0][1].gpu if format == "moe" else file.target
        if bucket != "M" and format in ("aiter", "moe"):
            entries = [replace(e, arguments=renamed(e.arguments, {bucket: "M"})) for e in entries]
        files.append(ExternalFile(format, file.function, target, tuple(entries)))
    if not files:
        raise TileError(f"{file.function} has no entries")
    return files


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    strange = [name for name, value in values.items() if isinstance(value, (list, dict))]
    if strange:
        raise TileError(f"{strange[0]} is {values[strange[0]]!r}; such files have numbers and texts")
    return dict(values)
