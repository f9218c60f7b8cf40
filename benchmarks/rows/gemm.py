"""GEMM rows: C[M, N] = A[M, K] @ B[N, K].T of float16 and bfloat16, weights stored as linear layers have them."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.handwritten.tuned_gemm import gemm_by_hand
from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.library import cublas
from benchmarks.peers.tilelang import tilelang_candidate
from benchmarks.programs import gemm as program
from benchmarks.row import Candidate, Row
from benchmarks.rows.spaces import GLUON, LAST_WAVE, PERSISTENT, TMA, product

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


LARGE = [
    product(128, 256, 64, 3, 8, PERSISTENT), product(128, 128, 64, 4, 8, PERSISTENT), product(128, 256, 64, 3, 8),
    product(128, 128, 64, 3, 4, PERSISTENT), product(256, 128, 64, 3, 8, PERSISTENT), product(128, 128, 64, 3, 4),
    product(128, 256, 64, 3, 8, TMA), product(128, 128, 64, 4, 8, TMA), product(64, 256, 64, 4, 4, TMA),
    product(128, 64, 64, 4, 4, PERSISTENT), product(64, 128, 64, 4, 4), product(64, 64, 64, 5, 4),
    product(128, 256, 64, 3, 8, GLUON), product(128, 128, 64, 5, 8, GLUON), product(192, 128, 64, 4, 8, GLUON),
    product(128, 320, 32, 4, 8, GLUON),
]  # fmt: skip
_LAST_WAVES = [product(128, 256, 64, 3, 8, LAST_WAVE), product(192, 128, 64, 4, 8, LAST_WAVE)]
_STRIPS = [(16, 64, 128, 4, 4), (16, 32, 256, 4, 4), (16, 128, 128, 3, 4), (16, 32, 128, 6, 2)]
_LOW = [(64, 64, 128, 4, 4), (64, 128, 64, 4, 4), (64, 32, 128, 4, 4)]
# Few rows read much and compute little: what counts is how many bytes are on their way.
DEEP = [
    product(64, 128, 64, 8, 4), product(64, 128, 64, 8, 4, TMA), product(128, 64, 64, 8, 4, TMA),
    product(64, 128, 128, 4, 4, TMA), product(128, 128, 64, 5, 8, TMA, splits=2), product(128, 128, 64, 6, 4, splits=2),
    product(64, 64, 64, 6, 4, TMA),
]  # fmt: skip
RINGS = [
    product(64, 128, 64, 8, 4, GLUON), product(64, 128, 128, 4, 4, GLUON), product(128, 64, 64, 8, 8, GLUON),
    product(128, 128, 64, 5, 8, GLUON, splits=2),
]  # fmt: skip
STRIPS = [product(*tiles, splits=splits) for splits in (1, 4, 2, 8) for tiles in _STRIPS]
STRIPS += [product(16, 64, 128, 4, 4, TMA, splits=splits) for splits in (1, 4)]
LOW = [product(*tiles, splits=splits) for splits in (1, 4, 2) for tiles in _LOW]
LOW += [product(64, 64, 128, 4, 4, TMA, splits=splits) for splits in (1, 4)]
SHORT = 2048**3  # multiplications, of some 25 microseconds
TILELANG = [
    product(128, 256, 64, 3, 8), product(256, 128, 64, 3, 8), product(128, 128, 64, 4, 8), product(128, 128, 64, 3, 4),
]  # fmt: skip
TILELANG_FEW = [
    product(128, 64, 64, 5, 8), product(64, 64, 128, 4, 4), product(64, 64, 128, 4, 4, splits=4),
    product(128, 128, 64, 4, 8, splits=4),
]  # fmt: skip
TILELANG_STRIPS = [
    product(16, 64, 128, 4, 4), product(16, 64, 128, 4, 4, splits=4), product(16, 32, 256, 4, 2),
    product(16, 128, 128, 3, 4),
]  # fmt: skip


def space(M: int, N: int, K: int) -> list[dict[str, Any]]:
    """Configurations to search for a product. Those of few rows, and short ones, begin while the kernel before ends."""
    configs = _few_rows(M) if M <= 128 else LARGE + (DEEP[:4] + RINGS[:1] if M <= 2048 else _LAST_WAVES)
    overlapped = M <= 128 or M * N * K <= SHORT
    return [{**each, "launch_pdl": True} for each in configs] if overlapped else configs


def _few_rows(M: int) -> list[dict[str, Any]]:
    if M <= 16:
        return STRIPS
    if M <= 64:
        return [product(64, 64, 128, 5, 4), *LOW, *DEEP[:2], *STRIPS[:4], *RINGS[:2]]
    return DEEP + LOW[:3] + LOW[-2:] + LARGE[1:5] + RINGS


def tilelang(M: int, arguments: dict[str, Any]) -> Candidate:
    """TileLang's own way to write it; the row's program, which can be cut along K, for few rows."""
    if M > 128:
        return tilelang_candidate("benchmarks.programs.tilelang_style", "staged_matmul", arguments, TILELANG)
    few = TILELANG_FEW if M > 16 else TILELANG_STRIPS
    return tilelang_candidate("benchmarks.programs.gemm", "matmul", arguments, few)


def gemm_row(M: int, N: int, K: int, dtype: str, note: str = "", quick: bool = False) -> Row:
    """One product. Inputs are normal; A is scaled so that the result has unit variance."""

    def inputs(device: str) -> list[Any]:
        a = torch.randn(M, K, device=device) / K**0.5
        return [a.to(DTYPES[dtype]), torch.randn(N, K, device=device).to(DTYPES[dtype])]

    torch_name = str(DTYPES[dtype])[6:]
    arguments = {"M": M, "N": N, "K": K, "dtype": torch_name}
    return Row(
        family="gemm",
        case=f"{dtype} {M}x{N}x{K}" + (f" ({note})" if note else ""),
        inputs=inputs,
        reference=lambda a, b: [a.float() @ b.float().T],
        outputs=(((M, N), DTYPES[dtype]),),
        candidates=(
            tiledsl_candidate(program.matmul, arguments, space(M, N, K)),
            cublas(),
            gemm_by_hand(M),
            tilelang(M, arguments),
        ),
        operations=2.0 * M * N * K,
        bytes_moved=2.0 * (M * K + N * K + M * N),
        tags=frozenset({dtype, "decode" if M <= 128 else "large"}),
        quick=quick,
    )


def rows() -> list[Row]:
    """At least twelve shapes: squares, a ragged one, and layers of Llama 70B and DeepSeek V3 at 1 to 512 rows."""
    square = [gemm_row(n, n, n, "fp16", quick=n in (4096, 8192)) for n in (8192, 5120, 4096, 3072, 2048, 1024)]
    square += [gemm_row(n, n, n, "bf16") for n in (8192, 4096)]
    ragged = [gemm_row(4091, 5120, 1024, "fp16", "ragged", quick=True), gemm_row(4091, 5120, 1024, "bf16", "ragged")]
    layers = [
        gemm_row(1, 8192, 8192, "bf16", "Llama 70B, o"),
        gemm_row(16, 10240, 8192, "bf16", "Llama 70B, qkv", quick=True),
        gemm_row(64, 57344, 8192, "bf16", "Llama 70B, gate and up"),
        gemm_row(128, 8192, 28672, "bf16", "Llama 70B, down"),
        gemm_row(512, 57344, 8192, "bf16", "Llama 70B, gate and up"),
        gemm_row(512, 8192, 28672, "bf16", "Llama 70B, down"),
        gemm_row(1, 2112, 7168, "bf16", "DeepSeek V3, q and kv down"),
        gemm_row(16, 24576, 1536, "bf16", "DeepSeek V3, q up"),
        gemm_row(64, 7168, 16384, "bf16", "DeepSeek V3, o"),
        gemm_row(128, 7168, 2048, "bf16", "DeepSeek V3, expert down", quick=True),
        gemm_row(512, 4096, 7168, "bf16", "DeepSeek V3, expert gate and up"),
    ]
    return [*square, *ragged, *layers]
