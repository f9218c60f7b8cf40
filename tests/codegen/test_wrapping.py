"""Arithmetic of every width wraps: in what is computed, in masks, and in the addresses behind them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T

UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
SIZE = 64


def of_difference(dtype: str) -> Any:
    @T.prim_func
    def of_difference(A: T.Tensor((8,), dtype), B: T.Tensor((SIZE,), "int32"), C: T.Tensor((8,), "int64"),
                      D: T.Tensor((8,), "int32")):  # fmt: skip
        with T.Kernel(8, threads=32) as bx:
            C[bx] = T.cast((T.cast(5, dtype) - A[bx]) % 16, "int64")
            D[bx] = B[T.cast(3, dtype) - A[bx]]

    return of_difference


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_differences_of_unsigned_values(dtype: str) -> None:
    kernel = tiledsl.compile(of_difference(dtype), target="interpret")
    source = kernel.get_kernel_source()
    assert "% 16" in source and "mask=" in source and "mask=True" not in source
    values = [0, 1, 3, 4, 5, 6, 7, 255]
    bits = max(32, int(dtype[4:]))  # numbers beside narrower types are int32
    given = torch.tensor(values, dtype=torch.int64).to(getattr(torch, dtype))
    table = torch.arange(100, 100 + SIZE, dtype=torch.int32)
    remainders, read = torch.zeros(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int32)
    kernel(given, table, remainders, read)
    wide = int(dtype[4:])
    indices = [(3 - value) % 2**wide for value in values]
    assert read.tolist() == [100 + at if at < SIZE else 0 for at in indices]
    assert remainders.tolist() == [(5 - value) % 2 ** min(bits, wide) % 16 for value in values]


@pytest.mark.parametrize("factor", [1, 3, 1000, 65536])
@pytest.mark.parametrize("size", [2000, None])
def test_addresses_are_those_of_wrapped_indices(factor: int, size: int | None) -> None:
    n = T.dynamic("n") if size is None else size

    @T.prim_func
    def gathered(I: T.Tensor((6,), "int32"), A: T.Tensor((n,), "float32"), B: T.Tensor((6, 8), "float32")):
        with T.Kernel(6, threads=32) as bx:
            for j in T.Parallel(8):
                B[bx, j] = A[(I[bx] * factor + j) - 2]

    numbers = [0, 1, 2, -1, 4294968 if factor == 1000 else 2**31 // factor, 2**31 - 1]
    given = torch.tensor([min(each, 2**31 - 1) for each in numbers], dtype=torch.int32)
    table, found = torch.arange(2000, dtype=torch.float32), torch.full((6, 8), -1.0)
    tiledsl.compile(gathered, target="interpret")(given, table, found)
    for row, start in zip(found.tolist(), given.tolist()):
        for j, value in enumerate(row):
            at = (start * factor + j - 2 + 2**31) % 2**32 - 2**31
            assert value == (at if 0 <= at < 2000 else 0.0)


def test_sums_of_what_is_loaded() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def summed(I: T.Tensor((4,), "int32"), J: T.Tensor((4,), "int32"), A: T.Tensor((n, 4), "float32"),
               B: T.Tensor((4, 4), "float32")):  # fmt: skip
        with T.Kernel(4, threads=32) as bx:
            for j in T.Parallel(4):
                A[I[bx] + J[bx], j] = B[bx, j]

    rows = torch.tensor([2**31 - 1, 1, -5, -(2**31)], dtype=torch.int32)
    more = torch.tensor([2**31 - 1, 1, 5, 3 - 2**31], dtype=torch.int32)  # sums: -2, 2, 0 and 3
    written, source = torch.zeros(8, 4), torch.arange(1.0, 17.0).reshape(4, 4)
    tiledsl.compile(summed, target="interpret")(rows, more, written, source)
    expected = torch.zeros(8, 4)
    expected[[2, 0, 3]] = source[1:]
    assert written.tolist() == expected.tolist()


def test_an_index_into_a_tile_that_is_computed_in_few_bits() -> None:
    @T.prim_func
    def moved(A: T.Tensor((16,), "float32"), B: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((300,), "float32")
            T.clear(tile)
            for i in T.Parallel(16):
                tile[T.cast(T.cast(i, "uint8") + T.cast(250, "uint8"), "int32")] = A[i]
            for i in T.Parallel(16):
                B[i] = tile[i]

    given, found = torch.arange(1.0, 17.0), torch.zeros(16)
    tiledsl.compile(moved, target="interpret")(given, found)
    assert found.tolist() == [*range(7, 17), *[0.0] * 6]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_float_that_goes_through_an_integer_loses_its_fraction(dtype: str) -> None:
    @T.prim_func
    def truncated(A: T.Tensor((8,), dtype), B: T.Tensor((8,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                B[i] = T.cast(T.cast(A[i], "int64"), dtype)

    given, found = torch.linspace(-3.5, 3.5, 8).to(getattr(torch, dtype)), torch.zeros(8, dtype=getattr(torch, dtype))
    tiledsl.compile(truncated, target="interpret")(given, found)
    assert found.tolist() == given.trunc().tolist()
