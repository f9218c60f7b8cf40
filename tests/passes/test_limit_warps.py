"""limit-warps: how many warps kernels that reduce get, and which keep theirs."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import kernel_of, program
from tiledsl.dialects.tile import KernelOp
from tiledsl.errors import TileError
from tiledsl.passes.limit_warps import LimitWarps
from tiledsl.runtime.target import Target


def columns(rows: int, width: int, dtype: str = "float16", threads: int = 256, **launch: Any) -> T.PrimFunc:
    """Sums of the columns of a tile."""

    @T.prim_func
    def columns(X: T.Tensor((8 * rows, width), dtype), Y: T.Tensor((8, width), "float32")):
        with T.Kernel(8, threads=threads, **launch) as bx:
            x = T.alloc_fragment((rows, width), "float32")
            s = T.alloc_fragment((width,), "float32")
            T.copy(X[bx * rows, 0], x)
            T.reduce_sum(x, s, dim=0)
            T.copy(s, Y[bx, 0])

    return columns


def rows(count: int, width: int, dtype: str = "float16", threads: int = 256) -> T.PrimFunc:
    """Sums of the rows of a tile."""

    @T.prim_func
    def rows(X: T.Tensor((8 * count, width), dtype), Y: T.Tensor((8 * count,), "float32")):
        with T.Kernel(8, threads=threads) as bx:
            x = T.alloc_fragment((count, width), "float32")
            s = T.alloc_fragment((count,), "float32")
            T.copy(X[bx * count, 0], x)
            T.reduce_sum(x, s, dim=1)
            T.copy(s, Y[bx * count])

    return rows


def warps(program: T.PrimFunc, target: str = "cuda:90", **options: Any) -> int:
    source = tiledsl.compile(program, target=target, pass_configs=options).source
    (found,) = re.findall(r"num_warps=(\d+)", source)
    return int(found)


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "expected"),
    [
        (32, 128, "float16", 1), (32, 256, "float16", 2), (32, 512, "float16", 4), (32, 128, "float32", 1),
        (32, 256, "float32", 2), (32, 256, "int8", 1), (64, 128, "float16", 2), (64, 128, "float8_e4m3fn", 1),
        (128, 128, "float16", 4), (256, 128, "float16", 8), (4, 512, "bfloat16", 2), (4, 4096, "float16", 8),
        (2, 64, "float16", 8), (128, 128, "float8_e4m3fn", 2), (256, 128, "int8", 4),
    ],
)  # fmt: skip
def test_sums_of_columns_have_no_more_warps_than_columns(rows: int, width: int, dtype: str, expected: int) -> None:
    """One for each 512 bytes of a row, but no more than 128 elements, or 256 bytes, each thread; (2, 64) has one."""
    assert warps(columns(rows, width, dtype)) == expected


@pytest.mark.parametrize(
    ("count", "width", "dtype", "expected"),
    [
        (1, 1024, "float16", 4), (1, 1024, "float32", 8), (1, 512, "float16", 2), (4, 1024, "float16", 8),
        (1, 2048, "float16", 8), (1, 256, "float32", 8), (2, 256, "float16", 2),
    ],
)  # fmt: skip
def test_sums_of_rows_have_no_more_threads_than_vectors(count: int, width: int, dtype: str, expected: int) -> None:
    assert warps(rows(count, width, dtype)) == expected


def test_fewer_threads_stay() -> None:
    assert warps(columns(32, 256, threads=32)) == 1
    assert warps(columns(32, 512, threads=64)) == 2
    assert warps(columns(32, 512, threads=128)) == 4


def test_what_the_program_or_an_option_says_stays() -> None:
    assert warps(columns(32, 128, num_warps=8)) == 8
    assert warps(columns(32, 128), **{"lower-to-triton.num_warps": 4}) == 4
    assert warps(columns(32, 128), **{"limit-warps.mode": "off"}) == 8
    assert warps(columns(32, 128), target="hip:gfx942") == 4  # of 64 threads
    with pytest.raises(TileError, match=r"limit-warps.mode is 'some'; it must be one of auto, off"):
        warps(columns(32, 128), **{"limit-warps.mode": "some"})


@T.prim_func
def scanned(X: T.Tensor((32, 128), "float16"), Y: T.Tensor((32, 128), "float32"), Z: T.Tensor((128,), "float32")):
    with T.Kernel(1, threads=256):
        x = T.alloc_fragment((32, 128), "float32")
        s = T.alloc_fragment((128,), "float32")
        T.copy(X, x)
        T.cumsum(x, dim=0)
        T.reduce_sum(x, s, dim=0)
        T.copy(x, Y)
        T.copy(s, Z)


@T.prim_func
def multiplied(X: T.Tensor((32, 128), "float16"), Y: T.Tensor((32, 32), "float32"), Z: T.Tensor((128,), "float32")):
    with T.Kernel(1, threads=256):
        x = T.alloc_shared((32, 128), "float16")
        y = T.alloc_fragment((32, 32), "float32")
        s = T.alloc_fragment((128,), "float32")
        T.copy(X, x)
        T.gemm(x, x, y, transpose_B=True, clear_accum=True)
        T.reduce_sum(x, s, dim=0)
        T.copy(y, Y)
        T.copy(s, Z)


@T.prim_func
def added(X: T.Tensor((32, 128), "float16"), Y: T.Tensor((32, 128), "float16")):
    with T.Kernel(1, threads=256):
        for i, j in T.Parallel(32, 128):
            Y[i, j] = X[i, j] + 1.0


@T.prim_func
def by_thread(X: T.Tensor((256,), "float32"), Y: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=256):
        t = T.get_thread_binding()
        s = T.warp_reduce_sum(X[t])
        if t % 32 == 0:
            Y[t // 32] = s


@pytest.mark.parametrize("program", [scanned, multiplied, added, by_thread], ids=lambda each: each.name)
def test_kernels_of_other_kinds_stay(program: T.PrimFunc) -> None:
    assert warps(program, **{"fit-warps.mode": "off"}) == 8


def test_tiles_that_a_loop_carries_are_held_too() -> None:
    def carrying(count: int) -> T.PrimFunc:
        @T.prim_func
        def carrying(X: T.Tensor((64, 128), "float16"), Y: T.Tensor((128,), "float32")):
            with T.Kernel(1, threads=256):
                total = T.alloc_fragment((count, 128), "float32")
                s = T.alloc_fragment((128,), "float32")
                T.clear(total)
                for k in T.serial(64 // count):
                    for i, j in T.Parallel(count, 128):
                        total[i, j] = total[i, j] + X[k * count + i, j]
                T.reduce_sum(total, s, dim=0)
                T.copy(s, Y)

        return carrying

    whole = {"widen-loops.enabled": False}
    assert [warps(carrying(count), **whole) for count in (8, 16, 32)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("uses", "expected"), [("", 1), ("x", 1), ("x, y", 2), ("x, y, z", 4), ("w, x, y, z", 4)], ids=["", *"1234"]
)
def test_tiles_that_are_used_behind_a_reduction_are_held_too(uses: str, expected: int) -> None:
    """Each has 32 elements for a thread of four warps: 128 for one of one."""
    text = """
