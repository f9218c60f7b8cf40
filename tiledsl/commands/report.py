"""`--json` of every command: one JSON object on stdout, of a schema that docs/cli.md documents; errors, too."""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from tiledsl.errors import PassFailure, TileError
from tiledsl.location import UNKNOWN, Loc

SCHEMA = 1
_C = TypeVar("_C", bound=click.Command)
_PRINTED = ("text",)
_fields: dict[click.Command, tuple[str, ...]] = {}


def gives(*names: str) -> Callable[[_C], _C]:
    """Decorator of a command: what `data` has of it, null where a run does not say it. Without it, what it prints:
    `text`. A new name leaves SCHEMA as it is; another meaning of a name, or one that is gone, does not."""

    def noted(command: _C) -> _C:
        _fields[command] = names
        return command

    return noted


def fields_of(command: click.Command) -> tuple[str, ...]:
    return _fields.get(command, _PRINTED)


@dataclass
class _Report:
    command: str
    fields: tuple[str, ...]
    data: dict[str, Any] = field(default_factory=dict)


_current: ContextVar[_Report | None] = ContextVar("tiledsl_json", default=None)


def in_json() -> bool:
    """Whether this command ends in one JSON object: then nothing is asked, and what it prints is not shown."""
    return _current.get() is not None


def give(**values: Any) -> None:
    """Say what `data` has of this command, by the names in its @gives; of a list that is given again, more of it.
    Without --json nothing comes of it."""
    report = _current.get()
    if report is None:
        return
    unknown = [name for name in values if name not in report.fields]
    assert not unknown, f"{report.command} gives {unknown[0]!r}: name it in @gives of the command, and in docs/cli.md"
    for name, value in values.items():
        known = report.data.get(name)
        report.data[name] = [*known, *value] if isinstance(known, list) and isinstance(value, list) else value


def wants_json(group: click.Group, words: Sequence[str]) -> tuple[bool, str, tuple[str, ...]]:
    """Whether the words of a command line have --json, which command they call, and what `data` has of it. What follows
    a script is its own.

    Told before anything is parsed, so that mistakes in options are JSON, too.
    """
    in_json, name = False, ""
    command: click.Command = group
    for word in words:
        if word == "--" or (name == "run" and not word.startswith("-")):
            break
        in_json |= word == "--json"
        if isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
            name = f"{name} {word}".strip()
    return in_json, name, fields_of(command)


def run_in_json(run: Callable[[], Any], name: str, fields: tuple[str, ...]) -> int:
    """Run a command, print its object, and return its status. What it prints goes nowhere; a script's goes to
    stderr."""
    report, text = _Report(name, fields), io.StringIO()
    token = _current.set(report)
    error: dict[str, Any] | None = None
    try:
        with _to_stderr(), redirect_stdout(sys.stderr if name == "run" else text):
            status, error = _ended(run)
    finally:
        _current.reset(token)
    if fields == _PRINTED:
        report.data.setdefault("text", text.getvalue() or None)
    data = {**dict.fromkeys(fields), **report.data}
    envelope = {"schema": SCHEMA, "command": name, "status": status, "error": error, "data": plain(data)}
    sys.stdout.write(json.dumps(envelope, allow_nan=False) + "\n")
    sys.stdout.flush()
    return status


def _ended(run: Callable[[], Any]) -> tuple[int, dict[str, Any] | None]:
    """The status of a command and what went wrong."""
    try:
        returned = run()
    except SystemExit as stop:
        code = stop.code
        said = None if code is None or isinstance(code, int) else _error("exit", str(code))
        return (int(code or 0) if said is None else 1), said
    except click.ClickException as mistake:
        return mistake.exit_code, _error("usage", mistake.format_message())
    except (click.Abort, KeyboardInterrupt):
        return 1, _error("interrupted", "interrupted")
    except TileError as mistake:
        return 1, described(mistake)
    except PassFailure as failure:
        return 1, _failed(failure)
    except Exception as failure:  # a mistake of ours
        traceback.print_exc()
        return 1, _error("internal", f"{type(failure).__name__}: {failure}")
    return (returned if isinstance(returned, int) and not isinstance(returned, bool) else 0), None


@contextmanager
def _to_stderr() -> Iterator[None]:
    """What is written to the descriptor of stdout meanwhile, by whatever library, goes to stderr."""
    try:
        number = sys.__stdout__.fileno() if sys.__stdout__ is not None and sys.stdout is sys.__stdout__ else -1
    except (OSError, ValueError, AttributeError):
        number = -1
    if number < 0:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(number)
    os.dup2(2, number)
    try:
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"kind": kind, "code": "", "message": message, **_place(None), "notes": [], "text": message}


def _failed(failure: PassFailure) -> dict[str, Any]:
    """A pass's failure as JSON: `file` is the program to report; the notes say where the user's pass raised, and where
    the kernel is."""
    notes = []
    if failure.place is not None:
        file, line, name = failure.place
        notes.append({"message": f"raised in {name}", **_place(None), "file": file, "line": line})
    if failure.program is not None:
        notes.append({"message": "the kernel", **_place(failure.program)})
    return {**_error("pass failure", str(failure)), "file": failure.reproducer or None, "notes": notes}


def _place(loc: Loc | None) -> dict[str, Any]:
    names = ("file", "line", "column", "end_line", "end_column")
    return {name: None if loc is None or loc is UNKNOWN else getattr(loc, name) for name in names}


def described(error: TileError) -> dict[str, Any]:
    """A user's mistake as JSON: message, place (lines and columns count from 1), notes, and the text that is printed
    without --json."""
    notes = [(note, None) if isinstance(note, str) else note for note in error.notes]
    said = [{"message": text, **_place(loc)} for text, loc in notes]
    known = {"kind": "mistake", "code": error.code, "message": error.message}
    return {**known, **_place(error.loc), "notes": said, "text": str(error)}


def plain(value: Any) -> Any:
    """A value as strict JSON has it: no NaN, no infinity; paths and other objects as their text."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
