"""schedule-loops: several loops, several products of tiles, and which sums are in flight; exact IR."""

from __future__ import annotations

import re

import pytest

from tests.passes.test_schedule_loops import (
    EARLIER,
    FACTOR,
    HALF,
    OF_SCORES,
    SCORES,
    attention,
    decoding,
    launch,
    lines_of,
    scheduled,
)
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.printer import print_op
from tiledsl.passes.schedule_loops import ScheduleLoops

LOOP = attention(OF_SCORES, "").partition("%r = ")[2].partition("%out = ")[0]
END = f"%out = arith.cast %r_2 : {HALF}\ntriton.store_block %out, %O[%part, %c0] {{axes = (0, 1)}}\n"


def renamed(number: int, loop: str = LOOP) -> str:
    names = r"%(r|i|acc|v|row|late_row|k|kt|s|f|scaled|p|sum)\b"
    return re.sub(names, rf"%\1_{number}", "%r = " + loop)


def after_pass(*between: str, second: str = LOOP) -> list[str]:
    """The lines of a launch of two loops, and of what is given between them."""
    head = attention(OF_SCORES, "").partition("%out = ")[0]
    root = launch("\n".join([head, *between, renamed(2, second), END]))
    ScheduleLoops().run(Program(root))
    return [line.strip() for line in print_op(root).splitlines()]


def test_what_stands_between_loops_and_needs_none_comes_before_them() -> None:
    """But writes stay, what needs a result, and loops."""
    moved = ["%w = arith.mul %n, %c8 : int32", "%l = triton.load %S : float32"]
    stays = [f"%u = arith.add %r, %r : {SCORES}", "triton.store %S, %l"]
    lines = after_pass(moved[0], stays[0], moved[1], stays[1], renamed(3), second=LOOP.replace("[%zero]", "[%u]"))
    order = [line.partition(" = scf.for")[0] for line in lines if "scf.for" in line or line in (*moved, *stays)]
    assert order == [*moved, "%r", *stays, "%r_3", "%r_2"]


@pytest.mark.parametrize("late", [True, False])
def test_all_loops_rescale_late_or_none(late: bool) -> None:
    second = LOOP if late else LOOP.replace(OF_SCORES, f"{FACTOR}\n{EARLIER}")
    marks = [line for line in after_pass(second=second) if line.startswith("gluon.cluster")]
    held = "gluon.cluster {stage = 1, slot = 1}"
    assert marks == 2 * [
        "gluon.cluster",
        "gluon.cluster {slot = 2}",
        held if late else "gluon.cluster {slot = 3}",
        held,
    ]


def test_of_several_products_of_tiles_the_first_runs_a_turn_ahead() -> None:
    """Each part of a turn computes of the index what it needs; what no product waits for follows the last one."""
    found = scheduled(f"""
        %q = triton.load_block %Q[%c0, %c0] {{axes = (0, 1)}} : {HALF}
        %r, %t = scf.for %c0, %n, %c1[%zero, %c0] : {SCORES}, int32 (%i: int32, %acc: {SCORES}, %count: int32) {{
          %row = arith.mul %i, %c8 : int32
          %k = triton.load_block %K[%row, %c0] {{axes = (0, 1)}} : {HALF}
          %v = triton.load_block %V[%row, %c0] {{axes = (0, 1)}} : {HALF}
          %kt = tensor.transpose %k {{permutation = (1, 0)}} : {HALF}
          %vt = tensor.transpose %v {{permutation = (1, 0)}} : {HALF}
          %late_row = arith.mul %i, %n : int32
          %s = tensor.dot %q, %kt, %zero : {SCORES}
          %d = tensor.dot %q, %vt, %zero : {SCORES}
          %big = arith.cmp %row, %late_row {{predicate = "lt"}} : bool
          %m = arith.select %big, %s, %zero : {SCORES}
          %x = arith.mul %m, %d : {SCORES}
          %p = arith.cast %x : {HALF}
          %sum = tensor.dot %p, %k, %acc : {SCORES}
          %next = arith.add %count, %late_row : int32
          scf.yield [%sum, %next]
        }}""")
    expected = f"""
        gluon.schedule {{runs = (false,)}}
        %q = triton.load_block %Q[%c0, %c0] {{axes = (0, 1), ring = "item"}} : {HALF}
        %r, %t = scf.for %c0, %n, %c1[%zero, %c0] : {SCORES}, int32 (%i: int32, %acc: {SCORES}, %count: int32) {{
        gluon.cluster {{slot = 1}}
        %row = arith.mul %i, %c8 : int32
        %k = triton.load_block %K[%row, %c0] {{axes = (0, 1), ring = "k"}} : {HALF}
        %kt = tensor.transpose %k {{permutation = (1, 0)}} : {HALF}
        %s = tensor.dot %q, %kt, %zero : {SCORES}
        gluon.cluster {{stage = 1}}
        %row_1 = arith.mul %i, %c8 : int32
        %v = triton.load_block %V[%row_1, %c0] {{axes = (0, 1), ring = "v"}} : {HALF}
        %vt = tensor.transpose %v {{permutation = (1, 0)}} : {HALF}
        %d = tensor.dot %q, %vt, %zero : {SCORES}
        %late_row = arith.mul %i, %n : int32
        %big = arith.cmp %row_1, %late_row {{predicate = "lt"}} : bool
        %m = arith.select %big, %s, %zero : {SCORES}
        %x = arith.mul %m, %d : {SCORES}
        %p = arith.cast %x : {HALF}
        %sum = tensor.dot %p, %k, %acc : {SCORES}
        gluon.cluster {{stage = 1, slot = 2}}
        %next = arith.add %count, %late_row : int32
        scf.yield [%sum, %next]
        }}"""
    assert found == lines_of(expected)


@pytest.mark.parametrize(("yielded", "in_flight"), [("%sum, %more", "((0, 1),)"), ("%more, %sum", "((0,),)")])
def test_sums_that_the_next_turn_awaits(yielded: str, in_flight: str) -> None:
    """Those of a turn's last products, from the last on, as long as each is needed behind a product and before it is
    computed anew."""
    text = (
        decoding("%twice")
        .replace("%r, %t =", "%r, %o, %t =")
        .replace("[%zero, %c0] :", f"[%zero, %zero, %c0] : {SCORES},")
    )
    text = text.replace("%count: int32)", f"%other: {SCORES}, %count: int32)")
    more = f"%half = arith.mul %other, %other : {SCORES}\n%more = tensor.dot %p, %k, %half : {SCORES}\n"
    text = text.replace("scf.yield [%sum, %next]", f"{more}scf.yield [{yielded}, %next]")
    assert scheduled(text, 8)[0] == f"gluon.schedule {{runs = (false,), in_flight = {in_flight}}}"
