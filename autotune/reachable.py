"""Functions and arguments that another process can have: by the module that defines them, and as values that travel."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tiledsl.autotuner.measuring import wire
from tiledsl.autotuner.storage.fingerprint import program_text
from tiledsl.digests import digest

_MAIN = "_tiledsl_main"  # the name of a script in a process that is not its own


class Unreachable(Exception):
    """Why something stays in its process; a clause: "it is defined inside of another function"."""


def place_of(function: Callable[..., Any]) -> dict[str, str]:
    """Where another process finds a function: module, file, name, and a digest of what it is. Raises Unreachable."""
    name, module = function.__qualname__, sys.modules.get(function.__module__)
    if "<" in name:
        raise Unreachable("it is defined inside of another function")
    file = getattr(module, "__file__", None)
    if file is None or not os.path.isfile(file):
        raise Unreachable("no file defines it")
    found = _named(module, name)
    if function not in (found, getattr(found, "function", None)):
        raise Unreachable(f"its module has something else as {name}")
    spec = getattr(module, "__spec__", None)
    imported = function.__module__
    if imported == "__main__":
        imported = _MAIN if spec is None else spec.name
        if not _is_guarded(os.path.abspath(file)):
            raise Unreachable("its script has no `if __name__ == '__main__':`, so that loading it would run it")
    return {"module": imported, "file": os.path.abspath(file), "name": name, "digest": digest(program_text(function))}  # type: ignore[arg-type]


def function_at(place: Mapping[str, str]) -> Callable[..., Any]:
    """The function of place_of, in another process. Raises Unreachable where it is another one there."""
    try:
        module = _script(place["file"]) if place["module"] == _MAIN else importlib.import_module(place["module"])
    except (Exception, SystemExit) as error:
        raise Unreachable(f"its module cannot be loaded there: {type(error).__name__}: {error}") from error
    function = _named(module, place["name"])
    function = getattr(function, "function", function)
    if not callable(function) or digest(program_text(function)) != place["digest"]:
        raise Unreachable("it, or what it refers to, is not as its file has it")
    return function  # type: ignore[no-any-return]


def _named(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _script(file: str) -> Any:
    if _MAIN not in sys.modules:
        spec = importlib.util.spec_from_file_location(_MAIN, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_MAIN] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[_MAIN]
            raise
    return sys.modules[_MAIN]


@functools.lru_cache(maxsize=4)
def _is_guarded(file: str) -> bool:
    """Whether a script keeps what it does from those that load it for its functions."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    tests = [ast.unparse(each.test) for each in tree.body if isinstance(each, ast.If)]
    return any("__name__" in test and "__main__" in test for test in tests)


def packed(name: str, value: Any, folder: Path) -> dict[str, Any]:
    """A value as a message has it, its elements in a file of the folder. Raises Unreachable."""
    import torch

    if type(value) is torch.Tensor and not value.requires_grad and value.layout is torch.strided:
        return {"on_gpu": value.is_cuda, "tensor": wire.store(value, folder, name)}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    try:
        again = ast.literal_eval(repr(value))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        again = None
    if type(again) is not type(value) or again != value:
        raise Unreachable(f"{name} is a {type(value).__name__}, which does not travel")
    return {"literal": repr(value)}


def unpacked(described: Mapping[str, Any]) -> Any:
    """What `packed` described; a tensor on the GPU is on the current one."""
    import torch

    if "tensor" in described:
        return wire.load(described["tensor"], "cuda" if described["on_gpu"] else "cpu")
    if "dtype" in described:
        return getattr(torch, described["dtype"])
    return ast.literal_eval(described["literal"])
