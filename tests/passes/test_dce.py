from __future__ import annotations

from tests.passes.ir_cases import after, filecheck, program
from tests.support.programs import check_pass, inputs_for
from tiledsl.passes.dce import Dce


def test_unused_loads_loops_and_carried_values_go() -> None:
    body = """
    %x = tile.load %N[%bx] : int32
    %r = scf.for %c0, %s, %c1[%x] : int32 (%i: int32, %a: int32) {
      %v = tile.load %N[%i] : int32
      %n = arith.add %a, %v : int32
      scf.yield [%n]
    }
    %p, %q = scf.for %c0, %s, %c1[%x, %bx] : int32, int32 (%i: int32, %a: int32, %c: int32) {
      %n = arith.add %a, %i : int32
      %d = arith.add %c, %i : int32
      scf.yield [%n, %d]
    }
    tile.store %q, %N[%bx]"""
    filecheck(
        after(Dce(), body),
        """
        %q = scf.for %c0, %s, %c1[%bx] : int32 (%i: int32, %c: int32) {
        %d = arith.add %c, %i : int32
        scf.yield [%d]
        }
        tile.store %q, %N[%bx]
        """,
    )


def test_values_that_reach_an_effect_in_the_loop_stay() -> None:
    body = """
    %r = scf.for %c0, %s, %c1[%bx] : int32 (%i: int32, %a: int32) {
      %n = arith.add %a, %i : int32
      scf.if %b {
        tile.store %a, %N[%i]
        scf.yield
      } { scf.yield }
      scf.yield [%n]
    }"""
    assert len(after(Dce(), body)) == 10


def test_atomics_prints_and_while_loops_stay() -> None:
    body = """
    %old = tile.atomic %s, %N[%bx] {kind = "add"} : int32
    tile.print [%s] {message = "s"}
    scf.while {
      scf.condition %b
    } {
      scf.yield
    }"""
    assert len(after(Dce(), body)) == 7


def test_meaning_stays() -> None:
    func = program("%x = tile.load %A[%bx, %s] : float32\ntile.store %f, %A[%bx, %bx]").root
    check_pass(Dce(), func, inputs_for(func, 0))
