"""T.thread_return: a block, or the threads for which a condition holds, leave the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError


def test_a_block_leaves(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(N: T.Tensor((6,), "int32"), X: T.Tensor((6, 8), "float32"), Y: T.Tensor((6, 8), "float32")):
        with T.Kernel(6, threads=32) as b:
            tile = T.alloc_fragment((8,), "float32")
            for i in T.Parallel(8):
                Y[b, i] = -1.0
            if N[b] == 0:
                T.thread_return()
            T.copy(X[b, 0], tile)
            if N[b] > 3:
                for i in T.Parallel(8):
                    Y[b, i] = tile[i] * 2
                if N[b] > 4:
                    T.thread_return()
                else:
                    for i in T.Parallel(8):
                        tile[i] += 100
            for i in T.Parallel(8):
                Y[b, i] = tile[i]

    counts = torch.tensor([0, 1, 5, 4, 0, 3], dtype=torch.int32)
    y = run(program, counts, torch.ones(6, 8))
    assert y[:, 0].tolist() == y[:, 7].tolist() == [-1, 1, 2, 101, -1, 1]


def test_out_of_loops(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(N: T.Tensor((5,), "int32"), Y: T.Tensor((5, 2), "int32")):
        with T.Kernel(5, threads=32) as b:
            count = T.alloc_var("int32", 0)
            Y[b, 1] = 0
            for i in T.serial(4):
                for j in range(3):
                    if i * 3 + j == N[b]:
                        T.thread_return()
                    count += 1
                    Y[b, 0] = count
            while count < 20:
                if count == N[b]:
                    T.thread_return()
                count += 1
            Y[b, 1] = count

    counts = torch.tensor([0, 4, 11, 15, 30], dtype=torch.int32)
    y = run(program, counts)
    assert y[1:, 0].tolist() == [4, 11, 12, 12] and y[:, 1].tolist() == [0, 0, 0, 0, 20]


def test_what_is_known_when_the_program_is_built(run: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    def stores(early: bool) -> Any:
        @T.prim_func
        def program(Y: T.Tensor((2,), "int32")):
            with T.Kernel(1, threads=32):
                Y[0] = 1
                Y[1] = 0
                if early:
                    T.thread_return()
                Y[1] = 1

        return program

    assert [run(stores(early)).tolist() for early in (True, False)] == [[1, 0], [1, 1]]
    assert not caplog.records  # nothing is read before it is written


def test_threads_leave(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(X: T.Tensor((50,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(2, threads=32) as b:
            tx = T.get_thread_binding()
            Y[b * 32 + tx] = 0.0
            if b * 32 + tx >= 50:
                T.thread_return()
            if X[b * 32 + tx] < 0:
                T.thread_return()
            Y[b * 32 + tx] = X[b * 32 + tx]

    x = torch.randn(50)
    assert torch.equal(run(program, x), torch.cat([x.relu(), torch.zeros(14)]))


def refused(body: str, *lines: str) -> str:
    text = "def main(N: T.Tensor((4,), 'int32')):\n    with T.Kernel(4, threads=32) as b:\n        " + body
    with pytest.raises(TileError) as caught:
        tiledsl.compile(tiledsl.parse("\n".join(["@T.prim_func", text])), target="interpret")
    return caught.value.message


def test_where_it_cannot_stand() -> None:
    assert refused("for i in T.Parallel(4):\n            if N[i] > 0:\n                T.thread_return()").startswith(
        "the iterations of T.Parallel are independent: there is no T.thread_return"
    )
    assert (
        refused("x = T.thread_return()") == "T.thread_return() is a statement of its own, in a kernel of a tile program"
    )


class Limits:
    """A class of macros, one of which leaves."""

    def __init__(self, most: int) -> None:
        self.most = most

    @T.macro
    def check(self, count: Any):
        if count > self.most:
            T.thread_return()


@T.macro
def positive(count: Any):
    if count <= 0:
        T.thread_return()
    return count * 10


def test_a_macro_leaves_the_kernel(run: Callable[..., Any]) -> None:
    limits = Limits(4)

    @T.prim_func
    def program(N: T.Tensor((6,), "int32"), Y: T.Tensor((6, 3), "int32")):
        with T.Kernel(6, threads=32) as b:
            T.clear(Y[b, :])

            def counted(n, i):
                if n == i:
                    T.thread_return()
                Y[b, 1] = i

            ten = positive(N[b])
            Y[b, 0] = ten
            for i in T.serial(8):
                limits.check(N[b])
                counted(N[b], i)
            Y[b, 2] = 1

    counts = torch.tensor([0, 1, 3, 9, -1, 4], dtype=torch.int32)
    y = run(program, counts)
    assert y.tolist() == [[0, 0, 0], [10, 0, 0], [30, 2, 0], [90, 0, 0], [0, 0, 0], [40, 3, 0]]


def test_macros_of_macros_and_threads(run: Callable[..., Any]) -> None:
    @T.macro
    def inner(tx, n):
        if tx >= n:
            T.thread_return()

    @T.macro
    def outer(X, Y, tx, n):
        inner(tx, n)
        Y[tx] = X[tx] + 1
        inner(tx, n // 2)
        Y[tx] = X[tx] * 2

    @T.prim_func
    def program(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            Y[tx] = 0.0
            outer(X, Y, tx, 20)
            Y[tx] += 0.5

    x = torch.randn(32)
    expected = torch.cat([x[:10] * 2 + 0.5, x[10:20] + 1, torch.zeros(12)])
    assert torch.equal(run(program, x), expected)


def test_a_function_that_returns_before_one_that_leaves(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(N: T.Tensor((3,), "int32"), Y: T.Tensor((3,), "int32")):
        with T.Kernel(3, threads=32) as b:
            Y[b] = -1

            def half(count):
                return count // 2

            value = positive(half(N[b]))
            Y[b] = value

    assert run(program, torch.tensor([1, 2, 5], dtype=torch.int32)).tolist() == [-1, 10, 20]


def test_a_call_that_is_not_a_statement() -> None:
    message = "T.thread_return in a function that is called inside of an expression, or by another name"
    calls = ["Y[b] = positive(N[b])", "if positive(N[b]) > 3:\n                Y[b] = 1", "Y[b] = again(N[b])"]
    for call in calls:
        text = f"""
@T.prim_func
def main(N: T.Tensor((4,), "int32"), Y: T.Tensor((4,), "int32")):
    with T.Kernel(4, threads=32) as b:

        def positive(count):
            if count <= 0:
                T.thread_return()
            return count

        def again(count):
            return 1 + positive(count)

        if N[b] == 7:
            T.thread_return()
        {call}
"""
        with pytest.raises(TileError) as caught:
            tiledsl.compile(tiledsl.parse(text), target="interpret")
        assert caught.value.message == message and caught.value.loc.line == 8


def test_it_compiles() -> None:
    @T.prim_func
    def program(N: T.Tensor((4,), "int32"), Y: T.Tensor((4, 64), "float16")):
        with T.Kernel(4, threads=128) as b:
            tile = T.alloc_shared((64,), "float16")
            T.fill(tile, 1)
            for i in T.serial(N[b]):
                if N[(b + i) % 4] == 7:
                    T.thread_return()
                for j in T.Parallel(64):
                    tile[j] += 1
            T.copy(tile, Y[b, 0])

    assert ".entry program_kernel" in str(tiledsl.compile(program, target="cuda:90").asm["ptx"])
