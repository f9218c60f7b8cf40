"""join-loads: tiles that both branches of an `if` load are loaded once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.ir_cases import after, filecheck, kernel
from tests.support.programs import check_pass
from tiledsl.passes.join_loads import JoinLoads

PARAMETERS = "A: 64*96*float32, B: 64*96*float32, C: 64*96*float32, N: 64*int32, s: int32, t: int32, b: bool, d: bool"
BRANCHES = """
%rows = tensor.iota {axis = 0} : tensor<16x1xint32>
%columns = tensor.iota {axis = 1} : tensor<1x16xint32>
%x = scf.if %b : tensor<16x16xfloat32> {
  THEN
} {
  ORELSE
}
tile.store %x, %C[%rows, %columns]
"""
THEN = """
  %p = arith.add %s, %rows : tensor<16x1xint32>
  %a = tile.load %A[%p, %columns] : tensor<16x16xfloat32>
  scf.yield [%a]"""
ORELSE = """
  %u = arith.mul %t, %c2 : int32
  %q = arith.add %u, %rows : tensor<16x1xint32>
  %a2 = tile.load %A[%q, %columns] : tensor<16x16xfloat32>
  scf.yield [%a2]"""


EVEN = "%even = arith.mul %columns, %c2 : tensor<1x16xint32>"


def branches(then: str = THEN, orelse: str = ORELSE) -> str:
    return BRANCHES.replace("THEN", then).replace("ORELSE", orelse)


def joined(text: str) -> list[str]:
    return after(JoinLoads(), text, parameters=PARAMETERS)


def stays(text: str) -> bool:
    return joined(text) == after([], text, parameters=PARAMETERS)


def keeps_its_meaning(text: str) -> None:
    generator = np.random.default_rng(0)
    tiles = [generator.integers(-4, 5, (64, 96)).astype(np.float32) for _ in range(3)]
    for b, d in ((True, True), (True, False), (False, True), (False, False)):
        check_pass(JoinLoads(), kernel(PARAMETERS, text), [*tiles, np.arange(64, dtype=np.int32) + 3, 40, 9, b, d])


def test_places_are_selected() -> None:
    filecheck(
        joined(branches()),
        """
        %rows = tensor.iota {axis = 0} : tensor<16x1xint32>
        %columns = tensor.iota {axis = 1} : tensor<1x16xint32>
        %u = arith.mul %t, %c2 : int32
        %0 = arith.select %b, %s, %u : int32
        %1 = arith.add %0, %rows : tensor<16x1xint32>
        %a = tile.load %A[%1, %columns] : tensor<16x16xfloat32>
        tile.store %a, %C[%rows, %columns]
        """,
    )
    keeps_its_meaning(branches())


def test_what_else_a_branch_computes_stays() -> None:
    then = THEN.replace("scf.yield [%a]", "%n = arith.neg %a : tensor<16x16xfloat32>\nscf.yield [%a, %n]")
    orelse = ORELSE.replace("scf.yield [%a2]", "scf.yield [%a2, %a2]")
    text = branches(then, orelse).replace("%x = scf.if %b :", "%x, %y = scf.if %b : tensor<16x16xfloat32>,")
    text += "%r16 = arith.add %rows, %c16 : tensor<16x1xint32>\ntile.store %y, %C[%r16, %columns]"
    filecheck(
        joined(text),
        """
        CHECK: [[A:%a.*]] = tile.load %A
        CHECK-NEXT: %y = scf.if %b : tensor<16x16xfloat32> {
        CHECK-NEXT: %n = arith.neg [[A]] : tensor<16x16xfloat32>
        CHECK-NEXT: scf.yield [%n]
        CHECK-NEXT: } {
        CHECK-NEXT: %a2 = tile.load %A
        CHECK: tile.store [[A]], %C
        """,
    )
    keeps_its_meaning(text)


def test_a_chain_of_branches_becomes_one_load() -> None:
    inner = branches().split("tile.store")[0].split("%x = ")[1].replace("%b", "%d")
    third = "%v = arith.add %rows, %c7 : tensor<16x1xint32>\n%a3 = tile.load %A[%v, %columns] : tensor<16x16xfloat32>"
    text = branches(f"%z = {inner}\nscf.yield [%z]", f"{third}\nscf.yield [%a3]")
    assert sum("tile.load" in line for line in joined(text)) == 1
    assert not any("scf.if" in line for line in joined(text))
    keeps_its_meaning(text)


def test_two_tiles_of_one_branch_are_joined() -> None:
    """Each with its own buffer; what their places are computed from is shared."""
    then = THEN.replace("scf.yield [%a]", "%e = tile.load %B[%p, %columns] : tensor<16x16xfloat32>\nscf.yield [%a, %e]")
    orelse = ORELSE.replace(
        "scf.yield [%a2]", "%e2 = tile.load %B[%q, %columns] : tensor<16x16xfloat32>\nscf.yield [%a2, %e2]"
    )
    text = branches(then, orelse).replace("%x = scf.if %b :", "%x, %y = scf.if %b : tensor<16x16xfloat32>,")
    text = text.replace("tile.store %x", "%z = arith.add %x, %y : tensor<16x16xfloat32>\ntile.store %z")
    found = joined(text)
    assert [line.split("[")[0].split("= ")[1] for line in found if "load" in line] == ["tile.load %A", "tile.load %B"]
    assert not any("scf.if" in line for line in found)
    keeps_its_meaning(text)


def instead(old: str, new: str) -> str:
    assert old in ORELSE
    return branches(orelse=ORELSE.replace(old, new))


@pytest.mark.parametrize(
    "text",
    [
        instead("%A[", "%B["),
        instead("%columns] :", "%columns] mask=%d :"),
        instead("%columns] :", '%columns] {cache = ".cg"} :'),
        instead("%A[%q, %columns]", "%A[%q, %even]").replace("%u =", f"{EVEN}\n%u ="),
        instead("arith.mul %t, %c2 : int32", "tile.load %N[%t] : int32"),
        instead("arith.mul %t, %c2 : int32", "arith.floordiv %t, %s : int32"),
        instead("%a2 =", "tile.store %t, %N[%c0]\n%a2 ="),
        instead("scf.yield", "%n = arith.neg %a2 : tensor<16x16xfloat32>\nscf.yield").replace("[%a2]\n}", "[%n]\n}"),
    ],
    ids=["buffer", "mask", "hint", "no block", "a table", "division", "a write", "no load"],
)  # fmt: skip
def test_what_stays(text: str) -> None:
    assert stays(text)


def test_a_tile_that_walks_otherwise_stays() -> None:
    orelse = ORELSE.replace("%rows", "%columns").replace("16x1x", "1x16x").replace("[%q, %columns]", "[%q, %rows]")
    assert stays(branches(orelse=orelse))


ROW = "%a{0} = tile.load %A[%{1}, %columns] : tensor<1x16xfloat32>\nscf.yield [%a{0}]"


def test_rows_at_one_index_are_joined_with_rows_alone() -> None:
    row = branches(ROW.format("", "s"), ROW.format("2", "t")).replace("16x16", "1x16").replace("%rows, %c", "%s, %c")
    filecheck(
        joined(row),
        """
        CHECK: [[S:%.*]] = arith.select %b, %s, %t : int32
        CHECK-NEXT: %a = tile.load %A[[[S]], %columns] : tensor<1x16xfloat32>
        CHECK-NOT: tile.load
        """,
    )
    keeps_its_meaning(row)
    one = "%i = tensor.iota {axis = 0} : tensor<1x1xint32>\n%w = arith.add %t, %i : tensor<1x1xint32>\n"
    for then, orelse in (("s", "w"), ("w", "s")):
        assert stays(one + row.replace("%A[%s,", f"%A[%{then},").replace("%A[%t,", f"%A[%{orelse},"))


def test_elements_stay() -> None:
    text = """
    %x = scf.if %b : int32 {
      %a = tile.load %N[%s] : int32
      scf.yield [%a]
    } {
      %a2 = tile.load %N[%t] : int32
      scf.yield [%a2]
    }
    tile.store %x, %N[%c0]"""
    assert stays(text)


def test_it_can_be_turned_off() -> None:
    assert after(JoinLoads(enabled=False), branches(), parameters=PARAMETERS) == after(
        [], branches(), parameters=PARAMETERS
    )
