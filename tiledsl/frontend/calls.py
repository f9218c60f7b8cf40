"""Calls of functions that are expanded where they are called: which parameter has which value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.language.buffer import Buffer, Reference, Var
from tiledsl.language.expression import Scalar, describe


def bind(
    function: str,
    parameters: Sequence[syntax.Parameter],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> dict[str, Any]:
    """Parameters and their values for a call. Values of variables are read, unless the parameter is a T.Ref."""
    bound: dict[str, Any] = {}
    positional = list(arguments)
    named = dict(keywords)
    for parameter in parameters:
        if parameter.kind == "*":
            bound[parameter.name], positional = tuple(positional), []
        elif parameter.kind == "**":
            bound[parameter.name], named = named, {}
        elif positional and parameter.kind != "kw":
            if parameter.name in named and parameter.kind != "/":
                raise TileError(f"{function} is called with two values for {parameter.name}")
            bound[parameter.name] = positional.pop(0)
        elif parameter.name in named and parameter.kind != "/":
            bound[parameter.name] = named.pop(parameter.name)
        elif parameter.name in defaults:
            bound[parameter.name] = defaults[parameter.name]
        else:
            raise TileError(f"{function} is called without {parameter.name}")
        value = bound[parameter.name]
        if not _is_reference(parameter.annotation):
            bound[parameter.name] = Scalar(value.value()) if isinstance(value, Var) else value
        elif not isinstance(value, (Var, Reference, Buffer)):
            raise TileError(
                f"{function}: {parameter.name} is passed by reference, so it is a variable or a place, not "
                f"{describe(value)}",
                notes=["make a variable: T.alloc_var(dtype, init)"],
            )
    if positional or named:
        extra = (
            f"{len(positional)} argument{'s' * (len(positional) > 1)} too many"
            if positional
            else f"the unknown argument {next(iter(named))}"
        )
        raise TileError(f"{function} is called with {extra}")
    return bound


def _is_reference(annotation: syntax.Expression | None) -> bool:
    """Whether a parameter's annotation is T.Ref, or T.Var, its older name."""
    if isinstance(annotation, syntax.Subscript):
        annotation = annotation.value
    return (
        isinstance(annotation, syntax.Attribute)
        and annotation.attr in ("Ref", "Var")
        or (isinstance(annotation, syntax.Name) and annotation.id in ("Ref", "Var"))
    )
