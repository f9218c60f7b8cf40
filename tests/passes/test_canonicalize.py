"""canonicalize: rules on numbers, and on branches and loops (tiledsl.passes.canonicalize.control_flow)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.ir_cases import after, body_lines, filecheck, program
from tests.support.programs import check_pass, inputs_for, programs
from tiledsl.dialects.arith import wrap
from tiledsl.ir.rewrite import Patterns, apply_patterns
from tiledsl.ir.verifier import verify
from tiledsl.passes.canonicalize import Canonicalize, cancel_terms

STORE = "tile.store %y, %N[%bx]"


def result(body: str, store: str = STORE) -> list[str]:
    """What is left of an expression %y of the scalars %s and %bx, without the store."""
    lines = after(Canonicalize(), f"{body}\n{store}")
    return lines[:-1] if len(lines) > 1 else lines


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%y = arith.add %c3, %s : int32", ["%y = arith.add %s, %c3 : int32"]),
        ("%a = arith.add %s, %c3 : int32\n%y = arith.add %a, %c4 : int32", ["%y = arith.add %s, %c7 : int32"]),
        ("%a = arith.add %s, %c3 : int32\n%y = arith.sub %a, %c5 : int32", ["%y = arith.sub %s, %c2 : int32"]),
        ("%a = arith.sub %s, %c3 : int32\n%y = arith.add %a, %c5 : int32", ["%y = arith.add %s, %c2 : int32"]),
        ("%a = arith.add %s, %c3 : int32\n%y = arith.sub %a, %c3 : int32", ["tile.store %s, %N[%bx]"]),
        ("%a = arith.add %s, %bx : int32\n%y = arith.sub %a, %s : int32", ["tile.store %bx, %N[%bx]"]),
        ("%a = arith.add %s, %c8 : int32\n%d = arith.mul %a, %c4 : int32\n%e = arith.mul %s, %c4 : int32\n"
         "%y = arith.sub %d, %e : int32", ["tile.store %c32, %N[%bx]"]),
        ("%a = arith.add %s, %bx : int32\n%d = arith.add %s, %s : int32\n%y = arith.sub %a, %d : int32",
         ["%a = arith.add %s, %bx : int32", "%d = arith.add %s, %s : int32", "%y = arith.sub %a, %d : int32"]),
        ("%y = arith.add %s, %c-1 : int32", ["%y = arith.sub %s, %c1 : int32"]),
        ("%y = arith.sub %s, %c-2147483648 : int32", ["%y = arith.sub %s, %cm2147483648 : int32"]),
        (
            "%a = arith.sub %s, %c2147483647 : int32\n%y = arith.sub %a, %c2147483647 : int32",
            ["%y = arith.add %s, %c2 : int32"],
        ),
        ("%a = arith.mul %s, %c3 : int32\n%y = arith.mul %a, %c5 : int32", ["%y = arith.mul %s, %c15 : int32"]),
        ("%a = arith.floordiv %s, %c3 : int32\n%y = arith.floordiv %a, %c5 : int32",
         ["%y = arith.floordiv %s, %c15 : int32"]),
        ("%a = arith.mul %s, %c24 : int32\n%y = arith.floormod %a, %c8 : int32", ["tile.store %c0, %N[%bx]"]),
        ("%a = arith.min %s, %c3 : int32\n%y = arith.min %a, %c5 : int32", ["%y = arith.min %s, %c3 : int32"]),
        ("%a = arith.neg %bx : int32\n%y = arith.add %s, %a : int32", ["%y = arith.sub %s, %bx : int32"]),
        ("%a = arith.neg %s : int32\n%y = arith.neg %a : int32", ["tile.store %s, %N[%bx]"]),
        ("%a = arith.cast %s : int64\n%y = arith.cast %a : int32", ["tile.store %s, %N[%bx]"]),
        (
            "%c = arith.cmp %c3, %s {predicate = \"lt\"} : bool\n%d = arith.not %c : bool\n"
            "%y = arith.select %d, %s, %bx : int32",
            ['%d = arith.cmp %s, %c3 {predicate = "le"} : bool', "%y = arith.select %d, %s, %bx : int32"],
        ),
        ("%d = arith.not %b : bool\n%y = arith.select %d, %s, %bx : int32", ["%y = arith.select %b, %bx, %s : int32"]),
        ("%a = arith.sub %c3, %s : int32\n%y = arith.sub %c5, %a : int32", ["%y = arith.add %s, %c2 : int32"]),
        ("%a = arith.sub %c3, %s : int32\n%y = arith.sub %bx, %a : int32",
         ["%a = arith.sub %c3, %s : int32", "%y = arith.sub %bx, %a : int32"]),
        ("%a = arith.sub %s, %c3 : int32\n%y = arith.sub %c5, %a : int32",
         ["%a = arith.sub %s, %c3 : int32", "%y = arith.sub %c5, %a : int32"]),
        ("%a = arith.add %s, %c3 : int32\n%y = arith.sub %c5, %a : int32",
         ["%a = arith.add %s, %c3 : int32", "%y = arith.sub %c5, %a : int32"]),
        ("%a = arith.max %s, %c3 : int32\n%y = arith.max %a, %c5 : int32", ["%y = arith.max %s, %c5 : int32"]),
        ("%a = arith.min %s, %c3 : int32\n%y = arith.max %a, %c5 : int32",
         ["%a = arith.min %s, %c3 : int32", "%y = arith.max %a, %c5 : int32"]),
        ("%a = arith.and %s, %c12 : int32\n%y = arith.and %a, %c10 : int32", ["%y = arith.and %s, %c8 : int32"]),
        ("%a = arith.or %s, %c12 : int32\n%y = arith.or %a, %c10 : int32", ["%y = arith.or %s, %c14 : int32"]),
        ("%a = arith.xor %s, %c12 : int32\n%y = arith.xor %a, %c10 : int32", ["%y = arith.xor %s, %c6 : int32"]),
        ("%a = arith.truncdiv %s, %c3 : int32\n%y = arith.truncdiv %a, %c5 : int32",
         ["%y = arith.truncdiv %s, %c15 : int32"]),
        ("%a = arith.truncdiv %s, %c3 : int32\n%y = arith.floordiv %a, %c5 : int32",
         ["%a = arith.truncdiv %s, %c3 : int32", "%y = arith.floordiv %a, %c5 : int32"]),
        ("%a = arith.floordiv %s, %c-3 : int32\n%y = arith.floordiv %a, %c5 : int32",
         ["%a = arith.floordiv %s, %cm3 : int32", "%y = arith.floordiv %a, %c5 : int32"]),
        ("%a = arith.floordiv %s, %c65536 : int32\n%y = arith.floordiv %a, %c32768 : int32",  # 2**31 does not fit
         ["%a = arith.floordiv %s, %c65536 : int32", "%y = arith.floordiv %a, %c32768 : int32"]),
    ],
)  # fmt: skip
def test_integer_expressions_get_one_form(body: str, expected: list[str]) -> None:
    assert result(body) == expected


def test_constants_of_narrow_floats_stay_in_their_order() -> None:
    """Their sum is left to the compiler that rounds it."""
    constants = "".join(
        f"%{name} = arith.constant {{value = {value}}} : float16\n" for name, value in (("p", 1.5), ("q", 3.0))
    )
    lines = after(Canonicalize(), f'{constants}%y = arith.add %p, %q : float16\ntile.print [%y] {{message = ""}}')
    assert lines[0] == "%y = arith.add %c1p5, %c3p0 : float16"


def test_constants_of_tiles() -> None:
    """What a scalar and a tile of one number give stays a tile."""
    body = """
    %w = arith.constant {value = 3} : tensor<4xint32>
    %a = arith.add %s, %w : tensor<4xint32>
    %y = arith.add %a, %c4 : tensor<4xint32>
    %i = tensor.iota {axis = 0} : tensor<4xint32>
    %d = arith.add %i, %w : tensor<4xint32>
    %e = arith.add %d, %w : tensor<4xint32>
    tile.store %y, %N[%e]"""
    expected = ["%y = arith.add %s, %c7 : tensor<4xint32>", "%i = tensor.iota {axis = 0} : tensor<4xint32>",
                "%e = arith.add %i, %c6 : tensor<4xint32>", "tile.store %y, %N[%e]"]  # fmt: skip
    assert [line.replace("%0", "%y").replace("%1", "%e") for line in after(Canonicalize(), body)] == expected


@pytest.mark.parametrize(
    ("dtype", "numbers"), [("int8", (1, 3, 100, 127, -1, -3, -127, -128)), ("uint8", (1, 3, 127, 128, 200, 254, 255))]
)
def test_two_numbers_that_are_added(dtype: str, numbers: tuple[int, ...]) -> None:
    """What is negative, and none of it without wrapping, is subtracted."""
    for one, other, first, second in itertools.product(("add", "sub"), ("add", "sub"), numbers, numbers):
        body = f"""
        %p = arith.constant {{value = {first}}} : {dtype}
        %q = arith.constant {{value = {second}}} : {dtype}
        %a = arith.{one} %x, %p : {dtype}
        %y = arith.{other} %a, %q : {dtype}
        tile.print [%y] {{message = ""}}"""
        total = (first if one == "add" else -first) + (second if other == "add" else -second)
        least = -254 if dtype == "uint8" else -127
        total = total if dtype == "uint8" else wrap(total, dtype)
        kind, number = ("sub", -total) if least <= total < 0 else ("add", wrap(total, dtype))
        text = f"%y = arith.{kind} %x, %c{number} : {dtype}".replace("c-", "cm")
        lines = after(Canonicalize(), body, parameters=f"x: {dtype}")
        assert lines[:-1] == ([text] if number else []), (one, first, other, second)
        assert lines[-1] == ("tile.print [%y]" if number else "tile.print [%x]")


@pytest.mark.parametrize(("dtype", "number"), [("int32", 0), ("uint8", 3)])
def test_sums_that_have_their_form(dtype: str, number: int) -> None:
    """A scalar and a tile of zeros are a tile; in an unsigned type there is no negative number to subtract."""
    type = f"tensor<4x{dtype}>"
    body = f"""
    %w = arith.constant {{value = {number}}} : {type}
    %y = arith.add %x, %w : {type}
    tile.print [%y] {{message = ""}}"""
    lines = after(Canonicalize(), body, parameters=f"x: {dtype}")
    assert lines[0] == f"%y = arith.add %x, %c{number} : {type}"


TRUE, FALSE = ("%t = arith.constant {value = true} : bool\n", "%n = arith.constant {value = false} : bool\n")
LESS = '%c = arith.cmp %s, %bx {predicate = "lt"} : bool\n'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (TRUE + '%y = arith.cmp %b, %t {predicate = "eq"} : bool', []),
        (TRUE + '%y = arith.cmp %b, %t {predicate = "ne"} : bool', ["%y = arith.not %b : bool"]),
        (FALSE + '%y = arith.cmp %b, %n {predicate = "eq"} : bool', ["%y = arith.not %b : bool"]),
        (FALSE + '%y = arith.cmp %b, %n {predicate = "ne"} : bool', []),
        (TRUE + LESS + "%y = arith.select %b, %t, %c : bool", [LESS.strip(), "%y = arith.or %b, %c : bool"]),
        (FALSE + LESS + "%y = arith.select %b, %c, %n : bool", [LESS.strip(), "%y = arith.and %b, %c : bool"]),
        (TRUE + FALSE + "%y = arith.select %b, %n, %t : bool", ["%y = arith.not %b : bool"]),
        (
            TRUE + LESS + "%y = arith.select %b, %c, %t : bool",
            [LESS.strip(), "%y = arith.select %b, %c, %ctrue : bool"],
        ),
    ],
)
def test_booleans_get_one_form(body: str, expected: list[str]) -> None:
    used = "%y" if expected else "%b"
    lines = result(body, 'tile.assert %y {message = "used"}')
    stored = f'tile.assert {used} {{message = "used"}}'
    assert [line.replace("%0", "%y") for line in lines if line != stored] == expected


@pytest.mark.parametrize(
    ("there", "lossless"),
    [
        ("%l to int32", None), ("%s to int64", True), ("%s to int16", False), ("%s to uint32", True),
        ("%s to uint16", False), ("%f to int64", False),
        ("%s to float64", False), ("%s to float32", False), ("%f to float64", True), ("%f to float16", False),
        ("%b to int8", True), ("%b to float32", True), ("%b to uint8", True),
    ],
)  # fmt: skip
def test_a_cast_there_and_back_is_dropped_where_nothing_is_lost(there: str, lossless: bool | None) -> None:
    value, dtype = there.split(" to ")
    back = {"%l": "int64", "%s": "int32", "%f": "float32", "%b": "bool"}[value]
    lines = after(
        Canonicalize(),
        f'%a = arith.cast {value} : {dtype}\n%y = arith.cast %a : {back}\ntile.print [%y] {{message = ""}}',
    )
    assert (len(lines) == 1) is bool(lossless)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("%s int64 uint64", "uint64"), ("%s uint32 int8", "int8"), ("%l int32 uint32", "uint32"),
        ("%s int64 float32", "float32"), ("%b int32 int64", "int64"), ("%s uint32 int64", ""), ("%l int32 int64", ""),
        ("%s uint32 float32", ""), ("%s int16 bool", ""), ("%s bool int64", ""), ("%f int32 int64", ""),
        ("%s float64 int64", ""), ("%f int32 int8", ""), ("%f int32 uint32", ""), ("%b float32 int32", ""),
        ("%b int8 float32", "float32"), ("%l int32 bool", ""), ("%l int32 float32", ""),
    ],
)  # fmt: skip
def test_chains_of_casts_get_one_form(chain: str, expected: str) -> None:
    # Triton takes a comparison of two such values for a known one late, and then asserts in the branch that is dead.
    value, over, to = chain.split()
    casts = f"%a = arith.cast {value} : {over}\n%y = arith.cast %a : {to}"
    *lines, _ = after(Canonicalize(), f'{casts}\ntile.print [%y] {{message = ""}}')
    assert lines == ([f"%y = arith.cast {value} : {expected}"] if expected else casts.splitlines())


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("uint32 int32 int64", ""),
        ("uint8 uint16 int64", "int64"),
        ("int8 uint16 int32", ""),
        ("uint8 int16 int32", "int32"),
    ],
)
def test_casts_over_a_type_that_holds_all_values(chain: str, expected: str) -> None:
    source, over, to = chain.split()
    casts = f"%a = arith.cast %x : {over}\n%y = arith.cast %a : {to}"
    body = f'{casts}\ntile.print [%y] {{message = ""}}'
    *lines, _ = after(Canonicalize(), body, parameters=f"x: {source}")
    assert lines == ([f"%y = arith.cast %x : {expected}"] if expected else casts.splitlines())


def test_shapes_are_changed_once() -> None:
    filecheck(
        after(
            Canonicalize(),
            """
            %i = tensor.iota {axis = 0} : tensor<8x1xint32>
            %j = tensor.iota {axis = 1} : tensor<1x4xint32>
            %p = arith.add %i, %j : tensor<8x4xint32>
            %w = tensor.reshape %p : tensor<8x4x1xint32>
            %t = tensor.transpose %w {permutation = (1, 2, 0)} : tensor<4x1x8xint32>
            %u = tensor.transpose %t {permutation = (1, 2, 0)} : tensor<1x8x4xint32>
            %r = tensor.broadcast %i : tensor<8x4xint32>
            %x = tensor.reshape %i : tensor<8xint32>
            %q = tensor.transpose %i {permutation = (1, 0)} : tensor<1x8xint32>
            %one = tensor.iota {axis = 0} : tensor<1x1xint32>
            %z = arith.add %one, %q : tensor<1x8xint32>
            tile.print [%u] {message = ""}
            tile.print [%x] {message = ""}
            tile.print [%z] {message = ""}
            """,
        ),
        """
        %i = tensor.iota {axis = 0} : tensor<8x1xint32>
        %j = tensor.iota {axis = 1} : tensor<1x4xint32>
        %p = arith.add %i, %j : tensor<8x4xint32>
        %w = tensor.reshape %p : tensor<8x4x1xint32>
        %u = tensor.transpose %w {permutation = (2, 0, 1)} : tensor<1x8x4xint32>
        %i_1 = tensor.iota {axis = 0} : tensor<8xint32>
        %i_2 = tensor.iota {axis = 1} : tensor<1x8xint32>
        tile.print [%u]
        tile.print [%i_1]
        tile.print [%i_2]
        """,
    )


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("%off", ["tile.store %c0, %N[%bx]"]),
        ("%off other=%c7", ["tile.store %c7, %N[%bx]"]),
        ("%b", ["%x = tile.load %N[%s] mask=%b : int32", "tile.store %x, %N[%bx]"]),
    ],
)
def test_loads_of_nothing_are_what_stands_for_it(mask: str, expected: list[str]) -> None:
    load = f"%off = arith.constant {{value = false}} : bool\n%x = tile.load %N[%s] mask={mask} : int32"
    lines = after(Canonicalize(), f"{load}\ntile.store %x, %N[%bx]")
    assert lines[-len(expected) :] == expected


def test_masks_that_always_hold_are_dropped_but_where_they_have_the_shape() -> None:
    body = """
    %on = arith.constant {value = true} : bool
    %wide = arith.constant {value = true} : tensor<4xbool>
    %x = tile.load %N[%s] mask=%on other=%c7 : int32
    %y = tile.load %N[%s] mask=%wide : tensor<4xint32>
    tile.store %x, %N[%bx] mask=%on
    tile.store %y, %N[%bx] mask=%wide"""
    filecheck(
        after(Canonicalize(), body),
        """
        %x = tile.load %N[%s] other=%c7 : int32
        %y = tile.load %N[%s] mask=%ctrue : tensor<4xint32>
        tile.store %x, %N[%bx]
        tile.store %y, %N[%bx]
        """,
    )


def test_branches_that_do_nothing_are_turned_around() -> None:
    some, nothing = "tile.store %s, %N[%bx]\nscf.yield", "scf.yield"
    for condition, then, orelse, shown in [
        ("%b", nothing, some, "scf.if %0 {"), ("%d", some, some, "scf.if %b {"), ("%d", some, nothing, "scf.if %d {"),
    ]:  # fmt: skip
        lines = after(Canonicalize(), f"%d = arith.not %b : bool\nscf.if {condition} {{ {then} }} {{ {orelse} }}")
        assert shown in lines, lines
        assert lines[lines.index(shown) + 1] == "tile.store %s, %N[%bx]"
        assert ("%0 = arith.not %b : bool" in lines) is ("%0" in shown)


def test_comparisons_of_floats_are_not_inverted_but_for_equality() -> None:
    body = """
    %c = arith.cmp %f, %f {predicate = "lt"} : bool
    %d = arith.not %c : bool
    %e = arith.cmp %f, %f {predicate = "eq"} : bool
    %g = arith.not %e : bool
    %h = arith.and %d, %g : bool
    %y = arith.select %h, %s, %bx : int32"""
    filecheck(
        result(body)[:4],
        """
        %c = arith.cmp %f, %f {predicate = "lt"} : bool
        %d = arith.not %c : bool
        %g = arith.cmp %f, %f {predicate = "ne"} : bool
        %h = arith.and %d, %g : bool
        """,
    )


def test_adding_zero_to_a_float_stays_because_of_minus_zero() -> None:
    zero = "%zero = arith.constant {value = 0.0} : float32"
    lines = after(Canonicalize(), f"{zero}\n%y = arith.add %f, %zero : float32\ntile.store %y, %A[%bx, %bx]")
    assert lines[0] == "%y = arith.add %f, %c0p0 : float32"


def test_broadcasts_that_an_operation_does_itself_go() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<64x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x96xint32>
    %x = tile.load %A[%i, %j] : tensor<64x96xfloat32>
    %half = arith.constant {value = 0.5} : tensor<64x96xfloat32>
    %r = tensor.broadcast %f : tensor<64x96xfloat32>
    %a = arith.mul %x, %half : tensor<64x96xfloat32>
    %y = arith.add %a, %r : tensor<64x96xfloat32>
    tile.store %y, %B[%i, %j]"""
    lines = after(Canonicalize(), body)
    filecheck(
        lines[3:5],
        """
        %a = arith.mul %x, %c0p5 : tensor<64x96xfloat32>
        %y = arith.add %a, %f : tensor<64x96xfloat32>
        """,
    )


