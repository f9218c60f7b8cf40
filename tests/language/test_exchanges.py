"""Atomics on the chip, and writes to computed indices, against Python's own loops."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError

_COMBINE = {"add": lambda a, b: a + b, "max": max, "min": min, "or": lambda a, b: a | b}


def _updated(kind: str, start: list[Any], places: list[int], values: list[Any]) -> tuple[list[Any], list[Any]]:
    """What is left of `start`, and what each update met, one update after the other."""
    held, met = list(start), []
    for place, value in zip(places, values, strict=True):
        inside = 0 <= place < len(held)
        met.append(held[place] if inside else 0)
        if inside:
            held[place] = _COMBINE[kind](held[place], value)
    return held, met


@pytest.mark.parametrize(("kind", "start"), [("add", -0.0), ("max", float("nan")), ("min", float("nan"))])
def test_an_element_that_no_point_updates_keeps_its_bits(run: Any, kind: str, start: float) -> None:
    update = getattr(T, f"atomic_{kind}")

    @T.prim_func
    def main(X: T.Tensor((8,), "float32"), H: T.Tensor((2,), "float32")):
        with T.Kernel(1):
            held = T.alloc_fragment((2,), "float32")
            T.fill(held, start)
            for i in T.Parallel(8):
                if X[i] > 0:
                    update(held[i % 2], X[i])
            T.copy(held, H)

    found = run(main, torch.tensor([-1.0] * 8))
    assert found.view(torch.int32).tolist() == torch.tensor([start] * 2).view(torch.int32).tolist()


_SIZES = [(64, 8, "int32"), (100, 30, "int8"), (48, 128, "int64"), (70, 20, "float32")]


@pytest.mark.parametrize(
    ("kind", "points", "size", "dtype"),
    [(kind, *each) for each in _SIZES for kind in _COMBINE if (kind, each[2]) != ("or", "float32")],
)
def test_updates_that_coincide(run: Any, kind: str, points: int, size: int, dtype: str) -> None:
    update = getattr(T, f"atomic_{kind}")

    @T.prim_func
    def main(
        P: T.Tensor((points,), "int32"), V: T.Tensor((points,), dtype), H: T.Tensor((2, size), dtype),
        B: T.Tensor((points,), dtype),
    ):  # fmt: skip
        with T.Kernel(1):
            once, again = T.alloc_shared((size,), dtype), T.alloc_fragment((size,), dtype)
            T.fill(once, 3)
            T.fill(again, 3)
            for i in T.Parallel(points):
                update(once[P[i]], V[i])
            for i in T.Parallel(points):
                B[i] = update(again[P[i]], V[i], return_prev=True)
            T.copy(once, H[0, :])
            T.copy(again, H[1, :])

    places = torch.randint(-2, size + 2, (points,), dtype=torch.int32)
    values = torch.randint(-3, 4, (points,)).to(getattr(torch, dtype))
    found, before = run(main, places, values, out_idx=(2, 3))
    held, met = _updated(kind, [3] * size, places.tolist(), values.tolist())
    assert found.tolist() == [held, held] and before.tolist() == met


def test_a_radix_sort_is_stable(run: Any) -> None:
    """Digits of four bits: what comes first in a tile keeps coming first, as previous values show."""

    @T.prim_func
    def main(X: T.Tensor((256,), "int32"), Y: T.Tensor((256,), "int32")):
        with T.Kernel(1):
            keys, sorted_keys = T.alloc_shared((256,), "int32"), T.alloc_shared((256,), "int32")
            count, start = T.alloc_shared((16,), "int32"), T.alloc_shared((16,), "int32")
            T.copy(X, keys)
            for r in T.serial(3):
                T.clear(count)
                for i in T.Parallel(256):
                    T.atomic_add(count[(keys[i] >> (4 * r)) & 15], 1)
                T.cumsum(count, start)
                for i in T.Parallel(16):
                    start[i] -= count[i]
                for i in T.Parallel(256):
                    sorted_keys[T.atomic_add(start[(keys[i] >> (4 * r)) & 15], 1, return_prev=True)] = keys[i]
                T.copy(sorted_keys, keys)
            T.copy(keys, Y)

    x = torch.randint(0, 1 << 12, (256,), dtype=torch.int32)
    assert torch.equal(run(main, x), x.sort().values)


def test_two_indices_a_condition_and_a_loop(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((40, 6), "int32"), H: T.Tensor((5, 7), "int32"), B: T.Tensor((40, 6), "int32")):
        with T.Kernel(1):
            h = T.alloc_shared((5, 7), "int32")
            T.clear(h)
            for i, j in T.Parallel(40, 6):
                if X[i, j] % 3 != 0:
                    for k in T.serial(2):
                        B[i, j] = T.atomic_add(h[X[i, j] // 8, j + k - 1], X[i, j], return_prev=True)
            T.copy(h, H)

    x = torch.randint(0, 40, (40, 6), dtype=torch.int32)
    found, _ = run(main, x, out_idx=(1, 2))
    held = [[0] * 7 for _ in range(5)]
    for row in x.tolist():
        for j, value in enumerate(row):
            for k in (0, 1):
                if value % 3 and j + k >= 1:
                    held[value // 8][j + k - 1] += value
    assert found.tolist() == held


def test_outside_of_parallel_and_of_whole_tiles(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "int32"), Z: T.Tensor((2,), "int32")):
        with T.Kernel(1):
            x, y = T.alloc_shared((8,), "int32"), T.alloc_shared((8,), "int32")
            T.copy(X, x)
            T.fill(y, 5)
            T.atomic_add(y, x)
            T.atomic_max(y[2:4], 7)
            Z[0] = T.atomic_add(y[1], 10, return_prev=True)
            T.atomic_store(y[0], 1)
            Z[1] = T.atomic_load(y[0]) + T.atomic_load(y[7])
            T.copy(y, Y)

    x = torch.arange(8, dtype=torch.int32)
    y, z = run(main, x, out_idx=(1, 2))
    assert y.tolist() == [1, 16, 7, 8, 9, 10, 11, 12] and z.tolist() == [6, 13]


@pytest.mark.parametrize(("size", "points"), [(700, 600), (1024, 1024)])
def test_writes_to_many_computed_indices(run: Any, size: int, points: int) -> None:
    """More than are compared with every element. The last of several writes to one element stays."""

    @T.prim_func
    def main(P: T.Tensor((points,), "int32"), X: T.Tensor((points,), "float16"), Y: T.Tensor((size,), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((size,), "float16")
            T.fill(s, -1)
            for i in T.Parallel(points):
                s[P[i]] = X[i]
            T.copy(s, Y)

    places = [random.Random(points).randrange(-5, size + 5) for _ in range(points)]
    want = [-1.0] * size
    x = torch.randn(points).half()
    for place, value in zip(places, x.tolist(), strict=True):
        if 0 <= place < size:
            want[place] = value
    assert run(main, torch.tensor(places, dtype=torch.int32), x).tolist() == want


def test_an_update_that_changes_nothing(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((4,), "int32"), Y: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            t = T.alloc_shared((4,), "int32")
            T.copy(X, t)
            for i in T.Parallel(20):
                t[i // 5] = t[i // 5] | 0
            T.copy(t, Y)

    x = torch.randint(-9, 9, (4,), dtype=torch.int32)
    assert torch.equal(run(main, x), x)


def test_what_is_refused() -> None:
    @T.prim_func
    def main(X: T.Tensor((64,), "int32")):
        with T.Kernel(1):
            s = T.alloc_shared((8,), "bool")
            for i in T.Parallel(64):
                T.atomic_add(s[X[i]], True)

    with pytest.raises(TileError, match=r"T\.atomic_add: it is not defined on bool"):
        tiledsl.compile(main, target="interpret")


@pytest.mark.parametrize("index, expected", [(0, 5), (1, 2), (-1, 2)])
def test_an_update_outside_of_a_single_element_takes_no_part(index: int, expected: int) -> None:
    @T.prim_func
    def main(O: T.Tensor((1,), "int32"), at: T.int32):
        with T.Kernel(1, threads=32):
            t = T.alloc_shared((1,), "int32")
            t[0] = 2
            T.atomic_max(t[at], 5)
            O[0] = t[0]

    out = torch.zeros(1, dtype=torch.int32)
    tiledsl.compile(main, target="interpret")(out, index)
    assert out.item() == expected
