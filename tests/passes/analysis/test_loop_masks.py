"""In which iterations a condition holds for all elements, against all of them; and which value of it is wanted."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest

from tests.passes.ir_cases import program
from tiledsl.analysis.linear import LinearForm
from tiledsl.analysis.loop_masks import _VAGUE, Condition, _is_vague, conditions_of
from tiledsl.analysis.ranges import Interval, Ranges
from tiledsl.dialects import scf

PREDICATES = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
MASK = "tensor<4x1xbool>"
LOOP = """
%i = tensor.iota {{axis = 0}} : tensor<4x1xint32>
scf.for %c0, %c12, %c1 (%k: int32) {{
  %first = arith.mul %k, %c{factor} : int32
  %moved = arith.{moves} %first, %i : tensor<4x1xint32>
  %place = arith.add %moved, %c{offset} : tensor<4x1xint32>
  %ok = arith.cmp {operands} {{predicate = "{predicate}"}} : {mask}
  {use}
  scf.yield
}}"""
STORE = "tile.store %f, %B[%i, %k] mask=%ok"


def conditions(use: str = STORE, **parts: object) -> list[Condition]:
    given = {
        "factor": 4,
        "moves": "add",
        "offset": 0,
        "operands": "%place, %c20",
        "predicate": "lt",
        "mask": MASK,
        **parts,
    }
    root = program(LOOP.format(use=use, **given)).root
    loop = next(op for op in root.walk() if isinstance(op, scf.ForOp))
    return list(conditions_of(loop, Ranges(root)))


def least(form: LinearForm, k: int) -> int:
    """The least of a sum of the loop's index alone, in one iteration."""
    total = form.constant
    for factors, coefficient in form.terms.items():
        assert [each.name for each in factors] in ([], ["k"])
        total += coefficient * k if factors else 0
    return total


@pytest.mark.parametrize("moves", ["add", "sub"])
@pytest.mark.parametrize("predicate", PREDICATES)
def test_where_a_condition_holds(predicate: str, moves: str) -> None:
    steps = np.arange(4)
    for factor, offset, swapped in itertools.product((4, -4, 3, 1), (0, 5, -2), (False, True)):
        operands = "%c20, %place" if swapped else "%place, %c20"
        (found,) = conditions(factor=factor, moves=moves, offset=offset, operands=operands, predicate=predicate)
        assert found.wanted and not found.guards
        for k in range(12):
            place = k * factor + (steps if moves == "add" else -steps) + offset
            sides = (20, place) if swapped else (place, 20)
            holds = bool(np.all(PREDICATES[predicate](*sides)))
            assert (least(found.form, k) >= 0) == holds, (factor, offset, swapped, k)


def test_where_a_condition_fails() -> None:
    """It may be its failing that does the work: not (k * 4 + i < 20)."""
    (found,) = conditions(f"%no = arith.not %ok : {MASK}\ntile.store %f, %B[%i, %k] mask=%no")
    assert not found.wanted
    for k in range(12):
        assert (least(found.form, k) >= 0) == (k * 4 >= 20)


@pytest.mark.parametrize(
    ("use", "wanted"),
    [
        (STORE, True),
        (f"%no = arith.not %ok : {MASK}\ntile.store %f, %B[%i, %k] mask=%no", False),
        ("%w = tensor.broadcast %ok : tensor<4x8xbool>\n%j = tensor.iota {axis = 1} : tensor<1x8xint32>\n"
         "tile.store %f, %B[%i, %j] mask=%w", True),
        (f"%both = arith.and %ok, %b : {MASK}\ntile.store %f, %B[%i, %k] mask=%both", True),
        (f"%any = arith.or %ok, %b : {MASK}\ntile.store %f, %B[%i, %k] mask=%any", None),
        (f"%any = arith.or %ok, %b : {MASK}\n%no = arith.not %any : {MASK}\ntile.store %f, %B[%i, %k] mask=%no", False),
        (f"%both = arith.and %ok, %b : {MASK}\n%no = arith.not %both : {MASK}\n"
         "tile.store %f, %B[%i, %k] mask=%no", None),
        ("%n = arith.cast %ok : tensor<4x1xfloat32>\ntile.store %n, %B[%i, %k]", True),
        ("tile.print [%ok]", None),
    ],
)  # fmt: skip
def test_which_value_is_wanted(use: str, wanted: bool | None) -> None:
    assert [each.wanted for each in conditions(use)] == ([] if wanted is None else [wanted])


