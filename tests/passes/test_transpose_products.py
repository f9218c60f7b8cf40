"""transpose-products: which products are written as the product of the transposes, and what Triton makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import after, filecheck, kernel
from tests.support.programs import check_pass
from tiledsl.errors import TileError
from tiledsl.passes.transpose_products import TransposeProducts
from tiledsl.runtime.target import Target


def gradient(
    queries: int = 32,
    dim: int = 128,
    dtype: str = "float16",
    threads: int = 256,
    start: float = 0.0,
    loaded: bool = False,
) -> T.PrimFunc:
    """Queries' part of attention backward: the product of the transpose of what another product gives."""
    keys, steps = 128, 3

    @T.prim_func
    def gradient(
        Q: T.Tensor((steps * queries, dim), dtype),
        K: T.Tensor((keys, dim), dtype),
        S: T.Tensor((steps * keys, queries), dtype),
        D: T.Tensor((steps * queries, dim), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            q = T.alloc_shared((queries, dim), dtype)
            k = T.alloc_shared((keys, dim), dtype)
            s = T.alloc_fragment((keys, queries), "float32")
            s_cast = T.alloc_shared((keys, queries), dtype)
            d = T.alloc_fragment((queries, dim), "float32")
            T.copy(K, k)
            for step in T.Pipelined(steps, num_stages=2):
                T.copy(Q[step * queries, 0], q)
                T.gemm(k, q, s, transpose_B=True, clear_accum=True)
                if loaded:
                    T.copy(S[step * keys, 0], s_cast)
                else:
                    T.copy(s, s_cast)
                T.fill(d, start)
                T.gemm(s_cast, k, d, transpose_A=True)
                T.copy(d, D[step * queries, 0])

    return gradient


def compiled(program: T.PrimFunc, target: str = "cuda:90", **options: Any) -> tiledsl.Kernel:
    return tiledsl.compile(program, target=target, pass_configs=options)


def is_transposed(program: T.PrimFunc, **options: Any) -> bool:
    return "tl.dot(k_t, s_cast" in compiled(program, **options).source


@pytest.mark.parametrize("queries", [16, 32])
@pytest.mark.parametrize(("dim", "threads"), [(64, 128), (128, 256)])
def test_few_rows(queries: int, dim: int, threads: int) -> None:
    program = gradient(queries, dim, threads=threads)
    kernel = compiled(program)
    assert "d = tl.trans(product)" in kernel.source and is_transposed(program)
    for name, count in (("wgmma.mma_async", 1), ("mma.sync", 0)):
        assert (name in kernel.asm["ptx"]) == bool(count)


@pytest.mark.parametrize(
    "changed",
    [
        {"queries": 64},  # wgmma takes it as it is
        {"dim": 32},  # too few columns to be rows
        {"threads": 64},  # half a warp group
        {"dtype": "float32"},
        {"dtype": "float8_e4m3fn"},
        {"loaded": True},  # the left operand is in shared memory as it is
    ],
)
def test_other_products_stay(changed: dict[str, Any]) -> None:
    assert not is_transposed(gradient(**changed), **{"fit-warps.mode": "off"})


def test_any_constant_may_be_added_to() -> None:
    assert is_transposed(gradient(start=1.0))


def test_other_targets_and_options() -> None:
    assert not is_transposed(gradient(), **{"transpose-products.mode": "off"})
    for target in ("cuda:80", "cuda:100", "hip:gfx942"):
        assert "tl.trans(product)" not in compiled(gradient(), target).source
    with pytest.raises(TileError, match=r"transpose-products.mode is 'some'; it must be one of auto, off"):
        compiled(gradient(), **{"transpose-products.mode": "some"})


PARAMETERS = "A: 64*16*float16, B: 64*64*float16, C: 16*64*float32"
BODY = """
%i = tensor.iota {axis = 0} : tensor<64x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%l = tensor.iota {axis = 1} : tensor<1x64xint32>
%r = tensor.iota {axis = 0} : tensor<16x1xint32>
%x = tile.load %A[%i, %j] {guarded = true} : tensor<64x16xfloat16>
%y = tile.load %B[%i, %l] {guarded = true} : tensor<64x64xfloat16>
%s = arith.add %x, %x : tensor<64x16xfloat16>
%t = tensor.transpose %s {permutation = (1, 0)} : tensor<16x64xfloat16>
%zeros = arith.constant {value = 0.0} : tensor<16x64xfloat32>
%d = tensor.dot %t, %y, %zeros : tensor<16x64xfloat32>
tile.store %d, %C[%r, %l] {guarded = true}
"""


def test_the_transpose_of_the_product_of_transposes() -> None:
    found = after(TransposeProducts(), BODY, parameters=PARAMETERS, target=Target("cuda", 90))
    filecheck(
        [line for line in found if "tensor." in line and "iota" not in line],
        """
        %y_t = tensor.transpose %y {permutation = (1, 0)} : tensor<64x64xfloat16>
        %0 = tensor.dot %y_t, %s, %c0p0 : tensor<64x16xfloat32>
        %d = tensor.transpose %0 {permutation = (1, 0)} : tensor<16x64xfloat32>
        """,
    )


LOADED, LEFT = ("%y = tile.load", "%w = tile.load"), "tensor<16x64xfloat16>"


@pytest.mark.parametrize(
    ("changes", "gains"),
    [
        ([], True),
        ([LOADED, ("%s =", "%y = tensor.transpose %w {permutation = (1, 0)} : "
           "tensor<64x64xfloat16>\n%s =")], True),  # loaded all the same
        ([("%s = arith.add", "%u = arith.add"), ("%t =", "%s = arith.cast %u : tensor<64x16xfloat16>\n%t =")], True),
        ([("%s = arith.add %x, %x", "%s = arith.cast %x")], False),  # loaded as it is
        ([LOADED, ("%s =", "%y = arith.add %w, %w : tensor<64x64xfloat16>\n%s =")], False),
        ([("tensor.dot %t,", "tensor.dot %q,"), ("%zeros =", f"%q = arith.add %t, %t : {LEFT}\n%zeros =")], False),
        ([LOADED, ("%s =", "%y = arith.cast %w : tensor<64x64xfloat8_e5m2>\n%s =")], False),
        ([("%t = tensor.transpose %s", "%o = arith.cast %s : tensor<64x16xfloat8_e5m2>\n%t = tensor.transpose %o"),
          ("tensor<16x64xfloat16>", "tensor<16x64xfloat8_e5m2>")], False),
        ([("%zeros = arith.constant {value = 0.0} :", "%zeros = tile.load %C[%r, %l] {guarded = true} :")], False),
    ],
)  # fmt: skip
def test_which_products_gain(changes: list[tuple[str, str]], gains: bool) -> None:
    text = BODY
    for before, replaced in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, replaced)
    found = after(TransposeProducts(), text, parameters=PARAMETERS, target=Target("cuda", 90))
    assert any("tensor.dot" in line and line.endswith("tensor<64x16xfloat32>") for line in found) is gains


@pytest.mark.parametrize(
    ("rows", "columns", "gains"), [(16, 64, True), (16, 32, False), (64, 64, False), (64, 128, False)]
)
def test_few_rows_and_enough_columns(rows: int, columns: int, gains: bool) -> None:
    text = BODY.replace("64x64x", "64xCOLUMNSx").replace("16x64xfloat32", "ROWSxCOLUMNSxfloat32").replace("16", "ROWS")
    text = text.replace("floatROWS", "float16").replace("1x64xint32", "1xCOLUMNSxint32")
    text = text.replace("ROWS", str(rows)).replace("COLUMNS", str(columns))
    parameters = f"A: 64*{rows}*float16, B: 64*{columns}*float16, C: {rows}*{columns}*float32"
    found = after(TransposeProducts(), text, parameters=parameters, target=Target("cuda", 90))
    assert any("%y_t = tensor.transpose" in line for line in found) is gains


def test_the_meaning_stays() -> None:
    generator = np.random.default_rng(0)
    tiles = [generator.integers(-4, 5, shape).astype("float16") for shape in ((64, 16), (64, 64))]
    root = kernel(PARAMETERS, BODY)
    check_pass([TransposeProducts()], root, [*tiles, np.zeros((16, 64), "float32")], target=Target("cuda", 90))


def test_the_certificate_has_no_alarm() -> None:
    found = compiled(gradient(16, 64, threads=128)).verify()
    assert found.ok, found
