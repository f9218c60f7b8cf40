"""How a value moves with another one, against its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.dialects import arith
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.tile import KernelOp
from tiledsl.ir.core import Value
from tiledsl.passes.gluon.lower_gluon import _direction, _loops_grow_with


def evaluate(value: Value, x: Any) -> Any:
    op, number = value.op, constant_of(value)
    if number is not None:
        return number
    if op is None:
        return x if value.name == "bx" else 3
    operands = [evaluate(each, x) for each in op.operands]
    if isinstance(op, arith.CastOp):
        return operands[0]
    if isinstance(op, arith.NegOp):
        return -operands[0]
    assert isinstance(op, arith.BinaryOp)
    return np.vectorize(type(op).compute)(*operands)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("add %bx, %s", 1), ("add %s, %bx", 1), ("add %s, %c2", 0), ("sub %bx, %s", 1), ("sub %s, %bx", -1),
        ("sub %s, %c1", 0), ("mul %bx, %c3", 1), ("mul %c3, %bx", 1), ("mul %bx, %c-3", None), ("mul %bx, %c0", None),
        ("mul %bx, %c1", 1), ("truncdiv %bx, %c1", 1),
        ("mul %bx, %s", None), ("mul %bx, %bx", None), ("mul %s, %c3", 0), ("floordiv %bx, %c2", 1),
        ("floordiv %c2, %bx", None), ("floordiv %bx, %c-2", None), ("truncdiv %bx, %c2", 1), ("min %bx, %s", 1),
        ("max %s, %bx", 1), ("floormod %bx, %c3", None), ("and %bx, %c3", None), ("add %bx, %bx", 1),
        ("sub %bx, %bx", None), ("max %bx, %bx", 1), ("floormod %s, %c3", 0),
    ],
)  # fmt: skip
def test_of_one_operation(expression: str, expected: int | None) -> None:
    check(f"%x = arith.{expression} : int32", expected)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%a = arith.neg %bx : int32\n%x = arith.add %a, %s : int32", -1),
        ("%a = arith.neg %bx : int32\n%x = arith.neg %a : int32", 1),
        ("%x = arith.neg %s : int32", 0),
        ("%a = arith.neg %bx : int32\n%x = arith.sub %s, %a : int32", 1),
        ("%a = arith.neg %bx : int32\n%x = arith.mul %a, %c4 : int32", -1),
        ("%a = arith.neg %bx : int32\n%x = arith.max %a, %bx : int32", None),
        ("%a = arith.neg %bx : int32\n%x = arith.min %a, %a : int32", -1),
        ("%x = arith.cast %bx : int64", 1),
        ("%a = arith.floormod %bx, %c3 : int32\n%x = arith.add %a, %s : int32", None),
        ("%a = arith.add %bx, %c3 : int32\n%b0 = arith.floordiv %a, %c2 : int32\n%x = arith.min %b0, %s : int32", 1),
    ],
)
def test_of_several(body: str, expected: int | None) -> None:
    check(body, expected)


def check(body: str, expected: int | None) -> None:
    kernel = kernel_of(program(body))
    value = next(value for op in kernel.walk() for value in op.results if value.name == "x")
    block = kernel.regions[0].args[0]
    assert _direction(value, {block: 1}) == expected
    steps = np.diff(np.broadcast_to(evaluate(value, np.arange(1, 20)), 19))
    if expected is not None:
        assert {1: (steps >= 0).all(), -1: (steps <= 0).all(), 0: not steps.any()}[expected]


@pytest.mark.parametrize(
    "body",
    [
        '%c = arith.cmp %bx, %s {predicate = "lt"} : bool\n%x = arith.select %c, %bx, %s : int32',
        '%x = arith.cmp %bx, %s {predicate = "lt"} : bool',
        "%x = tile.load %N[%bx] : int32",
        '%v = arith.cast %bx : float32\n%x = arith.math [%v] {function = "exp"} : float32',
        "%x = arith.not %bx : int32",
    ],
)
def test_of_other_operations_nothing_is_known(body: str) -> None:
    kernel = kernel_of(program(body))
    value = next(value for op in kernel.walk() for value in op.results if value.name == "x")
    assert _direction(value, {kernel.regions[0].args[0]: 1}) is None


@pytest.mark.parametrize(
    ("bounds", "grows"),
    [
        ([("%c0", "%bx")], True), ([("%c0", "%s")], False), ([("%bx", "%c8")], False), ([("%c0", "%rest")], False),
        ([("%less", "%c8")], False), ([("%less", "%bx")], True), ([("%c0", "%less")], False), ([], False),
        ([("%c0", "%bx"), ("%c0", "%s")], True), ([("%c0", "%bx"), ("%c0", "%less")], False),
        ([("%c0", "%bx"), ("%half", "%bx")], False), ([("%c0", "%bx"), ("%c0", "%rest")], False),
        # What one loop has more, the next has less.
        ([("%c0", "%half"), ("%half", "%bx")], True), ([("%c0", "%half"), ("%half", "%c8")], False),
        ([("%bx", "%half"), ("%half", "%more")], False), ([("%less", "%half"), ("%half", "%more")], True),
        ([("%c0", "%half"), ("%half", "%bx"), ("%bx", "%more")], True),
        ([("%c0", "%half"), ("%half", "%bx"), ("%half", "%more")], False),
    ],
)  # fmt: skip
def test_loops_that_get_longer_as_an_index_grows(bounds: list[tuple[str, str]], grows: bool) -> None:
    loops = [
        f"scf.for {lower}, {upper}, %c1 (%i{at}: int32) {{ scf.yield }}" for at, (lower, upper) in enumerate(bounds)
    ]
    body = """%half = arith.floordiv %bx, %c2 : int32 %less = arith.sub %s, %bx : int32
              %rest = arith.floormod %bx, %c3 : int32 %more = arith.mul %bx, %c3 : int32
              %all = arith.add %c0, %c8 : int32\n"""
    kernel = kernel_of(program(body + "\n".join(loops)))
    assert isinstance(kernel, KernelOp)
    assert _loops_grow_with(kernel.body.args[0], kernel) is grows  # type: ignore[arg-type]
    shrinks = bounds in ([("%bx", "%c8")], [("%c0", "%less")])
    assert _loops_grow_with(kernel.body.args[0], kernel, -1) is shrinks  # type: ignore[arg-type]
