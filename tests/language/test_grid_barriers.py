"""T.sync_grid: what comes after it is a launch of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.dialects import tile
from tiledsl.errors import TileError

N = 64


def means(blocks: int) -> Any:
    """Rows of 16 minus the mean of everything: partial sums of each block, then the differences."""

    @T.prim_func
    def main(X: T.Tensor((N, 16), "float32"), P: T.Tensor((blocks,), "float32"), Y: T.Tensor((N, 16), "float32")):
        with T.Kernel(blocks, threads=64) as bx:
            rows = N // blocks
            part = T.alloc_fragment((rows, 16), "float32")
            total = T.alloc_fragment((1,), "float32")
            sums = T.alloc_fragment((blocks,), "float32")
            first = bx * rows
            T.copy(X[first, 0], part)
            flat = T.reshape(part, (rows * 16,))
            T.reduce_sum(flat, total)
            P[bx] = total[0]
            T.sync_grid()
            T.copy(P, sums)
            T.reduce_sum(sums, total)
            T.copy(X[first, 0], part)
            for i, j in T.Parallel(rows, 16):
                part[i, j] = part[i, j] - total[0] / (N * 16)
            T.copy(part, Y[first, 0])

    return main


@pytest.mark.parametrize("blocks", [1, 4, 32])
def test_all_blocks_have_written(blocks: int) -> None:
    x = torch.randint(-8, 8, (N, 16)).float()
    kernel = tiledsl.compile(means(blocks), out_idx=[1, 2], target="interpret")
    _, y = kernel(x)
    torch.testing.assert_close(y, x - x.mean())
    first, second = tile.kernels(kernel.program_root())
    assert [each.threads for each in (first, second)] == [64, 64] and first.body.args[0].name == "bx"
    names = [{op.out.name for op in each.body if isinstance(op, tile.AllocOp)} for each in (first, second)]
    assert names == [{"part", "total"}, {"part", "total", "sums"}]


def test_each_barrier_and_threads() -> None:
    @T.prim_func
    def main(X: T.Tensor((128,), "int32"), Y: T.Tensor((128,), "int32"), Z: T.Tensor((128,), "int32")):
        with T.Kernel(4, threads=32) as bx:
            i = bx * 32 + T.get_thread_binding()
            s = T.alloc_shared((32,), "int32")
            Y[i] = X[i] + 1
            T.sync_grid()
            s[i % 32] = Y[127 - i]
            T.sync_threads()
            if i % 2 == 0:
                Z[i] = s[31 - i % 32]
            else:
                Z[i] = 0
            T.sync_grid()
            T.atomic_add(Y[i], Z[127 - i])

    x = torch.arange(128, dtype=torch.int32)
    kernel = tiledsl.compile(main, out_idx=[1, 2], target="interpret")
    y, z = kernel(x)
    at = torch.arange(128)
    moved = (x + 1)[127 - (at // 32 * 32 + 31 - at % 32)]
    assert torch.equal(z, torch.where(at % 2 == 0, moved, 0))
    assert torch.equal(y, x + 1 + z.flip(0))
    assert len(tile.kernels(kernel.program_root())) == 3
    assert tiledsl.compile(main, out_idx=[1, 2], target="cuda:90").source.count("@triton.jit") == 3
    checks = kernel.verify().checks
    assert not [each for each in checks if each.status == "failed"], checks


def program(before: Callable[..., None], after: Callable[..., None], inside: bool = False) -> Any:
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32")):
        with T.Kernel(2, threads=32) as bx:
            s = T.alloc_shared((8,), "int32")
            before(A, B, s, bx)
            if inside:
                for _ in T.serial(2):
                    T.sync_grid()
            else:
                T.sync_grid()
            after(A, B, s, bx)

    return main


@T.macro
def nothing(A: Any, B: Any, s: Any, bx: Any) -> None:
    A[bx] = 1


@T.macro
def fills(A: Any, B: Any, s: Any, bx: Any) -> None:
    T.copy(A, s)
    B[bx] = s[bx]


@T.macro
def reads(A: Any, B: Any, s: Any, bx: Any) -> None:
    T.copy(s, B)


@T.prim_func
def variable(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32")):
    with T.Kernel(2, threads=32) as bx:
        v = T.alloc_var("int32")
        v = A[bx]
        T.sync_grid()
        B[bx] = v


def test_what_would_be_kept_is_refused_at_its_line() -> None:
    found = "{} is used before T.sync_grid and after it, where a block has nothing on the chip from before"
    for made, name in ((program(fills, reads), "s"), (variable, "v")):
        with pytest.raises(TileError) as raised:
            made.build()
        assert raised.value.message == found.format(name) and "T.sync_grid()" in str(raised.value)
        assert "write two T.Kernel blocks" in raised.value.notes[0]
    with pytest.raises(TileError, match=r"T\.sync_grid stands in a loop or a branch") as raised:
        program(nothing, nothing, inside=True).build()
    assert "T.sync_grid()" in str(raised.value)
    assert len(tile.kernels(program(fills, fills).build())) == 2


def test_a_number_from_before_is_refused() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32")):
        with T.Kernel(2, threads=32) as bx:
            count = A[bx]
            B[bx] = count
            T.sync_grid()
            A[bx] = count + 1

    with pytest.raises(TileError, match=r"count was read before T\.sync_grid, and is used after it") as raised:
        main.build()
    assert "T.sync_grid()" in str(raised.value) and "read it again" in raised.value.notes[0]
