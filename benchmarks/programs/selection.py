"""Rows in order, a scan of a whole array in one pass, and the k largest of long rows."""

from __future__ import annotations

import tiledsl
import tiledsl.language as T
from benchmarks.programs.wide_rows import start


@tiledsl.jit(out_idx=[-1])
def sorted_rows(M, N, block_M=1, threads=64, dtype="int32"):
    """Y[M, N] = the rows of X[M, N], ascending."""

    @T.prim_func
    def sorted_rows(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as block:
            x = T.alloc_fragment((block_M, N), dtype)
            T.copy(X[block * block_M, 0], x)
            T.sort(x, dim=1)
            T.copy(x, Y[block * block_M, 0])

    return sorted_rows


@T.macro
def look(words, turn, blocks, found):
    """The words of a turn, as far as they are there."""
    for p in T.Parallel(blocks):
        found[p] = T.atomic_load(words[turn * blocks + p], memory_order="relaxed")


@T.macro
def is_missing(found, blocks):
    """1 if one of the words is not there."""
    empty = T.alloc_fragment((blocks,), "int32")
    missing = T.alloc_var("int32")
    for p in T.Parallel(blocks):
        empty[p] = T.if_then_else(found[p] == 0, 1, 0)
    T.reduce_max(empty, missing, dim=0)
    return missing


@tiledsl.jit(out_idx=[-1])
def cumulative_sum(N, block_N=4096, blocks=264, lag=1, num_stages=2, threads=256):
    """Y[N] = the sums of X[0] to X[n], in float32.

    `blocks` blocks, as many as run at once, walk over the tiles side by side, and hand their tile's sum in as one word,
    as in wide_rows.py. `lag` turns later each adds up what all have handed in, and those before it apart, and scans its
    tile, which `hold-tiles` keeps in shared memory.
    """
    turns = -(-N // (block_N * blocks))

    @T.prim_func
    def cumulative_sum(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        words = start((turns + 2 * lag) * blocks, lag * blocks)
        with T.Kernel(blocks, threads=threads) as block:
            new = T.alloc_fragment((block_N,), "float32")
            held = T.alloc_fragment((block_N,), "float32")
            y = T.alloc_fragment((block_N,), "float32")
            found = T.alloc_fragment((blocks,), "uint64")
            sums = T.alloc_fragment((blocks,), "float32")
            total = T.alloc_var("float32")
            before = T.alloc_var("float32")
            base = T.alloc_var("float32", 0.0)
            missing = T.alloc_var("int32", 0)

            for turn in T.Pipelined(turns + lag, num_stages=num_stages):
                tile = turn * blocks + block
                look(words, turn, blocks, found)
                T.copy(X[tile * block_N], new)
                T.reduce_sum(new, total, dim=0)
                there = T.cast(T.reinterpret(total, "uint32"), "uint64") | (T.cast(1, "uint64") << T.cast(32, "uint64"))
                T.atomic_store(words[tile + lag * blocks], there, memory_order="relaxed")
                T.copy(X[(tile - lag * blocks) * block_N], held)
                T.cumsum(held, y, dim=0)
                missing = is_missing(found, blocks)
                if missing > 0:
                    while missing > 0:
                        look(words, turn, blocks, found)
                        missing = is_missing(found, blocks)
                for p in T.Parallel(blocks):
                    sums[p] = T.reinterpret(T.cast(found[p] & 0xFFFFFFFF, "uint32"), "float32")
                T.reduce_sum(sums, total, dim=0)
                for p in T.Parallel(blocks):
                    sums[p] = T.if_then_else(p < block, sums[p], 0)
                T.reduce_sum(sums, before, dim=0)
                for j in T.Parallel(block_N):
                    y[j] += base + before
                T.copy(y, Y[(tile - lag * blocks) * block_N])
                base += total

    return cumulative_sum


@T.macro
def ordered(x, key, count):
    """key[count]: integers in the order of the numbers x."""
    for j in T.Parallel(count):
        bits = T.reinterpret(x[j], "uint32")
        key[j] = bits ^ T.if_then_else(bits >= 0x80000000, T.cast(0xFFFFFFFF, "uint32"), T.cast(0x80000000, "uint32"))


@T.macro
def select(key, k, count, values, places, row, start, offset):
    """The k largest numbers of key[count], made by `ordered`, to row `row` of `values` from `start` on, and their
    places plus `offset` to `places`. A key that k of them reach is looked for bit by bit; of equal ones the first are
    taken.
    """
    hits = T.alloc_fragment((count,), "int32")
    ranks = T.alloc_fragment((count,), "int32")
    threshold = T.alloc_var("uint32", 0)
    above = T.alloc_var("int32", 0)
    bit = T.alloc_var("int32", 31)
    while bit >= 0:
        trial = threshold | (T.cast(1, "uint32") << T.cast(bit, "uint32"))
        for j in T.Parallel(count):
            hits[j] = T.if_then_else(key[j] >= trial, 1, 0)
        T.reduce_sum(hits, above, dim=0)
        if above >= k:
            threshold = trial
        bit = T.if_then_else(above == k, -1, bit - 1)
    for j in T.Parallel(count):
        hits[j] = T.if_then_else(key[j] > threshold, 1, T.if_then_else(key[j] == threshold, 0x10000, 0))
    T.cumsum(hits, ranks, dim=0)
    T.reduce_sum(hits, above, dim=0)
    above = above & 0xFFFF
    for j in T.Parallel(count):
        rank = T.if_then_else(key[j] > threshold, ranks[j] & 0xFFFF, above + (ranks[j] >> 16))
        if key[j] >= threshold and rank <= k:
            sign = T.if_then_else(key[j] >= 0x80000000, T.cast(0x80000000, "uint32"), T.cast(0xFFFFFFFF, "uint32"))
            bits = key[j] ^ sign
            values[row, start + rank - 1] = T.reinterpret(bits, "float32")
            places[row, start + rank - 1] = offset + j


@tiledsl.jit(out_idx=[1, 2])
def top_k(M, N, k, block_N=4096, threads=256, merge_threads=512):
    """The k largest of each row of X[M, N], descending, and where they are: of each tile of block_N first, then of what
    these leave."""
    tiles = -(-N // block_N)
    candidates = tiles * k

    @T.prim_func
    def top_k(X: T.Tensor((M, N), "float32"), values: T.Tensor((M, k), "float32"), indices: T.Tensor((M, k), "int32")):
        tops = T.alloc_global((M, candidates), "float32")
        at = T.alloc_global((M, candidates), "int32")
        best = T.alloc_global((M, k), "float32")
        among = T.alloc_global((M, k), "int32")
        with T.Kernel(tiles, M, threads=threads) as (tile, row):
            x = T.alloc_fragment((block_N,), "float32")
            key = T.alloc_fragment((block_N,), "uint32")
            T.annotate_safe_value({X: -T.infinity("float32")})
            T.copy(X[row, tile * block_N], x)
            ordered(x, key, block_N)
            select(key, k, block_N, tops, at, row, tile * k, tile * block_N)
        with T.Kernel(M, threads=merge_threads) as row:
            x = T.alloc_fragment((candidates,), "float32")
            key = T.alloc_fragment((candidates,), "uint32")
            T.copy(tops[row, 0], x)
            ordered(x, key, candidates)
            select(key, k, candidates, best, among, row, 0, 0)
        with T.Kernel(M, threads=min(256, max(32, k // 2))) as row:
            x = T.alloc_fragment((k,), "float32")
            sorted = T.alloc_fragment((k,), "float32")
            order = T.alloc_fragment((k,), "int32")
            T.copy(best[row, 0], x)
            T.topk(x, sorted, order)
            for j in T.Parallel(k):
                values[row, j] = sorted[j]
                indices[row, j] = at[row, among[row, order[j]]]

    return top_k