@pytest.mark.parametrize(
    ("sides", "wanted"),
    [
        ("%x, %zero", True), ("%zero, %x", False), ("%x, %f", None), ("%zero, %low", True), ("%low, %zero", False),
        ("%one, %zero", True), ("%zero, %one", False), ("%high, %one", False), ("%one, %high", True),
    ],
)  # fmt: skip
def test_which_side_of_a_select_is_no_filler(sides: str, wanted: bool | None) -> None:
    constants = {"zero": "0.0", "one": "1.0", "low": "-inf", "high": "inf"}
    use = "".join(f"%{name} = arith.constant {{value = {value}}} : float32\n" for name, value in constants.items())
    use += "%x = tile.load %A[%i, %k] : tensor<4x1xfloat32>\n"
    use += f"%y = arith.select %ok, {sides} : tensor<4x1xfloat32>\ntile.store %y, %B[%i, %k]"
    assert [each.wanted for each in conditions(use)] == ([] if wanted is None else [wanted])


def test_which_branch_most_iterations_take() -> None:
    less, more = "tile.store %f, %B[%c0, %k]", "tile.store %f, %B[%c0, %k]\ntile.store %f, %B[%c1, %k]"
    place = {"operands": "%first, %c20", "mask": "bool"}
    product = "%a = tensor.broadcast %f : tensor<16x16xfloat32> %p = tensor.dot %a, %a, %a : tensor<16x16xfloat32>"
    branches = [(less, more, True), (more, less, False), (more, product + less, False), (product + more, less, True)]
    for then, orelse, wanted in [*branches, (less, less, False), (product * 2, product + more, True)]:
        use = f"scf.if %ok {{ {then}\nscf.yield }} {{ {orelse}\nscf.yield }}"
        assert [each.wanted for each in conditions(use, **place)] == [wanted]


@pytest.mark.parametrize(
    "change", [{"predicate": "eq"}, {"predicate": "ne"}, {"operands": "%i, %c2"}, {"operands": "%place, %place"}]
)
def test_what_does_not_change_with_the_loop(change: dict[str, str]) -> None:
    assert conditions(**change) == []


# What exactly is claimed: sums by the names of their values, "" for the constant, and what guards them

LARGEST = 2**31 - 1
EXACT = """
%i = tensor.iota {{axis = 0}} : tensor<4x1xint32>
%row = tensor.iota {{axis = 1}} : tensor<1x4xint32>
%d2 = arith.mul %bx, %c2 : int32
%negative = arith.min %s, %c0 : int32
%positive = arith.max %s, %c0 : int32
scf.for {lower}, {upper}, %c1 (%k: int32) {{
  %x = tile.load %N[%k] : int32
  %u = tile.load %A[%i, %k] : tensor<4x1xfloat32>
  %far = arith.constant {{value = inf}} : float32
  %near = arith.cmp %u, %far {{predicate = "lt"}} : tensor<4x1xbool>
  tile.store %f, %B[%i, %k] mask=%near
  %k4 = arith.mul %k, %c4 : int32
  %place = arith.add %k4, %i : tensor<4x1xint32>
  {lines}
  %ok = arith.cmp {sides} {{predicate = "{predicate}"}} : {type}
  {use}
  scf.yield
}}"""
I32, COLUMN = "int32", "tensor<4x1xint32>"
NOT = f"%no = arith.not %ok : {MASK}\ntile.store %f, %B[%i, %k] mask=%no"


def shown(form: LinearForm) -> tuple[dict[str, int], int]:
    return {"*".join(each.name for each in factors): factor for factors, factor in form.terms.items()}, form.slack


def claims(lines: str, sides: str, lower: str = "%c0", upper: str = "%c12", **parts: str) -> list[Condition]:
    """What is claimed of %ok."""
    given = {"predicate": "lt", "use": STORE, "type": COLUMN.replace("int32", "bool"), **parts}
    made = program(EXACT.format(lower=lower, upper=upper, lines=lines, sides=sides, **given)).root
    loop = next(op for op in made.walk() if isinstance(op, scf.ForOp))
    return [each for each in conditions_of(loop, Ranges(made)) if each.comparison.out.name == "ok"]


