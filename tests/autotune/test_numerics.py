"""numerics="same-bits" and "batch-invariant": who may win, who is taken out and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T


def product_builder(M, N, K, block_M=16, block_N=16, block_K=16, variant="chain"):
    @T.prim_func
    def product(A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
            A_s = T.alloc_shared((block_M, block_K), "float32")
            B_s = T.alloc_shared((block_K, block_N), "float32")
            acc = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[by * block_M, k * block_K], A_s)
                T.copy(B[k * block_K, bx * block_N], B_s)
                T.gemm(A_s, B_s, acc)
            T.copy(acc, C[by * block_M, bx * block_N])

    return product


product = tiledsl.jit(out_idx=-1)(product_builder)


def test_other():
    f = tiledsl.autotune(configs=[{"block_K": 16}, {"block_K": 32}, {"block_K": 16, "block_M": 16}], numerics="same-bits", ref_prog=lambda A, B: A @ B)(product)
    r = f(64, 64, 64)
    print(r.table())
    f = tiledsl.autotune(configs=[{"block_K": 16}, {"block_K": 32}, {"block_K": 16, "block_M": 32}], numerics="batch-invariant", ref_prog=lambda A, B: A @ B)(product)
    r = f(64, 64, 64)
    print(r.table())
