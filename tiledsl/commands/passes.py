"""`tiledsl passes`: the passes of the pipeline, what they do, and their options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import click

from tiledsl.commands.report import give
from tiledsl.commands.table import print_table
from tiledsl.errors import TileError, meant
from tiledsl.ir.pass_manager import Pass
from tiledsl.passes import PIPELINE
from tiledsl.passes.specs import ENTRY_POINTS, find_pass
from tiledsl.passes.user_passes import own_passes


def passes(name: str | None) -> None:
    """Print all passes, in the order of their first runs, or one with its options and an example.

    Passes of one's own come last: those that --load names, and those of installed packages. Raises TileError for a pass
    that there is not.
    """
    if name is None:
        for each in entry_points(group=ENTRY_POINTS):
            find_pass(each.name)
    by_name = {each.name: each for each in PIPELINE} | own_passes()
    if name is None:
        give(passes=[_data(each) for each in by_name.values()])
        rows = [
            [each.name, " ".join(_options(each)), (_text(each).splitlines() or [""])[0]] for each in by_name.values()
        ]
        print_table(["pass", "options", "what it does"], rows, "lll")
    elif found := by_name.get(name) or find_pass(name):
        give(passes=[_data(found)])
        click.echo("\n".join(_description(found)))
    else:
        raise TileError(f"no pass is named {name!r}", notes=[meant(name, by_name)], code="no-such-pass")


def _data(each: type[Pass]) -> dict[str, Any]:
    """A pass for programs. places: its positions in the default pipeline, from 1."""
    return {
        "name": each.name,
        "module": each.__module__,
        "places": [number for number, other in enumerate(PIPELINE, 1) if other is each],
        "options": {option.name: _default(option, None) for option in dataclasses.fields(each)},
        "text": _text(each),
    }


def _text(each: type[Pass]) -> str:
    return inspect.getdoc(each) or ""


def _options(each: type[Pass]) -> list[str]:
    return [f"{option.name}={_shown(_default(option, '(no default)'))}" for option in dataclasses.fields(each)]


def _default(option: dataclasses.Field[Any], none: Any) -> Any:
    return none if option.default is dataclasses.MISSING else option.default


def _shown(value: object) -> str:
    """A default as the command line takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value) or "''"


def _description(pass_type: type[Pass]) -> Iterator[str]:
    places = [str(number) for number, other in enumerate(PIPELINE, 1) if other is pass_type]
    if places:
        yield f"{pass_type.name}: pass {' and '.join(places)} of {len(PIPELINE)}"
    else:
        yield f"{pass_type.name}: from {pass_type.__module__}, not in the default pipeline"
    yield ""
    yield _text(pass_type)
    if options := _options(pass_type):
        yield ""
        yield "Options, with their defaults:"
        yield from (f"    --pass-config {pass_type.name}.{option}" for option in options)
        first = dataclasses.fields(pass_type)[0]
        yield f'In Python: pass_configs={{"{pass_type.name}.{first.name}": {_default(first, ...)!r}}}'
