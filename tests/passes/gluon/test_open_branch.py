"""A branch that a block's whole work stands in becomes loops without turns and writes under a mask."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.ir_cases import body_lines, filecheck, kernel, kernel_of, program
from tests.support.programs import check_pass
from tiledsl.ir.pass_manager import Program
from tiledsl.passes.gluon.open_branch import open_branch

PARAMETERS = "A: 64*96*float32, C: 64*96*float32, N: 8*int32, s: int32, p: bool"
WHOLE = """
%columns = tensor.iota {axis = 0} : tensor<16xint32>
%n = tile.load %N[%bx] : int32
%c = arith.cmp %n, %c2 {predicate = "gt"} : bool
scf.if %c {
  %first = arith.mul %n, %c3 : int32
  %x = tile.load %A[%first, %columns] : tensor<16xfloat32>
  %r = scf.for %c1, %n, %c1[%x] : tensor<16xfloat32> (%k: int32, %sum: tensor<16xfloat32>) {
    %y = tile.load %A[%k, %columns] : tensor<16xfloat32>
    %t = arith.add %sum, %y : tensor<16xfloat32>
    scf.yield [%t]
  }
  LAST
  scf.yield
} {
  ORELSE
  scf.yield
}
BEHIND
"""
STORE = "tile.store %r, %C[%bx, %columns]"


def whole(last: str = STORE, orelse: str = "", behind: str = "") -> str:
    return WHOLE.replace("LAST", last).replace("ORELSE", orelse).replace("BEHIND", behind)


def opened(text: str) -> list[str]:
    made = program(text, parameters=PARAMETERS)
    open_branch(kernel_of(made).body)  # type: ignore[attr-defined]
    return body_lines(made)


def stays(text: str) -> bool:
    return opened(text) == body_lines(program(text, parameters=PARAMETERS))


def keeps_its_meaning(text: str) -> None:
    generator = np.random.default_rng(0)
    tiles = [generator.integers(-4, 5, (64, 96)).astype(np.float32) for _ in range(2)]

    def run(made: Program) -> None:
        open_branch(kernel_of(made).body)  # type: ignore[attr-defined]

    for lengths in ([2, 3], [5, 0], [30, 2]):  # of a place outside of A, too
        numbers = np.array([*lengths, *[0] * 6], np.int32)
        check_pass(run, kernel(PARAMETERS, text), [*tiles, numbers, 3, True])


def test_loops_have_no_turn_and_writes_a_mask() -> None:
    filecheck(
        opened(whole()),
        """
        %columns = tensor.iota {axis = 0} : tensor<16xint32>
        %n = tile.load %N[%bx] : int32
        %c = arith.cmp %n, %c2 {predicate = "gt"} : bool
        %first = arith.mul %n, %c3 : int32
        %x = tile.load %A[%first, %columns] : tensor<16xfloat32>
        %0 = arith.select %c, %n, %c1 : int32
        %r = scf.for %c1, %0, %c1[%x] : tensor<16xfloat32> (%k: int32, %sum: tensor<16xfloat32>) {
        %y = tile.load %A[%k, %columns] : tensor<16xfloat32>
        %t = arith.add %sum, %y : tensor<16xfloat32>
        scf.yield [%t]
        }
        tile.store %r, %C[%bx, %columns] mask=%c
        """,
    )
    keeps_its_meaning(whole())


def test_masks_are_joined() -> None:
    text = whole(STORE + " mask=%p")
    filecheck(
        opened(text)[-2:],
        """
        %1 = arith.and %p, %c : bool
        tile.store %r, %C[%bx, %columns] mask=%1
        """,
    )
    keeps_its_meaning(text)


def test_additions_to_memory() -> None:
    text = whole('%old = tile.atomic %r, %C[%bx, %columns] {kind = "add", semantics = "relaxed"} : tensor<16xfloat32>')
    assert "mask=%c" in opened(text)[-1]
    keeps_its_meaning(text)


def test_a_loop_that_writes() -> None:
    loop = "scf.for %c0, %n, %c1 (%i: int32) {\ntile.store %r, %C[%i, %columns]\nscf.yield\n}"
    found = opened(whole(loop))
    assert found[-5:-2] == [
        "%1 = arith.select %c, %n, %c0 : int32",
        "scf.for %c0, %1, %c1 (%i: int32) {",
        "tile.store %r, %C[%i, %columns]",
    ]
    keeps_its_meaning(whole(loop))


@pytest.mark.parametrize(
    "text",
    [
        whole(orelse="tile.store %s, %N[%bx]"),
        whole(behind="tile.store %s, %N[%bx]"),
        whole(f"%q = arith.floordiv %s, %n : int32\n{STORE}"),
        whole(f"scf.if %p {{\n{STORE}\nscf.yield\n}} {{\nscf.yield\n}}"),
        "tile.store %s, %N[%bx]",
    ],
    ids=["something else otherwise", "something behind", "division", "a branch in it", "no branch"],
)
def test_what_stays(text: str) -> None:
    assert stays(text)


def test_an_empty_kernel_stays() -> None:
    assert stays("")
