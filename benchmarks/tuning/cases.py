"""What is tuned: the 40 GEMM configurations, the cases of the cost model, the space of 3456 configurations.

`small=True` gives the same at sizes that Triton's interpreter runs in moments, to try the programs without a GPU.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiledsl

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL_TIMER = "benchmarks.tuning.stand_ins:by_tile"

Config = dict[str, Any]
Shape = tuple[int, int, int]

COLD_SHAPES: tuple[Shape, ...] = ((4096, 4096, 4096), (8192, 4096, 2048))
SMALL_SHAPES: tuple[Shape, ...] = ((32, 32, 32), (32, 16, 32))
TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256))
SMALL_TILES = ((16, 16), (32, 16))


def shapes(small: bool = False) -> tuple[Shape, ...]:
    """M, N, K of the two products that are tuned one after the other."""
    return SMALL_SHAPES if small else COLD_SHAPES


def gemm_configs(small: bool = False) -> list[Config]:
    """Five tiles, two block_K, two depths, two warp counts: 40 configurations."""
    return [
        {"block_M": m, "block_N": n, "block_K": k, "num_stages": stages, "threads": threads}
        for m, n in (SMALL_TILES if small else TILES)
        for k in ((16, 32) if small else (32, 64))
        for stages in ((2,) if small else (3, 4))
        for threads in (128, 256)
    ]


def example(module: str, name: str) -> Any:
    """A name of a module in examples/."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return getattr(importlib.import_module(module), name)


def gemm() -> Any:
    """The builder of relu(A[M, K] @ B[N, K].T) in float16."""
    return example("gemm_lazy", "matmul_relu")


def gemm_reference(a: Any, b: Any) -> Any:
    """What gemm() computes, in torch."""
    return example("gemm_lazy", "reference")(a, b)


def tune_options(small: bool) -> dict[str, Any]:
    """Options of autotune that every part gives: none but quiet; in small runs times that are made up."""
    if not small:
        return {"progress": False}
    return {"progress": False, "timer": SMALL_TIMER, "target": "interpret", "warmup": 1, "rep": 5}


@dataclass(frozen=True)
class Case:
    """A kernel and a space to hold the cost model against. `arguments` of the builder; `reference` of the inputs."""

    name: str
    module: str
    builder: str
    arguments: dict[str, Any]
    configs: tuple[Config, ...]
    reference: Callable[..., Any] | None = None


def _attention_reference(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """Output and each row's logarithm to base 2 of its sum of exponentials, one head at a time."""
    import math

    import torch

    def wide(part: Any) -> Any:
        return part.to(torch.promote_types(part.dtype, torch.float32))

    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    for at in range(q.shape[0]):
        for head in range(q.shape[1]):
            scores = (wide(q[at, head]) @ wide(k[at, head]).T) * q.shape[-1] ** -0.5
            out[at, head] = (torch.softmax(scores, dim=-1) @ wide(v[at, head])).to(out.dtype)
            lse[at, head] = torch.logsumexp(scores, dim=-1) / math.log(2)
    return out, lse


def _attention_configs(small: bool) -> tuple[Config, ...]:
    return tuple(
        {"block_M": m, "block_N": n, "num_stages": stages, "threads": threads}
        for m in ((16, 32) if small else (64, 128))
        for n in ((16,) if small else (32, 64, 128))
        for stages in ((2,) if small else (2, 3, 4))
        for threads in (128, 256)
    )


def _attention_case(name: str, causal: bool, small: bool) -> Case:
    if small:
        sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 64, "keys": 64, "dim": 16}
    else:
        sizes = {"batch": 4, "heads": 32, "kv_heads": 32, "queries": 4096, "keys": 4096, "dim": 128}
    reference = None if causal else _attention_reference
    return Case(name, "attention", "attention", {**sizes, "causal": causal}, _attention_configs(small), reference)


def model_cases(small: bool = False) -> dict[str, Case]:
    """By name: gemm, attention and softmax, and two more regimes: few rows, and a causal mask."""
    M, N, K = shapes(small)[0]
    rows, columns = (32, 64) if small else (65536, 2048)
    softmax_configs = tuple(
        {"block_M": m, "threads": threads}
        for m in ((1, 2) if small else (1, 2, 4, 8))
        for threads in ((64, 128) if small else (64, 128, 256, 512, 1024))
    )
    skinny_configs = gemm_configs(True) if small else [
        {"block_M": m, "block_N": n, "block_K": k, "num_stages": stages, "threads": 128}
        for m in (16, 32, 64, 128) for n in (32, 64, 128) for k in (64, 128) for stages in (3, 5)
    ]  # fmt: skip
    few = {"M": 32, "N": 64, "K": 32} if small else {"M": 128, "N": 7168, "K": 2048}
    product, whole = tuple(gemm_configs(small)), {"M": M, "N": N, "K": K}
    softmax_reference = example("softmax", "reference")
    found = [
        Case("gemm", "gemm_lazy", "matmul_relu", whole, product, gemm_reference),
        _attention_case("attention", False, small),
        Case("softmax", "softmax", "softmax", {"M": rows, "N": columns}, softmax_configs, softmax_reference),
        Case("gemm-few-rows", "gemm_lazy", "matmul_relu", few, tuple(skinny_configs), gemm_reference),
        _attention_case("attention-causal", True, small),
    ]
    return {case.name: case for case in found}


def large_space() -> Any:
    """The knobs of aiter's GEMM tuner that exist on NVIDIA: depth, tile, order of blocks, warps, parts of K; 3456."""
    return tiledsl.space(
        num_stages=[1, 2, 3, 4],
        block_M=[32, 64, 128],
        block_N=[32, 64, 128],
        block_K=[64, 128],
        threads=[64, 128, 256],
        splits=[1, 2, 4, 8],
        pass_configs=[{"map-grid.group_m": group} for group in (1, 4, 8, 16)],
    )


LARGE_SPACE_SIZE = {"M": 128, "N": 4096, "K": 16384}


def split_k_gemm() -> Any:
    """The builder that large_space is for."""
    return example("gemm_split_k", "matmul_split_k")
