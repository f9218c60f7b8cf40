"""In which iterations a condition holds for all elements, against all of them; and which value of it is wanted."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest

from tests.passes.ir_cases import program
from tiledsl.analysis.linear import LinearForm
from tiledsl.analysis.loop_masks import Condition, conditions_of
from tiledsl.analysis.ranges import Ranges
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
    for then, orelse, wanted in ((less, more, True), (more, less, False)):
        use = f"scf.if %ok {{ {then}\nscf.yield }} {{ {orelse}\nscf.yield }}"
        assert [each.wanted for each in conditions(use, **place)] == [wanted]


@pytest.mark.parametrize(
    "change", [{"predicate": "eq"}, {"predicate": "ne"}, {"operands": "%i, %c2"}, {"operands": "%place, %place"}]
)
def test_what_does_not_change_with_the_loop(change: dict[str, str]) -> None:
    assert conditions(**change) == []
