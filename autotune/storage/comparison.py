"""How configurations do over all problems that a kernel was tuned for: which one is good everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.storage.cache import CacheEntry
from tiledsl.tables import csv_text


@dataclass(frozen=True)
class ComparedConfig:
    """A configuration: its milliseconds for each problem (None: not known, or it does not work there), and times the
    problem's best time."""

    config: Mapping[str, Any]
    milliseconds: tuple[float | None, ...]
    slowdowns: tuple[float | None, ...]

    @property
    def known(self) -> int:
        """For how many problems."""
        return sum(each is not None for each in self.slowdowns)

    @property
    def mean(self) -> float:
        """The geometric mean of the slowdowns that are known."""
        return math.exp(sum(math.log(each) for each in self.slowdowns if each is not None) / self.known)

    @property
    def worst(self) -> float:
        """The largest slowdown."""
        return max(each for each in self.slowdowns if each is not None)

    @property
    def merit(self) -> tuple[int, float]:
        """Smaller for more robust configurations: known for more problems, of these better on average."""
        return -self.known, self.mean

    def cells(self, digits: int) -> list[str]:
        """The slowdowns for people."""
        return ["-" if each is None else f"{each:.{digits}f}" for each in self.slowdowns]


@dataclass(frozen=True)
class ConfigComparison:
    """Problems by what tells them apart, each one's best time, and configurations with a time for one of them at least,
    the most robust first."""

    problems: tuple[str, ...]
    best: tuple[float, ...]
    rows: tuple[ComparedConfig, ...]

    @staticmethod
    def of(
        problems: Sequence[str],
        best: Sequence[float],
        times: Iterable[tuple[Mapping[str, Any], Sequence[float | None]]],
    ) -> ConfigComparison:
        """From the milliseconds of each configuration for each problem; of equally good ones the first comes first."""
        rows = [
            ComparedConfig(
                config, tuple(own), tuple(None if ms is None else ms / least for ms, least in zip(own, best))
            )
            for config, own in times
        ]
        return ConfigComparison(tuple(problems), tuple(best), tuple(sorted(rows, key=lambda row: row.merit)))

    def as_csv(self, heads: Sequence[str], cells: Callable[[ComparedConfig], Sequence[Any]]) -> str:
        """For programs: a column for each tunable, then what `cells` gives for a row, under `heads`."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.config))
        rows = [[*map(row.config.get, names), *cells(row)] for row in self.rows]
        return csv_text([[*names, *heads], *rows])


def compare_entries(entries: Sequence[CacheEntry]) -> ConfigComparison:
    """Compare the stored results of one kernel; those with no time at all are left out."""
    tables = [(entry, times) for entry in entries if (times := _times(entry))]
    configs: dict[str, Mapping[str, Any]] = {}
    for _, times in tables:
        for key, (config, _) in times.items():
            configs.setdefault(key, config)
    best = [min(each for _, each in times.values()) for _, times in tables]
    found = [
        (config, [times[key][1] if key in times else None for _, times in tables]) for key, config in configs.items()
    ]
    return ConfigComparison.of(_labels([entry for entry, _ in tables]), best, found)


def _times(entry: CacheEntry) -> dict[str, tuple[Mapping[str, Any], float]]:
    """Configurations that work, by canonical text, and their milliseconds."""
    times = {}
    for key, record in entry.trials().items():
        config, latency = record.get("config"), record.get("latency")
        works = record["status"] == "ok" and isinstance(config, Mapping)
        if works and isinstance(config, Mapping) and isinstance(latency, (int, float)) and latency > 0:
            times[key] = (config, float(latency))
    return times


def _labels(entries: Sequence[CacheEntry]) -> list[str]:
    """`M=64 N=128`: the fields of the keys in which entries differ, arguments if that tells them all apart."""
    flat = [_flat(entry.fields) for entry in entries]
    names = list(dict.fromkeys(name for each in flat for name in each))
    differing = [name for name in names if len({each.get(name, "") for each in flat}) > 1]
    arguments = [name for name in (differing if len(flat) > 1 else names) if name.startswith("arguments.")]
    labels = [_label(each, arguments) for each in flat]
    if len(set(labels)) < len(labels):
        labels = [_label(each, differing) for each in flat]
    if len(set(labels)) < len(labels) or not all(labels):
        labels = [f"{label} {entry.digest[:12]}".strip() for label, entry in zip(labels, entries)]
    return labels


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            texts.update(_flat(value, f"{prefix}{name}."))
        else:
            texts[prefix + name] = str(value)
    return texts


def _label(fields: Mapping[str, str], names: Sequence[str]) -> str:
    parts = [(name.removeprefix("arguments."), fields[name]) for name in names if name in fields]
    return " ".join(f"{name}={_short(value)}" for name, value in parts)


def _short(text: str) -> str:
    """Of a canonical text the value: `64` of `int:64`, `(64, 32)` of a tensor's."""
    kind, _, value = text.partition(":")
    if kind == "tensor":
        return value.removeprefix("vague:").partition(":")[0]
    return value if kind in ("int", "float", "str", "bool") else text[:40]
