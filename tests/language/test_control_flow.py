"""Loops, branches, variables, jumps, logic."""
# ruff: noqa: SIM113

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T

F, I = "float32", "int32"


def test_parallel_reads_of_many_shapes(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((6, 6), F), v: T.Tensor((6,), F), g: T.Tensor((6,), I), B: T.Tensor((5, 6, 6), F)):
        with T.Kernel(1):
            for i, j in T.Parallel(6, 6):
                B[0, i, j] = A[j, i]  # transposed
                B[1, i, j] = v[i] * 2 + v[j] + A[0, 0]  # rows, columns, a constant place
                B[2, i, j] = A[g[i], j]  # gathered; outside it reads 0
                B[3, i, j] = A[i - 1, j + 2]  # shifted; outside it reads 0
                B[4, i, j] = A[i // 2, j % 3]

    a, v = torch.randn(6, 6), torch.randn(6)
    g = torch.tensor([3, 0, -1, 6, 5, 1], dtype=torch.int32)
    b = run(main, a, v, g)
    gathered = torch.stack([a[n] if 0 <= n < 6 else torch.zeros(6) for n in g.tolist()])
    shifted = torch.zeros(6, 6)
    shifted[1:, :4] = a[:5, 2:]
    index = torch.arange(6)
    want = [a.t(), v[:, None] * 2 + v[None] + a[0, 0], gathered, shifted, a[index // 2][:, index % 3]]
    torch.testing.assert_close(b, torch.stack(want))


def test_parallel_with_branches_lets_and_inner_loops(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4, 8), F), B: T.Tensor((4, 8), F), C: T.Tensor((4,), F)):
        with T.Kernel(1):
            x = T.alloc_shared((4, 8), F)
            T.copy(A, x)
            for i, j in T.Parallel(4, 8):
                y = x[i, j] * 2.0
                z = y + T.cast(i - j, F)
                if i < j:
                    B[i, j] = z
                elif i == j:
                    B[i, j] = -1.0
                else:
                    B[i, j] = y
            for i in T.Parallel(4):
                C[i] = 0.0
                for k in T.serial(8):
                    C[i] += x[i, k]

    a = torch.randn(4, 8)
    b, c = run(main, a, out_idx=(1, 2))
    i, j = torch.arange(4)[:, None], torch.arange(8)[None]
    want = torch.where(i < j, a * 2 + (i - j), torch.where(i == j, -1.0, a * 2))
    torch.testing.assert_close(b, want)
    torch.testing.assert_close(c, a.sum(1))


def test_scattered_writes(run: Any) -> None:
    @T.prim_func
    def main(P: T.Tensor((8,), I), B: T.Tensor((8,), F)):
        with T.Kernel(1):
            for i in T.Parallel(8):
                B[P[i]] = T.cast(i, F)  # outside of B nothing is written

    places = torch.tensor([7, 2, -1, 0, 8, 3, 100, 5], dtype=torch.int32)
    b = torch.full((8,), -1.0)
    run(main, places, b, out_idx=())
    assert b.tolist() == [3, -1, 1, 5, -1, 7, -1, 0]


LOOPS = [
    (loop, bounds)
    for loop in ("serial", "Serial", "unroll", "range", "Pipelined")
    for bounds in ((5,), (2, 7), (1, 8, 3), (7, 0, -2), (3, 3))
    if loop != "Pipelined" or len(bounds) < 3  # which has no step
]


@pytest.mark.parametrize(("loop", "bounds"), LOOPS)
def test_bounds_of_loops(run: Any, loop: str, bounds: tuple[int, ...]) -> None:
    @T.prim_func
    def main(n: T.int32, B: T.Tensor((2, 10), I)):
        with T.Kernel(1):
            c = T.alloc_var(I, 0)
            T.fill(B[0:2, 0:10], -1)
            for i in range(*bounds) if loop == "range" else getattr(T, loop)(*bounds):
                B[0, c] = i
                c += 1
            c = 0
            for i in T.serial(n, bounds[0]):
                B[1, c] = i
                c += 1

    b = run(main, 1)
    want = list(range(*bounds))
    assert b[0].tolist() == want + [-1] * (10 - len(want))
    want = list(range(1, bounds[0]))
    assert b[1].tolist() == want + [-1] * (10 - len(want))


def test_variables_go_through_loops_and_branches(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), I), n: T.int32, B: T.Tensor((6,), F)):
        with T.Kernel(1):
            total = T.alloc_var(I, 10)
            best, at = T.alloc_var(I, init=-1000), T.alloc_var(I)
            ratio = T.alloc_var(F, 1.0)
            at = -1
            for i in T.serial(n):
                total += A[i]
                if A[i] > best:
                    best = A[i]
                    at = i
                else:
                    ratio *= 0.5
                total -= 1
            old = total  # a value, not the variable
            total = total + 100
            B[0], B[1], B[2], B[3], B[4], B[5] = total, best, at, ratio, old, total - old

    a = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6], dtype=torch.int32)
    b = run(main, a, 7)
    assert b.tolist() == [10 + 25 - 7 + 100, 9, 5, 0.125, 28, 100]


