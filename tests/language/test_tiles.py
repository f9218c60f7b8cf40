"""Operations on tiles: products, reductions, scans, atomic updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T

F = "float32"


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, False), (False, True), (True, True)])
def test_gemm(run: Any, ta: bool, tb: bool) -> None:
    a_shape, b_shape = (24, 20) if ta else (20, 24), (12, 24) if tb else (24, 12)

    @T.prim_func
    def main(A: T.Tensor(a_shape, "float16"), B: T.Tensor((1, *b_shape), "float16"), C: T.Tensor((3, 20, 12), F)):
        with T.Kernel(1):
            a, b = T.alloc_shared(a_shape, "float16"), T.alloc_shared((1, *b_shape), "float16")
            c = T.alloc_fragment((20, 12), F)
            T.copy(A, a)
            T.copy(B, b)
            T.fill(c, 1)
            T.gemm(a, b, c, transpose_A=ta, transpose_B=tb)
            T.copy(c, C[0, 0, 0])
            for k in range(2):
                T.gemm(a, b[0, :, :], c, ta, tb, clear_accum=k == 0, policy=T.GemmWarpPolicy.FullRow)
            T.copy(c, C[1, 0, 0])
            T.gemm(a, b, c, ta, tb, clear_accum=True)
            T.copy(c, C[2, 0, 0])

    a, b = torch.randn(a_shape).half(), torch.randn(1, *b_shape).half()
    c = run(main, a, b)
    product = (a.t() if ta else a).float() @ (b[0].t() if tb else b[0]).float()
    torch.testing.assert_close(c, torch.stack([product + 1, 2 * product, product]), rtol=1e-3, atol=1e-3)


def test_gemm_of_integers_and_slices(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((16, 40), "int8"), B: T.Tensor((32, 16), "int8"), C: T.Tensor((16, 16), "int32")):
        with T.Kernel(1):
            a, b = T.alloc_shared((16, 40), "int8"), T.alloc_shared((32, 16), "int8")
            c = T.alloc_fragment((16, 16), "int32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a[:, 8:40], b, c)
            T.copy(c, C)

    a, b = torch.randint(-128, 128, (16, 40)).to(torch.int8), torch.randint(-128, 128, (32, 16)).to(torch.int8)
    assert torch.equal(run(main, a, b), a[:, 8:].int() @ b.int())


KINDS = {
    "sum": lambda x, d: x.sum(d),
    "max": lambda x, d: x.amax(d),
    "min": lambda x, d: x.amin(d),
    "abssum": lambda x, d: x.abs().sum(d),
    "absmax": lambda x, d: x.abs().amax(d),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_reductions(run: Any, kind: str, dim: int) -> None:
    reduce = getattr(T, f"reduce_{kind}")
    size = (6, 10)[1 - dim % 2]
    kept = (1, 10) if dim == 0 else (6, 1)

    @T.prim_func
    def main(A: T.Tensor((6, 10), F), B: T.Tensor((size,), F), C: T.Tensor(kept, F), D: T.Tensor((size,), F)):
        with T.Kernel(1):
            x, s = T.alloc_shared((6, 10), F), T.alloc_fragment((6, 10), F)
            b, c, d = T.alloc_fragment((size,), F), T.alloc_shared(kept, F), T.alloc_fragment((size,), F)
            T.copy(A, x)
            T.copy(A, s)
            reduce(x, b, dim=dim)
            reduce(s, c, dim)
            T.fill(d, 1.5)
            reduce(s, d, dim=dim, clear=False)
            T.copy(b, B)
            T.copy(c, C)
            T.copy(d, D)

    a = torch.randn(6, 10)
    b, c, d = run(main, a, out_idx=(1, 2, 3))
    want = KINDS[kind](a, dim)
    torch.testing.assert_close(b, want)
    torch.testing.assert_close(c.flatten(), want)
    old = torch.full_like(want, 1.5)
    joined = {"sum": old + want, "abssum": old + want, "min": torch.minimum(old, want)}.get(
        kind, torch.maximum(old, want)
    )
    torch.testing.assert_close(d, joined)


@pytest.mark.parametrize("kind", ["and", "or", "xor"])
def test_bit_reductions(run: Any, kind: str) -> None:
    reduce = getattr(T, f"reduce_bit{kind}")

    @T.prim_func
    def main(A: T.Tensor((5, 12), "int32"), B: T.Tensor((5,), "int32")):
        with T.Kernel(1):
            x, b = T.alloc_fragment((5, 12), "int32"), T.alloc_fragment((5,), "int32")
            T.copy(A, x)
            reduce(x, b, dim=1)
            T.copy(b, B)

    a = torch.randint(0, 1 << 16, (5, 12), dtype=torch.int32) | 5
    want = a[:, 0].clone()
    for j in range(1, 12):
        want = {"and": want & a[:, j], "or": want | a[:, j], "xor": want ^ a[:, j]}[kind]
    assert torch.equal(run(main, a), want)


def test_reductions_of_three_dimensions_and_to_one_element(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((3, 4, 5), F), B: T.Tensor((3, 5), F), C: T.Tensor((1,), F)):
        with T.Kernel(1):
            x, b = T.alloc_fragment((3, 4, 5), F), T.alloc_fragment((3, 5), F)
            row, c = T.alloc_fragment((5,), F), T.alloc_fragment((1,), F)
            T.copy(A, x)
            T.reduce_sum(x, b, dim=1)
            T.copy(b, B)
            T.reduce_max(b, row, dim=0)
            T.reduce_min(row, c, dim=0)
            T.copy(c, C)

    a = torch.randn(3, 4, 5)
    b, c = run(main, a, out_idx=(1, 2))
    torch.testing.assert_close(b, a.sum(1))
    torch.testing.assert_close(c[0], a.sum(1).amax(0).amin())


def test_nan_in_reductions(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((2, 8), F), B: T.Tensor((2,), F), C: T.Tensor((2,), F)):
        with T.Kernel(1):
            x, b = T.alloc_fragment((2, 8), F), T.alloc_fragment((2,), F)
            T.copy(A, x)
            T.reduce_max(x, b, dim=1)
            T.copy(b, B)
            T.reduce_max(x, b, dim=1, nan_propagate=True)
            T.copy(b, C)

    a = torch.arange(16.0).reshape(2, 8)
    a[1, 2] = float("nan")
    b, c = run(main, a, out_idx=(1, 2))
    assert b.tolist() == [7, 15]
    assert c[0] == 7 and c[1].isnan()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scans(run: Any, reverse: bool, dim: int) -> None:
    @T.prim_func
    def main(A: T.Tensor((5, 12), F), B: T.Tensor((5, 12), F), C: T.Tensor((5, 12), F)):
        with T.Kernel(1):
            x, y = T.alloc_shared((5, 12), F), T.alloc_fragment((5, 12), F)
            T.copy(A, x)
            T.cumsum(x, y, dim=dim, reverse=reverse)
            T.copy(y, B)
            T.cummax(x, dim=dim, reverse=reverse)
            T.copy(x, C)

    a = torch.randn(5, 12) - 3
    b, c = run(main, a, out_idx=(1, 2))
    turned = a.flip(dim) if reverse else a
    sums, maxima = turned.cumsum(dim), turned.cummax(dim).values
    torch.testing.assert_close(b, sums.flip(dim) if reverse else sums)
    assert torch.equal(c, maxima.flip(dim) if reverse else maxima)


def test_atomic_operations(run: Any) -> None:
    @T.prim_func
    def main(
        A: T.Tensor((32,), "int32"),
        total: T.Tensor((1,), "int32"),
        high: T.Tensor((1,), "int32"),
        low: T.Tensor((1,), "int32"),
        bits: T.Tensor((1,), "int32"),
        order: T.Tensor((32,), "int32"),
    ):
        with T.Kernel(4) as bx:
            for i in T.Parallel(8):
                T.atomic_add(total[0], A[bx * 8 + i], memory_order="relaxed")
                T.atomic_max(high[0], A[bx * 8 + i])
                T.atomic_min(low[0], A[bx * 8 + i])
                T.atomic_or(bits[0], A[bx * 8 + i])
            slot = T.alloc_var("int32")
            slot = T.atomic_add(order[31], 1, return_prev=True)
            order[slot] = bx + 100

    a = torch.randint(0, 1 << 10, (32,), dtype=torch.int32)
    total, high, low, bits = (torch.tensor([n], dtype=torch.int32) for n in (5, -1, 1 << 20, 1 << 15))
    order = torch.zeros(32, dtype=torch.int32)
    run(main, a, total, high, low, bits, order, out_idx=())
    joined = 1 << 15
    for each in a.tolist():
        joined |= each
    assert (total.item(), high.item(), low.item(), bits.item()) == (a.sum() + 5, a.max(), a.min(), joined)
    assert sorted(order[:4].tolist()) == [100, 101, 102, 103] and order[31] == 4


def test_atomic_updates_of_tiles(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((12, 8), F), B: T.Tensor((4, 8), F), C: T.Tensor((1, 8), F)):
        with T.Kernel(3) as bx:
            x, row = T.alloc_shared((4, 8), F), T.alloc_fragment((8,), F)
            T.copy(A[bx * 4, 0], x)
            T.atomic_add(B, x)
            T.reduce_max(x, row, dim=0)
            T.atomic_max(C[0, 0], row)

    a = torch.randn(12, 8)
    b, c = torch.ones(4, 8), torch.full((1, 8), -100.0)
    run(main, a, b, c, out_idx=())
    torch.testing.assert_close(b, 1 + a.reshape(3, 4, 8).sum(0))
    assert torch.equal(c[0], a.amax(0))


@pytest.mark.parametrize("operation, points", [("max", 4), ("min", 4), ("max", 300), ("min", 300)])
def test_elements_that_no_atomic_extremum_addresses_stay_nan(run: Any, operation: str, points: int) -> None:
    """By comparing each point's index with each element's, and by a scatter where these are many."""
    elements, update = 8 if points == 4 else 128, getattr(T, f"atomic_{operation}")

    @T.prim_func
    def main(A: T.Tensor((points,), F), P: T.Tensor((points,), "int32"), B: T.Tensor((elements,), F)):
        with T.Kernel(1):
            t = T.alloc_shared((elements,), F)
            T.fill(t, float("nan"))
            for i in T.Parallel(points):
                if P[i] != 3:
                    update(t[P[i]], A[i])
            T.copy(t, B)

    a, places = torch.arange(1.0, points + 1), torch.arange(points, dtype=torch.int32) % 5
    b = torch.zeros(elements)
    run(main, a, places, b, out_idx=())
    held = [p for p in sorted({*places.tolist()}) if p != 3]
    assert [p for p in range(elements) if not b[p].isnan()] == held
    best = getattr(torch, f"a{operation}")
    assert b[held].tolist() == [best(a[places == p]).item() for p in held]


def test_any_and_all(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4, 8), "int32"), B: T.Tensor((4, 2), "int32")):
        with T.Kernel(4) as bx:
            x = T.alloc_shared((8,), "int32")
            T.copy(A[bx, 0], x)
            B[bx, 0] = T.any_of(x)
            B[bx, 1] = T.all_of(x)

    a = torch.zeros(4, 8, dtype=torch.int32)
    a[1, 3], a[2] = 5, 1
    a[3] = torch.arange(8)
    assert run(main, a).tolist() == [[0, 0], [1, 0], [1, 1], [1, 0]]


@pytest.mark.parametrize(("n", "m"), [(64, 128), (48, 40)])
def test_writes_in_the_opposite_order(run: Any, n: int, m: int) -> None:
    @T.prim_func
    def main(A: T.Tensor((n, m), F), B: T.Tensor((n, m), F), C: T.Tensor((m, n), F), D: T.Tensor((n, 2 * m), F)):
        with T.Kernel(1):
            x, y = T.alloc_shared((n, m), F), T.alloc_fragment((m, n), F)
            z = T.alloc_shared((n, 2 * m), F)
            T.fill(z, -1)
            for i, j in T.Parallel(n, m):
                x[n - 1 - i, m - 1 - j] = A[i, j]
                y[m - 1 - j, n - 1 - i] = A[i, j] + i
                if i > j:
                    z[n - 1 - i, 2 * m - 1 - 2 * j] = A[i, j]
            T.copy(x, B)
            T.copy(y, C)
            T.copy(z, D)

    a = torch.randn(n, m)
    b, c, d = run(main, a, out_idx=(1, 2, 3))
    rows, columns = torch.arange(n)[:, None], torch.arange(m)
    assert torch.equal(b, a.flip(0, 1))
    assert torch.equal(c, (a + rows).flip(0, 1).t())
    want = torch.full((n, 2 * m), -1.0)
    want[:, 1::2] = torch.where(rows > columns, a, -1).flip(0, 1)
    assert torch.equal(d, want)
    assert tiledsl.compile(main, out_idx=[1, 2, 3], target="cuda:90").resources.registers > 0
