"""Slices as arguments of tile operations: a dimension with a single index counts as one of 1."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError

F = "float32"


def refused(program: Any) -> str:
    with pytest.raises(TileError) as caught:
        tiledsl.compile(program, target="interpret")
    return str(caught.value)


@pytest.mark.parametrize("scope", ["global", "shared", "fragment"])
def test_reductions_of_slices(run: Any, scope: str) -> None:
    @T.prim_func
    def main(A: T.Tensor((3, 4, 6), F), Sums: T.Tensor((3, 4), F), Peaks: T.Tensor((3, 6), F), One: T.Tensor((3,), F)):
        with T.Kernel(3) as bx:
            tile = T.alloc_shared((3, 4, 6), F) if scope == "shared" else T.alloc_fragment((3, 4, 6), F)
            if scope != "global":
                T.copy(A, tile)
            x = A if scope == "global" else tile
            sums, peaks = T.alloc_fragment((4,), F), T.alloc_fragment((1, 1, 6), F)
            both = T.alloc_fragment((3, 2), F)
            T.reduce_sum(x[bx, 0:4, :], sums, dim=2)
            T.copy(sums, Sums[bx, :])
            T.reduce_max(x[bx, :, 0:6], peaks, dim=1)
            T.copy(peaks, Peaks[bx, 0:6])
            T.fill(both, 100)
            T.reduce_sum(sums[1:4], both[1, 0:1], dim=0, clear=False)
            T.reduce_min(peaks[0, 0, :], both[2, 1])
            smallest = T.alloc_var(F, 0.5)
            T.reduce_min(sums, smallest, clear=False)
            One[bx] = both[1, 0] + both[2, 1] + both[0, 0] + smallest

    a = torch.randn(3, 4, 6)
    sums, peaks, one = run(main, a, out_idx=(1, 2, 3))
    want = a.sum(2)
    torch.testing.assert_close(sums, want)
    assert torch.equal(peaks, a.max(1).values)
    torch.testing.assert_close(one, 200 + want[:, 1:].sum(1) + peaks.min(1).values + want.min(1).values.clamp(max=0.5))


def test_a_slice_s_dimensions_are_its_buffer_s() -> None:
    @T.prim_func
    def main(A: T.Tensor((3, 4, 6), F), B: T.Tensor((4,), F)):
        with T.Kernel(1):
            sums = T.alloc_fragment((4,), F)
            T.reduce_sum(A[1, :, :], sums, dim=1)
            T.copy(sums, B)

    message = refused(main)
    assert "A is (1, 4, 6), so along dimension 1 it gives (1, 6), but sums is (4,)" in message
    assert "a single index of a slice counts as a dimension of 1" in message


def test_scans_of_slices(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((3, 4, 6), F), B: T.Tensor((3, 4, 6), F), C: T.Tensor((6,), F)):
        with T.Kernel(1):
            x = T.alloc_shared((3, 4, 6), F)
            row = T.alloc_fragment((6,), F)
            T.copy(A, x)
            T.cumsum(x[1, :, 2:6], dim=1)
            T.cumsum(x[2, 3, :], dim=-1, reverse=True)
            T.cummax(x[0, 1, :], row, dim=2)
            T.copy(x, B)
            T.copy(row, C)

    a = torch.randn(3, 4, 6)
    b, c = run(main, a, out_idx=(1, 2))
    want = a.clone()
    want[1, :, 2:] = a[1, :, 2:].cumsum(0)
    want[2, 3] = a[2, 3].flip(0).cumsum(0).flip(0)
    torch.testing.assert_close(b, want)
    assert torch.equal(c, a[0, 1].cummax(0).values)


def test_products_of_slices(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((2, 16, 32), "float16"), B: T.Tensor((32, 2, 16), "float16"), C: T.Tensor((2, 16, 16), F)):
        with T.Kernel(2) as bx:
            a, b = T.alloc_shared((2, 16, 32), "float16"), T.alloc_shared((32, 2, 16), "float16")
            c = T.alloc_fragment((2, 16, 16), F)
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a[bx, :, :], b[:, bx, :], c[1, 0:16, :])  # matrices: the dimensions with an index are left out
            T.gemm(a[bx, 0:16, 0:16], b[16:32, bx, :], c[1, :, :])
            T.copy(c[1, :, :], C[bx, 0, 0])

    a, b = torch.randn(2, 16, 32).half(), torch.randn(32, 2, 16).half()
    got = run(main, a, b)
    x, y = a.float(), b.float().permute(1, 0, 2)
    torch.testing.assert_close(got, x @ y + x[:, :, :16] @ y[:, 16:])


def test_rows_and_transposes_of_slices(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((3, 4, 6), F), B: T.Tensor((2, 6, 4), F), Found: T.Tensor((2,), "int32")):
        with T.Kernel(1):
            x, y = T.alloc_shared((3, 4, 6), F), T.alloc_shared((2, 6, 4), F)
            T.copy(A, x)
            T.clear(y)
            T.transpose(x[2, :, :], y[1, :, :])
            T.fill(y[0, 3, 1:3], 5)
            T.copy(y, B)
            Found[0] = T.cast(T.any_of(y[0, 3, :]), "int32")
            Found[1] = T.cast(T.all_of(y[0, 3, :]), "int32")

    a = torch.randn(3, 4, 6)
    b, found = run(main, a, out_idx=(1, 2))
    want = torch.zeros(2, 6, 4)
    want[1], want[0, 3, 1:3] = a[2].t(), 5
    assert torch.equal(b, want) and found.tolist() == [1, 0]


def test_a_copy_of_unequal_extents(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What is missing lies outside of the tensor, or the target is written in part, which is told."""

    @T.prim_func
    def main(A: T.Tensor((5, 6), F), B: T.Tensor((5, 6), F), C: T.Tensor((8, 4), F), D: T.Tensor((5, 4), F)):
        with T.Kernel(1):
            x = T.alloc_fragment((8, 4), F)
            T.copy(A[:, :2], B[:, :3])
            T.copy(A[0:5, 2:6], x)
            T.copy(x, C)
            T.copy(x, D[0:5, :])

    a, b = torch.randn(5, 6), torch.full((5, 6), -1.0)
    c, d = torch.full((8, 4), -1.0), torch.zeros(5, 4)
    with caplog.at_level(logging.WARNING, "tiledsl"):
        run(main, a, b, c, d, out_idx=())
    assert torch.equal(b[:, :2], a[:, :2]) and bool((b[:, 2:] == -1).all())
    assert torch.equal(c[:5], a[:, 2:]) and not c[5:].any() and torch.equal(d, a[:, 2:])
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "T.copy: only 2 of the 3 in dimension 1 of B are written"
    ]


