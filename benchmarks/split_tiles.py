"""What split-tiles gives: tiles of 192, 320 and 576 columns in parts instead of padded, on a GPU.

    python benchmarks/split_tiles.py [--only WORD]

Each kernel is compiled with the pass and without, checked against torch, and the two are timed in turns. Registers of
a thread, the bytes that it spills and shared memory are shown of both.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from attention import attention, reference  # noqa: E402
from attention_backward import key_value_gradients, query_gradient  # noqa: E402

import tiledsl  # noqa: E402
import tiledsl.language as T  # noqa: E402
from benchmarks.tuning.interleaved import gpu_clock, interleaved, medians  # noqa: E402
from benchmarks.tuning.report import table  # noqa: E402

TRITON = {"select-emitter.backend": "triton"}
WAYS = {"on": TRITON, "off": {**TRITON, "split-tiles.mode": "off"}}
ROWS, HEADS = 4096, 32  # of attention


def gemm(m: int, n: int, k: int, block_M: int, block_N: int, block_K: int, stages: int, threads: int) -> T.PrimFunc:
    @T.prim_func
    def main(A: T.Tensor((m, k), "float16"), B: T.Tensor((k, n), "float16"), C: T.Tensor((m, n), "float16")):
        with T.Kernel(T.ceildiv(n, block_N), T.ceildiv(m, block_M), threads=threads) as (bx, by):
            a, b = T.alloc_shared((block_M, block_K), "float16"), T.alloc_shared((block_K, block_N), "float16")
            c = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(c)
            for step in T.Pipelined(T.ceildiv(k, block_K), num_stages=stages):
                T.copy(A[by * block_M, step * block_K], a)
                T.copy(B[step * block_K, bx * block_N], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block_M, bx * block_N])

    return main


def latent_attention(rows: int, keys: int, block: int, stages: int) -> T.PrimFunc:
    """64 heads share keys of 576 columns, of which the first 512 are the values: a block has a query's heads."""
    scale = math.log2(math.e) / math.sqrt(576)

    @T.prim_func
    def main(
        Q: T.Tensor((rows, 64, 576), "float16"),
        KV: T.Tensor((keys, 576), "float16"),
        O: T.Tensor((rows, 64, 512), "float16"),
    ):
        with T.Kernel(rows, threads=256) as row:
            q, kv = T.alloc_shared((64, 576), "float16"), T.alloc_shared((block, 576), "float16")
            scores, acc = T.alloc_fragment((64, block), "float32"), T.alloc_fragment((64, 512), "float32")
            weights = T.alloc_fragment((64, block), "float16")
            highest, previous = T.alloc_fragment((64,), "float32"), T.alloc_fragment((64,), "float32")
            total, part = T.alloc_fragment((64,), "float32"), T.alloc_fragment((64,), "float32")
            T.copy(Q[row, 0, 0], q)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, -1e30)
            for step in T.Pipelined(keys // block, num_stages=stages):
                T.copy(KV[step * block, 0], kv)
                T.gemm(q, kv, scores, transpose_B=True, clear_accum=True)
                T.copy(highest, previous)
                T.reduce_max(scores, highest, dim=1, clear=False)
                for i, j in T.Parallel(64, block):
                    scores[i, j] = T.exp2((scores[i, j] - highest[i]) * scale)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(64):
                    total[i] = total[i] * T.exp2((previous[i] - highest[i]) * scale) + part[i]
                for i, j in T.Parallel(64, 512):
                    acc[i, j] *= T.exp2((previous[i] - highest[i]) * scale)
                T.copy(scores, weights)
                T.gemm(weights, kv[:, :512], acc)
            for i, j in T.Parallel(64, 512):
                acc[i, j] /= total[i]
            T.copy(acc, O[row, 0, 0])

    return main


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float16)


class Case(NamedTuple):
    """A program, what it is given, and what it has to give."""

    program: T.PrimFunc
    outputs: list[int]
    inputs: Callable[[], list[torch.Tensor]]
    expected: Callable[..., list[torch.Tensor]]
    options: dict[str, Any] = {}


def forward(dim: int, keys: int, stages: int) -> Case:
    program = attention.get_tir(1, HEADS, HEADS, ROWS, ROWS, dim, block_N=keys, num_stages=stages)
    return Case(
        program, [3, 4], lambda: [random(1, HEADS, ROWS, dim) for _ in range(3)], lambda *qkv: [reference(*qkv)]
    )


def backward_inputs(dim: int) -> list[torch.Tensor]:
    """Q, K, V and dO, the logarithms of the rows' sums, and the sums of dO * O."""
    q, k, v, grad = (random(1, HEADS, ROWS, dim) for _ in range(4))
    scores = q.float() @ k.float().transpose(-1, -2) / math.sqrt(dim)
    out = torch.softmax(scores, -1) @ v.float()
    return [q, k, v, grad, torch.logsumexp(scores, -1) * math.log2(math.e), (grad.float() * out).sum(-1)]


def gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, *_: Any) -> list[torch.Tensor]:
    """Those of Q, K and V."""
    leaves = [each.float().requires_grad_() for each in (q, k, v)]
    return list(torch.autograd.grad(reference(*leaves), leaves, grad.float()))


def backward(of_queries: bool, dim: int, block_M: int, block_N: int, stages: int) -> Case:
    function, outputs = (query_gradient, [6]) if of_queries else (key_value_gradients, [6, 7])
    sizes = {"block_M": block_M, "block_N": block_N, "num_stages": stages}
    program = function.get_tir(1, HEADS, HEADS, ROWS, ROWS, dim, **sizes)
    wanted = slice(0, 1) if of_queries else slice(1, 3)
    return Case(program, outputs, lambda: backward_inputs(dim), lambda *inputs: gradients(*inputs)[wanted])


