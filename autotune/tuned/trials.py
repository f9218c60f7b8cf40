"""Every configuration that was tried offline, beside the winners: what a robust configuration is chosen from.

A line of strict JSON for each tuning of one call's arguments, added when it ends; the last one for the same arguments
and GPU counts. Run time does not need the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl import strict_json
from tiledsl.autotuner.storage import journal
from tiledsl.autotuner.storage.comparison import ConfigComparison
from tiledsl.autotuner.trial import Trial
from tiledsl.autotuner.tuned.arguments import as_json
from tiledsl.autotuner.tuned.entry import TunedEntry, arguments_text, as_text, order_of
from tiledsl.autotuner.tuned.file import SCHEMA, Default, TunedFile, most_common
from tiledsl.errors import TileError
from tiledsl.files import read_file, write_file, writing


@dataclass(frozen=True)
class Tried:
    """The latencies of one entry's configurations, in milliseconds, by the configuration's text; those that work."""

    arguments: dict[str, Any]
    gpu: str
    source: str
    latencies: dict[str, float]


def record(path: Path, entry: TunedEntry, trials: Sequence[Trial]) -> None:
    """Add the trials of a tuning to a file. TileError if it cannot be written."""
    tried = [[_json(trial.config), trial.status, trial.latency if trial.ok else None] for trial in trials]
    line = {
        "schema": SCHEMA,
        "arguments": entry.arguments,
        "gpu": entry.gpu,
        "latency_kind": entry.latency_kind,
        "source": entry.source,
        "trials": tried,
    }
    with writing(path):
        journal.append(path, journal.line_of(line))


def _json(config: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, value in config.items():
        try:
            values[name] = as_json(value)
        except TileError:
            values[name] = strict_json.plain(value)
    return values


def join(sources: Sequence[Path], into: Path) -> None:
    """Write the tunings of several files, the last ones counting, to one. TileError if it cannot be written."""
    lines: dict[tuple[str, str, str], bytes] = {}
    for source in sources:
        lines.update((identity, line) for identity, _, line in _lines(source))
    if lines:
        with writing(into):
            write_file(into, b"".join(line + b"\n" for line in lines.values()), mode=0o644)


def read(path: Path) -> dict[tuple[str, str, str], Tried]:
    """The tunings of a file by arguments, GPU and source, as texts. Lines that make no sense are left out, as is a last
    one that was cut short; there are none if the file cannot be read."""
    return {identity: each for identity, each, _ in _lines(path)}


def _lines(path: Path) -> Iterator[tuple[tuple[str, str, str], Tried, bytes]]:
    """The tunings of a file, each with what identifies it and its line."""
    with contextlib.suppress(OSError, ValueError):
        for line in filter(None, read_file(path).split(b"\n")):
            with contextlib.suppress(*strict_json.NONSENSE):
                each = _tried(strict_json.parse(line))
                yield (as_text(each.arguments), each.gpu, each.source), each, line


def _tried(data: Any) -> Tried:
    if data["schema"] != SCHEMA or not isinstance(data["arguments"], dict):
        raise ValueError("not a tuning")
    latencies = {as_text(config): journal.number(latency) for config, _, latency in data["trials"]}
    known = {config: latency for config, latency in latencies.items() if latency}
    return Tried(data["arguments"], str(data["gpu"]), str(data["source"]), known)


def of_entry(tried: Mapping[tuple[str, str, str], Tried], entry: TunedEntry) -> Tried | None:
    """The tuning that an entry comes from."""
    return tried.get((as_text(entry.arguments), entry.gpu, entry.source))


def choose_default(file: TunedFile, tried: Mapping[tuple[str, str, str], Tried]) -> Default | None:
    """The most robust of the entries' configurations: it works for most arguments, and its slowdown against the best
    has the smallest geometric mean; of equally good ones that of the largest arguments. The most common one where some
    entries' trials are not known."""
    rows = compared(file, tried).rows
    if any(of_entry(tried, entry) is None for entry in file.entries) or not rows:
        return most_common(file)
    _, row = min(enumerate(rows), key=lambda each: (*each[1].merit, -each[0]))
    entry = next(entry for entry in file.entries if as_text(entry.config) == as_text(row.config))
    why = f"works for {row.known} of {len(file.entries)} entries, {row.mean:.3f} of the best's time in geometric mean"
    return Default(dict(entry.config), entry.source, why)


def compared(file: TunedFile, tried: Mapping[tuple[str, str, str], Tried]) -> ConfigComparison:
    """The winners' configurations against entries, relative to the winner's latency; without trials only an entry's own
    configuration is known."""
    entries = sorted(file.entries, key=order_of)
    shared = []
    for text, config in {as_text(entry.config): entry.config for entry in entries}.items():
        times: list[float | None] = []
        for entry in entries:
            known = of_entry(tried, entry)
            latency = entry.latency_ms if as_text(entry.config) == text else None
            if latency is None and known is not None:
                latency = known.latencies.get(text)
            times.append(latency)
        shared.append((config, times))
    problems = [arguments_text(entry.arguments) for entry in entries]
    return ConfigComparison.of(problems, [entry.latency_ms for entry in entries], shared)