@pytest.mark.parametrize(
    ("lines", "sides", "form", "guards"),
    [
        ("", "%place, %s", ({"s": 1, "k": -4, "": -4}, 3), []),
        ("", "%s, %place", ({"s": -1, "k": 4, "": -1}, 3), []),
        # The other side is a number, or a size, of which a sum is a position
        (f"%y = arith.add %m, %c5 : {I32}", "%place, %y", ({"m": 1, "k": -4, "": 1}, 3), []),
        (f"%y = arith.add %i, %m : {COLUMN}", "%y, %k4", ({"m": -1, "k": 4, "": -4}, 3), []),
        (f"%y = arith.mul %d2, %k : {I32}", "%place, %s", ({"s": 1, "k": -4, "": -4}, 3), []),
        # Sums with numbers from outside may wrap, on the side where it matters
        (f"%y = arith.add %k4, %s : {I32}", "%y, %i", ({"k": -4, "s": -1, "": -1}, 3), []),
        (f"%t = arith.add %k4, %s : {I32}\n%y = arith.sub %t, %c1 : {I32}", "%y, %i",
         ({"k": -4, "s": -1}, 3), [({"s": 1, "": LARGEST}, 0)]),
        (f"%t = arith.add %k, %s : {I32}\n%y = arith.sub %t, %c3 : {I32}", "%y, %i",
         ({"k": -1, "s": -1, "": 2}, 3), [({"s": 1, "": LARGEST - 2}, 0)]),
        (f"%y = arith.sub %s, %place : {COLUMN}", "%y, %c20",
         ({"k": 4, "s": -1, "": 19}, 3), [({"s": 1, "k": -4, "": LARGEST + 1 - 3}, 3)]),
        (f"%y = arith.add %k4, %s : {I32}", "%i, %y",
         ({"k": 4, "s": 1, "": -4}, 3), [({"k": -4, "s": -1, "": LARGEST}, 0)]),
        (f"%y = arith.sub %s, %k4 : {I32}", "%i, %y", ({"k": -4, "s": 1, "": -4}, 3), []),
        (f"%t = arith.sub %s, %k4 : {I32}\n%y = arith.add %t, %c1 : {I32}", "%i, %y",
         ({"k": -4, "s": 1, "": -3}, 3), [({"s": -1, "": LARGEST - 1}, 0)]),
        # What is known in numbers only: a remainder, what was loaded, a range as large as if nothing were known
        (f"%r = arith.floormod %x, %c7 : {I32}\n%t = arith.max %r, %c2 : {I32}\n%y = arith.add %place, %t : {COLUMN}",
         "%y, %c40", ({"k": -4, "": 30}, 7), []),
        # Products with more than a stride are hashes, unless they are known not to wrap
        (f"%y = arith.mul %k, %c{2**17} : {I32}", "%y, %i", ({"k": -(2**17), "": -1}, 3), []),
        (f"%y = arith.mul %i, %c{-(2**17)} : {COLUMN}", "%y, %k", ({"k": 1, "": -1}, 3 * 2**17), []),
    ],
)  # fmt: skip
def test_what_is_claimed(lines: str, sides: str, form: object, guards: list[object]) -> None:
    (found,) = claims(lines, sides)
    assert found.wanted and shown(found.form) == form
    assert [shown(each) for each in found.guards] == guards


def test_a_condition_that_is_wanted_to_fail() -> None:
    """i + 4 k - 20 >= 0, and s - 4 k + 4 > 0 with a guard for s + 4: where the comparison does not hold."""
    (found,) = claims("", "%place, %c20", use=NOT)
    assert not found.wanted and shown(found.form) == ({"k": 4, "": -20}, 3) and not found.guards
    (found,) = claims(f"%y = arith.add %s, %c4 : {I32}", "%place, %y", use=NOT, predicate="ge")
    assert not found.wanted and shown(found.form) == ({"k": -4, "s": 1}, 3)
    assert [shown(each) for each in found.guards] == [({"s": -1, "": LARGEST - 4}, 0)]


def test_guards_hold_from_the_first_iteration_on() -> None:
    lines = f"%t = arith.add %k4, %s : {I32}\n%y = arith.sub %t, %c100 : {I32}"
    for lower, start in (("%c3", {"s": 1, "": LARGEST - 87}), ("%bx", {"s": 1, "bx": 4, "": LARGEST - 99})):
        (found,) = claims(lines, "%y, %i", lower=lower)
        assert [shown(each) for each in found.guards] == [(start, 0)]


