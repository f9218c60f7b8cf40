"""Tracebacks without the frames of this package: a mistake of the user's ends at the user's line."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType, TracebackType

_ROOT = os.path.dirname(os.path.abspath(__file__))
PACKAGES = tuple(
    os.path.join(folder, "")
    for folder in {_ROOT, *(os.path.realpath(os.path.join(_ROOT, name)) for name in ("passes", "autotuner"))}
)
shows_all: Callable[[], bool] = lambda: False  # noqa: E731  # settings.py says what the setting full_tracebacks is


def is_internal(file: str) -> bool:
    """Whether a frame of a traceback with this file is of this package, or of Python's import machinery."""
    return file.startswith((*PACKAGES, "<frozen importlib"))


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame is of this package or of source that it has emitted."""
    return is_internal(frame.f_code.co_filename) or str(frame.f_globals.get("__name__")).startswith("_tiledsl_")


@functools.cache
def _libraries() -> tuple[str, ...]:
    import sysconfig

    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return *(os.path.join(folder, "") for folder in folders), "<frozen"


def is_library(file: str) -> bool:
    """Whether a frame of a traceback with this file is of Python or of what is installed."""
    return file.startswith(_libraries())


def shorten(error: BaseException) -> None:
    """Take the frames of this package, and of what it called in libraries, out of the traceback of an error and of the
    errors that it came from, unless the setting full_tracebacks is on."""
    if shows_all():
        return
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            current.__traceback__ = _shortened(current.__traceback__)
            pending += [current.__cause__, None if current.__suppress_context__ else current.__context__]


def _shortened(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    was_internal = False
    while trace is not None:
        if _is_ours(trace.tb_frame):
            was_internal = True
        elif not (was_internal and is_library(trace.tb_frame.f_code.co_filename)):
            kept.append(trace)
        trace = trace.tb_next
    chain: TracebackType | None = None
    for each in reversed(kept):
        chain = TracebackType(chain, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return chain


def ends_in_users_code(trace: TracebackType | None) -> bool:
    """Whether this package has called the user's code, which raised, itself or in a library that it called."""
    was_internal = is_user = False
    while trace is not None:
        is_ours = _is_ours(trace.tb_frame)
        was_internal |= is_ours
        if is_ours or not is_library(trace.tb_frame.f_code.co_filename):
            is_user = not is_ours
        trace = trace.tb_next
    return was_internal and is_user


def in_notebook(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame on that is of no library: a cell's."""
    first = trace
    while first is not None and is_library(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or trace


def shorten_uncaught(is_users: Callable[[BaseException], bool]) -> None:
    """Have Python print the tracebacks of a user's mistakes short, where nothing catches them."""
    printed = sys.excepthook

    def print_short(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_users(error) and not shows_all():
            shorten(error)
            trace = error.__traceback__
        printed(kind, error, trace)

    sys.excepthook = print_short
