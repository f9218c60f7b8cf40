"""One-dimensional tiles that are seen as rows of columns."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import body_lines, filecheck, kernel_of, program
from tiledsl.dialects import scf
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.passes.carry_loads import load_ahead
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


def test_constants_of_one_dimension_are_rows_too() -> None:
    """But not what a loop carries, nor what a reduction gives."""
    head = "%half = arith.constant {value = 0.5} : tensor<16xfloat32>\n"
    found = program(head + "%y = tensor.reshape %half : tensor<1x16xfloat32>\ntile.print [%y]")
    widen_columns(kernel_of(found).regions[0])
    verify(found.root)
    assert [line for line in body_lines(found) if "print" in line] == ["tile.print [%c0p5]"]
    assert "tensor<16xfloat32>" not in print_op(found.root) and "tensor<1x16xfloat32>" in print_op(found.root)
    for made in (
        '%m = tensor.reduce %a {kind = "max", axis = 0} : tensor<16xfloat32>\n%x = arith.neg %m : tensor<16xfloat32>',
        "%v = arith.constant {value = 0.5} : tensor<16xfloat32>\n%x = scf.for %c0, %s, %c1[%v] : tensor<16xfloat32> "
        "(%k: int32, %w: tensor<16xfloat32>) { %u = arith.neg %w : tensor<16xfloat32> scf.yield [%u] }",
    ):
        stays = program(f"{TILES}{made}\n%y = tensor.reshape %x : tensor<1x16xfloat32>\ntile.print [%y]")
        before = body_lines(stays)
        widen_columns(kernel_of(stays).regions[0])
        assert body_lines(stays) == before


LOOP = """
%first = arith.constant {value = 0.0} : tensor<16x16xfloat32>
%lane = tensor.iota {axis = 0} : tensor<16xint32>
%sums, %last = scf.for %c2, %s, %c1[%first, %bx] : tensor<16x16xfloat32>, int32
    (%k: int32, %acc: tensor<16x16xfloat32>, %place: int32) {
  %at = arith.add %k, %bx : int32
  %to = arith.add %lane, %at : tensor<16xint32>
  %p = tile.load %A[%c3, %to] : tensor<16xfloat32>
  %q = tile.load %A[%place, %to] : tensor<16xfloat32>
  %0 = tile.load %A[%to, %c0] : tensor<16xfloat32>
  %w = arith.mul %p, %q : tensor<16xfloat32>
  %r = arith.add %w, %0 : tensor<16xfloat32>
  tile.print [%r]
  scf.yield [%acc, %at]
}
tile.print [%sums]"""


def test_what_stands_beside_a_product_is_loaded_an_iteration_ahead() -> None:
    """What a load needs comes along, once for all; what depends on what the loop carries stays."""
    made = program(LOOP)
    (loop,) = of_kinds(kernel_of(made).walk(), scf.ForOp)
    load_ahead(loop, list(loop.body)[:7])
    verify(made.root)
    filecheck(
        [line for line in body_lines(made) if "tensor.iota" not in line],
        """
        %at = arith.add %c2, %bx : int32
        %to = arith.add %lane, %at : tensor<16xint32>
        %p = tile.load %A[%c3, %to] : tensor<16xfloat32>
        %0 = tile.load %A[%to, %c0] : tensor<16xfloat32>
        %sums, %last, %p_1, %1 = scf.for %c2, %s, %c1{{.}}%c0p0, %bx, %p, %0] : {{.*}}, %p_2: {{.*}}, %A_now: {{.*}}) {
        %2 = arith.sub %s, %c1 : int32
        %3 = arith.add %k, %c1 : int32
        %ahead = arith.min %3, %2 : int32
        %at_1 = arith.add %ahead, %bx : int32
        %to_1 = arith.add %lane, %at_1 : tensor<16xint32>
        %p_3 = tile.load %A[%c3, %to_1] : tensor<16xfloat32>
        %4 = tile.load %A[%to_1, %c0] : tensor<16xfloat32>
        %at_2 = arith.add %k, %bx : int32
        %to_2 = arith.add %lane, %at_2 : tensor<16xint32>
        %q = tile.load %A[%place, %to_2] : tensor<16xfloat32>
        %w = arith.mul %p_2, %q : tensor<16xfloat32>
        %r = arith.add %w, %A_now : tensor<16xfloat32>
        tile.print {{.}}%r]
        scf.yield {{.}}%acc, %at_2, %p_3, %4]
        }
        tile.print {{.}}%sums]
        """,
    )


@pytest.mark.parametrize("beside", [[], [0, 1], [3], [5, 6]])
def test_loops_with_nothing_to_load_ahead_stay(beside: list[int]) -> None:
    made = program(LOOP)
    before = body_lines(made)
    (loop,) = of_kinds(kernel_of(made).walk(), scf.ForOp)
    ops = list(loop.body)
    load_ahead(loop, [ops[number] for number in beside])
    assert body_lines(made) == before
