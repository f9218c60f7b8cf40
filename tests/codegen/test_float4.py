"""float4_e2m1fn: every element, every rounding, copies of all kinds, what is refused; run, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support.example_modules import load_example
from tiledsl.errors import TileError
from tiledsl.kernels.stored import call_fields, describe

POSITIVE = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
VALUES = torch.cat([POSITIVE, -POSITIVE])


def codes(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


@T.prim_func
def every_way(
    A: T.Tensor((16, 32), "float4_e2m1fn"),
    ByElement: T.Tensor((16, 32), "float32"),
    OfTile: T.Tensor((16, 32), "bfloat16"),
    Copied: T.Tensor((16, 32), "float4_e2m1fn"),
    Changed: T.Tensor((16, 32), "float4_e2m1fn"),
    Part: T.Tensor((16, 8), "float4_e2m1fn"),
):
    with T.Kernel(2, threads=128) as b:
        tile = T.alloc_shared((8, 32), "float4_e2m1fn")
        other = T.alloc_fragment((8, 32), "float4_e2m1fn")
        wide = T.alloc_fragment((8, 32), "bfloat16")
        T.copy(A[b * 8, 0], tile)
        for i, j in T.Parallel(8, 32):
            ByElement[b * 8 + i, j] = A[b * 8 + i, j] * 2
        T.copy(tile, other)
        T.copy(other, wide)
        T.copy(wide, OfTile[b * 8, 0])
        T.copy(other, Copied[b * 8, 0])
        for i, j in T.Parallel(8, 32):
            if j != 3:
                other[i, j] = other[i, j] * 2
        T.copy(other, Changed[b * 8, 0])
        T.copy(tile[0:8, 5:13], Part[b * 8 : b * 8 + 8, :])


def test_elements_and_copies() -> None:
    a = torch.arange(256, dtype=torch.uint8).view(16, 16)
    elements = torch.zeros(16, 32)
    tile = torch.zeros(16, 32, dtype=torch.bfloat16)
    copied, changed, part = torch.zeros_like(a), torch.zeros_like(a), torch.zeros(16, 4, dtype=torch.uint8)
    tiledsl.compile(every_way, target="interpret")(a, elements, tile, copied, changed, part)
    expected = VALUES[codes(a).long()]
    for found, wanted in ((elements / 2, expected), (tile.float(), expected)):
        assert torch.equal(found, wanted) and torch.equal(found.signbit(), wanted.signbit())
    assert torch.equal(copied, a)
    doubled = (expected * 2).clamp(-6, 6)
    doubled[:, 3] = expected[:, 3]
    assert torch.equal(VALUES[codes(changed).long()], doubled)
    assert torch.equal(codes(part), codes(a)[:, 5:13])


def nearest(x: torch.Tensor) -> torch.Tensor:
    """The codes by distance, of two equal distances the even code, beyond the largest element that."""
    distance = (x.abs().clamp(max=8)[:, None].double() - POSITIVE.double()).abs()
    distance[x.isnan()] = torch.tensor([1.0] * 7 + [0.0], dtype=torch.float64)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    code = order[distance[:, order].argmin(1)]
    return code + 8 * (x.signbit() & ~x.isnan())


def test_rounding() -> None:
    @T.prim_func
    def program(X: T.Tensor((512,), "float32"), Y: T.Tensor((512,), "float4_e2m1fn")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((512,), "float32")
            y = T.alloc_fragment((512,), "float4_e2m1fn")
            T.copy(X, x)
            T.clear(y)
            T.copy(x, y)
            T.copy(y, Y)

    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    near = torch.cat([bounds, torch.nextafter(bounds, bounds * 0), torch.nextafter(bounds, bounds * 9), POSITIVE])
    special = torch.tensor([float("nan"), float("inf"), 1e-40, 1e30])
    x = torch.cat([near, special, torch.rand(256 - len(near) - 4) * 7])
    x = torch.cat([x, -x])
    y = torch.zeros(256, dtype=torch.uint8)
    tiledsl.compile(program, target="interpret")(x, y)
    wrong = [(float(v), int(c), int(n)) for v, c, n in zip(x, codes(y), nearest(x), strict=True) if c != n]
    assert wrong == []


def refused(action: Callable[..., Any]) -> str:
    @T.prim_func
    def program(A: T.Tensor((8, 32), "float4_e2m1fn"), Y: T.Tensor((8, 32), "float16")):
        with T.Kernel(1, threads=32) as b:
            tile = T.alloc_shared((8, 8), "float4_e2m1fn")
            half = T.alloc_fragment((8, 8), "float16")
            action(A, tile, half, b)

    with pytest.raises(TileError) as caught:
        tiledsl.compile(program, target="interpret")
    return str(caught.value)


@T.prim_func
def alone_in_a_byte(A: T.Tensor((8, 16), "float4_e2m1fn")):
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(8, 8):
            A[i, j * 2] = 1.0


@T.prim_func
def under_a_condition(A: T.Tensor((8, 16), "float4_e2m1fn")):
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(8, 16):
            if j < i:
                A[i, j] = 1.0


@T.prim_func
def from_an_odd_place(A: T.Tensor((8, 16), "float4_e2m1fn")):
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(8, 8):
            A[i, j + 1] = 1.0


def test_what_is_refused() -> None:
    assert "a part of it begins and ends at even places" in refused(lambda a, tile, half, b: T.copy(a[0, 3], tile))
    assert "at even places" in refused(lambda a, tile, half, b: T.copy(a[0:8, b : b + 8], tile))
    assert "one cannot be written alone" in refused(lambda a, tile, half, b: a[0, 0].store(1.0))
    for write in (alone_in_a_byte, under_a_condition, from_an_odd_place):
        with pytest.raises(TileError, match="one cannot be written alone"):
            tiledsl.compile(write, target="interpret")
    assert "a buffer of float4_e2m1fn (T.copy it" in refused(lambda a, tile, half, b: T.gemm(tile, tile, half))
    assert "a value of it is a float16" in refused(lambda a, tile, half, b: T.alloc_var("float4_e2m1fn"))
    assert "no other form" in refused(lambda a, tile, half, b: T.view(tile, (64,), "uint8"))
    for last in (7, T.dynamic("n")):
        with pytest.raises(TileError, match="it is even and constant, for two elements lie in a byte"):

            @T.prim_func
            def program(A: T.Tensor((8, last), "float4_e2m1fn")):
                with T.Kernel(1, threads=32):
                    pass

            tiledsl.compile(program, target="interpret")


def test_views_of_global_memory() -> None:
    @T.prim_func
    def program(A: T.Tensor((8, 16), "uint8"), Y: T.Tensor((2, 128), "float32")):
        with T.Kernel(1, threads=32):
            elements = T.view(A, (2, 128), "float4_e2m1fn")
            for i, j in T.Parallel(2, 128):
                Y[i, j] = elements[i, j]

    a = torch.arange(128, dtype=torch.uint8).view(8, 16)
    y = torch.zeros(2, 128)
    tiledsl.compile(program, target="interpret")(a, y)
    assert torch.equal(y, VALUES[codes(a).long()].view(2, 128))


@pytest.mark.parametrize("version", ["current", "3.6"])
def test_compiles(compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    with tiledsl.settings(target="cuda:90"):
        product = load_example("gemm_fp4").matmul_fp4(256, 256, 256, 128, 128, 64)
    modules = {"every_way": tiledsl.compile(every_way, target="cuda:90").module, "product": product.module}
    made = {name: (error, ttgir) for name, error, ttgir in compile_modules(modules, **options)}
    assert [error for error, _ in made.values() if error] == []
    assert "ttng.warp_group_dot" in made["product"][1]
    assert len(made) == 2


def test_a_cast_rounds() -> None:
    @T.prim_func
    def program(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = T.cast(X[i], "float4_e2m1fn")

    x, y = torch.linspace(-8, 8, 64), torch.zeros(64, dtype=torch.float16)
    tiledsl.compile(program, target="interpret")(x, y)
    assert torch.equal(y.float(), VALUES[nearest(x)])


def test_strided_rows_and_other_types_of_bytes() -> None:
    m, stride = T.dynamic("m"), T.dynamic("stride")

    @T.prim_func
    def program(
        A: T.StridedTensor((m, 16), (stride, 1), "float4_e2m1fn"),
        B: T.StridedTensor((4, 16), (24, 1), "float4_e2m1fn"),
        Y: T.Tensor((m, 16), "float32"),
    ):
        with T.Kernel(m, threads=32) as row:
            for j in T.Parallel(16):
                Y[row, j] = A[row, j] + B[row, j]

    kernel = tiledsl.compile(program, target="interpret")
    a, b = (torch.randint(0, 256, (4, width), dtype=torch.uint8)[:, :8] for width in (11, 12))
    y = torch.zeros(4, 16)
    for kind in (torch.uint8, torch.int8, torch.float4_e2m1fn_x2):
        kernel(a.view(kind), b.view(kind), y.zero_())
        assert torch.equal(y, VALUES[codes(a).long()] + VALUES[codes(b).long()])
    kernel.bind(a.view(torch.int8), b, y.zero_())()
    assert torch.equal(y, VALUES[codes(a).long()] + VALUES[codes(b).long()])
    with pytest.raises(TileError, match="A must be uint8, but the tensor is float32"):
        kernel(y, b, y)
    again = call_fields(describe(kernel))["params"]
    assert [each.is_packed for each in again] == [True, True, False]


@pytest.mark.parametrize("strides", [(9, 1), (32, 2)])
def test_strides_within_bytes_are_refused(strides: tuple[int, int]) -> None:
    with pytest.raises(TileError, match="the last is 1 and the others are even, for two elements lie in a byte"):

        @T.prim_func
        def program(A: T.StridedTensor((8, 8), strides, "float4_e2m1fn")):
            with T.Kernel(1, threads=32):
                pass

        tiledsl.compile(program, target="interpret")


def test_the_range_of_elements() -> None:
    assert (T.min_value("float4_e2m1fn"), T.max_value(T.float4_e2m1fn)) == (-6, 6)


def test_elements_that_a_loop_writes() -> None:
    n, factor = T.dynamic("n"), 3

    @T.prim_func
    def program(
        X: T.Tensor((n, 24), "float32"),
        A: T.Tensor((n, 24), "float4_e2m1fn"),
        Turned: T.Tensor((2, 24, 16), "float4_e2m1fn"),
    ):
        with T.Kernel(T.ceildiv(n, 8), 3, threads=64) as (by, bx):
            x = T.alloc_fragment((8, 8), "float32")
            T.copy(X[by * 8, bx * 8], x)
            for i, j in T.Parallel(8, 8):
                A[by * 8 + i, bx * 8 + j] = x[i, j] * factor
                if by < 2:
                    x[i, j] += 1
            if by < 2:
                for i, j in T.Parallel(8, 8):
                    Turned[by, bx * 8 + j, i + 8] = x[i, j]

    x = torch.randint(-3, 4, (20, 24)) / 2
    a, turned = torch.zeros(20, 12, dtype=torch.uint8), torch.zeros(2, 24, 8, dtype=torch.uint8)
    tiledsl.compile(program, target="interpret")(x, a, turned)
    assert torch.equal(VALUES[codes(a).long()].flatten(), VALUES[nearest(x.flatten() * 3)])
    assert torch.equal(
        VALUES[codes(turned).long()][:, :, 8:], VALUES[nearest(x[:16].flatten() + 1)].view(2, 8, 24).transpose(1, 2)
    )
    assert not turned[:, :, :4].any()
