"""Kernels of Triton and Gluon tuned on a real GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import tiledsl
from tests.gpu.isolated import product

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("tuned_on_gpu")]


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FAR: tl.constexpr = 0):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (k + inner)[None, :] + FAR)
        right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16))


def grid(meta: Any) -> tuple[int, ...]:
    return meta["M"] // meta["BM"], meta["N"] // meta["BN"]


CONFIGS = [
    {"BM": 64, "BN": 64, "BK": 32},
    {"BM": 64, "BN": 64, "BK": 32, "FAR": 1 << 40},  # an illegal address
    {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8},
    {"BM": 256, "BN": 256, "BK": 128, "num_stages": 6},  # too much shared memory
]


def test_a_product_beside_configurations_that_fail() -> None:
    def product(a: Any, b: Any, c: Any) -> None:
        c.copy_(a @ b)

    tuned = tiledsl.autotune(configs=CONFIGS, grid=grid, ref_prog=product)(matmul)
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.zeros_like(a)
    tuned(a, b, c, 1024, 1024, 1024)
    torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=0.1)
    result = tuned.compile(a, b, c, 1024, 1024, 1024)
    assert [trial.status for trial in result.trials] == ["ok", "crash", "ok", "out_of_resources"]
    assert result.config == CONFIGS[2] and result.latency_kind == "measured" and 0.001 < result.latency < 1.0
    assert result.best.resources["shared_bytes"] == result.kernel.resources.shared_bytes > 0
    c.zero_()
    tuned(a, b, c, 1024, 1024, 1024)
    torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=0.1)
    assert "is launched by its host function" not in result.kernel.launch_source  # a plan, as of ours
    again = tiledsl.autotune(configs=CONFIGS, grid=grid, ref_prog=product)(matmul).compile(a, b, c, 1024, 1024, 1024)
    assert again.from_cache == "disk" and again.config == CONFIGS[2]
    c.zero_()
    again.kernel(a, b, c)
    torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=0.1)


@gluon.jit
def add_one(x, out, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    gl.store(out + at, gl.load(x + at, at < n) + 1, at < n)


def test_gluon() -> None:
    tuned = tiledsl.autotune(
        configs=[{"BLOCK": 128}, {"BLOCK": 1024}],
        grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),),
        ref_prog=lambda x, out: torch.add(x, 1, out=out),
    )(add_one)
    x, out = torch.randn(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    tuned(x, out, 1 << 20)
    assert torch.equal(out, x + 1)
    assert all(trial.ok and trial.verified for trial in tuned.compile(x, out, 1 << 20).trials)


def test_a_function_that_loses_its_gpu_costs_only_a_configuration() -> None:
    A, B = (torch.randn(1024, 1024, device="cuda", dtype=torch.float16) for _ in range(2))
    result = product.tune(A, B)
    assert [trial.status for trial in result.trials] == ["ok", "crash", "ok"], [each.message for each in result.trials]
    assert result.config == {"way": "fast"} and result.in_process == ""
    torch.testing.assert_close(product(A, B), A @ B)
