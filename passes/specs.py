"""Passes from text: `name{option=value}`, as `Pass.spec` writes them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tiledsl.errors import TileError, meant, raised_at
from tiledsl.ir.parser import WORDS, Parser
from tiledsl.ir.pass_manager import PASSES, Pass, is_ours

ENTRY_POINTS = "tiledsl.passes"  # the group in which installed packages offer passes, by their names


def parse_pipeline(spec: str, own: Mapping[str, type[Pass]] | None = None) -> list[Pass]:
    """Passes from `a,b{option=value other=value},c`. own: classes that names mean before all others. Raises TileError
    for an unknown pass, option or value."""
    try:
        parser = Parser(spec, "<pipeline>")
        written = _written(parser)
    except TileError as error:
        error.notes.append('passes are written a,b{option=value other="A=tma,C=pointer"}')
        raise
    passes: list[Pass] = []
    for name, options in written:
        try:
            passes.append(make_pass(name.group(), options, own))
        except TileError as error:
            located = parser.error(error.message, name)
            located.notes += error.notes
            raise located from None
    return passes


def _written(parser: Parser) -> list[tuple[re.Match[str], dict[str, Any]]]:
    """The token of each pass's name, and its options."""
    passes: list[tuple[re.Match[str], dict[str, Any]]] = []
    while parser.kind() != "end":
        start = parser.tokens[parser.index]
        parser.take("word", "a pass, name or name{option=value},")
        options: dict[str, Any] = {}
        if parser.accept("{"):
            while not parser.accept("}"):
                option = parser.take("word", "option=value")
                parser.expect("=")
                is_text = parser.kind() == "word" and parser.peek() not in WORDS  # a word stands for itself
                options[option] = parser.take("word", "a word") if is_text else parser.attribute()
        passes.append((start, options))
        if parser.kind() != "end":
            parser.expect(",")
    return passes


def find_pass(name: str) -> type[Pass] | None:
    """The pass of this name: of those that are defined in this process, else of installed packages. TileError if such a
    package does not give it."""
    if name not in PASSES:
        from importlib.metadata import entry_points

        for entry_point in entry_points(group=ENTRY_POINTS, name=name):
            try:
                entry_point.load()
            except (Exception, SystemExit) as error:
                told = str(error) or repr(error)
                raise TileError(
                    f"the pass {name!r} of {entry_point.value} cannot be loaded: {told}", notes=raised_at(error)
                ) from error
            if name not in PASSES:
                raise TileError(f"{entry_point.value}, the entry point of the pass {name!r}, defines none of this name")
    return PASSES.get(name)


def check_choice(made: Pass, option: str, choices: Iterable[str]) -> None:
    """Raise TileError if an option of a pass is none of these."""
    value = getattr(made, option)
    if value not in choices:
        raise TileError(f"{made.name}.{option} is {value!r}; it must be one of {', '.join(choices)}")


def make_pass(name: str, options: dict[str, Any], types: Mapping[str, type[Pass]] | None = None) -> Pass:
    """A pass by name with these options. types: classes that names mean before all others. Raises TileError for an
    unknown name, option or a value of another type."""
    pass_type = (types or {}).get(name) or find_pass(name)
    if pass_type is None:
        raise TileError(
            f"no pass is named {name!r}; {meant(name, sorted(PASSES))}",
            notes=["a pass of your own is known once its module is imported; from the shell, --load FILE"],
            code="no-such-pass",
        )
    fields = {option.name: option for option in dataclasses.fields(pass_type)}
    for key, option in fields.items():
        if option.default is dataclasses.MISSING:
            kind = getattr(option.type, "__name__", option.type)
            raise TileError(f"pass {name}: its option {key!r} has no default; write one: {key}: {kind} = ...")
    for key, value in options.items():
        if key not in fields:
            way_out = f"{pass_type.__name__} is no dataclass: write @dataclass(frozen=True) above it"
            undecorated = key in inspect.get_annotations(pass_type)
            others = meant(key, fields, "its options are") if fields else "it has none"
            raise TileError(
                f"pass {name} has no option {key!r}; {others}",
                notes=[way_out] if undecorated else [],
            )
        default = fields[key].default
        if type(default) is float and type(value) is int:
            options = {**options, key: float(value)}
        elif default is not None and type(default) is not type(value):
            words = ", true or false" if type(default) is bool else ""
            raise TileError(f"pass {name}: {key}={value!r}, but its type is {type(default).__name__}{words}")
    try:
        return pass_type(**options)
    except TileError:
        raise
    except Exception as error:
        if is_ours(pass_type):
            raise
        shown = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise TileError(
            f"{pass_type.__name__}({shown}) cannot be made: {type(error).__name__}: {error}", notes=raised_at(error)
        ) from error
