"""Losses of a linear layer's outputs, which are not in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.library import compiled
from benchmarks.programs import example
from benchmarks.row import Candidate, Context, Ready, Row, Tensors
from benchmarks.rows.spaces import GLUON, PERSISTENT, product

SPACE = [
    product(128, 256, 64, 3, 8, GLUON), product(128, 256, 64, 4, 8, GLUON), product(128, 256, 64, 3, 8, PERSISTENT),
    product(128, 256, 64, 3, 8),
]  # fmt: skip


def _losses(x: Any, w: Any, targets: Any) -> Any:
    return F.cross_entropy(x @ w.T, targets.long(), reduction="none").float()


def logits_alone() -> Candidate:
    """The logits, in memory, and nothing of them: the yardstick of what a loss costs beside its product."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        def bind(given: Tensors, outputs: Tensors) -> Callable[[], Any]:
            out = torch.empty(given[0].shape[0], given[1].shape[0], dtype=given[0].dtype, device=given[0].device)
            return lambda: torch.mm(given[0], given[1].T, out=out)

        return Ready(bind)

    return Candidate("bf16", "cuBLAS, logits alone", prepare)


def cross_entropy_row(M: int, N: int, K: int, dtype: torch.dtype = torch.bfloat16, quick: bool = False) -> Row:
    """The losses of M hidden states of K numbers and a vocabulary of N; examples/linear_cross_entropy.py has them."""
    module = example("linear_cross_entropy")

    def inputs(device: str) -> list[Any]:
        x, w = (torch.randn(rows, K, device=device) for rows in (M, N))
        return [x.to(dtype), (w * K**-0.5).to(dtype), torch.randint(0, N, (M,), device=device, dtype=torch.int32)]

    arguments = {"M": M, "N": N, "K": K, "dtype": str(dtype)[6:]}
    return Row(
        family="linear cross-entropy",
        case=f"{'bf16' if dtype == torch.bfloat16 else 'fp16'} {M}x{N}x{K}",
        inputs=inputs,
        reference=lambda x, w, targets: list(module.reference(x, w, targets)),
        outputs=(((M,), torch.float32), ((M,), torch.float32)),
        candidates=(
            tiledsl_candidate(module.linear_cross_entropy, arguments, SPACE), compiled(_losses), logits_alone(),
        ),
        operations=2.0 * M * N * K,
        bytes_moved=2.0 * (M * K + N * K) + 4.0 * M,
        quick=quick,
    )  # fmt: skip


def rows() -> list[Row]:
    """The vocabulary and the width of Llama 8B, and a smaller vocabulary."""
    return [cross_entropy_row(8192, 128256, 4096, quick=True), cross_entropy_row(8192, 32000, 4096)]
