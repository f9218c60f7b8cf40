"""The syntax tree of a Python function, as Python's own parser sees it: for questions that need not load ours."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from types import CodeType, FunctionType


def definition(function: FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The tree of a function's `def` with its decorators, which is to be read, not changed; its positions mean nothing.
    None for a lambda, and where there is no source or it cannot be parsed."""
    text = _text(function)
    tree = None if text is None else _parsed(text)
    if tree is None:  # Python's way to find where a function ends, which goes through all its tokens
        try:
            tree = _parsed(inspect.getsource(function))
        except (OSError, TypeError, SyntaxError):
            return None
    return tree


def returns_nothing(function: FunctionType) -> bool:
    """Whether a function's own text has no `return` with a value; False where there is no text."""
    tree = definition(function)
    pending: list[ast.AST] = [] if tree is None else [*tree.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            return False
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            pending += ast.iter_child_nodes(node)
    return tree is not None


def _text(function: FunctionType) -> str | None:
    """The lines of a function; None where they cannot be told at a glance.

    It goes at least to its last line with code, and on as long as lines are indented. Where that is cut short, in a
    string or between brackets, it does not parse.
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not 0 < code.co_firstlineno <= len(lines):
        return None
    lines = lines[code.co_firstlineno - 1 :]
    indent = _indent(lines[0])
    end = _last_line(code) - code.co_firstlineno + 1
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > indent):
        end += 1
    return "".join(lines[:end])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _last_line(code: CodeType) -> int:
    own = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    return max([own, *(_last_line(each) for each in code.co_consts if isinstance(each, CodeType))])


@functools.lru_cache(maxsize=4)  # a function is asked about several times in a row
def _parsed(text: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    is_inner = text[:1] in (" ", "\t")
    try:  # not dedented: comments and lines of strings may stand further left
        tree = ast.parse(f"if 1:\n{text}" if is_inner else text)
    except SyntaxError:
        return None
    first = tree.body[0] if tree.body else None
    if is_inner and isinstance(first, ast.If):
        first = first.body[0]
    return first if isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
