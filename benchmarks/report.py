"""The suite's results as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.ceilings import MATRIX_FAMILIES, roofline
from benchmarks.row import KINDS
from benchmarks.targets import TARGETS, family_means, median_time, outcome
from benchmarks.timing import REGIMES

Json = Mapping[str, Any]
_MISSING = {"wrong": "wrong", "missing": "-", "failed": "failed"}


def rate(row: Json, milliseconds: float) -> str:
    """TFLOP/s of products, TB/s of what memory bounds."""
    if row["family"] in MATRIX_FAMILIES:
        return f"{row['operations'] / milliseconds * 1e-9:.1f}"
    return f"{row['bytes'] / milliseconds * 1e-9:.3f}"


def row_text(row: Json, ceilings: Mapping[str, Mapping[str, float]]) -> str:
    """A row: a line for each regime with each candidate's rate, the ratio to it and the ratio's spread; then why some
    have no time."""
    unit = "TFLOP/s" if row["family"] in MATRIX_FAMILIES else "TB/s"
    lines = [f"{row['family']}: {row['case']}  ({unit})"]
    for regime in REGIMES:
        cells = []
        for entry in row["candidates"]:
            cell = rate(row, entry[regime]["median"]) if regime in entry else _MISSING.get(entry["status"], "-")
            ratio = row["ratios"].get(regime, {}).get(entry["kind"])
            if ratio:
                cell += f" {ratio['median']:.3f}x [{ratio['min']:.3f}-{ratio['max']:.3f}]"
            cells.append(f"{entry['name']} {cell}")
        ours, least = median_time(row, "tiledsl", regime), roofline(row, ceilings, regime)
        if ours and least:
            cells.append(f"{least / ours:.0%} of the roofline")
        lines.append(f"  {regime:6} " + " | ".join(cells))
    for entry in row["candidates"]:
        if "why" in entry:
            lines.append(f"  {entry['name']} {entry['status']}: {' '.join(entry['why'].split())[:300]}")
        elif entry.get("config"):
            seconds = entry.get("tuning_seconds")
            spent = "" if seconds is None else f" (tuned in {seconds:.1f} s)"
            chosen = ", ".join(f"{key}={value}" for key, value in entry["config"].items())
            lines.append(f"  {entry['name']}: {chosen}{spent}")
    if "error" in row:
        lines.append(f"  failed: {' '.join(str(row['error']).split())[:400]}")
    return "\n".join(lines)


def summary(rows: Sequence[Json]) -> str:
    """Geometric means by family and regime, and the targets."""
    lines = ["geometric means of tiledsl's speed over the peers' (above 1: tiledsl is faster)"]
    kinds = [kind for kind in KINDS if kind != "tiledsl"]
    lines.append(f"  {'':24} {'':7}" + "".join(f"{kind:>10}" for kind in kinds))
    for regime in REGIMES:
        for family, means in family_means(rows, regime).items():
            cells = (f"{means[kind]:>10.3f}" if kind in means else f"{'-':>10}" for kind in kinds)
            lines.append(f"  {family:24} {regime:7}" + "".join(cells))
    lines += ["", "targets, steady"]
    for target in TARGETS:
        found = outcome(target, rows)
        word = {True: "reached", False: "NOT reached", None: "not measured"}[found.reached]
        values = "" if found.mean is None else f" {found.mean:.3f} over {found.count} rows"
        if found.least is not None:
            values += f", least {found.least:.3f} ({found.least_row})"
        if found.without:
            values += f", {found.without} rows where tiledsl has no time"
        lines.append(f"  {word:12} {target.title}: at least {target.goal:.2f};{values}")
    spent = _tuning(rows)
    if spent:
        lines += ["", f"tuning: {spent}"]
    return "\n".join(lines)


def _tuning(rows: Sequence[Json]) -> str:
    parts = []
    for kind in ("tiledsl", "generated", "triton", "tilelang"):
        seconds = sorted(
            entry["tuning_seconds"]
            for row in rows
            for entry in row["candidates"]
            if entry["kind"] == kind and entry.get("tuning_seconds") is not None
        )
        if seconds:
            parts.append(f"{kind} {seconds[len(seconds) // 2]:.1f} s a row in the middle, {seconds[-1]:.1f} s at most")
    return "; ".join(parts)


def markdown(rows: Sequence[Json]) -> str:
    """A table of the rows, steady: the rate of each candidate, and tiledsl's ratio to the best peer."""
    kinds = [kind for kind in KINDS if any(median_time(row, kind, "steady") for row in rows)]
    lines = ["| row | " + " | ".join(kinds) + " | tiledsl / best peer |", "| --- " * (len(kinds) + 2) + "|"]
    for row in rows:
        times = {kind: median_time(row, kind, "steady") for kind in kinds}
        cells = [rate(row, value) if (value := times[kind]) else "-" for kind in kinds]
        ratios = row["ratios"].get("steady", {})
        best = [value["median"] for kind, value in ratios.items() if kind in ("library", "triton", "tilelang")]
        ratio = f"{min(best):.3f}" if best else "-"
        lines.append(f"| {row['family']}: {row['case']} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines) + "\n"
