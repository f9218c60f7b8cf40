"""Which loops are one of products of loaded tiles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.passes.ir_cases import kernel_of, program
from tests.support.programs import gemm
from tiledsl.analysis.product_loops import (
    ProductLoop,
    is_read_both_ways,
    is_read_in_place,
    outlasts_iteration,
    product_loops,
)
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
        (128, 64, "float8_e4m3fn", True), (63, 8, "float16", False), (64, 7, "float16", False),
    ],
)  # fmt: skip
def test_products_that_read_shared_memory(rows: int, columns: int, dtype: str, is_asynchronous: bool) -> None:
    """All of them are large; a dot of float32 is large too, but is none of these."""

    dot, large = product_of(rows, columns, dtype), product_of(64, 8, "float16")
    for dots in ((dot,), (dot, large)):
        loop: Any = ProductLoop(SimpleNamespace(), dots, ())  # type: ignore[arg-type]
        assert loop.is_asynchronous is is_asynchronous
    assert is_read_in_place(dot) is (is_asynchronous or dtype == "float32")


def product_of(rows: int, columns: int, dtype: str) -> tensor.DotOp:
    body = f"""
    %a = tensor.broadcast %h : tensor<{rows}x16x{dtype}>
    %b = tensor.broadcast %h : tensor<16x{columns}x{dtype}>
    %acc = tensor.broadcast %f : tensor<{rows}x{columns}xfloat32>
    %d = tensor.dot %a, %b, %acc : tensor<{rows}x{columns}xfloat32>"""
    made = program(body, parameters=f"f: float32, h: {dtype}").root
    return next(op for op in made.walk() if isinstance(op, tensor.DotOp))


@pytest.mark.parametrize(("sum", "adds"), [("%d", True), ("%acc", False)])
def test_loops_of_two_products_that_share_a_tile(sum: str, adds: bool) -> None:
    square = "tensor<64x64xfloat32>"
    body = f"""
    %zero = tensor.broadcast %f : {square}
    %r, %r2 = scf.for %c0, %c4, %c1[%zero, %zero] : {square}, {square} (%k: int32, %acc: {square}, %other: {square}) {{
      %a = tile.load_block %A[%c0, %c0] {{axes = (0, 1)}} : {square}
      %b = tile.load_block %B[%c0, %c0] {{axes = (0, 1)}} : {square}
      %bt = tensor.transpose %b {{permutation = (1, 0)}} : {square}
      %d = tensor.dot %a, %bt, %acc : {square}
      %e = tensor.dot %b, %a, {sum} : {square}
      scf.yield [%d, %e] }}"""
    (found,) = product_loops(kernel_of(program(body)))  # type: ignore[arg-type]
    assert [load.out.name for load in found.loads] == ["a", "b"] and found.adds_products is adds
    sides = [(operand.load.out.name, operand.summed) for operand in found.operands]
    assert sides == [("a", 1), ("b", 1), ("b", 1), ("a", 0)]


@pytest.mark.parametrize(
    ("rows", "reader", "outlasts"),
    [
        (64, "", [True, True]),
        (32, "", [False, False]),  # which waits for its result
        (64, "%e = tensor.dot %a, %b, %d : TILE", [True, True]),  # which is only added to
        (64, "%e = tensor.dot %side, %square, %d : TILE", [True, True]),
        (64, "%e = arith.neg %d : TILE", [False, False]),
        (64, "%e = tensor.dot %a, %b, %d : TILE %n = arith.neg %e : TILE", [False, False]),
        (64, "%e = tensor.dot %d, %b, %zero : TILE", [False, True]),  # as an operand it is awaited; %e is not
    ],
)
def test_products_that_outlast_their_iteration(rows: int, reader: str, outlasts: list[bool]) -> None:
    tile_type = f"tensor<{rows}x64xfloat32>"
    body = f"""
    %zero = tensor.broadcast %f : {tile_type}
    %side = tensor.broadcast %f : {tile_type}
    %square = tensor.broadcast %f : tensor<64x64xfloat32>
    %r = scf.for %c0, %c4, %c1[%zero] : {tile_type} (%k: int32, %acc: {tile_type}) {{
      %a = tile.load_block %A[%c0, %c0] {{axes = (0, 1)}} : {tile_type}
      %b = tile.load_block %B[%c0, %c0] {{axes = (0, 1)}} : tensor<64x64xfloat32>
      %d = tensor.dot %a, %b, %acc : {tile_type}
      {reader.replace("TILE", tile_type)}
      scf.yield [%d] }}"""
    made = program(body).root
    (loop,) = [op for op in made.walk() if isinstance(op, scf.ForOp)]
    loads = [op for op in loop.body if isinstance(op, tile.LoadBlockOp)]
    assert [outlasts_iteration(load, loop) for load in loads] == outlasts


@pytest.mark.parametrize(
    ("rows", "reader", "both"),
    [
        (64, "", False),
        (64, "%e = tensor.dot %small, %b, %less : tensor<32x64xfloat32>", True),
        (64, "%e = arith.neg %bt : tensor<64x64xfloat32>", True),
        (64, "%e = tensor.dot %bt, %b, %zero : tensor<64x64xfloat32>", False),
        (32, "%e = arith.neg %b : tensor<64x64xfloat32>", False),  # in registers alone
    ],
)
def test_tiles_that_are_read_in_shared_memory_and_in_registers(rows: int, reader: str, both: bool) -> None:
    body = f"""
    %zero = tensor.broadcast %f : tensor<{rows}x64xfloat32>
    %less = tensor.broadcast %f : tensor<32x64xfloat32>
    %small = tensor.broadcast %f : tensor<32x64xfloat32>
    %b = tile.load_block %B[%c0, %c0] {{axes = (0, 1)}} : tensor<64x64xfloat32>
    %bt = tensor.transpose %b {{permutation = (1, 0)}} : tensor<64x64xfloat32>
    %d = tensor.dot %zero, %bt, %zero : tensor<{rows}x64xfloat32>
    {reader}"""
    (load,) = [op for op in program(body).root.walk() if isinstance(op, tile.LoadBlockOp)]
    assert is_read_both_ways(load) is both
