"""A tile-level kernel language that accepts TileLang's surface and lowers to readable Triton, with an autotuner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiledsl.errors import TileError
from tiledsl.settings import settings
from tiledsl.version import __version__ as __version__

if TYPE_CHECKING:
    from tiledsl.autotuner import AutotuneResult, autotune, spaces
    from tiledsl.autotuner.space import space
    from tiledsl.frontend.text_program import TextProgram, parse, parse_file
    from tiledsl.kernels.jit import compile, jit
    from tiledsl.kernels.kernel import Kernel
    from tiledsl.kernels.resume import resume
    from tiledsl.levels.triton_kernel import triton_kernel, triton_kernels
    from tiledsl.runtime.profiler import Profiler, do_bench
    from tiledsl.runtime.supply import TensorSupplyType
    from tiledsl.runtime.target import Target


_LAZY = {
    "AutotuneResult": "tiledsl.autotuner",
    "autotune": "tiledsl.autotuner",
    "space": "tiledsl.autotuner.space",
    "TextProgram": "tiledsl.frontend.text_program",
    "parse": "tiledsl.frontend.text_program",
    "parse_file": "tiledsl.frontend.text_program",
    "triton_kernel": "tiledsl.levels.triton_kernel",
    "triton_kernels": "tiledsl.levels.triton_kernel",
    "compile": "tiledsl.kernels.jit",
    "jit": "tiledsl.kernels.jit",
    "Kernel": "tiledsl.kernels.kernel",
    "Profiler": "tiledsl.runtime.profiler",
    "do_bench": "tiledsl.runtime.profiler",
    "resume": "tiledsl.kernels.resume",
    "TensorSupplyType": "tiledsl.runtime.supply",
    "Target": "tiledsl.runtime.target",
}

__all__ = [
    "AutotuneResult", "Kernel", "Profiler", "Target", "TensorSupplyType", "TextProgram", "TileError", "autotune",
    "compile", "do_bench", "jit", "parse", "parse_file", "resume", "settings",
    "space", "spaces", "triton_kernel", "triton_kernels",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Loaded when first used: importing tiledsl costs next to nothing.
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if name == "spaces":
        import importlib

        return importlib.import_module("tiledsl.autotuner.spaces")
    raise AttributeError(f"module 'tiledsl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
