"""Parts of TileLang that tiledsl does not have. Scripts that only import the names run; using one is an error."""

from __future__ import annotations

import importlib
from abc import ABCMeta
from typing import Any, NoReturn

from tiledsl.errors import TileError, user_loc

# What to do instead, by the beginning of a name's path. The first that fits is told.
_INSTEAD = {
    "tilelang.carver": "list the configurations, or let @tiledsl.autotune search the space",
    "tilelang.tools.plot_layout": "Triton chooses layouts; print kernel.asm['ttgir'] to see them",
    "tilelang.tools": "look at kernel.resources, or time the kernel with kernel.get_profiler().do_bench()",
    "tilelang.layout": "Triton chooses layouts, and T.annotate_layout is a hint without effect",
    "tilelang.intrinsics": "thread-level intrinsics have no Triton form; use T.gemm and T.Parallel",
    "tilelang.cuda.intrinsics": "thread-level intrinsics have no Triton form; use T.gemm and T.Parallel",
    "tilelang.quantize": "unpack the bytes in T.Parallel, as examples/dequantize_gemm.py does",
    "tilelang.language": "it is no name of the tile language; docs/language.md lists those",
    "tilelang.jit": "tilelang.jit and tilelang.compile give kernels, and those have get_kernel_source() and asm",
    "tilelang.cache": "tilelang.disable_cache() and TILELANG_CACHE_DIR act on tiledsl's store of kernels",
    "tilelang.autotuner": "@tilelang.autotune and AutoTuner are here; docs/tuning.md tells of what they give",
}
_OTHERWISE = "programs become Triton source by tiledsl's own passes, without TVM; `tiledsl lower` shows them at work"


class Absent(ABCMeta):
    """The class of what is not there: a name to import, to annotate with, to inherit from or to ask `isinstance` of."""

    def __new__(mcs, name: str, bases: tuple[type, ...] = (), namespace: dict[str, Any] | None = None) -> Absent:
        made = super().__new__(mcs, name.rpartition(".")[2], bases, dict(namespace or {}))
        if namespace is None:
            made.__module__ = name.rpartition(".")[0]
        return made

    def __init__(cls, name: str, bases: tuple[type, ...] = (), namespace: dict[str, Any] | None = None) -> None:
        super().__init__(cls.__name__, bases, dict(namespace or {}))

    def _path(cls) -> str:
        """The whole name of what is not there: of the class itself, or of the one that it inherits from."""
        first = next(each for each in reversed(cls.__mro__) if isinstance(each, Absent))
        return f"{first.__module__}.{first.__qualname__}"

    def _refuse(cls, *_: Any, **__: Any) -> NoReturn:
        path = cls._path()
        advice = next((text for start, text in _INSTEAD.items() if path.startswith(start)), _OTHERWISE)
        raise TileError(f"{path} is not part of tiledsl", user_loc(), notes=[advice])

    __call__ = __iter__ = __enter__ = __bool__ = __len__ = __int__ = __contains__ = _refuse

    def __exit__(cls, *_: object) -> None:
        pass

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(cls._path()), name)  # it may be a module, of which some names are here

    def __getitem__(cls, _: Any) -> Absent:
        return cls

    def __repr__(cls) -> str:
        return f"<{cls._path()}: not part of tiledsl>"
