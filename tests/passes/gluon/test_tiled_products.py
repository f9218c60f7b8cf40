"""One-dimensional tiles that are seen as rows of columns."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import body_lines, filecheck, kernel_of, program
from tiledsl.ir.verifier import verify
from tiledsl.passes.gluon.tiled_products import widen_columns

TILES = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%zero = arith.constant {value = 0.0} : tensor<16x16xfloat32>
%a = tile.load %A[%i, %j] {guarded = true} : tensor<16x16xfloat32>
"""


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
    both = program(TILES + head + made + "\ntile.print [%y]\ntile.print [%x]")
    widen_columns(kernel_of(both).regions[0])
    verify(both.root)
    assert sum("tile.load %A[%c3," in line for line in body_lines(both)) == 2  # a row, and what has one dimension
