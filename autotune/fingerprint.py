"""Texts that stand for values in keys: equal in every process, and different where behaviour differs."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

OPAQUE = "opaque:"  # stands in a text for an object of which only the type could be told
_DEPTH = 8  # functions that call functions that ...


def digest(text: str) -> str:
    """The SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(value: Any) -> str:
    """A text for a value. Functions count with their code, closure and the globals they name; tensors with shape,
    strides, dtype and device type; objects that do not print themselves with OPAQUE and their type."""
    return _canonical(value, {}, _DEPTH)


def _canonical(value: Any, seen: dict[int, int], depth: int) -> str:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"{type(value).__name__}:{value!r}"
    if id(value) in seen:
        return f"#{seen[id(value)]}"
    if depth == 0:
        return OPAQUE + _type_name(value)
    seen = {**seen, id(value): len(seen)}
    if isinstance(value, Mapping):
        items = (f"{_canonical(k, seen, depth)}={_canonical(v, seen, depth)}" for k, v in value.items())
        return "{" + ",".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[" + ",".join(_canonical(item, seen, depth) for item in value) + "]"
    if isinstance(value, (set, frozenset)):
        return "set{" + ",".join(sorted(_canonical(item, seen, depth) for item in value)) + "}"
    if isinstance(value, ModuleType):
        return f"module:{value.__name__}"
    if isinstance(value, type):
        return f"class:{value.__module__}.{value.__qualname__}"
    function = value if isinstance(value, FunctionType) else getattr(value, "function", None)
    if isinstance(function, FunctionType):  # of ours: jitted functions, programs, macros
        return _function(function, seen, depth - 1)
    if hasattr(value, "stride") and hasattr(value, "dtype") and hasattr(value, "shape"):
        device = getattr(getattr(value, "device", None), "type", "")
        return f"tensor:{tuple(value.shape)}:{tuple(value.stride())}:{value.dtype}:{device}"
    shown = repr(value)
    return f"{_type_name(value)}:{shown}" if " at 0x" not in shown else OPAQUE + _type_name(value)


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _function(function: FunctionType, seen: dict[int, int], depth: int) -> str:
    root = function.__module__.partition(".")[0]
    if root == "tiledsl" or root in sys.stdlib_module_names or root in ("torch", "triton", "numpy"):
        return f"function:{function.__module__}.{function.__qualname__}"  # a version is in the key, or does not matter
    parts = [_code(function), *(_canonical(v, seen, depth) for v in (function.__defaults__, function.__kwdefaults__))]
    for name, value in sorted(_free_values(function), key=lambda item: item[0]):
        parts.append(f"{name}={_canonical(value, seen, depth)}")
    return "function:" + digest("\n".join(parts))


def _code(function: FunctionType) -> str:
    """The function's syntax tree without decorators, positions, comments and layout; its byte code without a text."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # a lambda in the middle of an expression may not parse by itself
        return _byte_code(function)
    if isinstance(tree.body[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
        tree.body[0].decorator_list = []
        return ast.dump(tree)
    return _byte_code(function)  # a lambda: the statement around it holds other things, such as the configurations


def _byte_code(function: FunctionType) -> str:
    lines = []
    for code in _codes(function.__code__):
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        lines.append(f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}")
    return "\n".join(lines)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _free_values(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Closure variables and the globals named in the function or in functions inside it."""
    names: set[str] = set()
    for code in _codes(function.__code__):
        names.update(code.co_names)
    for name in names & function.__globals__.keys():
        yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            yield name, None
