"""Floats that are stored in integer elements: the kernel's remarks name the line, unless the program rounds itself."""

from __future__ import annotations

import pytest

import tiledsl


def remarks(statement: str) -> tuple[str, ...]:
    text = f"""@T.prim_func
def main(X: T.Tensor((64,), "float32"), Z: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=32) as bx:
        for i in T.Parallel(64):
            {statement}
"""
    return tiledsl.compile(tiledsl.parse(text), target="cuda:90").remarks


@pytest.mark.parametrize(
    ("statement", "stored"),
    [
        ("Z[i] = X[i] * 0.5", "a float32"),
        ("Z[i] += X[i]", "a float32"),
        ("Z[i] = 0.5", "0.5"),
        ("Z[i] = X[i]", "a float32"),
    ],
)
def test_a_fraction_that_is_cut_off_is_a_remark(statement: str, stored: str) -> None:
    text = f"line 5 stores {stored} in Z, whose elements are int32: the fraction is cut off"
    assert remarks(statement) == (text,)


@pytest.mark.parametrize(
    "statement",
    [
        "Z[i] = T.floor(X[i])",
        "Z[i] = T.round(X[i])",
        "Z[i] = T.cast(X[i], 'int32')",
        "Z[i] = 2.0",
        "Z[i] = i",
        "Y[i] = 0.5",
    ],
)
def test_what_the_program_rounds_itself_is_none(statement: str) -> None:
    assert remarks(statement) == ()
