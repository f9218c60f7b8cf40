"""What an option of the tuner is: a field of a dataclass with its check and its text; see options.py for all of them.

Signatures, checks and help() are made from the fields.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field, fields, replace
from typing import Any, ParamSpec, TypeVar

from tiledsl.errors import TileError, brief

Check = tuple[str, Callable[[Any], Any]]  # what is allowed, in words, and whether a value is
P = ParamSpec("P")
R = TypeVar("R")

# The order of help().
_SECTIONS = (
    "Measuring", "Checking", "Numbers that do not depend on luck", "Searching", "Remembering", "Tuned-config files",
)  # fmt: skip


def is_number(value: Any, least: float = -math.inf) -> bool:
    """Whether a value is a finite number, from `least` on."""
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_one and math.isfinite(value) and value >= least


def is_count(value: Any, least: int) -> bool:
    """Whether a value is a whole number, from `least` on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_path(value: Any) -> bool:
    """Whether a value may name a folder."""
    return isinstance(value, (str, os.PathLike))


def of_type(kind: type, words: str) -> Check:
    return words, lambda value: isinstance(value, kind)


def one_of(*values: str) -> Check:
    shown = [repr(value) for value in values]
    return f"{', '.join(shown[:-1])} or {shown[-1]}", lambda value: value in values


def as_tuple(value: Any, alone: Any = ()) -> Any:
    """The values of a list; a value of a type that may stand `alone`; none for None. Others stay as they are."""
    if isinstance(value, alone):
        return (value,)
    value = value or ()
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, Mapping)) else value


def option(
    section: str, default: Any, check: Check | None, doc: str, becomes: Callable[[Any], Any] | None = None
) -> Any:
    """An option, under `section` in help(). check: what it may be besides a default of None; None: its class checks it.
    becomes: what is made of a value before."""
    return field(default=default, metadata={"section": section, "check": check, "doc": doc, "becomes": becomes})


def check_options(options: Any) -> None:
    """TileError for an option that is not what it may be; the others become what they are made to."""
    for option in fields(options):
        given = value = getattr(options, option.name)
        if value is None and option.default is None:
            continue
        if option.metadata["becomes"] is not None:
            value = option.metadata["becomes"](value)
            object.__setattr__(options, option.name, value)
        if option.metadata["check"] is not None:
            allowed, is_right = option.metadata["check"]
            if not is_right(value):
                raise TileError(f"autotune: {option.name} is {brief(given)}; it must be {allowed}")


def with_changes(options: R, changes: Mapping[str, Any], taker: str = "autotune") -> R:
    """Options with some of them changed. TileError for those that there are not."""
    known = {each.name for each in fields(options)}  # type: ignore[arg-type]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise TileError(f"{taker} has no option {unknown[0]!r}", notes=[f"there are {', '.join(sorted(known))}"])
    return replace(options, **changes)  # type: ignore[type-var]


def by_section(options: Any) -> dict[str, list[Field[Any]]]:
    """The options of a class in the order of help()."""
    sections: dict[str, list[Field[Any]]] = {name: [] for name in _SECTIONS}
    for each in fields(options):
        sections[each.metadata["section"]].append(each)
    return {name: listed for name, listed in sections.items() if listed}


def described(options: type[R]) -> type[R]:
    """Decorator: add its options to the docstring of a class."""
    lines = [options.__doc__ or ""]
    for section, listed in by_section(options).items():
        lines += ["", f"    {section}", *(f"    {each.name}: {each.metadata['doc']}" for each in listed)]
    options.__doc__ = "\n".join([*lines, "    "])
    return options


def takes(options: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Decorator: the signature of a class of options for a function of `**options`, behind its own parameters."""

    def signed(function: Callable[..., R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = [each for each in signature.parameters.values() if each.kind not in variadic]
        parameters += [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
            for listed in by_section(options).values()
            for each in listed
        ]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return signed
