"""T.copy: which elements go where, and what happens outside of a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError

F = "float32"


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float32).reshape(shape)


def test_extents_are_aligned_at_the_right(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((3, 2, 8, 8), F), B: T.Tensor((4, 4), F), C: T.Tensor((2, 3, 4), F)):
        with T.Kernel(1):
            tile = T.alloc_shared((4, 4), F)
            row = T.alloc_fragment((4,), F)
            T.copy(A[2, 1, 3, 2], tile)  # a place takes the tile's extents in its last dimensions
            T.copy(tile, B)
            T.copy(A[0, 0, 5, 1], row)
            T.copy(row, C[1, 2, 0])
            T.copy(row, C[0, 0, 0:4])

    a = numbers(3, 2, 8, 8)
    c = torch.zeros(2, 3, 4)
    b = torch.zeros(4, 4)
    run(main, a, b, c, out_idx=())
    assert torch.equal(b, a[2, 1, 3:7, 2:6])
    assert torch.equal(c[1, 2], a[0, 0, 5, 1:5]) and torch.equal(c[0, 0], c[1, 2]) and not c[1, :2].any()


def test_dimensions_of_one_do_not_count(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((2, 6, 3, 4), F), B: T.Tensor((6, 4), F), C: T.Tensor((1, 6), F)):
        with T.Kernel(1):
            tile = T.alloc_shared((6, 4), F)
            column = T.alloc_fragment((1, 6), F)
            T.copy(A[1, 0:6, 2, :], tile)
            T.copy(tile, B)
            T.copy(A[0, 0:6, 1, 3], column)
            T.copy(column, C)

    a = numbers(2, 6, 3, 4)
    b, c = run(main, a, out_idx=(1, 2))
    assert torch.equal(b, a[1, :, 2])
    assert torch.equal(c[0], a[0, :, 1, 3])


def test_tiles_of_other_ranks_are_copied_whole(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((3,), F), B: T.Tensor((3, 1, 1), F), C: T.Tensor((1, 1), F)):
        with T.Kernel(1):
            line, column = T.alloc_fragment((3,), F), T.alloc_shared((3, 1), F)
            deep, back = T.alloc_fragment((3, 1, 1), F), T.alloc_shared((3,), F)
            total, largest = T.alloc_fragment((1, 1), F), T.alloc_shared((1, 1, 1), F)
            T.copy(A, line)
            T.copy(line[:], column[:, 0])
            T.copy(column[:, :], deep[:, :, 0])
            T.copy(deep[:, 0, 0], back[:])
            T.copy(back[:], deep[:, 0, :])
            T.copy(deep, B)
            T.fill(total[0, :], 100.0)
            T.reduce_sum(line, total[0, :], dim=0, clear=False)  # through tiles of one element, of other ranks
            T.reduce_max(column, largest[0, :, 0], dim=0)
            T.copy(total[:, 0], largest[:, 0, 0])
            T.copy(largest[0, :, :], C)

    a = numbers(3)
    b, c = run(main, a, out_idx=(1, 2))
    assert torch.equal(b.flatten(), a)
    assert c.item() == 106


def test_elements_and_negative_indices(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((5, 6), F), B: T.Tensor((5, 6), F)):
        with T.Kernel(1):
            x = T.alloc_fragment((2, 3), F)
            T.fill(x, 0)
            T.copy(A[-1, -2], x[1, 2])
            x[0, 0] = A[-5, 0]
            B[-1, -1] = A[-1, -1] + x[-1, -1]
            T.copy(x, B[0:2, 0:3])
            T.copy(A[-2:, -3:], B[2:4, 0:3])

    a, b = numbers(5, 6), torch.zeros(5, 6)
    run(main, a, b, out_idx=())
    want = torch.zeros(5, 6)
    want[1, 2], want[0, 0] = a[4, 4], a[0, 0]
    want[2:4, 0:3] = a[3:, 3:]
    want[4, 5] = a[4, 5] + a[4, 4]
    assert torch.equal(b, want)


@pytest.mark.parametrize("safe", [None, -7.0])
def test_reads_outside_give_zero_or_the_safe_value_and_writes_are_dropped(run: Any, safe: float | None) -> None:
    @T.prim_func
    def main(A: T.Tensor((5, 7), F), B: T.Tensor((3, 4, 4), F), C: T.Tensor((5, 7), F)):
        with T.Kernel(3) as bx:
            if safe is not None:
                T.annotate_safe_value({A: safe})
            x = T.alloc_shared((4, 4), F)
            T.copy(A[bx * 4 - 2, bx * 4 - 2], x)
            T.copy(x, B[bx, 0, 0])
            T.copy(x, C[bx * 4 - 2, bx * 4 - 2])

    a, c = numbers(5, 7), torch.full((5, 7), -1.0)
    b = torch.zeros(3, 4, 4)
    run(main, a, b, c, out_idx=())
    want_b = torch.full((3, 4, 4), 0.0 if safe is None else safe)
    want_c = torch.full((5, 7), -1.0)
    for n in range(3):
        for i in range(4):
            for j in range(4):
                y, x = n * 4 - 2 + i, n * 4 - 2 + j
                if 0 <= y < 5 and 0 <= x < 7:
                    want_b[n, i, j] = want_c[y, x] = a[y, x]
    assert torch.equal(b, want_b) and torch.equal(c, want_c)


def test_a_safe_value_holds_in_the_kernel_that_annotates_it(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((3,), F), B: T.Tensor((4,), F), C: T.Tensor((4,), F)):
        with T.Kernel(1) as bx:
            T.annotate_safe_value({A: 7.0})
            x = T.alloc_shared((4,), F)
            T.copy(A[bx], x)
            T.copy(x, B)
        with T.Kernel(1) as bx:
            y = T.alloc_shared((4,), F)
            T.copy(A[bx], y)
            T.copy(y, C)

    b, c = torch.zeros(4), torch.ones(4)
    run(main, torch.ones(3), b, c, out_idx=())
    assert b.tolist() == [1, 1, 1, 7] and c.tolist() == [1, 1, 1, 0]


def test_views_of_other_types_read_the_safe_value_outside_as_their_type_holds_it(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((3,), F), B: T.Tensor((4,), "int32"), C: T.Tensor((8,), "uint16"), D: T.Tensor((4,), F)):
        with T.Kernel(1) as bx:
            bits = T.view(A, dtype="int32")
            T.annotate_safe_value({bits: -7})
            halves = T.view(T.view(A, dtype="int32"), (6,), "uint16")
            x = T.alloc_shared((4,), "int32")
            T.copy(bits[bx], x)
            T.copy(x, B)
            for i in T.Parallel(8):
                C[i] = halves[bx + i]
            for i in T.Parallel(4):
                D[i] = A[bx + i]

    a = numbers(3)
    b, c, d = torch.zeros(4, dtype=torch.int32), torch.zeros(8, dtype=torch.uint16), torch.zeros(4)
    run(main, a, b, c, d, out_idx=())
    assert b.tolist() == [*a.view(torch.int32).tolist(), -7]
    assert c.tolist() == [*a.view(torch.uint16).tolist(), 65529, 65529]
    assert d.tolist() == [*a.tolist(), -7.0]


def test_a_safe_value_that_a_view_cannot_hold_is_refused() -> None:
    @T.prim_func
    def main(A: T.Tensor((3,), F), B: T.Tensor((4,), "int32")):
        with T.Kernel(1) as bx:
            T.annotate_safe_value({A: float("-inf")})
            B[0] = T.view(A, dtype="int32")[bx + 3]

    with pytest.raises(TileError, match="annotate_safe_value gives -inf for its memory"):
        tiledsl.compile(main, target="interpret")


def test_slices_of_dynamic_extent_take_the_tile_s_shape(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((16,), F), starts: T.Tensor((3,), "int32"), B: T.Tensor((2, 4), F)):
        with T.Kernel(2) as bx:
            x = T.alloc_fragment((4,), F)
            T.copy(A[starts[bx] : starts[bx + 1]], x)
            T.copy(x, B[bx, :])

    a = numbers(16)
    b = run(main, a, torch.tensor([3, 7, 20], dtype=torch.int32))
    assert torch.equal(b, torch.stack([a[3:7], a[7:11]]))


def test_a_value_in_two_types_is_two_values(run: Any) -> None:
    """The slice has no extent of 0: its ends differ for what one of the types does not hold."""

    @T.prim_func
    def main(A: T.Tensor((300,), F), n: T.int32, B: T.Tensor((4,), F)):
        with T.Kernel(1):
            x = T.alloc_fragment((4,), F)
            T.copy(A[T.cast(n, "int8") : T.cast(n, "int16")], x)
            T.copy(x, B)

    a = numbers(300)
    assert torch.equal(run(main, a, 259), a[3:7])


def test_conversion_and_whole_tensors(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((3, 5), F), B: T.Tensor((3, 5), "int32"), C: T.Tensor((3, 5), "bfloat16")):
        with T.Kernel(1):
            x = T.alloc_fragment((3, 5), "float16")
            T.copy(A, x)
            T.copy(x, B)
            T.copy(x, C)

    a = numbers(3, 5) * 1.3 - 4
    b, c = run(main, a, out_idx=(1, 2))
    assert torch.equal(b, a.half().int()) and torch.equal(c, a.half().bfloat16())


@pytest.mark.parametrize(("rows", "columns"), [(3, 96), (5, 77), (1, 229), (2, 192)])
def test_tiles_that_are_no_powers_of_two(run: Any, rows: int, columns: int) -> None:
    @T.prim_func
    def main(A: T.Tensor((rows, columns), F), B: T.Tensor((rows, columns), F), S: T.Tensor((rows,), F)):
        with T.Kernel(1):
            x = T.alloc_fragment((rows, columns), F)
            s = T.alloc_fragment((rows,), F)
            T.copy(A, x)
            T.reduce_max(x, s, dim=1)
            for i, j in T.Parallel(rows, columns):
                x[i, j] = x[i, j] - s[i]
            T.copy(x, B)
            T.reduce_min(x, s, dim=1)
            T.copy(s, S)

    a = torch.randn(rows, columns) - 10
    b, s = run(main, a, out_idx=(1, 2))
    want = a - a.max(1, keepdim=True).values
    assert torch.equal(b, want) and torch.equal(s, want.min(1).values)


def test_fill_and_clear_of_parts(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4, 6), F)):
        with T.Kernel(1):
            x = T.alloc_shared((4, 6), F)
            T.fill(x, 2)
            T.clear(x[1, 0:6])
            T.fill(x[2:4, 3:5], 7.5)
            x[0, 0:3] = -1
            T.copy(x, A)
            T.fill(A[3, 0:2], 9)

    a = run(main)
    want = torch.full((4, 6), 2.0)
    want[1], want[2:4, 3:5], want[0, :3], want[3, :2] = 0, 7.5, -1, 9
    assert torch.equal(a, want)


def test_views_and_reshapes_alias(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4, 6), F), B: T.Tensor((3, 8), F), C: T.Tensor((24,), "int32")):
        with T.Kernel(1):
            x = T.alloc_shared((4, 6), F)
            T.copy(A, x)
            y = T.reshape(x, (3, 8))
            for i, j in T.Parallel(3, 8):
                y[i, j] = y[i, j] + 1.0
            T.copy(T.reshape(x, [3, 8]), B)
            bits = T.view(A, (24,), "int32")
            flat = T.Tensor((24,), F, A.data)
            for i in T.Parallel(24):
                C[i] = T.if_then_else(flat[i] > 12.0, bits[i], 0)

    a = numbers(4, 6)
    b, c = run(main, a, out_idx=(1, 2))
    assert torch.equal(b, (a + 1).reshape(3, 8))
    assert torch.equal(c, torch.where(a > 12, a.view(torch.int32), 0).reshape(24))


def test_transpose(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4, 6), F), B: T.Tensor((6, 4), F)):
        with T.Kernel(1):
            x, y = T.alloc_shared((4, 6), F), T.alloc_shared((6, 4), F)
            T.copy(A, x)
            T.transpose(x, y)
            T.copy(y, B)

    a = numbers(4, 6)
    assert torch.equal(run(main, a), a.t())


@pytest.mark.parametrize("order", ["row", "column"])
def test_swizzled_blocks_cover_everything_once(run: Any, order: str) -> None:
    @T.prim_func
    def main(A: T.Tensor((5, 7), F)):
        with T.Kernel(7, 5) as (bx, by):
            T.use_swizzle(2, order=order)
            T.atomic_add(A[by, bx], T.cast(by * 7 + bx + 1, F))

    a = torch.zeros(5, 7)
    run(main, a, out_idx=())
    assert torch.equal(a, numbers(5, 7))


@pytest.mark.parametrize("block", [1, 4])
def test_a_slice_of_dynamic_extent_gives_what_the_tile_has(run: Any, block: int) -> None:
    n = T.dynamic("n")

    @T.prim_func
    def main(ends: T.Tensor((n,), "int32"), lengths: T.Tensor((n,), "int32")):
        with T.Kernel(1, threads=32):
            first, second = T.alloc_fragment((block,), "int32"), T.alloc_fragment((block,), "int32")
            T.copy(ends[: n - 1], first)
            T.copy(ends[1:], second)
            for i in T.Parallel(block):
                second[i] = second[i] - first[i]
            lengths[0] = -1
            T.copy(second, lengths[1:])

    ends = torch.tensor([0, 3, 4, 9, 11][: block + 1], dtype=torch.int32)
    lengths = torch.full_like(ends, 7)
    run(main, ends, lengths, out_idx=())
    assert lengths.tolist() == [-1, 3, 1, 5, 2][: block + 1]


def hinted(policy: Any, mode: str = "pointer") -> str:
    @T.prim_func
    def main(A: T.Tensor((128, 64), "float16"), B: T.Tensor((128, 64), "float16")):
        with T.Kernel(2, threads=128) as block:
            a = T.alloc_shared((64, 64), "float16")
            T.copy(A[block * 64, 0], a, eviction_policy=policy)
            T.copy(a, B[block * 64, 0], eviction_policy="evict_last")

    return tiledsl.compile(main, target="cuda:90", pass_configs={"select-access.mode": mode}).source


def test_eviction_policies_are_those_of_loads_and_stores_through_pointers() -> None:
    source = hinted("evict_first")
    assert source.count('eviction_policy="evict_first")') == source.count('eviction_policy="evict_last")') == 1
    for policy in (None, "evict_normal"):
        assert hinted(policy).count("eviction_policy") == 1
    blocks = hinted("evict_first", "tma")
    assert "eviction_policy" not in blocks and "tl.load(" not in blocks


def test_an_unknown_eviction_policy_is_refused() -> None:
    with pytest.raises(tiledsl.TileError, match=r"T\.copy: no eviction policy 'first'") as error:
        hinted("first")
    assert "there are evict_normal, evict_first, evict_last" in str(error.value)
