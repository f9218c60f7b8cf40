"""predicate-loads: what branches of pipelined loops load for their products."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.ir_cases import after, filecheck, kernel, program
from tests.support.programs import check_pass
from tiledsl.dialects.tile import KernelOp
from tiledsl.passes.predicate_loads import PredicateLoads
from tiledsl.runtime.target import Target

PARAMETERS = "A: 64*96*float32, B: 64*96*float32, C: 64*96*float32, P: 8*bool, I: 8*int32, s: int32, b: bool"
LOOP = """
%zero = arith.constant {value = 0.0} : tensor<16x16xfloat32>
%rows = tensor.iota {axis = 0} : tensor<16x1xint32>
%columns = tensor.iota {axis = 1} : tensor<1x16xint32>
%y = tile.load %B[%rows, %columns] {guarded = true} : tensor<16x16xfloat32>
%r = scf.for %c0, %c4, %c1[%zero] {num_stages = STAGES} : tensor<16x16xfloat32> (%k: int32, %sum: tensor<16x16xfloat32>) {
  %p = tile.load %P[%k] {guarded = true} : bool
  %q = scf.if %p : tensor<16x16xfloat32> {
    THEN
    %t = tensor.dot %x, %y, %sum : tensor<16x16xfloat32>
    scf.yield [%t]
  } {
    ELSE
  }
  AFTER
  scf.yield [%q]
}
tile.store %r, %C[%rows, %columns] {guarded = true}
"""  # noqa: E501
THEN = """
    %at = arith.mul %k, %c16 : int32
    %place = arith.add %at, %columns : tensor<1x16xint32>
    %x = tile.load %A[%rows, %place] {guarded = true} : tensor<16x16xfloat32>"""
ELSE = "scf.yield [%sum]"


def loop(then: str = THEN, orelse: str = ELSE, last: str = "", stages: int = 3) -> str:
    body = LOOP.replace("STAGES", str(stages)).replace("THEN", then).replace("ELSE", orelse)
    return body.replace("AFTER", last)


def body_of_loop(text: str, **options: object) -> list[str]:
    lines = after(PredicateLoads(), text, parameters=PARAMETERS, **options)
    first = next(number for number, line in enumerate(lines) if "scf.for" in line)
    return lines[first + 1 : -2]


def unchanged(text: str) -> bool:
    return after([], text, parameters=PARAMETERS) == after(PredicateLoads(), text, parameters=PARAMETERS)


def inputs(flags: str, seed: int = 0) -> list[object]:
    generator = np.random.default_rng(seed)
    tiles = [generator.integers(-4, 5, (64, 96)).astype(np.float32) for _ in range(3)]
    chosen = np.array([flag == "1" for flag in flags])
    return [*tiles, chosen, np.array([1, -1, 2, 0, 3, -9, 1, 1], np.int32), 3, True]


def meaning_is_kept(text: str) -> None:
    for flags in ("10110000", "00000000", "11111111"):
        check_pass(PredicateLoads(), kernel(PARAMETERS, text), inputs(flags))


def test_a_load_and_its_indices_leave_the_branch() -> None:
    filecheck(
        body_of_loop(loop()),
        """
        %p = tile.load %P[%k] {guarded = true} : bool
        %at = arith.mul %k, %c16 : int32
        %place = arith.add %at, %columns : tensor<1x16xint32>
        %x = tile.load %A[%rows, %place] mask=%p {guarded = true} : tensor<16x16xfloat32>
        %q = scf.if %p : tensor<16x16xfloat32> {
        %t = tensor.dot %x, %y, %sum : tensor<16x16xfloat32>
        scf.yield [%t]
        } {
        scf.yield [%sum]
        }
        scf.yield [%q]
        """,
    )
    meaning_is_kept(loop())


def test_the_other_branch_has_the_opposite_mask_beside_its_own() -> None:
    orelse = """
    %low = arith.cmp %rows, %c5 {predicate = "lt"} : tensor<16x1xbool>
    %z = tile.load %B[%rows, %columns] mask=%low {guarded = true} : tensor<16x16xfloat32>
    %u = tensor.dot %z, %z, %sum : tensor<16x16xfloat32>
    scf.yield [%u]"""
    lines = body_of_loop(loop(orelse=orelse))
    filecheck(
        lines[4:9],
        """
        %0 = arith.not %p : bool
        %low = arith.cmp %rows, %c5 {predicate = "lt"} : tensor<16x1xbool>
        %1 = arith.and %low, %0 : tensor<16x1xbool>
        %z = tile.load %B[%rows, %columns] mask=%1 {guarded = true} : tensor<16x16xfloat32>
        %q = scf.if %p : tensor<16x16xfloat32> {
        """,
    )
    meaning_is_kept(loop(orelse=orelse))


def test_an_index_that_the_branch_loads_is_loaded_under_the_mask_too() -> None:
    then = THEN.replace("%at = arith.mul %k", "%i = tile.load %I[%k] {guarded = true} : int32\n%at = arith.mul %i")
    then = then.replace("tile.load %A[%rows, %place]", "tile.load %A[%rows, %place] mask=%b")
    filecheck(
        body_of_loop(loop(then))[1:6],
        """
        %i = tile.load %I[%k] mask=%p {guarded = true} : int32
        %at = arith.mul %i, %c16 : int32
        %place = arith.add %at, %columns : tensor<1x16xint32>
        %0 = arith.and %b, %p : bool
        %x = tile.load %A[%rows, %place] mask=%0 {guarded = true} : tensor<16x16xfloat32>
        """,
    )


def test_loads_leave_branches_of_branches() -> None:
    inner = """
    %few = arith.cmp %k, %s {predicate = "lt"} : bool
    %q2 = scf.if %few : tensor<16x16xfloat32> {
      %w = tile.load %B[%rows, %columns] {guarded = true} : tensor<16x16xfloat32>
      %v = tensor.dot %w, %w, %sum : tensor<16x16xfloat32>
      scf.yield [%v]
    } {
      scf.yield [%sum]
    }"""
    filecheck(
        body_of_loop(loop(inner + THEN))[1:7],
        """
        %few = arith.cmp %k, %s {predicate = "lt"} : bool
        %0 = arith.and %few, %p : bool
        %w = tile.load %B[%rows, %columns] mask=%0 {guarded = true} : tensor<16x16xfloat32>
        %at = arith.mul %k, %c16 : int32
        %place = arith.add %at, %columns : tensor<1x16xint32>
        %x = tile.load %A[%rows, %place] mask=%p {guarded = true} : tensor<16x16xfloat32>
        """,
    )
    meaning_is_kept(loop(inner + THEN))


@pytest.mark.parametrize(("divisor", "moves"), [("%c2", True), ("%c0", False), ("%c-1", False), ("%s", False)])
def test_what_may_fail_stays(divisor: str, moves: bool) -> None:
    text = loop(THEN.replace("arith.mul %k, %c16", f"arith.floordiv %k, {divisor}"))
    assert unchanged(text) is not moves


SUMS = "%x = arith.mul %sum, %sum : tensor<16x16xfloat32>"
ADDED = "%u = arith.add %h, %sum : tensor<16x16xfloat32>\nscf.yield [%u]"
LOADED = "%h = tile.load %A[%rows, %columns] {guarded = true} : tensor<16x16xfloat32>"


@pytest.mark.parametrize(
    "text",
    [
        loop(stages=1),
        loop(stages=0),
        loop(last="tile.assume %b"),
        loop(last="tile.store %q, %A[%rows, %columns] {guarded = true}"),
        loop(last="scf.for %c0, %c4, %c1 (%j: int32) {\nscf.yield\n}"),
        loop(SUMS, f"{LOADED}\nscf.yield [%h]"),
        loop(SUMS, f"{LOADED}\n{ADDED}"),
    ],
    ids=["one stage", "not asked", "fixed place", "written", "loop inside", "handed on", "no product"],
)  # fmt: skip
def test_loops_that_stay(text: str) -> None:
    assert unchanged(text)


@pytest.mark.parametrize("stages", [0, 1])
def test_loops_that_pipeline_loops_may_deepen_count_too(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def moves(arch: int) -> bool:
        return any("mask=%p" in line for line in body_of_loop(loop(stages=stages), target=Target("cuda", arch)))

    assert [moves(arch) for arch in (80, 90, 100)] == [False, True, False]
    monkeypatch.setattr(Target, "max_shared_bytes", 2048)  # two tiles of 16 x 16
    assert moves(90)
    monkeypatch.setattr(Target, "max_shared_bytes", 2047)
    made = program(loop(stages=stages), parameters=PARAMETERS, target=Target("cuda", 90))
    PredicateLoads().run(made)
    (found,) = [op for op in made.root.walk() if isinstance(op, KernelOp)]
    assert not found.remarks and not moves(90)


@pytest.mark.parametrize(("grid", "moves"), [((132,), True), ((66, 2), True), ((133,), False), (("%m",), False)])
def test_loops_that_ask_for_nothing_count_where_nothing_else_runs(grid: tuple[int | str, ...], moves: bool) -> None:
    def found(stages: int) -> bool:
        options = {"grid": grid, "target": Target("cuda", 90), "parameters": f"{PARAMETERS}, D: m*float32"}
        return any("mask=%p" in line for line in after(PredicateLoads(), loop(stages=stages), **options))

    assert found(2) and found(1) == moves


def test_loops_over_a_dimension_of_one_load_nothing_ahead_of_their_own() -> None:
    def moves(text: str) -> bool:
        return any("mask=%p" in line for line in body_of_loop(text, target=Target("cuda", 90)))

    one = loop(stages=1).replace("%P[%k] {guarded = true}", "%O[%c0, %k]")
    assert not any("mask=%p" in line for line in after(
        PredicateLoads(), one, parameters=f"{PARAMETERS}, O: 8*1*bool", target=Target("cuda", 90)
    ))  # fmt: skip
    assert moves(loop(stages=1))


def test_a_row_leaves_the_branch_with_the_tiles() -> None:
    row = (
        THEN
        + """
    %places = tensor.iota {axis = 0} : tensor<16xint32>
    %v = tile.load %A[%s, %places] {guarded = true} : tensor<16xfloat32>"""
    )
    text = loop(row)
    assert sum("mask=%p" in line for line in body_of_loop(text)) == 2
    meaning_is_kept(text)


@pytest.mark.parametrize(("stages", "moves"), [(227, True), (228, False)])
def test_what_shared_memory_does_not_hold_stays(stages: int, moves: bool) -> None:
    made = program(loop(stages=stages), parameters=PARAMETERS, target=Target("cuda", 90))
    PredicateLoads().run(made)
    found = next(op for op in made.root.walk() if isinstance(op, KernelOp))
    assert [len(found.remarks)] == [0 if moves else 1]
    if not moves:
        assert found.remarks[0].endswith(
            "does not load ahead what its branches load: 233472 bytes for 228 stages do not fit in shared memory;"
            " cuda:90 has 232448"
        )
    assert any("mask=" in line for line in body_of_loop(loop(stages=stages), target=Target("cuda", 90))) is moves


def test_switched_off() -> None:
    text = loop()
    assert after(PredicateLoads(enabled=False), text, parameters=PARAMETERS) == after([], text, parameters=PARAMETERS)