def test_swapping_and_unpacking(run: Any) -> None:
    @T.prim_func
    def main(n: T.int32, B: T.Tensor((6,), I)):
        with T.Kernel(7) as bx:
            a, b = T.alloc_var(I, 0), T.alloc_var(I, 1)
            for _ in T.serial(n):
                a, b = b, a + b
            row, (column, *rest) = bx // 3, (bx % 3, 1, 2)
            if bx == 5:
                B[0], B[1], B[2], B[3] = a, b, row, column
                B[4] = len(rest)
                B[5] = rest[-1]

    assert run(main, 9).tolist() == [34, 55, 1, 2, 2, 2]


def test_while_break_and_continue(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((3, 16), I), B: T.Tensor((3, 4), I)):
        with T.Kernel(3) as bx:
            low, high = T.alloc_var(I, 0), T.alloc_var(I, 16)
            while low < high:  # the first place with a value of at least 10
                middle = (low + high) // 2
                if A[bx, middle] < 10:
                    low = middle + 1
                else:
                    high = middle
            B[bx, 0] = low
            steps, odd = T.alloc_var(I, 0), T.alloc_var(I, 0)
            for i in T.serial(16):
                if A[bx, i] % 2 == 0:
                    continue
                odd += A[bx, i]
                if odd > 20:
                    break
                steps += 1
            B[bx, 1], B[bx, 2] = odd, steps
            steps = 0
            while bx >= 0:
                steps += 1
                if steps * steps > 40:
                    break
            B[bx, 3] = steps

    a = torch.randint(0, 30, (3, 16), dtype=torch.int32).sort(1).values
    b = run(main, a)
    for row, got in zip(a.tolist(), b.tolist()):
        odd = steps = 0
        for each in row:
            if each % 2 == 0:
                continue
            odd += each
            if odd > 20:
                break
            steps += 1
        assert got == [sum(each < 10 for each in row), odd, steps, 7]


def test_jumps_end_the_innermost_loop_only(run: Any) -> None:
    @T.prim_func
    def main(B: T.Tensor((5,), I)):
        with T.Kernel(1):
            c = T.alloc_var(I, 0)
            for i in T.serial(5):
                c = 0
                for j in T.serial(10):
                    if j > i:
                        break
                    if j == 1:
                        continue
                    c += 10
                if i == 3:
                    continue
                B[i] = c

    b = torch.full((5,), -1, dtype=torch.int32)
    run(main, b, out_idx=())
    assert b.tolist() == [10, 10, 20, -1, 40]


