"""Emitted Triton against Triton written by hand with the same configuration, in one process, on a GPU.

    python benchmarks/pointer_mode.py [--json FILE]

Each pair runs in alternating windows of about 0.2 s, back to back without idling (the card then holds its
power-capped clock, where single runs differ by less than a per cent); the first window of each is warm-up. Printed are
the medians of the windows' TFLOP/s and the median of the ratios of neighbouring windows. Results are checked against
each other first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from attention import attention, random_inputs, seen_pairs  # noqa: E402
from gemm_lazy import matmul_relu  # noqa: E402

import tiledsl  # noqa: E402
from benchmarks.handwritten import attention as attention_by_hand  # noqa: E402
from benchmarks.handwritten import gemm as gemm_by_hand  # noqa: E402
from benchmarks.tuning.interleaved import gpu_clock  # noqa: E402

ROUNDS = 8
POINTERS = {"select-emitter.backend": "triton", "select-access.mode": "pointer", "map-grid.persistent": 0}
WINDOW_MS = 200.0


def compare(title: str, ours: Callable[[], Any], theirs: Callable[[], Any], operations: float) -> dict[str, Any]:
    """TFLOP/s of both and the median ratio (above 1: ours is faster)."""
    times = max(1, int(WINDOW_MS / gpu_clock(ours, 5)))
    gpu_clock(ours, times), gpu_clock(theirs, times)
    pairs = [(gpu_clock(ours, times), gpu_clock(theirs, times)) for _ in range(ROUNDS)]
    mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(b / a for a, b in pairs)
    row = {
        "case": title,
        "emitted": operations / mine * 1e-9,
        "by_hand": operations / other * 1e-9,
        "ratio": statistics.median(ratios),
        "least": ratios[0],
        "most": ratios[-1],
    }
    print(
        f"{title:44} {row['emitted']:8.1f} {row['by_hand']:8.1f}   "
        f"{row['ratio']:.3f} [{row['least']:.3f}-{row['most']:.3f}]",
        flush=True,
    )
    return row


def with_pointers(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """The kernel of a builder under @tiledsl.jit, without descriptors and persistent grids."""
    return tiledsl.jit(function.function, out_idx=function.options["out_idx"], pass_configs=POINTERS)(
        *arguments, **keywords
    )


def gemm_row(
    M: int, N: int, K: int, block_M: int, block_N: int, block_K: int, stages: int, warps: int
) -> dict[str, Any]:
    a = torch.randn(M, K, dtype=torch.float16, device="cuda")
    b = torch.randn(N, K, dtype=torch.float16, device="cuda")
    kernel = with_pointers(matmul_relu, M, N, K, block_M, block_N, block_K, num_stages=stages, threads=32 * warps)
    tiles = {"block_M": block_M, "block_N": block_N, "block_K": block_K, "num_stages": stages, "num_warps": warps}

    def by_hand() -> Any:
        return gemm_by_hand.matmul(a, b.T, relu=True, group=8, **tiles)

    torch.testing.assert_close(kernel(a, b), by_hand(), rtol=1e-3, atol=1e-2)
    return compare(
        f"gemm {M}x{N}x{K}, {block_M}x{block_N}x{block_K} s{stages} w{warps}",
        lambda: kernel(a, b),
        by_hand,
        2 * M * N * K,
    )


def attention_row(
    batch: int, heads: int, length: int, dim: int, causal: bool, block_N: int, stages: int, warps: int
) -> dict[str, Any]:
    q, k, v = random_inputs(batch, heads, heads, length, length, dim)
    tiles = {"block_M": 128, "block_N": block_N, "num_stages": stages}
    kernel = with_pointers(attention, batch, heads, heads, length, length, dim, causal, threads=32 * warps, **tiles)

    def by_hand() -> Any:
        return attention_by_hand.attention(q, k, v, causal, num_warps=warps, **tiles)

    torch.testing.assert_close(kernel(q, k, v)[0], by_hand()[0], rtol=2e-3, atol=2e-3)
    title = f"attention {'causal' if causal else 'full'} S{length} D{dim}, 128x{block_N} s{stages} w{warps}"
    operations = 4 * batch * heads * seen_pairs(length, length, causal) * dim
    return compare(title, lambda: kernel(q, k, v), by_hand, operations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'':44} {'emitted':>8} {'by hand':>8}   ratio   (TFLOP/s)")
    rows = [
        gemm_row(4096, 4096, 4096, 128, 256, 64, 3, 8),
        gemm_row(8192, 8192, 8192, 128, 256, 64, 3, 8),
        gemm_row(4096, 4096, 4096, 128, 128, 64, 3, 4),
        gemm_row(4091, 5120, 1024, 128, 128, 64, 3, 4),
        attention_row(4, 32, 4096, 128, False, 128, 2, 8),
        attention_row(4, 32, 4096, 128, True, 128, 2, 8),
        attention_row(4, 32, 4096, 128, False, 64, 2, 4),
        attention_row(4, 32, 4096, 64, True, 64, 3, 4),
    ]
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
