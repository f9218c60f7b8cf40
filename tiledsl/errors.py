"""Errors for users: one exception class, shown with file, line and caret."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from tiledsl.location import UNKNOWN, Loc
from tiledsl.tracebacks import (
    PACKAGES,
    ends_in_users_code,
    in_notebook,
    is_internal,
    is_library,
    shorten,
    shorten_uncaught,
)

if TYPE_CHECKING:
    from traceback import FrameSummary

_WIDTH = 200  # of a quoted line
_NEWLINE = re.compile(r"\r\n?|\n")  # as the parser counts lines; str.splitlines ends them at form feeds, too
_sources: dict[str, list[str]] = {}


def register_source(file: str, text: str) -> None:
    """Remember the text of a program that is not in a file, so that errors can quote it."""
    _sources[file] = _NEWLINE.split(text)


def source_line(file: str, line: int) -> str:
    """The text of one line (counted from 1) of a registered source or a file; '' where there is none."""
    if file in _sources:
        lines = _sources[file]
        return lines[line - 1] if 0 < line <= len(lines) else ""
    return linecache.getline(file, line).rstrip("\n")


class TileError(Exception):
    """A mistake in the user's program or call.

    `message` is one sentence with the values involved. `loc` is the range in the user's file, if known. `notes` are
    further lines, such as a way to fix the mistake; each is text or a (text, Loc) pair. `code` names the kind of
    mistake where `tiledsl explain CODE` has more to say of it, see mistakes.py; else it is "".
    """

    def __init__(
        self, message: str, loc: Loc | None = None, notes: Sequence[str | tuple[str, Loc]] = (), code: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.loc = loc if loc is not UNKNOWN else None
        self.notes = list(notes)

    def __str__(self) -> str:
        if self.loc is None:
            head = [self.message]
        else:
            head = [f"{_short(self.loc)}: error: {self.message}", *_excerpt(self.loc)]
        for note in self.notes:
            text, loc = (note, None) if isinstance(note, str) else note
            head.append(f"  note: {text}" + (f" at {_short(loc)}" if loc and loc is not UNKNOWN else ""))
        if self.code:
            head.append(f"  more: tiledsl explain {self.code}")
        return "\n".join(head)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback with all frames."""
        import traceback

        shorten(self)
        self.__traceback__ = in_notebook(self.__traceback__)
        return "".join(traceback.format_exception(type(self), self, self.__traceback__)).splitlines()

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.loc, self.notes, self.code))


def is_users(error: BaseException) -> bool:
    """Whether an error is a mistake of the user's: a TileError, or what the user's code raised when we called it."""
    return isinstance(error, TileError) or ends_in_users_code(error.__traceback__)


shorten_uncaught(is_users)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def ends_tracebacks(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator for what users call: the traceback of a user's mistake has no frame of this package there, see
    tracebacks.py."""

    @functools.wraps(function)
    def called(*arguments: _P.args, **keywords: _P.kwargs) -> _R:
        __tracebackhide__ = True  # for pytest
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            if not is_users(error):
                raise
            shorten(error)
            raise error

    return called


class PassFailure(Exception):
    """A pass failed on valid input, or left invalid IR: a bug in tiledsl, or in the user's module that the pass is
    from. `reproducer` is the file to report, '' where the program could not be made again; `again` says why. `program`
    is where the kernel is, and `place` where the user's pass raised: a file, a line, and a function or ''."""

    def __init__(
        self,
        spec: str,
        error: BaseException,
        reproducer: str,
        module: str = "",
        program: Loc | None = None,
        again: BaseException | None = None,
    ) -> None:
        whose = f"a bug in the pass, which is from {module}" if module else "a bug in tiledsl"
        self.spec = spec
        self.reproducer = reproducer
        self.program = program if program is not UNKNOWN else None
        self.place: tuple[str, int, str] | None = None
        said, shown = str(error) or repr(error), ""
        if module and (frame := users_frame(error)) is not None:
            import traceback

            self.place = frame.filename, frame.lineno or 1, frame.name
            said, shown = f"{type(error).__name__}: {error}", "\n" + "".join(traceback.format_list([frame])).rstrip()
        kept = f"the program is in {reproducer}"
        if again is not None:
            kept = f"the program could not be made again: {(str(again) or repr(again)).splitlines()[0]}"
        where = f"\nThe kernel is at {_short(self.program)}" if self.program and module else ""
        super().__init__(f"pass {spec} failed: {said}{shown}{where}\nThis is {whose}; {kept}")


def users_frame(error: BaseException) -> FrameSummary | None:
    """The last frame of the user's code in a traceback; of libraries', if that has no other."""
    import traceback

    frames = [each for each in traceback.extract_tb(error.__traceback__) if not is_internal(each.filename)]
    return next((each for each in reversed(frames) if not is_library(each.filename)), frames[-1] if frames else None)


def raised_at(error: BaseException) -> list[str]:
    """A note of where the user's code raised an error, if it did."""
    frame = users_frame(error)
    return [] if frame is None else [f"raised at {frame.filename}:{frame.lineno}, in {frame.name}"]


_on_command_line: ContextVar[bool] = ContextVar("tiledsl_on_command_line", default=False)


@contextmanager
def on_command_line(yes: bool = True) -> Iterator[None]:
    """Have notes suggest command-line options instead of Python, within the block."""
    token = _on_command_line.set(yes)
    try:
        yield
    finally:
        _on_command_line.reset(token)


def way_out(python: str, command_line: str) -> str:
    """What a note suggests: Python, or options of the command that the user has run."""
    return command_line if _on_command_line.get() else python


def meant(name: str, known: Iterable[str], otherwise: str = "there are") -> str:
    """The end of a message about a name that is none of those known: the one that was probably meant, else all."""
    import difflib  # only a mistake asks for it

    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(names)}"


