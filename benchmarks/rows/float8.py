"""Float8 GEMM rows: one scale for all, and block scales."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.handwritten.tuned_gemm import gemm_by_hand
from benchmarks.handwritten.tuned_scaled import block_scaled_by_hand
from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.library import cublas_bfloat16, cublas_block_scaled, cublas_float8
from benchmarks.programs import example
from benchmarks.row import Row
from benchmarks.rows.spaces import GLUON, PERSISTENT, TMA, TRITON, TRITON_TMA, product, walk

SPACE = [
    product(128, 256, 128, 3, 8, PERSISTENT), product(128, 128, 128, 4, 8, PERSISTENT), product(128, 256, 128, 3, 8),
    product(256, 128, 128, 3, 8, PERSISTENT), product(128, 128, 128, 3, 4), product(128, 256, 128, 3, 8, TMA),
    product(64, 128, 128, 4, 4, TMA), product(64, 256, 128, 3, 4, TMA), product(64, 64, 128, 5, 4),
    product(128, 256, 128, 3, 8, GLUON), product(128, 128, 128, 5, 8, GLUON),
]  # fmt: skip
LARGE_SCALED = [
    walk(128, 128, 4, 8, GLUON), walk(128, 128, 6, 8, GLUON), walk(192, 128, 4, 8, GLUON),
    walk(128, 128, 3, 8, TRITON_TMA), walk(128, 128, 4, 8, TRITON), walk(128, 128, 4, 8, {**TRITON, **PERSISTENT}),
    walk(64, 128, 4, 4, TRITON_TMA), walk(64, 128, 4, 4, TRITON), walk(128, 128, 3, 4, TRITON_TMA),
    walk(64, 64, 5, 4, TRITON),
]  # fmt: skip
SMALL_SCALED = [
    walk(16, 128, 4, 4), walk(64, 128, 3, 4), walk(16, 64, 5, 4), walk(64, 64, 5, 4), walk(64, 128, 3, 4, TMA),
    walk(16, 32, 6, 4), walk(64, 128, 8, 4, GLUON), walk(64, 64, 8, 4, GLUON),
]  # fmt: skip


def float8_row(M: int, N: int, K: int, quick: bool = False) -> Row:
    """scale * A @ B.T of e4m3, bfloat16 out, the operands accumulated as the tensor cores do by themselves."""
    scale = K**-0.5

    def inputs(device: str) -> list[Any]:
        return [torch.randn(rows, K, device=device).to(torch.float8_e4m3fn) for rows in (M, N)]

    return Row(
        family="fp8 gemm",
        case=f"e4m3 {M}x{N}x{K}",
        inputs=inputs,
        reference=lambda a, b: [(a.float() @ b.float().T) * scale],
        outputs=(((M, N), torch.bfloat16),),
        candidates=(
            tiledsl_candidate(example("gemm_fp8").matmul_fp8, {"M": M, "N": N, "K": K, "scale": scale}, SPACE),
            cublas_float8(scale, fast=True),
            gemm_by_hand(M, scale=scale, byte=True),
        ),
        operations=2.0 * M * N * K,
        bytes_moved=1.0 * (M * K + N * K) + 2.0 * M * N,
        unit="fp8",
        quick=quick,
    )


def block_scaled_row(M: int, N: int, K: int, quick: bool = False) -> Row:
    """Scales for 1 x 128 blocks of X and 128 x 128 blocks of W; examples/gemm_fp8_blockscale.py has the formula."""
    module = example("gemm_fp8_blockscale")
    groups, rows = -(-K // 128), -(-N // 128)

    def inputs(device: str) -> list[Any]:
        return [
            torch.randn(M, K, device=device).to(torch.float8_e4m3fn),
            torch.randn(N, K, device=device).to(torch.float8_e4m3fn),
            torch.rand(M, groups, device=device) + 0.5,
            (torch.rand(rows, groups, device=device) + 0.5) / K**0.5,
        ]

    def reference(x: Any, w: Any, x_scale: Any, w_scale: Any) -> list[Any]:
        wide_x = x.float() * x_scale.float().repeat_interleave(128, 1)[:, :K]
        wide_w = w.float() * w_scale.float().repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)[:, :K]
        return [wide_x @ wide_w.T]

    return Row(
        family="block-scaled fp8 gemm",
        case=f"e4m3 {M}x{N}x{K}",
        inputs=inputs,
        reference=reference,
        outputs=(((M, N), torch.bfloat16),),
        candidates=(
            tiledsl_candidate(
                module.matmul_blockscale, {"M": M, "N": N, "K": K}, LARGE_SCALED if M > 64 else SMALL_SCALED
            ),
            cublas_block_scaled(),
            block_scaled_by_hand(),
            cublas_bfloat16(),
        ),
        operations=2.0 * M * N * K,
        bytes_moved=1.0 * (M * K + N * K) + 2.0 * M * N + 4.0 * groups * (M + rows),
        unit="fp8",
        tags=frozenset({"deep"} if K >= 4096 else ()),
        quick=quick,
    )


def rows() -> list[Row]:
    """Squares, and layers of DeepSeek V3."""
    return [
        float8_row(8192, 8192, 8192),
        float8_row(4096, 4096, 4096, quick=True),
        float8_row(8192, 8192, 4096),
        float8_row(512, 57344, 8192),
        block_scaled_row(4096, 7168, 16384),
        block_scaled_row(4096, 4096, 7168, quick=True),
        block_scaled_row(4096, 7168, 2048),
        block_scaled_row(8192, 8192, 8192),
        block_scaled_row(64, 7168, 16384),
    ]
