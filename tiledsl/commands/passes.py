"""`tiledsl passes`: the passes of the pipeline, what they do, and their options."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterator

import click

from tiledsl.commands.table import print_table
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import Pass
from tiledsl.passes import PIPELINE


def passes(name: str | None) -> None:
    """Print all passes, in the order of their first runs, or one with its options and an example.

    Raises TileError for a pass that there is not.
    """
    by_name = {each.name: each for each in PIPELINE}
    if name is None:
        rows = [[each.name, " ".join(_options(each)), _text(each).splitlines()[0]] for each in by_name.values()]
        print_table(["pass", "options", "what it does"], rows, "lll")
    elif name in by_name:
        click.echo("\n".join(_description(by_name[name])))
    else:
        near = difflib.get_close_matches(name, by_name, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(by_name)}"
        raise TileError(f"no pass is named {name!r}", notes=[advice])


def _text(each: type[Pass]) -> str:
    return inspect.getdoc(each) or ""


def _options(each: type[Pass]) -> list[str]:
    return [f"{option.name}={_shown(option.default)}" for option in dataclasses.fields(each)]


def _shown(value: object) -> str:
    """A default as the command line takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value) or "''"


def _description(pass_type: type[Pass]) -> Iterator[str]:
    places = [str(number) for number, other in enumerate(PIPELINE, 1) if other is pass_type]
    yield f"{pass_type.name}: pass {' and '.join(places)} of {len(PIPELINE)}"
    yield ""
    yield _text(pass_type)
    if options := _options(pass_type):
        yield ""
        yield "Options, with their defaults:"
        yield from (f"    --pass-config {pass_type.name}.{option}" for option in options)
        first = dataclasses.fields(pass_type)[0]
        yield f'In Python: pass_configs={{"{pass_type.name}.{first.name}": {first.default!r}}}'
