"""Texts that stand for values in keys: equal in every process, and different where behaviour differs."""

from __future__ import annotations

import ast
import enum
import functools
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from tiledsl.digests import OPAQUE as OPAQUE
from tiledsl.digests import digest
from tiledsl.runtime.python_source import definition

VAGUE = "vague:"  # stands in a text where behaviour may differ although the texts are equal
_DEPTH = 8  # functions that call functions that ...
_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def canonical(value: Any) -> str:
    """A text for a value. Functions count with their code, closure and the globals they name, classes with their
    methods; tensors with shape, strides, dtype and device type; objects that do not print themselves with OPAQUE and
    their type."""
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
        return f"module:{'' if _is_library(value.__name__) else VAGUE}{value.__name__}"
    if isinstance(value, type):
        return _class(value, seen, depth - 1)
    if isinstance(value, functools.partial):
        return "partial:" + _canonical([value.func, value.args, value.keywords], seen, depth)
    if isinstance(value, MethodType):
        return f"method:{_canonical(value.__func__, seen, depth)} of {_canonical(value.__self__, seen, depth)}"
    if type(value).__module__.startswith("triton.") and (inside := _of_triton(value)) is not None:
        return f"{type(value).__name__}:{_canonical(inside, seen, depth)}"
    if type(value).__name__ == "ProcessGroup" and hasattr(value, "group_name"):
        return f"group of {value.size()}"
    function = value if isinstance(value, FunctionType) else getattr(value, "function", None)
    if isinstance(function, FunctionType):  # of ours: jitted functions, programs, macros
        return _function(function, seen, depth - 1)
    if hasattr(value, "stride") and hasattr(value, "dtype") and hasattr(value, "shape"):
        device = getattr(getattr(value, "device", None), "type", "")
        mark = VAGUE if len(seen) > 1 else ""  # one in a closure may count with its values; an argument does not
        return f"tensor:{mark}{tuple(value.shape)}:{tuple(value.stride())}:{value.dtype}:{device}"
    shown, known = repr(value), _is_library(type(value).__module__) or isinstance(value, enum.Enum)
    return (
        f"{'' if known else VAGUE}{_type_name(value)}:{shown}" if " at 0x" not in shown else OPAQUE + _type_name(value)
    )


def _of_triton(value: Any) -> Any:
    """What a configuration, a kernel or an autotuned kernel of Triton consists of; None for anything else."""
    if hasattr(value, "all_kwargs"):
        return [value.all_kwargs(), value.pre_hook]
    function = getattr(value, "fn", None)
    if function is None:
        return None
    return [function, getattr(value, "configs", None), getattr(value, "keys", None), getattr(value, "values", None)]


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def program_text(function: FunctionType, tuned: Collection[str] = ()) -> str:
    """A text for a builder or a program: canonical, without the defaults of the parameters that every configuration
    sets."""
    return _function(function, {id(function): 0}, _DEPTH, tuned)


def _is_library(module: str | None) -> bool:
    """Whether a version in the key stands for the code of a module, or it does not matter."""
    root = (module or "").partition(".")[0]
    return root in ("tiledsl", "torch", "triton", "numpy") or root in sys.stdlib_module_names


def _class(value: type, seen: dict[int, int], depth: int) -> str:
    name = f"class:{value.__module__}.{value.__qualname__}"
    if _is_library(value.__module__):
        return name
    kept = [(n, _behind(m)) for n, m in sorted(vars(value).items())]
    parts = [f"{n}={_canonical(m, seen, depth)}" for n, m in kept if not n.startswith("_") or _is_plain(n, m)]
    return f"{name}:{_summary([*(_canonical(base, seen, depth) for base in value.__bases__), *parts])}"


def _behind(member: Any) -> Any:
    """The function behind a member of a class."""
    if isinstance(member, functools.cached_property):
        return member.func
    return getattr(member, "__func__", getattr(member, "fget", member))


def _is_plain(name: str, member: Any) -> bool:
    """Whether a member whose name is private may count: what Python and libraries leave there need not have a text."""
    plain = (FunctionType, bool, int, float, str, tuple, list, dict)
    return isinstance(member, plain) and (callable(member) or not name.startswith("__"))


def _summary(parts: Sequence[str]) -> str:
    """The digest of texts, marked if one of them is vague."""
    text = "\n".join(parts)
    return (VAGUE if VAGUE in text or OPAQUE in text else "") + digest(text)


def _function(function: FunctionType, seen: dict[int, int], depth: int, tuned: Collection[str] = ()) -> str:
    if _is_library(function.__module__):
        return f"function:{function.__module__}.{function.__qualname__}"
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = dict(zip(reversed(positional), reversed(function.__defaults__ or ()))) | (function.__kwdefaults__ or {})
    parts = [_code(function)]
    named = {f"{name}:=": value for name, value in defaults.items() if name not in tuned}
    for name, value in sorted([*named.items(), *_free_values(function)], key=lambda item: item[0]):
        parts.append(f"{name}={_canonical(value, seen, depth)}")
    return "function:" + _summary(parts)


def _code(function: FunctionType) -> str:
    """The function's syntax tree without decorators, defaults, docstrings, positions, comments and layout, the same in
    every Python; its byte code where there is no text of its own."""
    whole = definition(function)
    if whole is None:  # a lambda: the statement around it holds other things, such as the configurations
        return _byte_code(function)
    fields = dict(ast.iter_fields(whole)) | {"decorator_list": []}
    fields["args"] = ast.arguments(**{**dict(ast.iter_fields(whole.args)), "defaults": [], "kw_defaults": []})
    return _dump(type(whole)(**fields))


def _dump(node: Any) -> str:
    """A syntax tree as text. Fields that are empty do not show: which ones there are depends on the Python."""
    if isinstance(node, list):
        return f"[{','.join([_dump(each) for each in node])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Constant):  # None as well; whether a text was written u"" does not count
        return f"Constant(value={node.value!r})"
    kind, parts = type(node), []
    for name in kind._fields:
        value = getattr(node, name, None)
        if value is None or value == []:
            continue
        if name == "body" and kind in _DOCUMENTED and ast.get_docstring(node) is not None:  # type: ignore[arg-type]
            value = value[1:]
        parts.append(f"{name}={_dump(value)}")
    return f"{kind.__name__}({','.join(parts)})"


def _byte_code(function: FunctionType) -> str:
    lines = []
    for code in _codes(function.__code__):
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        shown = _canonical(constants, {}, 1)  # sets in an order that every process has
        lines.append(f"{code.co_code.hex()} {shown} {code.co_names} {code.co_varnames}")
    return "\n".join(lines)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _free_values(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Closure variables and the globals named in the function or in functions inside it; of modules of the user's, what
    the function names."""
    names: set[str] = set()
    for code in _codes(function.__code__):
        names.update(code.co_names)
    values = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            values[name] = None
    for name, value in values.items():
        if isinstance(value, ModuleType) and not _is_library(value.__name__):
            for part in names & vars(value).keys():
                yield f"{name}.{part}", vars(value)[part]
        else:
            yield name, value
