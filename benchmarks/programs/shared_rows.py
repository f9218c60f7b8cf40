"""Softmax where several blocks share a row, so that rows of any width leave DRAM once.

A row is passed over twice, in pieces. In phase 0 a block reduces a piece and
counts it as done; in phase 1, `delay` turns behind, one waits for all pieces of the row and finds its own in the
second-level cache. Blocks start in the order of their index and wait only for those before them, so that none waits for
one that cannot start.
"""

from __future__ import annotations

import tiledsl
import tiledsl.language as T

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
