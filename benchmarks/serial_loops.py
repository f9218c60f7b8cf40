"""What parallelize-loops gives: serial loops over tiles as reductions, scans and products, on a GPU.

    python benchmarks/serial_loops.py

Each kernel is compiled with the pass's option `reductions` and without, and the two are timed in turns; outputs are
compared, and the bytes that a thread spills are shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import tiledsl  # noqa: E402
import tiledsl.language as T  # noqa: E402
from benchmarks.tuning.interleaved import WINDOW_MS, gpu_clock, interleaved, medians  # noqa: E402
from benchmarks.tuning.report import table  # noqa: E402

WAYS = {"on": {}, "off": {"parallelize-loops.reductions": False}}
BLOCKS = 4096


def column_sums(op: Callable[[Any, Any], Any], dtype: str = "float32") -> T.PrimFunc:
    @T.prim_func
    def main(A: T.Tensor((BLOCKS, 64, 128), dtype), O: T.Tensor((BLOCKS, 64), "float32")):
        with T.Kernel(BLOCKS, threads=128) as b:
            a = T.alloc_shared((64, 128), dtype)
            s = T.alloc_fragment((64,), "float32")
            T.copy(A[b, 0, 0], a)
            T.fill(s, -1000.0)
            for k in T.serial(128):
                for i in T.Parallel(64):
                    s[i] = op(s[i], T.cast(a[i, k], "float32"))
            T.copy(s, O[b, 0])

    return main


def row_sums_of_products() -> T.PrimFunc:
    @T.prim_func
    def main(
        A: T.Tensor((BLOCKS, 64, 64), "float32"),
        B: T.Tensor((BLOCKS, 64, 64), "float32"),
        O: T.Tensor((BLOCKS, 64), "float32"),
    ):
        with T.Kernel(BLOCKS, threads=128) as b:
            x, y = T.alloc_shared((64, 64), "float32"), T.alloc_shared((64, 64), "float32")
            s = T.alloc_fragment((64,), "float32")
            T.copy(A[b, 0, 0], x)
            T.copy(B[b, 0, 0], y)
            for i, j in T.Parallel(64, 64):
                x[i, j] = T.exp(x[i, j])
            for j in T.Parallel(64):
                s[j] = 0
                for k in T.serial(64):
                    s[j] += x[k, j] * y[k, j]
                s[j] = s[j] * 0.5
            T.copy(s, O[b, 0])

    return main


def squares(computed: bool) -> T.PrimFunc:
    """Four sums for each row, and then their sum, as in manifold-constrained hyper-connections."""

    @T.prim_func
    def main(A: T.Tensor((BLOCKS, 32, 256), "bfloat16"), O: T.Tensor((BLOCKS, 32), "float32")):
        with T.Kernel(BLOCKS, threads=128) as b:
            a = T.alloc_shared((32, 256), "bfloat16")
            x = T.alloc_fragment((32, 256), "float32")
            part, s = T.alloc_fragment((32, 4), "float32"), T.alloc_fragment((32,), "float32")
            T.copy(A[b, 0, 0], a)
            T.copy(a, x)
            if computed:
                for i, j in T.Parallel(32, 256):
                    x[i, j] = x[i, j] * 2
            T.clear(part)
            for jj in T.serial(64):
                for i, j in T.Parallel(32, 4):
                    part[i, j] += x[i, jj * 4 + j] * x[i, jj * 4 + j]
            T.reduce_sum(part, s)
            T.copy(s, O[b, 0])

    return main


def totals(in_itself: bool, computed: bool) -> T.PrimFunc:
    @T.prim_func
    def main(A: T.Tensor((BLOCKS, 64, 64), "float32"), O: T.Tensor((BLOCKS, 64, 64), "float32")):
        with T.Kernel(BLOCKS, threads=128) as b:
            a, c = T.alloc_shared((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
            s = T.alloc_fragment((64,), "float32")
            T.copy(A[b, 0, 0], a)
            T.clear(s)
            if computed:
                for i, j in T.Parallel(64, 64):
                    a[i, j] = a[i, j] * 0.5
            if in_itself:
                for i in T.serial(1, 64):
                    for j in T.Parallel(64):
                        a[i, j] += a[i - 1, j]
                T.copy(a, O[b, 0, 0])
            else:
                for i in T.serial(64):
                    for j in T.Parallel(64):
                        s[j] += a[i, j]
                        c[i, j] = s[j]
                T.copy(c, O[b, 0, 0])

    return main


def recurrence(rows: int, columns: int, in_itself: bool) -> T.PrimFunc:
    shape = (rows, columns)

    @T.prim_func
    def main(
        A: T.Tensor((BLOCKS, rows, columns), "float32"),
        B: T.Tensor((BLOCKS, rows, columns), "float32"),
        O: T.Tensor((BLOCKS, rows, columns), "float32"),
    ):
        with T.Kernel(BLOCKS, threads=128) as b:
            a, x = T.alloc_shared(shape, "float32"), T.alloc_shared(shape, "float32")
            c, s = T.alloc_fragment(shape, "float32"), T.alloc_fragment((columns,), "float32")
            T.copy(A[b, 0, 0], a)
            T.copy(B[b, 0, 0], x)
            T.clear(s)
            if in_itself:
                for i in T.serial(1, rows):
                    for j in T.Parallel(columns):
                        x[i, j] = T.sigmoid(a[i, j]) * x[i - 1, j] + x[i, j]
                T.copy(x, O[b, 0, 0])
            else:
                for i in T.serial(rows):
                    for j in T.Parallel(columns):
                        s[j] = T.sigmoid(a[i, j]) * s[j] + x[i, j]
                        c[i, j] = s[j]
                T.copy(c, O[b, 0, 0])

    return main


def outer_products(dtype: str, size: int = 64) -> T.PrimFunc:
    @T.prim_func
    def main(
        A: T.Tensor((BLOCKS, size, size), dtype),
        B: T.Tensor((BLOCKS, size, size), dtype),
        O: T.Tensor((BLOCKS, size, size), "float32"),
    ):
        with T.Kernel(BLOCKS, threads=128) as b:
            x, y = T.alloc_shared((size, size), dtype), T.alloc_shared((size, size), dtype)
            c = T.alloc_fragment((size, size), "float32")
            T.copy(A[b, 0, 0], x)
            T.copy(B[b, 0, 0], y)
            T.clear(c)
            for k in T.serial(size):
                for i, j in T.Parallel(size, size):
                    c[i, j] += T.cast(x[i, k], "float32") * T.cast(y[k, j], "float32")
            T.copy(c, O[b, 0, 0])

    return main


KERNELS: dict[str, tuple[T.PrimFunc, list[str], tuple[int, int]]] = {
    "sums of columns, 64x128 f32": (column_sums(lambda s, x: s + x), ["float32"], (64, 128)),
    "largest of columns, 64x128 bf16": (column_sums(T.max, "bfloat16"), ["bfloat16"], (64, 128)),
    "sums of products in a T.Parallel": (row_sums_of_products(), ["float32"] * 2, (64, 64)),
    "sums of squares by four, 32x256": (squares(False), ["bfloat16"], (32, 256)),
    "squares of computed elements": (squares(True), ["bfloat16"], (32, 256)),
    "totals into rows, 64x64": (totals(False, False), ["float32"], (64, 64)),
    "totals of computed elements": (totals(False, True), ["float32"], (64, 64)),
    "totals of a tile in itself": (totals(True, False), ["float32"], (64, 64)),
    "totals in itself, computed": (totals(True, True), ["float32"], (64, 64)),
    "recurrence into rows, 64x64": (recurrence(64, 64, False), ["float32"] * 2, (64, 64)),
    "recurrence in itself, 64x64": (recurrence(64, 64, True), ["float32"] * 2, (64, 64)),
    "recurrence along a line, 1024": (recurrence(1024, 1, True), ["float32"] * 2, (1024, 1)),
    "outer products f16, 64x64x64": (outer_products("float16"), ["float16"] * 2, (64, 64)),
    "outer products bf16, 32x32x32": (outer_products("bfloat16", 32), ["bfloat16"] * 2, (32, 32)),
    "outer products f32, 32x32x32": (outer_products("float32", 32), ["float32"] * 2, (32, 32)),
}


def row(name: str) -> dict[str, Any]:
    program, dtypes, shape = KERNELS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(BLOCKS, *shape, device="cuda").to(getattr(torch, dtype)) for dtype in dtypes]
    kernels = {way: tiledsl.compile(program, out_idx=-1, pass_configs=options) for way, options in WAYS.items()}
    calls = {way: kernel.bind(*inputs) for way, kernel in kernels.items()}
    out = {way: call().clone() for way, call in calls.items()}
    difference = float(((out["on"] - out["off"]).abs() / out["off"].abs().clamp_min(1)).max())
    ms = medians(interleaved(calls, 6, gpu_clock, window=WINDOW_MS, screen=False))
    return {
        "kernel": name,
        "on, us": round(ms["on"] * 1e3, 2),
        "off, us": round(ms["off"] * 1e3, 2),
        "off / on": round(ms["off"] / ms["on"], 2),
        "largest relative difference": f"{difference:.1e}",
        "spills": "/".join(str(kernel.resources.spills) for kernel in kernels.values()),
    }


if __name__ == "__main__":
    print(torch.cuda.get_device_name(0))
    print(table([row(name) for name in KERNELS]))
