"""Which loops are one of products of loaded tiles."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.programs import gemm
from tiledsl.analysis.product_loops import product_loops
from tiledsl.dialects import scf, tensor, tile
from tiledsl.ir.core import Region
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BOOL, INT32
from tiledsl.passes import default_pipeline
from tiledsl.runtime.target import Target


def lowered() -> tuple[tile.KernelOp, scf.ForOp, tensor.DotOp]:
    """A product's kernel as values, its loop, and the product."""
    passes = default_pipeline({})
    program = Program(gemm(64, 64, 64, 16, 16, 16), Target("cuda", 90))
    PassManager(passes[: [each.name for each in passes].index("select-emitter")]).run(program)

    def only(kind: type) -> Any:
        (found,) = [op for op in program.root.walk() if isinstance(op, kind)]
        return found

    return only(tile.KernelOp), only(scf.ForOp), only(tensor.DotOp)


def test_a_loop_of_one_product() -> None:
    kernel, loop, dot = lowered()
    (found,) = product_loops(kernel)
    assert (found.op, found.dots) == (loop, (dot,))
    assert [operand.load.out for operand in found.operands] == [dot.a, dot.b]


@pytest.mark.parametrize("kind", ["for", "while"])
def test_a_loop_with_another_one_inside_is_none(kind: str) -> None:
    kernel, _, dot = lowered()
    at = Builder.at(dot)
    number, body = at.constant(1, INT32), Region()
    if kind == "for":
        body.add_arg(INT32)
        at.insert(scf.ForOp(number, number, number, [], regions=[scf.yielding(body)]))
    else:
        before = Region()
        test = Builder(before)
        before.insert(scf.ConditionOp(test.constant(False, BOOL), []))
        at.insert(scf.WhileOp([], result_types=[], regions=[before, scf.yielding(body)]))
    assert product_loops(kernel) == []


def test_a_loop_without_a_product_is_none() -> None:
    kernel, _, dot = lowered()
    dot.out.replace_with(dot.accumulator)
    dot.erase()
    assert product_loops(kernel) == []


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_loop_with_an_operand_from_outside_is_none(side: str) -> None:
    kernel, loop, dot = lowered()
    getattr(dot, side).op.move_before(loop)
    assert product_loops(kernel) == []
