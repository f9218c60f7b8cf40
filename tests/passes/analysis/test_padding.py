"""What is known of the padding of tiles: a table of what each operation makes of known numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.padding import Padding
from tiledsl.ir.core import Value

INF = math.inf
START = """
%i = tensor.iota {axis = 0} : tensor<5x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x12xint32>
%zeros = tile.load %A[%i, %j] : tensor<5x12xfloat32>
%one = arith.constant {value = 1.0} : float32
%two = arith.constant {value = 2.0} : float32
%low = arith.constant {value = -inf} : float32
%ones = tile.load %A[%i, %j] other=%one : tensor<5x12xfloat32>
%lows = tile.load %A[%i, %j] other=%low : tensor<5x12xfloat32>
%k = arith.mul %i, %c12 : tensor<5x1xint32>
%at = arith.add %k, %j : tensor<5x12xint32>
%fives = tile.load %N[%at] other=%c5 : tensor<5x12xint32>
%noughts = tile.load %N[%at] : tensor<5x12xint32>
%unknown = tile.load %A[%i, %j] other=%f : tensor<5x12xfloat32>
%inside = arith.cmp %j, %c12 {predicate = "lt"} : tensor<1x12xbool>
"""
F, I, B = "tensor<5x12xfloat32>", "tensor<5x12xint32>", "tensor<5x12xbool>"


def held(body: str, axis: int = 1) -> Any:
    """What is known of %y."""
    values: dict[str, Value] = {
        value.name: value for op in kernel_of(program(START + body)).walk() for value in op.results
    }
    return Padding().of(values["y"], axis)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%y = tile.load %A[%i, %j] : " + F, 0.0),
        ("%y = tile.load %A[%i, %j] other=%one : " + F, 1.0),
        ("%y = tile.load %A[%i, %j] other=%two : " + F, None),  # not the same in every type
        ("%y = tile.load %A[%i, %j] other=%low : " + F, -INF),
        ("%y = tile.load %A[%i, %j] other=%f : " + F, None),
        ("%y = tile.load %N[%at] other=%c7 : " + I, 7), ("%y = arith.constant {value = 5} : " + I, 5),
        ("%y = arith.add %zeros, %ones : " + F, 1.0), ("%y = arith.add %ones, %ones : " + F, None),
        ("%y = arith.sub %zeros, %ones : " + F, -1.0), ("%y = arith.sub %lows, %lows : " + F, None),  # NaN
        ("%y = arith.mul %zeros, %ones : " + F, 0.0), ("%y = arith.mul %zeros, %unknown : " + F, None),  # NaN * 0
        ("%y = arith.mul %lows, %zeros : " + F, None), ("%y = arith.add %zeros, %unknown : " + F, None),
        ("%y = arith.div %ones, %zeros : " + F, None),
        ("%y = arith.mul %fives, %noughts : " + I, 0), ("%y = arith.mul %noughts, %at : " + I, 0),
        ("%y = arith.mul %at, %noughts : " + I, 0), ("%y = arith.mul %fives, %at : " + I, None),
        ("%y = arith.add %fives, %fives : " + I, 10), ("%y = arith.sub %noughts, %fives : " + I, -5),
        ("%y = arith.mul %fives, %fives : " + I, 25), ("%y = arith.max %fives, %noughts : " + I, 5),
        ("%y = arith.min %fives, %noughts : " + I, 0), ("%y = arith.floordiv %fives, %noughts : " + I, None),
        ("%y = arith.and %noughts, %at : " + I, 0), ("%y = arith.and %at, %noughts : " + I, 0),
        ("%y = arith.and %fives, %at : " + I, None), ("%y = arith.or %fives, %at : " + I, None),
        ("%y = arith.add %fives, %c3 : " + I, 8), ("%y = arith.add %fives, %s : " + I, None),
        ("%y = arith.neg %ones : " + F, -1.0), ("%y = arith.neg %lows : " + F, INF),
        ("%y = arith.neg %fives : " + I, -5),
        ("%y = arith.cast %fives : " + F, None), ("%y = arith.cast %noughts : " + F, 0.0),
        ("%y = arith.cast %ones : tensor<5x12xfloat16>", 1.0),
        ("%y = arith.cast %lows : tensor<5x12xfloat8_e5m2>", None),
        ("%y = arith.cast %ones : " + I, 1), ("%y = arith.cast %lows : " + I, None),
        *(
            (f'%y = arith.math [%{given}] {{function = "{function}"}} : {F}', expected)
            for function, given, expected in [
                ("exp", "lows", 0.0), ("exp2", "lows", 0.0), ("exp10", "lows", 0.0), ("exp", "zeros", 1.0),
                ("exp2", "zeros", 1.0), ("exp10", "zeros", 1.0), ("exp", "ones", None), ("abs", "lows", INF),
                ("abs", "zeros", 0.0),
                ("sqrt", "zeros", 0.0), ("sqrt", "ones", None), ("tanh", "zeros", 0.0), ("sin", "zeros", 0.0),
                ("cos", "zeros", 1.0), ("erf", "zeros", 0.0), ("floor", "zeros", 0.0), ("log", "zeros", None),
                ("exp", "unknown", None),
            ]
        ),
        ("%y = arith.cmp %j, %c12 {predicate = \"lt\"} : tensor<1x12xbool>", False),
        ("%y = arith.cmp %j, %c11 {predicate = \"lt\"} : tensor<1x12xbool>", False),
        ("%y = arith.cmp %j, %c13 {predicate = \"lt\"} : tensor<1x12xbool>", None),
        ("%y = arith.cmp %j, %c12 {predicate = \"le\"} : tensor<1x12xbool>", None),
        ("%y = arith.cmp %j, %c12 {predicate = \"ge\"} : tensor<1x12xbool>", None),
        ("%y = arith.cmp %j, %s {predicate = \"lt\"} : tensor<1x12xbool>", None),
        ("%y = arith.cmp %fives, %c5 {predicate = \"eq\"} : " + B, True),
        ("%y = arith.cmp %fives, %c5 {predicate = \"lt\"} : " + B, False),
        ("%y = arith.cmp %at, %c5 {predicate = \"lt\"} : " + B, None),
        ("%y = arith.not %inside : tensor<1x12xbool>", True),
        ("%y = arith.not %noughts : " + I, None), ("%y = arith.not %fives : " + I, None),
        ("%g = arith.cmp %at, %c5 {predicate = \"lt\"} : " + B + "\n%y = arith.and %g, %inside : " + B, False),
        ("%g = arith.cmp %at, %c5 {predicate = \"lt\"} : " + B + "\n%y = arith.or %g, %inside : " + B, None),
        ("%g = arith.not %inside : tensor<1x12xbool>\n%h = arith.cmp %at, %c5 {predicate = \"lt\"} : " + B
         + "\n%y = arith.or %h, %g : " + B, True),
        ("%y = arith.select %inside, %ones, %lows : " + F, -INF),
        ("%y = arith.select %inside, %unknown, %low : " + F, -INF),
        ("%y = arith.select %inside, %low, %unknown : " + F, None), ("%y = arith.select %b, %ones, %one : " + F, 1.0),
        ("%y = arith.select %b, %ones, %zeros : " + F, None), ("%y = arith.select %b, %unknown, %unknown : " + F, None),
        ("%g = arith.not %inside : tensor<1x12xbool>\n%y = arith.select %g, %ones, %unknown : " + F, 1.0),
    ],
)  # fmt: skip
def test_what_is_computed_from_padding(body: str, expected: Any) -> None:
    found = held(body)
    assert type(found) is type(expected) and found == expected
    if isinstance(expected, float) and expected == 0.0:
        assert math.copysign(1.0, found) == 1.0


@pytest.mark.parametrize(
    ("body", "axis", "expected"),
    [
        ("%x = tensor.reduce %zeros {kind = \"KIND\", axis = 0} : tensor<12xfloat32>\n"
         "%y = arith.add %x, %x : tensor<12xfloat32>",
         0, {"sum": 0.0, "max": 0.0, "min": 0.0, "prod": None, "abssum": 0.0, "absmax": 0.0}),
        ("%x = tensor.reduce %lows {kind = \"KIND\", axis = 0} : tensor<12xfloat32>\n"
         "%y = arith.max %x, %x : tensor<12xfloat32>",
         0, {"sum": None, "max": -INF, "min": -INF, "absmax": None}),
        ("%y = tensor.scan %zeros {kind = \"KIND\", axis = 0} : " + F, 1, {"sum": 0.0, "max": 0.0, "prod": None}),
        ("%y = tensor.scan %zeros {kind = \"KIND\", axis = 1} : " + F, 1, {"sum": None, "max": None}),
    ],
)  # fmt: skip
def test_reductions_and_scans(body: str, axis: int, expected: dict[str, Any]) -> None:
    for kind, number in expected.items():
        assert held(body.replace("KIND", kind), axis) == number, kind


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("%y = tensor.transpose %inside {permutation = (1, 0)} : tensor<12x1xbool>", {0: False, 1: None}),
        ("%y = tensor.broadcast %inside : " + B, {1: False, 0: None}),
        ("%y = tensor.reshape %inside : tensor<12xbool>", {0: False}),
        ("%y = tensor.reshape %inside : tensor<1x12x1xbool>", {1: False, 0: None, 2: None}),
        ("%y = tensor.reshape %inside : tensor<3x4xbool>", {0: None, 1: None}),
        ("%w = tensor.broadcast %inside : " + B + "\n%y = tensor.reshape %w : tensor<12x5xbool>", {0: None, 1: None}),
        ("%y = tensor.gather %zeros, %at {axis = 0} : " + F, {1: 0.0, 0: None}),
        ("%y = tensor.gather %zeros, %at {axis = 1} : " + F, {1: None, 0: 0.0}),
        ("%y = scf.if %b : " + F + " { scf.yield [%zeros] } { scf.yield [%zeros] }", {1: 0.0}),
        ("%y = scf.if %b : " + F + " { scf.yield [%zeros] } { scf.yield [%ones] }", {1: None}),
        ("%y = scf.for %c0, %c3, %c1[%zeros] : " + F + " (%q: int32, %x: " + F + ") { scf.yield [%x] }", {1: None}),
    ],
)
def test_shapes_and_control_flow(body: str, known: dict[int, Any]) -> None:
    assert {axis: held(body, axis) for axis in known} == known


def test_once_closed_it_answers_what_was_asked() -> None:
    values = {value.name: value for op in kernel_of(program(START)).walk() for value in op.results}
    padding = Padding()
    assert padding.of(values["zeros"], 1) == 0.0
    padding.close()
    assert padding.of(values["zeros"], 1) == 0.0 and padding.of(values["ones"], 1) is None
