"""parallelize-loops: serial loops that add up, or take the largest of, elements of tiles become reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import body_lines, filecheck, kernel, kernel_of
from tests.support.programs import check_pass, inputs_for
from tiledsl.dialects import tile
from tiledsl.ir.pass_manager import Program
from tiledsl.passes.parallelize_loops import ParallelizeLoops
from tiledsl.passes.parallelize_loops.digits import sum_at_once

HEAD = """%s = tile.alloc : buffer<6*8*float32, shared> %m = tile.alloc : buffer<6*float32, fragment>
          %l = tile.alloc : buffer<float32, local> %h = tile.alloc : buffer<6*float16, fragment>
          tile.copy %A[%c0, %c0], %s {shape = (6, 8), source_axes = (0, 1), target_axes = (0, 1)}
          tile.fill %c0.5, %m tile.store %c0.5, %l"""
TAIL = """%last = tile.load %l : float32 tile.store %last, %B[%c0, %c1] tile.copy %m, %B[%c0, %c0]
          {shape = (6,), source_axes = (0,), target_axes = (0,)}"""


def lines(body: str, reductions: bool = True) -> list[str]:
    """What stands between head and tail after the pass, which keeps what the program computes."""
    func = kernel("A: 6*8*float32, B: 6*8*float32, I: 8*int32", f"{HEAD} {body} {TAIL}")
    made = check_pass(ParallelizeLoops(reductions=reductions), func, inputs_for(func))
    return body_lines(Program(made))[7:-3]


def scopes(body: str) -> dict[str, str]:
    """Where each buffer of the head is after the pass."""
    made = Program(kernel("A: 6*8*float32, B: 6*8*float32, I: 8*int32", f"{HEAD} {body} {TAIL}"))
    ParallelizeLoops().run(made)
    outs = [op.out for op in made.root.walk() if isinstance(op, tile.AllocOp)]
    return {out.name: tile.buffer_type(out).scope for out in outs}


def over_columns(body: str) -> str:
    return f"scf.for %c0, %c8, %c1 (%k: int32) {{ {body} scf.yield }}"


def each_row(body: str) -> str:
    return f"tile.parallel {{extents = (6,)}} (%i: int32) {{ {body} }}"


ADDED = """%x = tile.load %s[%i, %k] : float32 %y = tile.load %m[%i] : float32
           %z = arith.add %y, %x : float32 tile.store %z, %m[%i]"""
ADDED_LINES = """
    %x = tile.load %s[%i, %k] : float32
    %y = tile.load %m[%i] : float32
    %z = arith.add %y, %x : float32
    tile.store %z, %m[%i]
    }"""


def test_a_sum_of_columns_takes_the_order_of_the_tile() -> None:
    filecheck(
        lines(over_columns(each_row(ADDED))),
        f"tile.parallel {{extents = (6, 8)}} (%i: int32, %k: int32) {{{ADDED_LINES}",
    )


def test_a_loop_in_a_parallel() -> None:
    filecheck(
        lines(each_row(over_columns(ADDED))),
        f"""
        tile.parallel {{extents = (6,)}} (%i: int32) {{
        tile.parallel {{extents = (8,)}} (%k: int32) {{{ADDED_LINES}
        }}""",
    )


def kinds(body: str) -> list[str]:
    return [line.split(" ")[0] for line in lines(body) if line.startswith(("tile.parallel", "scf.for"))]


def test_a_loop_that_all_points_update_alone_stays_in_their_parallel() -> None:
    """If anything else of the parallel reads what it updates, it would need one of its own, which it does not get: the
    points wait for one another."""
    adds = over_columns(ADDED.replace("%m[%i]", "%m[%c0]"))
    assert kinds(each_row(adds)) == ["tile.parallel", "tile.parallel"]
    beside = "%e = arith.cast %i : float32 tile.store %e, %m[%c0]"
    assert kinds(each_row(f"{beside} {adds}")) == ["tile.parallel", "scf.for"]


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ("", ["tile.parallel", "tile.parallel", "tile.parallel"]),
        ("%e = arith.cast %g : float32 tile.store %e, %m[%g]", ["tile.parallel", "tile.parallel", "scf.for"]),
    ],
)
def test_what_an_outer_parallel_does_counts(beside: str, expected: list[str]) -> None:
    nest = each_row(over_columns(ADDED)).replace("(6,)", "(2,)")
    assert kinds(f"tile.parallel {{extents = (3,)}} (%g: int32) {{ {beside} {nest} }}") == expected


def test_a_loop_of_threads_that_updates_nothing_is_parallel() -> None:
    body = each_row(over_columns("%x = tile.load %s[%i, %k] : float32 tile.store %x, %w[%i, %k]"))
    body = f"%w = tile.alloc : buffer<6*8*float32, shared> {body}"
    for threads in ("(6,)", "(6,), lockstep = true"):
        assert kinds(body.replace("(6,)", threads)) == ["tile.parallel", "tile.parallel"]
    adds = each_row(over_columns(ADDED)).replace("(6,)", "(6,), lockstep = true")
    assert kinds(adds) == ["tile.parallel", "scf.for"]


def test_what_a_parallel_does_beside_its_loop_gets_one_of_its_own() -> None:
    before = "%d = arith.add %i, %i : int32 %e = arith.cast %d : float32 tile.store %e, %m[%i]"
    after = "%u = tile.load %m[%i] : float32 %w = arith.mul %u, %e : float32 tile.store %w, %m[%i]"
    filecheck(
        lines(each_row(f"{before} {over_columns(ADDED)} {after}")),
        """
        tile.parallel {extents = (6,)} (%i: int32) {
        %d = arith.add %i, %i : int32
        %e = arith.cast %d : float32
        tile.store %e, %m[%i]
        }
        tile.parallel {extents = (6,)} (%i_1: int32) {
        tile.parallel {extents = (8,)} (%k: int32) {
        %x = tile.load %s[%i_1, %k] : float32
        %y = tile.load %m[%i_1] : float32
        %z = arith.add %y, %x : float32
        tile.store %z, %m[%i_1]
        }
        }
        tile.parallel {extents = (6,)} (%i_2: int32) {
        %d_1 = arith.add %i_2, %i_2 : int32
        %e_1 = arith.cast %d_1 : float32
        %u = tile.load %m[%i_2] : float32
        %w = arith.mul %u, %e_1 : float32
        tile.store %w, %m[%i_2]
        }""",
    )


def test_a_variable_of_the_block_becomes_a_tile_of_one_element() -> None:
    body = """%x = tile.load %s[%c1, %k] : float32 %y = tile.load %l : float32
              %z = arith.max %y, %x : float32 tile.store %z, %l"""
    made = lines(over_columns(body))
    filecheck(
        made,
        """
        tile.parallel {extents = (8,)} (%k: int32) {
        %x = tile.load %s[%c1, %k] : float32
        %y = tile.load %l : float32
        %z = arith.max %y, %x : float32
        tile.store %z, %l
        }
        """,
    )
    assert scopes(over_columns(body)) == {"s": "shared", "m": "fragment", "l": "fragment", "h": "fragment"}
    assert scopes(over_columns(each_row(ADDED)))["l"] == "local"  # what the loop does not update stays a variable
    shared = "%w = tile.alloc : buffer<6*float32, shared>" + over_columns(each_row(ADDED.replace("%m", "%w")))
    assert scopes(shared)["w"] == "shared"


def test_what_each_iteration_fills_gets_a_row_for_each() -> None:
    fill = each_row("%x = tile.load %s[%i, %k] : float32 tile.store %x, %w[%i]").replace("%x", "%f")
    adds = each_row(ADDED.replace("%s[%i, %k]", "%w[%i]"))
    head = "%w = tile.alloc : buffer<6*float32, fragment>"
    read_again = each_row("%r = tile.load %w[%i] : float32 tile.store %r, %m[%i]")
    filecheck(
        lines(f"{head} {over_columns(fill + adds)} {read_again}"),
        """
        %w = tile.alloc : buffer<6*float32, fragment>
        %w_1 = tile.alloc : buffer<8*6*float32, fragment>
        tile.parallel {extents = (8,)} (%k: int32) {
        tile.parallel {extents = (6,)} (%i: int32) {
        %f = tile.load %s[%i, %k] : float32
        tile.store %f, %w_1[%k, %i]
        }
        tile.parallel {extents = (6,)} (%i_1: int32) {
        %x = tile.load %w_1[%k, %i_1] : float32
        %y = tile.load %m[%i_1] : float32
        %z = arith.add %y, %x : float32
        tile.store %z, %m[%i_1]
        }
        }
        tile.parallel {extents = (6,)} (%i_2: int32) {
        %0 = tile.load %w_1[%c7, %i_2] : float32
        tile.store %0, %w[%i_2]
        }
        tile.parallel {extents = (6,)} (%i_3: int32) {
        %r = tile.load %w[%i_3] : float32
        tile.store %r, %m[%i_3]
        }
        """,
    )
    # what was there before is read, or what is filled is not all
    assert any("scf.for" in line for line in lines(f"{head} {over_columns(adds + fill)}"))
    part = fill.replace("(6,)", "(5,)")
    assert any("scf.for" in line for line in lines(f"{head} {over_columns(part + adds)}"))


COLUMN = "tile.copy %s[%c0, %k], %w {shape = (6,), source_axes = (0,), target_axes = (0,)}"
SUMS = "tile.copy %m, %B[%c0, %k] {shape = (6,), source_axes = (0,), target_axes = (0,)}"
HELD = "%w = tile.alloc : buffer<6*float32, fragment>"


def test_copies_and_fills_in_a_loop_are_loops_over_elements() -> None:
    adds = each_row(ADDED.replace("%s[%i, %k]", "%w[%i]"))
    filecheck(
        lines(f"{HELD} {over_columns(COLUMN + adds)}"),
        """
        %w = tile.alloc : buffer<6*float32, fragment>
        %w_1 = tile.alloc : buffer<8*6*float32, fragment>
        tile.parallel {extents = (8,)} (%k: int32) {
        tile.parallel {extents = (6,)} (%0: int32) {
        %1 = arith.add %c0, %0 : int32
        %2 = tile.load %s[%1, %k] : float32
        tile.store %2, %w_1[%k, %0]
        }
        tile.parallel {extents = (6,)} (%i: int32) {
        %x = tile.load %w_1[%k, %i] : float32
        %y = tile.load %m[%i] : float32
        %z = arith.add %y, %x : float32
        tile.store %z, %m[%i]
        }
        }
        tile.parallel {extents = (6,)} (%3: int32) {
        %4 = tile.load %w_1[%c7, %3] : float32
        tile.store %4, %w[%3]
        }
        """,
    )
    filled = lines(f"{HELD} {over_columns('tile.fill %c0.5, %w ' + each_row(ADDED))}")
    assert not any("scf.for" in line or "tile.fill" in line for line in filled)
    # running totals that a copy takes to memory
    totals = lines(over_columns(each_row(ADDED) + SUMS))
    assert any(line.startswith("tile.scan") for line in totals) and not any("scf.for" in line for line in totals)


def test_copies_of_loops_that_stay_are_copies_still() -> None:
    product = ADDED.replace("arith.add", "arith.mul").replace("%s[%i, %k]", "%w[%i]")
    for body in (
        COLUMN + each_row(product),
        COLUMN.replace("(0,)}", "(0,), safe_value = 2.0}") + each_row(ADDED),
        "tile.copy %A[%c0, %k], %B[%c0, %k] {shape = (6,), source_axes = (0,), target_axes = (0,)}" + each_row(ADDED),
        # nothing is picked from a tile by the loop's index
        COLUMN.replace("%s", "%A") + each_row(ADDED.replace("%s[%i, %k]", "%w[%i]")),
    ):
        made = lines(f"{HELD} {over_columns(body)}")
        assert any("scf.for" in line for line in made) and any("tile.copy" in line for line in made)
    off = lines(f"{HELD} {over_columns(COLUMN + each_row(ADDED))}", reductions=False)
    assert any("tile.copy" in line for line in off)


STAYS = {
    "two kinds": f"{ADDED} %v = tile.load %m[%i] : float32 %w = arith.max %v, %x : float32 tile.store %w, %m[%i]",
    "read in between": f"{ADDED} %v = tile.load %m[%i] : float32 tile.store %v, %s[%i, %c0]",
    "places that move": """%x = tile.load %s[%i, %k] : float32 %r = tile.load %I[%k] : int32
        %q = arith.floormod %r, %c6 : int32 %y = tile.load %m[%q] : float32
        %z = arith.add %y, %x : float32 tile.store %z, %m[%q]""",
    "places that are loaded, which something else may change": """%x = tile.load %s[%i, %k] : float32
        %r = tile.load %I[%c2] : int32 %q = arith.floormod %r, %c6 : int32 %y = tile.load %m[%q] : float32
        %z = arith.add %y, %x : float32 tile.store %z, %m[%q]""",
    "rounded to 16 bits": """%x = tile.load %s[%i, %k] : float32 %g = arith.cast %x : float16
        %y = tile.load %h[%i] : float16 %z = arith.add %y, %g : float16 tile.store %z, %h[%i]""",
    "tiles that would be larger": """tile.parallel {extents = (2,)} (%j: int32) { %x = tile.load %s[%i, %k] : float32
        %y = tile.load %m[%i] : float32 %z = arith.add %y, %x : float32 tile.store %z, %m[%i] }""",
    "a product": """%x = tile.load %s[%i, %k] : float32 %y = tile.load %m[%i] : float32
        %z = arith.mul %y, %x : float32 tile.store %z, %m[%i]""",
}  # fmt: skip


@pytest.mark.parametrize("why", STAYS)
def test_what_stays_a_loop(why: str) -> None:
    body = each_row(STAYS[why])
    assert any("scf.for" in line for line in lines(over_columns(body)))


FILLED = "%w = tile.alloc : buffer<6*float32, fragment> tile.fill %c0.5, %w "
FIRST = '%q = arith.cmp %i, %c3 {predicate = "lt"} : bool '
FILL = "%f = tile.load %s[%i, %k] : float32 tile.store %f, %w[%i]"
USE = ADDED.replace("%s[%i, %k]", "%w[%i]")
NEXT = "%p = arith.add %i, %c1 : int32 " + USE.replace("%w[%i]", "%w[%p]")
TWICE = "%u = tile.load %m[%i] : float32 %w = arith.mul %u, %e : float32 tile.store %w, %m[%i]"


@pytest.mark.parametrize(
    ("body", "parallel"),
    [
        (FILLED + over_columns(each_row(FILL) + each_row(USE)), True),
        # what an iteration does not fill is from the one before
        (FILLED + over_columns(each_row(f"{FIRST} {FILL} mask=%q") + each_row(USE)), False),
        (FILLED + over_columns(each_row(f"{FIRST} scf.if %q {{ {FILL} scf.yield }} {{ scf.yield }}") + each_row(USE)),
         False),
        (FILLED.replace("6*", "7*") + over_columns(each_row(FILL) + each_row(NEXT)), False),
        (FILLED + over_columns(each_row(USE) + each_row(FILL)), False),
        (FILLED + over_columns(each_row(FILL) + each_row(USE)).replace("%c8, %c1", "%c8, %c2"), False),
        (FILLED + over_columns(each_row(FILL) + each_row(USE) + each_row(FILL.replace("%k", "%c0"))), False),
        # each point has its own
        (FILLED + each_row(over_columns(FILL + " " + USE)), False),
        (FILLED + "%g = tile.alloc : buffer<8*6*float32, fragment> tile.parallel {extents = (2,)} (%a: int32) { "
         + over_columns(each_row(FILL) + each_row("%y = tile.load %w[%i] : float32 tile.store %y, %g[%k, %i]"))
         + "}", False),
        # elements that each iteration has others of, are in memory, or are rounded
        (over_columns(each_row("%q = arith.min %k, %c3 : int32 " + ADDED.replace("%m[%i]", "%m[%q]"))), False),
        (over_columns(each_row(ADDED.replace("%m[%i]", "%B[%i, %c3]"))), False),
        (over_columns(each_row(STAYS["rounded to 16 bits"].replace("arith.add", "arith.max"))), True),
        # a row that is smaller than what all points of the T.Parallel have
        ("%r = tile.alloc : buffer<8*float32, fragment> tile.fill %c0.5, %r "
         + each_row(over_columns(ADDED.replace("%s[%i, %k]", "%r[%k]"))), False),
        # what cannot be computed again in a T.Parallel of its own, or is of all of its points
        (each_row(f"%e = tile.load %A[%i, %c1] : float32 tile.store %e, %m[%i] {over_columns(ADDED)} {TWICE}"), False),
        (each_row(f"{FIRST} %d = arith.cast %i : float32 %e = scf.if %q : float32 {{ scf.yield [%d] }} "
                  f"{{ scf.yield [%c0.5] }} tile.store %e, %m[%i] {over_columns(ADDED)} {TWICE}"), False),
        (each_row("%e = tile.alloc : buffer<1*float32, local> tile.store %c0.5, %e[%c0] "
                  f"%g = tile.load %e[%c0] : float32 tile.store %g, %m[%i] {over_columns(ADDED)}"), False),
        (each_row(over_columns(ADDED.replace("%m[%i]", "%m[%c0]"))
                  + "%u = tile.load %m[%c0] : float32 tile.store %u, %m[%i]"), False),
        (each_row(f"{FIRST} tile.store %c0.5, %m[%i] scf.if %q {{ {over_columns(ADDED)} scf.yield }} {{ scf.yield }}"),
         False),
        ("%g = tile.alloc : buffer<2*6*float32, fragment> %b = tile.alloc : buffer<2*6*8*float32, fragment> "
         "tile.fill %c0.5, %b tile.parallel {extents = (2,)} (%a: int32) { " + each_row(
             "tile.store %c0.5, %g[%a, %i] "
             + over_columns(ADDED.replace("%m[", "%g[%a, ").replace("%s[%i", "%b[%a, %i"))) + "}", False),
    ],
)  # fmt: skip
def test_what_an_iteration_may_have_for_itself(body: str, parallel: bool) -> None:
    assert any("scf.for" in line for line in lines(body)) is not parallel


def test_a_place_that_the_loop_moves_through_memory_stays_a_loop() -> None:
    """%m[1], then %m[2], ..., which no index of the loop says."""
    ahead = """%p = tile.load %n[%c0] : int32 %w = arith.add %p, %c1 : int32 tile.store %w, %n[%c0]"""
    moved = """%x = tile.load %s[%c0, %k] : float32 %q = arith.floormod %w, %c6 : int32
        %y = tile.load %m[%q] : float32 %z = arith.add %y, %x : float32 tile.store %z, %m[%q]"""
    place = "%n = tile.alloc : buffer<1*int32, fragment> tile.fill %c0, %n "
    assert any("scf.for" in line for line in lines(place + over_columns(ahead + moved)))


def test_reductions_can_be_left_alone() -> None:
    assert any("scf.for" in line for line in lines(over_columns(each_row(ADDED)), reductions=False))


def test_a_parallel_whose_parts_read_what_is_written_stays() -> None:
    """What `after` needs was read before the loop, and is another now."""
    before = "%e = tile.load %m[%i] : float32"
    after = "tile.store %e, %m[%i]"
    assert any("scf.for" in line for line in lines(each_row(f"{before} {over_columns(ADDED)} {after}")))


SHAPE = (32, 64)


def over_a_tile(step: Any, parallel_inside: bool = True, init: float = 0.0) -> Any:
    """Each row's total of `step(total, element)`, over the columns in order."""

    @T.prim_func
    def main(A: T.Tensor(SHAPE, "float32"), O: T.Tensor((SHAPE[0],), "float32")):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared(SHAPE, "float32")
            total = T.alloc_fragment((SHAPE[0],), "float32")
            T.copy(A, a)
            if parallel_inside:
                T.fill(total, init)
                for k in T.serial(SHAPE[1]):
                    for i in T.Parallel(SHAPE[0]):
                        total[i] = step(total[i], a[i, k])
            else:
                for i in T.Parallel(SHAPE[0]):
                    total[i] = init
                    for k in T.serial(SHAPE[1]):
                        total[i] = step(total[i], a[i, k])
                    total[i] = total[i] * 2
            T.copy(total, O)

    return main


@pytest.mark.parametrize("parallel_inside", [True, False])
@pytest.mark.parametrize(
    ("step", "init", "expected"),
    [
        (lambda total, x: total + x, 0.0, lambda a: a.sum(1)),
        (lambda total, x: total + x * x, 1.0, lambda a: 1 + (a * a).sum(1)),
        (lambda total, x: total - T.abs(x), 0.0, lambda a: -np.abs(a).sum(1)),
        (lambda total, x: T.max(total, x), -100.0, lambda a: a.max(1)),
        (lambda total, x: T.min(x, total), -3.0, lambda a: np.minimum(a.min(1), -3)),
    ],
)  # fmt: skip
def test_results(step: Any, init: float, expected: Any, parallel_inside: bool) -> None:
    program = over_a_tile(step, parallel_inside, init)
    given = np.random.default_rng(0).integers(-8, 9, SHAPE).astype(np.float32)  # whose sums are exact in any order
    made = tiledsl.compile(program, target="interpret", out_idx=-1)(torch.from_numpy(given)).numpy()
    np.testing.assert_array_equal(made, expected(given) * (1 if parallel_inside else 2))
    compiled = tiledsl.compile(program, target="cuda:90")
    assert "for " not in compiled.source and not compiled.remarks
    certificate = compiled.verify()
    assert certificate.ok, certificate


def test_the_certificate_names_the_other_order() -> None:
    certificate = tiledsl.compile(over_a_tile(lambda total, x: total + x), target="cuda:90").verify()
    (check,) = [each for each in certificate.checks if each.subject == "vectorize-parallel"]
    assert check.detail == "equal but for reassociation"
    plain = tiledsl.compile(
        over_a_tile(lambda total, x: total + x),
        target="cuda:90",
        pass_configs={"parallelize-loops.reductions": False},
    )
    assert "reassociation" not in str(plain.verify())
    assert "for k in range(64)" in plain.source


@pytest.mark.parametrize(("dtype", "shape", "reordered"), [("float32", "1*8", True), ("int32", "1*8", False)])
def test_sums_of_floats_alone_have_an_order(dtype: str, shape: str, reordered: bool) -> None:
    """What is filled, added to and summed along an axis holds these sums at once."""
    number, zero = ("%c0.5", "%c0.0") if dtype == "float32" else ("%c5", "%c0")
    made = kernel_of(Program(kernel(f"B: 8*{dtype}", f"""
      %p = tile.alloc : buffer<4*8*{dtype}, fragment> %r = tile.alloc : buffer<8*{dtype}, fragment>
      tile.fill {zero}, %p
      tile.parallel {{extents = (4, 8)}} (%i: int32, %j: int32) {{
        %x = tile.load %p[%i, %j] : {dtype} %y = arith.add %x, {number} : {dtype} tile.store %y, %p[%i, %j] }}
      tile.reduce %p, %r {{kind = "sum", axis = 0}}""")))  # fmt: skip
    buffers = {op.results[0].name: op.results[0] for op in made.walk() if op.name == "tile.alloc"}
    assert sum_at_once([]) is False and sum_at_once([buffers["r"]]) is False
    assert sum_at_once([buffers["p"]]) is reordered and sum_at_once([buffers["p"]]) is False
    assert str(buffers["p"].type) == f"buffer<{shape}*{dtype}, fragment>"
