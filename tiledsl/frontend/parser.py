"""Source text to syntax trees: functions, whole text programs and single expressions.

The lark parser is made on first use. Its LALR table takes half a second to compute, so lark keeps it in a file under
the setting cache_dir; without a usable folder it is computed anew in every process.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from tiledsl.errors import TileError, register_source
from tiledsl.files import make_private
from tiledsl.frontend import syntax
from tiledsl.location import Loc
from tiledsl.settings import current

if TYPE_CHECKING:
    from lark import Lark

    from tiledsl.frontend.indentation import LineStructure
    from tiledsl.frontend.tree_builder import TreeBuilder

_NEWLINES = re.compile(r"\r\n?")
_lock = threading.RLock()
_functions: dict[int, tuple[weakref.ref[CodeType], syntax.Function]] = {}


class _Machine(NamedTuple):
    lark: Lark
    lines: LineStructure
    builder: TreeBuilder


_machine: _Machine | None = None


def parse_function(function: Callable[..., Any]) -> syntax.Function:
    """The tree of a Python function, from its source file, with lines and columns as in that file.

    Follows `__wrapped__`, so a decorated function gives what the user wrote. The tree is made once a code object.
    Raises TileError for lambdas, for functions without source, and for syntax outside the language.
    """
    inner: Any = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    if not isinstance(inner, FunctionType):
        raise TileError(f"expected a Python function, but got {type(inner).__name__}")
    code = inner.__code__
    if code.co_name == "<lambda>":
        loc = Loc(code.co_filename, code.co_firstlineno, 1, code.co_firstlineno, 1)
        raise TileError("a lambda cannot be a kernel; write it as a function with `def`", loc)
    known = _functions.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    tree = _read_function(code)
    key = id(code)
    _functions[key] = (weakref.ref(code, lambda _: _functions.pop(key, None)), tree)
    return tree


def parse_module(text: str, file: str = "<text>") -> syntax.Module:
    """The tree of a whole text program. The text is registered, so that later errors can quote it."""
    register_source(file, text)
    tree = _parse(text, "module", file)
    assert isinstance(tree, syntax.Module)
    return tree


def parse_expression(text: str, file: str = "<text>") -> syntax.Expression:
    """The tree of one expression (or an unparenthesised tuple); line breaks in it count as spaces."""
    register_source(file, text)
    tree = _parse(text, "expression", file)
    assert isinstance(tree, syntax.Expression)
    return tree


def _read_function(code: CodeType) -> syntax.Function:
    file, name = code.co_filename, code.co_name
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise TileError(
            f"the source of {name!r} is not available ({error}); put the function in a file or use tiledsl.parse(text)"
        ) from None
    tree = _parse("".join(lines), "module", file, line_shift=first - 1, keeps_indent=True)
    assert isinstance(tree, syntax.Module)
    function = next(iter(tree.body), None)
    if not isinstance(function, syntax.Function) or function.name != name:
        loc = Loc(file, first, 1, first, 1)
        message = f"the function {name!r} is not at this line any more; was the file changed after its import?"
        raise TileError(message, loc)
    return function


def _parse(
    text: str, start: str, file: str, line_shift: int = 0, column_shift: int = 0, keeps_indent: bool = False
) -> syntax.Node:
    """Parse text whose first character stands at (line_shift + 1, column_shift + 1) of the file."""
    import lark

    text = _clean(text, file)
    with _lock:
        machine = _get_machine()
        lines, builder = machine.lines, machine.builder
        lines.file, lines.text = file, text
        lines.one_expression, lines.keeps_indent = start == "expression", keeps_indent
        lines.line_shift, lines.column_shift = line_shift, column_shift
        builder.reset(file)
        try:
            tree: syntax.Node = machine.lark.parse(text, start=start)  # type: ignore[assignment]
        except lark.UnexpectedInput as error:
            from tiledsl.frontend.syntax_errors import explain

            raise explain(error, lines, text, line_shift, column_shift) from None
        for group in builder.with_groups:
            raise TileError("'as' inside parentheses is only possible right after 'with'", group.loc)
        return tree


def _parse_inner(text: str, line: int, column: int) -> syntax.Expression:
    """Parse an f-string's expression, while the parse that met the f-string is under way."""
    assert _machine is not None
    lines, builder = _machine.lines, _machine.builder
    state = dict(vars(lines))
    groups, with_groups = builder.groups, builder.with_groups
    builder.groups, builder.with_groups = {}, {}
    tree = _parse(text, "expression", lines.file, line - 1, column - 1)
    vars(lines).update(state)
    builder.groups, builder.with_groups = groups, with_groups
    assert isinstance(tree, syntax.Expression)
    return tree


def _clean(text: str, file: str) -> str:
    text = _NEWLINES.sub("\n", text)
    if text.startswith("\ufeff"):
        text = text[1:]
    at = text.find("\0")
    if at >= 0:
        *lines, last = text[:at].split("\n")
        line, column = len(lines) + 1, len(last) + 1
        raise TileError("the text contains a null byte", Loc(file, line, column, line, column + 1))
    stripped = text.rstrip(" \t\f\n")
    goes_on = stripped.endswith("\\") and text.count("\n", len(stripped)) > 1  # into a line with nothing
    return stripped + "\n" * goes_on


def _get_machine() -> _Machine:
    global _machine
    if _machine is None:
        from lark import Lark

        from tiledsl.frontend.indentation import LineStructure
        from tiledsl.frontend.tree_builder import TreeBuilder

        lines = LineStructure()
        builder = TreeBuilder(_parse_inner)
        grammar = pkgutil.get_data(__package__, "grammar.lark")  # also where the package lies in a zip file
        assert grammar is not None, "grammar.lark is not installed"
        parser = Lark(
            grammar.decode(),
            parser="lalr",
            lexer="basic",
            start=["module", "expression"],
            postlex=lines,
            transformer=builder,
            cache=_cache_file() or False,
        )
        _machine = _Machine(parser, lines, builder)
    return _machine


def _cache_file() -> str | None:
    """Where lark keeps its table, in a folder that only the user can write to (it is unpickled); None without one."""
    from lark import __version__

    folder = current().cache_dir / "grammar"
    try:
        str(folder).encode()  # as lark does for its key
        make_private(folder)
        status = folder.stat()
    except (OSError, UnicodeEncodeError):
        return None
    if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        return None
    return str(folder / f"lark{__version__}-py{sys.version_info[0]}.{sys.version_info[1]}.cache")
