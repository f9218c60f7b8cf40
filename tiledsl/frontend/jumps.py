"""Jumps: break and continue of device loops, and T.thread_return, which a function that is expanded may hold, too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.frontend.names import Scope
from tiledsl.ir.types import BufferType
from tiledsl.language.buffer import Var
from tiledsl.language.context import Context

JUMPS = {"loop_break": "break", "thread_return": "return"}


class Jumps:
    """The flags of a device loop whose body has break or continue, and of a kernel whose body has T.thread_return."""

    def __init__(self, ctx: Context, stops: bool) -> None:
        self.skip = Var(ctx.alloc(BufferType((), "bool", "local"), "a loop", name="skip"))
        self.stop = Var(ctx.alloc(BufferType((), "bool", "local"), "a loop", name="stop")) if stops else None


def jumping(statements: tuple[syntax.Statement, ...], names: Scope) -> frozenset[str]:
    """Which of break and continue belong to the loop whose body this is; "return" if T.thread_return is inside.

    T.thread_return may also stand in a macro, or in a nested function, that one of the statements calls.
    """
    found, functions, defined = _jumps_in(statements)
    if any(_leaves(each, names, defined, ()) for each in functions):
        found |= {"return"}
    return found


def called(statement: syntax.Statement) -> str:
    """The name behind the last point of a function whose call is a statement; "" of any other statement."""
    call = statement.value if isinstance(statement, syntax.ExpressionStatement) else None
    function = call.function if isinstance(call, syntax.Call) else None
    return function.attr if isinstance(function, syntax.Attribute) else ""


_Functions = Mapping[str, syntax.Function]


@lru_cache(maxsize=1024)
def _jumps_in(
    statements: tuple[syntax.Statement, ...],
) -> tuple[frozenset[str], tuple[syntax.Expression, ...], _Functions]:
    """The jumps that stand there, the functions whose calls are statements, and the functions that are defined."""
    kinds: set[str] = set()
    functions: list[syntax.Expression] = []
    defined: dict[str, syntax.Function] = {}
    for statement in statements:
        own: tuple[syntax.Statement, ...] = ()
        looped: tuple[syntax.Statement, ...] = ()
        if isinstance(statement, syntax.Break):
            kinds.add("break")
        elif isinstance(statement, syntax.Continue):
            kinds.add("continue")
        elif isinstance(statement, syntax.Function):
            defined[statement.name] = statement
        elif isinstance(statement, syntax.If):
            own = (*statement.body, *statement.orelse)
        elif isinstance(statement, (syntax.For, syntax.While)):
            looped, own = statement.body, statement.orelse
        elif isinstance(statement, syntax.With):
            own = statement.body
        elif called(statement) in JUMPS:
            kinds.add(JUMPS[called(statement)])
        else:
            functions += _callee(statement)
        for inner, around in ((own, {"break", "continue", "return"}), (looped, {"return"})):
            jumps, called_there, defined_there = _jumps_in(inner)
            kinds |= jumps & around
            functions += called_there
            defined.update(defined_there)
    return frozenset(kinds), tuple(functions), defined


def _callee(statement: syntax.Statement) -> list[syntax.Expression]:
    """The function that a statement calls and does nothing else with than to give its value a name, or return it."""
    if isinstance(statement, syntax.Assign) and not all(_is_name(target) for target in statement.targets):
        return []
    if isinstance(statement, (syntax.ExpressionStatement, syntax.Assign, syntax.Return)):
        return [statement.value.function] if isinstance(statement.value, syntax.Call) else []
    return []


def _is_name(target: syntax.Expression) -> bool:
    if isinstance(target, (syntax.Tuple, syntax.List)):
        return all(_is_name(each) for each in target.elements)
    return isinstance(target, syntax.Name)


def _leaves(
    function: syntax.Expression, names: Scope, defined: _Functions, around: tuple[syntax.Function, ...]
) -> bool:
    """Whether the function of a call has T.thread_return, or calls one that has."""
    if isinstance(function, syntax.Name) and function.id in defined:
        tree = defined[function.id]
    else:
        expanded = expansion(_value(function, names))
        if expanded is None:
            return False
        tree, local, outer = expanded
        names = Scope(outer)
        names.local = local
    if any(tree is each for each in around):
        return False
    found, functions, inner = _jumps_in(tree.body)
    around = (*around, tree)
    return "return" in found or any(_leaves(each, names, {**defined, **inner}, around) for each in functions)


def _value(function: syntax.Expression, names: Scope) -> Any:
    """What a name, or an attribute of what has a name, stands for; None where that is not known."""
    if isinstance(function, syntax.Attribute):
        owner = _value(function.value, names)
        # Statically: to look must not run a property of a user's object.
        found = None if owner is None else inspect.getattr_static(owner, function.attr, None)
        return getattr(found, "__func__", found)
    if not isinstance(function, syntax.Name):
        return None
    if function.id in names.local:
        return names.local[function.id]
    try:
        return names.outer(function.id)
    except TileError:
        return None


def expansion(function: Any) -> tuple[syntax.Function, dict[str, Any], Callable[[str], Any]] | None:
    """The body of a function that is expanded where it is called, with the names that it sees; None of all others."""
    if isinstance(function, functools.partial):
        function = function.func
    made = getattr(function, "expands", None) if callable(function) else None
    return made if isinstance(made, tuple) else None
