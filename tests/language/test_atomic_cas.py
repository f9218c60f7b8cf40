"""T.atomic_cas in global memory and on the chip, against Python's own loops."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError


def _swapped(start: list[Any], steps: list[tuple[int, Any, Any]]) -> tuple[list[Any], list[Any]]:
    """What (place, compare, value), one after the other, leave of `start`, and what each met; 0 outside."""
    held, met = list(start), []
    for place, compare, value in steps:
        inside = 0 <= place < len(held)
        met.append(held[place] if inside else 0)
        if inside and held[place] == compare:
            held[place] = value
    return held, met


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "float16", "float32"])
@pytest.mark.parametrize("points", [5, 64])
def test_on_the_chip_in_the_order_of_the_points(run: Any, dtype: str, points: int) -> None:
    @T.prim_func
    def main(
        P: T.Tensor((points,), "int32"), C: T.Tensor((points,), dtype), V: T.Tensor((points,), dtype),
        H: T.Tensor((11,), dtype), B: T.Tensor((points,), dtype),
    ):  # fmt: skip
        with T.Kernel(1):
            h = T.alloc_shared((11,), dtype)
            T.fill(h, 1)
            for i in T.Parallel(points):
                B[i] = T.atomic_cas(h[P[i]], C[i], V[i])
            T.copy(h, H)

    places = torch.randint(-1, 12, (points,), dtype=torch.int32)
    compare, value = (torch.randint(1, 3, (points,)).to(getattr(torch, dtype)) for _ in range(2))
    found, before = run(main, places, compare, value, out_idx=(3, 4))
    steps = list(zip(places.tolist(), compare.tolist(), value.tolist(), strict=True))
    held, met = _swapped([1] * 11, steps)
    assert found.tolist() == held and before.tolist() == met


def test_on_the_chip_where_no_points_coincide(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((7, 9), "int32"), Y: T.Tensor((7, 9), "int32"), B: T.Tensor((7, 9), "int32")):
        with T.Kernel(1):
            y = T.alloc_fragment((7, 9), "int32")
            T.copy(X, y)
            for i, j in T.Parallel(7, 9):
                if j > 2:
                    B[i, j] = T.atomic_cas(y[i, j], 1, 10 * i + j)
            T.atomic_cas(y[0, 0], X[0, 0], -5)
            T.copy(y, Y)

    x = torch.randint(0, 3, (7, 9), dtype=torch.int32)
    found, before = run(main, x, out_idx=(1, 2))
    i, j = torch.meshgrid(torch.arange(7), torch.arange(9), indexing="ij")
    want = torch.where((x == 1) & (j > 2), 10 * i + j, x)
    want[0, 0] = -5
    assert torch.equal(found.long(), want.long()) and torch.equal(before[:, 3:], x[:, 3:])


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "uint32", "bfloat16", "float32", "float64"])
def test_in_global_memory(run: Any, dtype: str) -> None:
    """Masked by a condition, and by the bounds of the tensor."""

    @T.prim_func
    def main(X: T.Tensor((50,), dtype), Y: T.Tensor((50,), dtype), B: T.Tensor((64,), dtype)):
        with T.Kernel(1):
            T.copy(X, Y)
            for i in T.Parallel(64):
                if i % 3 != 1:
                    B[i] = T.atomic_cas(Y[i], 2, X[i] + 3)

    x = torch.randint(0, 3, (50,)).to(getattr(torch, dtype))
    found, before = run(main, x, out_idx=(1, 2))
    moved = torch.arange(50) % 3 != 1
    assert found.tolist() == [5 if each == 2 and m else each for each, m in zip(x.tolist(), moved.tolist())]
    taken = [i for i in range(50) if i % 3 != 1]
    assert [before[i].item() for i in taken] == [x[i].item() for i in taken]
    assert all(before[i] == 0 for i in range(50, 64) if i % 3 != 1)


def test_a_scalar_under_a_condition_and_bits_of_floats(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), "float32"), L: T.Tensor((2,), "int32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(2) as p:
            if T.atomic_cas(L[0], 0, 1, memory_order="acquire") == 0:
                B[0] = T.atomic_cas(A[0], 0.0, 7.0)  # holds -0.0
                B[1] = T.atomic_cas(A[1], T.cast(float("nan"), "float32"), 7.0)
                T.atomic_cas(A[p + 2], 1.0, 9.0)
            if p == 5:
                T.atomic_cas(L[1], 0, 1)

    a, lock = torch.tensor([-0.0, float("nan"), 1.0, 2.0]), torch.zeros(2, dtype=torch.int32)
    before = run(main, a, lock)
    assert a.tolist() == [0.0, 7.0, 9.0, 2.0] and torch.signbit(a[0]) and lock.tolist() == [1, 0]
    assert before[0] == 0 and before[1].isnan()


def test_threads_put_keys_into_a_table(run: Any) -> None:
    """Open addressing: each thread looks for a free place, from where its key belongs on."""

    @T.prim_func
    def main(K: T.Tensor((32,), "int32"), H: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            table = T.alloc_shared((64,), "int32")
            T.fill(table, -1)
            T.sync_threads()
            at = T.alloc_var("int32")
            found = T.alloc_var("int32", 0)
            at = K[tx] % 64
            while found == 0:
                old = T.atomic_cas(table[at], -1, K[tx])
                if old == -1 or old == K[tx]:
                    found = 1
                else:
                    at = (at + 1) % 64
            T.sync_threads()
            T.copy(table, H)

    keys = torch.randint(0, 200, (32,), dtype=torch.int32)
    table = run(main, keys).tolist()
    assert sorted(key for key in table if key >= 0) == sorted(set(keys.tolist()))
    for key in keys.tolist():
        place = key % 64
        while table[place] != key:
            assert table[place] >= 0, "a free place comes before the key"
            place = (place + 1) % 64


@pytest.mark.parametrize(
    ("dtype", "scope", "message", "note"),
    [
        ("int8", "global", "T.atomic_cas: Triton compares and swaps 16, 32 or 64 bits, and int8 has 8", "int32"),
        ("bool", "shared", "T.atomic_cas: it is not defined on bool", "int32"),
    ],
)
def test_refused_at_its_line(dtype: str, scope: str, message: str, note: str) -> None:
    @T.prim_func
    def main(X: T.Tensor((4,), dtype)):
        with T.Kernel(1):
            s = T.alloc_shared((4,), dtype)
            T.copy(X, s)
            if scope == "global":
                T.atomic_cas(X[0], 0, 1)
            else:
                T.atomic_cas(s[0], False, True)

    with pytest.raises(TileError) as raised:
        tiledsl.compile(main, target="cuda:90")
    assert message in str(raised.value) and any(note in each for each in raised.value.notes)
    assert "T.atomic_cas(" in str(raised.value)


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (2, 1, 3), (1, 1)])
def test_masked_tiles_with_dimensions_of_one(run: Any, shape: tuple[int, ...]) -> None:
    @T.prim_func
    def main(X: T.Tensor(shape, "int32"), n: T.int32, Y: T.Tensor(shape, "int32"), B: T.Tensor(shape, "int32")):
        with T.Kernel(1):
            T.copy(X, Y)
            for at in T.Parallel(*shape):
                if X[at] < n:
                    B[at] = T.atomic_cas(Y[at], 1, 5)

    x = torch.arange(prod(shape), dtype=torch.int32).reshape(shape)
    for n in (0, 2):
        found, before = run(main, x, n, out_idx=(2, 3))
        assert torch.equal(found, torch.where((x == 1) & (x < n), 5, x)) and torch.equal(before[x < n], x[x < n])
