"""Attention, backward: the gradients of examples/attention.py, as a function that torch.autograd can differentiate.

With P = softmax(Q K^T / sqrt(dim)) and O = P V, the gradients for dO are dV = P^T dO and, with D = rowsum(dO * O) and
dS = P * (dO V^T - D), dQ = dS K / sqrt(dim) and dK = dS^T Q / sqrt(dim). P is computed again from the forward kernel's
LSE, so that nothing of size queries x keys is stored (Dao et al. 2022).

Three kernels: D; then dK and dV, where a block owns block_N keys of one K/V head and walks over the queries of all
query heads that share it; then dQ, where a block owns block_M queries and walks over the keys. No block writes what
another one does, so there are no atomics, and the results are the same on every run. In the first walk the scores are
computed transposed, S^T = K Q^T, so that P^T and dS^T come out of registers as the left operands they are.

Faster on Hopper: `gradients_at_once` also adds dS K to a float32 dQ during the first walk, five products for each pair
of tiles instead of seven. The order of these additions, and with it the last bits of dQ, changes from run to run.
`begin` and `finish` clear and convert that dQ.
"""

from __future__ import annotations

import math

import torch
from _check_and_time import largest_error, print_speed, run_script
from attention import attention, random_inputs, reference, seen_pairs

import tiledsl
import tiledsl.language as T

SMALL = {"batch": 1, "heads": 4, "kv_heads": 2, "queries": 40, "keys": 56, "dim": 16, "block_M": 16, "block_N": 16}


@tiledsl.jit(out_idx=[2])
def row_products(rows, dim, dtype="float16", block_M=64, threads=128):
    """D[row] = sum over columns of O * dO."""

    @T.prim_func
    def attention_row_products(
        O: T.Tensor((rows, dim), dtype), dO: T.Tensor((rows, dim), dtype), D: T.Tensor((rows,), "float32")
    ):
        with T.Kernel(T.ceildiv(rows, block_M), threads=threads) as bx:
            o = T.alloc_fragment((block_M, dim), "float32")
            do = T.alloc_fragment((block_M, dim), "float32")
            d = T.alloc_fragment((block_M,), "float32")
            T.copy(O[bx * block_M, 0], o)
            T.copy(dO[bx * block_M, 0], do)
            for i, j in T.Parallel(block_M, dim):
                o[i, j] *= do[i, j]
            T.reduce_sum(o, d, dim=1)
            T.copy(d, D[bx * block_M])

    return attention_row_products


