"""Kernels as users write them, each against torch or plain Python: odd sizes, mixed scopes, integers and bits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tiledsl.language as T

F, H, I = "float32", "float16", "int32"


def test_four_bit_weights(run: Any) -> None:
    """Nibbles become float16 by their bits: 0x6400 | n is 1024 + n."""
    M, N, K, group = 33, 40, 64, 32

    @T.prim_func
    def main(
        A: T.Tensor((M, K), H), Q: T.Tensor((N, K // 2), "uint8"), S: T.Tensor((N, K // group), H),
        C: T.Tensor((M, N), H),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
            a, q = T.alloc_shared((32, 32), H), T.alloc_shared((32, 16), "uint8")
            packed, b = T.alloc_fragment((32, 16), "uint8"), T.alloc_fragment((32, 32), H)
            acc = T.alloc_fragment((32, 32), F)
            T.clear(acc)
            for k in T.Pipelined(K // 32, num_stages=2):
                T.copy(A[by * 32, k * 32], a)
                T.copy(Q[bx * 32, k * 16], q)
                T.copy(q, packed)
                for i, j in T.Parallel(32, 32):
                    nibble = (packed[i, j // 2] >> ((j % 2) * 4)) & 0xF
                    value = T.reinterpret(T.cast(nibble | 0x6400, "uint16"), H) - T.float16(1032)
                    b[i, j] = value * S[bx * 32 + i, (k * 32 + j) // group]
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[by * 32, bx * 32])

    a, scale = torch.randn(M, K).half(), torch.rand(N, K // group).half()
    packed = torch.randint(0, 256, (N, K // 2)).to(torch.uint8)
    weights = torch.stack([packed & 15, packed >> 4], -1).view(N, K).half() - 8
    weights *= scale.repeat_interleave(group, 1)
    torch.testing.assert_close(run(main, a, packed, scale).float(), a.float() @ weights.float().T, rtol=2e-2, atol=2e-2)


def test_gathered_rows_of_experts(run: Any) -> None:
    tokens, K, N, experts, blocks = 10, 40, 24, 3, 4

    @T.prim_func
    def main(
        X: T.Tensor((tokens, K), H), W: T.Tensor((experts, N, K), H), rows: T.Tensor((blocks * 16,), I),
        expert: T.Tensor((blocks,), I), weight: T.Tensor((blocks * 16,), F), Y: T.Tensor((tokens, N), F),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 16), blocks, threads=128) as (bx, by):
            x, w, acc = T.alloc_shared((16, 16), H), T.alloc_shared((16, 16), H), T.alloc_fragment((16, 16), F)
            e = expert[by]
            T.clear(acc)
            if e >= 0:
                for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
                    for i, j in T.Parallel(16, 16):
                        x[i, j] = X[rows[by * 16 + i], k * 16 + j]
                    T.copy(W[e, bx * 16 : (bx + 1) * 16, k * 16 : (k + 1) * 16], w)
                    T.gemm(x, w, acc, transpose_B=True)
                for i, j in T.Parallel(16, 16):
                    T.atomic_add(Y[rows[by * 16 + i], bx * 16 + j], acc[i, j] * weight[by * 16 + i])

    x, w, weight = torch.randn(tokens, K).half(), torch.randn(experts, N, K).half(), torch.rand(blocks * 16)
    rows, expert = torch.full((blocks * 16,), tokens), torch.tensor([0, 2, -1, 1])  # behind the last token: nothing
    rows[:5], rows[16:18], rows[48:58] = torch.tensor([0, 3, 4, 9, 1]), torch.tensor([3, 7]), torch.arange(10)
    y, want = torch.zeros(tokens, N), torch.zeros(tokens, N)
    run(main, x, w, rows.int(), expert.int(), weight, y, out_idx=())
    for at, row in enumerate(rows.tolist()):
        if row < tokens and expert[at // 16] >= 0:
            want[row] += weight[at] * (w[expert[at // 16]].float() @ x[row].float())
    torch.testing.assert_close(y, want, rtol=1e-3, atol=1e-3)


def test_paged_decoding(run: Any) -> None:
    batch, heads, groups, dim, page, pages = 3, 6, 2, 32, 16, 11
    width, scale = T.dynamic("width"), dim**-0.5 * math.log2(math.e)

    @T.prim_func
    def main(
        Q: T.Tensor((batch, heads, dim), H), K: T.Tensor((pages, page, groups, dim), H),
        V: T.Tensor((pages, page, groups, dim), H), table: T.Tensor((batch, width), I), length: T.Tensor((batch,), I),
        O: T.Tensor((batch, heads, dim), H),
    ):  # fmt: skip
        with T.Kernel(batch, groups, threads=128) as (b, g):
            q, k, v = T.alloc_shared((16, dim), H), T.alloc_shared((page, dim), H), T.alloc_shared((page, dim), H)
            s, p, o = T.alloc_fragment((16, page), F), T.alloc_fragment((16, page), H), T.alloc_fragment((16, dim), F)
            top, before, total, part = (T.alloc_fragment((16,), F) for _ in range(4))
            T.clear(o)
            T.clear(total)
            T.fill(top, -T.infinity(F))
            for i, j in T.Parallel(16, dim):
                q[i, j] = T.if_then_else(i < heads // groups, Q[b, g * (heads // groups) + i, j], 0)
            for step in T.Pipelined(T.ceildiv(length[b], page), num_stages=1):
                T.copy(K[table[b, step], :, g, :], k)
                T.copy(V[table[b, step], :, g, :], v)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(16, page):
                    s[i, j] = T.if_then_else(step * page + j < length[b], s[i, j] * scale, -T.infinity(F))
                T.copy(top, before)
                T.reduce_max(s, top, dim=1, clear=False)
                for i, j in T.Parallel(16, page):
                    s[i, j] = T.exp2(s[i, j] - top[i])
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(16):
                    total[i] = total[i] * T.exp2(before[i] - top[i]) + part[i]
                for i, j in T.Parallel(16, dim):
                    o[i, j] *= T.exp2(before[i] - top[i])
                T.copy(s, p)
                T.gemm(p, v, o)
            for i, j in T.Parallel(16, dim):
                if i < heads // groups:
                    O[b, g * (heads // groups) + i, j] = o[i, j] / total[i]

    q, k, v = torch.randn(batch, heads, dim).half(), *torch.randn(2, pages, page, groups, dim).half()
    length, table = torch.tensor([5, 48, 33]), torch.randint(0, pages, (batch, 4))
    got = run(main, q, k, v, table.int(), length.int())
    for b in range(batch):
        keys, values = (x[table[b]].flatten(0, 1)[: length[b]].repeat_interleave(3, 1).float() for x in (k, v))
        weights = torch.softmax(torch.einsum("hd,nhd->hn", q[b].float(), keys) * dim**-0.5, -1)
        torch.testing.assert_close(got[b].float(), torch.einsum("hn,nhd->hd", weights, values), rtol=1e-2, atol=1e-2)


def test_a_stencil_with_a_border(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((37, 45), F), B: T.Tensor((37, 45), F)):
        with T.Kernel(T.ceildiv(45, 16), T.ceildiv(37, 16), threads=128) as (bx, by):
            t = T.alloc_shared((18, 18), F)
            T.copy(A[by * 16 - 1 : by * 16 + 17, bx * 16 - 1 : bx * 16 + 17], t)
            for i, j in T.Parallel(16, 16):
                around = t[i, j + 1] + t[i + 2, j + 1] + t[i + 1, j] + t[i + 1, j + 2]
                B[by * 16 + i, bx * 16 + j] = t[i + 1, j + 1] * 0.6 + 0.1 * around

    a = torch.randn(37, 45)
    p = torch.nn.functional.pad(a, (1, 1, 1, 1))
    want = 0.6 * a + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:])
    torch.testing.assert_close(run(main, a), want)


def test_loops_of_each_iteration(run: Any) -> None:
    """Rows of different lengths, and a search that ends at another step for each element."""
    M, Q = 9, 50
    count = T.dynamic("count")

    @T.prim_func
    def main(
        start: T.Tensor((M + 1,), I), value: T.Tensor((count,), F), X: T.Tensor((Q,), F), S: T.Tensor((M,), F),
        At: T.Tensor((Q,), I),
    ):  # fmt: skip
        with T.Kernel(1):
            for i in T.Parallel(M):
                total = T.alloc_local((1,), F)
                total[0] = 0
                for e in T.serial(start[i], start[i + 1]):
                    total[0] += value[e]
                S[i] = total[0]
            for i in T.Parallel(Q):
                low, high = T.alloc_var(I, 0), T.alloc_var(I, count)
                while low < high:
                    middle = (low + high) // 2
                    if value[middle] < X[i]:
                        low = middle + 1
                    else:
                        high = middle
                At[i] = low

    lengths = torch.tensor([3, 0, 5, 1, 1, 0, 7, 2, 4])
    start = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    value, x = torch.randn(int(lengths.sum())).sort().values, torch.randn(Q)
    sums, at = run(main, start.int(), value, x, out_idx=(3, 4))
    torch.testing.assert_close(sums, torch.stack([part.sum() for part in value.split(lengths.tolist())]))
    assert torch.equal(at.long(), torch.searchsorted(value, x))


def test_a_sorting_network(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((3, 32), F), Y: T.Tensor((3, 32), F)):
        with T.Kernel(3, threads=64) as row:
            x, y = T.alloc_shared((32,), F), T.alloc_shared((32,), F)
            T.copy(X[row, 0], x)
            for size in range(1, 6):
                for step in range(size):
                    distance = T.shift_left(1, size - 1 - step)
                    for i in T.Parallel(32):
                        ascending, lower = ((i >> size) & 1) == 0, (i & distance) == 0
                        other = x[i ^ distance]
                        y[i] = T.if_then_else(ascending == lower, T.min(x[i], other), T.max(x[i], other))
                    T.copy(y, x)
            T.copy(x, Y[row, 0])

    x = torch.randn(3, 32)
    assert torch.equal(run(main, x), x.sort(-1).values)


def test_forward_substitution(run: Any) -> None:
    N, R = 12, 5

    @T.prim_func
    def main(L: T.Tensor((N, N), F), B: T.Tensor((N, R), F), X: T.Tensor((N, R), F)):
        with T.Kernel(1, threads=64):
            lower, x = T.alloc_shared((N, N), F), T.alloc_shared((N, R), F)
            T.copy(L, lower)
            T.copy(B, x)
            for i in T.serial(N):
                for k in T.serial(i):
                    for r in T.Parallel(R):
                        x[i, r] -= lower[i, k] * x[k, r]
                for r in T.Parallel(R):
                    x[i, r] /= lower[i, i]
            T.copy(x, X)

    lower, b = torch.randn(N, N).tril() + 4 * torch.eye(N), torch.randn(N, R)
    torch.testing.assert_close(
        run(main, lower, b), torch.linalg.solve_triangular(lower, b, upper=False), rtol=1e-4, atol=1e-4
    )


def test_edit_distance_along_diagonals(run: Any) -> None:
    M, N = 9, 12

    @T.prim_func
    def main(A: T.Tensor((M,), I), B: T.Tensor((N,), I), D: T.Tensor((1,), I)):
        with T.Kernel(1, threads=32):
            last, now, older = (T.alloc_shared((N + 1,), I) for _ in range(3))
            T.clear(last)
            T.clear(now)
            T.clear(older)
            for d in T.serial(1, M + N + 1):
                for j in T.Parallel(N + 1):
                    i = d - j
                    if i >= 0 and i <= M:
                        if i == 0:
                            now[j] = j
                        elif j == 0:
                            now[j] = i
                        else:
                            change = T.if_then_else(A[i - 1] == B[j - 1], 0, 1)
                            now[j] = T.min(last[j] + 1, last[j - 1] + 1, older[j - 1] + change)
                T.copy(last, older)
                T.copy(now, last)
            D[0] = last[N]

    a, b = torch.randint(0, 3, (M,)), torch.randint(0, 3, (N,))
    row = list(range(N + 1))
    for i, x in enumerate(a.tolist()):
        above, row = row, [i + 1]
        for j, y in enumerate(b.tolist()):
            row.append(min(above[j + 1] + 1, row[j] + 1, above[j] + (x != y)))
    assert run(main, a.int(), b.int()).item() == row[N]


def test_hashes_of_32_bits(run: Any) -> None:
    @T.prim_func
    def main(S: T.Tensor((100,), "uint32"), Y: T.Tensor((100,), F)):
        with T.Kernel(T.ceildiv(100, 32), threads=64) as bx:
            for i in T.Parallel(32):
                h = T.alloc_var("uint32", S[bx * 32 + i])
                h = h ^ (h >> 16)
                h = h * T.uint32(0x85EBCA6B)
                h = h ^ (h >> 13)
                Y[bx * 32 + i] = T.cast(h >> 8, F) * 2.0**-24

    seeds = torch.randint(0, 2**32, (100,))
    h = seeds ^ (seeds >> 16)
    h = torch.tensor([x * 0x85EBCA6B % 2**32 for x in h.tolist()])
    torch.testing.assert_close(run(main, seeds.to(torch.uint32)), ((h ^ (h >> 13)) >> 8).float() * 2.0**-24)


def test_sorting_small_arrays_of_each_iteration(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((40, 6), F), B: T.Tensor((40, 6), F)):
        with T.Kernel(T.ceildiv(40, 16)) as bx:
            for i in T.Parallel(16):
                x = T.alloc_local((6,), F)
                for k in T.serial(6):
                    x[k] = A[bx * 16 + i, k]
                for a in T.serial(5):
                    for b in T.serial(5 - a):
                        if x[b] > x[b + 1]:
                            x[b], x[b + 1] = x[b + 1], x[b]
                for k in T.serial(6):
                    B[bx * 16 + i, k] = x[k]

    a = torch.randn(40, 6)
    assert torch.equal(run(main, a), a.sort(1).values)


def test_compaction_by_a_counter(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((100,), F), count: T.Tensor((1,), I), B: T.Tensor((100,), F)):
        with T.Kernel(T.ceildiv(100, 32)) as bx:
            for i in T.Parallel(32):
                value = A[bx * 32 + i]
                if bx * 32 + i < 100 and value > 0:
                    B[T.atomic_add(count[0], 1, return_prev=True)] = value

    a, count, b = torch.randn(100), torch.zeros(1, dtype=torch.int32), torch.zeros(100)
    run(main, a, count, b, out_idx=())
    kept = a[a > 0].sort().values
    assert count.item() == len(kept) and torch.equal(b[: len(kept)].sort().values, kept) and not b[len(kept) :].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("propagate", [False, True])
def test_a_reduction_to_one_element_that_has_a_value(run: Any, dtype: str, propagate: bool) -> None:
    @T.prim_func
    def main(A: T.Tensor((64,), dtype), B: T.Tensor((1,), dtype)):
        with T.Kernel(1, threads=32):
            x, top = T.alloc_fragment((64,), dtype), T.alloc_fragment((1,), dtype)
            T.copy(A, x)
            top[0] = 70.0
            T.reduce_max(x, top, clear=False, nan_propagate=propagate)
            T.copy(top, B)

    a = torch.arange(64).to(getattr(torch, dtype))
    a[7] = float("nan")
    got = run(main, a).item()
    assert math.isnan(got) if propagate else got == 70
