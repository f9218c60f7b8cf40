"""Tensors of more than 2^31 elements."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as T

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_behind_two_to_the_31(dynamic: bool) -> None:
    rows, columns = 70_000, 32_768  # 2.3e9 elements
    count = T.dynamic("rows") if dynamic else rows

    @T.prim_func
    def negate(X: T.Tensor((count, columns), "int8"), Y: T.Tensor((count, columns), "int8")):
        with T.Kernel(T.ceildiv(columns, 1024), T.ceildiv(count, 16), threads=128) as (bx, by):
            for i, j in T.Parallel(16, 1024):
                Y[by * 16 + i, bx * 1024 + j] = X[by * 16 + i, bx * 1024 + j] + 1

    kernel = tiledsl.compile(negate, out_idx=-1, target="cuda")
    x = torch.randint(-100, 100, (rows, columns), dtype=torch.int8, device="cuda")
    assert torch.equal(kernel(x), x + 1)


def test_gathered_rows_behind_two_to_the_31() -> None:
    rows, columns, picked = 70_000, 32_768, 64

    @T.prim_func
    def pick(X: T.Tensor((rows, columns), "int8"), I: T.Tensor((picked,), "int32"), Y: T.Tensor((picked, 128), "int8")):
        with T.Kernel(1, threads=128):
            for i, j in T.Parallel(picked, 128):
                Y[i, j] = X[I[i], columns - 128 + j]

    kernel = tiledsl.compile(pick, out_idx=-1, target="cuda")
    x = torch.randint(-100, 100, (rows, columns), dtype=torch.int8, device="cuda")
    index = torch.randint(0, rows, (picked,), dtype=torch.int32, device="cuda")
    index[0] = rows - 1
    assert torch.equal(kernel(x, index), x[index.long(), -128:])
