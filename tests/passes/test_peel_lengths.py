"""peel-loops: loops up to lengths that are loaded, over rows that begin at loaded offsets."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.ir_cases import after, kernel
from tests.support.programs import check_pass
from tiledsl.passes.canonicalize import Canonicalize
from tiledsl.passes.peel_loops import PeelLoops
from tiledsl.runtime.target import Target

PARAMETERS = "A: 64*96*float32, C: 64*96*float32, I: 8*int32, L: 8*int32"
BODY = """
%zero = arith.constant {value = 0.0} : tensor<16x16xfloat32>
%low = arith.constant {value = -1.0} : float32
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%x = tile.load %A[%i, %j] {guarded = true} : tensor<16x16xfloat32>
%start = tile.load %I[%bx] {guarded = true} : int32
%n = tile.load %L[%bx] {guarded = true} : int32
%r = scf.for %c0, %c3, %c1[%zero] : tensor<16x16xfloat32> (%k: int32, %sum: tensor<16x16xfloat32>) {
  %first = arith.mul %k, %c16 : int32
  %row = arith.add %first, %i : tensor<16x1xint32>
  %place = arith.add %start, %row : tensor<16x1xint32>
  %short = arith.cmp %row, %n {predicate = "lt"} : tensor<16x1xbool>
  %above = arith.cmp %place, %c0 {predicate = "ge"} : tensor<16x1xbool>
  %below = arith.cmp %place, %c64 {predicate = "lt"} : tensor<16x1xbool>
  %most = arith.and %short, %above : tensor<16x1xbool>
  %ok = arith.and %most, %below : tensor<16x1xbool>
  %y = tile.load %A[%place, %j] mask=%ok {guarded = true} : tensor<16x16xfloat32>
  %column = arith.add %first, %j : tensor<1x16xint32>
  %long = arith.cmp %column, %n {predicate = "ge"} : tensor<1x16xbool>
  %s = tensor.dot %x, %y, %sum : tensor<16x16xfloat32>
  %t = arith.select %long, %low, %s : tensor<16x16xfloat32>
  scf.yield [%t]
}
tile.store %r, %C[%i, %j] {guarded = true}
"""


@pytest.mark.parametrize("mode", ["causal", "all"])
def test_offsets_and_lengths(mode: str) -> None:
    """One loop without masks and one with all, whatever is loaded: offsets below 0 and beyond the tensor too."""
    tiles = [np.random.default_rng(0).integers(-4, 5, (64, 96)).astype(np.float32) for _ in range(2)]
    for starts, lengths in (
        ([0, 5], [48, 40]),
        ([16, -1], [48, 48]),
        ([-20, 60], [17, 47]),
        ([64, -64], [16, 0]),
        ([2**31 - 1, -(2**31)], [2**31 - 1, -(2**31)]),
    ):
        inputs = [*tiles, *(np.array([*each, 0, 0, 0, 0, 0, 0], np.int32) for each in (starts, lengths))]
        check_pass([PeelLoops(mode=mode), Canonicalize()], kernel(PARAMETERS, BODY), inputs)
    lines = after(PeelLoops(mode=mode), BODY, parameters=PARAMETERS)
    loops = [number for number, line in enumerate(lines) if "scf.for" in line]
    assert len(loops) == 2
    without, rest = "\n".join(lines[slice(*loops)]), "\n".join(lines[loops[1] :])
    assert "mask=" not in without and "arith.select" not in without.split("scf.yield")[0]
    assert "mask=%ok" in rest and "arith.select %long" in rest
    assert sum("arith.select" in line for line in lines[: loops[0]]) == 1  # no iteration without masks below 0


@pytest.mark.parametrize(
    ("change", "loops"),
    [
        (("%t = arith.select %long, %low, %s", "%t = arith.add %s, %c0.0"), 1),  # masks of loads alone
        (("%n = tile.load %L[%bx] {guarded = true} : int32", "%n = arith.mul %bx, %c20 : int32"), 1),  # a position
        (("%long = arith.cmp %column, %n", "%long = arith.cmp %j, %n"), 1),  # the same in all iterations
        (("%s = tensor.dot %x, %y, %sum", "%s = arith.add %y, %sum"), 1),
        (("%low, %s", "%low, %s"), 2),
    ],
)
def test_which_loops_are_divided_by_default(change: tuple[str, str], loops: int) -> None:
    assert change[0] in BODY
    text = BODY.replace(*change).replace("%c0, %c3", "%c0, %c9")
    lines = after(PeelLoops(), text, parameters=PARAMETERS, target=Target("cuda", 90))
    assert sum("scf.for" in line for line in lines) == loops


def test_offsets_without_a_last_part_get_a_first_one() -> None:
    """Where only rows below 0 have masks and nothing wraps, the iterations without any are the last ones."""
    near = "%m = arith.and %n, %c63 : int32\n%near = arith.sub %m, %c48 : int32\n"
    text = BODY.replace("%r = scf.for", f"{near}%r = scf.for").replace("%start, %row", "%near, %row")
    text = text.replace("%short, %above", "%above, %above").replace("%most, %below", "%most, %above")
    text = text.replace("%t = arith.select %long, %low, %s", "%t = arith.add %s, %low")
    tiles = [np.random.default_rng(0).integers(-4, 5, (64, 96)).astype(np.float32) for _ in range(2)]
    for lengths in ([0, 63], [48, 47], [32, 33], [16, 1]):
        inputs = [*tiles, np.zeros(8, np.int32), np.array([*lengths, 0, 0, 0, 0, 0, 0], np.int32)]
        check_pass(PeelLoops(mode="all"), kernel(PARAMETERS, text), inputs)
    lines = after(PeelLoops(mode="all"), text, parameters=PARAMETERS)
    loops = [number for number, line in enumerate(lines) if "scf.for" in line]
    assert len(loops) == 2
    assert "mask=%above" in "\n".join(lines[slice(*loops)]) and "mask=" not in "\n".join(lines[loops[1] :])
