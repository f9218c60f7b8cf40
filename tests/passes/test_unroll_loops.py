"""unroll-loops."""

from __future__ import annotations

import re

from tests.passes.ir_cases import kernel
from tests.support.programs import check_pass, inputs_for
from tiledsl.ir.printer import print_op
from tiledsl.passes.unroll_loops import UnrollLoops

LOOP = "scf.for %c0, %c{trips}, %c{step} {{unroll = {unroll}}} (%i: int32) {{ tile.store %c1.0, %A[%i] scf.yield }}"


def unrolled(body: str, **options: int) -> str:
    func = kernel("A: 40*float32", body)
    return print_op(check_pass(UnrollLoops(**options), func, inputs_for(func)))


def test_each_iteration_gets_its_index_as_a_constant() -> None:
    text = unrolled(LOOP.format(trips=6, step=2, unroll=1))
    assert "scf.for" not in text
    assert text.count("tile.store") == 3
    stored = re.findall(r"tile.store %\w+, %A\[(%\w+)\]", text)
    assert [re.search(rf"{each} = arith.constant {{value = (\d)}}", text)[1] for each in stored] == ["0", "2", "4"]  # type: ignore[index]


def test_hints_and_unknown_bounds_stay() -> None:
    assert "{unroll = 4}" in unrolled(LOOP.format(trips=6, step=2, unroll=4))
    dynamic = "scf.for %bx, %c4, %c1 {unroll = 1} (%i: int32) { tile.store %c1.0, %A[%i] scf.yield }"
    assert "{unroll = 1}" in unrolled(dynamic)


def test_the_limit_counts_copied_operations() -> None:
    assert "scf.for" not in unrolled(LOOP.format(trips=20, step=1, unroll=1), limit=40)
    assert "scf.for" in unrolled(LOOP.format(trips=20, step=1, unroll=1), limit=39)


def test_bounds_that_an_outer_index_makes_constant() -> None:
    text = unrolled(
        """scf.for %c0, %c3, %c1 {unroll = 1} (%i: int32) {
             %end = arith.add %i, %c1 : int32
             scf.for %c0, %end, %c1 {unroll = 1} (%j: int32) {
               %k = arith.mul %i, %c4 : int32 %n = arith.add %k, %j : int32
               tile.store %c1.0, %A[%n] scf.yield } scf.yield }"""
    )
    assert "scf.for" not in text and "arith.add" not in text
    assert text.count("tile.store") == 6


def test_carried_values_pass_from_copy_to_copy() -> None:
    text = unrolled(
        """%r = scf.for %c0, %c3, %c1[%c0.5] {unroll = 1} : float32 (%i: int32, %s: float32) {
             %t = tile.load %A[%i] : float32 %u = arith.add %s, %t : float32 scf.yield [%u] }
           tile.store %r, %A[%c9]"""
    )
    assert "scf.for" not in text and text.count("arith.add") == 3


def test_a_loop_that_never_runs_gives_its_initial_values() -> None:
    text = unrolled(
        """%r = scf.for %c3, %c3, %c1[%c0.5] {unroll = 1} : float32 (%i: int32, %s: float32) { scf.yield [%s] }
           tile.store %r, %A[%c9]"""
    )
    assert "scf.for" not in text
