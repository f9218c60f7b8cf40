"""Products and attention as TileLang compiles them best: what the suite gives it to run.

Results leave through shared memory, so that they are written in whole lines; each warp has whole rows of the scores, so
that no row is reduced across warps; and attention walks in one loop, which masks every tile that it has to
(examples/attention.py has a loop for those and one for the others).
"""

import math

import tiledsl
import tiledsl.language as T


@tiledsl.jit(out_idx=[-1])
def staged_matmul(M, N, K, block_M, block_N, block_K, num_stages=3, threads=256, panel=8, dtype="float16"):
    """C[M, N] = A[M, K] @ B[N, K].T."""

    @T.prim_func
    def staged_matmul(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_N, block_K), dtype)
            C_tile = T.alloc_shared((block_M, block_N), dtype)
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(panel_size=panel)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[bx * block_N, k * block_K], B_tile)
                T.gemm(A_tile, B_tile, total, transpose_B=True)
            T.copy(total, C_tile)
            T.copy(C_tile, C[by * block_M, bx * block_N])

    return staged_matmul


@tiledsl.jit(out_idx=[-1], pass_configs={"tl.enable_fast_math": True})
def one_loop_attention(
    batch,
    heads,
    kv_heads,
    queries,
    keys,
    dim,
    causal,
    window=0,
    dtype="float16",
    block_M=128,
    block_N=128,
    num_stages=2,
    threads=256,
    value_dim=0,
):
    """O = softmax(Q K^T / sqrt(dim)) V, shapes as in examples/attention.py.

    Causal: queries and keys are as many. With a window, causal too.
    """
    group = heads // kv_heads
    value_dim = value_dim or dim
    scale = math.log2(math.e) / math.sqrt(dim)
    masked = causal or keys % block_N != 0

    @T.prim_func
    def one_loop_attention(
        Q: T.Tensor((batch, heads, queries, dim), dtype),
        K: T.Tensor((batch, kv_heads, keys, dim), dtype),
        V: T.Tensor((batch, kv_heads, keys, value_dim), dtype),
        O: T.Tensor((batch, heads, queries, value_dim), dtype),
    ):
        with T.Kernel(T.ceildiv(queries, block_M), heads, batch, threads=threads) as (bx, head, b):
            q = T.alloc_shared((block_M, dim), dtype)
            k = T.alloc_shared((block_N, dim), dtype)
            v = T.alloc_shared((block_N, value_dim), dtype)
            o = T.alloc_shared((block_M, value_dim), dtype)
            scores = T.alloc_fragment((block_M, block_N), "float32")
            weights = T.alloc_fragment((block_M, block_N), dtype)
            acc = T.alloc_fragment((block_M, value_dim), "float32")
            highest = T.alloc_fragment((block_M,), "float32")
            previous = T.alloc_fragment((block_M,), "float32")
            rescale = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            tile_total = T.alloc_fragment((block_M,), "float32")
            T.copy(Q[b, head, bx * block_M, 0], q)
            T.clear(acc)
            T.clear(total)
            if window:
                T.fill(highest, -1e30)  # finite: a row may see nothing of its first tile
            else:
                T.fill(highest, -T.infinity("float32"))
            first = T.max(0, bx * block_M - window + 1) // block_N if window else 0
            end = T.ceildiv(keys, block_N)
            if causal:
                end = T.min(end, T.ceildiv((bx + 1) * block_M, block_N))
            for tile in T.Pipelined(first, end, num_stages=num_stages):
                T.copy(K[b, head // group, tile * block_N, 0], k)
                if masked:
                    for i, j in T.Parallel(block_M, block_N):
                        row, key = bx * block_M + i, tile * block_N + j
                        seen = key <= row if causal else key < keys
                        if window:
                            seen = seen and row < key + window
                        scores[i, j] = T.if_then_else(seen, 0, -T.infinity("float32"))
                else:
                    T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(highest, previous)
                T.reduce_max(scores, highest, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    rescale[i] = T.exp2(previous[i] * scale - highest[i] * scale)
                for i, j in T.Parallel(block_M, block_N):
                    scores[i, j] = T.exp2(scores[i, j] * scale - highest[i] * scale)
                T.reduce_sum(scores, tile_total, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * rescale[i] + tile_total[i]
                T.copy(scores, weights)
                for i, j in T.Parallel(block_M, value_dim):
                    acc[i, j] *= rescale[i]
                T.copy(V[b, head // group, tile * block_N, 0], v)
                T.gemm(weights, v, acc, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_M, value_dim):
                acc[i, j] /= total[i]
            T.copy(acc, o)
            T.copy(o, O[b, head, bx * block_M, 0])

    return one_loop_attention