def test_shapes_of_iota_and_transposes_are_combined() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<64xint32>
    %r = tensor.reshape %i : tensor<64x1xint32>
    %t = tensor.transpose %r {permutation = (1, 0)} : tensor<1x64xint32>
    %y = tensor.reshape %t : tensor<64xint32>
    tile.store %y, %N[%y]
    tile.store %t, %N[%t]"""
    filecheck(
        after(Canonicalize(), body),
        """
        %i = tensor.iota {axis = 1} : tensor<1x64xint32>
        %i_1 = tensor.iota {axis = 0} : tensor<64xint32>
        tile.store %i_1, %N[%i_1]
        tile.store %i, %N[%i]
        """,
    )


def test_decided_control_flow_is_inlined() -> None:
    body = """
    %yes = arith.constant {value = true} : bool
    %r = scf.if %yes : int32 { scf.yield [%s] } { scf.yield [%bx] }
    %t = scf.for %c0, %c1, %c1[%r] : int32 (%i: int32, %x: int32) {
      %n = arith.add %x, %bx : int32
      tile.store %n, %N[%i]
      scf.yield [%n]
    }
    %u = scf.for %c5, %c2, %c1[%t] : int32 (%i: int32, %x: int32) {
      tile.store %x, %N[%i]
      scf.yield [%i]
    }
    tile.store %u, %N[%bx]"""
    filecheck(
        after(Canonicalize(), body),
        """
        %n = arith.add %s, %bx : int32
        tile.store %n, %N[%c0]
        tile.store %n, %N[%bx]
        """,
    )


def test_if_without_work_becomes_a_select_and_unused_results_go() -> None:
    body = """
    %r, %q = scf.if %b : int32, int32 { scf.yield [%s, %bx] } { scf.yield [%bx, %s] }
    tile.store %r, %N[%bx]"""
    filecheck(
        after(Canonicalize(), body),
        """
        %r = arith.select %b, %s, %bx : int32
        tile.store %r, %N[%bx]
        """,
    )


def test_branches_keep_the_results_that_they_compute() -> None:
    body = """
    %r, %q, %u = scf.if %b : int32, int32, int32 {
      tile.store %s, %N[%bx]
      scf.yield [%s, %bx, %c3]
    } {
      %z = tile.load %N[%s] : int32
      scf.yield [%z, %bx, %c4]
    }
    tile.store %r, %N[%q]"""
    filecheck(
        after(Canonicalize(), body),
        """
        %r = scf.if %b : int32 {
        tile.store %s, %N[%bx]
        scf.yield [%s]
        } {
        %z = tile.load %N[%s] : int32
        scf.yield [%z]
        }
        tile.store %r, %N[%bx]
        """,
    )


@pytest.mark.parametrize(
    ("dtype", "through", "lossless"),
    [
        ("int32", "int32", True), ("uint32", "int64", True), ("uint32", "int32", True), ("uint8", "int16", True),
        ("uint8", "int8", True), ("int8", "uint8", True), ("int16", "int8", False), ("uint32", "uint16", False),
        ("uint16", "uint32", True), ("int16", "int16", True), ("bfloat16", "float16", False),
        ("float16", "bfloat16", False), ("float16", "float32", True),
    ],
)  # fmt: skip
def test_a_type_that_holds_all_bits(dtype: str, through: str, lossless: bool) -> None:
    value = "%x" if dtype != "int32" else "%s"
    body = f"%x = arith.cast %s : {dtype}\n%a = arith.cast {value} : {through}\n%y = arith.cast %a : {dtype}\n"
    lines = after(Canonicalize(), body + 'tile.print [%y] {message = ""}')
    assert any("%a = " in line for line in lines) is not lossless


def test_carried_values_that_do_not_change_or_are_not_used_go() -> None:
    body = """
    %p, %q, %r = scf.for %c0, %s, %c1[%c5, %bx, %c7] : int32, int32, int32
        (%i: int32, %x: int32, %y: int32, %z: int32) {
      %n = arith.add %y, %x : int32
      %z2 = arith.add %z, %i : int32
      scf.yield [%x, %n, %z2]
    }
    tile.store %p, %N[%q]"""
    filecheck(
        after(Canonicalize(), body),
        """
        %q = scf.for %c0, %s, %c1[%bx] : int32 (%i: int32, %y: int32) {
        %n = arith.add %y, %c5 : int32
        scf.yield [%n]
        }
        tile.store %c5, %N[%q]
        """,
    )


def test_while_keeps_what_it_needs() -> None:
    body = """
    %p, %q = scf.while [%bx, %s] : int32, int32 (%a: int32, %n: int32) {
      %more = arith.cmp %a, %n {predicate = "lt"} : bool
      scf.condition %more[%a, %n]
    } (%c: int32, %k: int32) {
      %d = arith.add %c, %k : int32
      scf.yield [%d, %k]
    }
    tile.store %p, %N[%bx]"""
    filecheck(
        after(Canonicalize(), body),
        """
        %p = scf.while [%bx] : int32 (%a: int32) {
        %more = arith.cmp %a, %s {predicate = "lt"} : bool
        scf.condition %more[%a]
        } (%c: int32) {
        %d = arith.add %c, %s : int32
        scf.yield [%d]
        }
        tile.store %p, %N[%bx]
        """,
    )


UNREAD = pytest.mark.parametrize("read", ["", "%dead = arith.mul {}, %c7 : int32"])  # by what is unread itself


@UNREAD
def test_what_a_while_loop_computes_for_nothing_goes(read: str) -> None:
    body = """
    %p, %q = scf.while [%bx] : int32, int32 (%a: int32) {
      %more = arith.cmp %a, %s {predicate = "lt"} : bool
      %unread = arith.mul %a, %c3 : int32
      scf.condition %more[%a, %unread]
    } (%c: int32, %k: int32) {
      %d = arith.add %c, %c1 : int32
      scf.yield [%d]
    }
    tile.store %p, %N[%bx]\n"""
    found = after(Canonicalize(), body + read.format("%q"))
    assert not any("arith.mul" in line for line in found), found
    assert "%p = scf.while [%bx] : int32 (%a: int32) {" in found


@UNREAD
@pytest.mark.parametrize("kind", ["if", "for"])
def test_what_branches_and_loops_compute_for_nothing_goes(kind: str, read: str) -> None:
    text = """scf.if %b : int32, int32 {
      %x = arith.mul %s, %c3 : int32
      %z = tile.load %N[%s] : int32
      scf.yield [%x, %z]
    } {
      %y = arith.mul %s, %c5 : int32
      scf.yield [%y, %s]
    }"""
    if kind == "for":
        text = """scf.for %c0, %s, %c1[%bx, %s] : int32, int32 (%k: int32, %u: int32, %v: int32) {
      %x = arith.mul %u, %c3 : int32
      %y = arith.add %v, %k : int32
      scf.yield [%x, %y]
    }"""
    found = after(Canonicalize(), f"%p, %q = {text}\ntile.store %q, %N[%bx]\n{read.format('%p')}")
    assert not any("arith.mul" in line for line in found) and any(line.startswith("%q = scf.") for line in found)


def test_what_a_while_loop_hands_on_from_outside_is_used_as_it_is() -> None:
    body = """
    %t = arith.mul %s, %s : int32
    %p, %q = scf.while [%bx] : int32, int32 (%a: int32) {
      %more = arith.cmp %a, %s {predicate = "lt"} : bool
      scf.condition %more[%a, %t]
    } (%c: int32, %k: int32) {
      %d = arith.add %c, %k : int32
      scf.yield [%d]
    }
    tile.store %p, %N[%q]"""
    filecheck(
        after(Canonicalize(), body)[-3:],
        """
        scf.yield [%d]
        }
        tile.store %p, %N[%t]
        """,
    )


def test_a_while_loop_that_never_runs_goes() -> None:
    """What comes before its condition happens once. Triton does not compile `while False:`."""
    body = """
    %p, %q = scf.while [%bx, %s] : int32, int32 (%a: int32, %n: int32) {
      %d = arith.add %a, %n : int32
      tile.store %d, %N[%n]
      %never = arith.cmp %a, %a {predicate = "lt"} : bool
      scf.condition %never[%d, %n]
    } (%c: int32, %k: int32) {
      scf.yield [%k, %c]
    }
    tile.store %p, %N[%q]"""
    filecheck(
        after(Canonicalize(), body),
        """
        %d = arith.add %bx, %s : int32
        tile.store %d, %N[%s]
        tile.store %d, %N[%s]
        """,
    )


def differences_left(more: str = "%a9") -> int:
    """Of two equal sums of ten terms, %a9 and %b9."""
    sums = [
        f"%{name}{n} = arith.add {f'%{name}{n - 1}' if n else '%bx'}, {'%bx' if n % 2 == 0 and n else '%s'} : int32"
        for name in "ab"
        for n in range(10)
    ]
    made = program(
        "\n".join(
            [*sums, "%q = arith.sub %a9, %c7 : int32", f"%d = arith.sub {more}, %b9 : int32", "tile.store %d, %N[%bx]"]
        )
    )
    apply_patterns(made.root, Patterns([cancel_terms]))
    return sum("arith.sub" in line for line in body_lines(made))


def test_terms_cancel_if_few_values_are_read() -> None:
    """Of 32 values, and of no more, it is known of what they are the sums."""
    assert (differences_left("%a9"), differences_left("%q")) == (1, 2)
    assert "arith.sub" in " ".join(result("%d = arith.sub %s, %bx : int32\n%y = arith.sub %s, %d : int32"))


STORE_SUM = "%y = arith.add %k, %c3 : int32\n" + STORE
BRANCH = "scf.if %b {\n" + STORE_SUM + "\nscf.yield\n} {\nscf.yield\n}\n"


@pytest.mark.parametrize(
    "body",
    [
        f"scf.for %c5, %c6, %c1 (%k: int32) {{ {BRANCH} scf.yield }}",
        f"%r = scf.for %c0, %s, %c1[%c5] : int32 (%i: int32, %k: int32) {{ {BRANCH} scf.yield [%k] }}",
        f"%k = scf.for %c0, %s, %c1[%c5] : int32 (%i: int32, %x: int32) {{ scf.yield [%x] }} {BRANCH}",
        f"%k = scf.if %b : int32 {{ scf.yield [%c5] }} {{ scf.yield [%c5] }} {BRANCH}",
        f"""%r = scf.while [%c5] : int32 (%k: int32) {{
              {BRANCH} %more = tile.load %N[%k] : int32
              %c = arith.cmp %more, %s {{predicate = "lt"}} : bool scf.condition %c[%k]
            }} (%x: int32) {{ scf.yield [%x] }}""",
        f"""%r = scf.while [%c5] : int32 (%k: int32) {{
              {BRANCH} %more = tile.load %N[%k] : int32
              %c = arith.cmp %more, %s {{predicate = "lt"}} : bool scf.condition %c[%k]
            }} (%x: int32) {{ scf.yield [%c5] }}""",
        f"""%r = scf.while [%s] : int32 (%x: int32) {{
              %c = arith.cmp %x, %bx {{predicate = "lt"}} : bool scf.condition %c[%c5]
            }} (%k: int32) {{ {BRANCH} %z = tile.load %N[%k] : int32 scf.yield [%z] }}""",
        f"""%k = scf.while [%s] : int32 (%x: int32) {{
              %c = arith.cmp %x, %bx {{predicate = "lt"}} : bool scf.condition %c[%c5]
            }} (%y: int32) {{ %z = tile.load %N[%y] : int32 scf.yield [%z] }} {BRANCH}""",
    ],
)
def test_what_uses_a_known_value_in_a_branch_is_computed(body: str) -> None:
    """Whoever gave the value: what is used by operations inside of others is visited again, too."""
    stores = [line for line in after(Canonicalize(), body) if line.startswith("tile.store")]
    assert stores == ["tile.store %c8, %N[%bx]"]


def test_effects_stay() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<64xint32>
    scf.for %c0, %s, %c1 (%k: int32) {
      tile.store %i, %N[%i]
      scf.yield
    }"""
    made = program(body)
    before = body_lines(made)
    Canonicalize().run(made)
    verify(made.root)
    assert body_lines(made) == before


