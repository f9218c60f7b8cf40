"""Reads of on-chip tiles beyond their extent: refused where they take place, right where they are guarded."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError

SIZE = 8


def in_parallel(count: int, step: int, shift: int) -> Any:
    @T.prim_func
    def main(A: T.Tensor((SIZE,), "float32"), B: T.Tensor((count,), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((SIZE,), "float32")
            T.copy(A, s)
            for i in T.Parallel(count):
                B[i] = s[i * step + shift]

    return main


def in_a_loop(count: int, step: int, shift: int) -> Any:
    @T.prim_func
    def main(A: T.Tensor((SIZE,), "float32"), B: T.Tensor((count,), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((SIZE,), "float32")
            T.copy(A, s)
            for i in T.serial(count):
                B[i] = s[shift + step * i]

    return main


@pytest.mark.parametrize("write", [in_parallel, in_a_loop])
def test_what_python_says_of_the_indices(write: Any) -> None:
    a = torch.arange(1.0, SIZE + 1)
    for count, step, shift in itertools.product((3, 4, 8), (1, 2, -1), (0, 2, 5, 7)):
        indices = [i * step + shift for i in range(count)]
        program, b = write(count, step, shift), torch.zeros(count)
        if min(indices) >= 0 and max(indices) < SIZE:
            tiledsl.compile(program, target="interpret")(a, b)
            assert b.tolist() == [a[index].item() for index in indices]
            continue
        with pytest.raises(TileError) as raised:
            tiledsl.compile(program, target="interpret")
        worst = max(indices) if max(indices) >= SIZE else min(indices)
        assert raised.value.message == (
            f"index {worst} is outside dimension 0 of s, which has {SIZE}: the index goes from {min(indices)} to "
            f"{max(indices)}"
        )
        assert raised.value.loc is not None and "s[" in str(raised.value)


@T.prim_func
def chosen(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        s = T.alloc_shared((8,), "float32")
        T.copy(A, s)
        for i in T.Parallel(8):
            B[i] = T.if_then_else(i + 3 < 8, s[i + 3] * 2.0, -1.0)


@T.prim_func
def never_chosen(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        s = T.alloc_shared((8,), "float32")
        T.copy(A, s)
        for i in T.Parallel(8):
            B[i] = T.if_then_else(i + 9 < 8, s[i + 9], -1.0)


@T.prim_func
def under_a_condition(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        s = T.alloc_shared((8,), "float32")
        T.copy(A, s)
        T.fill(B, -1.0)
        for i in T.Parallel(8):
            if i + 3 < 8:
                B[i] = s[i + 3] * 2.0


@T.prim_func
def in_an_empty_loop(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        s = T.alloc_shared((8,), "float32")
        T.copy(A, s)
        T.fill(B, -1.0)
        for i in T.serial(8, 8):
            B[i] = s[i]


@T.prim_func
def beyond_the_tensor(A: T.Tensor((8,), "float32"), B: T.Tensor((5,), "float32")):
    with T.Kernel(1, threads=32):
        s = T.alloc_shared((8,), "float32")
        T.copy(A, s)
        for i in T.Parallel(8):
            B[i] = s[i + 3] * 2.0


MOVED = [8.0, 10.0, 12.0, 14.0, 16.0]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (chosen, [*MOVED, -1.0, -1.0, -1.0]), (never_chosen, [-1.0] * 8),
        (under_a_condition, [*MOVED, -1.0, -1.0, -1.0]),
        (in_an_empty_loop, [-1.0] * 8), (beyond_the_tensor, MOVED),
    ],
)  # fmt: skip
def test_what_does_not_take_place_is_not_refused(program: Any, expected: list[float]) -> None:
    b = torch.zeros(len(expected))
    tiledsl.compile(program, target="interpret")(torch.arange(1.0, 9.0), b)
    assert b.tolist() == expected
