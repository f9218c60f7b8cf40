"""Attention over sequences of lengths that are loaded: full tiles have no masks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T


def sequences(total: int, batch: int, dim: int, block: int, most: int) -> Any:
    """Attention without a causal mask over sequences that lie one after the other."""

    @T.prim_func
    def sequences(
        Q: T.Tensor((total, dim), "float16"),
        K: T.Tensor((total, dim), "float16"),
        V: T.Tensor((total, dim), "float16"),
        starts: T.Tensor((batch + 1,), "int32"),
        O: T.Tensor((total, dim), "float32"),
    ):
        with T.Kernel(T.ceildiv(most, block), batch, threads=128) as (bx, by):
            Q_shared = T.alloc_shared((block, dim), "float16")
            K_shared = T.alloc_shared((block, dim), "float16")
            V_shared = T.alloc_shared((block, dim), "float16")
            scores = T.alloc_fragment((block, block), "float32")
            weights = T.alloc_fragment((block, block), "float16")
            out = T.alloc_fragment((block, dim), "float32")
            start = starts[by]
            length = starts[by + 1] - start
            T.clear(out)
            for i, d in T.Parallel(block, dim):
                if bx * block + i < length:
                    Q_shared[i, d] = Q[start + bx * block + i, d]
                else:
                    Q_shared[i, d] = 0
            for k in T.Pipelined(T.ceildiv(length, block), num_stages=2):
                for i, d in T.Parallel(block, dim):
                    if k * block + i < length:
                        K_shared[i, d] = K[start + k * block + i, d]
                        V_shared[i, d] = V[start + k * block + i, d]
                    else:
                        K_shared[i, d] = 0
                        V_shared[i, d] = 0
                T.gemm(Q_shared, K_shared, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block, block):
                    weights[i, j] = T.if_then_else(k * block + j < length, scores[i, j] + 1, 0)
                T.gemm(weights, V_shared, out)
            for i, d in T.Parallel(block, dim):
                if bx * block + i < length:
                    O[start + bx * block + i, d] = out[i, d]

    return sequences


def test_results_and_certificate() -> None:
    lengths = [16, 0, 37, 48, 1]
    starts = list(itertools.accumulate(lengths, initial=0))
    options = {"peel-loops.mode": "causal"}
    kernel = tiledsl.compile(sequences(102, 5, 16, 16, 48), target="interpret", pass_configs=options)
    loops = [line for line in kernel.source.splitlines() if "tl.range" in line]
    assert len(loops) == 2 and kernel.source.count("tl.load(K") == 2
    full = kernel.source[kernel.source.index(loops[0]) : kernel.source.index(loops[1])]
    assert "mask=" not in full and "tl.where" not in full
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randint(-1, 2, (102, 16), generator=generator).half() for _ in range(3))
    out = torch.zeros(102, 16)
    kernel(q, k, v, torch.tensor(starts, dtype=torch.int32), out)
    for first, end in itertools.pairwise(starts):
        part = slice(first, end)
        assert torch.equal(out[part], (q[part].float() @ k[part].float().T + 1) @ v[part].float())
    assert kernel.verify().ok


@pytest.mark.parametrize("version", [pytest.param("newest", marks=pytest.mark.slow), "3.6"])
def test_it_compiles(compile_modules: Callable[..., Any], version: str, request: Any) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    made = tiledsl.compile(sequences(4096, 4, 64, 64, 2048), target="cuda:90")
    [(_, error, ttgir)] = compile_modules({"sequences": made.module}, full=False, **options)
    assert error == "" and ttgir.count("scf.for") == 2
