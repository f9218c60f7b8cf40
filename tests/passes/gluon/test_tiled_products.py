"""Which kernels are one product in one loop, for Gluon."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.ir_cases import body_lines, filecheck, kernel_of, program
from tiledsl.analysis.gluon.plan import product_stages, products_in_flight
from tiledsl.analysis.gluon.softmax_loops import NotRecognised
from tiledsl.analysis.gluon.tiled_products import TiledProduct, find_tiled_product
from tiledsl.dialects import scf, tensor
from tiledsl.ir.verifier import verify
from tiledsl.passes.gluon.tiled_products import widen_columns

TILES = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%zero = arith.constant {value = 0.0} : tensor<16x16xfloat32>
%a = tile.load %A[%i, %j] {guarded = true} : tensor<16x16xfloat32>
"""
DOT = "%d = tensor.dot %a, %a, %acc : tensor<16x16xfloat32>\n"
LOOP = "%r = scf.for %c0, %c4, %c1[%zero] : tensor<16x16xfloat32> (%k: int32, %acc: tensor<16x16xfloat32>) {"
STORE = "\nscf.yield [%d] }\ntile.store %r, %A[%i, %j] {guarded = true}"


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        (LOOP + "%d = arith.neg %acc : tensor<16x16xfloat32>", "0 products and 1 loops"),
        (LOOP + DOT.replace("%d", "%e") + DOT.replace("%acc", "%e"), "2 products and 1 loops"),
        ("%p = tensor.dot %a, %a, %zero : tensor<16x16xfloat32>\n" + LOOP + "%d = arith.add %acc, %p : "
         "tensor<16x16xfloat32>", "1 products and 1 loops"),
    ],
)  # fmt: skip
def test_what_is_not_one_product_in_one_loop(loop: str, found: str) -> None:
    kernel = kernel_of(program(TILES + loop + STORE))
    with pytest.raises(NotRecognised, match=f"{found} are not one product in one loop"):
        find_tiled_product(kernel.body)


@pytest.mark.parametrize(
    ("beside", "handed_on", "expected"),
    [
        ("%e = arith.add %k, %c1 : int32", "%n", 2),
        ("%e = arith.add %n, %c1 : int32", "%n", 1),  # needs what the last step has handed on
        ("%e = arith.add %k, %c1 : int32", "%e", 1),  # hands on what the next one needs
    ],
)
def test_a_product_is_issued_early_where_no_step_waits_for_the_last_one(
    beside: str, handed_on: str, expected: int
) -> None:
    tile = "tensor<16x16xfloat32>"
    loop = f"""
    %r, %q = scf.for %c0, %c4, %c1[%zero, %c0] : {tile}, int32 (%k: int32, %acc: {tile}, %n: int32) {{
      %d = tensor.dot %a, %a, %zero : {tile}
      {beside}
      %sum = arith.add %acc, %d : {tile}
      scf.yield [%sum, {handed_on}] }}"""
    made = {op.results[0].name: op for op in kernel_of(program(TILES + loop)).walk() if op.results}
    loop_op, dot, load = made["r"], made["d"], made["a"]
    assert isinstance(loop_op, scf.ForOp) and isinstance(dot, tensor.DotOp)
    found = TiledProduct(loop_op, load, load, dot, None, (made["e"],), (made["sum"],), (), ())
    assert products_in_flight(found, 2) == expected


@pytest.mark.parametrize(
    ("made", "row"),
    [
        ("%y = tensor.reshape %x : tensor<1x16xfloat32>", True),
        ("%y = tensor.reshape %x : tensor<16x1xfloat32>", False),
        ("%y = tensor.reshape %x : tensor<1x4x4xfloat32>", False),
        ("%y = tensor.reshape %x : tensor<4x4xfloat32>", False),
        ("%y = tensor.reshape %f : tensor<1xfloat32>", False), ("%y = tensor.reshape %f : tensor<1x1xfloat32>", False),
        ("%w = tile.load %A[%i, %j] : tensor<16x16xfloat32>\n%y = tensor.reshape %w : tensor<1x256xfloat32>", False),
    ],
)  # fmt: skip
def test_rows_of_columns_have_two_dimensions_from_the_start(made: str, row: bool) -> None:
    """And nothing else is given another shape."""
    head = """%n = tensor.iota {axis = 0} : tensor<16xint32>
      %m = arith.add %n, %bx : tensor<16xint32>
      %p = tile.load %A[%c3, %m] : tensor<16xfloat32>
      %x = arith.mul %p, %f : tensor<16xfloat32>\n"""
    made_of = program(TILES + head + made + "\ntile.print [%y]")
    before = body_lines(made_of)
    widen_columns(kernel_of(made_of).regions[0])
    verify(made_of.root)
    found = body_lines(made_of)
    if not row:
        assert found == before
        return
    filecheck(
        found[-5:],
        """
        %n = tensor.iota {axis = 1} : tensor<1x16xint32>
        %m = arith.add %n, %bx : tensor<1x16xint32>
        %p = tile.load %A[%c3, %m] : tensor<1x16xfloat32>
        %x = arith.mul %p, %f : tensor<1x16xfloat32>
        tile.print [%x]
        """,
    )


@pytest.mark.parametrize(
    ("dtype", "columns", "depth", "wrong"),
    [
        ("float8_e5m2", 16, 32, ""), ("float8_e5m2", 16, 16, "extent 16 is not a power of two from 32 to 256"),
        ("float8_e5m2", 16, 96, "extent 96 is not"), ("float8_e5m2", 8, 32, "extent 8 is not a power of two from 16"),
        ("float8_e5m2", 48, 32, "extent 48 is not"), ("float8_e5m2", 256, 256, ""),
        ("float8_e5m2", 16, 512, "extent 512 is not"),
        ("float16", 16, 16, ""), ("float16", 16, 8, "extent 8 is not a power of two from 16 to 256"),
    ],
)  # fmt: skip
def test_tiles_that_gluon_multiplies(dtype: str, columns: int, depth: int, wrong: str) -> None:
    body = f"""
    %a = arith.constant {{value = 0.0}} : tensor<64x{depth}x{dtype}>
    %b = arith.constant {{value = 0.0}} : tensor<{depth}x{columns}x{dtype}>
    %zero = arith.constant {{value = 0.0}} : tensor<64x{columns}xfloat32>
    %r = scf.for %c0, %c4, %c1[%zero] {{num_stages = 3}} : tensor<64x{columns}xfloat32>
        (%k: int32, %acc: tensor<64x{columns}xfloat32>) {{
      %d = tensor.dot %a, %b, %acc : tensor<64x{columns}xfloat32>
      scf.yield [%d] }}"""
    made: Any = {op.results[0].name: op for op in kernel_of(program(body)).walk() if op.results}
    found = TiledProduct(made["r"], made["a"], made["b"], made["d"], 0, (), (), (), ())
    if wrong:
        with pytest.raises(NotRecognised, match=f"a tile's {wrong}"):
            product_stages(found, 1, 0, 1 << 20, [])
    else:
        assert product_stages(found, 1, 0, 1 << 20, []) == 3
