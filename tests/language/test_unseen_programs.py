"""What a library of operators written on TileLang brought to light, each as a small program of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError


def folded(size: int, rows: int, columns: int) -> Any:
    """A flat tile that a loop over two indices walks: each element by the sum of both, and its row from the end."""

    @T.prim_func
    def program(X: T.Tensor((size,), "float32"), Y: T.Tensor((size,), "float32")):
        with T.Kernel(T.ceildiv(size, rows * columns), threads=32) as block:
            x = T.alloc_fragment((rows * columns,), "float32")
            y = T.alloc_fragment((rows * columns,), "float32")
            start = block * rows * columns
            T.copy(X[start : start + rows * columns], x)
            for i, j in T.Parallel(rows, columns):
                y[i * columns + j] = x[i * columns + j] * 2 + x[i * columns + columns - 1 - j]
            for i in T.Parallel(rows):
                for c in T.serial(columns):
                    y[i * columns + c] += x[i * columns + c]
            T.copy(y, Y[start : start + rows * columns])

    return program


@pytest.mark.parametrize(("size", "rows", "columns"), [(64, 8, 4), (45, 5, 3), (16, 8, 1)])
def test_a_flat_tile_indexed_by_digits(run: Callable[..., Any], size: int, rows: int, columns: int) -> None:
    x = torch.randn(size)
    padded = torch.cat([x, x.new_zeros(-size % (rows * columns))]).view(-1, columns)
    expected = (padded * 3 + padded.flip(1)).flatten()[:size]
    torch.testing.assert_close(run(folded(size, rows, columns), x), expected)


def test_a_large_flat_tile_is_reshaped() -> None:
    """Comparing each element with each index would be 2^22 comparisons."""

    @T.prim_func
    def program(X: T.Tensor((10000,), "float32"), Y: T.Tensor((10000,), "float32")):
        with T.Kernel(5, threads=128) as block:
            x = T.alloc_fragment((2048,), "float32")
            y = T.alloc_fragment((2048,), "float32")
            T.copy(X[block * 2048], x)
            for i, j in T.Parallel(256, 8):
                y[i * 8 + j] = x[i * 8 + j] + 1
            T.copy(y, Y[block * 2048])

    source = tiledsl.compile(program, out_idx=[1], target="cuda:90").get_kernel_source()
    assert "gather" not in source and "==" not in source


def test_three_digits_with_an_offset(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(X: T.Tensor((2, 3, 2), "float32"), Y: T.Tensor((48,), "float32")):
        with T.Kernel(1, threads=32):
            y = T.alloc_shared((48,), "float32")
            T.clear(y)
            for i, j, k in T.Parallel(2, 3, 2):
                y[i * 24 + j * 4 + k + 9] = X[i, j, k]
            T.copy(y, Y)

    x = torch.randn(2, 3, 2)
    expected = torch.zeros(48)
    for i in range(2):
        for j in range(3):
            expected[i * 24 + j * 4 + 9 : i * 24 + j * 4 + 11] = x[i, j]
    torch.testing.assert_close(run(program, x), expected)


def test_the_diagonal_is_not_the_whole(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(Y: T.Tensor((4, 4), "float32")):
        with T.Kernel(1, threads=32):
            y = T.alloc_fragment((4, 4), "float32")
            T.fill(y, 7)
            for i in T.Parallel(4):
                y[i, i] = i
            T.copy(y, Y)

    expected = torch.full((4, 4), 7.0)
    expected.diagonal().copy_(torch.arange(4.0))
    torch.testing.assert_close(run(program), expected)


def test_grid_runs_in_order(run: Callable[..., Any]) -> None:
    """A recurrence over T.grid: its loops are serial, the last one innermost."""

    @T.prim_func
    def program(X: T.Tensor((4, 3, 8), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            y = T.alloc_fragment((8,), "float32")
            T.clear(y)
            for i, j in T.grid(4, 3):
                for k in T.Parallel(8):
                    y[k] = y[k] * 0.5 + X[i, j, k]
                if i > j:
                    continue
                for k in T.Parallel(8):
                    y[k] += i
            T.copy(y, Y)

    x = torch.randn(4, 3, 8)
    expected = torch.zeros(8)
    for i in range(4):
        for j in range(3):
            expected = expected * 0.5 + x[i, j] + (0 if i > j else i)
    torch.testing.assert_close(run(program, x), expected)


def test_the_names_of_a_grid() -> None:
    @T.prim_func
    def program(Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.grid(4, 2):
                Y[i] = 1.0

    with pytest.raises(TileError, match=r"T\.grid of 2 extents needs as many names"):
        tiledsl.compile(program, target="interpret")


def branching(on_the_host: bool) -> Any:
    @T.prim_func
    def program(X: T.Tensor((3, 8), "int32"), Y: T.Tensor((3, 8), "int32")):
        with T.Kernel(3, threads=32) as row:
            with T.If(row == 1):
                with T.Then():
                    for i in T.Parallel(8):
                        Y[row, i] = -X[row, i]
                with T.Else():
                    for i in T.Parallel(8):
                        Y[row, i] = 5
                        with T.If(X[row, i] > 3), T.Then():
                            Y[row, i] = X[row, i]
            with T.If(row >= 0):
                with T.Then(), T.If(on_the_host), T.Then():
                    Y[row, 0] = 9

    return program


@pytest.mark.parametrize("on_the_host", [False, True])
def test_if_then_else_as_blocks(run: Callable[..., Any], on_the_host: bool) -> None:
    x = torch.arange(24, dtype=torch.int32).view(3, 8)
    expected = torch.where(x > 3, x, 5)
    expected[1] = -x[1]
    if on_the_host:
        expected[:, 0] = 9
    assert run(branching(on_the_host), x).equal(expected)


def test_a_block_beside_then() -> None:
    @T.prim_func
    def program(Y: T.Tensor((8,), "int32")):
        with T.Kernel(8, threads=32) as row, T.If(row > 2):
            Y[row] = 1

    with pytest.raises(TileError, match=r"T.If has one `with T.Then\(\):`"):
        tiledsl.compile(program, target="interpret")


def test_slices_of_dynamic_extents_on_both_sides(run: Callable[..., Any]) -> None:
    """What lies behind the extents stays as it was."""

    @T.prim_func
    def program(X: T.Tensor((20, 10), "float32"), Ends: T.Tensor((4,), "int32"), Y: T.Tensor((3, 8, 16), "float32")):
        with T.Kernel(3, threads=32) as part:
            x = T.alloc_shared((8, 16), "float32")
            T.fill(x, -1)
            low = Ends[part]
            high = T.min(Ends[part + 1], low + 8)
            width = T.min(low + 12, 10)
            T.copy(X[low:high, 0:width], x[0 : high - low, :width])
            T.copy(x, Y[part, :, :])

    x, ends = torch.randn(20, 10), torch.tensor([0, 3, 12, 20], dtype=torch.int32)
    expected = torch.full((3, 8, 16), -1.0)
    for part, (low, high) in enumerate(zip(ends.tolist(), ends.tolist()[1:])):
        high, width = min(high, low + 8), min(low + 12, 10)
        expected[part, : high - low, :width] = x[low:high, :width]
    torch.testing.assert_close(run(program, x, ends), expected)


def test_a_dynamic_dimension_that_only_a_sum_tells(run: Callable[..., Any]) -> None:
    parts = T.dynamic("parts")

    @T.prim_func
    def program(Offsets: T.Tensor((parts + 1,), "int32"), Sizes: T.Tensor((5,), "int32")):
        with T.Kernel(parts, threads=32) as part:
            Sizes[part] = Offsets[part + 1] - Offsets[part] + parts

    offsets = torch.tensor([0, 3, 4, 9, 9, 12], dtype=torch.int32)
    assert run(program, offsets).tolist() == [8, 6, 10, 5, 8]


def test_a_name_that_a_block_uses_for_itself(run: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """It is bound there before it is read: the loop around goes on with its own."""

    @T.prim_func
    def program(X: T.Tensor((6,), "float32"), Y: T.Tensor((6,), "float32")):
        with T.Kernel(1, threads=32):
            base = X[0]
            for i in T.serial(6):
                if i % 2 == 0:
                    Y[i] = X[i] - base
                else:
                    for _ in T.serial(1):
                        base = X[i - 1]
                        Y[i] = X[i] + base

    x = torch.randn(6)
    expected = torch.stack([x[i] - x[0] if i % 2 == 0 else x[i] + x[i - 1] for i in range(6)])
    torch.testing.assert_close(run(program, x), expected)
    assert "base is bound anew in this block" in caplog.text


@pytest.mark.parametrize("read_in_the_block", [False, True])
def test_a_name_that_would_go_from_one_iteration_to_the_next(read_in_the_block: bool) -> None:
    @T.prim_func
    def program(X: T.Tensor((6,), "float32"), Y: T.Tensor((6,), "float32")):
        with T.Kernel(1, threads=32):
            last = X[0]
            for i in T.serial(6):
                Y[i] = last
                if i > 2:
                    last = X[i] + (last if read_in_the_block else 0)

    with pytest.raises(TileError, match="last is read and then assigned again in a device loop"):
        tiledsl.compile(program, target="interpret")


def test_columns_that_no_access_reaches() -> None:
    """Padding of shared memory against bank conflicts would double the tile."""

    @T.prim_func
    def program(X: T.Tensor((8, 64), "float32"), Y: T.Tensor((8, 64), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((8, 64 + 8), "float32")
            total = T.alloc_fragment((8,), "float32")
            T.clear(total)
            for i, j in T.Parallel(8, 64):
                x[i, j] = X[i, j]
            for i in T.Parallel(8):
                for j in T.serial(64):
                    total[i] = total[i] + x[i, j]
                    x[i, j] = total[i]
            for i, j in T.Parallel(8, 64):
                Y[i, j] = x[i, j]

    kernel = tiledsl.compile(program, out_idx=[1], target="interpret")
    x = torch.randn(8, 64)
    torch.testing.assert_close(kernel(x), x.cumsum(1))
    assert "128" not in kernel.get_kernel_source()
