"""Folding gives what execution gives: each fold against the executor, on edge cases first of all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.executor import DTYPES, MEANINGS, Executor, Stored
from tests.support.programs import NAMED, check_pass, inputs_for
from tiledsl.dialects import arith, tensor
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Patterns, apply_patterns
from tiledsl.ir.types import ELEMENTS, ScalarType, TensorType, is_float
from tiledsl.ir.verifier import verify
from tiledsl.math_functions import MATH_FUNCTIONS

BINARY = [
    op_type for op_type in vars(arith).values() if isinstance(op_type, type) and issubclass(op_type, arith.BinaryOp)
]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow and NaN are what is tested

BINARY = [op_type for op_type in BINARY if op_type.name]
FLOAT_EDGES = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.1, 1 / 3, math.inf, -math.inf, math.nan, 65504.0, 65520.0, 1e-8, 448.0,
               465.0, 3.4028234663852886e38, 3.5e38, 1e-45, 1e300, 2147483648.0, -2147483649.0]  # fmt: skip


def numbers(dtype: str) -> st.SearchStrategy[Any]:
    """Constants of an element type, edges often."""
    info = ELEMENTS[dtype]
    if info.kind == "float":
        return st.sampled_from(FLOAT_EDGES) | st.floats(-100, 100) | st.floats()
    if info.kind == "bool":
        return st.booleans()
    low, high = int(info.low), int(info.high)
    return (
        st.sampled_from([0, 1, 2, low, high, low + 1, max(low, -1)])
        | st.integers(low, high)
        | st.integers(0, 70 if high > 70 else high)
    )


def constant(number: Any, dtype: str) -> Value:
    made = arith.ConstantOp(value=number, result_types=[ScalarType(dtype)])
    made.verify()
    return made.out


def execute(op: Operation, values: dict[Value, Any] | None = None) -> Any:
    """What the executor computes, from constants and `values`."""
    env: dict[Value, Any] = dict(values or {})
    for value in op.operands:
        if value not in env:
            assert value.op is not None
            MEANINGS["arith.constant"](value.op, Executor(Stored()))(env)
    MEANINGS[op.name](op, Executor(Stored()))(env)
    return env[op.results[0]]


def check(
    op: Operation, values: dict[Value, Any] | None = None, *, signed_zero: bool = True, rounding: float = 0
) -> None:
    """Compare a fold, if there is one, with the execution."""
    folded = op.fold()
    if folded is None:
        return
    (made,), dtype = folded, op.results[0].dtype
    if isinstance(made, Value):
        assert made.type == op.results[0].type
        value = (values or {}).get(made)
        actual = DTYPES[dtype].type(arith.constant_of(made)) if value is None else value
    else:
        arith.ConstantOp(value=arith.as_constant(made, dtype), result_types=[ScalarType(dtype)]).verify()
        assert repr(arith.as_constant(made, dtype)) == repr(made) or made == 0
        actual = DTYPES[dtype].type(made)
    expected = execute(op, values)
    if is_float(dtype):
        a, b = float(actual), float(expected)
        same = a == b or a != a and b != b or (math.isclose(a, b, rel_tol=rounding) if rounding else False)
        assert same, f"{op}: folds to {actual!r}, executes to {expected!r}"
        assert not signed_zero or a != a or math.copysign(1, a) == math.copysign(1, b), (
            f"{op}: {actual!r}, {expected!r}"
        )
    else:
        assert actual == expected, f"{op}: folds to {actual!r}, executes to {expected!r}"


def fold_cases(op_type: type[arith.BinaryOp]) -> list[str]:
    return [dtype for dtype in ELEMENTS if ELEMENTS[dtype].kind in op_type.domain]


@pytest.mark.parametrize("op_type", BINARY, ids=lambda op_type: op_type.name)
@given(data=st.data())
def test_binary_on_constants(op_type: type[arith.BinaryOp], data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(fold_cases(op_type)))
    lhs, rhs = (constant(data.draw(numbers(dtype)), dtype) for _ in range(2))
    check(op_type(lhs, rhs), signed_zero=op_type not in (arith.MaxOp, arith.MinOp))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32"])
@pytest.mark.parametrize("op_type", BINARY, ids=lambda op_type: op_type.name)
def test_what_python_would_raise_for_is_folded(op_type: type[arith.BinaryOp], dtype: str) -> None:
    # Emitted as numbers, Triton would compute it in Python.
    low = -1 if dtype == "int32" else 1
    for lhs, rhs in [(0, 0), (1, 0), (low, 0), (1, 64), (1, low)] if dtype in fold_cases(op_type) else []:
        pair = [constant(arith.as_constant(number, dtype), dtype) for number in (lhs, rhs)]
        assert op_type(*pair).fold() is not None


@pytest.mark.parametrize("op_type", BINARY, ids=lambda op_type: op_type.name)
@given(data=st.data())
def test_binary_identities(op_type: type[arith.BinaryOp], data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(fold_cases(op_type)))
    number, other = data.draw(numbers(dtype)), data.draw(numbers(dtype))
    variable = Region([ScalarType(dtype)]).args[0]
    values = {variable: DTYPES[dtype].type(number)}
    fixed = constant(other, dtype)
    operands = data.draw(st.sampled_from([(variable, fixed), (fixed, variable), (variable, variable)]))
    check(op_type(*operands), values, signed_zero=op_type not in (arith.MaxOp, arith.MinOp))


@given(st.sampled_from(sorted(ELEMENTS)), st.sampled_from(sorted(arith.PREDICATES)), st.data())
def test_cmp(dtype: str, predicate: str, data: st.DataObject) -> None:
    lhs, rhs = (constant(data.draw(numbers(dtype)), dtype) for _ in range(2))
    check(arith.CmpOp(lhs, rhs, predicate=predicate))
    variable = Region([ScalarType(dtype)]).args[0]
    values = {variable: DTYPES[dtype].type(data.draw(numbers(dtype)))}
    check(arith.CmpOp(variable, variable, predicate=predicate), values)


@given(st.sampled_from(sorted(ELEMENTS)), st.sampled_from(sorted(ELEMENTS)), st.data())
def test_cast(source: str, to: str, data: st.DataObject) -> None:
    check(arith.CastOp(constant(data.draw(numbers(source)), source), result_types=[ScalarType(to)]))


@given(st.sampled_from(sorted(ELEMENTS)), st.data())
def test_neg_not_and_select(dtype: str, data: st.DataObject) -> None:
    value, other = (constant(data.draw(numbers(dtype)), dtype) for _ in range(2))
    if dtype != "bool":
        check(arith.NegOp(value))
    if not is_float(dtype):
        check(arith.NotOp(value))
        variable = Region([ScalarType(dtype)]).args[0]
        inner = arith.NotOp(variable)
        assert arith.NotOp(inner.out).fold() == [variable]
    check(arith.SelectOp(constant(data.draw(st.booleans()), "bool"), value, other))
    condition = Region([ScalarType("bool")]).args[0]
    check(arith.SelectOp(condition, value, other), {condition: np.bool_(data.draw(st.booleans()))})


@given(st.sampled_from(sorted(MATH_FUNCTIONS)), st.sampled_from(["float32", "float64", "float16"]), st.data())
def test_math(function: str, dtype: str, data: st.DataObject) -> None:
    if MATH_FUNCTIONS[function].takes in ("bits", "wide ints"):
        return
    arguments = [constant(data.draw(numbers(dtype)), dtype) for _ in range(MATH_FUNCTIONS[function].arity)]
    check(arith.MathOp(arguments, function=function), rounding=1e-14 if dtype == "float64" else 1.3e-7)


@given(st.sampled_from(sorted(ELEMENTS)), st.data())
def test_rounding_is_that_of_the_element_type(dtype: str, data: st.DataObject) -> None:
    if is_float(dtype):
        number = data.draw(numbers(dtype))
        if dtype.startswith(("float8", "bfloat")):
            number = float(np.float32(number))  # ml_dtypes rounds a float64 twice
        expected = float(DTYPES[dtype].type(number))
        actual = arith.rounded(number, dtype)
        assert repr(actual) == repr(expected)


def test_shapes_of_folds() -> None:
    two = arith.ConstantOp(value=2, result_types=[TensorType((4, 1), "int32")]).out
    wide = tensor.BroadcastOp(two, result_types=[TensorType((4, 8), "int32")])
    assert wide.fold() == [2]
    assert tensor.BroadcastOp(two, result_types=[two.type]).fold() == [two]
    argument = Region([TensorType((4, 1), "int32")]).args[0]
    first = tensor.ReshapeOp(argument, result_types=[TensorType((2, 2), "int32")])
    assert tensor.ReshapeOp(first.out, result_types=[argument.type]).fold() == [argument]
    assert tensor.TransposeOp(argument, permutation=(0, 1)).fold() == [argument]
    assert tensor.TransposeOp(argument, permutation=(1, 0)).fold() is None
    # x + 0 may not become x where the zero makes the shape.
    zero = arith.ConstantOp(value=0, result_types=[TensorType((4, 8), "int32")]).out
    assert arith.AddOp(argument, zero).fold() is None


def test_folded_programs_verify() -> None:
    for make in NAMED.values():
        func = make()
        check_pass(lambda program: apply_patterns(program.root, Patterns([]), fold=True), func, inputs_for(func))
        verify(func)
