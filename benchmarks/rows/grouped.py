"""Grouped GEMM rows: the experts of a mixture, with uneven numbers of rows."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.handwritten.tuned_scaled import grouped_by_hand
from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.library import grouped_mm
from benchmarks.programs import example
from benchmarks.row import Row
from benchmarks.rows.gemm import DTYPES
from benchmarks.rows.spaces import TMA, product

SPACE = [
    product(128, 128, 64, 3, 4), product(128, 256, 64, 3, 8, TMA), product(128, 256, 64, 3, 8),
    product(128, 128, 64, 3, 4, TMA), product(64, 128, 64, 4, 4), product(128, 128, 64, 4, 8),
    product(64, 256, 64, 4, 4), product(32, 128, 128, 4, 4), product(16, 128, 128, 4, 4),
]  # fmt: skip


def grouped_row(groups: int, total: int, N: int, K: int, dtype: str = "bf16", quick: bool = False) -> Row:
    """C[rows of g] = A[rows of g] @ B[g].T; the cuts between groups are random."""

    def inputs(device: str) -> list[Any]:
        cuts = torch.randint(0, total + 1, (groups - 1,)).sort().values
        bounds = torch.cat([torch.zeros(1, dtype=torch.int64), cuts, torch.tensor([total])])
        return [
            (torch.randn(total, K, device=device) / K**0.5).to(DTYPES[dtype]),
            torch.randn(groups, N, K, device=device).to(DTYPES[dtype]),
            bounds.to(torch.int32).to(device),
        ]

    def reference(a: Any, b: Any, offsets: Any) -> list[Any]:
        sizes = torch.diff(offsets).tolist()
        parts = [rows.float() @ matrix.float().T for rows, matrix in zip(a.split(sizes), b, strict=True)]
        return [torch.cat(parts)]

    arguments = {"groups": groups, "total": total, "N": N, "K": K, "dtype": str(DTYPES[dtype])[6:]}
    return Row(
        family="grouped gemm",
        case=f"{dtype} {groups} groups, {total}x{N}x{K}",
        inputs=inputs,
        reference=reference,
        outputs=(((total, N), DTYPES[dtype]),),
        candidates=(
            tiledsl_candidate(example("grouped_gemm").grouped_matmul, arguments, SPACE),
            grouped_mm(),
            grouped_by_hand(),
        ),
        operations=2.0 * total * N * K,
        bytes_moved=2.0 * (total * K + groups * N * K + total * N),
        quick=quick,
    )


def rows() -> list[Row]:
    """Many rows an expert, and few."""
    return [
        grouped_row(64, 16384, 2048, 2048, quick=True),
        grouped_row(8, 16384, 4096, 4096),
        grouped_row(64, 512, 2048, 7168),
    ]