def product(m: int, n: int, k: int, *blocks: int, **options: Any) -> Case:
    return Case(gemm(m, n, k, *blocks), [2], lambda: [random(m, k), random(k, n)], lambda a, b: [a @ b], options)


def latent(rows: int, keys: int, block: int, stages: int) -> Case:
    def expected(q: torch.Tensor, kv: torch.Tensor) -> list[torch.Tensor]:
        scores = q.float() @ kv.float().T / math.sqrt(576)
        return [torch.softmax(scores, -1) @ kv[:, :512].float()]

    inputs = lambda: [random(rows, 64, 576), random(keys, 576)]  # noqa: E731
    return Case(latent_attention(rows, keys, block, stages), [2], inputs, expected)


CASES: dict[str, Callable[[], Case]] = {
    "attention, heads of 192, 128 x 128 keys, 2 stages": lambda: forward(192, 128, 2),
    "attention, heads of 192, 128 x 64 keys, 2 stages": lambda: forward(192, 64, 2),
    "attention, heads of 96, 128 x 64 keys, 2 stages": lambda: forward(96, 64, 2),
    "dK and dV, heads of 192, 64 x 64, 1 stage": lambda: backward(False, 192, 64, 64, 1),
    "dK and dV, heads of 192, 64 x 128, 1 stage": lambda: backward(False, 192, 64, 128, 1),
    "dQ, heads of 192, 128 x 64, 2 stages": lambda: backward(True, 192, 128, 64, 2),
    "dQ, heads of 192, 128 x 64, 1 stage": lambda: backward(True, 192, 128, 64, 1),
    "gemm, 128 x 192 x 64": lambda: product(8192, 6144, 4096, 128, 192, 64, 3, 256),
    "gemm, 128 x 192 x 64, pointers": lambda: product(
        8192, 6144, 4096, 128, 192, 64, 3, 256, **{"select-access.mode": "pointer"}
    ),
    "gemm, 128 x 192 x 64, persistent": lambda: product(
        8192, 6144, 4096, 128, 192, 64, 3, 256, **{"map-grid.persistent": 1}
    ),
    "gemm, 192 x 128 x 64": lambda: product(6144, 8192, 4096, 192, 128, 64, 3, 256),
    "gemm, 192 x 192 x 64": lambda: product(6144, 6144, 4096, 192, 192, 64, 3, 256),
    "gemm, 64 x 576 x 64": lambda: product(8192, 4608, 4096, 64, 576, 64, 2, 256),
    "gemm, 64 x 320 x 64": lambda: product(8192, 5120, 4096, 64, 320, 64, 3, 256),
    "gemm, 128 x 96 x 64": lambda: product(8192, 6144, 4096, 128, 96, 64, 3, 256),
    "gemm, 128 x 128 x 96": lambda: product(8192, 8192, 4608, 128, 128, 96, 3, 256),
    "latent attention, 576 columns, 32 keys, 1 stage": lambda: latent(2048, 4096, 32, 1),
    "latent attention, 576 columns, 64 keys, 1 stage": lambda: latent(2048, 4096, 64, 1),
    "latent attention, 576 columns, 64 keys, 2 stages": lambda: latent(2048, 4096, 64, 2),
}


def compiled(case: Case, way: str, target: str | None) -> tiledsl.Kernel:
    return tiledsl.compile(
        case.program, out_idx=case.outputs, target=target, pass_configs={**case.options, **WAYS[way]}
    )


def row(name: str, target: str | None) -> dict[str, Any]:
    """The figures of a case; without a GPU, of its kernels for `target`, those that need no measurement."""
    case, kernels, found = CASES[name](), {}, {"kernel": name}
    for way in WAYS:
        try:
            kernels[way] = compiled(case, way, target)
            used = kernels[way].resources
            found[f"{way}: registers, spills, KiB"] = f"{used.registers}, {used.spills}, {used.shared_bytes >> 10}"
        except Exception as error:
            found[f"{way}: registers, spills, KiB"] = str(error).splitlines()[0][:60]
            kernels.pop(way, None)
    if target is not None:
        return found
    torch.manual_seed(0)
    inputs = case.inputs()
    expected, calls = case.expected(*inputs), {}
    for way, kernel in kernels.items():
        out = kernel(*inputs)
        for made, wanted in zip(out if isinstance(out, (list, tuple)) else [out], expected, strict=False):
            error = float((made.float() - wanted.float()).norm() / wanted.float().norm())
            assert error < 5e-3, f"{name}, {way}: relative error {error}"
        calls[way] = kernel.bind(*inputs)
    del expected
    us = {way: round(ms * 1e3, 1) for way, ms in medians(interleaved(calls, 6, gpu_clock, screen=False)).items()}
    found |= {f"{way}, us": time for way, time in us.items()}
    return found | ({"off / on": round(us["off"] / us["on"], 3)} if len(us) == 2 else {})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose names have this word")
    parser.add_argument("--target", metavar="cuda:90", help="compile for it, and measure nothing")
    chosen = parser.parse_args()
    names = [name for name in CASES if chosen.only in name]
    print(chosen.target or torch.cuda.get_device_name(0))
    rows = []
    for name in names:
        rows.append(row(name, chosen.target))
        print(rows[-1], file=sys.stderr)
    print(table(rows))
