"""Rules of the syntax that the grammar leaves open: assignment targets, stars, the order of parameters."""

from __future__ import annotations

from collections.abc import Sequence

from lark import Token

from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.frontend.indentation import token_loc
from tiledsl.frontend.syntax import Expression, Parameter

_PLACES = (syntax.Name, syntax.Attribute, syntax.Subscript)


def check_target(target: Expression, single: bool = False) -> None:
    """Refuse to assign to anything but names, attributes, elements and, unless `single`, unpackings of them."""
    if isinstance(target, _PLACES):
        return
    if not single and isinstance(target, syntax.Tuple | syntax.List):
        if sum(isinstance(item, syntax.Starred) for item in target.elements) > 1:
            raise TileError("only one starred target is allowed in an assignment", target.loc)
        for item in target.elements:
            check_target(item.value if isinstance(item, syntax.Starred) else item)
        return
    message = "this cannot be assigned to; a target is a name, an attribute, an element or a tuple of these"
    raise TileError(message, target.loc)


def check_plain(value: Expression | None) -> None:
    """Refuse `*value` on its own, where nothing collects what it would unpack to."""
    if isinstance(value, syntax.Starred):
        raise TileError("a starred expression can only stand in a call, a tuple, a list or a set", value.loc)


def ordered_parameters(items: Sequence[Parameter | Token], file: str) -> tuple[Parameter, ...]:
    """Check the order of a parameter list and set the kinds that a bare '*' or '/' (given as tokens) decides."""
    parameters: list[Parameter] = []
    seen: set[str] = set()
    stage = ""  # the kind that a plain parameter has from here on; '**' once nothing may follow
    needs_default = False
    for at, item in enumerate(items):
        if isinstance(item, Token):
            loc = token_loc(file, item)
            if item == "/":
                if not parameters or stage or any(p.kind for p in parameters):
                    raise TileError("'/' must follow at least one parameter and come before any '*'", loc)
                parameters = [_of_kind(p, "/") for p in parameters]
                continue
            after = items[at + 1] if at + 1 < len(items) else None
            if stage or not isinstance(after, Parameter) or after.kind:
                raise TileError("a bare '*' must come once, before keyword-only parameters", loc)
            stage = "kw"
            continue
        if item.name in seen:
            raise TileError(f"two parameters are called {item.name!r}", item.loc)
        seen.add(item.name)
        if stage == "**" or (item.kind == "*" and stage):
            raise TileError(f"the parameter {item.name!r} comes too late in the list", item.loc)
        if item.kind:
            stage = "kw" if item.kind == "*" else "**"
        elif stage:
            item = _of_kind(item, "kw")
        elif needs_default and item.default is None:
            raise TileError(f"the parameter {item.name!r} needs a default, because one before it has one", item.loc)
        needs_default = needs_default or item.default is not None
        parameters.append(item)
    return tuple(parameters)


def _of_kind(p: Parameter, kind: str) -> Parameter:
    return Parameter(p.loc, p.name, p.annotation, p.default, kind)
