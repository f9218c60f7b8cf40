"""A GPU that is not there, for what launches do before they reach it; kernels to save and to run from their levels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.support.fake_driver import FakeDriver, active
from tiledsl.runtime.module import load_module

# In Triton itself; `n` may be any number, B is a tunable.
SCALE = """
import triton
import triton.language as tl


@triton.jit
def scale(x, y, n, factor, B: tl.constexpr, RELU: tl.constexpr = False):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at, mask=at < n) * factor
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value, mask=at < n)
"""


@pytest.fixture
def device() -> Iterator[FakeDriver]:
    """A pretended sm_90; set `arch` for another one."""
    with active(FakeDriver()) as driver:
        yield driver


ROWS = T.dynamic("rows")


def program(rows: Any = ROWS, tile: int = 32) -> Any:
    @T.prim_func
    def scaled(X: T.Tensor((rows, 64), "float32"), s: T.float32, Y: T.Tensor((rows, 64), "float32")):
        with T.Kernel(T.ceildiv(rows, tile), threads=128) as by:
            for i, j in T.Parallel(tile, 64):
                Y[by * tile + i, j] = X[by * tile + i, j] * s

    return scaled


@pytest.fixture(scope="session")
def kernel() -> tiledsl.Kernel:
    return tiledsl.compile(program(), target="cuda:90", out_idx=-1)


@pytest.fixture(scope="session")
def saved(kernel: tiledsl.Kernel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("levels")
    kernel.save_levels(folder)
    return folder


@pytest.fixture(scope="session")
def scale() -> Any:
    """The function in Triton."""
    return load_module("scale", SCALE, interpret=False).scale


@pytest.fixture(scope="session")
def scale_saved(scale: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale")
    types = ("*fp32:16", "*fp32:16", "i32", "fp32")
    tiledsl.triton_kernel(scale).save_levels(folder, *types, B=128, num_warps=2, target="cuda:90")
    return folder
