"""fit-warps: how many threads kernels of products get, which keep theirs, and what Triton makes of both."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import program
from tiledsl.dialects import tile
from tiledsl.errors import TileError
from tiledsl.passes.fit_warps import FitWarps
from tiledsl.runtime.target import Target

OFF = {"fit-warps.mode": "off"}


def products(threads: int, rows: int = 64, width: int = 32, dtype: str = "float32", **launch: Any) -> T.PrimFunc:
    """Two products in a loop, of four tiles that it loads; one of them is needed behind the loop, too."""

    @T.prim_func
    def products(
        A: T.Tensor((2, rows, 64), dtype), B: T.Tensor((2, 64, width), dtype), C: T.Tensor((2, rows, width), "float32")
    ):
        with T.Kernel(1, threads=threads, **launch):
            a = T.alloc_shared((rows, 32), dtype)
            a2 = T.alloc_shared((rows, 32), dtype)
            b = T.alloc_shared((32, width), dtype)
            b2 = T.alloc_shared((32, width), dtype)
            c = T.alloc_fragment((rows, width), "float32")
            c2 = T.alloc_fragment((rows, width), "float32")
            T.clear(c)
            T.clear(c2)
            for k in T.serial(2):
                T.copy(A[0, 0, k * 32], a)
                T.copy(A[1, 0, k * 32], a2)
                T.copy(B[0, k * 32, 0], b)
                T.copy(B[1, k * 32, 0], b2)
                T.gemm(a, b, c)
                T.gemm(a2, b2, c2)
            T.copy(c, C[0, 0, 0])
            T.copy(c2, C[1, 0, 0])

    return products


def warps(program: T.PrimFunc, target: str = "cuda:90", **options: Any) -> int:
    source = tiledsl.compile(program, target=target, pass_configs=options).source
    (found,) = re.findall(r"num_warps=(\d+)", source)
    return int(found)


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_more_threads_hold_what_does_not_fit(target: str) -> None:
    """Of the 207 registers that a thread has for tiles, the sums of two products take 128. What they multiply is
    loaded, and lies in shared memory."""
    assert [warps(products(threads), target) for threads in (32, 64, 128)] == [1, 2, 4]
    assert warps(products(32, rows=32), target) == 1
    assert warps(products(32, rows=128), target) == (
        4 if target == "cuda:90" else 2
    )  # 256; four warps multiply 64 rows
    assert warps(products(32, rows=256, width=64), target) == 4  # 512 of 64 threads, and never more


def test_what_something_else_is_computed_from_takes_registers() -> None:
    def program(read: bool) -> T.PrimFunc:
        @T.prim_func
        def program(
            A: T.Tensor((32, 128), "float32"), B: T.Tensor((64, 128), "float32"), C: T.Tensor((32, 64), "float32")
        ):
            with T.Kernel(1, threads=32):
                a, b = T.alloc_shared((32, 128), "float32"), T.alloc_shared((64, 128), "float32")
                c, s = T.alloc_fragment((32, 64), "float32"), T.alloc_fragment((64,), "float32")
                T.copy(A, a)
                T.copy(B, b)
                T.clear(s)
                T.gemm(a, b, c, transpose_B=True, clear_accum=True)
                if read:
                    T.reduce_sum(b, s, 1)
                for i, j in T.Parallel(32, 64):
                    c[i, j] = c[i, j] + s[j]
                T.copy(c, C)

        return program

    assert [warps(program(read)) for read in (False, True)] == [1, 2]


def test_nothing_but_the_number_changes() -> None:
    made = tiledsl.compile(products(32, rows=128), target="cuda:80")
    before, after = made.ir(after="legalize-arith"), made.ir(after="fit-warps")
    assert after == before.replace("threads = 32", "threads = 64") != before


def test_spills_vanish() -> None:
    """With Triton 3.9: 1232 bytes a thread with one warp, none with four."""
    program = products(32, rows=128)
    more, as_asked = (tiledsl.compile(program, target="cuda:90", pass_configs=each) for each in ({}, OFF))
    assert more.resources.spills == 0 and (as_asked.resources.spills or 0) > 64


@pytest.mark.parametrize("options", [OFF, {"lower-to-triton.num_warps": 1}])
def test_what_is_asked_for_by_name_is_kept(options: dict[str, Any]) -> None:
    assert warps(products(32, rows=128), **options) == 1
    assert warps(products(32, rows=128, num_warps=1)) == 1
    assert warps(products(32, rows=128), "hip:gfx942") == 1


def test_without_products_threads_stay() -> None:
    @T.prim_func
    def sums(X: T.Tensor((128, 256), "float32"), Y: T.Tensor((128, 256), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((128, 256), "float32")
            T.copy(X, x)
            for i, j in T.Parallel(128, 256):
                x[i, j] = x[i, j] * 2
            T.copy(x, Y)

    assert warps(sums) == 1


def test_a_wrong_mode() -> None:
    with pytest.raises(TileError, match=r"fit-warps\.mode is .all."):
        warps(products(32), **{"fit-warps.mode": "all"})


@pytest.mark.parametrize(
    ("rows", "width", "expected"),
    [
        (64, 64, 4),
        (64, 128, 8),  # 128 registers of a thread for the sums of both: too many for three blocks of four warps
        (128, 64, 8),
        (32, 64, 8),
    ],
)
def test_products_of_64_rows_have_four_warps(rows: int, width: int, expected: int) -> None:
    program = products(256, rows, width, "float16")
    assert warps(program) == expected
    assert warps(program, **OFF) == warps(program, "cuda:80") == warps(program, "cuda:100") == 8
    assert warps(products(256, rows, width, "float16", num_warps=8)) == 8


def test_large_tiles_elsewhere_keep_eight_warps() -> None:
    def program(columns: int) -> T.PrimFunc:
        @T.prim_func
        def program(
            A: T.Tensor((64, 32), "float16"), C: T.Tensor((64, 64), "float32"), X: T.Tensor((64, columns), "float32")
        ):
            with T.Kernel(1, threads=256):
                a = T.alloc_shared((64, 32), "float16")
                c = T.alloc_fragment((64, 64), "float32")
                x = T.alloc_fragment((64, columns), "float32")
                T.copy(A, a)
                T.gemm(a, a, c, transpose_B=True, clear_accum=True)
                T.copy(c, C)
                T.copy(X, x)
                for i, j in T.Parallel(64, columns):
                    X[i, j] = x[i, j] * 2

        return program

    assert [warps(program(columns)) for columns in (128, 256)] == [4, 8]


def threads_for(rows: int, columns: int, threads: int) -> int:
    """Of one product of 16 steps, whose operands are loaded."""
    kind = f"tensor<{rows}x{columns}xfloat32>"
    body = f"""
    %zero = arith.constant {{value = 0.0}} : {kind}
    %a = tile.load_block %A[%c0, %c0] {{axes = (0, 1)}} : tensor<{rows}x16xfloat16>
    %b = tile.load_block %A[%c0, %c0] {{axes = (0, 1)}} : tensor<16x{columns}xfloat16>
    %d = tensor.dot %a, %b, %zero : {kind}"""
    made = program(body, parameters="A: 512*512*float16", target=Target("cuda", 90))
    (kernel,) = tile.kernels(made.root)
    kernel.set_attribute("threads", threads)
    FitWarps().run(made)
    return int(kernel.threads)


def test_as_many_registers_as_a_thread_has() -> None:
    """207 of 255 are for tiles: so many columns has a row of each of 32 threads."""
    assert [threads_for(32, columns, 32) for columns in (207, 208, 414, 415)] == [32, 64, 64, 128]


def test_four_warps_have_registers_enough_for_three_blocks() -> None:
    """120 of 168 are for tiles: of 128 threads for 64 rows of sums, their first operand's 4 and the second one's."""
    assert [threads_for(64, columns, 256) for columns in (207, 208)] == [128, 256]
    assert threads_for(128, 64, 256) == 256  # of more rows several warps would have the same
