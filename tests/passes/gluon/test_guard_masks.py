"""Masks only in turns that need them: which turns, what stays as it is, and that the meaning does."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.passes.ir_cases import body_lines, program
from tests.support import executor
from tiledsl.dialects import scf
from tiledsl.ir.core import Operation
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.verifier import verify
from tiledsl.passes.gluon.guard_masks import guard_masks

TILE, MASK = "tensor<8x16xfloat32>", "tensor<8x16xbool>"
LOOP = """
%i = tensor.iota {{axis = 0}} : tensor<8x1xint32>
%j = tensor.iota {{axis = 1}} : tensor<1x16xint32>
%low = arith.constant {{value = {fill}}} : {tile}
%none = arith.constant {{value = 0.0}} : {tile}
%nought = arith.constant {{value = 0.0}} : float32
%less = arith.constant {{value = -1.0}} : {tile}
%first_key = tile.load %N[%c0] : int32
%rows = arith.add %i, %s : tensor<8x1xint32>
%sum = scf.for {lower}, %c6, %c1[%none] : {tile} (%k: int32, %acc: {tile}) {{
  %first = arith.mul %k, %c16 : int32
  %columns = arith.add %first, %j : tensor<1x16xint32>
  %scores = tile.load %A[%i, %columns] : {tile}
  {mask}
  %x = arith.{choice} : {tile}
  %next = arith.add %acc, %x : {tile}
  scf.yield [%next]
}}
tile.store %sum, %B[%i, %j]"""
CAUSAL = f'%m = arith.cmp %columns, %rows {{predicate = "le"}} : {MASK}'
HIDDEN = f'%m = arith.cmp %rows, %columns {{predicate = "lt"}} : {MASK}'
ENDS = 'arith.cmp %columns, %c70 {predicate = "lt"} : tensor<1x16xbool>'
BEYOND = 'arith.cmp %columns, %c70 {predicate = "ge"} : tensor<1x16xbool>'
SOME = CAUSAL.replace("%m", "%c")
NEGATIVE = f'%v = arith.cmp %scores, %none {{predicate = "lt"}} : {MASK}'
BEFORE = f'%v = arith.cmp %columns, %c40 {{predicate = "lt"}} : tensor<1x16xbool>\n%e = tensor.broadcast %v : {MASK}'
KEPT, DROPPED = "%m, %scores, %low", "%m, %low, %scores"


def made(mask: str = CAUSAL, sides: str = KEPT, fill: str = "-inf", lower: str = "%c0") -> Program:
    choice = f"select {sides}"
    return program(LOOP.format(mask=mask, choice=choice, fill=fill, lower=lower, tile=TILE), grid=(1,))


def guarded(before: Program) -> Program:
    for loop in of_kinds(before.root.walk(), scf.ForOp):
        guard_masks(loop)
    verify(before.root)
    return before


def result(root: Operation, s: int, first: int = 0) -> np.ndarray:
    scores = np.random.default_rng(0).integers(-8, 8, (64, 96)).astype(np.float32)
    out, keys = np.zeros((64, 96), np.float32), np.full(1000, first, np.int32)
    executor.run(root, [scores, out, keys, np.ones(5, np.float32), np.int32(s), 1.0, True, np.int64(s)])
    return out[:8, :16]


def turns_with_masks(before: Program, s: int) -> int:
    """How many turns of a rewritten loop select."""
    (choice,) = of_kinds(before.root.walk(), scf.IfOp)
    for number, region in enumerate(choice.regions):
        last = region.terminator
        last.set_operands([Builder.at(last).constant(1.0 - number, choice.results[0].type)])
    counts = result(before.root, s)
    assert (counts == counts[0, 0]).all()
    return int(counts[0, 0])


def turns_from(hidden: np.ndarray) -> int:
    """How many there are from the first that hides something."""
    matters = [bool(hidden[..., 16 * k : 16 * k + 16].any()) for k in range(6)]
    return 6 - len([*itertools.takewhile(lambda each: not each, matters)])


PLACES = np.arange(96)[None] - np.arange(8)[:, None]  # of a key, from a query's own place
MASKS: dict[str, tuple[str, str, Any]] = {
    "causal": (CAUSAL, KEPT, lambda s: s < PLACES),
    "causal, of what is hidden": (HIDDEN, DROPPED, lambda s: s < PLACES),
    "keys that are there": (f"%a = {ENDS}\n%m = tensor.broadcast %a : {MASK}", KEPT, lambda s: np.arange(96) >= 70),
    "keys that are not": (f"%a = {BEYOND}\n%m = tensor.broadcast %a : {MASK}", DROPPED, lambda s: np.arange(96) >= 70),
    "a steeper diagonal": (
        f'%w = arith.mul %columns, %c3 : tensor<1x16xint32>\n%m = arith.cmp %w, %rows {{predicate = "le"}} : {MASK}',
        KEPT,
        lambda s: 3 * np.arange(96)[None] > np.arange(8)[:, None] + s,
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_turns_from_the_first_that_a_mask_matters_in_have_it(name: str) -> None:
    mask, sides, hidden = MASKS[name]
    for s in (-20, -1, 0, 7, 8, 14, 15, 16, 32, 33, 39, 47, 80, 95, 200):
        before = made(mask, sides)
        want = result(before.root, s)
        after = guarded(before)
        np.testing.assert_array_equal(result(after.root, s), want)
        assert turns_with_masks(after, s) == turns_from(hidden(s)), s


@pytest.mark.parametrize("s", [2**31 - 1, 2**31 - 8, 2**31 - 7, -(2**31), -(2**31) + 90])
def test_sums_that_wrap(s: int) -> None:
    """Rows far behind all keys, of which some wrap to places before them."""
    before = made()
    want = result(before.root, s)
    np.testing.assert_array_equal(result(guarded(before).root, s), want)


def test_what_only_masks_need_is_computed_where_they_are() -> None:
    lines = body_lines(guarded(made(*MASKS["keys that are not"][:2])))
    begin = next(number for number, line in enumerate(lines) if "scf.if" in line)
    end = next(number for number, line in enumerate(lines) if number > begin and "scf.yield [%scores]" in line)
    inside = [line.split(" = ")[1].split()[0] for line in lines[begin + 1 : end] if " = " in line]
    assert inside.count("tensor.broadcast") == inside.count("arith.cmp") == 1 and inside[-1] == "arith.select"
    assert "tile.load" not in inside
    assert any(line.lstrip().startswith("%x") and "scf.if" in line for line in lines)


def test_tiles_are_loaded_where_they_were() -> None:
    steps = "%t = tile.load %N[%j] : tensor<1x16xint32>\n%few = arith.and %t, %c3 : tensor<1x16xint32>"
    mask = f'%b = arith.add %columns, %few : tensor<1x16xint32>\n%m = arith.cmp %b, %rows {{predicate = "le"}} : {MASK}'
    before = made(f"{steps}\n{mask}")
    want = result(before.root, 40, 6)
    after = guarded(before)
    (choice,) = of_kinds(after.root.walk(), scf.IfOp)
    inside = ["arith.add", "arith.and", "arith.add", "arith.cmp", "arith.select", "scf.yield"]
    assert [op.name for op in choice.then] == inside
    np.testing.assert_array_equal(result(after.root, 40, 6), want)


LOADED = f'%b = arith.add %i, %first_key : tensor<8x1xint32>\n%m = arith.cmp %columns, %b {{predicate = "le"}} : {MASK}'


def test_places_that_are_loaded() -> None:
    for first in (0, 40, 2**31 - 3):
        before = made(LOADED)
        want = result(before.root, 0, first)
        after = guarded(before)
        assert of_kinds(after.root.walk(), scf.IfOp)
        np.testing.assert_array_equal(result(after.root, 0, first), want)


WIDE = f"""%w = arith.cast %columns : tensor<1x16xint64>
%n = arith.cast %i : tensor<8x1xint64>
%b = arith.add %n, %l : tensor<8x1xint64>
%m = arith.cmp %w, %b {{predicate = "le"}} : {MASK}"""

AT_LEAST = f"""%loaded = tile.load %N[%i] : tensor<8x1xint32>
%b = arith.max %loaded, %c-1 : tensor<8x1xint32>
%m = arith.cmp %columns, %b {{predicate = "le"}} : {MASK}"""


@pytest.mark.parametrize(
    "parts",
    [
        {"fill": "-1000000000.0"},
        {"sides": "%m, %low, %low"},
        {"sides": "%m, %less, %scores"},
        {"sides": "%m, %nought, %low"},
        {"mask": CAUSAL.replace("le", "eq")},
        {"mask": CAUSAL.replace("le", "ge")},  # a window's start: not the first turns
        {"mask": f'%m = arith.cmp %scores, %none {{predicate = "lt"}} : {MASK}'},
        {"mask": f"{SOME}\n{NEGATIVE}\n%m = arith.and %c, %v : {MASK}"},
        {"mask": f"{SOME}\n{BEFORE}\n%m = arith.or %c, %e : {MASK}"},
        {"mask": f'%m = arith.cmp %j, %rows {{predicate = "le"}} : {MASK}'},  # the same in all turns
        {"lower": "%first_key"},
        {"lower": "%c-1"},
        {"mask": WIDE},
        {"mask": AT_LEAST},  # in the first turn, too, as far as is known
    ],
)  # fmt: skip
def test_what_stays(parts: dict[str, str]) -> None:
    before = made(**parts)
    lines = body_lines(before)
    assert body_lines(guarded(before)) == lines


def test_rows_alone_are_no_scores() -> None:
    text = LOOP.replace("8x16", "16").format(
        mask='%m = arith.cmp %flat, %s {predicate = "le"} : tensor<16xbool>',
        choice=f"select {KEPT}", fill="-inf", lower="%c0", tile="tensor<16xfloat32>",
    )  # fmt: skip
    text = text.replace("{axis = 1} : tensor<1x16xint32>", "{axis = 0} : tensor<16xint32>")
    text = text.replace(
        "%columns = arith.add %first, %j : tensor<1x16xint32>", "%flat = arith.add %first, %j : tensor<16xint32>"
    )
    text = text.replace("%A[%i, %columns]", "%A[%c0, %flat]").replace("%B[%i, %j]", "%B[%c0, %j]")
    before = program(text, grid=(1,))
    lines = body_lines(before)
    assert body_lines(guarded(before)) == lines