def test_copies_do_not_repeat_a_tile() -> None:
    @T.prim_func
    def rows(A: T.Tensor((5, 6), F), B: T.Tensor((4, 6), F)):
        with T.Kernel(5) as bx:
            x = T.alloc_fragment((4, 6), F)
            T.copy(A[bx, 0:6], x)
            T.copy(x, B)

    @T.prim_func
    def leading(A: T.Tensor((2, 4, 6), F), B: T.Tensor((4, 6), F)):
        with T.Kernel(1):
            x = T.alloc_fragment((4, 6), F)
            T.copy(A[0:2, :, :], x)
            T.copy(x, B)

    assert "A gives 1 x 6 and x takes 4 x 6 elements; a dimension of 4 of x has no counterpart in A" in refused(rows)
    assert "a dimension of 2 of A has no counterpart in x" in refused(leading)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 4), (3, 9), (-2, 3)])
def test_filling_a_slice_of_dynamic_extent(run: Any, low: int, high: int) -> None:
    @T.prim_func
    def main(A: T.Tensor((6, 5), F), B: T.Tensor((6, 5), F), low: T.int32, high: T.int32):
        with T.Kernel(1):
            x = T.alloc_shared((6, 5), F)
            T.fill(x, 1)
            T.fill(x[T.max(low, 0) : high, 1:4], high)
            T.copy(x, A)
            T.clear(B[2, low:high])

    a, b = torch.zeros(6, 5), torch.ones(6, 5)
    run(main, a, b, low, high, out_idx=())
    want = torch.ones(6, 5)
    want[max(low, 0) : high, 1:4] = high
    assert torch.equal(a, want)
    want = torch.ones(6, 5)
    want[2, max(low, 0) : high] = 0
    assert torch.equal(b, want)


