"""Kernels of the shared memory recordings, and what reading a program is tested with."""

from __future__ import annotations

import tiledsl
import tiledsl.language as T


@tiledsl.jit(out_idx=-1, target="cuda:90")
def gemm(M, N, K, block_M, block_N, block_K, num_stages, threads, dtype="float16", trans_B=False, out="float16"):
    bshape = (N, K) if trans_B else (K, N)
    acc_t = "int32" if dtype == "int8" else "float32"

    @T.prim_func
    def gemm(A: T.Tensor((M, K), dtype), B: T.Tensor(bshape, dtype), C: T.Tensor((M, N), out)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_s = T.alloc_shared((block_M, block_K), dtype)
            B_s = T.alloc_shared((block_N, block_K) if trans_B else (block_K, block_N), dtype)
            acc = T.alloc_fragment((block_M, block_N), acc_t)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_s)
                if trans_B:
                    T.copy(B[bx * block_N, k * block_K], B_s)
                else:
                    T.copy(B[k * block_K, bx * block_N], B_s)
                T.gemm(A_s, B_s, acc, transpose_B=trans_B)
            T.copy(acc, C[by * block_M, bx * block_N])

    return gemm


@tiledsl.jit(out_idx=-1, target="cuda:90")
def attention(batch, heads, seq, dim, is_causal, block_M, block_N, num_stages, threads):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    shape = (batch, seq, heads, dim)

    @T.prim_func
    def attention(
        Q: T.Tensor(shape, "float16"),
        K: T.Tensor(shape, "float16"),
        V: T.Tensor(shape, "float16"),
        Output: T.Tensor(shape, "float16"),
    ):
        with T.Kernel(T.ceildiv(seq, block_M), heads, batch, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, dim], "float16")
            K_shared = T.alloc_shared([block_N, dim], "float16")
            V_shared = T.alloc_shared([block_N, dim], "float16")
            acc_s = T.alloc_fragment([block_M, block_N], "float32")
            acc_s_cast = T.alloc_fragment([block_M, block_N], "float16")
            acc_o = T.alloc_fragment([block_M, dim], "float32")
            m = T.alloc_fragment([block_M], "float32")
            mp = T.alloc_fragment([block_M], "float32")
            sc = T.alloc_fragment([block_M], "float32")
            ss = T.alloc_fragment([block_M], "float32")
            l = T.alloc_fragment([block_M], "float32")
            T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(l, 0)
            T.fill(m, -T.infinity("float32"))
            loop_range = (
                T.min(T.ceildiv(seq, block_N), T.ceildiv((bx + 1) * block_M, block_N))
                if is_causal
                else T.ceildiv(seq, block_N)
            )
            for k in T.Pipelined(loop_range, num_stages=num_stages):
                T.copy(K[bz, k * block_N : (k + 1) * block_N, by, :], K_shared)
                if is_causal:
                    for i, j in T.Parallel(block_M, block_N):
                        acc_s[i, j] = T.if_then_else(bx * block_M + i >= k * block_N + j, 0, -T.infinity("float32"))
                else:
                    T.clear(acc_s)
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True)
                T.copy(m, mp)
                T.fill(m, -T.infinity("float32"))
                T.reduce_max(acc_s, m, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    m[i] = T.max(m[i], mp[i])
                for i in T.Parallel(block_M):
                    sc[i] = T.exp2(mp[i] * scale - m[i] * scale)
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - m[i] * scale)
                T.reduce_sum(acc_s, ss, dim=1)
                for i in T.Parallel(block_M):
                    l[i] = l[i] * sc[i] + ss[i]
                T.copy(acc_s, acc_s_cast)
                for i, j in T.Parallel(block_M, dim):
                    acc_o[i, j] *= sc[i]
                T.copy(V[bz, k * block_N : (k + 1) * block_N, by, :], V_shared)
                T.gemm(acc_s_cast, V_shared, acc_o)
            for i, j in T.Parallel(block_M, dim):
                acc_o[i, j] /= l[i]
            T.copy(acc_o, Output[bz, bx * block_M : (bx + 1) * block_M, by, :])

    return attention


@tiledsl.jit(out_idx=-1, target="cuda:90")
def varied(M, N, K, bM, bN, bK, st, th, dtype="float16", tA=False, tB=False, variant="plain"):
    sa = (K, M) if tA else (M, K)
    sb = (N, K) if tB else (K, N)
    acc_t = "int32" if dtype == "int8" else "float32"
    ta = (bK, bM) if tA else (bM, bK)
    tb = (bN, bK) if tB else (bK, bN)
    src = "int8" if variant == "dequant" else dtype

    @T.prim_func
    def varied(
        A: T.Tensor(sa, dtype), B: T.Tensor(sb, src), S: T.Tensor((N,), "float32"), C: T.Tensor((M, N), "float32")
    ):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=th) as (bx, by):
            A_s = T.alloc_shared(ta, dtype)
            B_q = T.alloc_shared(tb, src)
            B_s = T.alloc_shared(tb, dtype)
            acc = T.alloc_fragment((bM, bN), acc_t)
            acc2 = T.alloc_fragment((bM, bN), acc_t)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=st):
                if tA:
                    T.copy(A[k * bK, by * bM], A_s)
                else:
                    T.copy(A[by * bM, k * bK], A_s)
                if variant == "dequant":
                    if tB:
                        T.copy(B[bx * bN, k * bK], B_q)
                    else:
                        T.copy(B[k * bK, bx * bN], B_q)
                    T.copy(B_q, B_s)
                else:
                    if tB:
                        T.copy(B[bx * bN, k * bK], B_s)
                    else:
                        T.copy(B[k * bK, bx * bN], B_s)
                if variant == "relu":
                    for i, j in T.Parallel(ta[0], ta[1]):
                        A_s[i, j] = T.max(A_s[i, j], 0)
                if variant == "scaled":
                    T.clear(acc2)
                    T.gemm(A_s, B_s, acc2, transpose_A=tA, transpose_B=tB)
                    for i, j in T.Parallel(bM, bN):
                        acc[i, j] += acc2[i, j] * S[bx * bN + j]
                elif variant == "branch":
                    if k % 2 == 0:
                        T.gemm(A_s, B_s, acc, transpose_A=tA, transpose_B=tB)
                else:
                    T.gemm(A_s, B_s, acc, transpose_A=tA, transpose_B=tB)
            T.copy(acc, C[by * bM, bx * bN])

    return varied
