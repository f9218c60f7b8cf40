"""parallelize-loops: updates of a thread's own elements, sums of partial sums, and indices that are digits of one."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import body_lines, kernel
from tests.support.programs import check_pass, inputs_for
from tiledsl.ir.pass_manager import Program
from tiledsl.passes.lower_tile_ops import LowerTileOps
from tiledsl.passes.parallelize_loops import ParallelizeLoops
from tiledsl.passes.unroll_loops import UnrollLoops
from tiledsl.passes.vectorize_parallel import VectorizeParallel

PARAMETERS = "A: 8*4*float32, X: 4*float32, B: 8*float32, C: 8*float32, m: int32, b: bool"
FILL = """scf.for %c0, %c4, %c1 {vectorized = true} (%v: int32) {
            %w = tile.load %A[%tx, %v] : float32 tile.store %w, %a[%v]
            %z = tile.load %X[%v] : float32 tile.store %z, %x[%v] scf.yield }"""


def threads(*body: str) -> list[str]:
    """What unroll-loops and parallelize-loops make of eight threads; vectorize-parallel must go on to mean the same."""
    text = f"""%a = tile.alloc : buffer<4*float32, local> %x = tile.alloc : buffer<4*float32, local>
               %t = tile.alloc : buffer<1*float32, local> %u = tile.alloc : buffer<1*float32, local>
               %s = tile.alloc : buffer<8*4*float32, shared> %r = tile.alloc : buffer<4*float32, shared>
               %d = tile.alloc : buffer<4*4*float32, shared>
               tile.copy %A[%c0, %c0], %d {{shape = (4, 4), source_axes = (0, 1), target_axes = (0, 1)}}
               tile.copy %A[%c0, %c0], %s {{shape = (8, 4), source_axes = (0, 1), target_axes = (0, 1)}}
               tile.copy %X[%c0], %r {{shape = (4,), source_axes = (0,), target_axes = (0,)}}
               tile.parallel {{extents = (8,), lockstep = true}} (%tx: int32) {{
                 {" ".join(body)}
                 %y = tile.load %t[%c0] : float32 tile.store %y, %B[%tx]
                 %q = tile.load %u[%c0] : float32 tile.store %q, %C[%tx] }}"""
    func = kernel(PARAMETERS, text)
    found = check_pass([UnrollLoops(), ParallelizeLoops()], func, inputs_for(func), uninitialised="zero")
    check_pass([LowerTileOps(), VectorizeParallel()], found, inputs_for(found), tolerance=1e-6, uninitialised="zero")
    return body_lines(Program(found))


def turns(term: str, place: str = "%t[%c0]", combine: str = "add", more: str = "") -> str:
    return f"""scf.for %c0, %c4, %c1 (%k: int32) {{ {term} %o = tile.load {place} : float32
                 %n = arith.{combine} %o, %p : float32 tile.store %n, {place} {more} scf.yield }}"""


POINTS = "tile.parallel {extents = (4,)} (%v: int32) { %w = tile.load %A[%tx, %v] : float32 tile.store %w, %a[%v] }"
NAMED = """scf.for %c0, %c4, %c1 (%v: int32) { %w = tile.load %a[%v] : float32 %z = arith.mul %w, %c2.0 : float32
             tile.store %z, %a[%v] scf.yield }"""
PRODUCT = """%g = tile.load %a[%k] : float32 %h = tile.load %x[%k] : float32 %p = arith.mul %g, %h : float32"""


@pytest.mark.parametrize(
    "body",
    [
        (FILL, turns(PRODUCT)),
        (FILL, turns(PRODUCT), turns("%p = tile.load %a[%k] : float32", "%u[%c0]", "max")),
        (turns(PRODUCT.replace("%a[%k]", "%s[%tx, %k]").replace("%x[%k]", "%r[%k]")),),
        (FILL, turns("%p = tile.load %x[%k] : float32")),  # the same in all threads
        ("tile.fill %c0.5, %t", FILL, f"scf.for %c0, %c3, %c1 (%i: int32) {{ {turns(PRODUCT)} scf.yield }}"),
        (
            FILL,
            '%c = arith.cmp %tx, %c3 {predicate = "lt"} : bool scf.if %c {',
            turns(PRODUCT),
            "scf.yield } { scf.yield }",
        ),
        (POINTS, turns(PRODUCT.replace("%x[%k]", "%a[%k]"))),
        ("tile.fill %c0.5, %a", turns(PRODUCT.replace("%x[%k]", "%a[%k]"))),
    ],
    ids=["product", "two", "shared", "alike", "in-a-loop", "in-a-branch", "points", "filled"],
)
def test_sums_of_a_thread_are_reductions(body: tuple[str, ...]) -> None:
    found = threads(*body)
    assert any("tile.atomic" in line for line in found)
    assert not any("scf.for" in line and "%k" in line for line in found)


@pytest.mark.parametrize(
    "body",
    [
        (turns("%p = tile.load %r[%k] : float32"),),  # a row of four is smaller than eight threads' sums of four
        (turns("%p = tile.load %d[%k, %c0] : float32"),),  # nor is half of them
        (FILL, turns(PRODUCT, "%t[%c0]", "mul")),
        (FILL, turns(PRODUCT, more="tile.store %n, %a[%k]")),
        (FILL, turns(PRODUCT, "%a[%k]")),
        (FILL, "%e = tile.load %a[%c2] : float32 tile.store %e, %u[%c0]", turns(PRODUCT)),  # which has a name
        (FILL, FILL.replace("%a[%v]", "%a[%c1]").replace("%x[%v]", "%x[%c1]"), turns(PRODUCT)),
        (FILL, NAMED, turns(PRODUCT)),
        (FILL, turns(PRODUCT).replace("%c4", "%c1")),
        (FILL, "%e = arith.min %m, %c4 : int32", turns(PRODUCT).replace("scf.for %c0, %c4", "scf.for %c0, %e")),
        (FILL, turns(PRODUCT).replace("%c1 (", "%c1 {num_stages = 2} (")),
        (FILL, turns("scf.if %b { scf.yield } { scf.yield } " + PRODUCT)),
        (FILL, turns(PRODUCT, "%s[%tx, %c0]")),  # no element of a thread's own
        (turns("%p = tile.load %A[%tx, %k] : float32"),),
    ],
    ids=[
        "small",
        "half",
        "product",
        "kept",
        "moves",
        "named",
        "named-by-lanes",
        "named-by-turns",
        "once",
        "unknown",
        "stages",
        "branch",
        "shared",
        "memory",
    ],
)
def test_other_loops_of_a_thread_have_their_turns(body: tuple[str, ...]) -> None:
    assert not any("tile.atomic" in line for line in threads(*body))


def test_loops_over_elements_of_each_thread_are_parallel() -> None:
    body = """scf.for %c0, %c4, %c1 (%k: int32) { %w = tile.load %s[%tx, %k] : float32
                %z = arith.mul %w, %c2.0 : float32 tile.store %z, %s[%tx, %k] scf.yield }"""
    assert "tile.parallel {extents = (4,)} (%k: int32) {" in threads(body)


def tiles(body: str, summed: str = '{kind = "sum", axis = 1}', fill: str = "%c0.0", more: str = "") -> list[str]:
    text = f"""%s = tile.alloc : buffer<8*12*float32, fragment> %p = tile.alloc : buffer<8*4*float32, fragment>
               %o = tile.alloc : buffer<8*float32, fragment> %v = tile.alloc : buffer<4*float32, fragment>
               %h = tile.alloc : buffer<8*float16, fragment>
               tile.copy %A[%c0, %c0], %s {{shape = (8, 12), source_axes = (0, 1), target_axes = (0, 1)}}
               tile.fill {fill}, %p {body} tile.reduce %p, %o {summed} {more}
               tile.copy %o, %B[%c0] {{shape = (8,), source_axes = (0,), target_axes = (0,)}}"""
    func = kernel("A: 8*12*float32, B: 8*float32", text)
    made = check_pass(ParallelizeLoops(), func, inputs_for(func), tolerance=1e-6)
    check_pass([LowerTileOps(), VectorizeParallel()], made, inputs_for(made), tolerance=1e-6)
    return body_lines(Program(made))


PARTS = """scf.for %c0, %c3, %c1 (%k: int32) { tile.parallel {extents = (8, 4)} (%i: int32, %j: int32) {
             %f = arith.mul %k, %c4 : int32 %g = arith.add %f, %j : int32 %x = tile.load %s[%i, %g] : float32
             %q = tile.load %p[%i, %j] : float32 %n = arith.add %q, %x : float32 tile.store %n, %p[%i, %j] }
           scf.yield }"""


def test_partial_sums_that_are_summed_are_one_sum() -> None:
    found = tiles(PARTS)
    assert "%p = tile.alloc : buffer<8*1*float32, fragment>" in found
    assert "tile.parallel {extents = (8, 12)} (%i: int32, %j: int32) {" in found
    assert any(line.startswith("%x = tile.load %s[%i, %j]") for line in found)


def test_partial_sums_that_are_summed_twice_are_one_sum() -> None:
    assert "%p = tile.alloc : buffer<8*1*float32, fragment>" in tiles(
        PARTS, more='tile.reduce %p, %o {kind = "sum", axis = 1, clear = false}'
    )


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (PARTS, {"summed": '{kind = "max", axis = 1}'}),
        (PARTS, {"fill": "%c0.5"}),
        (PARTS, {"more": "%y = tile.load %p[%c0, %c1] : float32 tile.store %y, %o[%c0]"}),
        (PARTS.replace("arith.add %q, %x", "arith.max %q, %x"), {}),
        (PARTS, {"more": 'tile.reduce %p, %v {kind = "sum", axis = 0}'}),
        (PARTS, {"more": "tile.copy %p, %s {shape = (8, 4), source_axes = (0, 1), target_axes = (0, 1)}"}),
        (PARTS, {"more": 'tile.reduce %p, %h {kind = "sum", axis = 1}'}),  # rounded at each step
    ],
    ids=["largest", "begun", "read", "sum-of-largest", "other-axis", "copied", "narrow"],
)
def test_partial_sums_stay_where_more_is_done_to_them(body: str, options: dict[str, str]) -> None:
    assert "%p = tile.alloc : buffer<8*4*float32, fragment>" in tiles(body, **options)


@pytest.mark.parametrize(
    ("dtype", "body", "named"),
    [
        ("float32", PARTS, True),
        ("int32", PARTS, False),
        ("float32", PARTS.replace("arith.add %q", "arith.max %q"), False),
    ],
    ids=["sums", "whole", "largest"],
)
def test_one_sum_in_place_of_partial_ones_is_another_order(dtype: str, body: str, named: bool) -> None:
    text = f"""%s = tile.alloc : buffer<8*12*float32, fragment> %p = tile.alloc : buffer<8*4*float32, fragment>
               %o = tile.alloc : buffer<8*float32, fragment> tile.fill %c0.0, %p {body}
               tile.reduce %p, %o {{kind = "sum", axis = 1}}""".replace("float32", dtype)
    if dtype == "int32":
        text = text.replace("%c0.0", "%c0")
    func = kernel("A: 8*12*float32, B: 8*float32", text)
    assert ParallelizeLoops().allowances(Program(func)) == ({"reassociation"} if named else frozenset())


@pytest.mark.parametrize(
    ("extents", "index", "merged"),
    [
        ("(3, 4)", "%f = arith.mul %i, %c4 : int32 %g = arith.add %f, %j : int32", True),
        ("(3, 4)", "%f = arith.mul %i, %c4 : int32 %g = arith.add %j, %f : int32", True),
        ("(3, 4)", "%f = arith.mul %c4, %i : int32 %g = arith.add %j, %f : int32", True),
        (
            "(3, 4)",
            "%f = arith.mul %i, %c4 : int32 %e = arith.mul %c4, %i : int32 %h = arith.add %j, %f : int32 "
            "%k = arith.add %e, %j : int32 %g = arith.min %h, %k : int32",
            True,
        ),
        (
            "(3, 4)",
            "%f = arith.mul %i, %c4 : int32 %e = arith.mul %c4, %i : int32 %h = arith.add %j, %f : int32 "
            "%k = arith.add %e, %j : int32 %d = arith.min %h, %k : int32 %g = arith.max %d, %e : int32",
            False,
        ),
        ("(3, 4)", "%f = arith.mul %bx, %c4 : int32 %g = arith.add %f, %j : int32", False),
        (
            "(3, 4)",
            "%f = arith.mul %j, %c4 : int32 %h = arith.add %f, %j : int32 %g = arith.min %h, %c11 : int32",
            False,
        ),
        ("(3, 4)", "%f = arith.add %i, %c4 : int32 %g = arith.add %f, %j : int32", False),
        (
            "(3, 4)",
            "%f = arith.mul %i, %c4 : int32 %h = arith.sub %f, %j : int32 %g = arith.max %h, %c0 : int32",
            False,
        ),
        (
            "(3, 2, 2)",
            "%f = arith.mul %i, %c4 : int32 %e = arith.mul %j, %c2 : int32 %d = arith.add %e, %k : int32 "
            "%g = arith.add %f, %d : int32",
            True,
        ),
        ("(4, 3)", "%f = arith.mul %j, %c4 : int32 %g = arith.add %f, %i : int32", True),
        ("(2, 4)", "%f = arith.mul %i, %c5 : int32 %g = arith.add %f, %j : int32", False),
        ("(3, 4)", "%f = arith.mul %i, %c4 : int32 %h = arith.add %f, %j : int32 %g = arith.min %h, %i : int32", False),
        ("(3, 4)", "%f = arith.mul %i, %c4 : int32 %h = arith.add %f, %j : int32 %g = arith.max %h, %f : int32", False),
        ("(3, 4)", "%f = arith.mul %i, %c4 : int32 %h = arith.add %f, %j : int32 %g = arith.max %h, %j : int32", False),
    ],
)
def test_indices_that_are_digits_of_one_are_one(extents: str, index: str, merged: bool) -> None:
    more = ", %k: int32" * (extents.count(",") - 1)
    body = f"""tile.parallel {{extents = {extents}}} (%i: int32, %j: int32{more}) {{ {index}
                 %x = tile.load %A[%g] : float32 tile.store %x, %B[%g] }}"""
    func = kernel("A: 12*float32, B: 12*float32", body)
    found = body_lines(Program(check_pass(ParallelizeLoops(), func, inputs_for(func))))
    (parallel,) = [line for line in found if "tile.parallel" in line]
    assert ("extents = (12,)" in parallel) is merged
    for off in (ParallelizeLoops(enabled=False), ParallelizeLoops(reductions=False)):
        assert not merged or "extents = (12,)" not in "".join(
            body_lines(Program(check_pass(off, func, inputs_for(func))))
        )
