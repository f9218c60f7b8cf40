"""unroll-loops."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import body_lines, filecheck, kernel
from tests.support.programs import check_pass, inputs_for
from tiledsl.ir.pass_manager import Program
from tiledsl.passes.unroll_loops import UnrollLoops

LOOP = "scf.for %c0, %c{trips}, %c{step} {{unroll = {unroll}}} (%i: int32) {{ tile.store %c1.0, %A[%i] scf.yield }}"


def unrolled(body: str, **options: int) -> list[str]:
    func = kernel("A: 40*float32", body)
    return body_lines(Program(check_pass(UnrollLoops(**options), func, inputs_for(func))))


def test_each_iteration_gets_its_index_as_a_constant() -> None:
    filecheck(
        unrolled(LOOP.format(trips=6, step=2, unroll=1)),
        """
        tile.store %c1p0, %A[%c0]
        tile.store %c1p0, %A[%c2]
        tile.store %c1p0, %A[%c4]
        """,
    )


@pytest.mark.parametrize(
    ("bounds", "unroll"), [("%c0, %c6, %c2", 4), ("%c0, %c6, %c2", 0), ("%bx, %c4, %c1", 1), ("%c0, %bx, %c1", 1)]
)
def test_hints_and_unknown_bounds_stay(bounds: str, unroll: int) -> None:
    hint = f" {{unroll = {unroll}}}" if unroll else ""
    filecheck(
        unrolled(f"scf.for {bounds}{hint} (%i: int32) {{ tile.store %c1.0, %A[%i] scf.yield }}"),
        f"""
        scf.for {bounds}{hint} (%i: int32) {{
        tile.store %c1p0, %A[%i]
        scf.yield
        }}
        """,
    )


def test_the_limit_counts_copied_operations() -> None:
    loop = LOOP.format(trips=20, step=1, unroll=1)
    filecheck(unrolled(loop, limit=40), "\n".join(f"tile.store %c1p0, %A[%c{i}]" for i in range(20)))
    assert unrolled(loop, limit=39)[0] == "scf.for %c0, %c20, %c1 {unroll = 1} (%i: int32) {"


def test_bounds_that_an_outer_index_makes_constant() -> None:
    body = """
    scf.for %c0, %c3, %c1 {unroll = 1} (%i: int32) {
      %end = arith.add %i, %c1 : int32
      scf.for %c0, %end, %c1 {unroll = 1} (%j: int32) {
        %k = arith.mul %i, %c4 : int32
        %n = arith.add %k, %j : int32
        tile.store %c1.0, %A[%n]
        scf.yield }
      scf.yield }"""
    filecheck(unrolled(body), "\n".join(f"tile.store %c1p0, %A[%c{4 * i + j}]" for i in range(3) for j in range(i + 1)))


def test_bounds_that_an_outer_index_makes_constant_in_a_branch_of_a_loop_that_stays() -> None:
    made = unrolled("""
    scf.for %c0, %c3, %c1 {unroll = 1} (%i: int32) {
      scf.for %c0, %bx, %c1 (%k: int32) {
        %low = arith.cmp %k, %c5 {predicate = "lt"} : bool
        scf.if %low {
          %end = arith.add %i, %c1 : int32
          scf.for %c0, %end, %c1 {unroll = 1} (%j: int32) { tile.store %c1.0, %A[%j] scf.yield }
          scf.yield } { scf.yield }
        scf.yield }
      scf.yield }""")
    assert sum("scf.for" in line for line in made) == 3 and sum("tile.store" in line for line in made) == 1 + 2 + 3


def test_carried_values_pass_from_copy_to_copy() -> None:
    body = """
    %r = scf.for %c0, %c3, %c1[%c0.5] {unroll = 1} : float32 (%i: int32, %s: float32) {
      %t = tile.load %A[%i] : float32
      %u = arith.add %s, %t : float32
      scf.yield [%u] }
    tile.store %r, %A[%c9]"""
    filecheck(
        unrolled(body),
        """
        %t = tile.load %A[%c0] : float32
        %u = arith.add %c0p5, %t : float32
        %t_1 = tile.load %A[%c1] : float32
        %u_1 = arith.add %u, %t_1 : float32
        %t_2 = tile.load %A[%c2] : float32
        %u_2 = arith.add %u_1, %t_2 : float32
        tile.store %u_2, %A[%c9]
        """,
    )


def test_a_loop_that_never_runs_gives_its_initial_values() -> None:
    body = """
    %r = scf.for %c3, %c3, %c1[%c0.5] {unroll = 1} : float32 (%i: int32, %s: float32) { scf.yield [%s] }
    tile.store %r, %A[%c9]"""
    filecheck(unrolled(body), "tile.store %c0p5, %A[%c9]")


def test_short_loops_over_the_array_of_a_thread_are_unrolled() -> None:
    for turns, lockstep, array, whole in (
        (16, True, "own", 1),
        (17, True, "own", 0),
        (16, False, "own", 0),
        (16, True, "s", 0),
    ):
        text = f"""
          %own = tile.alloc : buffer<20*float32, local> %s = tile.alloc : buffer<20*float32, shared>
          tile.parallel {{extents = (8,), lockstep = {str(lockstep).lower()}}} (%tx: int32) {{
            scf.for %c0, %c{turns}, %c1 (%i: int32) {{
              %j = arith.add %i, %c2 : int32 tile.store %c0.5, %{array}[%j] scf.yield }} }}"""
        found = unrolled(text)
        assert sum(line.startswith("tile.store") for line in found) == (turns if whole else 1)
        assert any(line.startswith("scf.for") for line in found) != bool(whole)


@pytest.mark.parametrize(
    ("hint", "whole"),
    [
        ("", True),
        ("{unroll = 1}", True),
        ("{unroll = 2}", False),
        ("{num_stages = 2}", False),
        ("{vectorized = true}", False),
    ],
)
def test_loops_over_an_array_that_are_asked_for_otherwise_stay(hint: str, whole: bool) -> None:
    text = f"""
      %own = tile.alloc : buffer<4*float32, local>
      tile.parallel {{extents = (8,), lockstep = true}} (%tx: int32) {{
        scf.for %c0, %c4, %c1 {hint} (%i: int32) {{ tile.store %c0.5, %own[%i] scf.yield }} }}"""
    assert (sum(line.startswith("tile.store") for line in unrolled(text)) == 4) is whole


@pytest.mark.parametrize(("stores", "whole"), [(63, True), (64, False)])
def test_long_bodies_over_an_array_stay(stores: int, whole: bool) -> None:
    """Of more than 1024 operations, the yield of each turn included."""
    body = "tile.store %c0.5, %own[%i] " * stores
    text = f"""
      %own = tile.alloc : buffer<16*float32, local>
      tile.parallel {{extents = (2,), lockstep = true}} (%tx: int32) {{
        scf.for %c0, %c16, %c1 (%i: int32) {{ {body} scf.yield }} }}"""
    assert any(line.startswith("scf.for") for line in unrolled(text)) is not whole


def test_loops_over_an_array_come_before_marked_loops_around_them() -> None:
    def loops(limit: int, array: str) -> int:
        text = f"""
          %own = tile.alloc : buffer<4*float32, local> %s = tile.alloc : buffer<4*float32, shared>
          tile.parallel {{extents = (8,), lockstep = true}} (%tx: int32) {{
            scf.for %c0, %c16, %c1 {{unroll = 1}} (%k: int32) {{
              scf.for %c0, %c4, %c1 {{unroll = 1}} (%i: int32) {{ tile.store %c0.5, %{array}[%i] scf.yield }}
              scf.yield }}
            scf.for %c0, %c4, %c1 {{unroll = 1}} (%i: int32) {{ tile.store %c0.5, %{array}[%i] scf.yield }} }}"""
        return sum(line.startswith("scf.for") for line in unrolled(text, limit=limit))

    assert loops(400, "own") == 0
    assert loops(80, "own") == 1  # that over k, and both over the array are gone
    assert loops(80, "s") > 1  # nothing asks for these before the loop around them


def test_an_index_that_is_loaded_does_not_ask_for_it() -> None:
    text = """
      %own = tile.alloc : buffer<8*float32, local>
      %places = tile.alloc : buffer<8*int32, shared>
      tile.parallel {extents = (8,), lockstep = true} (%tx: int32) {
        scf.for %c0, %c4, %c1 (%i: int32) {
          tile.store %c3, %places[%i]
          %place = tile.load %places[%i] : int32
          tile.store %c0.5, %own[%place] scf.yield }
      }"""
    assert sum(line.startswith("scf.for") for line in unrolled(text)) == 1
