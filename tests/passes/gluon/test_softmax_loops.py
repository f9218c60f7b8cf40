"""What is asked of the loops that attention is recognised by, and of what stands around them."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.gluon.softmax_loops import NotRecognised, dependent_on, find_softmax_loops, operations_around
from tiledsl.dialects import scf


def test_a_branch_needs_what_an_operation_in_it_needs() -> None:
    body = """
    %x = arith.add %s, %c1 : int32
    %y = scf.if %b : int32 { %u = arith.add %m, %c1 : int32
      %v = arith.add %u, %x : int32
      scf.yield [%v] } { scf.yield [%m] }
    %z = arith.add %y, %c1 : int32
    %w = arith.add %m, %c2 : int32
    tile.store %w, %N[%bx]"""
    kernel = kernel_of(program(body))
    (x,) = [op.results[0] for op in kernel.body if op.results and op.results[0].name == "x"]
    assert [op.results[0].name for op in kernel.body if op in dependent_on([x], kernel.body)] == ["y", "z"]


LOOPS = """
%first = scf.for %c0, %c4, %c1[%c9] : int32 (%i: int32, %x: int32) {{ scf.yield [%x] }}
{between}
%last = scf.for %c0, %c4, %c1[%first] : int32 (%j: int32, %y: int32) {{ scf.yield [%y] }}
%after = arith.add %last, %c1 : int32
tile.store %after, %N[%bx]
"""


@pytest.mark.parametrize(
    ("between", "fits"),
    [
        ("%t = arith.add %s, %c1 : int32", True),
        ("%t = arith.add %first, %c1 : int32", False),
        ("tile.store %s, %N[%bx]", False),
        ("tile.store %first, %N[%bx]", False),
    ],
)
def test_what_stands_between_loops(between: str, fits: bool) -> None:
    body = kernel_of(program(LOOPS.format(between=between))).body
    loops = [op for op in body if isinstance(op, scf.ForOp)]
    if fits:
        before, after = operations_around(body, loops)
        assert [op.results[0].name for op in before if op.results][-1] == "t"
        assert [op.name for op in after][:2] == ["arith.add", "tile.store"]
        return
    with pytest.raises(NotRecognised, match="memory is written, or results are used, before the last loop"):
        operations_around(body, loops)


def test_a_loop_counts_by_ones() -> None:
    body = """
    scf.for %c0, %c4, %c2 (%k: int32) {
      %x = tile.load_block %A[%c0, %c0] {axes = (0, 1)} : tensor<16x16xfloat32>
      %y = tensor.dot %x, %x, %x {precision = "ieee"} : tensor<16x16xfloat32>
      %z = tensor.dot %x, %y, %x {precision = "ieee"} : tensor<16x16xfloat32>
      scf.yield }"""
    with pytest.raises(NotRecognised, match="a loop's step is not 1"):
        find_softmax_loops(kernel_of(program(body)).body)
