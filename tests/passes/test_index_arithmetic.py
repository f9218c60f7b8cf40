"""Sums as operations, arithmetic without operations that fold, and a block's rows of which a kernel has some."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.passes.ir_cases import body_lines, kernel_of, program
from tiledsl.analysis.linear import LinearForm
from tiledsl.dialects import arith, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.ir.verifier import verify
from tiledsl.passes.divide_rows import divide_rows
from tiledsl.passes.index_arithmetic import IndexArithmetic, insert_or_fold, materialize, product_of


def made(make: Callable[[Builder, dict[str, Value]], Value]) -> list[str]:
    """The lines of a kernel that prints what is made of its values."""
    found = program(
        "%i = tensor.iota {axis = 0} : tensor<8xint32>\n%j = tensor.iota {axis = 0} : tensor<8xint64>",
        parameters="m: int32, n: int32, k: int64",
    )
    values = {value.name: value for op in found.root.walk() for value in op.results}
    values |= {value.name: value for value in found.root.regions[0].args}
    region = kernel_of(found).regions[0]
    at = Builder(region, region.last)
    at.insert(tile.PrintOp([make(at, values)]))
    verify(found.root)
    return body_lines(found)[2:]


@pytest.mark.parametrize(
    ("terms", "dtype", "expected"),
    [
        ({}, "int32", ["tile.print [%c0]"]),
        ({(): 5}, "int32", ["tile.print [%c5]"]),
        ({("m",): 1}, "int32", ["tile.print [%m]"]),
        ({("m",): -1}, "int32", ["%0 = arith.mul %m, %cm1 : int32", "tile.print [%0]"]),
        ({("m",): 1, (): -3}, "int32", ["%0 = arith.sub %m, %c3 : int32", "tile.print [%0]"]),
        ({(): 3, ("m",): -1}, "int32", ["%0 = arith.sub %c3, %m : int32", "tile.print [%0]"]),
        ({(): 3, ("m",): 1}, "int32", ["%0 = arith.add %m, %c3 : int32", "tile.print [%0]"]),
        (
            {("m",): -2, ("n",): 1, ("m", "n"): 4},
            "int32",
            [
                "%0 = arith.mul %m, %n : int32",
                "%1 = arith.mul %0, %c4 : int32",
                "%2 = arith.add %n, %1 : int32",
                "%3 = arith.mul %m, %c2 : int32",
                "%4 = arith.sub %2, %3 : int32",
                "tile.print [%4]",
            ],
        ),
        (
            {("i",): 3, ("m",): 1, (): 7},
            "int32",
            [
                "%0 = arith.add %m, %c7 : int32",
                "%1 = arith.mul %i, %c3 : tensor<8xint32>",
                "%2 = arith.add %0, %1 : tensor<8xint32>",
                "tile.print [%2]",
            ],
        ),
        (
            {("j", "m"): 1, ("k",): 1},
            "int64",
            [
                "%0 = arith.cast %m : int64",
                "%1 = arith.mul %j, %0 : tensor<8xint64>",
                "%2 = arith.add %k, %1 : tensor<8xint64>",
                "tile.print [%2]",
            ],
        ),
    ],
)
def test_sums(terms: dict[tuple[str, ...], int], dtype: str, expected: list[str]) -> None:
    """Scalars come before tiles, and what is subtracted behind what is added."""

    def make(at: Builder, values: dict[str, Value]) -> Value:
        form = LinearForm({tuple(values[name] for name in factors): number for factors, number in terms.items()})
        return materialize(at, form, dtype)

    assert made(make) == expected


def test_products_wrap_in_their_type() -> None:
    assert made(lambda at, of: product_of(at, (), 1 << 32 | 6, "int32")) == ["tile.print [%c6]"]
    assert made(lambda at, of: product_of(at, (), 1, "int64")) == ["tile.print [%c1]"]
    assert made(lambda at, of: product_of(at, (of["i"], of["i"]), 1, "int64")) == [
        "%0 = arith.cast %i : tensor<8xint64>",
        "%1 = arith.cast %i : tensor<8xint64>",
        "%2 = arith.mul %0, %1 : tensor<8xint64>",
        "tile.print [%2]",
    ]


def test_what_folds_is_not_inserted() -> None:
    def number(at: Builder, of: dict[str, Value]) -> Value:
        return insert_or_fold(at, arith.AddOp(at.constant(2, INT32), at.constant(3, INT32)))

    assert made(number) == ["tile.print [%c5]"]
    assert made(lambda at, of: insert_or_fold(at, arith.AddOp(of["m"], at.constant(0, INT32)))) == ["tile.print [%m]"]
    kept = made(lambda at, of: insert_or_fold(at, arith.AddOp(of["m"], of["n"])))
    assert kept == ["%0 = arith.add %m, %n : int32", "tile.print [%0]"]


def test_arithmetic_gives_names_to_new_values_alone() -> None:
    def make(at: Builder, of: dict[str, Value]) -> Value:
        steps = IndexArithmetic(at)
        assert constant_of(steps.constant(7)) == 7 and steps.constant(7).type == INT32
        same = steps.apply(arith.MulOp, of["m"], steps.constant(1), "other")
        assert same is of["m"]
        return steps.apply(arith.SubOp, same, of["n"], "distance")

    assert made(make) == ["%distance = arith.sub %m, %n : int32", "tile.print [%distance]"]


def test_a_kernel_of_some_rows_of_its_block() -> None:
    """Types and what counts rows have them; other tiles, and what stands apart, stay."""
    found = program(
        """%r = tensor.iota {axis = 0} : tensor<64x1xint32>
        %c = tensor.iota {axis = 1} : tensor<1x64xint32>
        %h = tensor.iota {axis = 0} : tensor<32xint32>
        %q = tile.load_block %A[%c3, %bx] {axes = (0, 1)} : tensor<64x32xfloat32>
        %t = tile.load_block %B[%bx, %c3] {axes = (1, 0)} : tensor<64x32xfloat32>
        %apart = tile.load_block %B[%bx, %c3] {axes = (0, 1)} : tensor<64x32xfloat32>
        %x = scf.for %c0, %s, %c1[%q] : tensor<64x32xfloat32> (%k: int32, %y: tensor<64x32xfloat32>) {
          %z = arith.add %y, %t : tensor<64x32xfloat32>
          scf.yield [%z]
        }
        %l = tile.load %A[%r, %c] : tensor<64x64xfloat32>
        tile.print [%h, %l, %apart]
        tile.store_block %x, %A[%bx, %c3] {axes = (0, 1)}""",
        parameters="A: 64*32*float32, B: 32*64*float32, s: int32",
    )
    kernel = kernel_of(found)
    assert isinstance(kernel, tile.KernelOp)
    apart = next(op for op in kernel.walk() if op.results and op.results[0].name == "apart")
    divide_rows(kernel, kernel.body.args[0], 64, 16, {apart})
    lines = body_lines(found)
    assert [line for line in lines if "apart =" in line or "%h =" in line or "%c =" in line] == [
        "%c = tensor.iota {axis = 1} : tensor<1x64xint32>",
        "%h = tensor.iota {axis = 0} : tensor<32xint32>",
        "%apart = tile.load_block %B[%bx, %c3] {axes = (0, 1)} : tensor<64x32xfloat32>",
    ]
    assert [line for line in lines if "apart =" not in line and "%h =" not in line and "%c =" not in line] == [
        "%r = tensor.iota {axis = 0} : tensor<16x1xint32>",
        "%r_1 = arith.add %bx, %r : tensor<16x1xint32>",
        "%0 = arith.add %c3, %bx : int32",
        "%q = tile.load_block %A[%0, %bx] {axes = (0, 1)} : tensor<16x32xfloat32>",
        "%1 = arith.add %c3, %bx : int32",
        "%t = tile.load_block %B[%bx, %1] {axes = (1, 0)} : tensor<16x32xfloat32>",
        "%x = scf.for %c0, %s, %c1[%q] : tensor<16x32xfloat32> (%k: int32, %y: tensor<16x32xfloat32>) {",
        "%z = arith.add %y, %t : tensor<16x32xfloat32>",
        "scf.yield [%z]",
        "}",
        "%l = tile.load %A[%r_1, %c] : tensor<16x64xfloat32>",
        "tile.print [%h, %l, %apart]",
        "%2 = arith.add %bx, %bx : int32",
        "tile.store_block %x, %A[%2, %c3] {axes = (0, 1)}",
    ]
