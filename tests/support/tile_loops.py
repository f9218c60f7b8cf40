"""Loops of tiles of several kinds, which are scheduled for Hopper; each has NumPy's results beside it."""

from __future__ import annotations

from typing import Any

import tiledsl.language as T


def summed(rows: int = 128, steps: int = 4, columns: int = 64, blocks: int = 2, stages: int = 2) -> Any:
    """Two products into one sum, and a third one into another; both begin with a tile that is loaded."""

    @T.prim_func
    def summed(
        A: T.Tensor((blocks * rows, 64 * steps), "float16"),
        B: T.Tensor((columns, 64 * steps), "float16"),
        X: T.Tensor((blocks * rows, 32 * steps), "float16"),
        Y: T.Tensor((columns, 32 * steps), "float16"),
        D: T.Tensor((blocks * rows, columns), "float32"),
        C: T.Tensor((blocks * rows, columns), "float32"),
        E: T.Tensor((blocks * rows, columns), "float32"),
    ):
        with T.Kernel(blocks, threads=rows * 2) as bx:
            a, b = T.alloc_shared((rows, 64), "float16"), T.alloc_shared((columns, 64), "float16")
            x, y = T.alloc_shared((rows, 32), "float16"), T.alloc_shared((columns, 32), "float16")
            total, other = T.alloc_fragment((rows, columns), "float32"), T.alloc_fragment((rows, columns), "float32")
            T.copy(D[bx * rows, 0], total)
            T.copy(D[bx * rows, 0], other)
            for k in T.Pipelined(steps, num_stages=stages):
                T.copy(A[bx * rows, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, total, transpose_B=True)
                T.copy(X[bx * rows, k * 32], x)
                T.copy(Y[0, k * 32], y)
                T.gemm(x, y, total, transpose_B=True)
                T.gemm(x, y, other, transpose_B=True)
            T.copy(total, C[bx * rows, 0])
            T.copy(other, E[bx * rows, 0])

    return summed


def scan(rows: int = 128, steps: int = 4, width: int = 64, blocks: int = 2, stages: int = 2) -> Any:
    """A chunk scan: scores that are decayed are multiplied by values, and a state's part is added to the same sum."""

    @T.prim_func
    def scan(
        Q: T.Tensor((blocks * rows, 64), "float16"),
        K: T.Tensor((64 * steps, 64), "float16"),
        V: T.Tensor((64 * steps, width), "float16"),
        S: T.Tensor((64 * steps, width), "float16"),
        O: T.Tensor((blocks * rows, width), "float16"),
    ):
        with T.Kernel(blocks, threads=rows * 2) as bx:
            q, k = T.alloc_shared((rows, 64), "float16"), T.alloc_shared((64, 64), "float16")
            v, state = T.alloc_shared((64, width), "float16"), T.alloc_shared((64, width), "float16")
            s, acc = T.alloc_fragment((rows, 64), "float32"), T.alloc_fragment((rows, width), "float32")
            weights = T.alloc_fragment((rows, 64), "float16")
            T.copy(Q[bx * rows, 0], q)
            T.clear(acc)
            for t in T.Pipelined(steps, num_stages=stages):
                T.copy(K[t * 64, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(rows, 64):
                    weights[i, j] = T.cast(T.if_then_else(i >= j, s[i, j] * 0.125, 0.0), "float16")
                T.copy(V[t * 64, 0], v)
                T.gemm(weights, v, acc)
                T.copy(S[t * 64, 0], state)
                T.gemm(q, state, acc)
            T.copy(acc, O[bx * rows, 0])

    return scan


def grouped(
    rows: int = 128, groups: int = 3, steps: int = 2, columns: int = 64, blocks: int = 2, stages: int = 2
) -> Any:
    """Products of groups of steps, each scaled and added: a loop inside of a loop. The sum is added in memory."""

    @T.prim_func
    def grouped(
        A: T.Tensor((blocks * rows, 64 * groups * steps), "float16"),
        B: T.Tensor((columns, 64 * groups * steps), "float16"),
        scale: T.Tensor((groups,), "float32"),
        C: T.Tensor((blocks // 2 * rows, columns), "float32"),
    ):
        with T.Kernel(blocks, threads=rows * 2) as bx:
            a, b = T.alloc_shared((rows, 64), "float16"), T.alloc_shared((columns, 64), "float16")
            part, total = T.alloc_fragment((rows, columns), "float32"), T.alloc_fragment((rows, columns), "float32")
            T.clear(total)
            for g in T.serial(groups):
                T.clear(part)
                for k in T.Pipelined(steps, num_stages=stages):
                    T.copy(A[bx * rows, (g * steps + k) * 64], a)
                    T.copy(B[0, (g * steps + k) * 64], b)
                    T.gemm(a, b, part, transpose_B=True)
                for i, j in T.Parallel(rows, columns):
                    total[i, j] += part[i, j] * scale[g]
            T.atomic_add(C[bx // 2 * rows : bx // 2 * rows + rows, 0:columns], total)

    return grouped


def carried(rows: int = 64, steps: int = 4, width: int = 64, blocks: int = 2, stages: int = 2) -> Any:
    """A state that is an operand of the turn's first products, in a delta rule of transposed tiles: the values are a
    left operand that is transposed, columns are multiplied by a row, and each turn stores its results transposed."""

    @T.prim_func
    def carried(
        K: T.Tensor((64 * steps, width), "float16"),
        V: T.Tensor((64 * steps, blocks * rows), "float16"),
        W: T.Tensor((64 * steps, 64), "float16"),
        G: T.Tensor((steps, 64), "float32"),
        O: T.Tensor((64 * steps, blocks * rows), "float16"),
    ):
        with T.Kernel(blocks, threads=rows * 2) as bx:
            k, v = T.alloc_shared((64, width), "float16"), T.alloc_shared((64, rows), "float16")
            w, gate = T.alloc_shared((64, 64), "float16"), T.alloc_fragment((64,), "float32")
            state, state_half = T.alloc_fragment((rows, width), "float32"), T.alloc_fragment((rows, width), "float16")
            known, known_half = T.alloc_fragment((rows, 64), "float32"), T.alloc_fragment((rows, 64), "float16")
            update, update_half = T.alloc_fragment((rows, 64), "float32"), T.alloc_fragment((rows, 64), "float16")
            T.clear(state)
            for t in T.Pipelined(steps, num_stages=stages):
                T.copy(K[t * 64, 0], k)
                T.copy(V[t * 64, bx * rows], v)
                T.copy(W[t * 64, 0], w)
                T.copy(G[t, 0:64], gate)
                T.copy(state, state_half)
                T.gemm(state_half, k, known, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(rows, 64):
                    known_half[i, j] = -known[i, j] * gate[j]
                T.gemm(known_half, w, update, transpose_B=True, clear_accum=True)
                T.gemm(v, w, update, transpose_A=True, transpose_B=True)
                T.copy(update, update_half)
                for i, j in T.Parallel(rows, width):
                    state[i, j] *= G[t, 63]
                T.gemm(update_half, k, state)
                for i, j in T.Parallel(rows, 64):
                    O[t * 64 + j, bx * rows + i] = update[i, j]

    return carried


def decayed(rows: int = 64, steps: int = 4, width: int = 64, blocks: int = 2, stages: int = 2) -> Any:
    """A state whose columns decay by a row: what it belongs to is read by the turn's last product alone."""

    @T.prim_func
    def decayed(
        Q: T.Tensor((64 * steps, width), "float16"),
        K: T.Tensor((64 * steps, width), "float16"),
        V: T.Tensor((64 * steps, blocks * rows), "float16"),
        D: T.Tensor((steps, width), "float32"),
        O: T.Tensor((64 * steps, blocks * rows), "float16"),
    ):
        with T.Kernel(blocks, threads=rows * 2) as bx:
            q, k = T.alloc_shared((64, width), "float16"), T.alloc_shared((64, width), "float16")
            v, decay = T.alloc_shared((64, rows), "float16"), T.alloc_fragment((width,), "float32")
            state, state_half = T.alloc_fragment((rows, width), "float32"), T.alloc_fragment((rows, width), "float16")
            out = T.alloc_fragment((rows, 64), "float32")
            T.clear(state)
            for t in T.Pipelined(steps, num_stages=stages):
                T.copy(Q[t * 64, 0], q)
                T.copy(K[t * 64, 0], k)
                T.copy(V[t * 64, bx * rows], v)
                T.copy(D[t, 0:width], decay)
                T.copy(state, state_half)
                T.gemm(state_half, q, out, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(rows, width):
                    state[i, j] *= decay[j]
                T.gemm(v, k, state, transpose_A=True)
                for i, j in T.Parallel(rows, 64):
                    O[t * 64 + j, bx * rows + i] = out[i, j]

    return decayed
