"""Softmax, norms and their gradients where several blocks share a row, so that rows of any width leave DRAM once.

A row (of a norm's gradient: block_M rows) is passed over twice, in pieces. In phase 0 a block reduces a piece and
counts it as done; in phase 1, `delay` turns behind, one waits for all pieces of the row and finds its own in the
second-level cache. Blocks start in the order of their index and wait only for those before them, so that none waits for
one that cannot start.
"""

from __future__ import annotations

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gradients import column_sums

LOG2_E = 1.4426950408889634


@T.macro
def clear_counts(counts, count):
    with T.Kernel(T.ceildiv(count, 256), threads=256) as block:
        for i in T.Parallel(256):
            counts[block * 256 + i] = 0


@T.macro
def announce(counts, turn):
    """What the block wrote is seen by those that wait for this turn."""
    T.atomic_add(counts[turn], 1, memory_order="release")


@T.macro
def wait_for(counts, turn, parts):
    while T.atomic_load(counts[turn], memory_order="acquire") < parts:
        T.evaluate(0)


@tiledsl.jit(out_idx=[-1])
def softmax(M, N, block_N=8192, delay=4, threads=512, dtype="bfloat16"):
    """Y[M, N] = softmax(X[M, N]) along N."""
    parts = -(-N // block_N)

    @T.prim_func
    def softmax(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        counts = T.alloc_global((M,), "int32")
        highest = T.alloc_global((M, parts), "float32")
        totals = T.alloc_global((M, parts), "float32")
        clear_counts(counts, M)
        with T.Kernel((M + delay) * 2 * parts, threads=threads) as block:
            turn, phase, part = block // (2 * parts), block // parts % 2, block % parts
            x = T.alloc_fragment((block_N,), "float32")
            top = T.alloc_var("float32")
            total = T.alloc_var("float32")
            tops = T.alloc_fragment((parts,), "float32")
            shares = T.alloc_fragment((parts,), "float32")

            T.annotate_safe_value({X: -T.infinity("float32")})
            if phase == 0:
                if turn < M:
                    T.copy(X[turn, part * block_N], x)
                    T.reduce_max(x, top, dim=0)
                    for j in T.Parallel(block_N):
                        x[j] = T.exp2((x[j] - top) * LOG2_E)
                    T.reduce_sum(x, total, dim=0)
                    highest[turn, part] = top
                    totals[turn, part] = total
                    announce(counts, turn)
            else:
                row = turn - delay
                if row >= 0:
                    wait_for(counts, row, parts)
                    T.copy(highest[row, 0], tops)
                    T.copy(totals[row, 0], shares)
                    T.copy(X[row, part * block_N], x)
                    T.reduce_max(tops, top, dim=0)
                    for p in T.Parallel(parts):
                        shares[p] *= T.exp2((tops[p] - top) * LOG2_E)
                    T.reduce_sum(shares, total, dim=0)
                    inverse = 1 / total
                    for j in T.Parallel(block_N):
                        x[j] = T.exp2((x[j] - top) * LOG2_E) * inverse
                    T.copy(x, Y[row, part * block_N])

    return softmax


@tiledsl.jit(out_idx=[-1])
def softmax_gradient(M, N, block_N=8192, delay=4, threads=512, dtype="bfloat16"):
    """With Y = softmax(X): dX = Y * (dY - sum(Y * dY))."""
    parts = -(-N // block_N)

    @T.prim_func
    def softmax_gradient(Y: T.Tensor((M, N), dtype), dY: T.Tensor((M, N), dtype), dX: T.Tensor((M, N), dtype)):
        counts = T.alloc_global((M,), "int32")
        sums = T.alloc_global((M, parts), "float32")
        clear_counts(counts, M)
        with T.Kernel((M + delay) * 2 * parts, threads=threads) as block:
            turn, phase, part = block // (2 * parts), block // parts % 2, block % parts
            y = T.alloc_fragment((block_N,), "float32")
            dy = T.alloc_fragment((block_N,), "float32")
            part_sums = T.alloc_fragment((parts,), "float32")
            total = T.alloc_var("float32")

            if phase == 0:
                if turn < M:
                    T.copy(Y[turn, part * block_N], y)
                    T.copy(dY[turn, part * block_N], dy)
                    for j in T.Parallel(block_N):
                        y[j] *= dy[j]
                    T.reduce_sum(y, total, dim=0)
                    sums[turn, part] = total
                    announce(counts, turn)
            else:
                row = turn - delay
                if row >= 0:
                    wait_for(counts, row, parts)
                    T.copy(sums[row, 0], part_sums)
                    T.copy(Y[row, part * block_N], y)
                    T.copy(dY[row, part * block_N], dy)
                    T.reduce_sum(part_sums, total, dim=0)
                    for j in T.Parallel(block_N):
                        y[j] *= dy[j] - total
                    T.copy(y, dX[row, part * block_N])

    return softmax_gradient


@tiledsl.jit(out_idx=[-1])
def rms_norm(M, N, block_N=8192, delay=4, eps=1e-6, threads=512, dtype="bfloat16"):
    """Y[M, N] = X / sqrt(mean(X^2) + eps) * weight[N]."""
    parts = -(-N // block_N)

    @T.prim_func
    def rms_norm(X: T.Tensor((M, N), dtype), weight: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        counts = T.alloc_global((M,), "int32")
        sums = T.alloc_global((M, parts), "float32")
        clear_counts(counts, M)
        with T.Kernel((M + delay) * 2 * parts, threads=threads) as block:
            turn, phase, part = block // (2 * parts), block // parts % 2, block % parts
            x = T.alloc_fragment((block_N,), "float32")
            w = T.alloc_fragment((block_N,), "float32")
            part_sums = T.alloc_fragment((parts,), "float32")
            total = T.alloc_var("float32")

            if phase == 0:
                if turn < M:
                    T.copy(X[turn, part * block_N], x)
                    for j in T.Parallel(block_N):
                        x[j] *= x[j]
                    T.reduce_sum(x, total, dim=0)
                    sums[turn, part] = total
                    announce(counts, turn)
            else:
                row = turn - delay
                if row >= 0:
                    T.copy(weight[part * block_N], w)
                    wait_for(counts, row, parts)
                    T.copy(sums[row, 0], part_sums)
                    T.copy(X[row, part * block_N], x)
                    T.reduce_sum(part_sums, total, dim=0)
                    scale = T.rsqrt(total / N + eps)
                    for j in T.Parallel(block_N):
                        x[j] *= scale * w[j]
                    T.copy(x, Y[row, part * block_N])

    return rms_norm


@tiledsl.jit(out_idx=[-1])
def layer_norm(M, N, block_N=8192, delay=4, eps=1e-5, threads=512, dtype="bfloat16"):
    """Y[M, N] = (X - mean) / sqrt(variance + eps) * weight[N] + bias[N].

    The pieces' means and squared differences from them are combined as Chan, Golub and LeVeque do (1979): no E[x^2].
    """
    parts = -(-N // block_N)

    @T.prim_func
    def layer_norm(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        bias: T.Tensor((N,), dtype),
        Y: T.Tensor((M, N), dtype),
    ):
        counts = T.alloc_global((M,), "int32")
        sums = T.alloc_global((M, parts), "float32")
        squares = T.alloc_global((M, parts), "float32")
        clear_counts(counts, M)
        with T.Kernel((M + delay) * 2 * parts, threads=threads) as block:
            turn, phase, part = block // (2 * parts), block // parts % 2, block % parts
            x = T.alloc_fragment((block_N,), "float32")
            w = T.alloc_fragment((block_N,), "float32")
            b = T.alloc_fragment((block_N,), "float32")
            own_sums = T.alloc_fragment((parts,), "float32")
            own_squares = T.alloc_fragment((parts,), "float32")
            total = T.alloc_var("float32")
            spread = T.alloc_var("float32")

            if phase == 0:
                if turn < M:
                    T.copy(X[turn, part * block_N], x)
                    T.reduce_sum(x, total, dim=0)
                    mean_here = total / T.min(block_N, N - part * block_N)
                    for j in T.Parallel(block_N):
                        x[j] = T.if_then_else(part * block_N + j < N, x[j] - mean_here, 0.0)
                        x[j] *= x[j]
                    T.reduce_sum(x, spread, dim=0)
                    sums[turn, part] = total
                    squares[turn, part] = spread
                    announce(counts, turn)
            else:
                row = turn - delay
                if row >= 0:
                    T.copy(weight[part * block_N], w)
                    T.copy(bias[part * block_N], b)
                    wait_for(counts, row, parts)
                    T.copy(sums[row, 0], own_sums)
                    T.copy(squares[row, 0], own_squares)
                    T.copy(X[row, part * block_N], x)
                    T.reduce_sum(own_sums, total, dim=0)
                    mean = total / N
                    for p in T.Parallel(parts):
                        count = T.min(block_N, N - p * block_N)
                        own_squares[p] += (own_sums[p] / count - mean) * (own_sums[p] / count - mean) * count
                    T.reduce_sum(own_squares, spread, dim=0)
                    scale = T.rsqrt(spread / N + eps)
                    for j in T.Parallel(block_N):
                        x[j] = (x[j] - mean) * scale * w[j] + b[j]
                    T.copy(x, Y[row, part * block_N])

    return layer_norm


@tiledsl.jit(out_idx=[4, 5])
def rms_norm_gradient(M, N, block_M=4, block_N=2048, delay=1, sum_N=64, threads=512, dtype="bfloat16"):
    """With Y = X * r * weight and r = 1 / sqrt(mean(X^2) + eps): dX = r * (h - X * r^2 * mean(h * X)), h = dY * weight;
    dweight = sums of dY * X * r over the rows. A turn is block_M rows."""
    parts, turns = -(-N // block_N), -(-M // block_M)

    @T.prim_func
    def rms_norm_gradient(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        r: T.Tensor((M,), "float32"),
        dY: T.Tensor((M, N), dtype),
        dX: T.Tensor((M, N), dtype),
        dweight: T.Tensor((N,), dtype),
    ):
        counts = T.alloc_global((turns,), "int32")
        sums = T.alloc_global((M, parts), "float32")
        partial = T.alloc_global((turns, N), "float32")
        clear_counts(counts, turns)
        with T.Kernel((turns + delay) * 2 * parts, threads=threads) as block:
            turn, phase, part = block // (2 * parts), block // parts % 2, block % parts
            x = T.alloc_fragment((block_M, block_N), "float32")
            dy = T.alloc_fragment((block_M, block_N), "float32")
            w = T.alloc_fragment((block_N,), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            part_sums = T.alloc_fragment((block_M, parts), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            dw = T.alloc_fragment((block_N,), "float32")

            T.copy(weight[part * block_N], w)
            if phase == 0:
                if turn < turns:
                    T.copy(X[turn * block_M, part * block_N], x)
                    T.copy(dY[turn * block_M, part * block_N], dy)
                    for i, j in T.Parallel(block_M, block_N):
                        dy[i, j] *= w[j] * x[i, j]
                    T.reduce_sum(dy, total, dim=1)
                    for i in T.Parallel(block_M):
                        sums[turn * block_M + i, part] = total[i]
                    announce(counts, turn)
            else:
                if turn >= delay:
                    T.copy(r[(turn - delay) * block_M], scale)
                    wait_for(counts, turn - delay, parts)
                    T.copy(sums[(turn - delay) * block_M, 0], part_sums)
                    T.copy(X[(turn - delay) * block_M, part * block_N], x)
                    T.copy(dY[(turn - delay) * block_M, part * block_N], dy)
                    T.reduce_sum(part_sums, total, dim=1)
                    for i in T.Parallel(block_M):
                        total[i] *= scale[i] * scale[i] / N
                    for i, j in T.Parallel(block_M, block_N):
                        x[i, j], dy[i, j] = (
                            scale[i] * (dy[i, j] * w[j] - x[i, j] * total[i]),
                            dy[i, j] * x[i, j] * scale[i],
                        )
                    T.copy(x, dX[(turn - delay) * block_M, part * block_N])
                    T.reduce_sum(dy, dw, dim=0)
                    T.copy(dw, partial[turn - delay, part * block_N])
        column_sums(partial, dweight, turns, N, sum_N)

    return rms_norm_gradient


@tiledsl.jit(out_idx=[5, 6, 7])
def layer_norm_gradient(M, N, block_M=4, block_N=2048, delay=1, sum_N=64, threads=512, dtype="bfloat16"):
    """With x = (X - mean) * r and Y = x * weight + bias: dX = r * (h - mean(h) - x * mean(h * x)), h = dY * weight;
    dweight = sums of dY * x over the rows, dbias of dY. A turn is block_M rows."""
    parts, turns = -(-N // block_N), -(-M // block_M)

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
        counts = T.alloc_global((turns,), "int32")
        sums = T.alloc_global((M, parts), "float32")
        products = T.alloc_global((M, parts), "float32")
        partial_weight = T.alloc_global((turns, N), "float32")
        partial_bias = T.alloc_global((turns, N), "float32")
        clear_counts(counts, turns)
        with T.Kernel((turns + delay) * 2 * parts, threads=threads) as block:
            turn, phase, part = block // (2 * parts), block // parts % 2, block % parts
            x = T.alloc_fragment((block_M, block_N), "float32")
            dy = T.alloc_fragment((block_M, block_N), "float32")
            w = T.alloc_fragment((block_N,), "float32")
            centre = T.alloc_fragment((block_M,), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            own_sums = T.alloc_fragment((block_M, parts), "float32")
            own_products = T.alloc_fragment((block_M, parts), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            product = T.alloc_fragment((block_M,), "float32")
            dw = T.alloc_fragment((block_N,), "float32")
            db = T.alloc_fragment((block_N,), "float32")

            T.copy(weight[part * block_N], w)
            if phase == 0:
                if turn < turns:
                    T.copy(mean[turn * block_M], centre)
                    T.copy(r[turn * block_M], scale)
                    T.copy(X[turn * block_M, part * block_N], x)
                    T.copy(dY[turn * block_M, part * block_N], dy)
                    for i, j in T.Parallel(block_M, block_N):
                        dy[i, j] *= w[j]
                        x[i, j] = (x[i, j] - centre[i]) * scale[i] * dy[i, j]
                    T.reduce_sum(dy, total, dim=1)
                    T.reduce_sum(x, product, dim=1)
                    for i in T.Parallel(block_M):
                        sums[turn * block_M + i, part] = total[i]
                        products[turn * block_M + i, part] = product[i]
                    announce(counts, turn)
            else:
                if turn >= delay:
                    T.copy(mean[(turn - delay) * block_M], centre)
                    T.copy(r[(turn - delay) * block_M], scale)
                    wait_for(counts, turn - delay, parts)
                    T.copy(sums[(turn - delay) * block_M, 0], own_sums)
                    T.copy(products[(turn - delay) * block_M, 0], own_products)
                    T.copy(X[(turn - delay) * block_M, part * block_N], x)
                    T.copy(dY[(turn - delay) * block_M, part * block_N], dy)
                    T.reduce_sum(own_sums, total, dim=1)
                    T.reduce_sum(own_products, product, dim=1)
                    T.reduce_sum(dy, db, dim=0)
                    for i, j in T.Parallel(block_M, block_N):
                        at = (x[i, j] - centre[i]) * scale[i]
                        x[i, j] = scale[i] * (dy[i, j] * w[j] - total[i] / N - at * (product[i] / N))
                        dy[i, j] *= at
                    T.copy(x, dX[(turn - delay) * block_M, part * block_N])
                    T.reduce_sum(dy, dw, dim=0)
                    T.copy(dw, partial_weight[turn - delay, part * block_N])
                    T.copy(db, partial_bias[turn - delay, part * block_N])
        column_sums(partial_weight, dweight, turns, N, sum_N)
        column_sums(partial_bias, dbias, turns, N, sum_N)

    return layer_norm_gradient
