"""Elements and rows that are picked from a tile at an index keep every bit: -0.0, and each NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T

DTYPES = {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def picks(dtype: str) -> Any:
    @T.prim_func
    def picks(
        X: T.Tensor((4, 16), dtype),
        I: T.Tensor((4,), "int32"),
        elements: T.Tensor((4,), dtype),
        rows: T.Tensor((4, 16), dtype),
    ):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((4, 16), dtype)
            T.copy(X, x)
            for i in T.serial(4):
                elements[i] = x[i, I[i]]
            for i in T.serial(4):
                for j in T.Parallel(16):
                    rows[i, j] = x[(i + 1) % 4, j]

    return picks


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_stays(dtype: str) -> None:
    kind = DTYPES[dtype]
    random = torch.Generator().manual_seed(5)
    x = torch.randint(0, 256, (4, 16 * kind.itemsize), dtype=torch.uint8, generator=random).view(kind)
    x[0, 3], x[1, 0] = -0.0, float("nan")
    at = torch.tensor([3, 0, 5, 15], dtype=torch.int32)
    elements, rows = torch.empty(4, dtype=kind), torch.empty(4, 16, dtype=kind)
    tiledsl.compile(picks(dtype), target="interpret")(x, at, elements, rows)
    bits = lambda tensor: tensor.contiguous().view(torch.uint8).tolist()
    assert bits(elements) == bits(torch.stack([x[row, column] for row, column in enumerate(at)]))
    assert bits(rows) == bits(x[[1, 2, 3, 0]])


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_both_tritons_accept(compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    modules = {dtype: tiledsl.compile(picks(dtype), target="cuda:90").module for dtype in DTYPES}
    for name, error, ttgir in compile_modules(modules, full=False, **options):
        assert not error, (name, error)
        assert "tt.reduce" in ttgir


def test_a_sum_of_negative_zeros_is_one() -> None:
    """As on a GPU: to start from 0.0 takes the sign away."""

    @T.prim_func
    def total(X: T.Tensor((8,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            x, y = T.alloc_fragment((8,), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(X, x)
            T.reduce_sum(x, y, dim=0)
            T.copy(y, Y)

    y = torch.zeros(1)
    tiledsl.compile(total, target="interpret")(torch.full((8,), -0.0), y)
    assert y.signbit().item()
