"""Every configuration that was tried offline, beside the winners: what a robust configuration is chosen from.

A line of strict JSON for each tuning of one call's arguments, added when it ends; the last one for the same arguments
and GPU counts. Run time does not need the file.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl.autotuner.storage import journal
from tiledsl.autotuner.trial import Trial, config_text
from tiledsl.autotuner.tuned.arguments import as_json
from tiledsl.autotuner.tuned.entry import TunedEntry, arguments_text, as_text, order_of
from tiledsl.autotuner.tuned.file import SCHEMA, Default, TunedFile, most_common
from tiledsl.errors import TileError
from tiledsl.files import read_file, write_file


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
    try:
        journal.append(path, json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    except OSError as error:
        raise TileError(f"{path} cannot be written: {error.strerror or error}") from error


def _json(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in config.items():
        try:
            found[name] = as_json(value)
        except TileError:
            found[name] = journal.plain(value)
    return found


def join(sources: Sequence[Path], into: Path) -> None:
    """Write the tunings of several files, the last ones counting, to one. TileError if it cannot be written."""
    lines: dict[tuple[str, str, str], bytes] = {}
    for source in sources:
        with contextlib.suppress(OSError, ValueError):
            for line in filter(None, read_file(source).split(b"\n")):
                with contextlib.suppress(*journal.NONSENSE):
                    each = _tried(journal.parse(line))
                    lines[(as_text(each.arguments), each.gpu, each.source)] = line
    if not lines:
        return
    try:
        write_file(into, b"".join(line + b"\n" for line in lines.values()), mode=0o644)
    except OSError as error:
        raise TileError(f"{into} cannot be written: {error.strerror}") from error


def read(path: Path) -> dict[tuple[str, str, str], Tried]:
    """The tunings of a file by arguments, GPU and source, as texts. Lines that make no sense are left out, as is a last
    one that was cut short; there are none if the file cannot be read."""
    found: dict[tuple[str, str, str], Tried] = {}
    try:
        lines = read_file(path).split(b"\n")
    except (OSError, ValueError):
        return found
    for line in filter(None, lines):
        with contextlib.suppress(*journal.NONSENSE):
            each = _tried(journal.parse(line))
            found[(as_text(each.arguments), each.gpu, each.source)] = each
    return found


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
    table = Table.of(file, tried)
    if any(of_entry(tried, entry) is None for entry in file.entries) or not table.configs:
        return most_common(file)
    row = min(range(len(table.configs)), key=lambda index: (*table.merit(index), -index))
    works, mean = table.works(row), table.mean(row)
    entry = next(entry for entry in file.entries if as_text(entry.config) == as_text(table.configs[row]))
    why = f"works for {works} of {len(table.entries)} entries, {mean:.3f} of the best's time in geometric mean"
    return Default(dict(entry.config), entry.source, why)


@dataclass(frozen=True)
class Table:
    """The winners' configurations against entries: slowdowns[config][entry] is the configuration's latency over the
    best one's; None where it does not work, or was not measured to the end."""

    entries: tuple[TunedEntry, ...]
    configs: tuple[dict[str, Any], ...]
    slowdowns: tuple[tuple[float | None, ...], ...]

    @staticmethod
    def of(file: TunedFile, tried: Mapping[tuple[str, str, str], Tried]) -> Table:
        """The table of a file; without trials only an entry's own configuration is known."""
        entries = tuple(sorted(file.entries, key=order_of))
        configs = {as_text(entry.config): entry.config for entry in entries}
        rows = []
        for text in configs:
            row: list[float | None] = []
            for entry in entries:
                known = of_entry(tried, entry)
                latency = entry.latency_ms if as_text(entry.config) == text else None
                if latency is None and known is not None:
                    latency = known.latencies.get(text)
                row.append(None if latency is None else latency / entry.latency_ms)
            rows.append(tuple(row))
        table = Table(entries, tuple(configs.values()), tuple(rows))
        order = sorted(range(len(rows)), key=table.merit)
        return Table(entries, tuple(table.configs[i] for i in order), tuple(rows[i] for i in order))

    def works(self, row: int) -> int:
        """For how many entries a configuration's latency is known."""
        return sum(value is not None for value in self.slowdowns[row])

    def mean(self, row: int) -> float:
        """The geometric mean of a configuration's slowdowns."""
        known = [value for value in self.slowdowns[row] if value is not None]
        return math.exp(sum(map(math.log, known)) / len(known)) if known else math.inf

    def worst(self, row: int) -> float:
        """A configuration's largest slowdown."""
        return max((value for value in self.slowdowns[row] if value is not None), default=math.inf)

    def merit(self, row: int) -> tuple[int, float]:
        """Smaller for more robust configurations."""
        return -self.works(row), self.mean(row)

    def lines(self) -> tuple[list[str], list[list[str]]]:
        """Heads and rows for people: slowdowns, their geometric mean, the worst, and for how many entries."""
        heads = ["configuration", "mean", "worst", "works", *(arguments_text(each.arguments) for each in self.entries)]
        rows = []
        for place, config in enumerate(self.configs):
            cells = ["-" if value is None else f"{value:.2f}" for value in self.slowdowns[place]]
            works = f"{self.works(place)}/{len(self.entries)}"
            rows.append([config_text(config), f"{self.mean(place):.3f}", f"{self.worst(place):.2f}", works, *cells])
        return heads, rows

    def as_csv(self) -> str:
        """The same for programs: a column for each tunable and each entry, numbers in full, unknown ones empty."""
        names = list(dict.fromkeys(name for config in self.configs for name in config))
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, "mean", "worst", "works", *(arguments_text(each.arguments) for each in self.entries)])
        for place, config in enumerate(self.configs):
            cells = ["" if value is None else value for value in self.slowdowns[place]]
            own = [config.get(name, "") for name in names]
            writer.writerow([*own, self.mean(place), self.worst(place), self.works(place), *cells])
        return file.getvalue()
