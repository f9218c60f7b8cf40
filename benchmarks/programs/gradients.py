"""Gradients of softmax and norms whose rows fit on the chip: a block holds block_M whole rows.

`blocks` blocks walk over the rows of a norm, each with its own sums of the weight's gradient, which are added up at the
end; what the next rows need is loaded meanwhile (num_stages).
"""

from __future__ import annotations

import tiledsl
import tiledsl.language as T


@T.macro
def column_sums(partial, out, groups, N, block_N):
    """out[N] = sums of the columns of partial[groups, N], in order."""
    with T.Kernel(T.ceildiv(N, block_N), threads=256) as block:
        total = T.alloc_fragment((block_N,), "float32")
        sum_up(partial, groups, block * block_N, block_N, total)
        T.copy(total, out[block * block_N])


@T.macro
def column_sums_of_two(partial, out, other_partial, other_out, groups, N, block_N):
    """The same of two in one launch."""
    with T.Kernel(T.ceildiv(N, block_N), threads=256) as block:
        total = T.alloc_fragment((block_N,), "float32")
        other_total = T.alloc_fragment((block_N,), "float32")
        sum_up(partial, groups, block * block_N, block_N, total)
        sum_up(other_partial, groups, block * block_N, block_N, other_total)
        T.copy(total, out[block * block_N])
        T.copy(other_total, other_out[block * block_N])


@T.macro
def sum_up(partial, groups, first, count, total):
    """total[count] = sums of the columns of partial[groups, N] from `first` on."""
    rows = min(128, 1 << (groups - 1).bit_length())
    some = T.alloc_fragment((rows, count), "float32")
    T.clear(total)
    for group in T.serial(0, groups, rows):
        T.copy(partial[group, first], some)
        T.reduce_sum(some, total, dim=0, clear=False)


