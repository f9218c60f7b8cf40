"""The life of a kernel, which `make demo` prints: written, lowered, compiled for a GPU, run, checked and tuned.

Works without a GPU: programs then run in Triton's interpreter, and the tuner compiles for cuda:90, checks results in
the interpreter and ranks by an estimate. With a GPU everything runs and is timed on it.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import tiledsl
import tiledsl.language as T

M, N, K = 256, 256, 128
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TARGET = "cuda" if torch.cuda.is_available() else "cuda:90"


def matmul(M, N, K, block_M=None, block_N=None, block_K=64, num_stages=2, threads=128, dtype="float16"):
    @T.prim_func
    def matmul(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_K, block_N), dtype)
            total = T.alloc_fragment((block_M, block_N), "float32")

            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[k * block_K, bx * block_N], B_tile)
                T.gemm(A_tile, B_tile, total)
            T.copy(total, C[by * block_M, bx * block_N])

    return matmul


def reference(A, B):
    return A @ B


CONFIGS = [{"block_M": m, "block_N": n} for m, n in ((128, 128), (128, 64), (64, 64), (64, 32))]

compiled = tiledsl.jit(out_idx=-1)(matmul)
tuned = tiledsl.autotune(configs=CONFIGS, ref_prog=reference, target=TARGET)(compiled)


def heading(text):
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{text}{plain}", flush=True)


def show_lowering():
    lines, first = inspect.getsourcelines(matmul)
    heading(f"A matrix product, {M} x {N} x {K}, {Path(__file__).name}:{first}-{first + len(lines) - 1}")
    kernel = compiled(M, N, K, block_M=64, block_N=64)
    stages = [f"{stage.name} {stage.milliseconds:.2f}" for stage in kernel.stages]
    width = max(map(len, stages)) + 3
    print("lowered for", kernel.target, "by these passes, in milliseconds:")
    for at in range(0, len(stages), 4):
        print("  " + "".join(stage.ljust(width) for stage in stages[at : at + 4]).rstrip())

    heading("Its Triton kernel")
    body = kernel.source[kernel.source.index("@triton.jit") :].split("\n\n\n")[0]
    print("  " + body.replace("\n", "\n  "))
    return kernel


def show_compilation():
    heading(f"Compiled for {tiledsl.Target.parse(TARGET)}" + ("" if DEVICE == "cuda" else ", without a GPU"))
    program = tiledsl.compile(compiled.build({"M": M, "N": N, "K": K, "block_M": 64, "block_N": 64}), -1, TARGET)
    start = time.perf_counter()
    found = program.resources
    blocks, limit = found.occupancy_limit
    print(
        f"{found.registers} registers a thread, {found.spills} bytes spilled, {found.shared_bytes} bytes shared memory;"
    )
    print(f"{blocks} blocks on a multiprocessor, limited by {limit} ({time.perf_counter() - start:.1f} s)")


def show_run(kernel):
    torch.manual_seed(0)
    A = torch.randn(M, K, dtype=torch.float16, device=DEVICE)
    B = torch.randn(K, N, dtype=torch.float16, device=DEVICE)
    start = time.perf_counter()
    C = kernel(A, B)
    seconds = time.perf_counter() - start
    heading("Run " + ("in Triton's interpreter, on the CPU" if kernel.target.kind == "interpret" else "on the GPU"))
    expected = A.float() @ B.float()
    error = (C.float() - expected).abs().max().item()
    print(
        f"largest error against torch {error:.2g}, of values up to {expected.abs().max().item():.0f} ({seconds:.1f} s)"
    )
    torch.testing.assert_close(C.float(), expected, rtol=2e-3, atol=2e-2)


def show_tuning():
    heading(f"Tuned over {len(CONFIGS)} configurations: compiled in processes, checked against torch")
    start = time.perf_counter()
    result = tuned(M, N, K)
    seconds = time.perf_counter() - start
    print(result.table())
    assert result.from_cache == "" and all(trial.ok and trial.verified for trial in result.trials), result.table()
    how = "measured" if result.latency_kind == "measured" else "estimated by a roofline model, since no GPU is here"
    print(f"chosen: {result.config} ({how}; {seconds:.1f} s)")

    start = time.perf_counter()
    again = tuned(M, N, K)
    print(f"called again: from {again.from_cache} in {(time.perf_counter() - start) * 1e6:.0f} us")
    assert again.from_cache == "memory"
    done = subprocess.run([sys.executable, __file__, "--recall"], check=True, text=True, stdout=subprocess.PIPE)
    print(f"in another process: {done.stdout.strip()}")
    assert done.stdout.startswith("from disk") and str(result.config) in done.stdout


def recall():
    start = time.perf_counter()
    result = tuned(M, N, K)
    print(f"from {result.from_cache} in {(time.perf_counter() - start) * 1e3:.0f} ms: {result.config}")


def main():
    start = time.perf_counter()
    kernel = show_lowering()
    show_compilation()
    show_run(kernel)
    with tempfile.TemporaryDirectory(prefix="tiledsl-quickstart-") as folder:  # what was tuned before shall not count
        kept = os.environ.get("TILEDSL_CACHE_DIR")
        os.environ["TILEDSL_CACHE_DIR"] = folder
        try:
            show_tuning()
        finally:
            os.environ.pop("TILEDSL_CACHE_DIR")
            if kept is not None:
                os.environ["TILEDSL_CACHE_DIR"] = kept
    print(f"\nall checks passed in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    recall() if "--recall" in sys.argv[1:] else main()
