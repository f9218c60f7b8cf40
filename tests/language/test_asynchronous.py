"""Copies and products that programs start first and wait for later."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError


def test_products_of_copies_that_are_waited_for(run: Any) -> None:
    M, N, K = 40, 24, 72

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), bias: T.Tensor((M, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=128) as (bx, by):
            a, b = T.alloc_shared((2, 16, 16), "float16"), T.alloc_shared((2, 16, 16), "float16")
            eye, more = T.alloc_shared((16, 16), "float16"), T.alloc_shared((16, 16), "float16")
            c, d = T.alloc_fragment((16, 16), "float32"), T.alloc_fragment((16, 16), "float32")
            for i, j in T.Parallel(16, 16):
                eye[i, j] = T.if_then_else(i == j, 1.0, 0.0)
            T.async_copy(bias[by * 16, bx * 16], more)
            T.async_copy(A[by * 16, 0], a[0, :, :])
            T.async_copy(B[bx * 16, 0], b[0, :, :])
            T.ptx_commit_group()
            T.clear(c)
            for k in T.serial(T.ceildiv(K, 16)):
                T.ptx_wait_group(0)
                T.sync_threads()
                if k + 1 < T.ceildiv(K, 16):
                    T.async_copy(A[by * 16, (k + 1) * 16], a[(k + 1) % 2, :, :])
                    T.async_copy(B[bx * 16, (k + 1) * 16], b[(k + 1) % 2, :, :])
                T.ptx_commit_group()
                T.warpgroup_fence_operand(c, num_regs=64)
                T.warpgroup_arrive()
                T.wgmma_gemm(a[k % 2, :, :], b[k % 2, :, :], c, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.warpgroup_commit_batch()
                T.warpgroup_wait(0)
            T.wgmma_gemm(eye, more, d, clear_accum=True)
            T.wait_wgmma(0)
            for i, j in T.Parallel(16, 16):
                c[i, j] += d[i, j]
            T.copy(c, C[by * 16, bx * 16])

    a, b, bias = (torch.randn(shape, dtype=torch.float16) for shape in ((M, K), (N, K), (M, N)))
    torch.testing.assert_close(run(main, a, b, bias), a.float() @ b.float().T + bias.float(), rtol=1e-3, atol=1e-3)


def test_fences_change_nothing(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((16,), "float32"), B: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((16,), "float32")
            T.ptx_fence_barrier_init()
            T.copy(A, s)
            T.fence_proxy_async()
            T.warpgroup_fence_operand(s)
            for i in T.Parallel(16):
                B[i] = s[15 - i]
            T.fence_proxy_async_generic()

    assert run(main, torch.arange(16.0)).tolist() == list(range(15, -1, -1))


def test_what_waits_for_other_blocks_is_refused() -> None:
    @T.prim_func
    def main(A: T.Tensor((16,), "float32")):
        with T.Kernel(1):
            ready = T.alloc_cluster_barrier(128)
            T.barrier_arrive(ready)

    with pytest.raises(TileError, match=r"T.alloc_cluster_barrier: clusters"):
        tiledsl.compile(main, target="interpret")