def test_slices_from_a_variable_or_an_element(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((6, 64), F), I: T.Tensor((4,), "int32"), Sums: T.Tensor((3, 4), F), B: T.Tensor((4, 8), F)):
        with T.Kernel(4) as bx:
            x = T.alloc_var("int32", 3)
            x += bx
            T.reduce_sum(A[1, x : x + 16], Sums[0, bx : bx + 1], dim=1)
            x *= 2
            T.reduce_sum(A[2, x + 4 : 20 + x], Sums[1, bx : bx + 1], dim=1)
            T.reduce_sum(A[I[bx], 2 * I[bx] : I[bx] * 2 + 5], Sums[2, bx : bx + 1], dim=1)
            T.copy(A[I[bx], x : x + 8], B[bx, :])

    a, i = torch.randint(0, 50, (6, 64)).float(), torch.tensor([1, 4, 0, 3], dtype=torch.int32)
    sums, b = run(main, a, i, out_idx=(2, 3))
    for bx, n in enumerate(i.tolist()):
        x = 3 + bx
        assert sums[0, bx] == a[1, x : x + 16].sum()
        assert sums[1, bx] == a[2, 2 * x + 4 : 2 * x + 20].sum()
        assert sums[2, bx] == a[n, 2 * n : 2 * n + 5].sum()
        assert torch.equal(b[bx], a[n, 2 * x : 2 * x + 8])
    assert tiledsl.compile(main, out_idx=[2, 3], target="cuda:90").resources.registers > 0


def test_a_slice_to_a_value_from_before_a_change_is_dynamic() -> None:
    @T.prim_func
    def variable(A: T.Tensor((64,), F), B: T.Tensor((1,), F)):
        with T.Kernel(1):
            x = T.alloc_var("int32", 3)
            end = x + 16
            x += 1
            T.reduce_sum(A[x:end], B, dim=0)

    @T.prim_func
    def element(A: T.Tensor((64,), F), I: T.Tensor((4,), "int32"), B: T.Tensor((1,), F)):
        with T.Kernel(1):
            end = I[0] + 16
            I[0] = 2
            T.reduce_sum(A[I[0] : end], B, dim=0)

    for program in (variable, element):
        assert "the part of A has no constant shape" in refused(program)


def test_a_slice_stays_where_it_was_taken(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((64,), F), B: T.Tensor((8,), F)):
        with T.Kernel(1):
            x = T.alloc_var("int32", 3)
            part = A[x : x + 8]
            x += 20
            T.copy(part, B)

    a = torch.arange(64.0)
    assert torch.equal(run(main, a), a[3:11])


def test_what_is_assigned_to_a_slice(run: Any) -> None:
    """A tile or a slice is copied; an element or a number fills it."""

    @T.prim_func
    def main(A: T.Tensor((6, 5), F), s: T.float32, B: T.Tensor((6, 5), F)):
        with T.Kernel(1):
            x, row = T.alloc_shared((6, 5), F), T.alloc_fragment((5,), F)
            T.copy(A, x)
            T.copy(A[5, :], row)
            x[0, :] = row
            x[1:3, 1:5] = A[3:5, 0:4]
            x[3, 0:2] = A[4, 3]
            x[4, 1:3] = s
            x[5, 0] = A[0, 0]
            T.copy(x, B)

    a = torch.arange(30.0).reshape(6, 5)
    want = a.clone()
    want[0], want[1:3, 1:5], want[3, 0:2], want[4, 1:3], want[5, 0] = a[5], a[3:5, 0:4], a[4, 3], 2.5, a[0, 0]
    kept = a.clone()
    assert torch.equal(run(main, kept, 2.5), want) and torch.equal(kept, a)
