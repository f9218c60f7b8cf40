"""Geometric means of the rows' ratios, beside what they are meant to reach on an H200."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.records import name_of
from benchmarks.row import MEMORY_FAMILIES, MOVED_FAMILIES, REDUCED_FAMILIES
from benchmarks.timing import geometric_mean

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """Over the rows that `selects` takes, the geometric mean of how many times faster than the best of `peers` tiledsl
    is, in the steady regime; at least `goal`, and no row under `floor`. tags: all of them, on the row; but: none of
    these."""

    title: str
    families: tuple[str, ...]
    peers: tuple[str, ...]
    goal: float
    tags: frozenset[str] = frozenset()
    but: frozenset[str] = frozenset()
    floor: float | None = None
    ratio: Callable[[Json, Sequence[Json], Sequence[str], str], float | None] | None = None

    def selects(self, row: Json) -> bool:
        return row["family"] in self.families and self.tags <= set(row["tags"]) and not self.but & set(row["tags"])


@dataclass(frozen=True)
class Outcome:
    """What was measured for a target: mean (None without rows), rows counted, rows without a ratio, the least ratio."""

    target: Target
    mean: float | None
    count: int
    without: int
    least: float | None
    least_row: str

    @property
    def reached(self) -> bool | None:
        """Whether goal and floor hold; None where nothing was measured. Rows without a ratio do not hold it."""
        if self.mean is None or self.least is None:
            return None if not self.without else False
        floor = self.target.floor
        return self.mean >= self.target.goal and (floor is None or self.least >= floor) and not self.without


def median_time(row: Json, kind: str, regime: str) -> float | None:
    """Milliseconds of a candidate; None where it has none."""
    for entry in row["candidates"]:
        if entry["kind"] == kind and regime in entry:
            return float(entry[regime]["median"])
    return None


def best_ratio(row: Json, rows: Sequence[Json], peers: Sequence[str], regime: str) -> float | None:
    """The least of the ratios to these peers: the one to the best of them. 0 where tiledsl itself has no time and a
    peer has one; None without any."""
    known = [row["ratios"].get(regime, {}).get(kind, {}).get("median") for kind in peers]
    found = [float(value) for value in known if value is not None]
    if found:
        return min(found)
    failed = median_time(row, "tiledsl", regime) is None
    return 0.0 if failed and any(median_time(row, kind, regime) for kind in peers) else None


def over_best_bfloat16(row: Json, rows: Sequence[Json], peers: Sequence[str], regime: str) -> float | None:
    """The ratio to cuBLAS in bfloat16, which is in the row; lowered where the GEMM row of the same shape has a faster
    candidate than cuBLAS, by as much."""
    ratio = best_ratio(row, rows, peers, regime)
    shape = row["case"].split()[1]
    for other in rows:
        if ratio and other["family"] == "gemm" and other["case"].split()[:2] == ["bf16", shape]:
            times = {kind: median_time(other, kind, regime) for kind in ("tiledsl", "library", "triton", "tilelang")}
            known = [value for value in times.values() if value]
            if times["library"] and known:
                ratio *= min(known) / times["library"]
    return ratio


_BEST = ("library", "triton", "tilelang")
_MEMORY = frozenset({"memory"})
TARGETS = (
    Target("GEMM, to the best of Triton by hand and TileLang", ("gemm",), ("triton", "tilelang"), 1.00),
    Target("GEMM, to cuBLAS", ("gemm",), ("library",), 0.95),
    Target("GEMM, to the best peer, no row under 0.85", ("gemm",), _BEST, 0.85, floor=0.85),
    Target("attention full, to cuDNN", ("attention",), ("library",), 1.05, frozenset({"plain", "full"})),
    Target("attention causal, to cuDNN", ("attention",), ("library",), 1.08, frozenset({"plain", "causal"})),
    Target("attention, to Triton by hand", ("attention",), ("triton",), 1.20, frozenset({"plain"})),
    Target("attention, to TileLang", ("attention",), ("tilelang",), 1.00, frozenset({"plain"})),
    Target("attention with GQA, to the best peer", ("attention",), _BEST, 1.00, frozenset({"gqa"})),
    Target("attention with sinks, to the best peer", ("attention",), _BEST, 1.00, frozenset({"sink"})),
    Target("attention of ragged lengths, to the best peer", ("attention",), _BEST, 1.00, frozenset({"ragged"})),
    Target("softmax, norms, elementwise, to a copy", MEMORY_FAMILIES, ("copy",), 0.93, but=_MEMORY),
    Target("softmax, norms, elementwise, to torch.compile", MEMORY_FAMILIES, ("library",), 1.00, but=_MEMORY),
    Target(
        "rows of any width, quantisation, RoPE, SwiGLU, to a copy, no row under 0.95",
        REDUCED_FAMILIES + MOVED_FAMILIES, ("copy",), 0.95, _MEMORY, floor=0.95,
    ),
    Target(
        "block-scaled fp8, K of 4096 and more, to the best bf16", ("block-scaled fp8 gemm",), ("bf16",), 1.20,
        frozenset({"deep"}), ratio=over_best_bfloat16,
    ),
)  # fmt: skip


def outcome(target: Target, rows: Sequence[Json], regime: str = "steady") -> Outcome:
    """A target's outcome over rows. A row in which no such peer has a time does not count; one in which only tiledsl
    has none counts as missing."""
    ratio = target.ratio or best_ratio
    measured = {name_of(row): ratio(row, rows, target.peers, regime) for row in rows if target.selects(row)}
    without = sum(value == 0.0 for value in measured.values())
    found = {name: value for name, value in measured.items() if value}
    if not found:
        return Outcome(target, None, 0, without, None, "")
    least = min(found, key=lambda name: found[name])
    return Outcome(target, geometric_mean(list(found.values())), len(found), without, found[least], least)


def family_means(rows: Sequence[Json], regime: str) -> dict[str, dict[str, float]]:
    """By family, the geometric mean of the ratios to each kind of peer, of the rows that have one."""
    means: dict[str, dict[str, float]] = {}
    for family in dict.fromkeys(row["family"] for row in rows):
        ratios: dict[str, list[float]] = {}
        for row in rows:
            if row["family"] == family:
                for kind, values in row["ratios"].get(regime, {}).items():
                    ratios.setdefault(kind, []).append(values["median"])
        means[family] = {kind: geometric_mean(values) for kind, values in ratios.items()}
    return means