@settings(max_examples=60)
@given(programs(), st.integers(0, 99))
def test_meaning_stays(func, seed) -> None:  # type: ignore[no-untyped-def]
    check_pass(Canonicalize(), func, inputs_for(func, seed))


def test_floats_are_not_multiplied_in_another_order() -> None:
    body = """
    %x = arith.mul %f, %c0.1 : float32
    %y = arith.mul %x, %c0.3 : float32
    %z = arith.add %y, %c0.1 : float32
    %w = arith.add %z, %c0.3 : float32
    tile.store %w, %A[%bx, %bx]"""
    filecheck(
        after(Canonicalize(), body),
        """
        %x = arith.mul %f, %c0p1 : float32
        %y = arith.mul %x, %c0p3 : float32
        %z = arith.add %y, %c0p1 : float32
        %w = arith.add %z, %c0p3 : float32
        tile.store %w, %A[%bx, %bx]
        """,
    )


def test_dimensions_that_come_and_go_around_arithmetic() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<64xint32>
    %x = tile.load %N[%i] : tensor<64xint32>
    %y = tile.load %N[%x] : tensor<64xint32>
    %p = tensor.reshape %x : tensor<64x1xint32>
    %q = tensor.reshape %y : tensor<64x1xint32>
    %s = arith.add %p, %q : tensor<64x1xint32>
    %r = tensor.reshape %s : tensor<64xint32>
    tile.store %r, %N[%i]"""
    lines = after(Canonicalize(), body)
    assert lines[-2:] == ["%r = arith.add %x, %y : tensor<64xint32>", "tile.store %r, %N[%i]"]
    square = body.replace("%r = tensor.reshape %s : tensor<64x", "%r = tensor.reshape %s : tensor<8x8x")
    lines = after(Canonicalize(), square.replace("tile.store %r, %N[%i]", 'tile.print [%r] {message = ""}'))
    assert sum("tensor.reshape" in line for line in lines) == 3


@pytest.mark.parametrize("kind", ["floordiv", "truncdiv"])
@pytest.mark.parametrize(
    ("first", "second", "combined"),
    [("%c3", "%c5", "%c15"), ("%c-3", "%c5", ""), ("%c3", "%c-5", ""), ("%c-3", "%c-5", ""), ("%c65536", "%c65536", ""),
     ("%s", "%c5", ""), ("%c3", "%s", ""), ("%c32767", "%c65538", "%c2147483646"), ("%c1", "%c7", "%c7")],
)  # fmt: skip
def test_divisions_by_positive_numbers_whose_product_fits_are_one(
    kind: str, first: str, second: str, combined: str
) -> None:
    body = f"%a = arith.{kind} %bx, {first} : int32\n%y = arith.{kind} %a, {second} : int32\ntile.print [%y]"
    lines = after(Canonicalize(), body)
    assert (lines[0] == f"%y = arith.{kind} %bx, {combined} : int32") is bool(combined), lines


@pytest.mark.parametrize(
    ("more", "goes"),
    [("", True), ("tile.print [%sum]", False), ("tile.print [%sum]\ntile.print [%sum]", False)],
)
def test_a_tile_that_is_reshaped_there_and_back_for_one_use(more: str, goes: bool) -> None:
    body = f"""%i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
    %x = tile.load %A[%i, %c0] {{guarded = true}} : tensor<16x1xfloat32>
    %y = tile.load %B[%i, %c0] {{guarded = true}} : tensor<16x1xfloat32>
    %p = tensor.reshape %x : tensor<16xfloat32>
    %q = tensor.reshape %y : tensor<16xfloat32>
    %sum = arith.add %p, %q : tensor<16xfloat32>
    %back = tensor.reshape %sum : tensor<16x1xfloat32>
    {more}
    tile.print [%back]"""
    assert ("%back = arith.add %x, %y : tensor<16x1xfloat32>" in after(Canonicalize(), body)) is goes


@pytest.mark.parametrize(
    ("predicate", "number", "made"),
    [("eq", "true", "%b"), ("ne", "false", "%b"), ("eq", "false", "not"), ("ne", "true", "not"), ("lt", "true", ""),
     ("ge", "false", ""), ("gt", "false", "")],
)  # fmt: skip
def test_comparisons_of_a_condition_with_what_it_may_be(predicate: str, number: str, made: str) -> None:
    body = f"""%t = arith.constant {{value = {number}}} : bool
    %y = arith.cmp %b, %t {{predicate = "{predicate}"}} : bool
    tile.print [%y]"""
    *lines, last = after(Canonicalize(), body)
    if made == "%b":
        assert (lines, last) == ([], "tile.print [%b]")
    else:
        wanted = "arith.not %b : bool" if made else f'arith.cmp %b, %c{number} {{predicate = "{predicate}"}} : bool'
        assert [line.partition(" = ")[2] for line in lines] == [wanted]


@pytest.mark.parametrize(
    ("turns", "stages", "products", "stays"),
    [(1, 0, 2, False), (1, 2, 2, True), (1, 2, 1, False), (1, 1, 3, True), (0, 2, 2, False), (2, 0, 1, True)],
)
def test_loops_that_run_once_stay_for_pipelines_of_several_products(
    turns: int, stages: int, products: int, stays: bool
) -> None:
    dots = "\n".join(
        f"%d{at + 1} = tensor.dot %x, %x, %d{at} : tensor<16x16xfloat32>" for at in range(products)
    ).replace("%d0 :", "%acc :")
    body = f"""%i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x16xint32>
    %x = tile.load %A[%i, %j] {{guarded = true}} : tensor<16x16xfloat32>
    %r = scf.for %c0, %c{turns}, %c1[%x] {{num_stages = {stages}}} : tensor<16x16xfloat32>
        (%k: int32, %acc: tensor<16x16xfloat32>) {{
      {dots}
      scf.yield [%d{products}]
    }}
    tile.store %r, %B[%i, %j] {{guarded = true}}"""
    lines = after(Canonicalize(), body)
    assert any("scf.for" in line for line in lines) is stays
    assert sum("tensor.dot" in line for line in lines) == (products if turns else 0)
