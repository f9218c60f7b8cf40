"""T.atomic_addx2 and T.atomic_addx4: sums of neighbours, and the elements before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError


def pairs(dtype: str) -> Any:
    @T.prim_func
    def main(A: T.Tensor((16, 4), dtype), B: T.Tensor((16, 4), dtype), C: T.Tensor((16, 4), dtype)):
        with T.Kernel(1, threads=16):
            for i in T.Parallel(16):
                p, q = T.atomic_addx2(B[i, 1], A[i, 2], return_prev=True)
                C[i, 0] = p
                C[i, 1] = q

    return main


def fours(dtype: str) -> Any:
    @T.prim_func
    def main(A: T.Tensor((16, 4), dtype), B: T.Tensor((16, 4), dtype), C: T.Tensor((16, 4), dtype)):
        with T.Kernel(1, threads=16):
            tx = T.get_thread_binding()
            old = T.atomic_addx4(B[tx, 0:4], A[tx, 0:4], return_prev=True)
            C[tx, 0] = old[3]
            C[tx, 1] = old[2]
            C[tx, 2] = old[1]
            C[tx, 3] = old[0]

    return main


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("program", [pairs, fours])
def test_the_elements_before(program: Any, dtype: str) -> None:
    a, b = (torch.arange(64.0).view(16, 4) % size for size in (7, 11))
    a, b, c = (each.to(getattr(torch, dtype)) for each in (a, b, torch.zeros(16, 4)))
    before, after = b.clone(), b.clone()
    tiledsl.compile(program(dtype), target="interpret")(a, b, c)
    if program is pairs:
        after[:, 1:3] += a[:, 2:4]
        assert c[:, :2].equal(before[:, 1:3])
    else:
        after += a
        assert c.equal(before.flip(1))
    assert b.equal(after)


def test_whole_buffers() -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), "float32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            T.atomic_addx4(B, A)

    b = torch.ones(4)
    tiledsl.compile(main, target="interpret")(torch.arange(4.0), b)
    assert b.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_activemask_says_what_to_write() -> None:
    @T.prim_func
    def main(B: T.Tensor((32,), "int64")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            if tx < 4:
                B[tx] = T.activemask()

    with pytest.raises(TileError) as raised:
        tiledsl.compile(main, target="interpret")
    assert raised.value.message == (
        "T.activemask: which threads of a warp a GPU runs together under a condition is not defined; write "
        "T.ballot(condition) before the `if`, or 0xFFFFFFFF where there is no condition"
    )
    assert "T.activemask()" in str(raised.value)
