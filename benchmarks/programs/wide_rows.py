"""Softmax, norms and their gradients, of rows that several blocks hold on the chip: read once.

`blocks` blocks, as many as run at once, are groups with one block for each piece of a row; a group walks over the rows,
block_M at a time. In each turn a block reduces the pieces that it has loaded and hands its part in: of each row one
word of a workspace with two numbers, never all bits 0, which is what says that nothing is there yet. Then it finishes
the pieces of `lag` turns before, whose words the others of its group have had that time for; it looks for these before
it reduces, and only what is missing then is waited for. The pieces are loaded again for that, by what the text says:
`hold-tiles` keeps them in shared memory, where those of the next turns are on their way. A turn takes some two
microseconds for the words, and as many bytes are on their way meanwhile: of several rows, or of several turns.

A block waits only for those of its group, which follow each other: blocks start in the order of their index, so that
these run, or start next. The words of the turns before the first one are there from the start.
"""

from __future__ import annotations

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gradients import column_sums, column_sums_of_two

LOG2_E = 1.4426950408889634
NEIGHBOURS = 8  # elements that a thread copies at once
LEAST = -3e38  # for the largest of a piece without finite elements


def walk(M, N, block_M, block_N, blocks, lag):
    """The pieces of a row, the groups of as many blocks, the turns that these take, the rows of a turn, and those that
    `lag` turns take."""
    parts = -(-N // block_N)
    groups = max(1, blocks // parts)
    step = groups * block_M
    return parts, groups, -(-M // step), step, lag * step


@T.macro
def start(count, before):
    """A workspace without words but those that stand before the first turn."""
    words = T.alloc_global((count,), "uint64")
    with T.Kernel(T.ceildiv(count, 1024), threads=256) as block:
        T.pdl_trigger()
        for i in T.Parallel(1024):
            words[block * 1024 + i] = T.if_then_else(
                block * 1024 + i < before, T.cast(1, "uint64"), T.cast(0, "uint64")
            )
    return words


@T.macro
def hand_in(words, row, part, parts, rows, high, low):
    """Write two numbers of each row as one word."""
    for i in T.Parallel(rows):
        lower = T.cast(T.reinterpret(low[i], "uint32"), "uint64")
        upper = T.cast(T.reinterpret(high[i], "uint32"), "uint64") << T.cast(32, "uint64")
        T.atomic_store(words[(row + i) * parts + part], upper | lower, memory_order="relaxed")


@T.macro
def look(words, row, parts, rows, found):
    """The words of some rows, as far as they are there."""
    for i, p in T.Parallel(rows, parts):
        found[i, p] = T.atomic_load(words[(row + i) * parts + p], memory_order="relaxed")


@T.macro
def is_missing(found, parts, rows):
    """1 if one of the words is not there."""
    empty = T.alloc_fragment((rows, parts), "int32")
    each = T.alloc_fragment((rows,), "int32")
    missing = T.alloc_var("int32")
    for i, p in T.Parallel(rows, parts):
        empty[i, p] = T.if_then_else(found[i, p] == 0, 1, 0)
    T.reduce_max(empty, each, dim=1)
    T.reduce_max(each, missing, dim=0)
    return missing


@T.macro
def settle(words, row, parts, rows, found):
    """The two numbers of all parts of some rows, once they are there. The branch lets Triton load ahead around it."""
    high = T.alloc_fragment((rows, parts), "float32")
    low = T.alloc_fragment((rows, parts), "float32")
    missing = T.alloc_var("int32", 0)
    missing = is_missing(found, parts, rows)
    if missing > 0:
        while missing > 0:
            look(words, row, parts, rows, found)
            missing = is_missing(found, parts, rows)
    for i, p in T.Parallel(rows, parts):
        low[i, p] = T.reinterpret(T.cast(found[i, p] & 0xFFFFFFFF, "uint32"), "float32")
        high[i, p] = T.reinterpret(T.cast(found[i, p] >> 32, "uint32"), "float32")
    return high, low


@tiledsl.jit(out_idx=[-1])
def softmax(M, N, parts=4, block_N=2048, blocks=528, late=2, num_stages=4, threads=128, dtype="bfloat16"):
    """Y[M, N] = softmax(X[M, N]) along N.

    A turn is block_N elements of a row, of which a block has a part of several turns: few blocks, or none, wait for
    each other. They lie as rows of 8, so that each thread keeps its own largest and its own sum up to the last turn.
    What the others know of a row is looked for `late` turns after that.
    """
    groups = max(1, blocks // parts)
    pieces = -(-N // (parts * block_N))
    turns = -(-M // groups) * pieces
    behind = pieces - 1 + late
    rows = -(-behind // pieces)  # that begin before the first one is finished
    some = block_N // NEIGHBOURS

    @T.prim_func
    def softmax(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        if parts > 1:
            words = start((turns // pieces + 2 * rows) * groups * parts, rows * groups * parts)
        with T.Kernel(parts, groups, threads=threads) as (part, group):
            given = T.alloc_fragment((some, NEIGHBOURS), dtype)
            x = T.alloc_fragment((some, NEIGHBOURS), "float32")
            tops = T.alloc_fragment((some,), "float32")
            sums = T.alloc_fragment((some,), "float32")
            new_tops = T.alloc_fragment((some,), "float32")
            new_sums = T.alloc_fragment((some,), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            found = T.alloc_fragment((1, parts), "uint64")
            shift = T.alloc_var("float32", 0.0)

            if parts > 1:
                T.pdl_trigger()
            if N % (parts * block_N):
                T.annotate_safe_value({X: -T.infinity("float32")})
            T.fill(tops, LEAST)
            T.clear(sums)
            for turn in T.Pipelined(turns + behind, num_stages=num_stages):
                row = turn // pieces * groups + group
                first = (part * pieces + turn % pieces) * block_N
                for i, j in T.Parallel(some, NEIGHBOURS):
                    given[i, j] = X[row, first + i * NEIGHBOURS + j]
                T.copy(given, x)
                T.reduce_max(x, new_tops, dim=1)
                for i in T.Parallel(some):
                    new_tops[i] = T.max(tops[i], new_tops[i] * LOG2_E)
                for i, j in T.Parallel(some, NEIGHBOURS):
                    x[i, j] = T.exp2(x[i, j] * LOG2_E - new_tops[i])
                T.reduce_sum(x, new_sums, dim=1)
                for i in T.Parallel(some):
                    sums[i] = sums[i] * T.exp2(tops[i] - new_tops[i]) + new_sums[i]
                T.copy(new_tops, tops)
                if turn % pieces == pieces - 1:
                    T.reduce_max(tops, top, dim=0)
                    for i in T.Parallel(some):
                        sums[i] *= T.exp2(tops[i] - top[0])
                    T.reduce_sum(sums, total, dim=0)
                    if parts > 1:
                        hand_in(words, row + rows * groups, part, parts, 1, top, total)
                    T.fill(tops, LEAST)
                    T.clear(sums)

                old = turn + (rows * pieces - behind)
                held = old // pieces * groups + group
                if old % pieces == 0:
                    if parts > 1:
                        look(words, held, parts, 1, found)
                        all_tops, shares = settle(words, held, parts, 1, found)
                        T.reduce_max(all_tops, top, dim=1)
                        for i, p in T.Parallel(1, parts):
                            shares[i, p] *= T.exp2(all_tops[i, p] - top[i])
                        T.reduce_sum(shares, total, dim=1)
                    shift = top[0] + T.log2(total[0])
                begin = (part * pieces + old % pieces) * block_N
                for i, j in T.Parallel(some, NEIGHBOURS):
                    given[i, j] = X[held - rows * groups, begin + i * NEIGHBOURS + j]
                for i, j in T.Parallel(some, NEIGHBOURS):
                    x[i, j] = T.exp2(T.cast(given[i, j], "float32") * LOG2_E - shift)
                    Y[held - rows * groups, begin + i * NEIGHBOURS + j] = x[i, j]

    return softmax


@tiledsl.jit(out_idx=[-1])
def softmax_gradient(M, N, block_M=2, block_N=4096, blocks=264, lag=1, num_stages=2, threads=256, dtype="bfloat16"):
    """With Y = softmax(X): dX = Y * (dY - sum(Y * dY))."""
    parts, groups, turns, step, late = walk(M, N, block_M, block_N, blocks, lag)

    @T.prim_func
    def softmax_gradient(Y: T.Tensor((M, N), dtype), dY: T.Tensor((M, N), dtype), dX: T.Tensor((M, N), dtype)):
        words = start((turns * step + 2 * late) * parts, late * parts)
        with T.Kernel(parts, groups, threads=threads) as (part, group):
            T.pdl_trigger()
            y = T.alloc_fragment((block_M, block_N), dtype)
            dy = T.alloc_fragment((block_M, block_N), dtype)
            x = T.alloc_fragment((block_M, block_N), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            ones = T.alloc_fragment((block_M,), "float32")
            found = T.alloc_fragment((block_M, parts), "uint64")

            T.fill(ones, 1.0)
            for turn in T.Pipelined(turns + lag, num_stages=num_stages):
                row = (turn * groups + group) * block_M
                look(words, row, parts, block_M, found)
                T.copy(Y[row, part * block_N], y)
                T.copy(dY[row, part * block_N], dy)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.cast(y[i, j], "float32") * T.cast(dy[i, j], "float32")
                T.reduce_sum(x, total, dim=1)
                hand_in(words, row + late, part, parts, block_M, total, ones)
                T.copy(Y[row - late, part * block_N], y)
                T.copy(dY[row - late, part * block_N], dy)
                shares, _ = settle(words, row, parts, block_M, found)
                T.reduce_sum(shares, total, dim=1)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.cast(y[i, j], "float32") * (T.cast(dy[i, j], "float32") - total[i])
                T.copy(x, dX[row - late, part * block_N])

    return softmax_gradient


@tiledsl.jit(out_idx=[-1])
def rms_norm(M, N, block_M=2, block_N=4096, blocks=528, lag=1, num_stages=2, eps=1e-6, threads=256, dtype="bfloat16"):
    """Y[M, N] = X / sqrt(mean(X^2) + eps) * weight[N]."""
    parts, groups, turns, step, late = walk(M, N, block_M, block_N, blocks, lag)

    @T.prim_func
    def rms_norm(X: T.Tensor((M, N), dtype), weight: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        words = start((turns * step + 2 * late) * parts, late * parts)
        with T.Kernel(parts, groups, threads=threads) as (part, group):
            T.pdl_trigger()
            given = T.alloc_fragment((block_M, block_N), dtype)
            w = T.alloc_fragment((block_N,), dtype)
            x = T.alloc_fragment((block_M, block_N), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            ones = T.alloc_fragment((block_M,), "float32")
            found = T.alloc_fragment((block_M, parts), "uint64")

            T.fill(ones, 1.0)
            T.copy(weight[part * block_N], w)
            for turn in T.Pipelined(turns + lag, num_stages=num_stages):
                row = (turn * groups + group) * block_M
                look(words, row, parts, block_M, found)
                T.copy(X[row, part * block_N], given)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.cast(given[i, j], "float32") * T.cast(given[i, j], "float32")
                T.reduce_sum(x, total, dim=1)
                hand_in(words, row + late, part, parts, block_M, total, ones)
                T.copy(X[row - late, part * block_N], given)
                shares, _ = settle(words, row, parts, block_M, found)
                T.reduce_sum(shares, total, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = T.rsqrt(total[i] / N + eps)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.cast(given[i, j], "float32") * total[i] * T.cast(w[j], "float32")
                T.copy(x, Y[row - late, part * block_N])

    return rms_norm


@tiledsl.jit(out_idx=[-1])
def layer_norm(M, N, block_M=2, block_N=4096, blocks=264, lag=1, num_stages=2, eps=1e-5, threads=256, dtype="bfloat16"):
    """Y[M, N] = (X - mean) / sqrt(variance + eps) * weight[N] + bias[N].

    The pieces' means and squared differences from them are combined as Chan, Golub and LeVeque do (1979): no E[x^2].
    """
    parts, groups, turns, step, late = walk(M, N, block_M, block_N, blocks, lag)

    @T.prim_func
    def layer_norm(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        bias: T.Tensor((N,), dtype),
        Y: T.Tensor((M, N), dtype),
    ):
        words = start((turns * step + 2 * late) * parts, late * parts)
        with T.Kernel(parts, groups, threads=threads) as (part, group):
            T.pdl_trigger()
            given = T.alloc_fragment((block_M, block_N), dtype)
            w = T.alloc_fragment((block_N,), dtype)
            b = T.alloc_fragment((block_N,), dtype)
            x = T.alloc_fragment((block_M, block_N), "float32")
            squares = T.alloc_fragment((block_M, block_N), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            spread = T.alloc_fragment((block_M,), "float32")
            first = T.alloc_fragment((block_M,), dtype)
            next_first = T.alloc_fragment((block_M,), dtype)
            found = T.alloc_fragment((block_M, parts), "uint64")

            T.copy(weight[part * block_N], w)
            T.copy(bias[part * block_N], b)
            for i in T.Parallel(block_M):
                first[i] = X[group * block_M + i, part * block_N]
            for turn in T.Pipelined(turns + lag, num_stages=num_stages):
                row = (turn * groups + group) * block_M
                look(words, row, parts, block_M, found)
                for i in T.Parallel(block_M):
                    next_first[i] = X[row + step + i, part * block_N]
                T.copy(X[row, part * block_N], given)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.if_then_else(
                        part * block_N + j < N, T.cast(given[i, j], "float32") - T.cast(first[i], "float32"), 0.0
                    )
                    squares[i, j] = x[i, j] * x[i, j]
                T.reduce_sum(x, total, dim=1)
                T.reduce_sum(squares, spread, dim=1)
                size = T.cast(T.min(block_N, N - part * block_N), "float32")
                for i in T.Parallel(block_M):
                    spread[i] = T.max(spread[i] - total[i] * total[i] / size, 1e-30)
                    total[i] += T.cast(first[i], "float32") * size
                hand_in(words, row + late, part, parts, block_M, total, spread)
                T.copy(X[row - late, part * block_N], given)
                sums, spreads = settle(words, row, parts, block_M, found)
                T.reduce_sum(sums, total, dim=1)
                for i in T.Parallel(block_M):
                    total[i] /= N
                for i, p in T.Parallel(block_M, parts):
                    count = T.cast(T.min(block_N, N - p * block_N), "float32")
                    off = sums[i, p] / count - total[i]
                    spreads[i, p] += off * off * count
                T.reduce_sum(spreads, spread, dim=1)
                for i in T.Parallel(block_M):
                    spread[i] = T.rsqrt(spread[i] / N + eps)
                    total[i] *= -spread[i]
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = (T.cast(given[i, j], "float32") * spread[i] + total[i]) * w[j] + b[j]
                T.copy(x, Y[row - late, part * block_N])
                T.copy(next_first, first)

    return layer_norm


@tiledsl.jit(out_idx=[4, 5])
def rms_norm_gradient(
    M, N, block_M=4, block_N=2048, blocks=264, lag=1, num_stages=2, sum_N=64, threads=256, dtype="bfloat16"
):
    """With Y = X * r * weight and r = 1 / sqrt(mean(X^2) + eps): dX = r * (h - X * r^2 * mean(h * X)), h = dY * weight;
    dweight = sums of dY * X * r over the rows."""
    parts, groups, turns, step, late = walk(M, N, block_M, block_N, blocks, lag)

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
        words = start((turns * step + 2 * late) * parts, late * parts)
        with T.Kernel(parts, groups, threads=threads) as (part, group):
            T.pdl_trigger()
            x = T.alloc_fragment((block_M, block_N), dtype)
            dy = T.alloc_fragment((block_M, block_N), dtype)
            w = T.alloc_fragment((block_N,), dtype)
            h = T.alloc_fragment((block_M, block_N), "float32")
            dw = T.alloc_fragment((block_N,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            ones = T.alloc_fragment((block_M,), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            next_scale = T.alloc_fragment((block_M,), "float32")
            held_scale = T.alloc_fragment((block_M,), "float32")
            found = T.alloc_fragment((block_M, parts), "uint64")

            T.clear(dw)
            T.fill(ones, 1.0)
            T.copy(weight[part * block_N], w)
            T.copy(r[group * block_M], scale)
            for turn in T.Pipelined(turns + lag, num_stages=num_stages):
                row = (turn * groups + group) * block_M
                look(words, row, parts, block_M, found)
                T.copy(r[row - late], held_scale)
                T.copy(r[row + step], next_scale)
                T.copy(X[row, part * block_N], x)
                T.copy(dY[row, part * block_N], dy)
                for i, j in T.Parallel(block_M, block_N):
                    h[i, j] = T.cast(x[i, j], "float32") * scale[i] * T.cast(dy[i, j], "float32")
                T.reduce_sum(h, dw, dim=0, clear=False)
                for i, j in T.Parallel(block_M, block_N):
                    h[i, j] *= T.cast(w[j], "float32")
                T.reduce_sum(h, total, dim=1)
                hand_in(words, row + late, part, parts, block_M, total, ones)
                T.copy(X[row - late, part * block_N], x)
                T.copy(dY[row - late, part * block_N], dy)
                shares, _ = settle(words, row, parts, block_M, found)
                T.reduce_sum(shares, total, dim=1)
                for i in T.Parallel(block_M):
                    total[i] *= held_scale[i] * held_scale[i] / N
                for i, j in T.Parallel(block_M, block_N):
                    h[i, j] = (
                        held_scale[i] * (T.cast(dy[i, j], "float32") * T.cast(w[j], "float32"))
                        - T.cast(x[i, j], "float32") * total[i]
                    )
                T.copy(h, dX[row - late, part * block_N])
                T.copy(next_scale, scale)
            T.copy(dw, partial[group, part * block_N])
        column_sums(partial, dweight, groups, N, sum_N)

    return rms_norm_gradient


@tiledsl.jit(out_idx=[5, 6, 7])
def layer_norm_gradient(
    M, N, block_M=4, block_N=2048, blocks=264, lag=1, num_stages=2, sum_N=64, threads=256, dtype="bfloat16"
):
    """With x = (X - mean) * r and Y = x * weight + bias: dX = r * (h - mean(h) - x * mean(h * x)), h = dY * weight;
    dweight = sums of dY * x over the rows, dbias of dY."""
    parts, groups, turns, step, late = walk(M, N, block_M, block_N, blocks, lag)

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
        partial_weight = T.alloc_global((groups, N), "float32")
        partial_bias = T.alloc_global((groups, N), "float32")
        words = start((turns * step + 2 * late) * parts, late * parts)
        with T.Kernel(parts, groups, threads=threads) as (part, group):
            T.pdl_trigger()
            x = T.alloc_fragment((block_M, block_N), dtype)
            dy = T.alloc_fragment((block_M, block_N), dtype)
            w = T.alloc_fragment((block_N,), dtype)
            h = T.alloc_fragment((block_M, block_N), "float32")
            product = T.alloc_fragment((block_M, block_N), "float32")
            scaled = T.alloc_fragment((block_M, block_N), "float32")
            dw = T.alloc_fragment((block_N,), "float32")
            db = T.alloc_fragment((block_N,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            turned = T.alloc_fragment((block_M,), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            next_scale = T.alloc_fragment((block_M,), "float32")
            held_scale = T.alloc_fragment((block_M,), "float32")
            centre = T.alloc_fragment((block_M,), "float32")
            next_centre = T.alloc_fragment((block_M,), "float32")
            held_centre = T.alloc_fragment((block_M,), "float32")
            found = T.alloc_fragment((block_M, parts), "uint64")

            T.clear(dw)
            T.clear(db)
            T.copy(weight[part * block_N], w)
            T.copy(r[group * block_M], scale)
            T.copy(mean[group * block_M], centre)
            for turn in T.Pipelined(turns + lag, num_stages=num_stages):
                row = (turn * groups + group) * block_M
                look(words, row, parts, block_M, found)
                T.copy(r[row - late], held_scale)
                T.copy(mean[row - late], held_centre)
                T.copy(r[row + step], next_scale)
                T.copy(mean[row + step], next_centre)
                T.copy(X[row, part * block_N], x)
                T.copy(dY[row, part * block_N], dy)
                T.copy(dy, h)
                T.reduce_sum(h, db, dim=0, clear=False)
                for i, j in T.Parallel(block_M, block_N):
                    product[i, j] = (T.cast(x[i, j], "float32") - centre[i]) * h[i, j]
                    scaled[i, j] = product[i, j] * scale[i]
                T.reduce_sum(scaled, dw, dim=0, clear=False)
                for i, j in T.Parallel(block_M, block_N):
                    h[i, j] *= T.cast(w[j], "float32")
                    product[i, j] *= T.cast(w[j], "float32")
                T.reduce_sum(h, total, dim=1)
                T.reduce_sum(product, turned, dim=1)
                for i in T.Parallel(block_M):
                    turned[i] = T.if_then_else(turned[i] == 0, 1e-30, turned[i])
                hand_in(words, row + late, part, parts, block_M, total, turned)
                T.copy(X[row - late, part * block_N], x)
                T.copy(dY[row - late, part * block_N], dy)
                shares, products = settle(words, row, parts, block_M, found)
                T.reduce_sum(shares, total, dim=1)
                T.reduce_sum(products, turned, dim=1)
                for i in T.Parallel(block_M):
                    turned[i] *= held_scale[i] * held_scale[i] * held_scale[i] / N
                    total[i] = total[i] * held_scale[i] / N - held_centre[i] * turned[i]
                for i, j in T.Parallel(block_M, block_N):
                    h[i, j] = held_scale[i] * (T.cast(dy[i, j], "float32") * T.cast(w[j], "float32")) - (
                        T.cast(x[i, j], "float32") * turned[i] + total[i]
                    )
                T.copy(h, dX[row - late, part * block_N])
                T.copy(next_scale, scale)
                T.copy(next_centre, centre)
            T.copy(dw, partial_weight[group, part * block_N])
            T.copy(db, partial_bias[group, part * block_N])
        column_sums_of_two(partial_weight, dweight, partial_bias, dbias, groups, N, sum_N)

    return layer_norm_gradient
