"""Programs from which versions of ptxas make wrong machine code, in the forms that they would take by themselves."""

from __future__ import annotations

import numpy as np

import tiledsl.language as T
from tests.support.hazard_case import case


def _differences(a: np.ndarray) -> np.ndarray:
    places = np.arange(6)[:, None] // 3 - (np.arange(3)[None, :] & 1) * 24
    return np.where(places >= 0, a[places], 0)


@case("carry-of-mulhi", _differences, lower_to_triton__index_bits=64)
@T.prim_func
def masked_element(A: T.Tensor((24,), "float32"), O: T.Tensor((6, 3), "float32")):
    with T.Kernel(6, 3, threads=32) as (bx, by):
        O[bx, by] = A[bx // 3 - (by & 1) * 24]


@case("float8-pair-twice", lambda a: np.broadcast_to(a[:, None, None] / 2, (2, 8, 8)))
@T.prim_func
def float8_repeated(A: T.Tensor((2,), "float32"), O: T.Tensor((2, 8, 8), "float8_e4m3fn")):
    with T.Kernel(1, threads=32):
        t = T.alloc_fragment((2, 8, 8), "float8_e4m3fn")
        for i, j, k in T.Parallel(2, 8, 8):
            t[i, j, k] = A[i] / 2.0
        T.copy(t, O)


@case("add-of-16-bit-pairs", lambda a: a.astype(np.int16) + 4)
@T.prim_func
def add_to_int16(A: T.Tensor((64, 16), "int16"), O: T.Tensor((64, 16), "int16")):
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(64, 16):
            O[i, j] = A[i, j] + T.int16(4)


def _first_is_set(a: np.ndarray, n: np.ndarray) -> np.ndarray:
    return np.where(np.arange(8) == 0, 1, a != 0)


@case("unused-half-of-predicates", _first_is_set)
@T.prim_func
def set_for_sure(A: T.Tensor((8,), "int32"), N: T.Tensor((1,), "int32"), O: T.Tensor((8,), "bool")):
    with T.Kernel(1, threads=32):
        t = T.alloc_shared((8,), "bool")
        T.copy(A, t)
        for i in T.Parallel(1):
            T.atomic_or(t[i], T.cast(N[0] % 17, "float32") > -1.5)  # LLVM finds that this is true, and t[i] not needed
        T.copy(t, O)


_INT_MAX = 2**31 - 1


def _wrapped(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    start = np.where(np.arange(16) % 2 == 0, _INT_MAX, -_INT_MAX - 1)
    total = start + a.astype(np.int64) @ b.astype(np.int64)
    return (total + 2**31) % 2**32 - 2**31


@case("saturating-product", _wrapped)
@T.prim_func
def product_at_the_ends_of_int32(
    A: T.Tensor((16, 32), "int8"), B: T.Tensor((32, 16), "int8"), O: T.Tensor((16, 16), "int32")
):
    with T.Kernel(1, threads=32):
        a = T.alloc_shared((16, 32), "int8")
        b = T.alloc_shared((32, 16), "int8")
        c = T.alloc_fragment((16, 16), "int32")
        T.copy(A, a)
        T.copy(B, b)
        for i, j in T.Parallel(16, 16):
            c[i, j] = T.if_then_else(j % 2 == 0, 2147483647, -2147483648)
        T.gemm(a, b, c)
        T.copy(c, O)


@case("maximum-of-negated", lambda a: (-a.astype(np.int32)).max(1))
@T.prim_func
def maximum_of_negated(A: T.Tensor((32, 4), "int32"), O: T.Tensor((32,), "int32")):
    with T.Kernel(1, threads=32):
        t = T.alloc_fragment((32, 4), "int32")
        m = T.alloc_fragment((32,), "int32")
        for i, j in T.Parallel(32, 4):
            t[i, j] = 0 - A[i, j]
        T.reduce_max(t, m, dim=1)
        T.copy(m, O)


def _taken_from_few(a: np.ndarray) -> np.ndarray:
    out = np.zeros((2, 8), np.int64)
    out[:, 0] = a[0]
    return (out - np.clip(a[0], 1, 50)).max(1).clip(0)


@case("maximum-of-negated", _taken_from_few)
@T.prim_func
def maximum_of_taken_from_zero(A: T.Tensor((1,), "int32"), O: T.Tensor((2,), "int32")):
    with T.Kernel(1, threads=128):
        t = T.alloc_fragment((2, 8), "int32")
        m = T.alloc_fragment((2,), "int32")
        for i, j in T.Parallel(2, 8):
            t[i, j] = A[j] - T.clamp(A[T.min(i * 2, 0)], 1, 50)
        T.fill(m, 0)
        T.reduce_max(t, m, dim=1, clear=False)
        T.copy(m, O)


@case("constant-from-float8", lambda a, b: a[:3].astype(np.float32) @ b[:1, :3].astype(np.float32).T)
@T.prim_func
def product_with_zeros(
    A: T.Tensor((6, 3), "float8_e5m2"), B: T.Tensor((9, 17), "float8_e5m2"), O: T.Tensor((3, 1), "float32")
):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((3, 8), "float8_e5m2")
        b = T.alloc_shared((1, 8), "float8_e5m2")
        t = T.alloc_fragment((3, 1), "float32")
        T.copy(A[0, 0], a)
        T.copy(B[0, 0], b)
        T.gemm(a, b, t, transpose_B=True, clear_accum=True)
        T.copy(t, O)


# Tiles that an asynchronous product reads, and from which something else is computed


def _products_beside_sums(a: np.ndarray, h: np.ndarray) -> np.ndarray:
    products = np.einsum("cik,cjk->cij", a.reshape(-1, 64, 256), h.reshape(-1, 128, 256))
    return (products + h.reshape(-1, 1, 128, 256).sum(3)).reshape(-1, 128)


@case("copy-under-product", _products_beside_sums)
@T.prim_func
def product_beside_sums(
    A: T.Tensor((4096, 256), "float16"), H: T.Tensor((8192, 256), "float16"), O: T.Tensor((4096, 128), "float32")
):
    with T.Kernel(64, threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        h = T.alloc_shared((128, 64), "float16")
        values = T.alloc_fragment((128, 64), "float32")
        part = T.alloc_fragment((128,), "float32")
        sums = T.alloc_fragment((128,), "float32")
        t = T.alloc_fragment((64, 128), "float32")
        T.clear(t)
        T.clear(sums)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[bx * 64, k * 64], a)
            T.copy(H[bx * 128, k * 64], h)
            for i, j in T.Parallel(128, 64):
                values[i, j] = h[i, j]
            T.reduce_sum(values, part, dim=1)
            for i in T.Parallel(128):
                sums[i] += part[i]
            T.gemm(a, h, t, transpose_B=True)
        for i, j in T.Parallel(64, 128):
            t[i, j] += sums[j]
        T.copy(t, O[bx * 64, 0])


def _scores_beside_products(a: np.ndarray, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    out = np.zeros((80, 128))
    out[:16] = k @ a.T
    for at in range(0, 224, 32):
        turn = slice(at, at + 32)
        out[16:, :32] += q[:, turn] @ k[:, turn].T / 8 @ k[:, turn]
    return out


@case("lost-product", _scores_beside_products)
@T.prim_func
def scores_beside_products(
    A: T.Tensor((128, 224), "float16"), Q: T.Tensor((64, 224), "float16"),
    K: T.Tensor((16, 224), "float16"), O: T.Tensor((80, 128), "float32"),
):  # fmt: skip
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((128, 32), "float16")
        q = T.alloc_shared((64, 32), "float16")
        k = T.alloc_shared((16, 32), "float16")
        products = T.alloc_fragment((16, 128), "float32")
        scores = T.alloc_fragment((64, 16), "float32")
        weights = T.alloc_fragment((64, 16), "float16")
        sums = T.alloc_fragment((64, 32), "float32")
        T.clear(products)
        T.clear(sums)
        for turn in T.Pipelined(7, num_stages=2):
            T.copy(A[0, turn * 32], a)
            T.copy(Q[0, turn * 32], q)
            T.copy(K[0, turn * 32], k)
            T.gemm(k, a, products, transpose_B=True)
            T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 16):
                weights[i, j] = scores[i, j] * 0.125
            T.gemm(weights, k, sums)
        T.copy(products, O[0:16, 0:128])
        T.copy(sums, O[16:80, 0:32])


def _attention_with_a_state(q: np.ndarray, k: np.ndarray, v: np.ndarray, _: np.ndarray) -> np.ndarray:
    out, state = [], np.zeros((128, 32))
    for at in range(0, 232, 64):
        turn = slice(at, at + 64)
        weights = np.tril(q[turn] @ k[turn].T).astype(np.float16).astype(float)
        out.append(q[turn] @ state.astype(np.float16).astype(float) + weights @ v[turn])
        state += k[turn].T @ v[turn]
    return np.concatenate(out)


@case("halves-of-descriptor", _attention_with_a_state)
@T.prim_func
def attention_with_a_state(
    Q: T.Tensor((232, 128), "float16"), K: T.Tensor((232, 128), "float16"), V: T.Tensor((232, 32), "float16"),
    G: T.Tensor((232,), "float32"), O: T.Tensor((232, 32), "float32"),
):  # fmt: skip
    with T.Kernel(1, threads=128):
        q = T.alloc_shared((64, 128), "float16")
        k = T.alloc_shared((64, 128), "float16")
        v = T.alloc_shared((64, 32), "float16")
        kept = T.alloc_shared((64, 32), "float16")
        gate = T.alloc_fragment((64,), "float32")
        end = T.alloc_fragment((1,), "float32")
        scores = T.alloc_fragment((64, 64), "float32")
        weights = T.alloc_fragment((64, 64), "float16")
        state = T.alloc_fragment((128, 32), "float32")
        state_half = T.alloc_shared((128, 32), "float16")
        out = T.alloc_fragment((64, 32), "float32")
        T.clear(state)
        for c in T.Pipelined(4, num_stages=2):
            T.copy(Q[c * 64, 0], q)
            T.copy(K[c * 64, 0], k)
            T.copy(V[c * 64, 0], v)
            for i in T.Parallel(64):
                gate[i] = T.min(T.abs(G[c * 64 + i]), 0.0)  # 0
            T.reduce_sum(gate, end)
            T.cumsum(gate)
            T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                weights[i, j] = T.if_then_else(i >= j, scores[i, j] * T.exp2(gate[i] - gate[j]), 0.0)
            T.copy(state, state_half)
            T.gemm(q, state_half, out, clear_accum=True)
            for i, j in T.Parallel(64, 32):
                out[i, j] *= T.exp2(gate[i])
            T.gemm(weights, v, out)
            for i, j in T.Parallel(64, 32):
                kept[i, j] = v[i, j] * T.exp2(end[0] - gate[i])
            for i, j in T.Parallel(128, 32):
                state[i, j] *= T.exp2(end[0])
            T.gemm(k, kept, state, transpose_A=True)
            T.copy(out, O[c * 64, 0])
