"""Programs that versions of Triton or ptxas refuse, or get wrong, in the forms that they would take by themselves; what
they compute; and the hazard (tiledsl/runtime/hazards.py) that each is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tiledsl.language as T
from tests.support import hazard_machine_code  # noqa: F401 (which adds its programs)
from tests.support.hazard_case import PROGRAMS, HazardProgram, case

__all__ = ["PROGRAMS", "HazardProgram"]

# Gathers of tiles with fewer elements than threads


@case("gather-smaller-than-block", lambda a: a[:, (np.arange(16) * 5 + 1) % 8])
@T.prim_func
def gather_columns(A: T.Tensor((8, 8), "float32"), O: T.Tensor((8, 16), "float32")):
    with T.Kernel(1, threads=128):
        t = T.alloc_fragment((8, 8), "float32")
        T.copy(A, t)
        for i, j in T.Parallel(8, 16):
            O[i, j] = t[i, (j * 5 + 1) % 8]


@case("gather-smaller-than-block", lambda a: a[(np.arange(33) * 3 + 1) % 4])
@T.prim_func
def gather_rows(A: T.Tensor((4, 5), "int8"), O: T.Tensor((33, 5), "int8")):
    with T.Kernel(1, threads=256):
        t = T.alloc_fragment((4, 5), "int8")
        T.copy(A, t)
        for i, j in T.Parallel(33, 5):
            O[i, j] = t[(i * 3 + 1) % 4, j]


def _gathered_in_a_loop(a: np.ndarray, i: np.ndarray) -> np.ndarray:
    places = np.abs(i.astype(np.int32)) % 3
    return sum(np.take_along_axis(a[k], places, axis=1) for k in range(4))


@case("gather-smaller-than-block", _gathered_in_a_loop)
@T.prim_func
def gather_in_loop(
    A: T.Tensor((4, 2, 3, 2), "float16"), I: T.Tensor((2, 7, 2), "int32"), O: T.Tensor((2, 7, 2), "float32")
):
    with T.Kernel(1, threads=64):
        t = T.alloc_fragment((2, 3, 2), "float16")
        o = T.alloc_fragment((2, 7, 2), "float32")
        T.clear(o)
        for n in T.Pipelined(4, num_stages=2):
            T.copy(A[n, 0, 0, 0], t)
            for i, j, k in T.Parallel(2, 7, 2):
                o[i, j, k] += t[i, T.abs(I[i, j, k]) % 3, k]
        T.copy(o, O)


# Numbers of float8


@case("float8-number", lambda a: np.where(np.arange(16) < 3, -1.5, a))
@T.prim_func
def float8_beside(A: T.Tensor((16,), "float8_e5m2"), O: T.Tensor((16,), "float8_e5m2")):
    with T.Kernel(1, threads=32):
        t = T.alloc_fragment((16,), "float8_e5m2")
        T.copy(A, t)
        for i in T.Parallel(16):
            if i < 3:
                t[i] = -1.5
        T.copy(t, O)


@case("float8-number", lambda a: np.stack([a.max(1), np.full(5, 2.0)]))
@T.prim_func
def float8_padding(A: T.Tensor((5, 13), "float8_e4m3fn"), O: T.Tensor((2, 5), "float8_e4m3fn")):
    with T.Kernel(1, threads=32):
        t = T.alloc_fragment((5, 13), "float8_e4m3fn")
        m = T.alloc_fragment((5,), "float8_e4m3fn")
        n = T.alloc_fragment((5,), "float8_e4m3fn")
        T.copy(A, t)
        T.fill(n, 2)
        T.reduce_max(t, m, dim=1)
        T.copy(m, O[0, :])
        T.copy(n, O[1, :])


@case("float8-number", lambda n: np.array([2.0 ** abs(int(n[0]))]))
@T.prim_func
def float8_carried(N: T.Tensor((1,), "int32"), O: T.Tensor((1,), "float8_e4m3fn")):
    with T.Kernel(1, threads=32):
        x = T.alloc_var("float8_e4m3fn", 1.0)
        for _ in range(T.abs(N[0])):
            x = T.cast(T.cast(x, "float32") * 2.0, "float8_e4m3fn")
        O[0] = x


# Products of float64


@case("float64-product-of-narrow", lambda a, b: a @ b)
@T.prim_func
def float64_of_float16(
    A: T.Tensor((16, 32), "float16"), B: T.Tensor((32, 16), "float64"), O: T.Tensor((16, 16), "float64")
):
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((16, 32), "float64")
        b = T.alloc_shared((32, 16), "float64")
        c = T.alloc_fragment((16, 16), "float64")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, clear_accum=True)
        T.copy(c, O)


@case("float64-product-of-narrow", lambda a, m, b: sum(np.where(m[k] > 0, a[k], 0) @ b[k] for k in range(3)))
@T.prim_func
def float64_masked_by_int8(
    A: T.Tensor((3, 16, 16), "float64"), M: T.Tensor((3, 16, 16), "int8"), B: T.Tensor((3, 16, 16), "int8"),
    O: T.Tensor((16, 16), "float64"),
):  # fmt: skip
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((16, 16), "float64")
        b = T.alloc_fragment((16, 16), "float64")
        c = T.alloc_fragment((16, 16), "float64")
        T.clear(c)
        for k in T.Pipelined(3, num_stages=2):
            for i, j in T.Parallel(16, 16):
                a[i, j] = T.if_then_else(M[k, i, j] > T.int8(0), A[k, i, j], 0.0)
                b[i, j] = B[k, i, j]
            T.gemm(a, b, c)
        T.copy(c, O)


# Atomics


@case("atomic-with-python-mask", lambda: np.array([0, 0, 7]))
@T.prim_func
def atomic_always(O: T.Tensor((3,), "uint32")):
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(1, 8):
            if (0 <= i < 6) or (0 <= j < 5):
                T.atomic_max(O[2 - i], 7)


@case("atomic-with-python-mask", lambda a: np.zeros(1))
@T.prim_func
def atomic_never(A: T.Tensor((8, 5), "uint32"), O: T.Tensor((1,), "uint32")):
    with T.Kernel(1, threads=32):
        for i, j, k in T.Parallel(2, 16, 5):
            if 0 <= i - 2 < 3:
                T.atomic_add(O[(k & 0) % 1], A[T.abs(j - 5) % 8, k])


# Loops


def _grown(t: np.ndarray, times: int) -> np.ndarray:
    for _ in range(times):
        t = t * 2 + 1
    return t


@case("flatten-around-pure-loop", lambda: _grown(np.ones((3, 4)), 3), map_grid__persistent=1)
@T.prim_func
def persistent_pure_loop(O: T.Tensor((3, 4), "float32")):
    with T.Kernel(3, threads=32) as bx:
        t = T.alloc_fragment((4,), "float32")
        T.fill(t, 1)
        for _ in range(3):
            for i in T.Parallel(4):
                t[i] = t[i] * 2.0 + 1.0
        T.copy(t, O[bx, :])


def _after_loops(a: np.ndarray) -> np.ndarray:
    out = np.zeros((4, 4))
    for block in (0, 2):
        out[block] = (a[block] + a[block + 1]) * a[block + 1, ::-1]
    return out


@case("flatten-before-branch", _after_loops, map_grid__persistent=1)
@T.prim_func
def persistent_branch_after_loop(A: T.Tensor((5, 4), "float32"), O: T.Tensor((4, 4), "float32")):
    with T.Kernel(4, threads=32) as bx:
        t = T.alloc_fragment((4,), "float32")
        u = T.alloc_fragment((4,), "float32")
        T.fill(t, 0)
        for k in range(2):
            for i in T.Parallel(4):
                t[i] = t[i] + A[bx + k, i]
        for i in T.Parallel(4):
            u[i] = A[bx + 1, 3 - i]
        if bx % 2 == 0:
            for i in T.Parallel(4):
                O[bx, i] = t[i] * u[i]


@case("flatten-before-branch", lambda n: np.where((np.arange(2) == 0) | (n[:1] != 9), 7, 0), map_grid__persistent=1)
@T.prim_func
def persistent_branch_by_block(N: T.Tensor((1,), "float32"), O: T.Tensor((2,), "float32")):
    with T.Kernel(2, 2, threads=128) as (bx, by):
        for _ in range(2):
            O[0] = 7
        if N[0] != 9 + bx:
            O[by] = 7


def _where_above(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    product = (a.astype(np.int8).astype(np.int32) @ b.astype(np.int8).astype(np.int32))[0]
    return np.stack([np.where(product[0] > np.float32(c[4 - block]), product, 0) for block in range(4)])


@case("flatten-before-branch", _where_above, map_grid__persistent=1)
@T.prim_func
def persistent_branch_on_a_product(
    A: T.Tensor((1, 8), "int8"), B: T.Tensor((8, 3), "int8"), C: T.Tensor((5,), "float32"), O: T.Tensor((4, 3), "int32")
):
    with T.Kernel(4, threads=128) as by:
        c = T.alloc_fragment((1,), "float32")
        for i in T.Parallel(1):
            c[i] = C[4 - by]
        t = T.alloc_fragment((1, 3), "int32")
        a = T.alloc_shared((1, 4), "int8")
        b = T.alloc_shared((4, 3), "int8")
        T.clear(t)
        for k in T.Pipelined(2, num_stages=3):
            T.copy(A[0, k * 4], a)
            T.copy(B[k * 4, 0], b)
            T.gemm(a, b, t)
        for i, j in T.Parallel(1, 3):
            if T.cast(t[0, i], "float32") > c[i]:
                O[by, j] = t[i, j]


def _counted(a: np.ndarray) -> np.ndarray:
    out = -a[np.arange(5) % 2, np.arange(5)]
    for _ in range(3):
        out = np.where(out < 1, out + 0.5, out)
    return out


@case("while-with-tiles", _counted)
@T.prim_func
def while_over_elements(A: T.Tensor((2, 8), "float32"), O: T.Tensor((5,), "float32")):
    with T.Kernel(1, threads=256):
        t = T.alloc_fragment((8, 2), "float32")
        o = T.alloc_fragment((1, 5), "float32")
        for i, j in T.Parallel(8, 2):
            t[i, j] = A[j, i]
        for i, j in T.Parallel(1, 5):
            x = T.alloc_var("float32", 0.0 - t[j, T.abs(j) % 2])
            k = T.alloc_var("int32", 0)
            while k < 3 and x < 1.0:
                k += 1
                x = x + 0.5
            o[i, j] = x
        T.copy(o[0, :], O)


def _until(a: np.ndarray) -> np.ndarray:
    t, k = a[0].copy(), 0
    while k < 3 and abs(t[1]) < 4:
        k += 1
        t = t[::-1] * 2 + a[k]
    return t


@case("while-with-tiles", _until)
@T.prim_func
def while_with_tile(A: T.Tensor((4, 3), "float32"), O: T.Tensor((3,), "float32")):
    with T.Kernel(1, threads=64):
        t = T.alloc_fragment((3,), "float32")
        s = T.alloc_fragment((3,), "float32")
        k = T.alloc_var("int32", 0)
        T.copy(A[0, :], t)
        while k < 3 and T.abs(t[1]) < 4.0:
            k += 1
            T.copy(t, s)
            for i in T.Parallel(3):
                t[i] = s[2 - i] * 2.0 + A[k, i]
        T.copy(t, O)


def _sums_of_halves(a: np.ndarray) -> np.ndarray:
    return np.tile(1 + np.where(a > 0, a, 0).reshape(16, 2).sum(0), 16)


@case("constant-of-two-layouts", _sums_of_halves)
@T.prim_func
def atomics_of_some_threads(A: T.Tensor((32,), "float32"), O: T.Tensor((32,), "float32")):
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        x = A[tx]
        t = T.alloc_shared((2,), "float32")
        if tx < 2:
            t[tx] = 1
        T.sync_threads()
        if x > 0:
            T.atomic_add(t[tx % 2], x)
        T.sync_threads()
        O[tx] = t[tx % 2]


@case("constant-of-two-layouts", _sums_of_halves)
@T.prim_func
def integer_atomics_of_some_threads(A: T.Tensor((32,), "int32"), O: T.Tensor((32,), "int32")):
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        x = A[tx]
        t = T.alloc_shared((2,), "int32")
        if tx < 2:
            t[tx] = 1
        T.sync_threads()
        if x > 0:
            T.atomic_add(t[tx % 2], x)
        T.sync_threads()
        O[tx] = t[tx % 2]


@case("dead-while", lambda a: a * 2)
@T.prim_func
def while_never(A: T.Tensor((4, 6), "float32"), O: T.Tensor((4, 6), "float32")):
    with T.Kernel(1, threads=128):
        t = T.alloc_fragment((4, 6), "float32")
        s = T.alloc_fragment((4,), "float32")
        T.copy(A, t)
        k = T.alloc_var("int32", 3)
        while k * 2 < 5:
            k += 1
            for i, j in T.Parallel(4, 6):
                t[i, j] = A[i, (j + k) % 6]
            T.reduce_sum(t, s, dim=1)
            for i, j in T.Parallel(4, 6):
                t[i, j] = t[i, j] - s[i]
        for i, j in T.Parallel(4, 6):
            O[i, j] = t[i, j] * 2.0


# Carried values that begin alike


def _delayed(n: np.ndarray) -> np.ndarray:
    x, y, z = 5, 5, 5
    for k in range(abs(int(n[0])) + 3):
        x, y, z = k * 3, x, y
    return np.array([x, y, z])


@case("alike-carried", _delayed)
@T.prim_func
def delayed(N: T.Tensor((1,), "int32"), O: T.Tensor((3,), "int32")):
    with T.Kernel(1, threads=32):
        first = T.abs(N[0]) - T.abs(N[0]) + 5
        x = T.alloc_var("int32", first)
        y = T.alloc_var("int32", first)
        z = T.alloc_var("int32", first)
        for k in range(T.abs(N[0]) + 3):
            z = y
            y = x
            x = k * 3
        O[0] = x
        O[1] = y
        O[2] = z


def _delayed_tile(a: np.ndarray) -> np.ndarray:
    s, t = a[0].copy(), a[0].copy()
    for k in range(4):
        if a[k, 0] < 1:
            t = s
        s = a[k] * 2
    return np.concatenate([s, t])


@case("alike-carried", _delayed_tile)
@T.prim_func
def delayed_tile(A: T.Tensor((4, 8), "float8_e5m2"), O: T.Tensor((16,), "float8_e5m2")):
    with T.Kernel(1, threads=32):
        s = T.alloc_fragment((8,), "float8_e5m2")
        t = T.alloc_fragment((8,), "float8_e5m2")
        T.copy(A[0, :], s)
        T.copy(s, t)
        for k in range(4):
            if T.cast(A[k, 0], "float32") < 1.0:
                T.copy(s, t)
            for i in T.Parallel(8):
                s[i] = T.cast(A[k, i], "float32") * 2.0
        T.copy(s, O[0:8])
        T.copy(t, O[8:16])


def _delayed_bits(a: np.ndarray) -> np.ndarray:
    s = t = a[0]
    for _ in range(3):
        s, t = t + 1, s
    return np.array([s, t])


@case("alike-carried", _delayed_bits)
@T.prim_func
def delayed_bits(A: T.Tensor((1,), "int32"), O: T.Tensor((2,), "int32")):
    with T.Kernel(1, threads=32):
        s = T.alloc_var("int32", T.reinterpret(A[0], "int32"))  # the same bits of the same type: the same value
        t = T.alloc_var("int32", A[0])
        for _ in range(3):
            last = s
            s = t + 1
            t = last
        O[0] = s
        O[1] = t


def _delayed_flag(n: np.ndarray) -> np.ndarray:
    k, a, b = 0, n[0] > 9, n[0] > 9
    while k < abs(int(n[0])) + 2:
        k, a, b = k + 1, k % 3 != 1, a
    return np.array([k, a, b])


@case("alike-carried", _delayed_flag)
@T.prim_func
def delayed_flag(N: T.Tensor((1,), "int32"), O: T.Tensor((3,), "int32")):
    with T.Kernel(1, threads=32):
        first = N[0] > 9
        k = T.alloc_var("int32", 0)
        a = T.alloc_var("bool", first)
        b = T.alloc_var("bool", first)
        while k < T.abs(N[0]) + 2:
            b = a
            a = k % 3 != 1
            k += 1
        O[0] = k
        O[1] = a
        O[2] = b


# Scans


def _summed(rows: Any) -> Callable[[np.ndarray], np.ndarray]:
    """What becomes of an array when these rows of it are added up, each with those before."""

    def summed(a: np.ndarray) -> np.ndarray:
        out = a.copy()
        out[rows] = np.cumsum(out[rows], axis=0)
        return out

    return summed


@case("scan-beside-ones", _summed(np.s_[:, 1]))
@T.prim_func
def scan_column(A: T.Tensor((4, 16), "float32"), O: T.Tensor((4, 16), "float32")):
    with T.Kernel(1, threads=32):
        t = T.alloc_fragment((4, 16), "float32")
        T.copy(A, t)
        T.cumsum(t[0:4, 1:2], dim=0)
        T.copy(t, O)


@case("scan-beside-ones", _summed(np.s_[:, :4, 2]))
@T.prim_func
def scan_plane(A: T.Tensor((4, 4, 12), "float32"), O: T.Tensor((4, 4, 12), "float32")):
    with T.Kernel(1, threads=64):
        t = T.alloc_fragment((4, 4, 12), "float32")
        T.copy(A, t)
        T.cumsum(t[0:4, 0:4, 2:3], dim=0)
        T.copy(t, O)


@case("scan-beside-ones", _summed(np.s_[:, :4]))
@T.prim_func
def scan_corner(A: T.Tensor((16, 64), "float32"), O: T.Tensor((16, 64), "float32")):
    with T.Kernel(1, threads=64):
        t = T.alloc_fragment((16, 64), "float32")
        T.copy(A, t)
        T.cumsum(t[0:16, 0:4], dim=0)
        T.copy(t, O)


@case("scan-beside-ones", _summed(np.s_[:, 3:6]))
@T.prim_func
def scan_slice_by_one_warp(A: T.Tensor((5, 7), "int32"), O: T.Tensor((5, 7), "int32")):
    with T.Kernel(1, threads=32):
        t = T.alloc_shared((5, 7), "int32")
        T.copy(A, t)
        T.cumsum(t[:, 3:6], dim=0)
        T.copy(t, O)


def _scanned_row(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = a.astype(np.int8).astype(np.int64) @ b.astype(np.int8).astype(np.int64)
    out[0] = np.cumsum(out[0])
    return out


@case("scan-beside-ones", _scanned_row)
@T.prim_func
def scan_row_of_product(A: T.Tensor((32, 4), "int8"), B: T.Tensor((4, 4), "int8"), O: T.Tensor((32, 4), "int32")):
    with T.Kernel(1, threads=32):
        a = T.alloc_shared((32, 4), "int8")
        b = T.alloc_shared((4, 4), "int8")
        t = T.alloc_fragment((32, 4), "int32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, t, clear_accum=True)
        T.cumsum(t[0:1, 0:4], t[0:1, 0:4], dim=1)
        T.copy(t, O)


@case("reversed-scan", lambda a: np.cumsum(a[::-1], axis=0)[::-1])
@T.prim_func
def scan_rows_reversed(A: T.Tensor((13, 16), "float32"), O: T.Tensor((13, 16), "float32")):
    with T.Kernel(1, threads=32):
        t = T.alloc_fragment((13, 16), "float32")
        T.copy(A, t)
        T.cumsum(t, dim=0, reverse=True)
        T.copy(t, O)


@case("reversed-scan", lambda a: np.cumsum(a[:, :, ::-1], axis=2)[:, :, ::-1])
@T.prim_func
def scan_reversed_in_loop(A: T.Tensor((3, 2, 9), "int32"), O: T.Tensor((3, 2, 9), "int32")):
    with T.Kernel(1, threads=64):
        t = T.alloc_fragment((2, 9), "int32")
        for k in range(3):
            T.copy(A[k, 0, 0], t)
            T.cumsum(t, dim=1, reverse=True)
            T.copy(t, O[k, 0, 0])


# Reductions behind reshapes


@case("scattered-reduction", lambda a: a.T.reshape(2, 128).sum(1))
@T.prim_func
def reduce_reshaped(A: T.Tensor((16, 16), "float32"), O: T.Tensor((2,), "float32")):
    with T.Kernel(1, threads=32):
        t = T.alloc_fragment((16, 16), "float32")
        s = T.alloc_fragment((2,), "float32")
        for i, j in T.Parallel(16, 16):
            t[i, j] = A[j, i]
        T.reduce_sum(T.reshape(t, (2, 128)), s, dim=1)
        T.copy(s, O)


@case("scattered-reduction", lambda a: a[:, 1, :2].reshape(4, 4).max(0))
@T.prim_func
def reduce_part(A: T.Tensor((8, 2, 8), "int32"), O: T.Tensor((4,), "int32")):
    with T.Kernel(1, threads=128):
        t = T.alloc_fragment((8, 2, 8), "int32")
        p = T.alloc_fragment((8, 2), "int32")
        m = T.alloc_fragment((4,), "int32")
        T.copy(A, t)
        for i, j in T.Parallel(8, 2):
            p[i, j] = t[i, 1, j]
        T.reduce_max(T.reshape(p, (4, 4)), m, dim=0)
        T.copy(m, O)
