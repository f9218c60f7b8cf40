"""Tiles with a dimension of one: what is emitted has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T


def scores(heads: int, dim: int, block: int, blocks: int) -> Any:
    """Weighted sums over heads of the positive scores of one query with chosen blocks of keys."""

    @T.prim_func
    def scores(
        Q: T.Tensor((heads, dim), "float16"),
        K: T.Tensor((blocks * block, dim), "float16"),
        W: T.Tensor((1, heads), "float32"),
        chosen: T.Tensor((blocks,), "int32"),
        S: T.Tensor((1, blocks * block), "float32"),
    ):
        with T.Kernel(1, threads=128):
            Q_shared = T.alloc_shared((heads, dim), "float16")
            K_shared = T.alloc_shared((block, dim), "float16")
            s = T.alloc_fragment((block, heads), "float32")
            s_heads = T.reshape(s, (block, 1, heads))
            w = T.alloc_fragment((1, heads), "float32")
            sums = T.alloc_fragment((block, 1), "float32")
            T.copy(Q, Q_shared)
            T.copy(W, w)
            for k in T.Pipelined(blocks, num_stages=2):
                T.copy(K[chosen[k] * block, 0], K_shared)
                T.gemm(K_shared, Q_shared, s, transpose_B=True, clear_accum=True)
                for n, m, h in T.Parallel(block, 1, heads):
                    s_heads[n, m, h] = T.max(s_heads[n, m, h], 0) * w[m, h]
                T.reduce_sum(s_heads, sums, dim=-1, clear=True)
                for n, m in T.Parallel(block, 1):
                    S[m, k * block + n] = sums[n, m]

    return scores


def test_the_loop_has_tiles_of_two_dimensions() -> None:
    source = tiledsl.compile(scores(32, 64, 64, 4), target="cuda:90").source
    loop = source[source.index("tl.range") : source.index("def scores(")]
    lines = [line.strip() for line in loop.splitlines() if not line.strip().startswith("#")]
    assert lines[-6:-2] == [
        "s = tl.dot(K_shared, Q_shared_t)",
        "s = tl.maximum(s, 0.0) * w",
        "sums = tl.sum(s, axis=1)",
        "tl.store(S + k * 64 + tl.arange(0, 64), sums)",
    ]


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_it_compiles(compile_modules: Callable[..., Any], version: str, request: Any) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    made = tiledsl.compile(scores(32, 64, 64, 4), target="cuda:90")
    [(_, error, ttgir)] = compile_modules({"scores": made.module}, full=False, **options)
    assert error == "" and "tensor<64x1x32" not in ttgir


def test_results_and_certificate() -> None:
    kernel = tiledsl.compile(scores(16, 16, 16, 3), target="interpret")
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randint(-4, 5, shape, generator=generator).half() for shape in ((16, 16), (48, 16)))
    w = torch.randint(-4, 5, (1, 16), generator=generator).float()
    chosen, s = torch.tensor([2, 0, 2], dtype=torch.int32), torch.empty(1, 48)
    kernel(q, k, w, chosen, s)
    every = ((k.float() @ q.float().T).clamp(min=0) * w).sum(1).reshape(3, 16)
    assert torch.equal(s, every[chosen.long()].reshape(1, 48))
    assert kernel.verify().ok