@tiledsl.jit(out_idx=[-1])
def softmax_gradient(M, N, block_M=1, threads=256, dtype="bfloat16"):
    """With Y = softmax(X): dX = Y * (dY - sum(Y * dY))."""

    @T.prim_func
    def softmax_gradient(Y: T.Tensor((M, N), dtype), dY: T.Tensor((M, N), dtype), dX: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as block:
            y = T.alloc_fragment((block_M, N), "float32")
            dy = T.alloc_fragment((block_M, N), "float32")
            products = T.alloc_fragment((block_M, N), "float32")
            total = T.alloc_fragment((block_M,), "float32")

            T.copy(Y[block * block_M, 0], y)
            T.copy(dY[block * block_M, 0], dy)
            for i, j in T.Parallel(block_M, N):
                products[i, j] = y[i, j] * dy[i, j]
            T.reduce_sum(products, total, dim=1)
            for i, j in T.Parallel(block_M, N):
                y[i, j] *= dy[i, j] - total[i]
            T.copy(y, dX[block * block_M, 0])

    return softmax_gradient


@tiledsl.jit(out_idx=[4, 5])
def rms_norm_gradient(M, N, block_M=1, blocks=264, num_stages=2, threads=256, sum_N=64, dtype="bfloat16"):
    """With Y = X * r * weight and r = 1 / sqrt(mean(X^2) + eps): dX = r * (h - X * r^2 * mean(h * X)), h = dY * weight;
    dweight = sums of dY * X * r over the rows."""

    @T.prim_func
    def rms_norm_gradient(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        r: T.Tensor((M,), "float32"),
        dY: T.Tensor((M, N), dtype),
        dX: T.Tensor((M, N), dtype),
        dweight: T.Tensor((N,), dtype),
    ):
        partial = T.alloc_global((blocks, N), "float32")
        with T.Kernel(blocks, threads=threads) as block:
            T.pdl_trigger()
            x = T.alloc_fragment((block_M, N), "float32")
            dy = T.alloc_fragment((block_M, N), "float32")
            w = T.alloc_fragment((N,), "float32")
            products = T.alloc_fragment((block_M, N), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            each_dw = T.alloc_fragment((block_M, N), "float32")
            dw = T.alloc_fragment((N,), "float32")

            T.copy(weight, w)
            T.clear(each_dw)
            for turn in T.Pipelined(T.ceildiv(M, blocks * block_M), num_stages=num_stages):
                row = (turn * blocks + block) * block_M
                T.copy(X[row, 0], x)
                T.copy(dY[row, 0], dy)
                T.copy(r[row], scale)
                for i, j in T.Parallel(block_M, N):
                    x[i, j] *= scale[i]
                    products[i, j] = dy[i, j] * x[i, j]
                    each_dw[i, j] += products[i, j]
                    products[i, j] *= w[j]
                T.reduce_sum(products, total, dim=1)
                for i, j in T.Parallel(block_M, N):
                    x[i, j] = scale[i] * (dy[i, j] * w[j] - x[i, j] * (total[i] / N))
                T.copy(x, dX[row, 0])
            T.reduce_sum(each_dw, dw, dim=0)
            T.copy(dw, partial[block, 0])
        column_sums(partial, dweight, blocks, N, sum_N)

    return rms_norm_gradient


@tiledsl.jit(out_idx=[5, 6, 7])
def layer_norm_gradient(M, N, block_M=1, blocks=264, num_stages=2, threads=256, sum_N=32, dtype="bfloat16"):
    """With x = (X - mean) * r and Y = x * weight + bias: dX = r * (h - mean(h) - x * mean(h * x)), h = dY * weight;
    dweight = sums of dY * x over the rows, dbias of dY."""

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
        partial_weight = T.alloc_global((blocks, N), "float32")
        partial_bias = T.alloc_global((blocks, N), "float32")
        with T.Kernel(blocks, threads=threads) as block:
            T.pdl_trigger()
            given_x = T.alloc_fragment((block_M, N), dtype)
            given_dy = T.alloc_fragment((block_M, N), dtype)
            x = T.alloc_fragment((block_M, N), "float32")
            dy = T.alloc_fragment((block_M, N), "float32")
            w = T.alloc_fragment((N,), dtype)
            products = T.alloc_fragment((block_M, N), "float32")
            scaled = T.alloc_fragment((block_M, N), "float32")
            centre = T.alloc_fragment((block_M,), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            product = T.alloc_fragment((block_M,), "float32")
            dw = T.alloc_fragment((N,), "float32")
            db = T.alloc_fragment((N,), "float32")

            T.clear(dw)
            T.clear(db)
            T.copy(weight, w)
            for turn in T.Pipelined(T.ceildiv(M, blocks * block_M), num_stages=num_stages):
                row = (turn * blocks + block) * block_M
                T.copy(X[row, 0], given_x)
                T.copy(dY[row, 0], given_dy)
                T.copy(mean[row], centre)
                T.copy(r[row], scale)
                for i, j in T.Parallel(block_M, N):
                    x[i, j] = T.cast(given_x[i, j], "float32") - centre[i]
                    dy[i, j] = T.cast(given_dy[i, j], "float32")
                    products[i, j] = dy[i, j] * x[i, j]
                    scaled[i, j] = products[i, j] * scale[i]
                T.reduce_sum(dy, db, dim=0, clear=False)
                T.reduce_sum(scaled, dw, dim=0, clear=False)
                for i, j in T.Parallel(block_M, N):
                    products[i, j] *= T.cast(w[j], "float32")
                    dy[i, j] *= T.cast(w[j], "float32")
                T.reduce_sum(dy, total, dim=1)
                T.reduce_sum(products, product, dim=1)
                for i in T.Parallel(block_M):
                    total[i] *= scale[i] / N
                    product[i] *= scale[i] * scale[i] * scale[i] / N
                for i, j in T.Parallel(block_M, N):
                    x[i, j] = scale[i] * dy[i, j] - (x[i, j] * product[i] + total[i])
                T.copy(x, dX[row, 0])
            T.copy(dw, partial_weight[block, 0])
            T.copy(db, partial_bias[block, 0])
        column_sums_of_two(partial_weight, dweight, partial_bias, dbias, blocks, N, sum_N)

    return layer_norm_gradient
