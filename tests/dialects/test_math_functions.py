"""The records of mathematical functions agree with themselves, with Triton's libraries and with the rules of passes."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from tiledsl.language.names import NAMES
from tiledsl.legality import verdict
from tiledsl.math_functions import MATH_FUNCTIONS, MathFunction
from tiledsl.passes import legalize_arith
from tiledsl.passes.legalize_arith import dtypes

EVERY = [pytest.param(each, id=name) for name, each in MATH_FUNCTIONS.items()]
FLOATS = (-2.5, -1.5, -1.0, -0.75, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 7.0)
INTEGERS = (0, 1, 2, 7, 255, 1 << 20, (1 << 31) - 1)
TRITON = Path(importlib.util.find_spec("triton").origin).parent / "language"


@pytest.mark.parametrize("record", EVERY)
def test_numpy_and_python_agree(record: MathFunction) -> None:
    if record.host is None:
        return
    compared = 0
    values = INTEGERS if record.takes == "bits" else FLOATS
    for shift in range(len(values)):
        numbers = [values[(position * 5 + shift) % len(values)] for position in range(record.arity)]
        try:
            expected = record.host(*numbers)
        except (ValueError, ArithmeticError):
            continue
        if isinstance(expected, complex):
            continue
        arrays = [np.array([number, number], "int32" if record.takes == "bits" else "float64") for number in numbers]
        made = np.asarray(record.on_arrays(*arrays))
        assert made.shape == (2,) and made[0] == made[1] == pytest.approx(expected, rel=1e-14), numbers
        compared += 1
    assert compared > 3


@pytest.mark.parametrize("record", EVERY)
def test_triton_has_it(record: MathFunction) -> None:
    library, _, name = record.spelling.partition(".")
    if library == "tl":
        assert f"def {name}(" in "".join((TRITON / f"{each}.py").read_text() for each in ("math", "core", "standard"))
    elif library:
        assert f"def {name}(" in (TRITON / "extra/cuda/libdevice.py").read_text()
    assert library or record.spelt_out


@pytest.mark.parametrize("record", EVERY)
def test_its_facts_hold(record: MathFunction) -> None:
    for argument, result in record.exact_at.items():
        assert record.on_arrays(np.array([argument])).tolist() == [result]
    if record.base is not None:
        assert record.on_arrays(np.array([3.0])) == pytest.approx(record.base**3)
    assert record.folds <= (record.host is not None and record.arity == 1)


def test_what_is_written_in_other_terms_has_a_rule() -> None:
    spelt_out = {name for name, each in MATH_FUNCTIONS.items() if each.spelt_out}
    assert spelt_out == {*legalize_arith._SPELT_OUT, "clamp"}, (
        "each record with `spelt_out` has a rule in _SPELT_OUT, passes/legalize_arith/__init__.py, and no other has"
    )
    assert {name for name, each in MATH_FUNCTIONS.items() if each.instead} == {*dtypes._WHERE_MISSING}, (
        "each record with `instead` has a rule in _WHERE_MISSING, passes/legalize_arith/dtypes.py, and no other has"
    )


def test_the_language_has_what_python_computes() -> None:
    missing = [name for name, each in MATH_FUNCTIONS.items() if each.host is not None and name not in NAMES]
    assert not missing, f"each record with `host` is a function of T: write one for {missing} in language/names.py"


def test_errors_of_python_are_nan_and_infinity() -> None:
    record = MathFunction(name="half_log", host=lambda x: math.log(x) / 2 if x != 9.0 else math.exp(1e9))
    with np.errstate(all="ignore"):
        assert record.on_arrays(np.array([-1.0, 9.0])).tolist() == pytest.approx([math.nan, math.inf], nan_ok=True)
    assert record.on_arrays(np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize(
    ("name", "dtype", "rewrite"),
    [
        ("exp", "float16", "widen"),
        ("tanh", "int32", "promote"),
        ("floor", "int8", "identity"),
        ("clz", "int16", "bits"),
    ],
)
def test_the_table_of_element_types_follows(name: str, dtype: str, rewrite: str) -> None:
    assert verdict(name, (dtype,)).rewrite == rewrite
