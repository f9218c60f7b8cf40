"""Dropout with numbers drawn in the kernel, on a GPU, beside Triton's tl.rand, with a counter for each, and a copy.

    python benchmarks/random_numbers.py

A share of a tenth is dropped from 2^26 float16. The kernels are timed in turns; that each keeps nine tenths is checked.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import tiledsl  # noqa: E402
import tiledsl.language as T  # noqa: E402
from benchmarks.tuning.interleaved import WINDOW_MS, gpu_clock, interleaved, medians  # noqa: E402
from benchmarks.tuning.report import table  # noqa: E402

COUNT, BLOCK, KEPT = 1 << 26, 1024, 0.9


@T.prim_func
def dropout(X: T.Tensor((COUNT,), "float16"), Y: T.Tensor((COUNT,), "float16"), seed: T.int32):
    with T.Kernel(COUNT // BLOCK, threads=128) as b:
        T.rng_init(seed)
        for i in T.Parallel(BLOCK):
            Y[b * BLOCK + i] = T.Select(T.rng_rand_float() < KEPT, X[b * BLOCK + i] / KEPT, 0.0)


@triton.jit
def _dropped(x, y, seed, block: tl.constexpr, kept: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + places, tl.where(tl.rand(seed, places) < kept, tl.load(x + places) / kept, 0.0))


def rows() -> list[dict[str, object]]:
    x = torch.ones(COUNT, device="cuda", dtype=torch.float16)
    out = {name: torch.zeros_like(x) for name in ("tiledsl", "tl.rand", "copy")}
    calls = {
        "tiledsl": tiledsl.compile(dropout).bind(x, out["tiledsl"], 7),
        "tl.rand": lambda: _dropped[(COUNT // BLOCK,)](x, out["tl.rand"], 7, BLOCK, KEPT),
        "copy": lambda: out["copy"].copy_(x),
    }
    for name, call in calls.items():
        call()
        share = float((out[name] > 0).double().mean())
        assert name == "copy" or abs(share - KEPT) < 5 * (KEPT * (1 - KEPT) / COUNT) ** 0.5, (name, share)
    ms = medians(interleaved(calls, 6, gpu_clock, window=WINDOW_MS, screen=False))
    return [
        {"kernel": name, "us": round(ms[name] * 1e3, 1), "GB/s": round(4 * COUNT / ms[name] / 1e6)} for name in calls
    ]


if __name__ == "__main__":
    print(torch.cuda.get_device_name(0))
    print(table(rows()))
