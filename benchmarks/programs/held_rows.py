"""Softmax's gradient of rows that several blocks hold on the chip: read once.

`blocks` blocks, as many as run at once, walk over rows, each with a piece of them. In each turn a block reduces the
piece that it loaded and hands its part in as one word of a workspace, the number and a mark that it is there; then it
waits for the words of the row whose piece it holds since the turn before, and finishes that. So the other blocks of a
row have a turn's time, and what is loaded next (num_stages) is on its way meanwhile. A block waits only for those of
its row, which follow each other: blocks start in the order of their index, so that these run, or start next.
"""

from __future__ import annotations

import tiledsl
import tiledsl.language as T
from benchmarks.programs.shared_rows import clear_counts


def whole_groups(blocks, parts):
    """As many blocks, but for those that would be too few for a row."""
    return max(parts, blocks // parts * parts)


@T.macro
def hand_in(words, place, high, low=1.0):
    """Write two numbers as one word. The bits of the second one are not all 0: a word of 0 is not there yet."""
    lower = T.cast(T.reinterpret(T.cast(low, "float32"), "uint32"), "uint64")
    upper = T.cast(T.reinterpret(high, "uint32"), "uint64") << T.cast(32, "uint64")
    T.atomic_store(words[place], upper | lower, memory_order="relaxed")


@T.macro
def wait_for(words, first, parts, high, low):
    """The numbers of all parts of a row, once they are there."""
    found = T.alloc_fragment((parts,), "uint64")
    empty = T.alloc_fragment((parts,), "int32")
    missing = T.alloc_var("int32", 1)
    T.clear(found)
    while missing > 0:
        for p in T.Parallel(parts):
            found[p] = T.atomic_load(words[first + p], memory_order="relaxed")
        for p in T.Parallel(parts):
            empty[p] = T.if_then_else(found[p] == 0, 1, 0)
        T.reduce_max(empty, missing, dim=0)
    for p in T.Parallel(parts):
        low[p] = T.reinterpret(T.cast(found[p] & 0xFFFFFFFF, "uint32"), "float32")
        high[p] = T.reinterpret(T.cast(found[p] >> 32, "uint32"), "float32")


@T.macro
def shares_of(words, first, parts):
    """What the parts of a row have handed in."""
    marks = T.alloc_fragment((parts,), "float32")
    shares = T.alloc_fragment((parts,), "float32")
    wait_for(words, first, parts, shares, marks)
    return shares


@tiledsl.jit(out_idx=[-1])
def softmax_gradient(M, N, block_N=8192, blocks=528, num_stages=3, threads=256, dtype="bfloat16"):
    """With Y = softmax(X): dX = Y * (dY - sum(Y * dY))."""
    parts = -(-N // block_N)
    blocks = whole_groups(blocks, parts)
    turns = -(-M * parts // blocks)

    @T.prim_func
    def softmax_gradient(Y: T.Tensor((M, N), dtype), dY: T.Tensor((M, N), dtype), dX: T.Tensor((M, N), dtype)):
        words = T.alloc_global((turns * blocks,), "uint64")
        clear_counts(words, turns * blocks)
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
                    hand_in(words, task, total)
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
