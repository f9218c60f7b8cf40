"""Sorts, the largest elements, their places, counts, and scans with a function, against torch and Python's loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("shape", "dim", "dtype"),
    [
        ((64,), 0, "int32"),
        ((4, 40), -1, "float32"),
        ((33, 3), 0, "float16"),
        ((2, 7, 2), 1, "uint8"),
        ((5,), 0, "bool"),
    ],
)
def test_sort(run: Any, shape: tuple[int, ...], dim: int, dtype: str, descending: bool) -> None:
    @T.prim_func
    def main(X: T.Tensor(shape, dtype), Y: T.Tensor((2, *shape), dtype), I: T.Tensor(shape, "int64")):
        with T.Kernel(1):
            x, y, i = T.alloc_shared(shape, dtype), T.alloc_fragment(shape, dtype), T.alloc_fragment(shape, "int64")
            T.copy(X, x)
            T.sort(x, y, dim=dim, descending=descending, indices=i)
            T.sort(x, dim=dim, descending=descending)
            T.copy(y, Y[0, ...])
            T.copy(x, Y[1, ...])
            T.copy(i, I)

    x = torch.randint(0, 9, shape).to(getattr(torch, dtype))
    if x.dtype.is_floating_point:
        x[torch.rand(shape) < 0.2] = float("nan")
    values, places = run(main, x, out_idx=(1, 2))
    want = x.float().sort(dim=dim, descending=descending, stable=True)
    assert torch.equal(places, want.indices)
    for each in values:
        torch.testing.assert_close(each.float(), want.values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("largest", [True, False])
def test_topk(run: Any, largest: bool) -> None:
    @T.prim_func
    def main(X: T.Tensor((6, 50), "float32"), V: T.Tensor((6, 5), "float32"), I: T.Tensor((6, 5), "int32")):
        with T.Kernel(1):
            x = T.alloc_fragment((6, 50), "float32")
            v, i = T.alloc_fragment((6, 5), "float32"), T.alloc_fragment((6, 5), "int32")
            T.copy(X, x)
            T.topk(x, v, i, largest=largest)
            T.copy(v, V)
            T.copy(i, I)

    x = torch.randperm(300).reshape(6, 50).float()
    values, places = run(main, x, out_idx=(1, 2))
    want = x.topk(5, dim=1, largest=largest)
    assert torch.equal(values, want.values) and torch.equal(places, want.indices.int())


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_places_of_the_extreme(run: Any, dim: int, dtype: str) -> None:
    size = (7, 12)[1 - dim % 2]

    @T.prim_func
    def main(X: T.Tensor((7, 12), dtype), I: T.Tensor((2, size), "int32")):
        with T.Kernel(1):
            x, i = T.alloc_fragment((7, 12), dtype), T.alloc_fragment((size,), "int32")
            T.copy(X, x)
            T.argmax(x, i, dim=dim)
            T.copy(i, I[0, :])
            T.argmin(x, I[1, :], dim=dim)

    x = torch.randint(-3, 3, (7, 12)).to(getattr(torch, dtype))
    if dtype == "float32":
        x[0, 0], x[:, 5], x[3, :] = float("inf"), float("-inf"), float("-inf")
    found = run(main, x)
    for row, function in zip(found, (max, min), strict=True):
        lines = x.T.tolist() if dim % 2 == 0 else x.tolist()
        assert row.tolist() == [line.index(function(line)) for line in lines]


def test_a_place_passes_over_nan(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((3, 4), "float32"), I: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            x, i = T.alloc_fragment((3, 4), "float32"), T.alloc_fragment((3, 1), "int32")
            last = T.alloc_var("int32")
            T.copy(X, x)
            T.argmax(x, i)
            T.argmin(x[2, :], last)
            for k in T.Parallel(3):
                I[k] = i[k, 0]
            I[3] = last

    nan = float("nan")
    x = torch.tensor([[nan, 1, 3, 2], [nan, nan, nan, nan], [5, nan, 4, 6]])
    assert run(main, x).tolist() == [2, 0, 3, 2]


def test_histogram(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((20, 30), "int32"), H: T.Tensor((2, 50), "int32")):
        with T.Kernel(1):
            x, h = T.alloc_shared((20, 30), "int32"), T.alloc_shared((50,), "int32")
            T.copy(X, x)
            T.histogram(x, h)
            T.copy(h, H[0, :])
            T.histogram(x[0:10, :], h, clear=False)
            T.copy(h, H[1, :])

    x = torch.randint(-10, 60, (20, 30), dtype=torch.int32)
    counts = [torch.bincount(each[(each >= 0) & (each < 50)], minlength=50) for each in (x, x[:10])]
    assert torch.equal(run(main, x), torch.stack([counts[0], counts[0] + counts[1]]).int())


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_with_a_function(run: Any, reverse: bool) -> None:
    """A linear recurrence: pairs (a, b) for x -> a x + b, composed; and a string of letters, whose order counts."""

    @T.prim_func
    def main(A: T.Tensor((3, 21), "int32"), B: T.Tensor((3, 21), "int32"), Y: T.Tensor((3, 3, 21), "int32")):
        with T.Kernel(1):
            a, b = T.alloc_fragment((3, 21), "int32"), T.alloc_fragment((3, 21), "int32")
            c = T.alloc_fragment((3, 21), "int32")
            T.copy(A, a)
            T.copy(B, b)
            T.associative_scan(lambda x, y: T.max(x, y), b, c, dim=1, reverse=reverse)
            T.associative_scan(lambda a1, b1, a2, b2: (a1 * a2, b1 * a2 + b2), [a, b], dim=1, reverse=reverse)
            T.copy(a, Y[0, :, :])
            T.copy(b, Y[1, :, :])
            T.copy(c, Y[2, :, :])

    a, b = torch.randint(-2, 3, (3, 21), dtype=torch.int32), torch.randint(-9, 9, (3, 21), dtype=torch.int32)
    want = torch.zeros((3, 3, 21), dtype=torch.int32)
    for row in range(3):
        order = range(20, -1, -1) if reverse else range(21)
        one, two, most = 1, 0, -99
        for i in order:
            # What comes before in the tile is the function's first argument, in both directions.
            if not reverse:
                one, two = one * int(a[row, i]), two * int(a[row, i]) + int(b[row, i])
            else:
                one, two = one * int(a[row, i]), two * int(a[row, i]) + int(b[row, i])
            most = max(most, int(b[row, i]))
            want[:, row, i] = torch.tensor([one, two, most])
    assert torch.equal(run(main, a, b), want)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (lambda x, y: T.sort(x, y), "T.sort: x_sorted gives"),
        (lambda x, y: T.sort(x, dim=3), "T.sort: x is .* and has no dimension 3"),
        (lambda x, y: T.topk(x, y), r"T.topk: y asks for 9 of 8 elements"),
        (lambda x, y: T.argmax(x, y), "T.argmax: x is .* but y is"),
        (lambda x, y: T.histogram(x, y), "T.histogram: x is float32, and what is counted is an integer"),
        (lambda x, y: T.associative_scan(lambda a, b: (a, b), x), "T.associative_scan: the function gives"),
        (lambda x, y: T.associative_scan(3, x), "T.associative_scan needs a function"),
    ],
)
def test_what_is_refused(statement: Any, message: str) -> None:
    @T.prim_func
    def main(X: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            x, y = T.alloc_fragment((8,), "float32"), T.alloc_fragment((9,), "float32")
            T.copy(X, x)
            statement(x, y)

    with pytest.raises(TileError, match=message):
        tiledsl.compile(main, target="interpret")
