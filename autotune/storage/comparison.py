"""How configurations do over all problems that a kernel was tuned for: which one is good everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.storage.cache import CacheEntry


@dataclass(frozen=True)
class ComparedConfig:
    """A configuration: its milliseconds for each problem (None: not known, or it does not work there), and how many
    times the problem's best time that is, in the geometric mean and at worst, over the problems where it is known."""

    config: Mapping[str, Any]
    milliseconds: tuple[float | None, ...]
    mean: float
    worst: float

    @property
    def known(self) -> int:
        """For how many problems."""
        return sum(each is not None for each in self.milliseconds)


@dataclass(frozen=True)
class CacheComparison:
    """Problems by what tells them apart, each one's best time, and configurations, those known for most problems first,
    of these the best on average."""

    problems: tuple[str, ...]
    best: tuple[float, ...]
    rows: tuple[ComparedConfig, ...]

    def relative(self, row: ComparedConfig) -> list[float | None]:
        """Times the best time, for each problem."""
        return [None if own is None else own / best for own, best in zip(row.milliseconds, self.best)]


def compare_entries(entries: Sequence[CacheEntry]) -> CacheComparison:
    """Compare the results of one kernel; those with no time at all are left out."""
    tables = [(entry, _times(entry)) for entry in entries]
    tables = [(entry, times) for entry, times in tables if times]
    configs: dict[str, Mapping[str, Any]] = {}
    for _, times in tables:
        for key, (config, _) in times.items():
            configs.setdefault(key, config)
    best = tuple(min(each for _, each in times.values()) for _, times in tables)
    rows = []
    for key, config in configs.items():
        found = tuple(times[key][1] if key in times else None for _, times in tables)
        ratios = [own / least for own, least in zip(found, best) if own is not None]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        rows.append(ComparedConfig(config, found, mean, max(ratios)))
    rows.sort(key=lambda row: (-row.known, row.mean))
    return CacheComparison(tuple(_labels([entry for entry, _ in tables])), best, tuple(rows))


def _times(entry: CacheEntry) -> dict[str, tuple[Mapping[str, Any], float]]:
    """Configurations that work, by canonical text, and their milliseconds."""
    found = {}
    for key, record in entry.trials().items():
        config, latency = record.get("config"), record.get("latency")
        works = record["status"] == "ok" and isinstance(config, Mapping)
        if works and isinstance(config, Mapping) and isinstance(latency, (int, float)) and latency > 0:
            found[key] = (config, float(latency))
    return found


def _labels(entries: Sequence[CacheEntry]) -> list[str]:
    """`M=64 N=128`: the fields of the keys in which entries differ, arguments if that tells them all apart."""
    flat = [_flat(entry.fields or {}) for entry in entries]
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
    found: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = str(value)
    return found


def _label(fields: Mapping[str, str], names: Sequence[str]) -> str:
    parts = [(name.removeprefix("arguments."), fields[name]) for name in names if name in fields]
    return " ".join(f"{name}={_short(value)}" for name, value in parts)


def _short(text: str) -> str:
    """Of a canonical text the value: `64` of `int:64`, `(64, 32)` of a tensor's."""
    kind, _, value = text.partition(":")
    if kind == "tensor":
        return value.removeprefix("vague:").partition(":")[0]
    return value if kind in ("int", "float", "str", "bool") else text[:40]
