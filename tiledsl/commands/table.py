"""Tables on a terminal."""

from __future__ import annotations

import sys

import click


def printable(text: str, keep: str = "") -> str:
    """A text from a file as a terminal may show it: without control characters but those in `keep`."""
    return "".join(c if c.isprintable() or c in keep else f"\\x{ord(c):02x}" for c in text)


def print_table(head: list[str], rows: list[list[str]], sides: str) -> None:
    """A table: drawn by rich on a terminal, columns of text elsewhere. sides: l or r for each column."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for name, side in zip(head, sides):
            table.add_column(name, justify="right" if side == "r" else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [c.rjust(w) if s == "r" else c.ljust(w) for c, w, s in zip(row, widths, sides)]
        click.echo("  ".join(cells).rstrip())
