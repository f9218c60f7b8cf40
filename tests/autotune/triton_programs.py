"""Kernels of Triton that the tuner's tests tune."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import tiledsl

THREE = tl.constexpr(3.0)
TIMER = "tests.autotune.fake_timers:by_tile"


@triton.jit
def times(x, factor):
    return x * factor


@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr, WRONG: tl.constexpr = False):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = times(tl.load(x + at, at < n), THREE)
    if WRONG:
        value += 1.0
    tl.store(out + at, value, at < n)


@triton.jit
def scale_rows(a, out, factor, M, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0) * BM
    for column in range(0, N, BN):
        out.store([row, column], a.load([row, column]) * factor)


def grid(meta: Any) -> tuple[int, ...]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def scaled(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 3)


def vectors(n: int) -> dict[str, Any]:
    return {"x": torch.arange(n, dtype=torch.float32), "out": torch.empty(n)}


tuned = tiledsl.autotune(
    configs=[{"BLOCK": 32}, {"BLOCK": 64}, {"BLOCK": 128}],
    grid=grid,
    make_inputs=vectors,
    ref_prog=scaled,
    timer=TIMER,
    bucket="n",
)(scale)
