"""A stand-in for the `tilelang` package: programs written for TileLang import it and run on tiledsl.

`install()` puts it in place; nothing is replaced before. `tiledsl run SCRIPT.py` does it for one script.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tiledsl.compat.absent import Absent

# Modules of the stand-in, and the modules of tiledsl whose public names each of them has, in this order. A module that
# is not here has those of the nearest package around it that is, and any other name of it is one of `absent.py`.
MODULES: dict[str, tuple[str, ...]] = {
    "tilelang": ("tiledsl.compat.host", "tiledsl.compat.pass_keys"),
    "tilelang.jit": ("tiledsl.compat.host",),
    "tilelang.cache": ("tiledsl.compat.host",),
    "tilelang.env": ("tiledsl.compat.environment",),
    "tilelang.math": ("tiledsl.compat.maths",),
    "tilelang.autotuner": ("tiledsl.compat.tuning", "tiledsl.autotuner"),
    "tilelang.profiler": ("tiledsl.runtime.profiler",),
    "tilelang.testing": ("tiledsl.compat.testing",),
    "tilelang.utils": ("tiledsl.compat.tensors", "tiledsl.compat.arch"),
    "tilelang.layout": ("tiledsl.compat.layouts",),
    "tilelang.transform": ("tiledsl.compat.pass_keys",),
    "tilelang.engine": ("tiledsl.compat.callbacks",),
    "tilelang.engine.param": ("tiledsl.compat.host",),
    "tilelang.tileop": ("tiledsl.language.operations", "tiledsl.language.reductions"),
    "tilelang.contrib": ("tiledsl.compat.arch",),
    "tilelang.contrib.nvcc": ("tiledsl.compat.arch",),
    "tilelang.carver": ("tiledsl.compat.arch",),
    "tilelang.intrinsics": ("tiledsl.compat.layouts",),
    "tilelang.cuda": ("tiledsl.compat.layouts",),
    "tilelang.cuda.language": ("tiledsl.language",),
    "tilelang.rocm.language": ("tiledsl.language",),
    "tilelang.metal.language": ("tiledsl.language",),
    "tilelang.language": ("tiledsl.language",),
    "tilelang.language.dtypes": ("tiledsl.language.dtypes",),
    "tilelang.language.fp8": ("tiledsl.compat.fp8",),
    "tilelang.tvm": ("tiledsl.compat.tvm",),
    "tvm": ("tiledsl.compat.tvm",),
    "tvm.target": ("tiledsl.compat.arch",),
}


class StandIn(ModuleType):
    """One module of the stand-in. Its names are looked up in modules of tiledsl when they are first used."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"tiledsl's stand-in for {name}")
        self.__path__: list[str] = []
        self.__file__ = f"{name} (tiledsl)"
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        around = name
        while around not in MODULES:
            around = around.rpartition(".")[0]
        self._sources = MODULES[around]

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self._public()
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"tiledsl's stand-in for {self.__name__} has no {name!r}")
        for source in self._sources:
            found = getattr(importlib.import_module(source), name, None)
            if found is not None and not isinstance(found, ModuleType):
                return found
        path = f"{self.__name__}.{name}"
        return sys.modules.get(path) or Absent(path)  # a module that no one has imported yet is such a class, too

    def __setattr__(self, name: str, value: Any) -> None:
        # The import of a submodule would set it here, in front of a function of its name, such as tilelang.jit
        if not isinstance(value, StandIn):
            super().__setattr__(name, value)

    def _public(self) -> list[str]:
        names: dict[str, None] = {}
        for source in self._sources:
            module = importlib.import_module(source)
            public = getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]
            names |= dict.fromkeys(public)
        return list(names)

    def __dir__(self) -> list[str]:
        return self._public()


class _Finder(MetaPathFinder, Loader):
    """Finds any module below `tilelang` and `tvm` while the stand-in is there: scripts import more than they use."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        root = fullname.partition(".")[0]
        if root not in ("tilelang", "tvm") or not isinstance(sys.modules.get(root), StandIn):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


_FINDER = _Finder()


def install() -> None:
    """Make `import tilelang` and its submodules find the stand-in, in this process, whatever else is installed.

    Modules of a real TileLang that are loaded already are replaced for later imports. Calling it again does nothing.
    """
    if isinstance(sys.modules.get("tilelang"), StandIn):
        return
    for name in [each for each in sys.modules if each.split(".")[0] in ("tilelang", "tvm")]:
        del sys.modules[name]
    for name in MODULES:
        sys.modules[name] = StandIn(name)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    sys.modules["tilelang.language"] = importlib.import_module("tiledsl.language")
    sys.modules["tilelang"].__version__ = "0.1.15"  # type: ignore[attr-defined]
