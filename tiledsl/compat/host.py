"""What scripts use of the package `tilelang` itself: jit, compile, tuning, caches, logging."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from tiledsl.compat.cpu_device import here
from tiledsl.compat.environment import default_target, disable_cache, enable_cache, env, is_cache_enabled
from tiledsl.compat.maths import cdiv, next_power_of_2
from tiledsl.compat.tuning import autotune
from tiledsl.frontend.program import PrimFunc
from tiledsl.kernels import jit as _jit
from tiledsl.kernels.kernel import Kernel as JITKernel
from tiledsl.language.dtypes import canonical as DataType
from tiledsl.language.hints import Fragment, Layout
from tiledsl.runtime.profiler import Profiler, do_bench
from tiledsl.runtime.supply import ParamInfo as KernelParam
from tiledsl.runtime.supply import TensorSupplyType

__all__ = [
    "DataType", "Fragment", "JITImpl", "JITKernel", "KernelParam", "Layout", "Profiler", "TensorSupplyType", "autotune",
    "cached", "cdiv", "clear_cache", "compile",
    "disable_cache", "do_bench", "enable_cache", "env", "is_cache_enabled", "jit", "lazy_jit", "next_power_of_2",
    "par_compile", "set_log_level",
]  # fmt: skip

# Options of TileLang that choose how it generates and builds C++, and mean nothing here.
_BUILD_OPTIONS = frozenset({
    "execution_backend", "target_host", "verbose", "debug_root_path", "compile_flags", "mode", "instruments",
    "postproc", "num_workers", "ignore_error",
})  # fmt: skip


def _options(given: Mapping[str, Any], function: str) -> dict[str, Any]:
    options = {name: value for name, value in given.items() if name not in _BUILD_OPTIONS}
    unknown = set(options) - {"out_idx", "target", "pass_configs"}
    if unknown:
        raise TypeError(f"tilelang.{function} has no option {sorted(unknown)[0]!r}")
    env.apply()
    return {**options, "target": here(options.get("target") or default_target())}


class JITImpl(_jit.JitFunction):
    """A function under `@tilelang.jit`, with what TileLang's has beyond tiledsl's."""

    def __init__(self, function: Any, given: Mapping[str, Any], frame: Mapping[str, Any]) -> None:
        super().__init__(function, _options(given, "jit"), frame)
        self.func = function
        for name in ("out_idx", "target", "pass_configs", *_BUILD_OPTIONS - {"mode"}):
            setattr(self, name, given.get(name))

    @property
    def mode(self) -> str:
        """ "eager" or "lazy"."""
        return "eager" if self.is_eager else "lazy"

    @property
    def func_source(self) -> str:
        """The function's text. Raises OSError if it has none."""
        return inspect.getsource(self.func)

    def get_kernel_source(self, *arguments: Any, kernel_only: bool = True, **keywords: Any) -> str:
        """The Triton source for these arguments."""
        return self.compile(*arguments, **keywords).get_kernel_source(kernel_only)

    def par_compile(self, configs: Iterable[Any], **_: Any) -> list[JITKernel]:
        """Kernels for several sets of arguments: tuples or dictionaries."""
        return [self.compile(**each) if isinstance(each, Mapping) else self.compile(*each) for each in configs]


def jit(func: Any = None, **given: Any) -> Any:
    """`@tilelang.jit`: tiledsl.jit, with the script's target translated for this machine."""
    options = _options(given, "jit")
    frame = dict(sys._getframe(1).f_locals)

    def decorate(inner: Any) -> Any:
        return _jit.compile(inner, **options) if isinstance(inner, PrimFunc) else JITImpl(inner, given, frame)

    return decorate if func is None else decorate(func)


lazy_jit = jit


def compile(func: Any = None, **given: Any) -> JITKernel:
    """`tilelang.compile(prim_func, out_idx=..., target=...)`."""
    return _jit.compile(func, **_options(given, "compile"))


cached = compile


def par_compile(funcs: Iterable[Any], **given: Any) -> list[JITKernel]:
    """Compile several programs."""
    return [compile(func, **given) for func in funcs]


def clear_cache() -> None:
    """Accepted; kernels are found by their source text, so there is no stale entry to remove."""


def set_log_level(level: str | int) -> None:
    """The level of the logger `tiledsl`."""
    logging.getLogger("tiledsl").setLevel(level.upper() if isinstance(level, str) else level)