@tiledsl.jit(out_idx=[6, 7])
def key_value_gradients(
    batch,
    heads,
    kv_heads,
    queries,
    keys,
    dim,
    causal=False,
    dtype="float16",
    block_M=64,
    block_N=128,
    threads=256,
    num_stages=2,
):
    group = heads // kv_heads
    scale = math.log2(math.e) / math.sqrt(dim)
    past = keys - queries

    @T.prim_func
    def attention_key_value_gradients(
        Q: T.Tensor((batch, heads, queries, dim), dtype),
        K: T.Tensor((batch, kv_heads, keys, dim), dtype),
        V: T.Tensor((batch, kv_heads, keys, dim), dtype),
        dO: T.Tensor((batch, heads, queries, dim), dtype),
        LSE: T.Tensor((batch, heads, queries), "float32"),
        D: T.Tensor((batch, heads, queries), "float32"),
        dK: T.Tensor((batch, kv_heads, keys, dim), dtype),
        dV: T.Tensor((batch, kv_heads, keys, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(keys, block_N), kv_heads, batch, threads=threads) as (bx, kv_head, b):
            k = T.alloc_shared((block_N, dim), dtype)
            v = T.alloc_shared((block_N, dim), dtype)
            q = T.alloc_shared((block_M, dim), dtype)
            do = T.alloc_shared((block_M, dim), dtype)
            lse = T.alloc_fragment((block_M,), "float32")
            d = T.alloc_fragment((block_M,), "float32")
            p = T.alloc_fragment((block_N, block_M), "float32")  # transposed: a row for each key
            ds = T.alloc_fragment((block_N, block_M), "float32")
            p_half = T.alloc_fragment((block_N, block_M), dtype)
            ds_half = T.alloc_fragment((block_N, block_M), dtype)
            dk = T.alloc_fragment((block_N, dim), "float32")
            dv = T.alloc_fragment((block_N, dim), "float32")

            @T.macro
            def visit(head, tile, masked):
                T.copy(Q[b, head, tile * block_M, 0], q)
                T.copy(LSE[b, head, tile * block_M], lse)
                T.gemm(k, q, p, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_N, block_M):
                    p[i, j] = T.exp2(p[i, j] * scale - lse[j])
                if masked:
                    for i, j in T.Parallel(block_N, block_M):
                        seen = bx * block_N + i <= tile * block_M + j + past
                        p[i, j] = T.if_then_else(seen, p[i, j], 0)
                T.copy(p, p_half)
                T.copy(dO[b, head, tile * block_M, 0], do)
                T.gemm(p_half, do, dv)
                T.copy(D[b, head, tile * block_M], d)
                T.gemm(v, do, ds, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_N, block_M):
                    ds[i, j] = p[i, j] * (ds[i, j] - d[j])
                T.copy(ds, ds_half)
                T.gemm(ds_half, q, dk)

            T.copy(K[b, kv_head, bx * block_N, 0], k)
            T.copy(V[b, kv_head, bx * block_N, 0], v)
            T.clear(dk)
            T.clear(dv)
            # Queries past the end read zeros and add nothing; keys past the end are not stored. Only causality masks.
            end = T.ceildiv(queries, block_M)
            first, full = 0, 0
            if causal:
                first = T.min(end, T.max(0, bx * block_N - past) // block_M)
                full = T.min(end, T.ceildiv(T.max(0, bx * block_N + block_N - 1 - past), block_M))
            for member in T.serial(group):
                head = kv_head * group + member
                if causal:
                    for tile in T.Pipelined(first, full, num_stages=num_stages):
                        visit(head, tile, True)
                for tile in T.Pipelined(full, end, num_stages=num_stages):
                    visit(head, tile, False)
            for i, j in T.Parallel(block_N, dim):
                dk[i, j] *= 1 / math.sqrt(dim)
            T.copy(dk, dK[b, kv_head, bx * block_N, 0])
            T.copy(dv, dV[b, kv_head, bx * block_N, 0])

    return attention_key_value_gradients


@tiledsl.jit(out_idx=[6])
def query_gradient(
    batch,
    heads,
    kv_heads,
    queries,
    keys,
    dim,
    causal=False,
    dtype="float16",
    block_M=128,
    block_N=64,
    threads=256,
    num_stages=2,
):
    group = heads // kv_heads
    scale = math.log2(math.e) / math.sqrt(dim)
    past = keys - queries

    @T.prim_func
    def attention_query_gradient(
        Q: T.Tensor((batch, heads, queries, dim), dtype),
        K: T.Tensor((batch, kv_heads, keys, dim), dtype),
        V: T.Tensor((batch, kv_heads, keys, dim), dtype),
        dO: T.Tensor((batch, heads, queries, dim), dtype),
        LSE: T.Tensor((batch, heads, queries), "float32"),
        D: T.Tensor((batch, heads, queries), "float32"),
        dQ: T.Tensor((batch, heads, queries, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(queries, block_M), heads, batch, threads=threads) as (bx, head, b):
            q = T.alloc_shared((block_M, dim), dtype)
            do = T.alloc_shared((block_M, dim), dtype)
            k = T.alloc_shared((block_N, dim), dtype)
            v = T.alloc_shared((block_N, dim), dtype)
            lse = T.alloc_fragment((block_M,), "float32")
            d = T.alloc_fragment((block_M,), "float32")
            p = T.alloc_fragment((block_M, block_N), "float32")
            ds = T.alloc_fragment((block_M, block_N), "float32")
            ds_half = T.alloc_fragment((block_M, block_N), dtype)
            dq = T.alloc_fragment((block_M, dim), "float32")

            position = bx * block_M + past
            kv_head = head // group

            @T.macro
            def visit(tile, masked):
                T.copy(K[b, kv_head, tile * block_N, 0], k)
                T.copy(V[b, kv_head, tile * block_N, 0], v)
                T.gemm(q, k, p, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    p[i, j] = T.exp2(p[i, j] * scale - lse[i])
                if masked:
                    for i, j in T.Parallel(block_M, block_N):
                        key = tile * block_N + j
                        seen = key <= position + i if causal else key < keys
                        p[i, j] = T.if_then_else(seen, p[i, j], 0)
                T.gemm(do, v, ds, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    ds[i, j] = p[i, j] * (ds[i, j] - d[i])
                T.copy(ds, ds_half)
                T.gemm(ds_half, k, dq)

            T.copy(Q[b, head, bx * block_M, 0], q)
            T.copy(dO[b, head, bx * block_M, 0], do)
            T.copy(LSE[b, head, bx * block_M], lse)
            T.copy(D[b, head, bx * block_M], d)
            T.clear(dq)
            full = keys // block_N
            end = T.ceildiv(keys, block_N)
            if causal:
                full = T.min(full, T.max(0, position + 1) // block_N)
                end = T.min(end, T.ceildiv(T.max(0, position + block_M), block_N))
            for tile in T.Pipelined(full, num_stages=num_stages):
                visit(tile, False)
            if causal or keys % block_N:
                for tile in T.Pipelined(full, end, num_stages=num_stages):
                    visit(tile, True)
            for i, j in T.Parallel(block_M, dim):
                dq[i, j] *= 1 / math.sqrt(dim)
            T.copy(dq, dQ[b, head, bx * block_M, 0])

    return attention_query_gradient


@tiledsl.jit(out_idx=[2, 3])
def begin(rows, dim, dtype="float16", block_M=32, threads=128):
    """D[row] = sum over columns of O * dO, and a dQ of zeros."""

    @T.prim_func
    def attention_begin_gradients(
        O: T.Tensor((rows, dim), dtype),
        dO: T.Tensor((rows, dim), dtype),
        D: T.Tensor((rows,), "float32"),
        dQ: T.Tensor((rows, dim), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, block_M), threads=threads) as bx:
            o = T.alloc_fragment((block_M, dim), "float32")
            do = T.alloc_fragment((block_M, dim), "float32")
            d = T.alloc_fragment((block_M,), "float32")
            T.copy(O[bx * block_M, 0], o)
            T.copy(dO[bx * block_M, 0], do)
            for i, j in T.Parallel(block_M, dim):
                o[i, j] *= do[i, j]
            T.reduce_sum(o, d, dim=1)
            T.copy(d, D[bx * block_M])
            T.clear(o)
            T.copy(o, dQ[bx * block_M, 0])

    return attention_begin_gradients


@tiledsl.jit(out_idx=[1])
def finish(rows, dim, dtype="float16", block_M=32, threads=128):
    """dQ / sqrt(dim), in dtype."""

    @T.prim_func
    def attention_finish_gradients(dQ: T.Tensor((rows, dim), "float32"), out: T.Tensor((rows, dim), dtype)):
        with T.Kernel(T.ceildiv(rows, block_M), threads=threads) as bx:
            dq = T.alloc_fragment((block_M, dim), "float32")
            T.copy(dQ[bx * block_M, 0], dq)
            for i, j in T.Parallel(block_M, dim):
                dq[i, j] *= 1 / math.sqrt(dim)
            T.copy(dq, out[bx * block_M, 0])

    return attention_finish_gradients


@tiledsl.jit(out_idx=[7, 8])
def gradients_at_once(
    batch,
    heads,
    kv_heads,
    queries,
    keys,
    dim,
    causal=False,
    dtype="float16",
    block_M=64,
    block_N=128,
    threads=256,
    num_stages=2,
):
    group = heads // kv_heads
    scale = math.log2(math.e) / math.sqrt(dim)
    past = keys - queries

    @T.prim_func
    def attention_gradients(
        Q: T.Tensor((batch, heads, queries, dim), dtype),
        K: T.Tensor((batch, kv_heads, keys, dim), dtype),
        V: T.Tensor((batch, kv_heads, keys, dim), dtype),
        dO: T.Tensor((batch, heads, queries, dim), dtype),
        LSE: T.Tensor((batch, heads, queries), "float32"),
        D: T.Tensor((batch, heads, queries), "float32"),
        dQ: T.Tensor((batch, heads, queries, dim), "float32"),  # added to
        dK: T.Tensor((batch, kv_heads, keys, dim), dtype),
        dV: T.Tensor((batch, kv_heads, keys, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(keys, block_N), kv_heads, batch, threads=threads) as (bx, kv_head, b):
            k = T.alloc_shared((block_N, dim), dtype)
            v = T.alloc_shared((block_N, dim), dtype)
            q = T.alloc_shared((block_M, dim), dtype)
            do = T.alloc_shared((block_M, dim), dtype)
            lse = T.alloc_fragment((block_M,), "float32")
            d = T.alloc_fragment((block_M,), "float32")
            p = T.alloc_fragment((block_N, block_M), "float32")  # transposed: a row for each key
            ds = T.alloc_fragment((block_N, block_M), "float32")
            p_half = T.alloc_fragment((block_N, block_M), dtype)
            ds_half = T.alloc_shared((block_N, block_M), dtype)
            dk = T.alloc_fragment((block_N, dim), "float32")
            dv = T.alloc_fragment((block_N, dim), "float32")
            dq = T.alloc_fragment((block_M, dim), "float32")

            @T.macro
            def visit(head, tile, masked):
                T.copy(Q[b, head, tile * block_M, 0], q)
                T.copy(LSE[b, head, tile * block_M], lse)
                T.gemm(k, q, p, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_N, block_M):
                    p[i, j] = T.exp2(p[i, j] * scale - lse[j])
                if masked:
                    for i, j in T.Parallel(block_N, block_M):
                        query, key = tile * block_M + j, bx * block_N + i
                        seen = key <= query + past if causal else key < keys
                        p[i, j] = T.if_then_else(seen, p[i, j], 0)
                T.copy(p, p_half)
                T.copy(dO[b, head, tile * block_M, 0], do)
                T.gemm(p_half, do, dv)
                T.copy(D[b, head, tile * block_M], d)
                T.gemm(v, do, ds, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_N, block_M):
                    ds_half[i, j] = p_half[i, j] * (ds[i, j] - d[j])
                T.gemm(ds_half, q, dk)
                T.gemm(ds_half, k, dq, transpose_A=True, clear_accum=True)
                for i, j in T.Parallel(block_M, dim):
                    T.atomic_add(dQ[b, head, tile * block_M + i, j], dq[i, j])

            T.copy(K[b, kv_head, bx * block_N, 0], k)
            T.copy(V[b, kv_head, bx * block_N, 0], v)
            T.clear(dk)
            T.clear(dv)
            # Queries past the end read zeros and add nothing; keys past the end give their queries nothing.
            end = T.ceildiv(queries, block_M)
            first, full = 0, 0
            if causal:
                first = T.min(end, T.max(0, bx * block_N - past) // block_M)
                full = T.min(end, T.ceildiv(T.max(0, bx * block_N + block_N - 1 - past), block_M))
            for member in T.serial(group):
                head = kv_head * group + member
                if causal:
                    for tile in T.Pipelined(first, full, num_stages=num_stages):
                        visit(head, tile, True)
                # Without a mask, blocks begin their walks apart, so that they add to different rows of dQ.
                apart = 0 if causal else bx * (block_N // block_M)
                for turn in T.Pipelined(full, end, num_stages=num_stages):
                    visit(head, turn if causal else (turn + apart) % end, not causal and keys % block_N != 0)
            for i, j in T.Parallel(block_N, dim):
                dk[i, j] *= 1 / math.sqrt(dim)
            T.copy(dk, dK[b, kv_head, bx * block_N, 0])
            T.copy(dv, dV[b, kv_head, bx * block_N, 0])

    return attention_gradients


class Attention(torch.autograd.Function):
    """`Attention.apply(q, k, v, causal, block_M, block_N, at_once)`, differentiable in q, k and v."""

    @staticmethod
    def forward(ctx, q, k, v, causal=False, block_M=128, block_N=128, at_once=False):
        shape = (*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3])
        out, lse = attention(*shape, causal, block_M=block_M, block_N=block_N)(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.setting = (shape, causal, block_M, block_N, at_once)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        (batch, heads, kv_heads, queries, keys, dim), causal, block_M, block_N, at_once = ctx.setting
        rows, grad = batch * heads * queries, grad.contiguous()
        flat = out.view(rows, dim), grad.view(rows, dim)
        # The tiles a block walks over are half as long as those it owns: two accumulators and two score tiles must fit.
        shape = (batch, heads, kv_heads, queries, keys, dim, causal)
        walk_M, walk_N = max(16, block_M // 2), max(16, block_N // 2)
        if at_once:
            d, dq = begin(rows, dim)(*flat)
            d, sums = d.view(batch, heads, queries), dq.view(q.shape)
            dk, dv = gradients_at_once(*shape, block_M=walk_M, block_N=block_N)(q, k, v, grad, lse, d, sums)
            return finish(rows, dim)(dq).view(q.shape), dk, dv, None, None, None, None
        d = row_products(rows, dim)(*flat).view(batch, heads, queries)
        dk, dv = key_value_gradients(*shape, block_M=walk_M, block_N=block_N)(q, k, v, grad, lse, d)
        dq = query_gradient(*shape, block_M=block_M, block_N=walk_N)(q, k, v, grad, lse, d)
        return dq, dk, dv, None, None, None, None


def gradients(function, inputs, grad):
    """The function's gradients with respect to its inputs; the forward pass is part of it."""
    inputs = [each.detach().requires_grad_() for each in inputs]
    return torch.autograd.grad(function(*inputs), inputs, grad)


def main(
    *, batch=4, heads=32, kv_heads=32, queries=4096, keys=4096, dim=128, causal=0, block_M=128, block_N=128, at_once=0
):
    inputs = random_inputs(batch, heads, kv_heads, queries, keys, dim)
    grad = torch.randn_like(inputs[0])

    def ours(q, k, v):
        return Attention.apply(q, k, v, bool(causal), block_M, block_N, bool(at_once))

    def eager(q, k, v):
        return reference(q, k, v, causal)

    # P and dS are rounded to float16 before they meet Q, K and dO; sums are float32. The largest gradients are near 10.
    expected = gradients(eager, [each.float() for each in inputs], grad.float())
    error = 0.0
    for actual, wanted in zip(gradients(ours, inputs, grad), expected):
        error = max(error, largest_error(actual, wanted, rtol=1e-2, atol=1e-2))
    del expected
    print_speed(
        f"{'causal ' if causal else ''}attention forward and backward, {batch} x {heads}/{kv_heads} heads, "
        f"{queries} x {keys}, dim {dim}",
        lambda: gradients(ours, inputs, grad),
        lambda: gradients(eager, inputs, grad),
        # Two products forward; five backward, seven where S and dP are computed by two kernels.
        operations=(2 + (5 if at_once else 7)) * 2 * batch * heads * seen_pairs(queries, keys, causal) * dim,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
