"""Ranges in profiles around what a kernel launches, of NVTX (Nsight) or Proton; the setting `ranges` says which."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tiledsl.errors import TileError
from tiledsl.settings import current

_MOST = 200  # characters of a range's name


@dataclass(frozen=True)
class Range:
    """How a range begins and ends around each call."""

    label: str
    begin: Callable[[str], Any]
    end: Callable[[], Any]

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function with the range around it."""

        def in_range(*arguments: Any) -> Any:
            self.begin(self.label)
            try:
                return function(*arguments)
            finally:
                self.end()

        return in_range


def range_of(name: str, config: Mapping[str, Any] | None) -> Range | None:
    """The range of a kernel, `matmul block_M=128 block_N=256`; None if the setting says that there is none.

    TileError where what makes ranges is not installed.
    """
    kind = current().ranges
    if not kind:
        return None
    label = " ".join([name, *(f"{key}={value}" for key, value in (config or {}).items())])
    label = label if len(label) <= _MOST else f"{label[: _MOST - 3]}..."
    module = "torch.cuda.nvtx" if kind == "nvtx" else "triton.profiler"
    try:
        profiler: Any = importlib.import_module(module)
    except ImportError as error:
        raise TileError(f"ranges={kind!r} needs {module}, which cannot be imported: {error}") from None
    if kind == "nvtx":
        try:
            profiler.range_push(label)
            profiler.range_pop()
        except RuntimeError as error:  # a torch without CUDA
            raise TileError(f"ranges='nvtx': this torch has no NVTX: {error}") from None
        return Range(label, profiler.range_push, profiler.range_pop)
    return Range(label, profiler.enter_scope, profiler.exit_scope)
