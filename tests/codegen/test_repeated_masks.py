"""Tiles that a program guards by itself go into products as they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T


def guarded(rows: int, inner: int, columns: int, block: int, depth: int) -> Any:
    @T.prim_func
    def guarded(
        A: T.Tensor((rows, inner), "float16"),
        B: T.Tensor((inner, columns), "float16"),
        C: T.Tensor((rows, columns), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, block), T.ceildiv(columns, block), threads=128) as (by, bx):
            A_shared = T.alloc_shared((block, depth), "float16")
            B_shared = T.alloc_shared((depth, block), "float16")
            C_local = T.alloc_fragment((block, block), "float32")
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(inner, depth), num_stages=3):
                for i, j in T.Parallel(block, depth):
                    inside = (by * block + i < rows) & (j < inner - k * depth)
                    A_shared[i, j] = T.if_then_else(inside, A[by * block + i, k * depth + j], T.float16(0))
                for i, j in T.Parallel(depth, block):
                    if k * depth + i < inner:
                        B_shared[i, j] = B[k * depth + i, bx * block + j]
                    else:
                        B_shared[i, j] = 0
                T.gemm(A_shared, B_shared, C_local)
            for i, j in T.Parallel(block, block):
                if by * block + i < rows and bx * block + j < columns:
                    C[by * block + i, bx * block + j] = C_local[i, j]

    return guarded


@pytest.mark.parametrize("version", [pytest.param("newest", marks=pytest.mark.slow), "3.6"])
def test_copies_are_asynchronous(compile_modules: Callable[..., Any], version: str, request: Any) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    made = tiledsl.compile(guarded(200, 100, 200, 64, 32), target="cuda:80")
    assert "tl.where" not in made.source and made.source.count("tl.load") == 2
    [(_, error, ttgir)] = compile_modules({"guarded": made.module}, full=False, **options)
    assert error == ""
    # Both tiles: for two iterations in front of the loop, and in it for the one after the next.
    assert ttgir.count("ttg.async_copy_global_to_local") == 6


def test_results_and_certificate() -> None:
    made = tiledsl.compile(guarded(20, 19, 24, 16, 16), target="interpret", out_idx=-1)
    assert "tl.where" not in made.source
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, shape, generator=generator).half() for shape in ((20, 19), (19, 24)))
    assert torch.equal(made(a, b), a.float() @ b.float())
    assert made.verify().ok
