"""Code for one thread: indices, arrays of each thread, exchange, conditions and loops that differ between threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl.language as T
from tiledsl.errors import TileError

Run = Callable[..., Any]


def test_the_thread_is_an_index(run: Run) -> None:
    @T.prim_func
    def program(A: T.Tensor((300,), "float32"), B: T.Tensor((300,), "float32")):
        with T.Kernel(3, threads=128) as p:
            i = p * 128 + T.get_thread_binding()
            if i < 300:
                if A[i] > 0:
                    B[i] = A[i]
                else:
                    B[i] = A[i] * A[i] + 1.0

    a = torch.randn(300)
    assert torch.equal(run(program, a), torch.where(a > 0, a, a * a + 1))


def test_threads_have_two_indices_and_arrays_of_their_own(run: Run) -> None:
    @T.prim_func
    def program(A: T.Tensor((64,), "float32"), B: T.Tensor((48, 64), "float32"), C: T.Tensor((48,), "float32")):
        with T.Kernel(3, threads=(16, 4)) as p:
            own = T.alloc_local((8,), "float32")
            other = T.alloc_local((8,), "float32")
            sums = T.alloc_local((1,), "float32")
            s = T.alloc_shared((16, 4), "float32")
            T.clear(sums)
            tn, tk = T.get_thread_binding(0), T.get_thread_binding(1)
            for k in T.serial(2):
                for v in T.vectorized(8):
                    own[v] = A[k * 32 + tk * 8 + v]
                T.copy(B[p * 16 + tn, k * 32 + tk * 8], other)
                for v in T.serial(8):
                    sums[0] += own[v] * other[v]
            s[tn, tk] = sums[0]
            T.sync_threads()
            if tk == 0:
                C[p * 16 + tn] = s[tn, 0] + s[tn, 1] + s[tn, 2] + s[tn, 3]

    a, b = torch.randint(-9, 9, (64,)).float(), torch.randint(-9, 9, (48, 64)).float()
    assert torch.equal(run(program, a, b), b @ a)


def test_threads_exchange_through_shared_memory(run: Run) -> None:
    @T.prim_func
    def program(A: T.Tensor((2, 64), "int32"), B: T.Tensor((2, 64), "int32")):
        with T.Kernel(2, threads=64) as p:
            s = T.alloc_shared((64,), "int32")
            tx = T.get_thread_binding()
            s[tx] = A[p, tx]
            for k in T.serial(6):
                T.sync_threads()
                v = T.alloc_var("int32", s[tx])
                if tx >= 1 << k:
                    v += s[tx - (1 << k)]
                T.sync_threads()
                s[tx] = v
            B[p, (tx * 5 + 3) % 64] = s[63 - tx]

    a = torch.randint(-9, 9, (2, 64), dtype=torch.int32)
    expected = torch.zeros_like(a)
    expected[:, (torch.arange(64) * 5 + 3) % 64] = a.cumsum(1).flip(1).int()
    assert torch.equal(run(program, a), expected)


def test_each_thread_steps_from_a_start_of_its_own(run: Run) -> None:
    @T.prim_func
    def program(
        A: T.Tensor((70,), "float32"),
        N: T.Tensor((32,), "int32"),
        B: T.Tensor((70,), "float32"),
        C: T.Tensor((32,), "int32"),
        D: T.Tensor((32,), "int32"),
        E: T.Tensor((32,), "int32"),
    ):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            for k in T.serial(tx, 70, 32):
                B[k] = A[k]
            up = T.alloc_var("int32", 0)
            for k in T.serial(N[tx], tx * 3, 7):
                if k % 5 == 4:
                    break
                if k % 3 == 1:
                    continue
                up += k
            C[tx] = up
            down = T.alloc_var("int32", 0)
            for k in T.serial(tx, N[tx] - 20, -3):
                down += k * k
            D[tx] = down
            turns = T.alloc_var("int32", 0)
            if tx >= 3:
                for k in T.serial(2147483000 + N[tx], 2147483200 + N[tx], 60 + 40):
                    turns += k - 2147483000
            E[tx] = turns

    def rising(start: int, stop: int) -> int:
        total = 0
        for k in range(start, stop, 7):
            if k % 5 == 4:
                break
            total += 0 if k % 3 == 1 else k
        return total

    a, n = torch.randn(70), torch.randint(-40, 60, (32,), dtype=torch.int32)
    n[0] = 2**31 - 1  # no turn, and a start far from those of the others
    copied, up, down, turns = run(program, a, n, out_idx=(2, 3, 4, 5))
    starts = n.tolist()
    assert torch.equal(copied, a)
    assert up.tolist() == [rising(start, tx * 3) for tx, start in enumerate(starts)]
    assert down.tolist() == [sum(k * k for k in range(tx, start - 20, -3)) for tx, start in enumerate(starts)]
    assert turns.tolist() == [0 if tx < 3 else 2 * start + 100 for tx, start in enumerate(starts)]


def test_threads_step_by_two_from_starts_that_differ(run: Run) -> None:
    @T.prim_func
    def program(B: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=4):
            tx = T.get_thread_binding()
            total = T.alloc_var("int32", 0)
            for k in T.serial(tx, 9, 2):
                total = total * 10 + k
            B[tx] = total

    assert run(program).tolist() == [2468, 1357, 2468, 357]


def test_loops_have_as_many_turns_as_each_thread_wants(run: Run) -> None:
    @T.prim_func
    def program(N: T.Tensor((40,), "int32"), B: T.Tensor((40,), "int32"), C: T.Tensor((40,), "int32")):
        with T.Kernel(1, threads=40):
            tx = T.get_thread_binding()
            steps = T.alloc_var("int32", 0)
            n = T.alloc_var("int32", N[tx])
            while n != 1:
                if n % 2 == 0:
                    n = n // 2
                else:
                    n = 3 * n + 1
                steps += 1
            B[tx] = steps
            total = T.alloc_var("int32", 0)
            for k in T.serial(tx % 5, tx):
                if k % 7 == 6:
                    break
                if k % 3 == 1:
                    continue
                total += k
            C[tx] = total

    def collatz(n: int) -> int:
        return 0 if n == 1 else 1 + collatz(n // 2 if n % 2 == 0 else 3 * n + 1)

    n = torch.randint(1, 30, (40,), dtype=torch.int32)
    steps, totals = run(program, n, out_idx=(1, 2))
    assert steps.tolist() == [collatz(int(each)) for each in n]
    expected = []
    for tx in range(40):
        total = 0
        for k in range(tx % 5, tx):
            if k % 7 == 6:
                break
            total += 0 if k % 3 == 1 else k
        expected.append(total)
    assert totals.tolist() == expected


SHUFFLES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int], int]]] = {
    "xor 5": (lambda v, tx: T.shfl_xor(v, 5), lambda i: i ^ 5),
    "xor 8 of 8": (lambda v, tx: T.shfl_xor(v, 8, 8), lambda i: i ^ 8 if i & 8 else i),
    "down 3": (lambda v, tx: T.shfl_down(v, 3), lambda i: i + 3 if i % 32 + 3 < 32 else i),
    "down 3 of 16": (lambda v, tx: T.shfl_down(v, 3, width=16), lambda i: i + 3 if i % 16 + 3 < 16 else i),
    "up 1 of 4": (lambda v, tx: T.shfl_up(v, 1, 4), lambda i: i - 1 if i % 4 else i),
    "one of 8": (lambda v, tx: T.shfl_sync(v, 13, 8), lambda i: i // 8 * 8 + 5),
    "computed": (lambda v, tx: T.shfl_sync(v, tx * 7), lambda i: i // 32 * 32 + i * 7 % 32),
    "of a warp": (lambda v, tx: T.tvm_warp_shuffle(0xFFFFFFFF, v, 31, 32, 32), lambda i: i // 32 * 32 + 31),
    "back": (lambda v, tx: T.tvm_warp_shuffle_up(-1, v, tx % 2, 32, 32), lambda i: i - i % 2),
    "up 1 without 4": (lambda v, tx: T.shfl_up(v, 1, mask=0xFFFFFFEF), lambda i: i - 1 if i % 32 not in (0, 5) else i),
    "one of a few": (lambda v, tx: T.shfl_sync(v, tx, mask=0xFF), lambda i: i),
    "first of the mask": (lambda v, tx: T.shfl_sync(v, 9, mask=tx << 8), lambda i: i // 32 * 32 + 9 if i & 2 else i),
    "ahead": (lambda v, tx: T.tvm_warp_shuffle_down(-1, v, 1, 2, 32), lambda i: i // 2 * 2 + 1),
}


@pytest.mark.parametrize("name", SHUFFLES)
@pytest.mark.parametrize("threads", [96, (16, 4)])
def test_shuffles(run: Run, name: str, threads: Any) -> None:
    shuffle, source = SHUFFLES[name]
    count = 96 if threads == 96 else 64

    @T.prim_func
    def program(A: T.Tensor((count,), "float16"), B: T.Tensor((count,), "float16")):
        with T.Kernel(1, threads=threads):
            tx = T.get_lane_idx() + 32 * T.get_warp_idx()
            B[tx] = shuffle(A[tx], tx)

    a = torch.randn(count).half()
    assert torch.equal(run(program, a), a[[source(i) for i in range(count)]])


def test_masks_leave_threads_without_a_vote(run: Run) -> None:
    """Masks that are known, that differ between threads, and that leave out those of a condition."""

    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), B: T.Tensor((6, 64), "int64")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            mask = T.if_then_else(tx % 2 == 0, 0x55555555, T.uint32(0xAAAAAAAA))
            B[0, tx] = T.any_sync(A[tx] > 90, 0xFF00)
            B[1, tx] = T.all_sync(A[tx] < 50, 0x90000000)
            B[2, tx] = T.cast(T.ballot_sync(A[tx] % 3, 0x0F0F), "int64")
            B[3, tx] = T.any_sync(A[tx] > 95, mask)
            B[4, tx] = T.all_sync(A[tx] > 3, mask)
            B[5, tx] = T.cast(T.ballot_sync(A[tx] % 3, mask), "int64")

    a = torch.randint(0, 99, (64,), dtype=torch.int32)
    expected: list[list[int]] = [[] for _ in range(6)]
    for tx in range(64):
        warp = a[tx // 32 * 32 :][:32].tolist()
        own = range(tx % 2, 32, 2)
        expected[0].append(int(any(warp[lane] > 90 for lane in range(8, 16))))
        expected[1].append(int(warp[28] < 50 and warp[31] < 50))
        expected[2].append(sum((warp[lane] % 3 != 0) << lane for lane in (0, 1, 2, 3, 8, 9, 10, 11)))
        expected[3].append(int(any(warp[lane] > 95 for lane in own)))
        expected[4].append(int(all(warp[lane] > 3 for lane in own)))
        expected[5].append(sum((warp[lane] % 3 != 0) << lane for lane in own))
    assert run(program, a).tolist() == expected


@pytest.mark.parametrize("threads", [64, 8])
def test_threads_with_the_same_value(run: Run, threads: int) -> None:
    @T.prim_func
    def program(A: T.Tensor((threads,), "int32"), B: T.Tensor((5, threads), "int64")):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            mask = T.if_then_else(tx % 2 == 0, 0x55555555, T.uint32(0xAAAAAAAA))
            B[0, tx] = T.cast(T.match_any_sync(A[tx]), "int64")
            B[1, tx] = T.cast(T.match_any_sync(A[tx] > 1, 0x8000000F), "int64")
            B[2, tx] = T.cast(T.match_any_sync(A[tx], mask), "int64")
            B[3, tx] = T.cast(T.match_all_sync(A[tx] // 8), "int64")
            B[4, tx] = T.cast(T.match_all_sync(tx % 2 + A[tx] * 0, mask), "int64")

    a = torch.randint(0, 4, (threads,), dtype=torch.int32)
    a[threads // 2] = 9
    size = min(threads, 32)
    full = (1 << size) - 1
    expected: list[list[int]] = [[] for _ in range(5)]
    for tx in range(threads):
        warp, own = a[tx // 32 * 32 :][:32].tolist(), a[tx].item()
        odd = (0xAAAAAAAA if tx % 2 else 0x55555555) & full
        same = sum((value == own) << lane for lane, value in enumerate(warp))
        expected[0].append(same)
        expected[1].append(sum(((value > 1) == (own > 1)) << lane for lane, value in enumerate(warp)) & 0x8000000F)
        expected[2].append(same & odd)
        expected[3].append(full if len({value // 8 for value in warp}) == 1 else 0)
        expected[4].append(odd)
    assert run(program, a).tolist() == expected


@pytest.mark.parametrize(
    ("mask", "message"),
    [(1 << 32, "T.shfl_sync: mask 4294967296 has more than 32 bits"), (1.5, "T.shfl_sync: the mask is")],
)
def test_what_is_no_mask(run: Run, mask: Any, message: str) -> None:
    @T.prim_func
    def program(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            A[T.get_thread_binding()] = T.shfl_sync(A[0], 0, mask=mask)

    with pytest.raises(TileError) as raised:
        run(program, torch.zeros(32, dtype=torch.int32))
    assert message in str(raised.value) and "T.shfl_sync(A[0], 0, mask=mask)" in str(raised.value)


def test_a_warp_reduces_and_votes(run: Run) -> None:
    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), B: T.Tensor((11, 64), "int64")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            v = A[tx]
            B[0, tx] = T.warp_reduce_sum(v)
            B[1, tx] = T.warp_reduce_max(v)
            B[2, tx] = T.warp_reduce_min(v)
            B[3, tx] = T.warp_reduce_bitand(v)
            B[4, tx] = T.warp_reduce_bitor(v)
            B[5, tx] = T.any_sync(v > 98)
            B[6, tx] = T.all_sync(v < 99)
            B[7, tx] = T.cast(T.ballot(v % 3), "int64")
            B[8, tx] = T.syncthreads_count(v % 3)
            B[9, tx] = T.syncthreads_and(v < 99)
            B[10, tx] = T.syncthreads_or(v > 98) + T.warp_reduce_sum(1)

    a = torch.randint(0, 99, (64,), dtype=torch.int32)
    a[40] = 99
    warps = a.view(2, 32).tolist()
    of_warps = [
        [sum(x), max(x), min(x), _fold(lambda p, q: p & q, x), _fold(lambda p, q: p | q, x), max(x) > 98, max(x) < 99,
         sum((value % 3 != 0) << lane for lane, value in enumerate(x))]
        for x in warps
    ]  # fmt: skip
    expected = [[int(x[row]) for x in of_warps for _ in range(32)] for row in range(8)]
    expected += [[int((a % 3 != 0).sum())] * 64, [0] * 64, [33] * 64]
    assert run(program, a).tolist() == expected


def _fold(function: Callable[[int, int], int], values: list[int]) -> int:
    made = values[0]
    for value in values[1:]:
        made = function(made, value)
    return made


def test_statements_of_the_block_stand_between_those_of_threads(run: Run) -> None:
    @T.prim_func
    def program(A: T.Tensor((32, 32), "float16"), B: T.Tensor((2, 32, 32), "float32"), C: T.Tensor((2, 9), "float32")):
        with T.Kernel(2, threads=64) as p:
            a = T.alloc_shared((32, 32), "float16")
            acc = T.alloc_fragment((32, 32), "float32")
            rest = T.alloc_fragment((8,), "float32")
            scale = T.alloc_shared((32,), "float32")
            T.clear(acc)
            T.fill(rest, 3.0)
            tx = T.get_thread_binding()
            if tx < 32:
                scale[tx] = T.cast(tx, "float32") + 1.0
                T.copy(A, a)
                if p == 1:
                    T.gemm(a, a, acc)
            else:
                for i in T.Parallel(8):
                    rest[i] = rest[i] * T.cast(i, "float32")
            if A[0, tx % 32] > 100:
                T.fill(rest, 100.0)
            T.sync_threads()
            for i, j in T.Parallel(32, 32):
                acc[i, j] = acc[i, j] * scale[j]
            T.copy(acc, B[p, 0, 0])
            T.copy(rest, C[p, 1])
            if T.get_thread_binding() == 0:
                C[p, 0] = scale[p + 3]

    a = torch.randint(-3, 3, (32, 32)).half()
    b, c = run(program, a, out_idx=(1, 2))
    product = a.float() @ a.float() * torch.arange(1, 33)
    assert torch.equal(b, torch.stack([torch.zeros(32, 32), product]))
    assert c.tolist() == [[first, *(3.0 * i for i in range(8))] for first in (4.0, 5.0)]
    a[0, 9] = 101
    assert run(program, a, out_idx=(1, 2))[1][:, 1:].tolist() == [[100.0] * 8] * 2


def test_the_last_of_several_threads_writes(run: Run) -> None:
    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), B: T.Tensor((3,), "int32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((3,), "int32")
            tx = T.get_thread_binding()
            T.fill(s, -1)
            s[0] = T.warp_reduce_max(A[tx])
            if A[tx] == 77:
                s[1] = tx
            if A[tx] > 1000:
                s[2] = tx
            T.copy(s, B)

    a = torch.randint(0, 50, (64,), dtype=torch.int32)
    a[19] = 77
    assert run(program, a).tolist() == [int(a[32:].max()), 19, -1]


def test_what_the_whole_block_does_behind_a_branch_in_a_branch(run: Run) -> None:
    @T.prim_func
    def program(B: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((4,), "int32")
            tx = T.get_thread_binding()
            T.clear(s)
            if tx < 32:
                if tx < 16:
                    T.fill(s, 3)
                T.copy(s, B)

    assert run(program).tolist() == [3] * 4


def test_a_parallel_loop_of_one_thread(run: Run) -> None:
    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), B: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((8,), "int32")
            tx = T.get_thread_binding()
            if tx == 5:
                for j in T.Parallel(8):
                    s[j] = A[tx] + j
            T.copy(s, B)

    a = torch.randint(0, 50, (64,), dtype=torch.int32)
    assert run(program, a).tolist() == [int(a[5]) + j for j in range(8)]


def test_the_index_of_a_thread_is_a_value_and_a_loop(run: Run) -> None:
    @T.prim_func
    def program(B: T.Tensor((3, 8, 4), "int32")):
        with T.Kernel(3, threads=(8, 4)) as p:
            ty = T.thread_binding(0, 4, thread="threadIdx.y")
            for tx in T.thread_binding(8, thread="threadIdx.x"):
                B[p, tx, ty] = p * 100 + tx * 10 + ty + T.thread_binding(1, "threadIdx.z")

    made = run(program)
    assert made.tolist() == [[[p * 100 + x * 10 + y for y in range(4)] for x in range(8)] for p in range(3)]