def test_logic(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), I), B: T.Tensor((8, 8), I)):
        with T.Kernel(1):
            for i in T.Parallel(8):
                x = A[i]
                B[i, 0] = 1 < x < 5
                B[i, 1] = x > 2 and i > 3
                B[i, 2] = x > 2 or i > 3
                B[i, 3] = not x > 2
                B[i, 4] = T.And(x > 2, i > 3)
                B[i, 5] = 7 if x == 3 else (8 if x == 4 else 9)
                B[i, 6] = T.if_then_else(x >= 4, A[i + 4], -5)  # the load is outside where it is not taken, too
                B[i, 7] = x if (True and i != 2) or False else -x

    a = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6], dtype=torch.int32)
    b = run(main, a)
    for i, x in enumerate(a.tolist()):
        further = a[i + 4].item() if i < 4 else 0
        want = [1 < x < 5, x > 2 and i > 3, x > 2 or i > 3, x <= 2, x > 2 and i > 3]
        want += [{3: 7, 4: 8}.get(x, 9), further if x >= 4 else -5, x if i != 2 else -x]
        assert b[i].tolist() == [int(each) for each in want]


def test_choices_guard_reads(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), F), n: T.int32, B: T.Tensor((8,), F)):
        with T.Kernel(8) as bx:
            B[bx] = A[bx] if bx < n else -1.0

    a = torch.randn(4)
    assert torch.equal(run(main, a, 3), torch.cat([a[:3], torch.full((5,), -1.0)]))


@pytest.mark.parametrize("domain", [[5], [3, 4], [2, 3, 4]])
def test_persistent_blocks_visit_each_tile_once(run: Any, domain: list[int]) -> None:
    @T.prim_func
    def main(B: T.Tensor(domain, I)):
        with T.Kernel(2) as bx:
            for indices in T.Persistent(domain, 2, bx, group_size=2):
                T.atomic_add(B[indices], 1)

    b = torch.zeros(domain, dtype=torch.int32)
    run(main, b, out_idx=())
    assert (b == 1).all()


@pytest.mark.parametrize("domain", [[0], [0, 3], [3, 0], [2, 0, 3], [0, 2, 3]])
def test_persistent_blocks_have_nothing_to_visit_in_an_empty_domain(run: Any, domain: list[int]) -> None:
    @T.prim_func
    def main(B: T.Tensor((1,), I)):
        with T.Kernel(2) as bx:
            for _indices in T.Persistent(domain, 2, bx):
                T.atomic_add(B[0], 1)

    b = torch.zeros(1, dtype=torch.int32)
    run(main, b, out_idx=())
    assert b.item() == 0


@pytest.mark.parametrize(
    ("domain", "wave", "message"),
    [
        ([3, -1], 2, "a size of the domain is -1; it must be at least 0"),
        ([3], 0, "wave_size is 0; it must be at least 1"),
        ([3], -2, "wave_size is -2; it must be at least 1"),
    ],
)
def test_a_persistent_loop_that_would_not_end_is_refused(domain: list[int], wave: int, message: str) -> None:
    with pytest.raises(tiledsl.TileError, match=f"T.Persistent: {message}"):
        T.Persistent(domain, wave, 0)
    assert T.Persistent([0], 1, 0).domain == (0,)


@pytest.mark.parametrize(
    ("domain", "blocks", "group", "turns"),
    [
        ([5], 2, 2, [0, 10, 1, 11, 2]),
        ([3, 4], 2, 2, [[0, 1, 2, 3], [10, 11, 12, 13], [4, 14, 5, 15]]),
        ([4, 2], 1, 3, [[0, 3], [1, 4], [2, 5], [6, 7]]),
        ([9, 2], 1, None, [*([row, row + 8] for row in range(8)), [16, 17]]),
        ([2, 3, 2], 1, 2, [[[6 * plane + t for t in row] for row in ((0, 2), (1, 3), (4, 5))] for plane in (0, 1)]),
        ([2, 3, 1, 2], 1, 8, [[[[6 * a + 2 * b, 6 * a + 2 * b + 1]] for b in range(3)] for a in range(2)]),
    ],
)
def test_persistent_blocks_take_tiles_in_turns_and_in_groups_of_rows(
    run: Any, domain: list[int], blocks: int, group: int | None, turns: list[Any]
) -> None:
    """Ten times the block, and how many tiles it took before."""

    @T.prim_func
    def main(B: T.Tensor(domain, I)):
        with T.Kernel(blocks) as bx:
            taken = T.alloc_var(I, 0)
            for indices in T.Persistent(domain, blocks, bx, group_size=group):
                B[indices] = bx * 10 + taken
                taken += 1

    b = torch.zeros(domain, dtype=torch.int32)
    run(main, b, out_idx=())
    assert b.tolist() == turns


