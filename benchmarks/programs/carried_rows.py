"""Norms and their gradients of the widest rows, which several blocks hold in registers: read once.

`blocks` blocks, as many as run at once, are groups with one block for each piece of a row; a group walks over the rows,
block_M at a time. In each turn a block reduces the pieces that it has loaded and hands its part in: of each row one
word of a workspace with two numbers, never all bits 0, which is what says that nothing is there yet. Then it finishes
the pieces that it holds since the turn before. It looks for the words of these before it reduces: the others of its
group have had a turn's time, and what looking takes passes meanwhile; only what is missing then is waited for. What is
needed next is on its way, into registers where a program reads one tensor, else into shared memory (num_stages).

Rows of 262144 columns have too many words for pieces as narrow as those of wide_rows.py, which are faster below.

A block waits only for those of its group, which follow each other: blocks start in the order of their index, so that
these run, or start next. The first turn has a branch of its own: Triton moves branches of loops that load ahead behind
everything else, so that a look of its own would come after the reductions.
"""

from __future__ import annotations

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gradients import column_sums, column_sums_of_two
from benchmarks.programs.shared_rows import clear_counts
from benchmarks.programs.wide_rows import hand_in, is_missing, look, walk


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


@tiledsl.jit(out_idx=[-1])
def rms_norm(M, N, block_M=1, block_N=4096, blocks=528, eps=1e-6, threads=256, dtype="bfloat16"):
    """Y[M, N] = X / sqrt(mean(X^2) + eps) * weight[N]."""
    parts, groups, turns = walk(M, N, block_M, block_N, blocks)
    step = groups * block_M

    @T.prim_func
    def rms_norm(X: T.Tensor((M, N), dtype), weight: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        words = T.alloc_global((turns * step * parts,), "uint64")
        clear_counts(words, turns * step * parts)
        with T.Kernel(parts, groups, threads=threads) as (part, group):
            ahead = T.alloc_fragment((block_M, block_N), dtype)
            new = T.alloc_fragment((block_M, block_N), dtype)
            held = T.alloc_fragment((block_M, block_N), dtype)
            w = T.alloc_fragment((block_N,), dtype)
            x = T.alloc_fragment((block_M, block_N), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            ones = T.alloc_fragment((block_M,), "float32")
            found = T.alloc_fragment((block_M, parts), "uint64")
            shares = T.alloc_fragment((block_M, parts), "float32")
            marks = T.alloc_fragment((block_M, parts), "float32")

            T.clear(held)
            T.clear(found)
            T.fill(ones, 1.0)
            T.copy(weight[part * block_N], w)
            T.copy(X[group * block_M, part * block_N], new)
            for turn in T.serial(turns + 1):
                row = (turn * groups + group) * block_M
                if turn > 0:
                    look(words, row - step, parts, block_M, found)
                T.copy(X[row + step, part * block_N], ahead)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.cast(new[i, j], "float32") * T.cast(new[i, j], "float32")
                T.reduce_sum(x, total, dim=1)
                if turn < turns:
                    hand_in(words, row, part, parts, block_M, total, ones)
                if turn > 0:
                    settle(words, row - step, parts, block_M, found, shares, marks)
                    T.reduce_sum(shares, total, dim=1)
                    for i in T.Parallel(block_M):
                        total[i] = T.rsqrt(total[i] / N + eps)
                    for i, j in T.Parallel(block_M, block_N):
                        x[i, j] = T.cast(held[i, j], "float32") * total[i] * T.cast(w[j], "float32")
                    T.copy(x, Y[row - step, part * block_N])
                T.copy(new, held)
                T.copy(ahead, new)

    return rms_norm


@tiledsl.jit(out_idx=[-1])
def layer_norm(M, N, block_M=1, block_N=4096, blocks=528, eps=1e-5, threads=256, dtype="bfloat16"):
    """Y[M, N] = (X - mean) / sqrt(variance + eps) * weight[N] + bias[N].

    The pieces' means and squared differences from them are combined as Chan, Golub and LeVeque do (1979): no E[x^2].
    Weight and bias come from the first-level cache in each turn: registers are short.
    """
    parts, groups, turns = walk(M, N, block_M, block_N, blocks)
    step = groups * block_M

    @T.prim_func
    def layer_norm(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        bias: T.Tensor((N,), dtype),
        Y: T.Tensor((M, N), dtype),
    ):
        words = T.alloc_global((turns * step * parts,), "uint64")
        clear_counts(words, turns * step * parts)
        with T.Kernel(parts, groups, threads=threads) as (part, group):
            ahead = T.alloc_fragment((block_M, block_N), dtype)
            new = T.alloc_fragment((block_M, block_N), dtype)
            held = T.alloc_fragment((block_M, block_N), dtype)
            w = T.alloc_fragment((block_N,), dtype)
            b = T.alloc_fragment((block_N,), dtype)
            x = T.alloc_fragment((block_M, block_N), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            spread = T.alloc_fragment((block_M,), "float32")
            found = T.alloc_fragment((block_M, parts), "uint64")
            sums = T.alloc_fragment((block_M, parts), "float32")
            squares = T.alloc_fragment((block_M, parts), "float32")

            T.clear(held)
            T.clear(found)
            T.copy(X[group * block_M, part * block_N], new)
            for turn in T.serial(turns + 1):
                row = (turn * groups + group) * block_M
                if turn > 0:
                    look(words, row - step, parts, block_M, found)
                T.copy(X[row + step, part * block_N], ahead)
                T.copy(new, x)
                T.reduce_sum(x, total, dim=1)
                here = 1 / T.cast(T.min(block_N, N - part * block_N), "float32")
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.if_then_else(part * block_N + j < N, x[i, j] - total[i] * here, 0.0)
                    x[i, j] *= x[i, j]
                T.reduce_sum(x, spread, dim=1)
                for i in T.Parallel(block_M):
                    spread[i] = T.max(spread[i], 1e-30)
                if turn < turns:
                    hand_in(words, row, part, parts, block_M, total, spread)
                if turn > 0:
                    T.copy(weight[part * block_N], w)
                    T.copy(bias[part * block_N], b)
                    settle(words, row - step, parts, block_M, found, sums, squares)
                    T.reduce_sum(sums, total, dim=1)
                    for i in T.Parallel(block_M):
                        total[i] /= N
                    for i, p in T.Parallel(block_M, parts):
                        count = T.cast(T.min(block_N, N - p * block_N), "float32")
                        off = sums[i, p] / count - total[i]
                        squares[i, p] += off * off * count
                    T.reduce_sum(squares, spread, dim=1)
                    for i in T.Parallel(block_M):
                        spread[i] = T.rsqrt(spread[i] / N + eps)
                    for i, j in T.Parallel(block_M, block_N):
                        x[i, j] = (T.cast(held[i, j], "float32") - total[i]) * spread[i] * w[j] + b[j]
                    T.copy(x, Y[row - step, part * block_N])
                T.copy(new, held)
                T.copy(ahead, new)

    return layer_norm


@tiledsl.jit(out_idx=[4, 5])
def rms_norm_gradient(M, N, block_M=4, block_N=2048, blocks=264, num_stages=2, sum_N=64, threads=256, dtype="bfloat16"):
    """With Y = X * r * weight and r = 1 / sqrt(mean(X^2) + eps): dX = r * (h - X * r^2 * mean(h * X)), h = dY * weight;
    dweight = sums of dY * X * r over the rows."""
    parts, groups, turns = walk(M, N, block_M, block_N, blocks)
    step = groups * block_M

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
        words = T.alloc_global(((turns + 1) * step * parts,), "uint64")
        partial = T.alloc_global((groups, N), "float32")
        clear_counts(words, (turns + 1) * step * parts)
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


@tiledsl.jit(out_idx=[5, 6, 7])
def layer_norm_gradient(
    M, N, block_M=4, block_N=2048, blocks=264, num_stages=2, sum_N=64, threads=256, dtype="bfloat16"
):
    """With x = (X - mean) * r and Y = x * weight + bias: dX = r * (h - mean(h) - x * mean(h * x)), h = dY * weight;
    dweight = sums of dY * x over the rows, dbias of dY."""
    parts, groups, turns = walk(M, N, block_M, block_N, blocks)
    step = groups * block_M

    @T.macro
    def share(x, dy, w, centre, scale, out, dw, db, total, product, words, row, part):
        for i, j in T.Parallel(block_M, block_N):
            out[i, j] = T.cast(dy[i, j], "float32")
        T.reduce_sum(out, db, dim=0, clear=False)
        for i, j in T.Parallel(block_M, block_N):
            out[i, j] *= T.cast(w[j], "float32")
        T.reduce_sum(out, total, dim=1)
        for i, j in T.Parallel(block_M, block_N):
            out[i, j] = (T.cast(x[i, j], "float32") - centre[i]) * scale[i] * T.cast(dy[i, j], "float32")
        T.reduce_sum(out, dw, dim=0, clear=False)
        for i, j in T.Parallel(block_M, block_N):
            out[i, j] *= T.cast(w[j], "float32")
        T.reduce_sum(out, product, dim=1)
        for i in T.Parallel(block_M):
            product[i] = T.if_then_else(product[i] == 0, 1e-30, product[i])
        hand_in(words, row, part, parts, block_M, total, product)

    @T.prim_func
    def layer_norm_gradient(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        mean: T.Tensor((M,), "float32"),
        r: T.Tensor((M,), "float32"),
        dY: T.Tensor((M, N), dtype),
        dX: T.Tensor((M, N), dtype),
        dweight: T.Tensor((N,), dtype),
        dbias: T.Tensor((N,), dtype),
    ):
        words = T.alloc_global(((turns + 1) * step * parts,), "uint64")
        partial_weight = T.alloc_global((groups, N), "float32")
        partial_bias = T.alloc_global((groups, N), "float32")
        clear_counts(words, (turns + 1) * step * parts)
        with T.Kernel(parts, groups, threads=threads) as (part, group):
            x = T.alloc_fragment((block_M, block_N), dtype)
            dy = T.alloc_fragment((block_M, block_N), dtype)
            held_x = T.alloc_fragment((block_M, block_N), dtype)
            held_dy = T.alloc_fragment((block_M, block_N), dtype)
            w = T.alloc_fragment((block_N,), dtype)
            out = T.alloc_fragment((block_M, block_N), "float32")
            dw = T.alloc_fragment((block_N,), "float32")
            db = T.alloc_fragment((block_N,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            product = T.alloc_fragment((block_M,), "float32")
            centre = T.alloc_fragment((block_M,), "float32")
            held_centre = T.alloc_fragment((block_M,), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            held_scale = T.alloc_fragment((block_M,), "float32")
            found = T.alloc_fragment((block_M, parts), "uint64")
            products = T.alloc_fragment((block_M, parts), "float32")
            shares = T.alloc_fragment((block_M, parts), "float32")

            T.clear(held_x)
            T.clear(held_dy)
            T.clear(held_centre)
            T.clear(held_scale)
            T.clear(dw)
            T.clear(db)
            T.copy(weight[part * block_N], w)
            for turn in T.Pipelined(turns + 1, num_stages=num_stages):
                row = (turn * groups + group) * block_M
                T.copy(X[row, part * block_N], x)
                T.copy(dY[row, part * block_N], dy)
                T.copy(mean[row], centre)
                T.copy(r[row], scale)
                if turn == 0:
                    share(x, dy, w, centre, scale, out, dw, db, total, product, words, row, part)
                else:
                    look(words, row - step, parts, block_M, found)
                    share(x, dy, w, centre, scale, out, dw, db, total, product, words, row, part)
                    settle(words, row - step, parts, block_M, found, shares, products)
                    T.reduce_sum(shares, total, dim=1)
                    T.reduce_sum(products, product, dim=1)
                    for i in T.Parallel(block_M):
                        total[i] /= N
                        product[i] *= held_scale[i] / N
                    for i, j in T.Parallel(block_M, block_N):
                        out[i, j] = held_scale[i] * (
                            T.cast(held_dy[i, j], "float32") * T.cast(w[j], "float32")
                            - total[i]
                            - (T.cast(held_x[i, j], "float32") - held_centre[i]) * product[i]
                        )
                    T.copy(out, dX[row - step, part * block_N])
                T.copy(x, held_x)
                T.copy(dy, held_dy)
                T.copy(centre, held_centre)
                T.copy(scale, held_scale)
            T.copy(dw, partial_weight[group, part * block_N])
            T.copy(db, partial_bias[group, part * block_N])
        column_sums_of_two(partial_weight, dweight, partial_bias, dbias, groups, N, sum_N)

    return layer_norm_gradient
