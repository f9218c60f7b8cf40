"""Which entry serves a call: exactly its arguments, else a bucket of one argument, else the nearest in log space."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tiledsl.autotuner.trial import config_text
from tiledsl.autotuner.tuned.entry import TunedEntry, arguments_text, as_text, is_number
from tiledsl.autotuner.tuned.file import Default

NEAREST = 3  # entries that are tried, where the first ones do not work


@dataclass(frozen=True)
class TunedMatch:
    """What serves a call, and why. kind: "exact" (an entry for its arguments), "bucket" (one that differs in the
    bucket's argument only), "default" (the nearest entry, or the file's default), "none". entry, path: where config
    comes from; entry is None for the file's default. Prints as a line."""

    kind: Literal["exact", "bucket", "default", "none"]
    why: str
    config: dict[str, Any] | None = None
    entry: TunedEntry | None = None
    path: Path | None = None

    def __str__(self) -> str:
        shown = "" if self.config is None else f" {config_text(self.config)}"
        return f"{self.kind}:{shown} ({self.why}{'' if self.path is None else f', {self.path}'})"


@dataclass(frozen=True)
class LookupRow:
    """An entry beside a call. known, wanted: the entry's arguments and the call's, with the function's defaults."""

    entry: TunedEntry
    path: Path
    known: Mapping[str, Any]
    wanted: Mapping[str, Any]


@dataclass(frozen=True)
class Gpu:
    """The GPU that a call runs on; "" and None if that is not known. Entries that it measured come first, then those
    of GPUs with as many multiprocessors."""

    name: str = ""
    sm_count: int | None = None

    def distance(self, entry: TunedEntry) -> int:
        if not self.name or entry.gpu == self.name and entry.sm_count in (None, self.sm_count):
            return 0
        return 1 if entry.sm_count == self.sm_count else 2


def candidates(
    rows: Sequence[LookupRow],
    defaults: Iterable[tuple[Default, Path]] = (),
    *,
    bucket: str | None = None,
    nearest: bool = True,
    gpu: Gpu | None = None,
) -> Iterator[TunedMatch]:
    """What may serve a call, the best first, until something works.

    Exact entries; entries of the bucket: the nearest one at or above the call's value, else the largest; with `nearest`
    entries in order of their distance, the sum of |log2| of the numbers' ratios, if all else is equal, and then files'
    defaults. Among entries for the same arguments: see Gpu, then measured before estimated, then the fastest.
    """
    here = gpu or Gpu()

    def merit(row: LookupRow) -> tuple[Any, ...]:
        return here.distance(row.entry), not row.entry.measured, row.entry.latency_ms, as_text(row.entry.config)

    taken: set[str] = set()

    def unless_taken(kind: Literal["exact", "bucket", "default"], why: str, row: LookupRow) -> Iterator[TunedMatch]:
        text = as_text(row.entry.config)
        if text not in taken:
            taken.add(text)
            yield TunedMatch(kind, why, row.entry.config, row.entry, row.path)

    for row in sorted((row for row in rows if _same(row.known, row.wanted)), key=merit):
        yield from unless_taken("exact", "tuned for these arguments", row)
    if bucket is not None:
        found = [row for row in rows if _differ_only_in(bucket, row)]
        first = min((_bucket_order(row.known[bucket], row.wanted[bucket]) for row in found), default=None)
        found = [row for row in found if _bucket_order(row.known[bucket], row.wanted[bucket]) == first]
        for row in sorted(found, key=merit)[:1]:
            value, wanted = row.known[bucket], row.wanted[bucket]
            place = "the nearest at or above" if value >= wanted else "the largest, below"
            yield from unless_taken("bucket", f"tuned for {bucket}={value}, {place} {wanted}", row)
    if nearest:
        distances = [(_distance(row.known, row.wanted), row) for row in rows]
        comparable = [(distance, row) for distance, row in distances if distance is not None]
        closest = heapq.nsmallest(
            NEAREST, comparable, key=lambda pair: (pair[0], _descending(pair[1].known), merit(pair[1]))
        )
        for distance, row in closest:
            text = arguments_text(row.entry.arguments)
            yield from unless_taken("default", f"the nearest entry is {text}, {distance:.2f} in log2", row)
        for default, path in defaults:
            if as_text(default.config) not in taken:
                taken.add(as_text(default.config))
                yield TunedMatch("default", f"the file's default, {default.why}", default.config, None, path)


def _same(known: Mapping[str, Any], wanted: Mapping[str, Any], but: str | None = None) -> bool:
    """Whether two calls have the same arguments, or all but one."""
    if known.keys() != wanted.keys():
        return False
    return all(name == but or _equal(value, wanted[name]) for name, value in known.items())


def _equal(one: Any, other: Any) -> bool:
    """Whether JSON values are the same; 1, 1.0 and true differ."""
    if type(one) is not type(other):
        return False
    return as_text(one) == as_text(other) if isinstance(one, (list, dict)) else bool(one == other)


def _differ_only_in(bucket: str, row: LookupRow) -> bool:
    both = is_number(row.known.get(bucket)) and is_number(row.wanted.get(bucket))
    return both and _same(row.known, row.wanted, bucket)


def _bucket_order(value: float, wanted: float) -> tuple[bool, float]:
    """Values at or above first, the smallest first; then those below, the largest first."""
    return value < wanted, value if value >= wanted else -value


def _distance(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> float | None:
    """How far apart two calls are in log space; None if they differ in more than numbers."""
    if known.keys() != wanted.keys():
        return None
    total = 0.0
    for name, value in known.items():
        other = wanted[name]
        if is_number(value) and is_number(other):
            total += abs(_log(value) - _log(other))
        elif not _equal(value, other):
            return None
    return total


def _log(value: float) -> float:
    """log2 for sizes; 0 at 0 and odd, so that it is there for all numbers."""
    return math.copysign(math.log2(1 + abs(value)), value)


def _descending(arguments: Mapping[str, Any]) -> tuple[float, ...]:
    """Of entries that are equally near, the one of the largest arguments comes first."""
    return tuple(-value for value in arguments.values() if is_number(value))
