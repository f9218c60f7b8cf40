"""T.alloc_reducer: what all iterations of a T.Parallel contribute to an element is combined, each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError


def over_rows(rows: int, columns: int, block: int, op: str, dtype: str, seed: float | None = None) -> Any:
    """Each row of a matrix combined to one element, in steps of `block` columns; the last step is ragged."""

    @T.prim_func
    def program(X: T.Tensor((rows, columns), dtype), Y: T.Tensor((rows,), dtype)):
        with T.Kernel(T.ceildiv(rows, 16), threads=64) as bx:
            found = T.alloc_reducer((16,), dtype, op=op)
            T.reducer_init(found, seed)
            for step in T.Pipelined(T.ceildiv(columns, block), num_stages=2):
                for i, k in T.Parallel(16, block):
                    if bx * 16 + i < rows and step * block + k < columns:
                        T.reducer_update(found[i], X[bx * 16 + i, step * block + k])
            result = T.alloc_fragment((16,), dtype)
            T.finalize_reducer(found, result, batch=2)
            T.copy(result, Y[bx * 16])

    return program


_FLOATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(1),
    "max": lambda x: x.amax(1),
    "min": lambda x: x.amin(1),
}


@pytest.mark.parametrize("op", _FLOATS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_rows_are_combined(run: Callable[..., Any], op: str, dtype: str) -> None:
    x = torch.randint(-50, 50, (20, 44)).to(getattr(torch, dtype))
    assert torch.equal(run(over_rows(20, 44, 12, op, dtype), x), _FLOATS[op](x).to(x.dtype))


def test_bits_are_combined(run: Callable[..., Any]) -> None:
    x = torch.randint(-(2**31), 2**31 - 1, (5, 9), dtype=torch.int32)
    for op, combine in (("bitand", torch.bitwise_and), ("bitor", torch.bitwise_or), ("bitxor", torch.bitwise_xor)):
        expected = x[:, 0]
        for column in range(1, 9):
            expected = combine(expected, x[:, column])
        assert torch.equal(run(over_rows(5, 9, 4, op, "int32"), x), expected), op


def test_a_seed_counts_once(run: Callable[..., Any]) -> None:
    x = torch.randint(-9, 9, (7, 24)).float()
    assert torch.equal(run(over_rows(7, 24, 8, "sum", "float32", 1000.0), x), x.sum(1) + 1000)


def test_a_tile_is_the_seed(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(X: T.Tensor((8, 12), "float32"), S: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            begin = T.alloc_fragment((8,), "float32")
            T.copy(S, begin)
            total = T.alloc_reducer((8,), "float32")
            T.reducer_init(total, begin)
            for i, j in T.Parallel(8, 12):
                T.reducer_update(total[i], X[i, j])
            T.finalize_reducer(total, begin)
            T.copy(begin, Y)

    x, seed = torch.randint(-9, 9, (8, 12)).float(), torch.randint(-9, 9, (8,)).float()
    assert torch.equal(run(program, x, seed), x.sum(1) + seed)


def test_assignments_contribute(run: Callable[..., Any]) -> None:
    """`r[i] += x` and `r[0] = T.max(x, r[0])`, also of another element type, under a mask, and from two loops."""

    @T.prim_func
    def program(X: T.Tensor((12, 20), "float16"), Y: T.Tensor((12,), "float32"), Largest: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=64):
            rows = T.alloc_reducer(12, "float32", replication="all")
            largest = T.alloc_reducer((1,), "float32", op="max", replication="none")
            T.clear(rows)
            T.fill(largest, -T.infinity("float32"))
            for i, j in T.Parallel(12, 20):
                if j % 3 != 0:
                    rows[i] += X[i, j]
                largest[0] = T.max(X[i, j], largest[0])
            for i in T.Parallel(12):
                rows[i] = rows[i] + X[i, 0] + X[i, 3]
            T.finalize_reducer(rows)
            T.finalize_reducer(largest)
            for i in T.Parallel(12):
                Y[i] = rows[i] - largest[0]
            Largest[0] = largest[0]

    x = torch.randint(-40, 40, (12, 20)).half()
    rows, largest = run(program, x, out_idx=(1, 2))
    taken = [j for j in range(20) if j % 3 or j in (0, 3)]
    assert torch.equal(rows, x[:, taken].float().sum(1) - x.max().float())
    assert torch.equal(largest, x.max().float().reshape(1))


def test_elements_by_digits_and_serial_loops(run: Callable[..., Any]) -> None:
    """An element for each pair of indices, permuted and flattened; contributions from a serial loop and outside."""

    @T.prim_func
    def program(X: T.Tensor((4, 6, 5), "int32"), Y: T.Tensor((24,), "int32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_reducer((24,), "int32")
            T.reducer_init(total)
            for i, j in T.Parallel(4, 6):
                for k in T.serial(5):
                    T.reducer_update(total[j * 4 + i], X[i, j, k])
            T.reducer_update(total[3], 7)
            T.copy(total, Y)

    x = torch.randint(-99, 99, (4, 6, 5), dtype=torch.int32)
    expected = x.sum(2, dtype=torch.int32).T.flatten()
    expected[3] += 7
    assert torch.equal(run(program, x), expected)


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_a_reducer_compiles(target: str) -> None:
    kernel = tiledsl.compile(over_rows(32, 64, 32, "sum", "float32"), out_idx=[1], target=target)
    assert "atomic" not in kernel.get_kernel_source() and "tl.sum" in kernel.get_kernel_source()


@pytest.mark.parametrize("folded", [True, False])
def test_indices_that_coincide(run: Callable[..., Any], folded: bool) -> None:
    @T.prim_func
    def program(X: T.Tensor((8, 8), "int32"), Y: T.Tensor((16,), "int32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_reducer((16,), "int32")
            T.reducer_init(total)
            for i, j in T.Parallel(8, 8):
                if folded:
                    T.reducer_update(total[i // 2], X[i, j])
                else:
                    T.reducer_update(total[i + j], X[i, j])
            T.copy(total, Y)

    x = torch.randint(-99, 99, (8, 8), dtype=torch.int32)
    expected = torch.zeros(16, dtype=torch.int32)
    for i in range(8):
        for j in range(8):
            expected[i // 2 if folded else i + j] += x[i, j]
    assert torch.equal(run(program, x), expected)


def test_many_elements_and_iterations(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(X: T.Tensor((128, 128), "int32"), Y: T.Tensor((256,), "int32")):
        with T.Kernel(1, threads=128):
            total = T.alloc_reducer((256,), "int32")
            T.reducer_init(total)
            for i, j in T.Parallel(128, 128):
                T.reducer_update(total[i + j], X[i, j])
            T.copy(total, Y)

    x = torch.randint(-99, 99, (128, 128), dtype=torch.int32)
    expected = torch.zeros(256, dtype=torch.int32)
    expected.index_add_(0, (torch.arange(128)[:, None] + torch.arange(128)).flatten(), x.flatten())
    assert torch.equal(run(program, x), expected)


def refused(action: Callable[[Any, Any], None]) -> str:
    @T.prim_func
    def program(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_reducer((8,), "float32")
            T.reducer_init(total)
            action(total, X)
            T.copy(total, Y)

    with pytest.raises(TileError) as caught:
        tiledsl.compile(program, out_idx=[1], target="interpret")
    return str(caught.value)


def test_mistakes_are_named() -> None:
    assert "no operator 'mean'; there are sum, max" in refused(lambda r, x: T.alloc_reducer(4, "float32", op="mean"))
    of_floats = refused(lambda r, x: T.alloc_reducer(4, "float32", op="bitor"))
    assert "bitor: it combines bits of integers, not of float32" in of_floats
    assert "needs an element of a reducer" in refused(lambda r, x: T.reducer_update(x[0], 1.0))
    assert "needs an element of a reducer" in refused(lambda r, x: T.reducer_update(r, 1.0))
    assert "what T.alloc_reducer returned" in refused(lambda r, x: T.finalize_reducer(x))


@pytest.mark.parametrize("rows", ["serial", "Parallel", "unroll"])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_updates_of_a_row_among_others(rows: str, kind: str) -> None:
    """A loop over rows that begins, updates and reads each is one T.Parallel to the compiler, and no race."""
    loop = getattr(T, rows)

    @T.prim_func
    def main(X: T.Tensor((3, 4, 10), "float32"), Y: T.Tensor((3, 4), "float32"), Z: T.Tensor((3, 4), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((3, 4, 10), "float32")
            total = T.alloc_shared((3, 4), "float32")
            T.copy(X, x)
            for k in loop(3):
                for i in T.Parallel(4):
                    total[k, i] = i
                for i, j in T.Parallel(4, 10):
                    if kind == "sum":
                        total[k, i] += x[k, i, j]
                    else:
                        total[k, i] = T.max(total[k, i], x[k, i, j])
                for i in T.Parallel(4):
                    total[k, i] = total[k, i] * 2
                for i, j in T.Parallel(4, 10):
                    total[k, i] -= x[k, i, j]
                for i in T.Parallel(4):
                    Z[k, i] = total[k, i] + k
            T.copy(total, Y)

    x, y, z = torch.randn(3, 4, 10), torch.zeros(3, 4), torch.zeros(3, 4)
    tiledsl.compile(main, target="interpret")(x, y, z)
    first = torch.arange(4.0) + x.sum(2) if kind == "sum" else torch.maximum(torch.arange(4.0), x.amax(2))
    torch.testing.assert_close(y, first * 2 - x.sum(2))
    assert torch.equal(z, y + torch.arange(3.0)[:, None])


def test_updates_that_rows_share_are_refused() -> None:
    """Of several iterations around them, which begin the element at the same time."""

    @T.prim_func
    def main(X: T.Tensor((4, 4, 10), "float32"), Y: T.Tensor((4, 4), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_shared((4, 4), "float32")
            for k in T.Parallel(4):
                for i in T.Parallel(4):
                    total[k // 2, i] = 0.0
                for i, j in T.Parallel(4, 10):
                    total[k // 2, i] += X[k, i, j]
            T.copy(total, Y)

    with pytest.raises(tiledsl.TileError, match="iterations write the same element of total"):
        tiledsl.compile(main, target="interpret")
