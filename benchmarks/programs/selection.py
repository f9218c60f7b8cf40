"""Rows in order, a scan of a whole array in one pass, and the k largest of long rows."""

from __future__ import annotations

import tiledsl
import tiledsl.language as T


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


@tiledsl.jit(out_idx=[-1])
def cumulative_sum(N, block_N=4096, parts=256, ahead=1024, threads=256, dtype="float32"):
    """Y[N] = the sums of X[0] to X[n].

    A group is `parts` tiles. A block sums up a tile, and the last one to do so for its group adds what all groups
    before have: each group's last block waits for that of the group before. The block then scans a tile `ahead` blocks
    before, which the second-level cache still has. Blocks start in the order of their index, so that those waited for
    run.
    """
    tiles = -(-N // block_N)
    groups = -(-tiles // parts)
    delay = max(ahead, parts)

    @T.prim_func
    def cumulative_sum(X: T.Tensor((N,), dtype), Y: T.Tensor((N,), dtype)):
        sums = T.alloc_global((groups * parts,), dtype)
        counts = T.alloc_global((groups,), "int32")
        ready = T.alloc_global((groups + 1,), "int32")
        base = T.alloc_global((groups + 1,), dtype)
        with T.Kernel(1, threads=256):
            for i in T.Parallel(groups + 1):
                counts[i] = 0
                ready[i] = T.if_then_else(i == 0, 1, 0)
                base[i] = 0
        with T.Kernel(groups * parts + delay, threads=threads) as block:
            new = T.alloc_fragment((block_N,), dtype)
            x = T.alloc_fragment((block_N,), dtype)
            y = T.alloc_fragment((block_N,), dtype)
            part_sums = T.alloc_fragment((parts,), dtype)
            total = T.alloc_var(dtype)
            before = block - delay
            group = before // parts

            T.copy(X[block * block_N], new)
            T.copy(X[before * block_N], x)
            T.reduce_sum(new, total, dim=0)
            if block < groups * parts:
                own_group = block // parts
                sums[block] = total
                if T.atomic_add(counts[own_group], 1, memory_order="acq_rel", return_prev=True) == parts - 1:
                    T.copy(sums[own_group * parts], part_sums)
                    T.reduce_sum(part_sums, total, dim=0)
                    while T.atomic_load(ready[own_group], memory_order="acquire") == 0:
                        T.evaluate(0)
                    base[own_group + 1] = base[own_group] + total
                    T.atomic_add(ready[own_group + 1], 1, memory_order="release")
            T.cumsum(x, y, dim=0)
            if before >= 0:
                while T.atomic_load(ready[group + 1], memory_order="acquire") == 0:
                    T.evaluate(0)
                T.copy(sums[group * parts], part_sums)
                for p in T.Parallel(parts):
                    part_sums[p] = T.if_then_else(p < before - group * parts, part_sums[p], 0)
                T.reduce_sum(part_sums, total, dim=0)
                total = total + base[group]
                for j in T.Parallel(block_N):
                    y[j] += total
                T.copy(y, Y[before * block_N])

    return cumulative_sum


@T.macro
def ordered(x, key, count):
    """key[count]: integers in the order of the numbers x."""
    for j in T.Parallel(count):
        bits = T.reinterpret(x[j], "uint32")
        key[j] = bits ^ T.if_then_else(bits >= 0x80000000, 0xFFFFFFFF, 0x80000000)


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
            bits = key[j] ^ T.if_then_else(key[j] >= 0x80000000, 0x80000000, 0xFFFFFFFF)
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