def test_how_large_a_factor_is_no_stride() -> None:
    """The products may wrap: the loop's end is not known."""
    for factor, count in ((2**16, 1), (-(2**16), 1), (2**16 + 1, 0), (-(2**16) - 1, 0)):
        assert len(claims(f"%y = arith.mul %k, %c{factor} : {I32}", "%y, %i", upper="%s")) == count


def test_how_much_may_be_slack() -> None:
    """In a sum that may wrap, since the loop's end is not known."""
    for largest, count in ((2**30 - 1, 1), (2**30, 0)):
        lines = f"%t = arith.and %x, %c{largest} : {I32}\n%y = arith.add %k4, %t : {I32}"
        assert len(claims(lines, "%i, %y", upper="%s")) == count


def test_which_numbers_are_far_from_the_limits() -> None:
    """A sum of such numbers that wraps is none of positions."""
    for sum, count in ((f"arith.add %k, %c{LARGEST - 5}", 0), (f"arith.sub %c{-LARGEST}, %k", 0)):
        assert len(claims(f"%y = {sum} : {I32}", "%i, %y")) == count
    for largest, count in ((2**30 - 2, 0), (2**30 - 1, 1)):
        assert len(claims(f"%y = arith.mul %k, %c3 : {I32}", "%i, %y", upper=f"%c{largest + 2}")) == count


@pytest.mark.parametrize(
    ("lines", "sides"),
    [
        ("", "%x, %place"),
        ("", "%place, %x"),
        (f"%y = arith.add %place, %x : {COLUMN}", "%y, %c20"),
        (f"%y = arith.add %x, %place : {COLUMN}", "%y, %c20"),
        (f"%t = arith.mul %x, %c2 : {I32}\n%y = arith.sub %place, %t : {COLUMN}", "%y, %c20"),
        (f"%y = arith.mul %place, %s : {COLUMN}", "%y, %c20"),
        (f"%y = arith.add %place, %c{LARGEST - 3} : {COLUMN}", "%y, %i"),  # wraps from the first iteration on
        ("%y = arith.cast %place : tensor<4x1xint8>\n%z = arith.cast %y : tensor<4x1xint32>", "%z, %c20"),
    ],
)  # fmt: skip
def test_what_nothing_is_known_of(lines: str, sides: str) -> None:
    assert claims(lines, sides) == []


def test_wider_indices() -> None:
    """A sum that may wrap in int32 is another one in int64."""
    wide = "tensor<4x1xint64>"
    (found,) = claims(f"%y = arith.cast %place : {wide}", "%y, %l")
    assert shown(found.form) == ({"l": 1, "k": -4, "": -4}, 3) and not found.guards
    for sum, terms in (
        ("add %place, %s", None), ("sub %s, %place", None),
        ("add %k4, %negative", {"l": 1, "k": -4, "negative": -1, "": -1}),
        ("sub %positive, %k4", {"l": 1, "k": 4, "positive": -1, "": -1}),
    ):  # fmt: skip
        type = COLUMN if "place" in sum else I32
        lines = f"""
        %t = arith.{sum} : {type}
        %y = arith.cast %t : {type.replace("32", "64")}
        %none = arith.constant {{value = 0}} : {wide}
        %w = arith.add %y, %none : {wide}"""
        assert [shown(each.form)[0] for each in claims(lines, "%w, %l")] == ([] if terms is None else [terms])


def test_shapes_are_looked_through() -> None:
    lines = """
    %t = tensor.transpose %place {permutation = (1, 0)} : tensor<1x4xint32>
    %y = tensor.broadcast %t : tensor<4x4xint32>"""
    (found,) = claims(lines, "%y, %s", type="tensor<4x4xbool>", use="tile.store %f, %B[%i, %row] mask=%ok")
    assert shown(found.form) == ({"s": 1, "k": -4, "": -4}, 3)


def test_ranges_that_reach_far_come_of_what_is_known_later() -> None:
    ends = [-_VAGUE - 1, -_VAGUE, 1 - _VAGUE, 0, _VAGUE - 1, _VAGUE, _VAGUE + 1]
    for lo, hi in itertools.combinations_with_replacement(ends, 2):
        assert _is_vague(Interval(lo, hi)) is (lo != hi and not -_VAGUE < lo <= hi < _VAGUE)
