"""Construction of tile values: what operations are made, and which are left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.passes.ir_cases import body_lines, program
from tiledsl.dialects import tile
from tiledsl.ir.core import Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ScalarType
from tiledsl.passes.promote_buffers import access
from tiledsl.passes.tile_values import (
    both,
    broadcast,
    compared,
    converted,
    exact_sum,
    iota,
    is_inside,
    permuted,
    reduced,
    reshaped,
    same_bits,
)


def made(types: str, make: Callable[..., Value | None]) -> list[str]:
    """The lines that a function makes of values %a, %b, ... of these types, and `= %name` for what it gives."""
    reads = "".join(f"%{name} = tile.read %{name}_tile : {type}\n" for name, type in zip("ab", types.split(", ")))
    buffers = "".join(
        f"%{name}_tile = tile.alloc : buffer<{type[7:-1].replace('x', '*')}, shared>\n".replace("**", "*x")
        for name, type in zip("ab", types.split(", "))
    )
    found = program(buffers + reads)
    reading = [op for op in found.root.walk() if isinstance(op, tile.ReadOp)]
    builder = Builder.at(reading[-1].next)  # type: ignore[arg-type]
    value = make(builder, *(op.result for op in reading))
    lines = [line for line in body_lines(found) if "tile.alloc" not in line and "tile.read" not in line]
    return [*lines, f"= %{value.name}" if value is not None and value.name else f"= {value is not None}"]


FLOAT32 = ScalarType("float32")
ROW, COLUMN, SQUARE = "tensor<1x8xfloat32>", "tensor<8x1xfloat32>", "tensor<8x8xfloat32>"


@pytest.mark.parametrize("kind", ["sum", "max", "min", "or", "and"])
def test_a_reduction_of_one_element_is_the_element(kind: str) -> None:
    dtype = "bool" if kind in ("or", "and") else "float32"
    row = f"tensor<1x8x{dtype}>"
    assert made(row, lambda at, a: reduced(at, a, kind, 0)) == [
        f"%a_1 = tensor.reshape %a : tensor<8x{dtype}>",
        "= %a",
    ]
    assert made(row, lambda at, a: reduced(at, a, kind, 0, keep=True)) == ["= %a"]


def test_other_reductions() -> None:
    assert made(ROW, lambda at, a: reduced(at, a, "abssum", 0)) == [
        '%0 = tensor.reduce %a {kind = "abssum", axis = 0} : tensor<8xfloat32>',
        "= True",
    ]
    assert made(SQUARE, lambda at, a: reduced(at, a, "sum", 1)) == [
        '%0 = tensor.reduce %a {kind = "sum", axis = 1} : tensor<8xfloat32>',
        "= True",
    ]
    assert made(SQUARE, lambda at, a: reduced(at, a, "max", 0, keep=True)) == [
        '%0 = tensor.reduce %a {kind = "max", axis = 0} : tensor<8xfloat32>',
        "%1 = tensor.reshape %0 : tensor<1x8xfloat32>",
        "= True",
    ]


def test_sums_of_one_element_that_is_not_zero() -> None:
    assert made("tensor<8x8xbool>", lambda at, a: exact_sum(at, a, 0)) == [
        '%0 = tensor.reduce %a {kind = "or", axis = 0} : tensor<8xbool>',
        "%1 = tensor.reshape %0 : tensor<1x8xbool>",
        "= True",
    ]
    assert made("tensor<8x8xfloat8_e5m2>", lambda at, a: exact_sum(at, a, 1)) == [
        "%a_1 = arith.cast %a : tensor<8x8xfloat16>",
        '%0 = tensor.reduce %a_1 {kind = "sum", axis = 1} : tensor<8xfloat16>',
        "%1 = tensor.reshape %0 : tensor<8x1xfloat16>",
        "%2 = arith.cast %1 : tensor<8x1xfloat8_e5m2>",
        "= True",
    ]


def test_what_changes_nothing_is_left_out() -> None:
    assert made(SQUARE, lambda at, a: reshaped(at, a, (8, 8))) == ["= %a"]
    assert made(SQUARE, lambda at, a: broadcast(at, a, (8, 8))) == ["= %a"]
    assert made(SQUARE, lambda at, a: converted(at, a, "float32")) == ["= %a"]
    assert made(SQUARE, lambda at, a: permuted(at, a, [0, 1])) == ["= %a"]
    assert made(SQUARE, lambda at, a: permuted(at, a, [1, 0])) == [
        "%a_t = tensor.transpose %a {permutation = (1, 0)} : tensor<8x8xfloat32>",
        "= %a_t",
    ]
    assert made(COLUMN, lambda at, a: permuted(at, a, [1, 0])) == [f"%a_1 = tensor.reshape %a : {ROW}", "= %a"]
    assert made(ROW, lambda at, a: broadcast(at, a, (8, 8))) == [f"%a_1 = tensor.broadcast %a : {SQUARE}", "= %a"]


def test_indices_that_lie_inside() -> None:
    body = """%a = arith.floormod %s, %c4 : int32 %b = arith.sub %a, %c1 : int32
        tile.store %a, %N[%a] tile.store %a, %N[%b]"""
    named = {value.name: value for op in program(body).root.walk() for value in op.results}
    assert [is_inside(named["a"], size) for size in (3, 4, 5)] == [False, True, True]
    assert not is_inside(named["b"], 4)  # -1 to 2


def test_conditions() -> None:
    masks = "tensor<8xbool>, tensor<8xbool>"
    assert made(masks, lambda at, a, b: both(at, None, None)) == ["= False"]
    assert made(masks, lambda at, a, b: both(at, a, None)) == ["= %a"]
    assert made(masks, lambda at, a, b: both(at, None, b)) == ["= %b"]
    assert made(masks, lambda at, a, b: both(at, a, a)) == ["= %a"]
    assert made(masks, lambda at, a, b: both(at, a, b)) == ["%0 = arith.and %a, %b : tensor<8xbool>", "= True"]


def test_bits_are_compared_as_integers() -> None:
    assert made(f"{ROW}, {ROW}", same_bits) == [
        "%0 = arith.bitcast %a : tensor<1x8xint32>",
        "%1 = arith.bitcast %b : tensor<1x8xint32>",
        '%2 = arith.cmp %0, %1 {predicate = "eq"} : tensor<1x8xbool>',
        "= True",
    ]
    integers = "tensor<8xint32>, tensor<8xint32>"
    assert made(integers, same_bits) == ['%0 = arith.cmp %a, %b {predicate = "eq"} : tensor<8xbool>', "= True"]


def test_accesses_under_a_condition() -> None:
    where = "tensor<8xfloat32>, tensor<8xbool>"
    assert made(where, lambda at, a, b: access.load(at, a, [iota(at, 1, 0, 8)], b, None))[1:] == [
        "%1 = arith.select %b, %a, %c0p0 : tensor<8xfloat32>",
        "= True",
    ]
    assert made(where, lambda at, a, b: access.load(at, a, [iota(at, 1, 0, 8)], b, at.constant(2.0, FLOAT32)))[1:] == [
        "%1 = arith.select %b, %a, %c2p0 : tensor<8xfloat32>",
        "= True",
    ]

    def one(at: Builder, _: Value) -> Value:
        old, new = (at.constant(number, FLOAT32) for number in (1.0, 2.0))
        return access.store(at, old, new, [], compared(at, old, "lt", new))

    assert made(ROW, one) == [
        '%0 = arith.cmp %c1p0, %c2p0 {predicate = "lt"} : bool',
        "%1 = arith.select %0, %c2p0, %c1p0 : float32",
        "= True",
    ]
