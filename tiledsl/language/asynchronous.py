"""Copies and products that other compilers start and wait for later. Here each is done where it stands.

A program may not look at what is under way before it has waited, nor change what is read from, so that it cannot tell
the difference. What overlaps is Triton's choice, in T.Pipelined.
"""

from __future__ import annotations

from typing import Any

from tiledsl.language.hints import hint
from tiledsl.language.operations import GemmWarpPolicy, copy, gemm

__all__ = [
    "async_copy", "ptx_commit_group", "ptx_wait_group", "wait_wgmma", "warpgroup_arrive", "warpgroup_commit_batch",
    "warpgroup_fence_operand", "warpgroup_wait", "wgmma_gemm",
]  # fmt: skip


def async_copy(src: Any, dst: Any, **hints: Any) -> None:
    """T.copy of `src` to `dst`, with its shapes, types and hints. Raises TileError as that does.

    There is nothing to wait for: T.ptx_commit_group and T.ptx_wait_group have no effect.

    Example:
        # A = ones(8, 8)
        tile = T.alloc_shared((8, 8), "float32")
        T.async_copy(A, tile)
        T.ptx_wait_group(0)
        T.copy(tile, B)
        # B = ones(8, 8)
    """
    copy(src, dst, **hints)


def wgmma_gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Any = False,
) -> None:
    """T.gemm of A, B and C, with its shapes and types. Raises TileError as that does.

    There is nothing to wait for: T.wait_wgmma and T.warpgroup_... have no effect.

    Example:
        # A = ones(16, 16).half()
        # B = eye(16).half()
        a, b = T.alloc_shared((16, 16), "float16"), T.alloc_shared((16, 16), "float16")
        c = T.alloc_fragment((16, 16), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(c)
        T.wgmma_gemm(a, b, c)
        T.wait_wgmma(0)
        T.copy(c, C)
        # C = ones(16, 16)
    """
    gemm(A, B, C, transpose_A, transpose_B, policy, clear_accum)


ptx_commit_group, ptx_wait_group, wait_wgmma = map(hint, "ptx_commit_group ptx_wait_group wait_wgmma".split())
warpgroup_arrive, warpgroup_commit_batch, warpgroup_wait, warpgroup_fence_operand = map(
    hint, "warpgroup_arrive warpgroup_commit_batch warpgroup_wait warpgroup_fence_operand".split()
)
