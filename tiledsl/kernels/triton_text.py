"""The text of a function under @triton.jit or @gluon.jit with what it refers to, so that any process can load it."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import math
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_LIBRARIES = ("triton", "torch", "numpy")
_MARKS = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline", "debug")


class NotStandalone(Exception):
    """What a kernel refers to and no text of it can have. The message is a clause: "it refers to x, ..."."""


def is_jitted(value: Any) -> bool:
    """Whether a value is Triton's JITFunction, or Gluon's."""
    return hasattr(value, "arg_names") and hasattr(value, "create_binder")


@functools.lru_cache(maxsize=256)
def standalone(function: Any) -> str:
    """Imports, constants, the functions that a kernel calls, and the kernel under its own name.

    function: a JITFunction. Raises NotStandalone for globals that are neither numbers, texts, element types, modules,
    jitted functions nor names of a library, and for names that mean different things in the kernel and in what it
    calls.
    """
    text = _Text()
    text.define(function)
    return "\n".join([*sorted(text.imports), *text.constants, "", *text.functions])


def literal(value: Any) -> str | None:
    """The expression that gives a value again; None if there is none."""
    if value is None or type(value) in (bool, int, str):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value!r}")'
    if type(value) in (tuple, list):
        inner = [literal(each) for each in value]
        if None in inner:
            return None
        shown = ", ".join(str(each) for each in inner)
        return f"[{shown}]" if type(value) is list else f"({shown}{',' * (len(inner) == 1)})"
    if type(value).__name__ == "constexpr" and type(value).__module__.startswith("triton."):
        own = literal(value.value)
        return None if own is None else f"_tl.constexpr({own})"
    if type(value).__name__ == "dtype" and type(value).__module__.startswith("triton."):
        return f"_tl.dtype({value.name!r})"
    return None


class _Text:
    def __init__(self) -> None:
        self.imports = {"import torch", "import triton as _triton", "import triton.language as _tl"}
        self.constants: list[str] = []
        self.functions: list[str] = []
        self._bound = {"torch": "module torch"}  # what a name is bound to, as text
        self._defined: dict[str, Any] = {}  # functions by their names
        self._modules: set[str] = set()  # made here, for what is no library

    def define(self, function: Any) -> None:
        """Add a jitted function, what it refers to before it."""
        name = function.fn.__name__
        if name in self._defined:
            if self._defined[name] is not function:
                raise NotStandalone(f"it calls two functions named {name}")
            return
        self._bind(name, f"function {id(function)}")
        self._defined[name] = function
        source = textwrap.dedent(function.src)
        tree = ast.parse(source)
        for used, value in _references(function, tree):
            if value is not function:
                self._refer(used, value, tree)
        self.functions += ["", f"@{self._decorator(function)}", source.rstrip(), ""]

    def _decorator(self, function: Any) -> str:
        given = {mark: getattr(function, mark, None) for mark in _MARKS}
        shown = ", ".join(f"{mark}={literal(_plain(value))}" for mark, value in given.items() if value)
        if type(function).__name__ == "GluonJITFunction":
            self.imports.add("from triton.experimental import gluon as _gluon")
        kind = "_gluon.jit" if type(function).__name__ == "GluonJITFunction" else "_triton.jit"
        return f"{kind}({shown})" if shown else kind

    def _refer(self, name: str, value: Any, tree: ast.AST) -> None:
        """Make a name mean a value."""
        if isinstance(value, ModuleType):
            self._module(name, value, tree)
            return
        place = _library_name(value)
        if place is not None:
            module, own = place
            if self._bind(name, f"{module}.{own}"):
                self.imports.add(f"from {module} import {own}" + (f" as {name}" if own != name else ""))
            return
        if is_jitted(value):
            self.define(value)
            own = value.fn.__name__
            if own != name and self._bind(name, f"function {id(value)}"):
                self.functions.append(f"{name} = {own}")
            return
        text = literal(value)
        if text is None:
            raise NotStandalone(f"it refers to {name}, a {type(value).__name__}")
        if self._bind(name, text):
            self.constants.append(f"{name} = {text}")

    def _module(self, name: str, module: ModuleType, tree: ast.AST) -> None:
        if _is_library(module.__name__):
            if self._bind(name, f"module {module.__name__}"):
                self.imports.add(f"import {module.__name__}" + (f" as {name}" if name != module.__name__ else ""))
            return
        if self._bind(name, f"module {module.__name__}"):
            self.imports.add("import types as _types")
            self.constants.append(f'{name} = _types.ModuleType("{name}")')
        parts = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute)]
        named = {each.attr for each in parts if isinstance(each.value, ast.Name) and each.value.id == name}
        for part in sorted(named & vars(module).keys()):
            value = getattr(module, part)
            if not self._bind(f"{name}.{part}", f"value {id(value)}"):
                continue
            if is_jitted(value) and _library_name(value) is None:
                self.define(value)
                self.functions.append(f"{name}.{part} = {value.fn.__name__}")
            elif (text := literal(value)) is not None:
                self.constants.append(f"{name}.{part} = {text}")
            else:
                raise NotStandalone(f"it refers to {name}.{part}, a {type(value).__name__}")

    def _bind(self, name: str, meaning: str) -> bool:
        """Note what a name means; whether that is new."""
        known = self._bound.setdefault(name, meaning)
        if known is not meaning and known != meaning:
            raise NotStandalone(f"{name} means different things in the functions that it calls")
        return known is meaning


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool) else list(value)


def _references(function: Any, tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """The names that a jitted function uses and does not make itself, with what they mean, each once."""
    inner = function.fn
    cells = dict(zip(inner.__code__.co_freevars, inner.__closure__ or ()))
    own = set(inner.__code__.co_varnames) | set(inner.__code__.co_cellvars)
    used = dict.fromkeys(each.id for each in ast.walk(tree) if isinstance(each, ast.Name))
    for name in used:
        if name in cells:
            try:
                yield name, cells[name].cell_contents
            except ValueError:
                raise NotStandalone(f"it refers to {name}, which has no value yet") from None
        elif name not in own and name in inner.__globals__ and not hasattr(builtins, name):
            yield name, inner.__globals__[name]


def _is_library(module: str) -> bool:
    root = module.partition(".")[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names


def _library_name(value: Any) -> tuple[str, str] | None:
    """Where a library has a value, as its module and its name there."""
    module = str(getattr(value, "__module__", None) or "")
    name = str(getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or "")
    if not name.isidentifier() or module == "__main__" or not _is_library(module):
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return (module, name) if found is value else None
