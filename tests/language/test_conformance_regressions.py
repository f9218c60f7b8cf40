"""What running other people's programs brought to light, each as a small program of our own."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T


def sums(with_squares: bool) -> Any:
    @T.prim_func
    def program(X: T.Tensor((8, 16), "float32"), S: T.Tensor((8,), "float32"), Q: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32) as _:
            x = T.alloc_fragment((8, 16), "float32")
            s = T.alloc_fragment((8,), "float32")
            T.copy(X, x)
            T.reduce_sum(x, s, dim=1)
            T.copy(s, S)
            if with_squares:
                for i, j in T.Parallel(8, 16):
                    x[i, j] = x[i, j] * x[i, j]
                T.reduce_sum(x, s, dim=1)
                T.copy(s, Q)

    return program


def test_an_output_that_only_some_configurations_write(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(8, 16)
    total, squares = tiledsl.compile(sums(True), out_idx=[1, 2], target="interpret")(x)
    torch.testing.assert_close(total, x.sum(1))
    torch.testing.assert_close(squares, (x * x).sum(1))
    with caplog.at_level(logging.WARNING, "tiledsl"):
        total, _ = tiledsl.compile(sums(False), out_idx=[1, 2], target="interpret")(x)
    torch.testing.assert_close(total, x.sum(1))
    assert "program: this configuration writes nothing to the output Q" in caplog.text


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "float8_e4m3fn"])
def test_an_element_type_from_torch(name: str) -> None:
    dtype = T.dtype(getattr(torch, name))
    assert dtype == name
    assert dtype.as_torch() is getattr(torch, name)
    assert dtype.bits == torch.empty(0, dtype=getattr(torch, name)).element_size() * 8


def test_a_profilers_kernel_and_inputs() -> None:
    kernel = tiledsl.compile(sums(True), out_idx=[1, 2], target="interpret")
    profiler = kernel.get_profiler()
    inputs = profiler._get_inputs()
    assert [tuple(each.shape) for each in inputs] == [(8, 16)]
    torch.testing.assert_close(profiler.func(*inputs)[0], inputs[0].sum(1))
