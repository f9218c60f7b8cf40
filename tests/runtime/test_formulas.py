"""Dimensions that are computed from others: checked at calls, and allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl import formulas
from tiledsl.errors import TileError


def offsets(extent: Any) -> Any:
    """Y[i] = X[i] + O[i + 1], with O of `extent(n)`."""
    n = T.dynamic("n")

    @T.prim_func
    def program(X: T.Tensor((n,), "int32"), O: T.Tensor((extent(n),), "int32"), Y: T.Tensor((n,), "int32")):
        with T.Kernel(T.ceildiv(n, 32), threads=32) as b:
            for i in T.Parallel(32):
                if b * 32 + i < n:
                    Y[b * 32 + i] = X[b * 32 + i] + O[b * 32 + i + 1]

    return program


def arguments(size: int) -> list[torch.Tensor]:
    return [torch.ones(each, dtype=torch.int32) for each in (8, size, 8)]


@pytest.mark.parametrize(
    ("extent", "size", "text"),
    [
        (lambda n: n + 1, 9, "n + 1"),
        (lambda n: 2 * n - 3, 13, "(2 * n) - 3"),
        (lambda n: T.ceildiv(n, 3) + 4, 7, "(((n + 3) - 1) // 3) + 4"),
        (lambda n: n % 5 + n * n, 67, "(n % 5) + (n * n)"),
        (lambda n: T.max(n, 12), 12, "max(n, 12)"),
    ],
)
def test_a_call_is_held_against_what_is_computed(extent: Any, size: int, text: str) -> None:
    kernel = tiledsl.compile(offsets(extent), target="interpret")
    given = arguments(size)
    kernel(*given)
    assert given[2].tolist() == [1 + (i + 1 < size) for i in range(8)]
    for wrong in (size - 1, size + 1):
        with pytest.raises(TileError) as caught:
            kernel(*arguments(wrong))
        assert caught.value.message == f"program: O.shape[0] is {wrong}, but {text} is {size}: n is 8"


def test_an_output_is_allocated() -> None:
    n, m = T.dynamic("n, m")

    @T.prim_func
    def sums(X: T.Tensor((n, m), "float32"), Y: T.Tensor((T.ceildiv(n, 4) * m + 1, 3), "float32")):
        with T.Kernel(1, threads=32):
            Y[0, 0] = X[0, 0]

    kernel = tiledsl.compile(sums, out_idx=-1, target="interpret")
    assert kernel(torch.ones(9, 2)).shape == (7, 3)
    assert "    Y_0 = ((((n + 4) - 1) // 4) * m) + 1\n    Y = torch.empty((Y_0, 3)" in kernel.source


def test_what_only_an_output_tells_is_refused() -> None:
    n, m = T.dynamic("n, m")

    @T.prim_func
    def fill(X: T.Tensor((n,), "float32"), Y: T.Tensor((n + m,), "float32")):
        with T.Kernel(1, threads=32):
            Y[0] = 1.0

    with pytest.raises(
        TileError, match="the dynamic dimension m is used, but no tensor parameter's dimension tells it"
    ):
        tiledsl.compile(fill, out_idx=-1, target="interpret")


def test_a_scalar_parameter_counts() -> None:
    @T.prim_func
    def fill(size: T.int32, Y: T.Tensor((size + 2,), "float32")):  # noqa: F821
        with T.Kernel(1, threads=32):
            Y[0] = 1.0

    kernel = tiledsl.compile(fill, target="interpret")
    kernel(4, torch.ones(6))
    with pytest.raises(TileError, match=r"fill: Y.shape\[0\] is 5, but size \+ 2 is 6: size is 4"):
        kernel(4, torch.ones(5))


def test_a_stored_kernel_checks_as_well(tmp_path: Path) -> None:
    from tiledsl.kernels.stored import StoredKernel, describe

    stored = StoredKernel(describe(tiledsl.compile(offsets(lambda n: n + 1), target="interpret")))
    assert stored.params[1].formulas == {"O_0": ("add", "n", 1)}
    stored(*arguments(9))
    with pytest.raises(TileError, match=r"but n \+ 1 is 9"):
        stored(*arguments(8))


def test_formulas_of_files() -> None:
    assert formulas.checked(["add", ["mul", "n", 2], 1]) == ("add", ("mul", "n", 2), 1)
    for wrong in (["pow", "n", 2], ["add", "n"], "n + 1", 1.5, True, None, ["add", "n", "__import__('os')"]):
        with pytest.raises(ValueError, match="is no formula"):
            formulas.checked(wrong)
    assert formulas.value_of(("floordiv", 7, "n"), {"n": 0}) is None
    assert formulas.value_of(("add", "n", "m"), {"n": 1}) is None


def test_what_is_passed_in_tells_before_what_is_made() -> None:
    n, m = T.dynamic("n, m")

    @T.prim_func
    def sums(Y: T.Tensor((n, m), "float32"), A: T.Tensor((n,), "float32"), B: T.Tensor((m * 2,), "float32")):
        with T.Kernel(n, m, threads=32) as (i, j):
            Y[i, j] = A[i] + B[j * 2]

    made = tiledsl.compile(sums, out_idx=[0], target="interpret")(torch.arange(3.0), torch.arange(4.0))
    assert made.tolist() == [[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]]


@tiledsl.jit
def heads_of(A, B):
    h = T.const("h")
    n, m = T.dynamic("n, m")
    A: T.Tensor([n * 4, h], "float32")
    C = T.empty([n, m + 1], "float32")  # before the tensors that tell n and m
    D = T.empty([n], "float32")
    B: T.Tensor([n, m], "float32")
    with T.Kernel(n, threads=32) as bx:
        C[bx, 0] = B[bx, 0]
        D[bx] = A[bx * 4, 0]
    return C, D


def test_an_output_that_is_declared_first() -> None:
    c, d = heads_of(torch.ones(12, 2), torch.full((3, 5), 2.0))
    assert c.shape == (3, 6) and c[:, 0].tolist() == [2.0] * 3 and d.tolist() == [1.0] * 3
    with pytest.raises(TileError, match=r"A.shape\[0\] is 8, but n \* 4 is 12: n is 3"):
        heads_of(torch.ones(8, 2), torch.ones(3, 5))
