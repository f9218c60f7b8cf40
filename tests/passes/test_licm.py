from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.ir_cases import after, filecheck
from tests.support.programs import check_pass, inputs_for, programs
from tiledsl.passes.licm import Licm


def before_loop(body: str, **options: bool) -> list[str]:
    """The lines before the first loop."""
    lines = after(Licm(**options), body, grid=("%m",))  # so that %m is at least 1
    return lines[: next(number for number, line in enumerate(lines) if "scf.for" in line)]


LOOP = """
scf.for %c0, {upper}, %c1 (%i: int32) {{
  scf.for %c0, {upper}, %c1 (%j: int32) {{
    %x = arith.add %s, %bx : int32
    %y = arith.add %x, %i : int32
    %q = arith.floordiv %x, %s : int32
    %w = tile.load %N[%x] : int32
    %z = arith.add %q, %w : int32
    {effect}
    tile.assume %b
    scf.yield
  }}
  scf.yield
}}"""


def test_invariant_operations_leave_all_loops() -> None:
    lines = after(Licm(), LOOP.format(upper="%s", effect="tile.store %y, %N[%j]"))
    filecheck(
        lines[:4],
        """
        %x = arith.add %s, %bx : int32
        scf.for %c0, %s, %c1 (%i: int32) {
        %y = arith.add %x, %i : int32
        scf.for %c0, %s, %c1 (%j: int32) {
        """,
    )


def test_a_division_moves_where_it_cannot_fail_or_runs_anyway() -> None:
    assert not any("floordiv" in line for line in before_loop(LOOP.format(upper="%s", effect="")))
    assert any("floordiv" in line for line in before_loop(LOOP.format(upper="%c5", effect="")))
    assert any(
        "floordiv" in line for line in before_loop(LOOP.format(upper="%s", effect="").replace("%x, %s", "%x, %c3"))
    )


@pytest.mark.parametrize(
    ("divisor", "moves"), [("%c3", True), ("%c1", True), ("%c0", False), ("%c-1", False), ("%c-2", True)]
)
def test_a_division_that_may_overflow_stays(divisor: str, moves: bool) -> None:
    """Divided by -1, the least number of its type overflows, which traps on some machines."""
    lines = before_loop(LOOP.format(upper="%s", effect="").replace("%x, %s", f"%x, {divisor}"))
    assert any("floordiv" in line for line in lines) is moves


@pytest.mark.parametrize(
    ("bounds", "moves"),
    [
        ("%c0, %c5, %c1", True), ("%c5, %c0, %c-1", True), ("%m, %c0, %c-1", True), ("%c0, %m, %c1", True),
        ("%c5, %c0, %c1", False), ("%c0, %c5, %c-1", False), ("%c0, %m, %c-1", False), ("%m, %c0, %c1", False),
        ("%c0, %c0, %c1", False), ("%c0, %c0, %c-1", False), ("%c0, %c5, %s", False),
    ],
)  # fmt: skip
def test_which_loops_run(bounds: str, moves: bool) -> None:
    quiet = f"""scf.for {bounds} (%i: int32) {{
      %x = tile.load %N[%bx] : int32 %q = arith.floordiv %s, %bx : int32 scf.yield }}"""
    assert any("floordiv" in line for line in before_loop(quiet)) is moves
    assert any("tile.load" in line for line in before_loop(quiet)) is moves


def test_loads_move_out_of_loops_that_run_and_write_nothing() -> None:
    quiet = LOOP.replace("tile.assume %b", "")
    assert any("tile.load" in line for line in before_loop(quiet.format(upper="%m", effect="")))
    assert not any("tile.load" in line for line in before_loop(quiet.format(upper="%s", effect="")))
    assert not any(
        "tile.load" in line for line in before_loop(quiet.format(upper="%c5", effect="tile.store %y, %N[%j]"))
    )
    assert not any("tile.load" in line for line in before_loop(quiet.format(upper="%c5", effect=""), loads=False))


def test_conditional_work_stays_conditional() -> None:
    body = """
    scf.for %c0, %c5, %c1 (%i: int32) {
      scf.if %b {
        %q = arith.floordiv %bx, %s : int32
        tile.store %q, %N[%i]
        scf.yield
      } { scf.yield }
      scf.yield
    }"""
    assert after(Licm(), body)[0] == "scf.for %c0, %c5, %c1 (%i: int32) {"


@settings(max_examples=30)
@given(programs(), st.integers(0, 99))
def test_meaning_stays(func, seed) -> None:  # type: ignore[no-untyped-def]
    check_pass(Licm(), func, inputs_for(func, seed))


@pytest.mark.parametrize(
    ("bounds", "runs"),
    [
        ("%c0, %c4, %c1", True),
        ("%c4, %c0, %c-1", True),
        ("%c0, %c4, %c-1", False),
        ("%c4, %c0, %c1", False),
        ("%c4, %c4, %c1", False),
        ("%c4, %c4, %c-1", False),
        ("%c0, %c4, %s", False),
        ("%c0, %s, %c1", False),
    ],
)
def test_a_division_leaves_a_loop_that_runs_in_its_direction(bounds: str, runs: bool) -> None:
    body = f"scf.for {bounds} (%i: int32) {{\n%q = arith.floordiv %bx, %s : int32\ntile.store %q, %N[%i]\nscf.yield\n}}"
    assert (after(Licm(), body)[0] == "%q = arith.floordiv %bx, %s : int32") is runs


def test_a_division_stays_in_a_while_loop() -> None:
    body = """
    scf.while {
      %more = arith.cmp %s, %bx {predicate = "lt"} : bool
      scf.condition %more
    } {
      %t = arith.add %s, %bx : int32
      %q = arith.floordiv %t, %s : int32
      tile.store %q, %N[%bx]
      scf.yield
    }"""
    lines = after(Licm(), body)
    assert lines.index("%q = arith.floordiv %t, %s : int32") > lines.index("scf.while {")
    assert lines.index("%t = arith.add %s, %bx : int32") < lines.index("scf.while {")
