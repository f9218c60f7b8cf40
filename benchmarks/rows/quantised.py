"""Rows with quantised operands beside the same in 16 bits: weights of 4 bits, attention of float8."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.library import cublas_of, fused_attention
from benchmarks.programs import example
from benchmarks.row import Row
from benchmarks.rows.attention_math import forward, seen_pairs
from benchmarks.rows.spaces import GLUON, walk

GROUP = 128
DECODE = [
    {"block_N": n, "num_stages": stages, "threads": 32 * warps, "splits": splits, "launch_pdl": True}
    for n, stages, warps, splits in (
        (64, 3, 4, 1), (64, 4, 4, 1), (32, 3, 2, 1), (64, 3, 4, 2), (32, 3, 2, 2), (128, 3, 8, 1),
        (32, 4, 2, 1), (32, 3, 4, 1), (32, 4, 4, 1), (64, 4, 8, 1), (16, 4, 2, 1),
    )
]  # fmt: skip
MANY = [{"block_M": m, "num_stages": stages, "depth": depth} for m, stages, depth in (
    (256, 2, 32), (128, 2, 64), (128, 3, 32),
)]  # fmt: skip
W4A8 = [{"block_M": m, "num_stages": stages, "pass_configs": GLUON} for m, stages in ((128, 3), (128, 2), (64, 4))]
ATTENTION = [
    walk(128, 128, 2, 8, GLUON), walk(128, 128, 3, 8, GLUON),
    *(walk(128, 128, 2, 8, {**GLUON, "schedule-loops.fours": fours, "schedule-loops.turns": turns})
      for fours, turns in ((False, True), (True, True))),
]  # fmt: skip


def four_bit_row(M: int, N: int, K: int, note: str = "", quick: bool = False) -> Row:
    """A[M, K] @ W.T of float16, W of four bits with a scale for each 128 of a row; examples/gemm_int4.py packs them."""
    module = example("gemm_int4")
    few = module.FEW >= M
    program, space = (module.matmul_int4, DECODE) if few else (module.matmul_int4_many, MANY)

    def inputs(device: str) -> list[Any]:
        q = torch.randint(0, 16, (N, K), device=device, dtype=torch.uint8)
        a = torch.randn(M, K, device=device, dtype=torch.float16)
        return [a, module.pack(q), (torch.rand(K // GROUP, N, device=device) * K**-0.5).half()]

    return Row(
        family="w4a16 gemm",
        case=f"fp16 {M}x{N}x{K}" + (f" ({note})" if note else ""),
        inputs=inputs,
        reference=lambda a, words, scales: [a.float() @ module.dequantised(module.unpack(words), scales).T],
        outputs=(((M, N), torch.float16),),
        candidates=(
            tiledsl_candidate(program, {"M": M, "N": N, "K": K}, space),
            cublas_of(lambda words, scales: module.dequantised(module.unpack(words), scales)),
        ),
        operations=2.0 * M * N * K,
        bytes_moved=0.5 * N * K + 2.0 * (K // GROUP * N + M * K + M * N),
        tags=frozenset({"decode"} if few else ()),
        quick=quick,
    )


def four_bit_float8_row(M: int, N: int, K: int, note: str = "", quick: bool = False) -> Row:
    """A[M, K] @ W.T of e4m3, W of e2m1 with a scale for each 128 of a row; the peer has the same numbers in float16."""
    module = example("gemm_w4a8")

    def weights(packed: Any, scales: Any, a_scale: Any) -> Any:
        return module.dequantised(module.unpack(packed), scales)

    def rows(a: Any, packed: Any, scales: Any, a_scale: Any) -> Any:
        return a.float() * a_scale[:, None]

    def inputs(device: str) -> list[Any]:
        return [each.to(device) for each in module.random_inputs(M, N, K)]

    return Row(
        family="w4a8 gemm",
        case=f"e4m3 {M}x{N}x{K}" + (f" ({note})" if note else ""),
        inputs=inputs,
        reference=lambda *given: [rows(*given) @ weights(*given[1:]).T],
        outputs=(((M, N), torch.float16),),
        candidates=(
            tiledsl_candidate(module.matmul_w4a8, {"M": M, "N": N, "K": K}, W4A8, tolerance=2e-2),
            cublas_of(weights, lambda *given: rows(*given).half()),
        ),
        operations=2.0 * M * N * K,
        bytes_moved=0.5 * N * K + 4.0 * K // GROUP * N + M * K + 2.0 * M * N,
        unit="fp8",
        error=2e-2,
        quick=quick,
    )


# Weights of 4 bits are off by 2^-4 at most, by 0.026 in the root mean square; of 67 million sums of them some are off
# by six times that. `error` holds the mean of all to what is to be expected.
FLOAT8_WEIGHTS = 3 / 16


def float8_attention_row(batch: int, heads: int, length: int, dim: int, causal: bool, quick: bool = False) -> Row:
    """Attention of e4m3 with a scale for each head, float16 out; the peer has the same numbers in float16."""
    module = example("attention_fp8")
    shape = (batch, heads, length, dim)
    arguments = {
        "batch": batch, "heads": heads, "kv_heads": heads, "queries": length, "keys": length, "dim": dim,
        "causal": causal,
    }  # fmt: skip

    def inputs(device: str) -> list[Any]:
        shapes = shape, shape, (batch, heads, dim, length)
        tensors, scales = zip(*(module.quantised(torch.randn(each, device=device)) for each in shapes), strict=True)
        return [*tensors, *scales]

    def widened(*given: Any) -> tuple[Any, Any, Any]:
        q, k, v = (x.float() * scale[..., None, None] for x, scale in zip(given[:3], given[3:], strict=True))
        return q.half(), k.half(), v.transpose(-1, -2).contiguous().half()

    def reference(*given: Any) -> list[Any]:
        q, k, v = (x.float() * scale[..., None, None] for x, scale in zip(given[:3], given[3:], strict=True))
        return [forward(q, k, v.transpose(-1, -2), causal)[0]]

    return Row(
        family="fp8 attention",
        case=f"e4m3 {'causal' if causal else 'full'} B{batch} H{heads} S{length} D{dim}",
        inputs=inputs,
        reference=reference,
        outputs=((shape, torch.float16),),
        candidates=(
            tiledsl_candidate(module.attention_fp8, arguments, ATTENTION, tolerance=FLOAT8_WEIGHTS),
            fused_attention(causal, widened),
        ),
        operations=4.0 * batch * heads * seen_pairs(length, length, causal) * dim,
        bytes_moved=batch * length * dim * heads * 5.0,
        unit="fp8",
        error=4e-2,  # weights have 4 bits
        tags=frozenset({"causal" if causal else "full"}),
        quick=quick,
    )  # fmt: skip


def rows() -> list[Row]:
    """Layers of Llama 70B for one row, for 16 and for many; attention of the same number of tokens."""
    return [
        four_bit_row(16, 8192, 8192, "Llama 70B, o", quick=True),
        four_bit_row(1, 8192, 8192, "Llama 70B, o"),
        four_bit_row(16, 57344, 8192, "Llama 70B, gate and up"),
        four_bit_row(1, 57344, 8192, "Llama 70B, gate and up"),
        four_bit_row(16, 8192, 28672, "Llama 70B, down"),
        four_bit_row(1024, 8192, 8192, "Llama 70B, o", quick=True),
        four_bit_row(4096, 8192, 8192, "Llama 70B, o"),
        four_bit_row(4096, 57344, 8192, "Llama 70B, gate and up"),
        four_bit_row(4096, 8192, 28672, "Llama 70B, down"),
        four_bit_float8_row(1024, 8192, 8192, "Llama 70B, o"),
        four_bit_float8_row(4096, 8192, 8192, "Llama 70B, o", quick=True),
        four_bit_float8_row(4096, 57344, 8192, "Llama 70B, gate and up"),
        float8_attention_row(4, 32, 4096, 128, False, quick=True),
        float8_attention_row(4, 32, 4096, 128, True),
        float8_attention_row(1, 32, 16384, 128, False),
        float8_attention_row(1, 32, 16384, 128, True),
    ]
