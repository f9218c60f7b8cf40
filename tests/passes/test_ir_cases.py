"""The dialect of the tests of passes: constants in bodies, FileCheck lines on what comes out."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import after, filecheck

FOUND = ["%x = tile.load %N[%bx] : int32", "%y = arith.add %x, %x : int32", "tile.store %y, %N[%s]"]


def test_lines_without_directives_are_all_that_there_is() -> None:
    filecheck(FOUND, "\n    ".join(FOUND))
    for other in (FOUND[:2], FOUND[1:], [*FOUND, FOUND[0]], FOUND[::-1], [*FOUND[:2], FOUND[2].replace("%s", "%bx")]):
        with pytest.raises(pytest.fail.Exception, match="found:"):
            filecheck(FOUND, "\n".join(other))


def test_directives_and_variables() -> None:
    filecheck(FOUND, "[[A:%.+]] = tile.load %N[%bx] : int32\n[[B:%.+]] = arith.add [[A]], [[A]] : int32\ntile.store [[B]], %N[%s]")  # fmt: skip # noqa: E501
    filecheck(FOUND, "CHECK: tile.load\nCHECK-NOT: tile.load\nCHECK: tile.store")
    with pytest.raises(pytest.fail.Exception):
        filecheck(FOUND, "CHECK-NOT: tile.store")
    with pytest.raises(pytest.fail.Exception):
        filecheck(FOUND, "CHECK: tile.store\nCHECK: tile.load")


def test_constants_are_named_by_their_values() -> None:
    filecheck(
        after([], "%x = arith.add %s, %c-5 : int32\n%y = arith.mul %f, %c0.5 : float32\ntile.store %y, %A[%x, %c0]"),
        """
        %x = arith.add %s, %cm5 : int32
        %y = arith.mul %f, %c0p5 : float32
        tile.store %y, %A[%x, %c0]
        """,
    )
