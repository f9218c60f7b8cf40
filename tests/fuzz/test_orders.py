"""The oracle's sorts, places, counts and scans, on values that are easy to see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz.test_oracle import run


def made(body: str, values: list[Any], *, dtype: str = "int32") -> list[int]:
    """What O holds after a body in which `t` has A's elements and `i` as many int32."""
    size = len(values)
    head = f"t = T.alloc_fragment(({size},), '{dtype}')\ni = T.alloc_fragment(({size},), 'int32')\nT.copy(A, t)\n"
    tail = f"\nif bx == 0:\n    for k in T.Parallel({size}):\n        O[k] = T.cast(i[k], '{dtype}')"
    return [int(each) for each in run(head + body + tail, n=size, dtype=dtype, values=values)]


def test_equal_elements_stay_in_order() -> None:
    assert made("T.sort(t, indices=i)", [5, 2, 5, 1]) == [3, 1, 0, 2]
    assert made("T.sort(t, indices=i, descending=True)", [5, 2, 5, 1]) == [0, 2, 1, 3]


def test_nan_is_the_greatest_in_sorts_and_passed_over_in_extremes() -> None:
    nan = float("nan")
    values = [1.0, nan, 3.0, nan]
    assert made("T.sort(t, indices=i)", values, dtype="float32") == [0, 2, 1, 3]
    body = "v = T.alloc_fragment((2,), 'float32')\nT.clear(i)\nT.topk(t, v, i[1:3])"
    assert made(body, values, dtype="float32") == [0, 1, 3, 0]
    body = "T.clear(i)\nT.argmax(t, i[1:2])\nT.argmin(t, i[2:3])"
    assert made(body, values, dtype="float32") == [0, 2, 0, 0]


def test_counts_leave_out_what_has_no_bin() -> None:
    assert made("T.histogram(t, i)", [1, -1, 1, 3]) == [0, 2, 0, 1]
    assert made("T.fill(i, 2)\nT.histogram(t, i, clear=False)", [1, 9, 1, 3]) == [2, 4, 2, 3]


@pytest.mark.parametrize(("reverse", "expected"), [(False, [1, 12, 123]), (True, [321, 32, 3])])
def test_scans_take_what_came_before_first(reverse: bool, expected: list[int]) -> None:
    """Numbers and their lengths in digits, one written behind the other."""
    body = f"""n = T.alloc_fragment((3,), 'int32')
T.fill(n, 10)
T.copy(t, i)
T.associative_scan(lambda a, b, c, d: (a * d + c, b * d), [i, n], dim=0, reverse={reverse})"""
    assert made(body, [1, 2, 3]) == expected
