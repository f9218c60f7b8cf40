"""Passes from text: `name{option=value}`, as `Pass.spec` writes them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tiledsl.errors import TileError
from tiledsl.ir.parser import WORDS, Parser
from tiledsl.ir.pass_manager import PASSES, Pass


def parse_pipeline(spec: str) -> list[Pass]:
    """Passes from `a,b{option=value other=value},c`. Raises TileError for an unknown pass, option or value."""
    try:
        parser = Parser(spec, "<pipeline>")
        written = _written(parser)
    except TileError as error:
        error.notes.append('passes are written a,b{option=value other="A=tma,C=pointer"}')
        raise
    passes: list[Pass] = []
    for name, options in written:
        try:
            passes.append(make_pass(name.group(), options))
        except TileError as error:
            raise parser.error(error.message, name) from None
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


def make_pass(name: str, options: dict[str, Any]) -> Pass:
    """A pass by name with these options. Raises TileError for an unknown name, option or a value of another type."""
    if name not in PASSES:
        raise TileError(f"no pass is named {name!r}; there are {', '.join(sorted(PASSES))}")
    pass_type = PASSES[name]
    known = {option.name: option for option in dataclasses.fields(pass_type)}
    for key, value in options.items():
        if key not in known:
            raise TileError(f"pass {name} has no option {key!r}; its options are {', '.join(known) or 'none'}")
        default = known[key].default
        if type(default) is float and type(value) is int:
            options = {**options, key: float(value)}
        elif default is not None and type(default) is not type(value):
            words = ", true or false" if type(default) is bool else ""
            raise TileError(f"pass {name}: {key}={value!r}, but its type is {type(default).__name__}{words}")
    return pass_type(**options)
