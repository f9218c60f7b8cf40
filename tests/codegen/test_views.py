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


def flattened() -> Any:
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((n, 4), "float32"), k: T.int32, B: T.Tensor((2 * n, 2), "float32")):
        with T.Kernel(T.ceildiv(n * 4, 64), threads=64) as block:
            a = T.reshape(A, (n * 4,))
            pairs = T.view(B, (4 * n // 4, k), "int32")
            for i in T.Parallel(64):
                value = a[block * 64 + i + 1] * 2
                pairs[(block * 64 + i) // 4, i % 4] = T.reinterpret(value, "int32")

    return program


def test_dynamic_shapes() -> None:
    """What lies outside of the flat tensor reads 0, though it is inside of others' rows."""
    for rows in (1, 16, 33):
        a, b = torch.randn(rows, 4), torch.zeros(2 * rows, 2)
        tiledsl.compile(flattened(), target="interpret")(a, 4, b)
        assert torch.equal(b.flatten(), torch.cat([a.flatten()[1:], torch.zeros(1)]) * 2)
    kernel = tiledsl.compile(flattened(), target="cuda:90")
    text = [line.strip() for line in kernel.get_kernel_source().splitlines()]
    assert "size_0 = n * 4" in text


def test_dimensions_of_the_device_are_refused() -> None:
    @T.prim_func
    def program(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(2, threads=32) as block:
            A[0, 0] = T.reshape(A, (8, block * 8))[0, 0]

    with pytest.raises(TileError, match=r"T\.view: a dimension is known only on the device"):
        tiledsl.compile(program, target="interpret")


@pytest.mark.parametrize(
    ("shape", "dtype", "fits"),
    [
        (lambda n, m: (n * 4 * m,), "float32", True),
        (lambda n, m: (m, n, 8), "float16", True),
        (lambda n, m: (2 * n, m * 2), "int32", True),
        (lambda n, m: (n * m,), "float32", False),
        (lambda n, m: (n * 4 * m + 1,), "float32", False),
        (lambda n, m: (m, n, 4), "float16", False),
        (lambda n, m: (n * n, 4), "float32", True),  # for n may be m
    ],
)
def test_dynamic_shapes_of_another_size_are_refused(shape: Any, dtype: str, fits: bool) -> None:
    n, m = T.dynamic("n"), T.dynamic("m")
    dims = shape(n, m)

    @T.prim_func
    def program(A: T.Tensor((n, 4, m), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            B[0] = T.cast(T.view(A, dims, dtype)[tuple(0 for _ in dims)], "float32")

    if fits:
        tiledsl.compile(program, target="interpret")
        return
    with pytest.raises(TileError, match=r"A is buffer.*, which never has as many bytes as the shape"):
        tiledsl.compile(program, target="interpret")
