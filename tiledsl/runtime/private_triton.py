"""A second copy of Triton's Python code in this process, with the interpreter switched on.

Triton decides at decoration whether a function is compiled or interpreted, its standard library is decorated at
import, and its interpreter patches `triton.language` for the whole process while it runs. Here Triton's Python files
are therefore loaded once more under another package name. The copy has its own `triton.language`, with the switch on
from the start; the real one is never touched, so compiling goes on undisturbed in this and in other threads. The C++
library and the back ends are shared with the real Triton.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any

NAME = "_tiledsl_interpreted_triton"
_SHARED = ("_C", "backends")  # subpackages taken from the real Triton
_lock = threading.RLock()


def private_import(
    name: str,
    module_globals: Mapping[str, object] | None = None,
    module_locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> types.ModuleType:
    """`__import__` for the copy's modules and for interpreted source: `triton` is the copy."""
    if level == 0 and (name == "triton" or name.startswith("triton.")):
        inner = name[len("triton.") :]
        if inner.split(".")[0] not in _SHARED:
            name = f"{NAME}.{inner}" if inner else NAME
    return builtins.__import__(name, module_globals, module_locals, fromlist or (), level)


def private_builtins(**extra: object) -> dict[str, Any]:
    """A `__builtins__` for module globals under which `import triton` finds the copy."""
    return {**vars(builtins), "__import__": private_import, **extra}


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__builtins__"] = private_builtins()
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != NAME and not fullname.startswith(NAME + "."):
            return None
        base = os.path.join(self.root, *fullname.split(".")[1:])
        init = os.path.join(base, "__init__.py")
        if os.path.exists(init):
            return importlib.util.spec_from_file_location(
                fullname, init, loader=_Loader(fullname, init), submodule_search_locations=[base]
            )
        if os.path.exists(base + ".py"):
            file = base + ".py"
            return importlib.util.spec_from_file_location(fullname, file, loader=_Loader(fullname, file))
        if os.path.isdir(base):
            namespace = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            namespace.submodule_search_locations = [base]
            return namespace
        return None


@functools.cache
def _load() -> types.ModuleType:
    import triton

    root = os.path.dirname(os.path.abspath(str(triton.__file__)))
    for name in list(sys.modules):
        if name.startswith("triton.") and name.split(".")[1] in _SHARED:
            sys.modules[NAME + name[len("triton") :]] = sys.modules[name]
    sys.meta_path.insert(0, _Finder(root))
    spec = importlib.util.find_spec(NAME)
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    try:
        knobs: Any = importlib.import_module(NAME + ".knobs")
        knobs.propagate_env = False  # else setting a knob sets the environment variable, for everyone
        knobs.runtime.interpret = True
        spec.loader.exec_module(package)
    except BaseException:
        for name in [name for name in sys.modules if name == NAME or name.startswith(NAME + ".")]:
            del sys.modules[name]
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
        raise
    return package


def private_triton() -> types.ModuleType:
    """The interpreting copy of the `triton` package; loaded on the first call (about 0.1 s)."""
    with _lock:
        return _load()
