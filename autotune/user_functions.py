"""Functions of the user's that say something of a call: what they are given, and what becomes of what they raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tiledsl.errors import TileError


@contextmanager
def errors_of(what: str, *notes: str) -> Iterator[None]:
    """Inside, what a function of the user's raises, SystemExit included, becomes a TileError that names it as `what`.
    A TileError stays as it is, and so does KeyboardInterrupt."""
    try:
        yield
    except TileError:
        raise
    except (Exception, SystemExit) as error:
        raise TileError(f"{what} raises {type(error).__name__}: {error}", notes=list(notes)) from error


def named_arguments(function: Callable[..., Any], values: Mapping[str, Any], behind: int = 0) -> dict[str, Any]:
    """Those of a call's values that a function asks for by name; the first `behind` of its parameters are others."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[behind:]
    except ValueError:  # a built-in function that does not say
        return {}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return {name: value for name, value in values.items() if takes_all or name in names}
