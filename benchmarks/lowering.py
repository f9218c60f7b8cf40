"""How long lowering takes: elaboration, all passes with verification, and emission. `make bench-lowering` runs it.

Prints the median over 384 GEMM configurations, each lowered once, and how the time grows for programs 2, 4 and 8 times
as long. The function's text is parsed once, before; no Triton compilation is part of it.
"""

from __future__ import annotations

import itertools
import platform
import statistics
import time

import tiledsl
import tiledsl.language as T
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.target import Target

TARGET = Target("cuda", 90)


def gemm(M, N, K, block_M, block_N, block_K, num_stages, threads, swizzle):
    @T.prim_func
    def gemm(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "float16")
            B_shared = T.alloc_shared((block_N, block_K), "float16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(panel_size=10, enable=swizzle)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = T.max(C_local[i, j], 0)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return gemm


def long_program(repeats):
    """A chain of `repeats` matrix products and row operations in one kernel."""
    rounds = list(range(repeats))

    @T.prim_func
    def chain(A: T.Tensor((1000, 500), "float16"), C: T.Tensor((1000, 64), "float32")):
        with T.Kernel(T.ceildiv(1000, 64), threads=128) as bx:
            A_shared = T.alloc_shared((64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            row = T.alloc_fragment((64,), "float32")
            T.clear(acc)
            for r in rounds:
                for k in T.Pipelined(T.ceildiv(500, 64), num_stages=2):
                    T.copy(A[bx * 64, k * 64], A_shared)
                    T.gemm(A_shared, A_shared, acc, transpose_B=True)
                T.reduce_max(acc, row, dim=1)
                for i, j in T.Parallel(64, 64):
                    acc[i, j] = T.exp2(acc[i, j] - row[i]) + r
            T.copy(acc, C[bx * 64, 0])

    return chain


def milliseconds(program) -> float:
    start = time.perf_counter()
    Kernel(lambda: program.build(), TARGET)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    configs = list(
        itertools.product((64, 128, 256), (64, 128), (32, 64), (1, 2, 3, 4), (128, 256), (False, True), (1024, 1000))
    )
    with tiledsl.settings(verify_each=True):
        milliseconds(gemm(512, 512, 512, 64, 64, 32, 2, 128, False))
        times = [milliseconds(gemm(M, 1024, 1024, m, n, k, s, t, w)) for m, n, k, s, t, w, M in configs]
        times = times[:384]
        print(f"{len(times)} GEMM configurations, {platform.machine()}, Python {platform.python_version()}")
        low, high = min(times), sorted(times)[int(len(times) * 0.95)]
        print(f"median {statistics.median(times):.2f} ms, least {low:.2f} ms, 95th percentile {high:.2f} ms")
        base = 0.0
        for repeats in (1, 2, 4, 8):
            taken = statistics.median(milliseconds(long_program(repeats)) for _ in range(7))
            base = base or taken
            print(f"program {repeats} times as long: {taken:.1f} ms, {taken / base:.2f} times as much")


if __name__ == "__main__":
    main()
