"""advance-loads: small loads behind reductions and loops, and what keeps them there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.ir_cases import after, filecheck, kernel, program, stays_in_gluon
from tests.support.programs import check_pass
from tiledsl.passes.advance_loads import AdvanceLoads

PARAMETERS = "A: 64*96*float32, T: 64*int32, P: 64*float32, Y: 64*float32, Z: 64*int32"
TILE = """
    %rows = tensor.iota {axis = 0} : tensor<64x1xint32>
    %columns = tensor.iota {axis = 1} : tensor<1x96xint32>
    %x = tile.load %A[%rows, %columns] {guarded = true} : tensor<64x96xfloat32>"""
REDUCED = """
    %m = tensor.reduce %x {kind = "max", axis = 1} : tensor<64xfloat32>"""
PICKED = """
    %i = tensor.iota {axis = 0} : tensor<64xint32>
    %n = tile.load %T[%i] {guarded = true} : tensor<64xint32>
    %p = tile.load %A[%i, %n] {guarded = true} : tensor<64xfloat32>"""
STORED = """
    %d = arith.sub %m, %p : tensor<64xfloat32>
    tile.store %d, %Y[%i] {guarded = true}"""


def lines(body: str) -> list[str]:
    return after(AdvanceLoads(), body, parameters=PARAMETERS)


def unchanged(body: str) -> bool:
    return after([], body, parameters=PARAMETERS) == lines(body)


def computes_the_same(body: str) -> None:
    generator = np.random.default_rng(0)
    tile = generator.integers(-4, 5, (64, 96)).astype(np.float32)
    numbers = [np.zeros(64, np.float32), np.zeros(64, np.float32), np.zeros(64, np.int32)]
    check_pass(AdvanceLoads(), kernel(PARAMETERS, body), [tile, generator.integers(0, 64, 64, np.int32), *numbers])


def test_loads_and_their_places_come_before_a_reduction() -> None:
    body = TILE + REDUCED + PICKED + STORED
    filecheck(
        lines(body),
        """
        CHECK: %x = tile.load %A
        CHECK: %i = tensor.iota
        CHECK: %n = tile.load %T[%i]
        CHECK: %p = tile.load %A[%i, %n]
        CHECK: %m = tensor.reduce
        CHECK: tile.store %d, %Y
        """,
    )
    computes_the_same(body)


@pytest.mark.parametrize(
    "waits",
    [
        "%m = tensor.scan %x {kind = \"sum\", axis = 1} : tensor<64x96xfloat32>",
        "%m = scf.for %c0, %c4, %c1[%c0.5] : float32 (%k: int32, %s: float32) {\n scf.yield [%s]\n }",
    ],
)  # fmt: skip
def test_loads_come_before_scans_and_loops(waits: str) -> None:
    found = "\n".join(lines(f"{TILE}\n    {waits}{PICKED}\n    tile.store %p, %Y[%i] {{guarded = true}}"))
    assert found.index("%p = tile.load") < found.index("%m = ")


def test_in_loops_too() -> None:
    body = f"""
    scf.for %c0, %c4, %c1 (%k: int32) {{{TILE}{REDUCED}{PICKED}{STORED}
      scf.yield
    }}"""
    found = "\n".join(lines(body))
    assert found.index("%p = tile.load") < found.index("%m = tensor.reduce")
    computes_the_same(body)


def test_what_does_not_depend_on_the_first_of_two_goes_before_both() -> None:
    second = REDUCED.replace("%m", "%m2").replace("max", "min")
    found = "\n".join(lines(TILE + REDUCED + second + PICKED + STORED))
    assert found.index("%p = tile.load") < found.index("%m = tensor.reduce")


def test_a_place_that_a_reduction_computes_lies_behind_it() -> None:
    place = """
    %n2 = tile.load %T[%i] {guarded = true} : tensor<64xint32>
    %s = tensor.reduce %n2 {kind = "sum", axis = 0} : int32
    %e = tile.load %P[%s] {guarded = true} : float32"""
    first = "\n    %i = tensor.iota {axis = 0} : tensor<64xint32>"
    assert unchanged(first + place + "\n    tile.store %e, %Y[%s] {guarded = true}")
    other = "\n    %t = tensor.reduce %n2 {kind = \"max\", axis = 0} : int32"  # fmt: skip
    found = "\n".join(lines(first + place.replace("\n    %e", other + "\n    %e") + "\n    tile.store %e, %Y[%t]"))
    assert found.index("%s = ") < found.index("%e = ") < found.index("%t = ")


@pytest.mark.parametrize(
    ("between", "moves"),
    [
        ("%u = arith.neg %m : tensor<64xfloat32>", True),
        ("tile.store %m, %P[%w] {guarded = true}", False),  # which may be %A
        ("tile.store %w, %T[%w] {guarded = true}", False),  # what gives the places
        ("tile.store %m, %A[%w, %c0] {guarded = true}", False),
        ("scf.for %c0, %c4, %c1 (%k: int32) {\n tile.store %m, %A[%w, %k] {guarded = true}\n scf.yield\n }", False),
        ('%o = tile.atomic %c0, %Z[%c0] {kind = "load", semantics = "acquire", guarded = true} : int32', False),
        ("thread.barrier", False),
    ],
)
def test_what_is_written_or_waited_for_keeps_loads_behind(between: str, moves: bool) -> None:
    head = "\n    %w = tensor.iota {axis = 0} : tensor<64xint32>"
    body = head + TILE + REDUCED + "\n    " + between + PICKED + STORED
    found = "\n".join(lines(body))
    assert (found.index("%p = tile.load") < found.index("%m = tensor.reduce")) is moves
    if "atomic" not in between and "barrier" not in between:
        computes_the_same(body)


def test_what_is_for_no_load_stays() -> None:
    first = "\n    %i = tensor.iota {axis = 0} : tensor<64xint32>"
    assert unchanged(TILE + REDUCED + first + "\n    tile.store %i, %Z[%i] {guarded = true}")


def test_tiles_stay() -> None:
    tile = "\n    %y = tile.load %A[%rows, %columns] {guarded = true} : tensor<64x96xfloat32>"
    assert unchanged(f"{TILE}{REDUCED}{tile}\n    tile.store %y, %A[%rows, %columns] {{guarded = true}}")
    wide = PICKED.replace("64x", "SIZEx").replace("%i,", "%j,").replace("%T[%i]", "%T[%j]")
    wide = wide.replace("%i = tensor.iota {axis = 0}", "%h = tensor.iota {axis = 0}")
    wide += "\n    tile.store %p, %Y[%j] {guarded = true}"
    wide = wide.replace("%n =", "%j = arith.and %h, %c63 : tensor<SIZExint32>\n    %n =")
    for size, stays in ((128, False), (256, True)):
        assert unchanged(TILE + REDUCED + wide.replace("SIZE", str(size))) is stays


def test_a_division_that_may_fail_is_not_moved() -> None:
    divided = PICKED.replace("%p = ", "%q = arith.truncdiv %i, %n : tensor<64xint32>\n    %p = ").replace(
        "%i, %n]", "%i, %q]"
    )
    found = "\n".join(lines(TILE + REDUCED + divided + STORED))
    assert found.index("%n = ") < found.index("%m = tensor.reduce") < found.index("%q = ")


def test_kernels_with_products_stay_as_they_are() -> None:
    product = """
    %cs = tensor.iota {axis = 1} : tensor<1x64xint32>
    %a = tile.load %A[%rows, %cs] {guarded = true} : tensor<64x64xfloat32>
    %d = tensor.dot %a, %a, %a : tensor<64x64xfloat32>
    tile.store %d, %A[%rows, %cs] {guarded = true}"""
    body = TILE + REDUCED + PICKED + STORED
    assert not unchanged(body) and stays_in_gluon(AdvanceLoads(), program(body, parameters=PARAMETERS))
    assert unchanged(TILE + product + REDUCED + PICKED + STORED.replace("%d", "%e"))
