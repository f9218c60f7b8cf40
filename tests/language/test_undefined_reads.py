"""What is read before anything is written to it is told, once, with its line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T

F, H = "float32", "float16"


def told(caplog: pytest.LogCaptureFixture, program: Any) -> list[str]:
    with caplog.at_level(logging.WARNING, "tiledsl"):
        tiledsl.compile(program, target="interpret")
    return [record.getMessage().partition(": ")[2] for record in caplog.records]


def gemm(clear: str) -> Any:
    @T.prim_func
    def main(A: T.Tensor((64, 64), H), B: T.Tensor((64, 64), H), C: T.Tensor((64, 64), F)):
        with T.Kernel(2, threads=128) as bx:
            a, b = T.alloc_shared((32, 32), H), T.alloc_shared((32, 64), H)
            acc = T.alloc_fragment((32, 64), F)
            if clear == "before":
                T.clear(acc)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[bx * 32, k * 32], a)
                T.copy(B[k * 32, 0], b)
                if clear == "in the loop" and k == 0:
                    T.clear(acc)
                T.gemm(a, b, acc, clear_accum=(k == 0) if clear == "by the product" else False)
            T.copy(acc, C[bx * 32, 0])

    return main


@pytest.mark.parametrize("clear", ["before", "in the loop", "by the product", "never"])
def test_an_accumulator(caplog: pytest.LogCaptureFixture, clear: str) -> None:
    messages = told(caplog, gemm(clear))
    assert messages == (["acc is read before anything is written to it; it reads as 0"] if clear == "never" else [])
    assert all("test_undefined_reads.py:" in record.getMessage() for record in caplog.records)


def elementwise() -> Any:
    @T.prim_func
    def main(A: T.Tensor((8,), F)):
        with T.Kernel(1):
            x, y = T.alloc_fragment((8,), F), T.alloc_fragment((8,), F)
            for i in T.Parallel(8):
                y[i] = x[i] + 1.0
            T.copy(y, A)

    return main


def reduction() -> Any:
    @T.prim_func
    def main(A: T.Tensor((8, 4), F), B: T.Tensor((2, 8), F)):
        with T.Kernel(1):
            x, s = T.alloc_fragment((8, 4), F), T.alloc_fragment((2, 8), F)
            T.copy(A, x)
            T.reduce_sum(x, s[0, :], dim=1)  # writes all of the row
            T.reduce_sum(x, s[1, :], dim=1, clear=False)
            T.copy(s, B)

    return main


def variable() -> Any:
    @T.prim_func
    def main(A: T.Tensor((8,), F)):
        with T.Kernel(1):
            total = T.alloc_var(F)
            for i in T.serial(8):
                for j in T.serial(2):
                    total += A[i] * j
            A[0] = total

    return main


def views() -> Any:
    @T.prim_func
    def main(A: T.Tensor((6,), "int32"), B: T.Tensor((3, 2), "int32")):
        with T.Kernel(1):
            x, y = T.alloc_shared((6,), "int32"), T.alloc_shared((6,), "int32")
            rows, unsigned, other = T.reshape(x, (3, 2)), T.view(x, (2, 3), "uint32"), T.reshape(y, (3, 2))
            for i, j in T.Parallel(2, 3):
                unsigned[i, j] = T.cast(A[i * 3 + j], "uint32")  # writes all of x
            for i, j in T.Parallel(3, 2):
                rows[i, j] = rows[i, j] + other[i, j]
            T.copy(rows, B)

    return main


@pytest.mark.parametrize(
    ("build", "names"), [(elementwise, ["x"]), (reduction, []), (variable, ["total"]), (views, ["y"])]
)
def test_other_reads(caplog: pytest.LogCaptureFixture, build: Callable[[], Any], names: list[str]) -> None:
    assert [message.split()[0] for message in told(caplog, build())] == names


def test_it_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), F)):
        with T.Kernel(1):
            x = T.alloc_fragment((8,), F)
            T.copy(x, A)

    assert len(told(caplog, main)) == 1
    caplog.clear()
    assert told(caplog, main) == []
