from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.ir_cases import after, filecheck, program
from tests.support.programs import check_pass, inputs_for, programs
from tiledsl.passes.simplify_ranges import SimplifyRanges

TILE = """
%i = tensor.iota {axis = 0} : tensor<64x1xint32>
%a = arith.mul %bx, %c64 : int32
%p = arith.add %a, %i : tensor<64x1xint32>
"""


def result(body: str) -> list[str]:
    return after(SimplifyRanges(), body + "\ntile.store %y, %N[%bx]")


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        ('%c = arith.cmp %bx, %c8 {predicate = "lt"} : bool\n%y = arith.select %c, %s, %bx : int32', "%s"),
        ('%c = arith.cmp %bx, %c8 {predicate = "ge"} : bool\n%y = arith.select %c, %s, %bx : int32', "%bx"),
        ('%c = arith.cmp %bx, %c-1 {predicate = "eq"} : bool\n%y = arith.select %c, %s, %bx : int32', "%bx"),
        ('%k = arith.floormod %s, %m : int32\n%c = arith.cmp %k, %m {predicate = "lt"} : bool\n'
         "%y = arith.select %c, %s, %bx : int32", "%s"),
        ("%y = arith.min %bx, %c7 : int32", "%bx"),
        ("%y = arith.max %bx, %c0 : int32", "%bx"),
        ("%y = arith.max %bx, %c7 : int32", "%c7"),
        # where a term goes, what is left decides
        ("%k = arith.floormod %s, %c12 : int32\n%a = arith.add %bx, %k : int32\n%y = arith.min %a, %bx : int32", "%bx"),
        ("%y = arith.floordiv %bx, %c8 : int32", "%c0"),
        ("%y = arith.floormod %bx, %c8 : int32", "%bx"),
        ("%a = arith.mul %bx, %c12 : int32\n%y = arith.floordiv %a, %c12 : int32", "%bx"),
        ("%a = arith.mul %bx, %c12 : int32\n%y = arith.truncdiv %a, %c12 : int32", "%bx"),
        ("%a = arith.mul %bx, %c12 : int32\n%k = arith.floormod %s, %c12 : int32\n%t = arith.add %a, %k : int32\n"
         "%y = arith.floordiv %t, %c12 : int32", "%bx"),
        ("%a = arith.mul %bx, %c12 : int32\n%k = arith.floormod %s, %c12 : int32\n%t = arith.add %a, %k : int32\n"
         "%y = arith.truncdiv %t, %c12 : int32", "%bx"),
        ("%a = arith.mul %bx, %c12 : int32\n%y = arith.floormod %a, %c12 : int32", "%c0"),
        ("%e = arith.min %s, %c3 : int32\n%b3 = arith.max %s, %c3 : int32\n"
         "%y = scf.for %b3, %e, %c1[%bx] : int32 (%k: int32, %x: int32) { scf.yield [%k] }", "%bx"),
    ],
)  # fmt: skip
def test_decided_expressions(body: str, stored: str) -> None:
    assert result(body) == [f"tile.store {stored}, %N[%bx]"]


def test_comparisons_of_tiles_with_terms_in_common() -> None:
    found = result("""%i = tensor.iota {axis = 0} : tensor<8xint32>
        %a = arith.add %i, %bx : tensor<8xint32> %e = arith.add %bx, %c8 : int32
        %c = arith.cmp %a, %e {predicate = "lt"} : tensor<8xbool>
        %t = arith.select %c, %bx, %s : tensor<8xint32> %y = tensor.reduce %t {kind = "max", axis = 0} : int32""")
    assert found[0] == "%t = arith.select %ctrue, %bx, %s : tensor<8xint32>"


@pytest.mark.parametrize(
    "body",
    [
        '%c = arith.cmp %bx, %c7 {predicate = "lt"} : bool\n%y = arith.select %c, %s, %bx : int32',
        "%y = arith.min %s, %c7 : int32",
        "%a = arith.mul %s, %c12 : int32\n%y = arith.floordiv %a, %c12 : int32",
        "%a = arith.mul %s, %c12 : int32\n%y = arith.floormod %a, %c12 : int32",
        "%y = arith.floormod %s, %c8 : int32",
        "%a = arith.mul %bx, %c12 : int32\n%y = arith.floordiv %a, %c8 : int32",
        "%a = arith.mul %bx, %c12 : int32\n%y = arith.floormod %a, %c8 : int32",
        "%a = arith.mul %bx, %c24 : int32\n%y = arith.floormod %a, %c0 : int32",
        "%a = arith.mul %bx, %c24 : int32\n%t = arith.add %a, %s : int32\n%y = arith.floormod %t, %c12 : int32",
        "%r = arith.floormod %s, %c8 : int32\n%q = arith.sub %r, %c1 : int32\n%y = arith.floordiv %q, %c8 : int32",
        "%r = arith.floormod %s, %c8 : int32\n%q = arith.sub %r, %c1 : int32\n%y = arith.floormod %q, %c8 : int32",
        # loops that may run once, or count down
        "%e = arith.min %s, %c4 : int32\n%b3 = arith.max %s, %c3 : int32\n"
        "%y = scf.for %b3, %e, %c1[%bx] : int32 (%k: int32, %x: int32) { scf.yield [%k] }",
        "%y = scf.for %c3, %c0, %s[%bx] : int32 (%k: int32, %x: int32) { scf.yield [%k] }",
    ],
)
def test_what_depends_on_the_values_stays(body: str) -> None:
    assert len(result(body)) > 1


