"""Accesses beyond the extent of on-chip tiles: refused where they take place, right where they are guarded."""

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


def written_in_parallel(count: int, step: int, shift: int) -> Any:
    @T.prim_func
    def main(A: T.Tensor((count,), "float32"), B: T.Tensor((SIZE,), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((SIZE,), "float32")
            T.clear(s)
            for i in T.Parallel(count):
                s[i * step + shift] = A[i]
            T.copy(s, B)

    return main


def written_in_a_loop(count: int, step: int, shift: int) -> Any:
    @T.prim_func
    def main(A: T.Tensor((count,), "float32"), B: T.Tensor((SIZE,), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_fragment((SIZE,), "float32")
            T.clear(s)
            for i in T.serial(count):
                s[shift + step * i] = A[i]
            T.copy(s, B)

    return main


def refused_outside(program: Any, indices: list[int], size: int = SIZE) -> None:
    """The program is refused at a line with s, whose index takes these numbers."""
    with pytest.raises(TileError) as raised:
        tiledsl.compile(program, target="interpret")
    worst = max(indices) if max(indices) >= size else min(indices)
    assert raised.value.message == (
        f"index {worst} is outside dimension 0 of s, which has {size}: the index goes from {min(indices)} to "
        f"{max(indices)}"
    )
    assert raised.value.loc is not None and "s[" in str(raised.value)


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
        refused_outside(program, indices)


@pytest.mark.parametrize("write", [written_in_parallel, written_in_a_loop])
def test_what_python_says_of_the_indices_of_writes(write: Any) -> None:
    for count, step, shift in itertools.product((3, 4, 8), (1, 2, -1), (0, 2, 5, 7)):
        indices = [i * step + shift for i in range(count)]
        program, b = write(count, step, shift), torch.zeros(SIZE)
        if min(indices) >= 0 and max(indices) < SIZE:
            tiledsl.compile(program, target="interpret")(torch.arange(1.0, count + 1), b)
            assert b.tolist() == [indices.index(at) + 1.0 if at in indices else 0.0 for at in range(SIZE)]
        elif max(indices) >= 0:  # else it counts from the end
            refused_outside(program, indices)


def of_statement(write: Any, blocks: int = 1) -> Any:
    @T.prim_func
    def main(A: T.Tensor((SIZE,), "float32"), B: T.Tensor((SIZE,), "float32")):
        with T.Kernel(blocks, threads=32) as bx:
            s = T.alloc_shared((SIZE,), "float32")
            t = T.alloc_fragment((4,), "float32")
            T.copy(A, s)
            T.clear(t)
            write(A, s, t, bx)
            T.copy(s, B)

    return main


@T.macro
def halves(A: Any, s: Any, t: Any, bx: Any) -> None:
    for i in T.Parallel(20):
        s[i // 2] = A[i]


@T.macro
def limited(A: Any, s: Any, t: Any, bx: Any) -> None:
    for i in T.Parallel(20):
        s[T.min(i, 9)] = 1.0


@T.macro
def at_least(A: Any, s: Any, t: Any, bx: Any) -> None:
    for i in T.serial(8):
        s[T.max(i, 1) - 2] = 1.0


@T.macro
def of_a_block(A: Any, s: Any, t: Any, bx: Any) -> None:
    s[bx * 2] = 1.0


@T.macro
def read_of_a_block(A: Any, s: Any, t: Any, bx: Any) -> None:
    t[0] = s[bx * 2]


@T.macro
def of_threads(A: Any, s: Any, t: Any, bx: Any) -> None:
    s[T.get_thread_binding()] = 1.0


@T.macro
def slices(A: Any, s: Any, t: Any, bx: Any) -> None:
    for k in T.serial(3):
        T.copy(A[0:4], s[k * 4 : k * 4 + 4])


@T.macro
def a_place(A: Any, s: Any, t: Any, bx: Any) -> None:
    T.copy(t, s[6])


@T.macro
def filled(A: Any, s: Any, t: Any, bx: Any) -> None:
    for k in T.serial(3):
        T.fill(s[k * 4 : k * 4 + 4], 1.0)


@T.macro
def read_slices(A: Any, s: Any, t: Any, bx: Any) -> None:
    for k in T.serial(3):
        T.copy(s[k * 4 : k * 4 + 4], t)


@pytest.mark.parametrize(
    ("write", "low", "high"),
    [
        (halves, 0, 9), (limited, 0, 9), (at_least, -1, 5), (of_a_block, 0, 10), (read_of_a_block, 0, 10),
        (of_threads, 0, 31), (slices, 0, 11), (a_place, 6, 9), (filled, 0, 11), (read_slices, 0, 11),
    ],
)  # fmt: skip
def test_what_is_certainly_outside_is_refused(write: Any, low: int, high: int) -> None:
    refused_outside(of_statement(write, blocks=6), [low, high])


@T.macro
def under_its_condition(A: Any, s: Any, t: Any, bx: Any) -> None:
    for i in T.Parallel(20):
        if i < 8:
            s[i] = 2.0


@T.macro
def never(A: Any, s: Any, t: Any, bx: Any) -> None:
    for k in T.serial(3, 3):
        s[k + 8] = 2.0


@T.macro
def some_threads(A: Any, s: Any, t: Any, bx: Any) -> None:
    tid = T.get_thread_binding()
    if tid < 8:
        s[tid] = 2.0


@pytest.mark.parametrize(("write", "expected"), [(under_its_condition, 2.0), (never, 1.0), (some_threads, 2.0)])
def test_what_a_condition_keeps_inside_is_written(write: Any, expected: float) -> None:
    b = torch.zeros(SIZE)
    tiledsl.compile(of_statement(write), target="interpret")(torch.ones(SIZE), b)
    assert b.tolist() == [expected] * SIZE


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


@pytest.mark.parametrize("program", [chosen, never_chosen, under_a_condition, beyond_the_tensor])
def test_a_certificate_knows_what_is_not_used(program: Any) -> None:
    pytest.importorskip("z3")
    checks = tiledsl.compile(program, target="interpret").verify().checks
    assert not [each for each in checks if each.status not in ("proved", "tested")]


@T.prim_func
def scattered(I: T.Tensor((8,), "int32"), B: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        s = T.alloc_shared((8,), "float32")
        T.clear(s)
        for i in T.serial(8):
            s[I[i]] = i + 1.0
        T.copy(s, B)


def test_what_data_puts_outside_changes_nothing() -> None:
    i, b = torch.tensor([0, 1, 9, -1, 8, 5, 1 << 30, 2], dtype=torch.int32), torch.zeros(8)
    kernel = tiledsl.compile(scattered, target="interpret")
    kernel(i, b)
    assert b.tolist() == [1.0, 2.0, 8.0, 0.0, 0.0, 6.0, 0.0, 0.0]