def brief(value: object) -> str:
    """A value for a message: of a tensor or an array its type and shape, of others at most 80 characters."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None and not isinstance(value, type):
        sizes = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
        return f"a {type(value).__module__.partition('.')[0]} {type(value).__name__} of shape ({sizes}) and {dtype}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def value_options(names: Iterable[str]) -> str:
    """`-D M=... -D N=...`"""
    return " ".join(f"-D {name}=..." for name in names)


def user_loc() -> Loc | None:
    """Where the user's code called into this package, through torch or not, for errors that have no place in a tree."""
    frame: FrameType | None = sys._getframe(1)
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    others = PACKAGES if torch is None else (*PACKAGES, os.path.dirname(torch) + os.sep)
    while frame is not None and frame.f_code.co_filename.startswith(others):
        frame = frame.f_back
    if frame is None:
        return None
    file, line = frame.f_code.co_filename, frame.f_lineno
    if file.startswith("<") and not source_line(file, line):  # a doctest or a cell has text
        return None
    if hasattr(frame.f_code, "co_positions"):  # Python 3.11
        place = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
        first, last, start, end = place or (None, None, None, None)
        if first is not None and last is not None and start is not None and end is not None:
            return Loc(file, first, _column(file, first, start), last, _column(file, last, end))
    text = source_line(file, line)
    return Loc(file, line, len(text) - len(text.lstrip()) + 1, line, len(text) + 1)


def _column(file: str, line: int, offset: int) -> int:
    """The column, from 1 on, of a byte of a line's UTF-8, which is how Python counts."""
    text = source_line(file, line)
    return offset + 1 if text.isascii() else len(text.encode()[:offset].decode(errors="ignore")) + 1


def _short(loc: Loc) -> str:
    return f"{os.path.basename(loc.file)}:{loc.line}:{loc.column}"


def _excerpt(loc: Loc) -> list[str]:
    text = source_line(loc.file, loc.line)
    if not text:
        return []
    if len(text) > _WIDTH:  # a window that starts a little before the caret
        start = min(max(0, loc.column - 40), len(text) - _WIDTH)
        text = text[start : start + _WIDTH]
        loc = Loc(loc.file, loc.line, max(1, loc.column - start), loc.end_line, max(1, loc.end_column - start))
    last = loc.end_column if loc.end_line == loc.line else len(text) + 1
    width = max(1, min(last, len(text) + 1) - loc.column)
    number = f"{loc.line:6d} | "
    at = loc.column - 1
    caret = "^" * max(1, _cells(text[at : at + width]))
    return [number + text, " " * (len(number) - 2) + "| " + _blank(text[:at].ljust(at)) + caret]


def _blank(text: str) -> str:
    """Space as wide as the text is on a terminal."""
    return "".join("\t" if each == "\t" else " " * _cells(each) for each in text)


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes; Chinese, Japanese and Korean characters take two."""
    return sum(1 + (unicodedata.east_asian_width(each) in "WF") - bool(unicodedata.combining(each)) for each in text)
