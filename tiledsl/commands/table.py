"""Tables on a terminal."""

from __future__ import annotations

import sys

import click

from tiledsl.tables import aligned


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
    for line in aligned([head, *rows], sides):
        click.echo(line)
