"""The results as one SVG: for each row, how near every candidate comes to the row's roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.ceilings import roofline
from benchmarks.targets import median_time

Json = Mapping[str, Any]
_STYLES = {
    "library": ("#8a8f98", "cuBLAS, cuDNN, torch.compile"),
    "triton": ("#e0962d", "Triton by hand"),
    "tilelang": ("#3a9d5d", "TileLang"),
    "tiledsl": ("#2a5bd7", "tiledsl"),
}
_LABEL, _PLOT, _RIGHT, _LINE, _TOP = 330, 430, 24, 17, 58
_FONT = "font-family='Helvetica, Arial, sans-serif'"


def svg(rows: Sequence[Json], runs: Mapping[str, Json], regime: str = "steady") -> str:
    """A line for each row that has times and ceilings, grouped by family; dots at the share of the roofline."""
    shares = [(row, _shares(row, runs[row["run"]].get("ceilings", {}), regime)) for row in rows]
    shown = [(row, share) for row, share in shares if share]
    families = list(dict.fromkeys(row["family"] for row, _ in shown))
    most = max([1.0, *(value for _, share in shown for value in share.values())])
    top = 1.1 if most <= 1.1 else most * 1.02
    height = _TOP + _LINE * (len(shown) + 2 * len(families)) + 36
    width = _LABEL + _PLOT + _RIGHT
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}'>",
        f"<rect width='{width}' height='{height}' fill='white'/>",
        _text(12, 20, _title(runs), 13, weight="bold"),
        *_legend(),
    ]
    bottom = height - 30
    for step in range(0, int(top * 100) + 1, 20):
        x = _x(step / 100, top)
        color = "#666" if step == 100 else "#ddd"
        parts.append(f"<line x1='{x:.1f}' y1='{_TOP - 6}' x2='{x:.1f}' y2='{bottom}' stroke='{color}'/>")
        parts.append(_text(x, bottom + 15, f"{step}%", 10, anchor="middle"))
    parts.append(_text(_LABEL, height - 3, f"of the roofline measured in the same process ({regime})", 10))
    y = _TOP + 6
    for family in families:
        parts.append(_text(12, y + 4, family, 11, weight="bold"))
        y += _LINE
        for row, share in shown:
            if row["family"] != family:
                continue
            parts.append(_text(_LABEL - 10, y + 4, row["case"], 10, anchor="end"))
            ends = [_x(value, top) for value in share.values()]
            parts.append(f"<line x1='{min(ends):.1f}' y1='{y}' x2='{max(ends):.1f}' y2='{y}' stroke='#ccc'/>")
            for kind, (color, _) in _STYLES.items():
                if kind in share:
                    parts.append(f"<circle cx='{_x(share[kind], top):.1f}' cy='{y}' r='4' fill='{color}'/>")
            y += _LINE
        y += _LINE
    return "\n".join([*parts, "</svg>"]) + "\n"


def _shares(row: Json, ceilings: Mapping[str, Mapping[str, float]], regime: str) -> dict[str, float]:
    least = roofline(row, ceilings, regime)
    times = {kind: median_time(row, kind, regime) for kind in _STYLES}
    return {kind: least / value for kind, value in times.items() if least and value}


def _title(runs: Mapping[str, Json]) -> str:
    if not runs:
        return "no results"
    last = runs[max(runs)]
    versions = last.get("versions", {})
    return (
        f"{last.get('gpu', '')}, torch {versions.get('torch')}, Triton {versions.get('triton')}, "
        f"{str(last.get('date', ''))[:10]}"
    )


def _legend() -> list[str]:
    parts, x = [], 16.0
    for color, label in reversed(_STYLES.values()):
        parts.append(f"<circle cx='{x}' cy='38' r='4' fill='{color}'/>")
        parts.append(_text(x + 8, 42, label, 11))
        x += 30 + 6.4 * len(label)
    return parts


def _x(share: float, top: float) -> float:
    return _LABEL + _PLOT * min(share, top) / top


def _text(x: float, y: float, text: str, size: int, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' font-weight='{weight}' text-anchor='{anchor}' {_FONT} "
        f"fill='#222'>{escape(text)}</text>"
    )
