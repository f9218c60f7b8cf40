"""Indices of a part of a buffer are refused as those of the buffer are."""

from __future__ import annotations

import pytest

import tiledsl
from tiledsl.errors import TileError
from tiledsl.ir.printer import print_op

PROGRAM = """
@T.prim_func
def main(A: T.Tensor((64, 64), "float32")):
    with T.Kernel(2) as bx:
        v = {}
"""


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("(A[0:2])['x']", "index 0 of a part of A is str 'x', not an integer"),
        ("(A[0:2])[T]", "index 0 of a part of A is _Language T, not an integer"),
        ("(A[0:4, 0:8])[1, 0:'x']", "index 1 of a part of A is str 'x', not an integer"),
        ("(A[0:4])[True]", "index 0 of a part of A is bool True, not an integer"),
        ("(A[0:4])[0:2:2]", "slices of A have step 1"),
        ("(A[0:4])[0, 0, 0]", "too many indices for a part of A"),
    ],
)
def test_indices_that_are_none(part: str, message: str) -> None:
    with pytest.raises(TileError) as refused:
        tiledsl.parse(PROGRAM.format(part)).build(())
    assert message in refused.value.message and refused.value.loc is not None


@pytest.mark.parametrize(
    ("part", "same"),
    [
        ("(A[8:16, 8:16])[2]", "A[10, 8:16]"), ("(A[8:16, bx])[2]", "A[10, bx]"), ("(A[bx, 8:16])[2]", "A[bx, 10]"),
        ("(A[8:16, 8:16])[2:4, 1:]", "A[10:12, 9:16]"), ("(A[8:16, 8:16])[:4]", "A[8:12, 8:16]"),
        ("((A[8:16, 8:16])[2:6])[1]", "A[11, 8:16]"), ("(A[8:16, 8:16])[bx, 3:5]", "A[8 + bx, 11:13]"),
    ],
)  # fmt: skip
def test_a_part_of_a_part_counts_from_where_that_begins(part: str, same: str) -> None:
    text = PROGRAM.replace("v = {}", "T.fill({}, 1)")
    assert shown(text.format(part)) == shown(text.format(same))


def shown(text: str) -> str:
    return print_op(tiledsl.parse(text).build(()))
