"""Parts of TileLang that tiledsl does not have. Scripts that only import the names run; using one is an error."""

from __future__ import annotations

from typing import Any

from tiledsl.errors import TileError

_INSTEAD = {
    "MatmulTemplate": "list the configurations, or let @tiledsl.autotune search the space",
    "NoRasterization": "list the configurations, or let @tiledsl.autotune search the space",
    "Analyzer": "look at kernel.resources, or time the kernel with kernel.get_profiler().do_bench()",
    "plot_layout": "Triton chooses layouts; print kernel.asm['ttgir'] to see them",
}


class Absent:
    """Stands for a class or function that is not there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        advice = _INSTEAD.get(self._name, "thread-level intrinsics have no Triton form; use T.gemm and T.Parallel")
        raise TileError(f"{self._name} is not part of tiledsl", notes=[advice])

    def __repr__(self) -> str:
        return f"<{self._name}: not part of tiledsl>"


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return Absent(name)
