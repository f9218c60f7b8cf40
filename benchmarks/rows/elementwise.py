"""Rows that memory bounds: softmax, layer norm, RMS norm and an elementwise product, beside a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.handwritten import tuned_rows
from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.library import compiled, copy_ceiling
from benchmarks.programs import example
from benchmarks.row import Candidate, Row

ROW_SPACE = [
    {"block_M": rows, "threads": threads}
    for rows, threads in (
        (1, 256), (1, 128), (1, 512), (2, 256), (2, 512), (4, 256), (4, 512), (1, 1024), (2, 64), (1, 64),
    )
]  # fmt: skip
FLAT_SPACE = [
    {"block_M": rows, "block_N": columns, "threads": threads}
    for rows, columns, threads in (
        (4, 1024, 256), (1, 2048, 256), (1, 4096, 256), (2, 2048, 256), (1, 1024, 128), (2, 1024, 256), (8, 1024, 512),
        (1, 8192, 512),
    )
]  # fmt: skip


def _row(
    family: str, M: int, N: int, dtype: Any, inputs: Any, reference: Any, candidates: Sequence[Candidate],
    *, read: int = 1, operations: float, quick: bool = False,
) -> Row:  # fmt: skip
    name = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    return Row(
        family=family,
        case=f"{name} {M}x{N}",
        inputs=inputs,
        reference=reference,
        outputs=(((M, N), dtype),),
        candidates=(*candidates, copy_ceiling()),
        operations=operations * M * N,
        bytes_moved=float((read + 1) * M * N * dtype.itemsize),
        quick=quick,
    )


def _normal(*shapes: tuple[int, ...], dtype: Any) -> Any:
    return lambda device: [torch.randn(shape, device=device).to(dtype) for shape in shapes]


def softmax_row(M: int, N: int, quick: bool = False) -> Row:
    """Softmax along rows of float16."""
    return _row(
        "softmax", M, N, torch.float16,
        lambda device: [torch.randn(M, N, device=device).half() * 3],
        lambda x: [torch.softmax(x.float(), 1)],
        (
            tiledsl_candidate(example("softmax").softmax, {"M": M, "N": N}, ROW_SPACE),
            compiled(lambda x: torch.softmax(x, 1)),
            tuned_rows.softmax_by_hand(),
        ),
        operations=5, quick=quick,
    )  # fmt: skip


def layer_norm_row(M: int, N: int, quick: bool = False) -> Row:
    """Layer norm of rows of bfloat16, with weight and bias."""
    return _row(
        "layer norm", M, N, torch.bfloat16,
        _normal((M, N), (N,), (N,), dtype=torch.bfloat16),
        lambda x, w, b: [F.layer_norm(x.float(), (N,), w.float(), b.float())],
        (
            tiledsl_candidate(example("layer_norm").layer_norm, {"M": M, "N": N}, ROW_SPACE),
            compiled(lambda x, w, b: F.layer_norm(x, (N,), w, b)),
            tuned_rows.layer_norm_by_hand(1e-5),
        ),
        operations=8, quick=quick,
    )  # fmt: skip


def rms_norm_row(M: int, N: int, quick: bool = False) -> Row:
    """RMS norm of rows of bfloat16, with a weight."""
    return _row(
        "rms norm", M, N, torch.bfloat16,
        _normal((M, N), (N,), dtype=torch.bfloat16),
        lambda x, w: [F.rms_norm(x.float(), (N,), w.float(), 1e-6)],
        (
            tiledsl_candidate(example("rms_norm").rms_norm, {}, ROW_SPACE),
            compiled(lambda x, w: F.rms_norm(x, (N,), w, 1e-6)),
            tuned_rows.rms_norm_by_hand(1e-6),
        ),
        operations=4, quick=quick,
    )  # fmt: skip


def elementwise_row(M: int, N: int, quick: bool = False) -> Row:
    """X * Y + row in bfloat16, in float32 inside."""
    return _row(
        "elementwise", M, N, torch.bfloat16,
        _normal((M, N), (M, N), (N,), dtype=torch.bfloat16),
        lambda x, y, row: [x.float() * y.float() + row.float()],
        (
            tiledsl_candidate(example("elementwise").multiply_add, {}, FLAT_SPACE),
            compiled(lambda x, y, row: (x.float() * y.float() + row.float()).to(x.dtype)),
            tuned_rows.multiply_add_by_hand(),
        ),
        read=2, operations=2, quick=quick,
    )  # fmt: skip


def rows() -> list[Row]:
    """Widths that are powers of two, and some that are not."""
    return [
        softmax_row(16384, 5000, quick=True), softmax_row(8192, 8192), softmax_row(65536, 1024),
        layer_norm_row(16384, 4096, quick=True), layer_norm_row(8192, 8192),
        rms_norm_row(16384, 7168, quick=True), rms_norm_row(8192, 8192), rms_norm_row(65536, 2048),
        elementwise_row(8192, 8192, quick=True), elementwise_row(16384, 7168),
    ]  # fmt: skip
