"""The roofline model that ranks configurations where nothing can be measured."""

from __future__ import annotations

import pytest

import tiledsl
import tiledsl.language as T
from tiledsl.autotuner.estimate import block_work, estimate
from tiledsl.runtime.target import Target


@tiledsl.jit(out_idx=-1, target="cuda:90")
def matmul(M, N, K, block_M, block_N, block_K=32, threads=128):
    @T.prim_func
    def matmul(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), "float16")
            B_tile = T.alloc_shared((block_K, block_N), "float16")
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[k * block_K, bx * block_N], B_tile)
                T.gemm(A_tile, B_tile, total)
            T.copy(total, C[by * block_M, bx * block_N])

    return matmul


def test_the_work_of_a_block_is_counted() -> None:
    (work,) = block_work(matmul(256, 512, 96, 64, 128))
    assert work.blocks == 4 * 4 and work.warps == 4
    assert work.operations == 2 * 64 * 128 * 96
    assert work.bytes == 3 * (64 * 32 + 32 * 128) * 2 + 64 * 128 * 2


@pytest.mark.parametrize(
    ("better", "worse"),
    [((128, 128), (32, 32)), ((128, 128), (16, 256)), ((64, 64), (64, 32))],
)
def test_tiles_that_move_less_are_faster(better: tuple[int, int], worse: tuple[int, int]) -> None:
    target = Target("cuda", 90)
    assert estimate(matmul(4096, 4096, 1024, *better), target) < estimate(matmul(4096, 4096, 1024, *worse), target)


def test_the_estimate_stays_above_the_roofline_and_counts_spills() -> None:
    kernel, target = matmul(8192, 8192, 1024, 128, 128), Target("cuda", 90)
    least = 2 * 8192 * 8192 * 1024 / 989e12 * 1e3
    assert least <= estimate(kernel, target, occupancy=2) < 20 * least
    assert estimate(kernel, target, occupancy=2, spills=64) == 2 * estimate(kernel, target, occupancy=2)
    assert estimate(kernel, Target("interpret"), 2) == estimate(kernel, target, 2)
