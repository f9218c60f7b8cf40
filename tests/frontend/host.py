"""Runs the body of a function as Python does, and as what an elaborated program runs while it is built."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tiledsl.language as T
from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.frontend.elaborate import elaborate_tree
from tiledsl.frontend.names import Scope, unknown_name
from tiledsl.frontend.parser import parse_module
from tiledsl.frontend.statements import Statements
from tiledsl.frontend.text_program import _BUILTINS, MAX_STEPS, TextStatements, _Function, _Language
from tiledsl.language.context import Context

MAX_LINES = 2000
KERNEL = '    O = T.alloc_global((1,), "int32")\n    with T.Kernel(1):\n        T.print(O[0])\n'
PLAIN = (int, float, str, bytes, bool, type(None), type(...), range)


class TooLong(BaseException):
    """The program runs too many lines."""


@dataclass
class Run:
    """What a body noted, what its names are at last, and how it ended."""

    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def message(self) -> str:
        return getattr(self.error, "message", "").replace("_Function", "function")

    def observer(self) -> Callable[..., None]:
        def note(*values: Any) -> None:
            self.notes.append(repr(values) if is_plain(values) else "?")

        return note

    def keep(self, names: dict[str, Any]) -> None:
        self.names = {name: repr(value) for name, value in names.items() if is_plain(value)}


def is_plain(value: Any) -> bool:
    """Whether a value looks the same wherever it comes from."""
    if isinstance(value, dict):
        return is_plain((*value, *value.values()))
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return isinstance(value, PLAIN)


def function(body: str) -> str:
    return "def main():\n" + "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))


def traced(main: Callable[..., Any], arguments: Sequence[Any] = (), kept: Callable[[Any], None] = id) -> None:
    """Call a function of a text; `kept` gets its names when it ends. Raises TooLong after so many lines."""
    lines = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines > MAX_LINES:
            raise TooLong
        if event == "return" and frame.f_code is main.__code__:
            kept(frame.f_locals)
        return trace if frame.f_code.co_filename == main.__code__.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        main(*arguments)
    finally:
        sys.settrace(before)


def in_python(text: str) -> Run:
    """Run `main` of a text. Raises SyntaxError and TooLong."""
    run = Run()
    names: dict[str, Any] = {"note": run.observer()}
    exec(compile(text, "host", "exec", dont_inherit=True), names)
    try:
        traced(names["main"], kept=run.keep)
    except Exception as error:
        run.error = error
    return run


def while_built(text: str, as_text: bool) -> Run:
    """The same as a part of a program that is elaborated: of a Python function, or of a text."""
    run = Run()
    note = run.observer()
    (main,) = parse_module(text + KERNEL, "host").body
    assert isinstance(main, syntax.Function)
    made: list[Statements] = []
    if as_text:
        others = {name: _Function(name, getattr(builtins, name)) for name in ("any", "enumerate", "sorted", "zip")}
        known = {**_BUILTINS, **others, "T": _Language(), "note": _Function("note", note)}
    else:
        known = {**vars(builtins), "T": T, "note": note}

    def look(name: str) -> Any:
        if name not in known:
            raise unknown_name(name, known)
        return known[name]

    def make(ctx: Context, names: Scope) -> Statements:
        made.append(TextStatements(ctx, names, known["T"], [MAX_STEPS]) if as_text else Statements(ctx, names))
        return made[0]

    try:
        elaborate_tree(main, look, statements=make)
    except TileError as error:
        run.error = error if "has no `with T.Kernel" not in error.message else None  # it returned before that
    run.keep(made[0].names.local)
    return run
