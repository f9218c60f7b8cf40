from __future__ import annotations

from tests.passes.ir_cases import after, body_lines, filecheck, kernel_of, program
from tests.support.programs import check_pass, inputs_for
from tiledsl.passes.dce import Dce, erase_sources


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


def test_what_computed_a_value_goes_with_it() -> None:
    """As far as nothing else uses it, and no load."""
    made = program(
        """%x = tile.load %N[%bx] : int32
        %kept = arith.add %x, %s : int32
        %a = arith.mul %kept, %c3 : int32
        %b = arith.neg %a : int32
        %both = arith.sub %b, %a : int32
        %other = arith.max %b, %c5 : int32
        %user = arith.min %kept, %s : int32
        tile.store %user, %N[%bx]"""
    )
    values = {value.name: value for op in made.root.walk() for value in op.results}
    erase_sources([values["a"]])
    assert len(body_lines(made)) == 8  # it is used
    erase_sources([values["both"], values["other"], kernel_of(made).regions[0].args[0]])
    filecheck(
        body_lines(made),
        """
        %x = tile.load %N{{.}}%bx] : int32
        %kept = arith.add %x, %s : int32
        %user = arith.min %kept, %s : int32
        tile.store %user, %N{{.}}%bx]
        """,
    )
    names = {value.name for op in kernel_of(made).walk() for value in op.results}
    assert not {"c3", "c5"} & names
