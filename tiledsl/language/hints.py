"""Hints for other compilers, which Triton does not need: they are accepted, and logged once."""

from __future__ import annotations

from typing import Any

from tiledsl.language.expression import context
from tiledsl.logs import note_once

__all__ = [
    "Fragment", "Layout", "annotate_compile_flags", "annotate_consumer_reg_alloc", "annotate_l2_hit_ratio",
    "annotate_layout", "annotate_min_blocks_per_sm", "annotate_pass_configs", "annotate_producer_reg_dealloc",
    "annotate_restrict_buffers", "disable_warp_group_reg_alloc", "fence_proxy_async", "fence_proxy_async_generic",
    "func_attr", "no_set_max_nreg", "ptx_fence_barrier_init",
]  # fmt: skip


def hint(name: str) -> Any:
    """A function of the language that does nothing, and says so once."""

    def ignored(*_: Any, **__: Any) -> None:
        context(f"T.{name}")
        note_once(f"T.{name} is a hint without effect: Triton decides this itself")

    ignored.__name__ = ignored.__qualname__ = name
    ignored.__doc__ = f"""A hint without effect ({name}), of operands of any shape and type.

    Raises TileError outside of programs.

    Example:
        T.{name}()
        Y[0] = 1
        # Y = [1]
    """
    return ignored


annotate_layout, annotate_l2_hit_ratio, annotate_min_blocks_per_sm, annotate_restrict_buffers = map(
    hint, "annotate_layout annotate_l2_hit_ratio annotate_min_blocks_per_sm annotate_restrict_buffers".split()
)
no_set_max_nreg, disable_warp_group_reg_alloc, annotate_producer_reg_dealloc, annotate_consumer_reg_alloc = map(
    hint,
    "no_set_max_nreg disable_warp_group_reg_alloc annotate_producer_reg_dealloc annotate_consumer_reg_alloc".split(),
)
func_attr, annotate_pass_configs, annotate_compile_flags = map(
    hint, "func_attr annotate_pass_configs annotate_compile_flags".split()
)
# Memory is in order: a store is seen by all that comes after it, by copies of the hardware's among it.
fence_proxy_async, fence_proxy_async_generic, ptx_fence_barrier_init = map(
    hint, "fence_proxy_async fence_proxy_async_generic ptx_fence_barrier_init".split()
)


class Layout:
    """A layout for T.annotate_layout, of a tile of any shape and type; keeps its arguments and means nothing here.

    Example:
        tile = T.alloc_shared((8, 8), "float32")
        T.annotate_layout({tile: T.Layout((8, 8), lambda i, j: (j, i))})
        T.fill(tile, 1)
        T.copy(tile, Y)
        # Y = ones(8, 8)
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.arguments, self.keywords = arguments, keywords

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("shape", "stride", "dtype"):  # by which tensors are known
            raise AttributeError(name)
        return lambda *_, **__: self


class Fragment(Layout):
    """A fragment's layout, of a tile of any shape and type; keeps its arguments and means nothing here.

    Example:
        tile = T.alloc_fragment((8, 8), "float32")
        T.annotate_layout({tile: T.Fragment((8, 8), lambda i, j: (i, j))})
        T.fill(tile, 1)
        T.copy(tile, Y)
        # Y = ones(8, 8)
    """