@pytest.mark.parametrize("target", ["i", "(i,)", "[i]"])
def test_the_only_index_of_a_loop_is_a_number_unless_a_tuple_is_asked_for(target: str) -> None:
    text = """
@T.prim_func
def main(B: T.Tensor((3, 5), "int32")):
    with T.Kernel(5, threads=32) as TARGET:
        B[0, i] = i * 3
    with T.Kernel(1, threads=32) as bx:
        for TARGET in T.Parallel(5):
            B[1, i] = i * 3
        for TARGET in T.Persistent([5], 1, bx):
            B[2, i] = i * 3
"""
    b = torch.zeros(3, 5, dtype=torch.int32)
    tiledsl.compile(tiledsl.parse(text.replace("TARGET", target)), target="interpret")(b)
    assert b.tolist() == [[0, 3, 6, 9, 12]] * 3


def test_break_behind_loops_of_the_device(run: Any) -> None:
    """A loop over Python values may still end after a T.Parallel in chunks, a device loop and a branch."""

    @T.prim_func
    def main(A: T.Tensor((3, 50), F), n: T.int32, B: T.Tensor((3, 50), F)):
        with T.Kernel(1):
            for row in (0, 1, 2):
                for i in T.Parallel(n):
                    B[row, i] = A[row, i] + 1
                for i in T.serial(n):
                    B[row, i] = B[row, i] * 2
                if n > 0:
                    B[row, 0] = 0.0
                if row == 1:
                    break
            for i in T.Parallel(n):
                B[2, i] = 3.0

    a = torch.randn(3, 50)
    want = torch.cat([(a[:2] + 1) * 2, torch.full((1, 50), 3.0)])
    want[:2, 0] = 0
    torch.testing.assert_close(run(main, a, 50), want)


def test_pipelined_loops_inside_others(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((2, 4, 8), F), n: T.int32, B: T.Tensor((2, 8), F)):
        with T.Kernel(2) as bx:
            x, total = T.alloc_shared((8,), F), T.alloc_fragment((8,), F)
            T.clear(total)
            for r in T.serial(2):
                if r < n:
                    for k in T.Pipelined(4, num_stages=2):
                        T.copy(A[bx, k, 0], x)
                        for i in T.Parallel(8):
                            total[i] += x[i]
            T.copy(total, B[bx, 0])

    a = torch.randn(2, 4, 8)
    torch.testing.assert_close(run(main, a, 2), 2 * a.sum(1))
    torch.testing.assert_close(run(main, a, 0), 0 * a.sum(1))


def test_host_control_flow_is_resolved_while_building(run: Any) -> None:
    scales, mode, extra = [1.0, 2.0, 3.0], "double", None

    @T.prim_func
    def main(A: T.Tensor((8,), F), B: T.Tensor((3, 8), F)):
        with T.Kernel(1):
            x = T.alloc_fragment((8,), F)
            for n, scale in enumerate(scales):
                T.copy(A, x)
                if mode == "double" and extra is None:
                    factor = 2 * scale if n != 1 else scale
                else:
                    factor = extra["missing"]
                for i in T.Parallel(8):
                    x[i] = x[i] * factor
                T.copy(x, B[n, 0])

    a = torch.randn(8)
    torch.testing.assert_close(run(main, a), torch.stack([a * 2, a * 2, a * 6]))
