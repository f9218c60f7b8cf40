"""The rows of the suite, by family."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.row import Row


def all_rows() -> list[Row]:
    """Every row. Families that matter most come first, and within a family the quick rows."""
    from benchmarks.rows import (
        any_width,
        attention,
        backward,
        elementwise,
        float8,
        gemm,
        grouped,
        linear_attention,
        linear_losses,
        moves,
        quantised,
        sorting,
    )  # fmt: skip

    rows = [
        *gemm.rows(), *attention.rows(), *float8.rows(), *elementwise.rows(), *any_width.rows(),
        *moves.rows(), *sorting.rows(), *grouped.rows(), *backward.rows(),
        *quantised.rows(), *linear_losses.rows(), *linear_attention.rows(),
    ]  # fmt: skip
    names = [row.name for row in rows]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two rows are called {sorted(twice)[0]!r}")
    return rows


def select(rows: Sequence[Row], only: Sequence[str], quick: bool) -> list[Row]:
    """Rows whose family is one of the texts in `only`, or whose name has one that is no family; all without any.

    A quick run without texts has those marked so, the first of each family first: its time may not suffice for all.
    Raises ValueError for a text that selects nothing.
    """
    families = {row.family for row in rows}

    def chosen(row: Row, text: str) -> bool:
        return row.family == text if text in families else text in row.name.lower()

    for text in only:
        if not any(chosen(row, text.lower()) for row in rows):
            known = ", ".join(sorted(families))
            raise ValueError(f"no row is called {text!r}: it is part of a name that --list prints, or one of {known}")
    wanted = [row for row in rows if not only or any(chosen(row, text.lower()) for text in only)]
    if not quick or only:
        return wanted
    seen: dict[str, int] = {}
    places: list[tuple[int, int, Row]] = []
    for row in wanted:
        if row.quick:
            seen[row.family] = seen.get(row.family, 0) + 1
            places.append((seen[row.family], len(places), row))
    return [row for _, _, row in sorted(places, key=lambda place: place[:2])]
