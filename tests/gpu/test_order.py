"""Threads of a block see what the others of it wrote to global memory before, in the order of the program."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as T

pytestmark = pytest.mark.gpu
COLUMNS, ROWS, BLOCKS = 2048, 32, 264


@T.prim_func
def rows_from_rows(A: T.Tensor((BLOCKS, ROWS, COLUMNS), "float32")):
    with T.Kernel(BLOCKS, threads=256) as bx:
        for k in T.serial(ROWS - 1):
            for i in T.Parallel(COLUMNS):
                A[bx, k + 1, i] = A[bx, k, COLUMNS - 1 - i] + 1.0


@T.prim_func
def turned_in_place(A: T.Tensor((BLOCKS, ROWS, COLUMNS), "float32")):
    with T.Kernel(BLOCKS, threads=256) as bx:
        t = T.alloc_fragment((COLUMNS,), "float32")
        for i in T.Parallel(COLUMNS):
            t[i] = A[bx, 0, COLUMNS - 1 - i]
        T.copy(t, A[bx, 0, 0:COLUMNS])


def test_rows_that_are_made_of_rows() -> None:
    a = torch.randn(BLOCKS, ROWS, COLUMNS, device="cuda").round()
    expected = a.clone()
    for row in range(1, ROWS):
        expected[:, row] = expected[:, row - 1].flip(-1) + 1.0
    tiledsl.compile(rows_from_rows, target="cuda", pass_configs={"unroll-loops.limit": 0})(a)
    torch.testing.assert_close(a, expected, rtol=0, atol=0)


def test_a_row_that_is_turned_in_place() -> None:
    kernel = tiledsl.compile(turned_in_place, target="cuda")
    for _ in range(20):
        a = torch.randn(BLOCKS, ROWS, COLUMNS, device="cuda")
        expected = a[:, 0].flip(-1).clone()
        kernel(a)
        torch.testing.assert_close(a[:, 0], expected, rtol=0, atol=0)
