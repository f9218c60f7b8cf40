"""Sorting and selection beside CUB, through torch: rows sorted, a whole array scanned, the k largest of long rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.library import copy_ceiling, eager
from benchmarks.programs import selection
from benchmarks.row import Candidate, Row

SORT_SPACE = [
    {"block_M": rows, "threads": threads} for rows, threads in ((1, 32), (2, 32), (1, 64), (2, 64), (1, 128), (2, 128))
]
SCAN_SPACE = [
    {
        "block_N": tile, "blocks": blocks, "lag": lag, "num_stages": stages, "threads": threads, "launch_pdl": True,
        "pass_configs": {"pipeline-loops.deepen": False},
    }
    for tile, blocks, lag, stages, threads in (
        (4096, 528, 1, 2, 128), (2048, 528, 2, 4, 128), (8192, 264, 1, 2, 256), (4096, 264, 2, 4, 256),
    )
]  # fmt: skip


def top_k_space(k: int) -> list[dict[str, int]]:
    """Tiles of several times k."""
    tiles = (2048, 4096, 8192, 16384)
    return [
        {"block_N": tile, "threads": threads, "merge_threads": 1024 if k > 256 else 512}
        for tile in tiles
        for threads in (128, 256, 512, 1024)
        if tile >= 4 * k and 8 <= tile // threads <= 32
    ]


def _row(
    family: str, case: str, inputs: Any, reference: Callable[..., list[Any]], outputs: Any,
    candidates: tuple[Candidate, ...], moved: int, quick: bool,
) -> Row:  # fmt: skip
    return Row(
        family=family, case=case, inputs=inputs, reference=reference, outputs=outputs,
        candidates=(*candidates, copy_ceiling()), operations=float(moved), bytes_moved=float(moved), quick=quick,
    )  # fmt: skip


def sort_row(M: int, N: int, quick: bool = False) -> Row:
    """Rows of 32-bit integers."""
    return _row(
        "sort", f"int32 {M}x{N}",
        lambda device: [torch.randint(-(2**31), 2**31 - 1, (M, N), dtype=torch.int32, device=device)],
        lambda x: [x.sort(dim=1).values],
        (((M, N), torch.int32),),
        (
            tiledsl_candidate(selection.sorted_rows, {"M": M, "N": N}, SORT_SPACE),
            eager("torch.sort", lambda x: x.sort(dim=1).values),
        ),
        8 * M * N, quick,
    )  # fmt: skip


def scan_row(N: int, quick: bool = False) -> Row:
    """The sums of an array of float32 up to each element."""
    return _row(
        "scan", f"fp32 {N}",
        lambda device: [torch.rand(N, device=device) - 0.4],
        lambda x: [x.double().cumsum(0)],
        (((N,), torch.float32),),
        (
            tiledsl_candidate(selection.cumulative_sum, {"N": N}, SCAN_SPACE),
            eager("torch.cumsum", lambda x: x.cumsum(0)),
        ),
        8 * N, quick,
    )  # fmt: skip


def top_k_row(M: int, N: int, k: int, quick: bool = False) -> Row:
    """The k largest of rows of float32, descending, and their places; no two elements of a row are equal."""

    def best(x: Any) -> list[Any]:
        values, indices = x.topk(k, dim=1)
        return [values, indices.int()]

    return _row(
        "top-k", f"fp32 {k} of {M}x{N}",
        lambda device: [torch.rand(M, N, device=device).argsort(1).float() - N // 2],
        best,
        (((M, k), torch.float32), ((M, k), torch.int32)),
        (
            tiledsl_candidate(selection.top_k, {"M": M, "N": N, "k": k}, top_k_space(k)),
            eager("torch.topk", lambda x: x.topk(k, dim=1).values),
        ),
        4 * M * N + 8 * M * k, quick,
    )  # fmt: skip


def rows() -> list[Row]:
    """As many bytes as the other rows that memory bounds; long rows as an indexer of attention selects from."""
    return [
        sort_row(16384, 1024, quick=True),
        scan_row(1 << 26, quick=True),
        top_k_row(256, 131072, 64, quick=True), top_k_row(256, 131072, 2048),
    ]  # fmt: skip
