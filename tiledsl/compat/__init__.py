"""A stand-in for the `tilelang` package: programs written for TileLang import it and run on tiledsl.

`install()` puts it in place; nothing is replaced before. `tiledsl run SCRIPT.py` does it for one script.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Modules of the stand-in, and the modules of tiledsl whose public names each of them has, in this order.
MODULES: dict[str, tuple[str, ...]] = {
    "tilelang": ("tiledsl.compat.host", "tiledsl.compat.pass_keys"),
    "tilelang.jit": ("tiledsl.compat.host",),
    "tilelang.cache": ("tiledsl.compat.host",),
    "tilelang.env": ("tiledsl.compat.environment",),
    "tilelang.math": ("tiledsl.compat.maths",),
    "tilelang.autotuner": ("tiledsl.compat.tuning", "tiledsl.autotuner"),
    "tilelang.profiler": ("tiledsl.runtime.profiler",),
    "tilelang.profiler.bench": ("tiledsl.runtime.profiler",),
    "tilelang.testing": ("tiledsl.compat.testing",),
    "tilelang.utils": ("tiledsl.compat.tensors",),
    "tilelang.utils.tensor": ("tiledsl.compat.tensors",),
    "tilelang.utils.device": ("tiledsl.compat.arch",),
    "tilelang.utils.language": ("tiledsl.compat.absent",),
    "tilelang.utils.target": ("tiledsl.compat.arch",),
    "tilelang.layout": ("tiledsl.compat.layouts",),
    "tilelang.layout.fragment": ("tiledsl.compat.layouts",),
    "tilelang.layout.swizzle": ("tiledsl.compat.layouts",),
    "tilelang.transform": ("tiledsl.compat.pass_keys",),
    "tilelang.transform.pass_config": ("tiledsl.compat.pass_keys",),
    "tilelang.engine": (),
    "tilelang.engine.callback": ("tiledsl.compat.callbacks",),
    "tilelang.tileop": (),
    "tilelang.tileop.base": ("tiledsl.language.operations",),
    "tilelang.contrib": (),
    "tilelang.contrib.nvcc": ("tiledsl.compat.arch",),
    "tilelang.carver": (),
    "tilelang.carver.arch": ("tiledsl.compat.arch",),
    "tilelang.carver.arch.driver": ("tiledsl.compat.arch",),
    "tilelang.carver.template": ("tiledsl.compat.absent",),
    "tilelang.carver.roller": ("tiledsl.compat.absent",),
    "tilelang.carver.roller.rasterization": ("tiledsl.compat.absent",),
    "tilelang.intrinsics": ("tiledsl.compat.layouts", "tiledsl.compat.absent"),
    "tilelang.intrinsics.mma_layout": ("tiledsl.compat.layouts", "tiledsl.compat.absent"),
    "tilelang.intrinsics.mma_macro_generator": ("tiledsl.compat.absent",),
    "tilelang.intrinsics.utils": ("tiledsl.compat.absent",),
    "tilelang.cuda": (),
    "tilelang.cuda.intrinsics": ("tiledsl.compat.layouts", "tiledsl.compat.absent"),
    "tilelang.cuda.intrinsics.layout": ("tiledsl.compat.layouts", "tiledsl.compat.absent"),
    "tilelang.cuda.intrinsics.layout.mma_layout": ("tiledsl.compat.layouts", "tiledsl.compat.absent"),
    "tilelang.cuda.intrinsics.layout.utils": ("tiledsl.compat.absent",),
    "tilelang.cuda.intrinsics.macro": (),
    "tilelang.cuda.intrinsics.macro.mma_macro_generator": ("tiledsl.compat.absent",),
    "tilelang.tools": ("tiledsl.compat.absent",),
    "tilelang.language": ("tiledsl.language",),
    "tilelang.language.dtypes": ("tiledsl.language.dtypes",),
    "tilelang.language.fp8": ("tiledsl.compat.fp8",),
    "tilelang.tvm": ("tiledsl.compat.tvm",),
    "tvm": ("tiledsl.compat.tvm",),
    "tvm.tirx": ("tiledsl.compat.tvm",),
    "tvm.tir": ("tiledsl.compat.tvm",),
    "tvm.ir": ("tiledsl.compat.tvm",),
    "tvm.tirx.stmt_functor": ("tiledsl.compat.absent",),
    "tvm.tir.stmt_functor": ("tiledsl.compat.absent",),
    "tvm.target": ("tiledsl.compat.arch",),
}


class StandIn(ModuleType):
    """One module of the stand-in. Its names are looked up in modules of tiledsl when they are first used."""

    def __init__(self, name: str, sources: tuple[str, ...]) -> None:
        super().__init__(name, f"tiledsl's stand-in for {name}")
        self.__path__: list[str] = []
        self.__file__ = f"{name} (tiledsl)"
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self._sources = sources

    def __getattr__(self, name: str) -> Any:
        inner = sys.modules.get(f"{self.__name__}.{name}")
        if inner is not None and not name.startswith("__"):
            if isinstance(inner, StandIn) and name == "jit":  # `tilelang.jit` is a function and a module
                return getattr(importlib.import_module("tiledsl.compat.host"), name)
            return inner
        if name == "__all__":
            return self._public()
        if not name.startswith("__"):
            for source in self._sources:
                module = importlib.import_module(source)
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"tiledsl's stand-in for {self.__name__} has no {name!r}")

    def _public(self) -> list[str]:
        names: dict[str, None] = {}
        for source in self._sources:
            module = importlib.import_module(source)
            public = getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]
            names |= dict.fromkeys(public)
        return list(names)

    def __dir__(self) -> list[str]:
        return self._public()


def install() -> None:
    """Make `import tilelang` and its submodules find the stand-in, in this process, whatever else is installed.

    Modules of a real TileLang that are loaded already are replaced for later imports. Calling it again does nothing.
    """
    if isinstance(sys.modules.get("tilelang"), StandIn):
        return
    for name in [each for each in sys.modules if each.split(".")[0] in ("tilelang", "tvm")]:
        del sys.modules[name]
    for name, sources in MODULES.items():
        sys.modules[name] = StandIn(name, sources)
    sys.modules["tilelang.language"] = importlib.import_module("tiledsl.language")
    sys.modules["tilelang"].__version__ = "0.1.15"  # type: ignore[attr-defined]
