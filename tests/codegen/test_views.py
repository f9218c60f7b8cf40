"""Tiles seen as another element type: of the same bits, little-endian, in both directions, run and compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError

TYPES = ("uint8", "float8_e4m3fn", "bfloat16", "int32", "float64")
BYTES = 96


def viewed(source: str, target: str) -> Any:
    sizes = [BYTES // torch.empty(0, dtype=getattr(torch, dtype)).element_size() for dtype in (source, target)]

    @T.prim_func
    def program(A: T.Tensor((sizes[0],), source), B: T.Tensor((sizes[1],), target), C: T.Tensor((sizes[0],), source)):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((sizes[0],), source)
            T.copy(A, a)
            b = T.view(a, (sizes[1] // 4, 4), target)
            T.copy(T.reshape(b, (sizes[1],)), B)
            b[1, 2] = b[0, 1]  # seen by both names
            T.copy(a, C)

    return program


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(TYPES, 2)))
def test_bits(source: str, target: str) -> None:
    a = torch.randint(0, 255, (BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    b, c = torch.zeros_like(a), torch.zeros_like(a)
    tensors = [each.view(getattr(torch, dtype)) for each, dtype in ((a, source), (b, target), (c, source))]
    tiledsl.compile(viewed(source, target), target="interpret")(*tensors)
    assert torch.equal(a, b)
    wide = tensors[1].element_size()
    a[6 * wide : 7 * wide] = a[wide : 2 * wide]
    assert torch.equal(a, c)


def test_what_is_refused() -> None:
    def of(shape: Any, source: str, target: str) -> str:
        @T.prim_func
        def program(A: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=32):
                a = T.alloc_shared((8,), source)
                T.clear(a)
                A[0] = T.cast(T.view(a, shape, target)[0], "float32")

        with pytest.raises(TileError) as caught:
            tiledsl.compile(program, target="interpret")
        return str(caught.value)

    assert "a has 8 elements of 32 bits, the shape (8,) has 8 of 16 bits" in of((8,), "float32", "float16")
    assert "a bool has no bits that are defined" in of((8,), "bool", "uint8")
    assert "a bool has no bits that are defined" in of((32,), "float32", "bool")


@pytest.mark.parametrize("version", ["current", "3.6"])
def test_compiles(compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    modules = {
        f"{source}_{target}": tiledsl.compile(viewed(source, target), target="cuda:90").module
        for source, target in (("bfloat16", "uint8"), ("uint8", "int32"), ("float64", "float8_e4m3fn"))
    }
    made = compile_modules(modules, full=False, **options)
    assert len(made) == 3 and [error for _, error, _ in made if error] == []
