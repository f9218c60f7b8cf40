"""The oracle itself: exact where it must be, within bounds elsewhere, and no meaning for what has none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.fuzz.case import Case, TensorArgument
from tests.fuzz.dtypes import DTYPES, Discard, rounded
from tests.fuzz.language import total
from tests.fuzz.numbers import Number, cast


def run(body: str, *, n: int = 4, dtype: str = "int32", values: list[Any] | None = None) -> list[Any]:
    """What `O` holds after a program of one kernel of two blocks with this body, in which A and O are (n,)."""
    lines = "\n".join("        " + line for line in body.strip().splitlines())
    text = (
        f"@T.prim_func\ndef main(A: T.Tensor(({n},), '{dtype}'), O: T.Tensor(({n},), '{dtype}')):\n"
        f"    with T.Kernel(2) as bx:\n{lines}\n"
    )
    tensors = [TensorArgument("A", (n,), dtype), TensorArgument("O", (n,), dtype)]
    case = Case(0, text, tensors, {}, {}, {"A": values or list(range(n)), "O": [9] * n})
    return [number.value for number in case.expected()["O"]]


def test_masks_and_ends() -> None:
    assert run("for i in T.Parallel(3):\n    if i != 1:\n        O[bx * 3 + i - 1] = A[bx * 3 + i]") == [9, 2, 3, 9]


def test_reads_outside_are_zero_and_assumptions_must_hold() -> None:
    assert run("for i in T.Parallel(2):\n    O[bx * 2 + i] = A[bx * 2 + i + 1] + 1") == [2, 3, 4, 1]
    with pytest.raises(Discard, match="an assumption does not hold"):
        run("T.assume(bx < 1)")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("O[0] = bx", "two write one element"),
        ("O[bx] = O[1 - bx]", "a race"),
        ("for i in T.Parallel(2):\n    O[bx * 2] = i", "two write one element"),
        ("t = T.alloc_fragment((2,), 'int32')\nO[bx] = t[0]", "a result is undefined"),
        ("if A[0] // (bx - bx) > 0:\n    O[bx] = 1", "undefined"),
        ("t = T.alloc_fragment((2,), 'int32')\nt[2 + bx] = 1", "outside of an on-chip buffer"),
        ("for i in T.Parallel(2):\n    O[i - 9 + bx] = 1", "negative each time"),
        ("for i in T.Parallel(2):\n    O[i - 9 + bx] += A[A[i]]", "negative each time"),
        ("x = T.alloc_var('int32', T.atomic_add(O[0], 1, return_prev=True))\nO[bx + 1] = x", "a race"),
        ("x = T.cast(A[bx], 'float32') / 3.0\nif x * 3.0 == 1.0:\n    O[bx] = 1", "depends on rounding|undefined"),
    ],
)
def test_programs_without_a_meaning_are_discarded(body: str, why: str) -> None:
    with pytest.raises(Discard, match=why):
        run(body)


def test_the_greatest_of_nothing_but_nan_is_open() -> None:
    roots = "for i in T.Parallel(3):\n    t[i] = T.sqrt(T.float32(A[i] - 1))"
    body = f"t = T.alloc_fragment((3,), 'float32')\n{roots}\nT.cummax(t, dim=0, reverse=True)"
    assert run(f"{body}\nO[bx] = T.cast(t[bx] + 0.5, 'int32')") == [1, 1, 9, 9]
    with pytest.raises(Discard, match="undefined"):
        run(body.replace("- 1", "- 2") + "\nO[bx] = T.isnan(t[0])", values=[0, 0, 0, 0])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("for i in T.Parallel(4):\n    x = A[i]\n    O[i] = x + 1\n    O[i] += A[i]", [2, 4, 6, 8]),
        ("O[0] = A[1]", [1, 1, 2, 3]),
        ("O[1] = 5\nO[0] = A[1]", None),
        ("for i in T.Parallel(2):\n    O[i] = A[i + 2]\nfor i in T.Parallel(2):\n    O[i] = A[1 - i]", None),
        ("for k in T.serial(3):\n    O[k + 1] = A[k]", None),
    ],
)
def test_two_parameters_with_one_memory(body: str, expected: list[int] | None) -> None:
    lines = "\n".join("        " + line for line in body.splitlines())
    text = (
        "@T.prim_func\ndef main(A: T.Tensor((4,), 'int32'), O: T.Tensor((4,), 'int32')):\n"
        f"    with T.Kernel(1) as bx:\n{lines}\n"
    )
    tensors = [TensorArgument("A", (4,), "int32"), TensorArgument("O", (4,), "int32", same_as="A")]
    case = Case(0, text, tensors, {}, {}, {"A": [0, 1, 2, 3]})
    if expected is None:
        with pytest.raises(Discard, match=r"through one parameter|a race"):
            case.expected()
    else:
        assert [number.value for number in case.expected()["A"]] == expected


def test_atomic_additions_do_not_race() -> None:
    assert run("for i in T.Parallel(5):\n    T.atomic_add(O[i % 2], i)") == [9 + 12, 9 + 8, 9, 9]


def test_arithmetic_wraps_and_promotes() -> None:
    assert run("O[bx] = T.cast(200, 'uint8') + T.cast(100, 'uint8')") == [44, 44, 9, 9]
    assert run("O[bx] = T.cast(-7, 'int8') // 2 * 10 + T.cast(-7, 'int8') % 4") == [-39, -39, 9, 9]
    assert run("O[bx] = T.cast(1, 'uint32') - 2 > T.cast(5, 'int32')") == [1, 1, 9, 9]


@pytest.mark.parametrize("name", ["float16", "float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_rounding_is_that_of_numpy(name: str) -> None:
    import ml_dtypes

    dtype, rng = np.dtype(getattr(ml_dtypes, name, None) or name), np.random.default_rng(0)
    for value in np.concatenate([rng.normal(size=200), rng.normal(size=100) * 2.0**-9, rng.integers(-60, 60, 50) / 16]):
        single = float(np.float32(value))  # ml_dtypes rounds a double twice
        assert rounded(single, DTYPES[name]) == float(np.float32(single).astype(dtype)), (single, name)


def test_errors_cover_other_orders_and_precisions() -> None:
    rng, dtype = np.random.default_rng(1), DTYPES["float32"]
    for _ in range(50):
        terms = [Number(dtype, float(x)) for x in rng.normal(size=17).astype(np.float32)]
        made = total(terms, dtype)
        for order in (terms, terms[::-1]):
            sum_ = np.float32(0)
            for term in order:
                sum_ += np.float32(term.value)
            assert abs(float(sum_) - made.value) <= made.error
    exact = total([Number(dtype, x) for x in (1.5, -0.25, 8.0)], dtype)
    assert exact.value == 9.25 and exact.error == 0
    assert math.isnan(total([Number(dtype, math.inf), Number(dtype, -math.inf)], dtype).value)


def test_float8_saturates_and_floats_out_of_range_have_no_integer() -> None:
    assert cast(Number(DTYPES["float32"], 1e6), DTYPES["float8_e4m3fn"]).value == 448.0
    assert cast(Number(DTYPES["float32"], 300.0), DTYPES["uint8"]).value is None
    assert cast(Number(DTYPES["float32"], -3.7), DTYPES["int8"]).value == -3