def test_a_scalar_is_no_tile_but_a_number_is() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<4xint32>
    %j = arith.add %i, %c8 : tensor<4xint32>
    %y = arith.min %j, LIMIT : tensor<4xint32>
    tile.store %y, %N[%i]"""
    assert after(SimplifyRanges(), body.replace("LIMIT", "%c7"))[1:] == ["tile.store %c7, %N[%i]"]
    assert "%y = arith.min %j, %bx : tensor<4xint32>" in after(SimplifyRanges(), body.replace("LIMIT", "%bx"))


@pytest.mark.parametrize("divides", ["floordiv", "truncdiv"])
@pytest.mark.parametrize(("rest", "folds"), [(8, True), (9, False)])
def test_a_multiple_is_divided_if_the_rest_is_below_the_divisor(divides: str, rest: int, folds: bool) -> None:
    body = f"""
    %r = arith.floormod %s, %c{rest} : int32
    %a = arith.mul %bx, %c24 : int32
    %t = arith.add %a, %r : int32
    %y = arith.{divides} %t, %c8 : int32"""
    lines = result(body)
    assert any(f"arith.{divides}" in line for line in lines) is not folds
    assert any("arith.mul %bx, %c3 :" in line for line in lines) is folds


@pytest.mark.parametrize(
    ("operation", "addend", "folds"),
    [
        ("truncmod", "%r", True), ("truncdiv", "%r", True), ("floormod", "%q", True),
        ("truncmod", "%q", False), ("truncdiv", "%q", False), ("floordiv", "%q", False),  # 23 of 24 - 1 is not -1
    ],
)  # fmt: skip
def test_what_is_added_to_a_multiple_may_be_negative(operation: str, addend: str, folds: bool) -> None:
    body = f"""
    %r = arith.floormod %s, %c8 : int32
    %q = arith.sub %r, %c1 : int32
    %p = arith.add %bx, %c1 : int32
    %a = arith.mul %p, %c24 : int32
    %t = arith.add %a, {addend} : int32
    %y = arith.{operation} %t, %c8 : int32"""
    assert any("%t" in line for line in result(body)) is not folds
    func = program(body + "\ntile.store %y, %N[%bx]", grid=(8,)).root
    check_pass(SimplifyRanges(), func, inputs_for(func, 0))


def test_a_mask_that_always_holds_goes() -> None:
    body = (
        TILE
        + """
    %n = arith.constant {value = 512} : int32
    %c = arith.cmp %p, %n {predicate = "lt"} : tensor<64x1xbool>
    %y = arith.select %c, %p, %c-1 : tensor<64x1xint32>"""
    )
    lines = after(SimplifyRanges(), body + "\ntile.store %y, %N[%p]")
    assert lines[-1] == "tile.store %p, %N[%p]"
    assert len(lines) == 4


def test_an_assumption_decides_others_but_not_itself() -> None:
    body = """
    %c = arith.cmp %s, %c16 {predicate = "lt"} : bool
    %d = arith.cmp %s, %c0 {predicate = "ge"} : bool
    %e = arith.and %c, %d : bool
    tile.assume %e
    %g = arith.cmp %s, %c20 {predicate = "lt"} : bool
    %h = arith.and %g, %c : bool
    %y = arith.select %h, %s, %bx : int32"""
    filecheck(
        result(body),
        """
        %c = arith.cmp %s, %c16 {predicate = "lt"} : bool
        %d = arith.cmp %s, %c0 {predicate = "ge"} : bool
        %e = arith.and %c, %d : bool
        tile.assume %e
        tile.store %s, %N[%bx]
        """,
    )


def test_the_remainder_of_a_flattened_index() -> None:
    body = """
    %k = arith.floormod %s, %c12 : int32
    %a = arith.mul %bx, %c24 : int32
    %t = arith.add %a, %k : int32
    %y = arith.floormod %t, %c12 : int32"""
    filecheck(
        result(body),
        """
        %k = arith.floormod %s, %c12 : int32
        tile.store %k, %N[%bx]
        """,
    )


@settings(max_examples=60)
@given(programs(), st.integers(0, 99))
def test_meaning_stays(func, seed) -> None:  # type: ignore[no-untyped-def]
    check_pass(SimplifyRanges(), func, inputs_for(func, seed))
