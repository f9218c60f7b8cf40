"""Loops without products that are unrolled instead of pipelined: loads go to registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T


def sums(rows: int, columns: int) -> Any:
    @T.prim_func
    def sums(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((columns,), "float32")):
        with T.Kernel(T.ceildiv(columns, 1024), threads=128) as block:
            x = T.alloc_shared((1024,), "float32")
            sum = T.alloc_fragment((1024,), "float32")
            T.clear(sum)
            for k in T.Pipelined(rows, num_stages=3):
                T.copy(X[k, block * 1024], x)
                for i in T.Parallel(1024):
                    sum[i] += x[i]
            T.copy(sum, Y[block * 1024])

    return sums


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_loads_go_to_registers(compile_modules: Callable[..., Any], version: str, request: Any) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    modules = {
        str(unroll): tiledsl.compile(sums(64, 4096), target="cuda:90", pass_configs={"pipeline-loops.unroll": unroll})
        for unroll in (0, 4)
    }
    found = compile_modules({name: made.module for name, made in modules.items()}, full=False, **options)
    assert [error for _, error, _ in found] == ["", ""]
    text = {name: ttgir for name, _, ttgir in found}
    assert text["0"].count("ttg.async_copy_global_to_local") == 3 and text["0"].count("tt.load") == 0
    assert text["4"].count("ttg.async_copy_global_to_local") == 0 and text["4"].count("tt.load") == 4


@pytest.mark.parametrize("rows", [3, 8, 9])
def test_results(rows: int) -> None:
    made = tiledsl.compile(sums(rows, 1024), target="interpret", pass_configs={"pipeline-loops.unroll": 4}, out_idx=-1)
    assert "loop_unroll_factor=4" in made.source and "num_stages=3" not in made.source
    x = torch.randint(-9, 9, (rows, 1024), generator=torch.Generator().manual_seed(rows)).float()
    assert torch.equal(made(x), x.sum(0))
    assert made.verify().ok
