"""Which loops are one of products of loaded tiles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.passes.ir_cases import program
from tests.support.programs import gemm
from tiledsl.analysis.product_loops import ProductLoop, is_read_in_place, product_loops
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
    made = Program(gemm(64, 64, 64, 16, 16, 16), Target("cuda", 90))
    PassManager(passes[: [each.name for each in passes].index("select-emitter")]).run(made)

    def only(kind: type) -> Any:
        (found,) = [op for op in made.root.walk() if isinstance(op, kind)]
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


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "is_asynchronous"),
    [
        (64, 8, "float16", True), (32, 8, "float16", False), (64, 4, "float16", False), (64, 8, "float32", False),
        (128, 64, "float8_e4m3fn", True),
    ],
)  # fmt: skip
def test_products_that_read_shared_memory(rows: int, columns: int, dtype: str, is_asynchronous: bool) -> None:
    """All of them are large; a dot of float32 is large too, but is none of these."""

    def tensor_of(*shape: int) -> str:
        return f"tensor<{'x'.join(map(str, shape))}x{dtype}>"

    sides = f"""
    %a = tensor.broadcast %h : {tensor_of(rows, 16)}
    %b = tensor.broadcast %h : {tensor_of(16, columns)}
    %acc = tensor.broadcast %f : tensor<{rows}x{columns}xfloat32>
    %d = tensor.dot %a, %b, %acc : tensor<{rows}x{columns}xfloat32>
    """
    dots = [op for op in program(sides, parameters=f"f: float32, h: {dtype}").root.walk() if op.name == "tensor.dot"]
    large: Any = SimpleNamespace(
        a=SimpleNamespace(shape=(64, 16), dtype="float16"), b=SimpleNamespace(shape=(16, 8), dtype="float16")
    )
    for beside in ((), (large,)):
        loop: Any = ProductLoop(SimpleNamespace(), (*dots, *beside), ())  # type: ignore[arg-type]
        assert loop.is_asynchronous is is_asynchronous
    assert is_read_in_place(dots[0]) is (is_asynchronous or dtype == "float32")