@T.prim_func
def main(X: T.Tensor((4, 32, 128), "float16"), Y: T.Tensor((128,), "float32"), O: T.Tensor((4, 32, 128), "float16")):
    with T.Kernel(1, threads=256):
        s = T.alloc_fragment((128,), "float32")
        w = T.alloc_fragment((32, 128), "float32")
        x = T.alloc_fragment((32, 128), "float32")
        y = T.alloc_fragment((32, 128), "float32")
        z = T.alloc_fragment((32, 128), "float32")
        T.copy(X[0, 0, 0], w)
        T.copy(X[1, 0, 0], x)
        T.copy(X[2, 0, 0], y)
        T.copy(X[3, 0, 0], z)
        T.reduce_sum(x, s, dim=0)
        T.copy(s, Y)
"""
    for number, name in enumerate(uses.split(", ") if uses else []):
        text += f"        for i, j in T.Parallel(32, 128):\n            O[{number}, i, j] = {name}[i, j] + s[j]\n"
    assert warps(tiledsl.parse(text)) == expected


HEAD = """
%i = tensor.iota {axis = 0} : tensor<32x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x128xint32>
%h = tensor.iota {axis = 0} : tensor<16x1xint32>
%w = tensor.iota {axis = 1} : tensor<1x16xint32>
%v = tensor.iota {axis = 1} : tensor<1x32xint32>
%q = tensor.iota {axis = 0} : tensor<4x1xint32>
%t = tensor.iota {axis = 1} : tensor<1x1024xint32>
%p = tensor.iota {axis = 0} : tensor<2048x1xint32>
%u = tensor.iota {axis = 1} : tensor<1x2xint32>
%d = tensor.iota {axis = 0} : tensor<2x1x1xint32>
%e = tensor.iota {axis = 1} : tensor<1x16x1xint32>
%f = tensor.iota {axis = 2} : tensor<1x1x128xint32>
"""
TILE = "%{0} = tile.load %A[%i, %j] : tensor<32x128xfloat32>\n"  # of a row 32 vectors
SUM = '%s = tensor.reduce %x {kind = "sum", axis = 0} : tensor<128xfloat32>\n'
SUMS = TILE.format("x") + SUM
READ_LATER = "%z = arith.add %{0}, %{0} : tensor<32x128xfloat32>\n"
SMALL = """%y = tile.load %A[%h, %{0}] : tensor<16x{1}xfloat32>
%s = tensor.reduce %y {{kind = "sum", axis = 0}} : tensor<{1}xfloat32>
"""
LOOP = """%r = scf.for %c0, %c8, %c1[%x] : tensor<32x128xfloat32> (%k: int32, %g: tensor<32x128xfloat32>) {{
  {}
  scf.yield [%g]
}}
"""
WHILE = """%r = scf.while [%x] : tensor<32x128xfloat32> (%g: tensor<32x128xfloat32>) {{
  %more = arith.cmp %bx, %c8 {{predicate = "lt"}} : bool
  scf.condition %more[%g]
}} (%o: tensor<32x128xfloat32>) {{
  {}
  scf.yield [%o]
}}
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (SUMS, 1), (SUMS.replace("load %A[%i, %j]", "load_block %A[%c0, %c0] {axes = (0, 1)}"), 1),
        ("%x = arith.constant {value = 1.0} : tensor<32x128xfloat32>\n" + SUM, None), (TILE.format("x"), None),
        (SMALL.format("w", 16), None), (SMALL.format("v", 32), 1),  # an element for each thread, and two
        # What is there at the reduction: each tile has 128 elements for 32 threads.
        (TILE.format("y") + SUMS + READ_LATER.format("y"), 2), (TILE.format("y") + SUMS, 1),
        (TILE.format("y") + READ_LATER.format("y") + SUMS, 1),
        (SMALL.format("v", 32).replace("%s", "%t") + SUMS + "%z = arith.add %y, %y : tensor<16x32xfloat32>\n", 1),
        # Constants and numbers in order are not held, nor is what is made later.
        ("%y = arith.constant {value = 1.0} : tensor<32x128xfloat32>\n" + SUMS + READ_LATER.format("y"), 1),
        (SUMS + TILE.format("y") + READ_LATER.format("y"), 1),
        # What loops carry, and load on each turn; what is read in them is held all the while.
        (TILE.format("x") + LOOP.format("") + SUM, 1), (TILE.format("x") + LOOP.format(TILE.format("y")) + SUM, 2),
        (TILE.format("x") + WHILE.format("") + SUM, 1), (TILE.format("x") + WHILE.format(TILE.format("y")) + SUM, 2),
        (TILE.format("x") + LOOP.format(SUM) + READ_LATER.format("x"), 2),
        (TILE.format("y") + TILE.format("x") + LOOP.format(SUM + READ_LATER.format("y")), 4),
        # The smallest elements that its tile was loaded from count, not those of tiles of other shapes.
        (TILE.format("a").replace("float32", "float16").replace("A", "F")
         + "%x = arith.cast %a : tensor<32x128xfloat32>\n" + SUM, 1),
        ("%a = tile.load %F[%q, %t] : tensor<4x1024xfloat16>\n%b = tile.load %A[%q, %t] : tensor<4x1024xfloat32>\n"
         "%y = arith.cast %a : tensor<4x1024xfloat32>\n%x = arith.add %y, %b : tensor<4x1024xfloat32>\n"
         + SUM.replace("128", "1024"), 4),
        (SUMS.replace("axis = 0", "axis = 1").replace("<128x", "<32x"), None),
        # Between dimensions what lies behind is kept; with two numbers in a row there is less than a vector.
        ("%x = tile.load %B[%d, %e, %f] : tensor<2x16x128xfloat32>\n"
         + SUM.replace("axis = 0", "axis = 1").replace("<128x", "<2x128x"), 1),
        ("%x = tile.load %A[%p, %u] : tensor<2048x2xfloat32>\n" + SUM.replace("<128x", "<2x"), 1),
    ],
)  # fmt: skip
def test_how_many_warps_a_kernel_has_elements_for(body: str, expected: int | None) -> None:
    assert chosen(body) == expected


def test_without_a_target_or_with_as_few_threads_nothing_is_chosen() -> None:
    assert chosen(SUMS, target=None) is chosen(SUMS, threads=32) is None


def chosen(body: str, threads: int = 256, target: str | None = "cuda:90") -> object:
    parameters = "A: 32*128*float32, B: 2*16*128*float32, F: 32*128*float16"
    made = program(HEAD + body, parameters=parameters, target=target and Target.parse(target))
    kernel = kernel_of(made)
    assert isinstance(kernel, KernelOp)
    kernel.set_attribute("threads", threads)
    LimitWarps().run(made)
    return kernel.option("num_warps")
