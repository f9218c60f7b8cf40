"""Hints for other compilers, which Triton does not need: they are accepted, and logged once."""

from __future__ import annotations

from typing import Any

from tiledsl.errors import TileError
from tiledsl.language.expression import context
from tiledsl.logs import note_once


def hint(name: str) -> Any:
    """A function of the language that does nothing, and says so once."""

    def ignored(*_: Any, **__: Any) -> None:
        context(f"T.{name}")
        note_once(f"T.{name} is a hint without effect: Triton decides this itself")

    ignored.__name__ = ignored.__qualname__ = name
    ignored.__doc__ = (
        f"A hint without effect ({name}), of operands of any shape and type. Raises TileError outside of programs."
    )
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
# A block's threads run in step between tile operations, so there is nothing to wait for.
sync_threads, sync_warp, syncthreads = map(hint, "sync_threads sync_warp syncthreads".split())
# Their memory is in order, too: a store is seen by all that comes after it, by copies of the hardware's among it.
fence_proxy_async, fence_proxy_async_generic, ptx_fence_barrier_init = map(
    hint, "fence_proxy_async fence_proxy_async_generic ptx_fence_barrier_init".split()
)


def tvm_storage_sync(scope: str = "shared") -> None:
    """T.sync_threads, which is a hint, for the memory named by the string `scope`; no shape or type matters.

    Raises TileError for "global": blocks of one launch cannot wait for each other.
    """
    if scope == "global":
        raise TileError(
            "T.tvm_storage_sync: blocks of one launch cannot wait for each other; write two T.Kernel blocks, which run "
            "in order"
        )
    sync_threads()


# The kernel after may begin when all blocks of this one have ended or said so; emitted kernels leave it at the end.
pdl_trigger = hint("pdl_trigger")


class Layout:
    """A layout object for T.annotate_layout; keeps its arguments and means nothing here."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.arguments, self.keywords = arguments, keywords

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("shape", "stride", "dtype"):  # by which tensors are known
            raise AttributeError(name)
        return lambda *_, **__: self


class Fragment(Layout):
    """A fragment layout; means nothing here."""
