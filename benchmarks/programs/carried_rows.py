"""Gradients of softmax and RMS norm of the widest rows, which several blocks hold in registers: read once.

As in wide_rows.py, but the pieces that wait for their words are carried to the next turn: of 262144 columns that is
faster than rings of shared memory. RMS norm's looks for the words before it reduces, softmax's waits for them behind
that. The first turn of RMS norm's has a branch of its own: Triton moves branches of loops that load ahead behind
everything else, so that a look of its own would come after the reductions.
"""

from __future__ import annotations

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gradients import column_sums
from benchmarks.programs.wide_rows import hand_in, is_missing, look, start, walk


@T.macro
def settle(words, row, parts, rows, found, high, low):
    """The numbers of all parts of some rows, once they are there."""
    missing = T.alloc_var("int32")
    missing = is_missing(found, parts, rows)
    while missing > 0:
        look(words, row, parts, rows, found)
        missing = is_missing(found, parts, rows)
    for i, p in T.Parallel(rows, parts):
        low[i, p] = T.reinterpret(T.cast(found[i, p] & 0xFFFFFFFF, "uint32"), "float32")
        high[i, p] = T.reinterpret(T.cast(found[i, p] >> 32, "uint32"), "float32")


def whole_groups(blocks, parts):
    """As many blocks, but for those that would be too few for a row."""
    return max(parts, blocks // parts * parts)


@T.macro
def shares_of(words, first, parts):
    """What the parts of a row have handed in, once it is there."""
    found = T.alloc_fragment((parts,), "uint64")
    empty = T.alloc_fragment((parts,), "int32")
    shares = T.alloc_fragment((parts,), "float32")
    missing = T.alloc_var("int32", 1)
    T.clear(found)
    while missing > 0:
        for p in T.Parallel(parts):
            found[p] = T.atomic_load(words[first + p], memory_order="relaxed")
        for p in T.Parallel(parts):
            empty[p] = T.if_then_else(found[p] == 0, 1, 0)
        T.reduce_max(empty, missing, dim=0)
    for p in T.Parallel(parts):
        shares[p] = T.reinterpret(T.cast(found[p] >> 32, "uint32"), "float32")
    return shares


@tiledsl.jit(out_idx=[4, 5])
def rms_norm_gradient(M, N, block_M=4, block_N=2048, blocks=264, num_stages=2, sum_N=64, threads=256, dtype="bfloat16"):
    """With Y = X * r * weight and r = 1 / sqrt(mean(X^2) + eps): dX = r * (h - X * r^2 * mean(h * X)), h = dY * weight;
    dweight = sums of dY * X * r over the rows."""
    parts, groups, turns, step, _ = walk(M, N, block_M, block_N, blocks, 1)

    @T.macro
    def share(x, dy, w, scale, out, ones, dw, total, words, row, part):
        for i, j in T.Parallel(block_M, block_N):
            out[i, j] = T.cast(x[i, j], "float32") * T.cast(dy[i, j], "float32") * scale[i]
        T.reduce_sum(out, dw, dim=0, clear=False)
        for i, j in T.Parallel(block_M, block_N):
            out[i, j] *= T.cast(w[j], "float32")
        T.reduce_sum(out, total, dim=1)
        hand_in(words, row, part, parts, block_M, total, ones)

    @T.prim_func
    def rms_norm_gradient(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        r: T.Tensor((M,), "float32"),
        dY: T.Tensor((M, N), dtype),
        dX: T.Tensor((M, N), dtype),
        dweight: T.Tensor((N,), dtype),
    ):
        partial = T.alloc_global((groups, N), "float32")
        words = start((turns + 1) * step * parts, 0)
        with T.Kernel(parts, groups, threads=threads) as (part, group):
            x = T.alloc_fragment((block_M, block_N), dtype)
            dy = T.alloc_fragment((block_M, block_N), dtype)
            held_x = T.alloc_fragment((block_M, block_N), dtype)
            held_dy = T.alloc_fragment((block_M, block_N), dtype)
            w = T.alloc_fragment((block_N,), dtype)
            out = T.alloc_fragment((block_M, block_N), "float32")
            dw = T.alloc_fragment((block_N,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            ones = T.alloc_fragment((block_M,), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            held_scale = T.alloc_fragment((block_M,), "float32")
            found = T.alloc_fragment((block_M, parts), "uint64")
            shares = T.alloc_fragment((block_M, parts), "float32")
            marks = T.alloc_fragment((block_M, parts), "float32")

            T.clear(held_x)
            T.clear(held_dy)
            T.clear(held_scale)
            T.clear(dw)
            T.fill(ones, 1.0)
            T.copy(weight[part * block_N], w)
            for turn in T.Pipelined(turns + 1, num_stages=num_stages):
                row = (turn * groups + group) * block_M
                T.copy(X[row, part * block_N], x)
                T.copy(dY[row, part * block_N], dy)
                T.copy(r[row], scale)
                if turn == 0:
                    share(x, dy, w, scale, out, ones, dw, total, words, row, part)
                else:
                    look(words, row - step, parts, block_M, found)
                    share(x, dy, w, scale, out, ones, dw, total, words, row, part)
                    settle(words, row - step, parts, block_M, found, shares, marks)
                    T.reduce_sum(shares, total, dim=1)
                    for i in T.Parallel(block_M):
                        total[i] *= held_scale[i] / N
                    for i, j in T.Parallel(block_M, block_N):
                        out[i, j] = held_scale[i] * (
                            T.cast(held_dy[i, j], "float32") * T.cast(w[j], "float32")
                            - T.cast(held_x[i, j], "float32") * total[i]
                        )
                    T.copy(out, dX[row - step, part * block_N])
                T.copy(x, held_x)
                T.copy(dy, held_dy)
                T.copy(scale, held_scale)
            T.copy(dw, partial[group, part * block_N])
        column_sums(partial, dweight, groups, N, sum_N)

    return rms_norm_gradient


@tiledsl.jit(out_idx=[-1])
def softmax_gradient(M, N, block_N=8192, blocks=528, num_stages=3, threads=256, dtype="bfloat16"):
    """With Y = softmax(X): dX = Y * (dY - sum(Y * dY))."""
    parts = -(-N // block_N)
    blocks = whole_groups(blocks, parts)
    turns = -(-M * parts // blocks)

    @T.prim_func
    def softmax_gradient(Y: T.Tensor((M, N), dtype), dY: T.Tensor((M, N), dtype), dX: T.Tensor((M, N), dtype)):
        words = start(turns * blocks, 0)
        with T.Kernel(blocks, threads=threads) as block:
            y = T.alloc_fragment((block_N,), dtype)
            dy = T.alloc_fragment((block_N,), dtype)
            held_y = T.alloc_fragment((block_N,), dtype)
            held_dy = T.alloc_fragment((block_N,), dtype)
            x = T.alloc_fragment((block_N,), "float32")
            total = T.alloc_var("float32")

            T.clear(held_y)
            T.clear(held_dy)
            for turn in T.Pipelined(turns + 1, num_stages=num_stages):
                task = turn * blocks + block
                T.copy(Y[task // parts, task % parts * block_N], y)
                T.copy(dY[task // parts, task % parts * block_N], dy)
                for j in T.Parallel(block_N):
                    x[j] = T.cast(y[j], "float32") * T.cast(dy[j], "float32")
                T.reduce_sum(x, total, dim=0)
                if turn < turns:
                    upper = T.cast(T.reinterpret(total, "uint32"), "uint64") << T.cast(32, "uint64")
                    T.atomic_store(words[task], upper | T.cast(1, "uint64"), memory_order="relaxed")
                if turn > 0:
                    last = task - blocks
                    row = T.min(last // parts, M - 1)
                    T.reduce_sum(shares_of(words, row * parts, parts), total, dim=0)
                    for j in T.Parallel(block_N):
                        x[j] = T.cast(held_y[j], "float32") * (T.cast(held_dy[j], "float32") - total)
                    T.copy(x, dX[last // parts, last % parts * block_N])
                T.copy(y, held_y)
                T.copy(dy, held_dy)

    return softmax_gradient
