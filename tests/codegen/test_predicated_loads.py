"""Block-sparse products: the tiles are loaded ahead, though they stand in a branch of the loop."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T


def sparse(size: int, block: int, depth: int, stages: int) -> Any:
    blocks, steps = size // block, -(-size // depth)

    @T.prim_func
    def sparse(
        A: T.Tensor((size, size), "float16"),
        B: T.Tensor((size, size), "float16"),
        mask: T.Tensor((blocks, blocks, steps), "bool"),
        C: T.Tensor((size, size), "float32"),
    ):
        with T.Kernel(blocks, blocks, threads=128) as (bx, by):
            A_shared = T.alloc_shared((block, depth), "float16")
            B_shared = T.alloc_shared((depth, block), "float16")
            C_local = T.alloc_fragment((block, block), "float32")
            T.clear(C_local)
            for k in T.Pipelined(steps, num_stages=stages):
                if mask[by, bx, k]:
                    T.copy(A[by * block, k * depth], A_shared)
                    T.copy(B[k * depth, bx * block], B_shared)
                    T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block, bx * block])

    return sparse


@pytest.mark.parametrize("version", [pytest.param("newest", marks=pytest.mark.slow), "3.6"])
def test_copies_are_asynchronous(compile_modules: Callable[..., Any], version: str, request: Any) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    program = sparse(1024, 128, 32, 3)
    modules = {
        "ahead": tiledsl.compile(program, target="cuda:90").module,
        "inside": tiledsl.compile(program, target="cuda:90", pass_configs={"predicate-loads.enabled": False}).module,
    }
    found = {name: (error, ttgir) for name, error, ttgir in compile_modules(modules, full=False, **options)}
    assert [error for error, _ in found.values()] == ["", ""]
    # Two tiles for two iterations in front of the loop, and in it for the one after the next, in three places each.
    ahead, inside = (found[name][1] for name in ("ahead", "inside"))
    assert ahead.count("ttg.async_copy_global_to_local") == 6 and inside.count("async_copy_global_to_local") == 0
    loop = ahead[ahead.index("scf.for") :]
    assert loop[: loop.index("scf.if")].count("ttg.async_copy_global_to_local") == 2
    assert len(re.findall(r"ttg.local_alloc : \(\) -> !ttg.memdesc<3x", ahead)) == 2
    assert loop[loop.index("scf.if") :].count("ttng.warp_group_dot ") == 1


@pytest.mark.parametrize("size", [64, 72])
def test_results(size: int) -> None:
    kernel = tiledsl.compile(sparse(size, 32 if size == 64 else 24, 16, 2), out_idx=-1, target="interpret")
    lines = kernel.source.splitlines()
    loads, branch = (
        [n for n, line in enumerate(lines) if "mask=" in line and "tl.load" in line],
        "        if mask_element:",
    )
    assert len(loads) == 2 and max(loads) < lines.index(branch)
    generator = torch.Generator().manual_seed(size)
    a, b = (torch.randint(-4, 5, (size, size), generator=generator).half() for _ in range(2))
    block, steps = (32, 4) if size == 64 else (24, 5)
    mask = torch.rand((size // block, size // block, steps), generator=generator) < 0.5
    expected = torch.zeros(size, size)
    for by, bx, k in mask.nonzero().tolist():
        rows, columns = slice(by * block, (by + 1) * block), slice(bx * block, (bx + 1) * block)
        between = slice(k * 16, (k + 1) * 16)
        expected[rows, columns] += a[rows, between].float() @ b[between, columns].float()
    assert torch.equal(kernel(a, b, mask), expected)
