"""Rows as text: columns for people, CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """A line for each row, its cells below those of the row above. sides: l or r for each column."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(c.rjust(w) if side == "r" else c.ljust(w) for c, w, side in zip(row, widths, sides)).rstrip()
        for row in rows
    ]


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV; None is an empty cell."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()
