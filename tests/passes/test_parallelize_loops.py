"""parallelize-loops: what becomes parallel means the same, and what depends on the order stays a loop."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import body_lines, filecheck, kernel, kernel_of, program
from tests.support.programs import check_pass, inputs_for
from tiledsl.dialects import scf, tile
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.verifier import verify
from tiledsl.passes.parallelize_loops import ParallelizeLoops, _order
from tiledsl.passes.parallelize_loops.copies import with_elements

HEAD = """%s = tile.alloc : buffer<6*8*float32, fragment> %m = tile.alloc : buffer<6*float32, fragment>
          %l = tile.alloc : buffer<6*float32, local>
          tile.copy %A[%c0, %c0], %s {shape = (6, 8), source_axes = (0, 1), target_axes = (0, 1)}
          tile.fill %c0.5, %m"""
TAIL = "tile.copy %s, %B[%c0, %c0] {shape = (6, 8), source_axes = (0, 1), target_axes = (0, 1)}"
ROW = """tile.parallel {extents = (8,)} (%j: int32) {
           %x = tile.load %s[%i, %j] : float32 %y = tile.load %m[%i] : float32
           %z = arith.mul %x, %y : float32 tile.store %z, %s[%i, %j] }"""


def lines(loop: str) -> tuple[list[str], list[str]]:
    """What stands between head and tail, before and after the pass."""
    func = kernel("A: 6*8*float32, B: 6*8*float32, I: 6*int32, N: 1*int32", f"{HEAD} {loop} {TAIL}")
    before = body_lines(Program(func))
    after = body_lines(Program(check_pass(ParallelizeLoops(), func, inputs_for(func))))
    return before[5:-1], after[5:-1]


def stays(loop: str) -> bool:
    before, after = lines(loop)
    assert any("scf.for" in line for line in before)
    return before == after


def over_rows(body: str, lower: int = 0, upper: int = 6, step: int = 1, options: str = "") -> str:
    return f"scf.for %c{lower}, %c{upper}, %c{step} {options} (%i: int32) {{ {body} scf.yield }}"


ROW_LINES = """
    tile.parallel {extents = (8,)} (%j: int32) {
    %x = tile.load %s[INDEX, %j] : float32
    %y = tile.load %m[INDEX] : float32
    %z = arith.mul %x, %y : float32
    tile.store %z, %s[INDEX, %j]
    }"""


@pytest.mark.parametrize(
    ("bounds", "trips", "index"),
    [
        ((0, 6, 1), 6, []),
        ((0, 2, 1), 2, []),
        ((2, 4, 1), 2, ["%0 = arith.add %i, %c2 : int32"]),
        ((0, 5, 2), 3, ["%0 = arith.mul %i, %c2 : int32"]),
        ((1, 6, 2), 3, ["%0 = arith.mul %i, %c2 : int32", "%1 = arith.add %0, %c1 : int32"]),
        ((5, -1, -1), 6, ["%0 = arith.mul %i, %cm1 : int32", "%1 = arith.add %0, %c5 : int32"]),
    ],
)
def test_rows_become_parallel_and_the_index_counts_as_the_loop_did(
    bounds: tuple[int, int, int], trips: int, index: list[str]
) -> None:
    made = "\n".join(index)
    row = ROW_LINES.replace("INDEX", f"%{len(index) - 1}" if index else "%i")
    filecheck(
        lines(over_rows(ROW, *bounds))[1], f"tile.parallel {{extents = ({trips},)}} (%i: int32) {{\n{made}{row}\n}}"
    )


@pytest.mark.parametrize("beside", ["", "tile.store %v, %m[%i]"])
def test_arithmetic_beside_an_inner_parallel_comes_into_one_with_it(beside: str) -> None:
    """What else the loop does keeps them apart."""
    number = "%n = arith.cast %i : float32 %v = arith.mul %n, %n : float32"
    column = """tile.parallel {extents = (6,)} (%j: int32) { %x = tile.load %s[%j, %i] : float32
                %z = arith.mul %x, %v : float32 tile.store %z, %s[%j, %i] }"""
    found = lines(over_rows(f"{number} {beside} {column}"))[1]
    parallel = [line for line in found if line.startswith("tile.parallel")]
    together = ["tile.parallel {extents = (6, 6)} (%j: int32, %i: int32) {"]
    apart = ["tile.parallel {extents = (6,)} (%i: int32) {", "tile.parallel {extents = (6,)} (%j: int32) {"]
    assert parallel == (apart if beside else together)


def test_rows_picked_by_a_number_with_a_name() -> None:
    assert not stays(over_rows("%row = arith.sub %c5, %i : int32 " + ROW.replace("%i, %j]", "%row, %j]")))


def test_branches_and_inner_loops_come_along() -> None:
    branch = '%c = arith.cmp %i, %c3 {predicate = "lt"} : bool scf.if %c { ' + ROW + " scf.yield } { scf.yield }"
    row = ROW_LINES.replace("INDEX", "%i")
    filecheck(
        lines(over_rows(branch))[1],
        f"""
        tile.parallel {{extents = (6,)}} (%i: int32) {{
        %c = arith.cmp %i, %c3 {{predicate = "lt"}} : bool
        scf.if %c {{
        {row}
        scf.yield
        }} {{
        scf.yield
        }}
        }}
        """,
    )
    twice = f"scf.for %c0, %c2, %c1 (%t: int32) {{ {ROW} scf.yield }}"
    filecheck(
        lines(over_rows(twice))[1],
        f"""
        tile.parallel {{extents = (6,)}} (%i: int32) {{
        scf.for %c0, %c2, %c1 (%t: int32) {{
        {row}
        scf.yield
        }}
        }}
        """,
    )


def test_inner_loops_as_long_in_each_row() -> None:
    assert not stays(over_rows(f"scf.for %c0, %bx, %c1 (%t: int32) {{ {ROW} scf.yield }}"))
    assert stays(over_rows(f"scf.for %c0, %i, %c1 (%t: int32) {{ {ROW} scf.yield }}"))


def test_loops_of_loops_over_elements() -> None:
    inner = """scf.for %c0, %c8, %c1 (%j: int32) {
                 %x = tile.load %s[%i, %j] : float32 %z = arith.add %x, %x : float32
                 tile.store %z, %s[%i, %j] scf.yield }"""
    filecheck(
        lines(over_rows(inner))[1],
        """
        tile.parallel {extents = (6,)} (%i: int32) {
        tile.parallel {extents = (8,)} (%j: int32) {
        %x = tile.load %s[%i, %j] : float32
        %z = arith.add %x, %x : float32
        tile.store %z, %s[%i, %j]
        }
        }
        """,
    )


FILLED = """tile.parallel {extents = (6,)} (%p: int32) { %x = tile.load %s[%p, %i] : float32 tile.store %x, %m[%p] }
            tile.parallel {extents = (6,)} (%p: int32) {
              %y = tile.load %m[%p] : float32 %z = arith.add %y, %c0.5 : float32 tile.store %z, %s[%p, %i] }"""
IN_MEMORY = """tile.parallel {extents = (6, 8)} (%p: int32, %q: int32) { tile.store %c0.5, %B[%p, %q] }
               tile.parallel {extents = (8,)} (%q: int32) { %y = tile.load %B[%i, %q] : float32
                 tile.store %y, %s[%i, %q] }"""


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        (FILLED, True),
        (FILLED.replace("store %x, %m[%p]", "store %x, %m[%v]").replace("%x =", "%v = arith.sub %c5, %p : int32 %x ="),
         False),
        (FILLED.replace("%m", "%l"), False),  # an array of each thread
        (FILLED.replace("(6,)", "(5,)"), False),  # but for one element
        (FILLED.replace("%z = ", "tile.store %y, %m[%p] %z = "), False),
        (IN_MEMORY, False),
    ],
)  # fmt: skip
def test_what_each_iteration_fills_anew(body: str, changes: bool) -> None:
    assert stays(over_rows(body)) is not changes


def test_global_rows_told_apart_by_a_sum() -> None:
    body = """tile.parallel {extents = (8,)} (%j: int32) {
                %row = arith.add %bx, %i : int32
                %x = tile.load %s[%i, %j] : float32 tile.store %x, %B[%row, %j] }"""
    assert not stays(over_rows(body, upper=5))


TO_ROW = """tile.parallel {extents = (8,)} (%j: int32) {
              %x = tile.load %s[%i, %j] : float32 tile.store %x, %B[%k, %j] }"""


@pytest.mark.parametrize(
    "body",
    [
        # the row before
        """tile.parallel {extents = (8,)} (%j: int32) { %k = arith.sub %i, %c1 : int32
           %x = tile.load %s[%k, %j] : float32 tile.store %x, %s[%i, %j] }""",
        # a column for all rows, and twice what is there
        """tile.parallel {extents = (6,)} (%j: int32) {
           %x = tile.load %s[%j, %i] : float32 %y = tile.load %m[%j] : float32 %w = arith.add %y, %y : float32
           %z = arith.add %x, %w : float32 tile.store %z, %m[%j] }""",
        # the diagonal mirrored: rows are read as columns
        """tile.parallel {extents = (6,)} (%j: int32) {
           %x = tile.load %s[%j, %i] : float32 tile.store %x, %s[%i, %j] }""",
        # rows that a table names
        """%r = tile.load %I[%i] : int32 tile.parallel {extents = (8,)} (%j: int32) {
           %x = tile.load %s[%i, %j] : float32 tile.store %x, %B[%r, %j] }""",
        # two rows of a loop's in one
        """tile.parallel {extents = (8,)} (%j: int32) { %k = arith.floordiv %i, %c2 : int32
           %x = tile.load %s[%i, %j] : float32 tile.store %x, %B[%k, %j] }""",
        # an index that the points move, too
        """tile.parallel {extents = (2,)} (%j: int32) { %k = arith.add %i, %j : int32
           %x = tile.load %s[%i, %j] : float32 tile.store %x, %B[%k, %c0] }""",
        # elements for each thread
        "%x = tile.load %m[%i] : float32 tile.store %x, %l[%i]",
        # order that is seen
        f'{ROW} tile.print [%i] {{message = "row"}}',
        f'{ROW} %o = tile.atomic %i, %N[%c0] {{kind = "max"}} : int32',
        # one row for all where %bx is 1, or where it is 0
        f"%q = arith.mul %i, %bx : int32 %k = arith.sub %i, %q : int32 {TO_ROW}",
        f"%k = arith.mul %i, %bx : int32 {TO_ROW}",
    ],
)  # fmt: skip
def test_what_depends_on_the_order_stays(body: str) -> None:
    assert stays(over_rows(body, lower=1))


def test_what_stays_for_other_reasons() -> None:
    for option in ("num_stages = 2", "flatten = true"):
        assert stays(over_rows(ROW, options=f"{{{option}}}"))
    assert stays(over_rows(ROW, upper=1))
    assert stays(over_rows(f"scf.for %c0, %c2, %c1 {{num_stages = 2}} (%t: int32) {{ {ROW} scf.yield }}"))
    inner = """%r = scf.for %c0, %c2, %c1[%c0.5] : float32 (%t: int32, %n: float32) {
                 %p = arith.add %n, %n : float32 scf.yield [%p] } tile.store %r, %m[%i]"""
    assert stays(over_rows(inner))
    carried = f"%r = scf.for %c0, %c6, %c1[%c0] : int32 (%i: int32, %n: int32) {{ {ROW} scf.yield [%i] }}"
    assert stays(carried)
    triangle = """scf.for %c0, %i, %c1 (%k: int32) {
                    %x = tile.load %s[%i, %k] : float32 %z = arith.add %x, %x : float32
                    tile.store %z, %s[%i, %k] scf.yield }"""
    assert "scf.for %c0, %c6, %c1 (%i: int32) {" in lines(over_rows(triangle))[1]  # of no fixed number of points
    only_global = """tile.parallel {extents = (8,)} (%j: int32) {
                       %x = tile.load %A[%i, %j] : float32 tile.store %x, %B[%i, %j] }"""
    assert stays(over_rows(only_global))  # picks nothing on the chip
    larger = """tile.parallel {extents = (8,)} (%j: int32) {
                  %x = tile.load %m[%i] : float32 tile.store %x, %B[%i, %j] }"""
    assert stays(over_rows(larger))  # would make a tile larger than what is there
    each_point = "%x = tile.load %m[%i] : float32 tile.store %x, %B[%j, %i]"
    assert not stays(EACH_POINT.replace("%s", over_rows(each_point)))  # there it is as large already


def test_tensors_in_memory_may_overlap() -> None:
    """B may be A one row further."""
    body = """tile.parallel {{extents = (8,)}} (%j: int32) {{
                %x = tile.load %{source}[%i, %j] : float32 %y = tile.load %s[%i, %j] : float32
                %z = arith.add %x, %y : float32 tile.store %z, %{target}[%i, %j] }}"""
    assert stays(over_rows(body.format(source="A", target="B")))
    assert not stays(over_rows(body.format(source="B", target="B")))
    assert not stays(over_rows(body.format(source="A", target="s")))
    two = """tile.parallel {extents = (8,)} (%j: int32) {
               %x = tile.load %A[%i, %j] : float32 %y = tile.load %B[%i, %j] : float32
               %z = arith.add %x, %y : float32 tile.store %z, %s[%i, %j] }"""
    assert not stays(over_rows(two))  # nothing in memory is written


def test_views_of_what_is_written() -> None:
    viewed = f"""%v = tile.view %s : buffer<8*6*float32, fragment>
                 {over_rows(ROW)} %e = tile.load %v[%c0, %c0] : float32 tile.store %e, %m[%c0]"""
    assert stays(viewed)
    rows = """tile.parallel {extents = (4,)} (%j: int32) {
                %x = tile.load %v[%i, %j] : float32 %y = tile.load %s[%c0, %j] : float32
                %z = arith.add %x, %y : float32 tile.store %z, %v[%i, %j] }"""
    assert stays(f"%v = tile.view %s : buffer<12*4*float32, fragment> {over_rows(rows)}")


def lanes(body: str, around: str = "%s") -> list[str]:
    loop = f"scf.for %c0, %c4, %c1 {{vectorized = true}} (%i: int32) {{ {body} scf.yield }}"
    return lines(around.replace("%s", loop))[1]


STORE = "%x = tile.load %A[%i, %c2] : float32 tile.store %x, "
EACH_POINT = "tile.parallel {extents = (6,)} (%j: int32) { %s }"
BRANCH = f"""%p = arith.cmp %i, %j {{predicate = "lt"}} : bool
             scf.if %p {{ {STORE}%s[%j, %i] scf.yield }} {{ scf.yield }}"""
OLD = '%x = tile.load %A[%i, %c2] : float32 %o = tile.atomic %x, %B[%c0, %c0] {kind = "max"} : float32'
VIEWED = """%e = tile.load %v[%c0, %c0] : float32 %d = arith.add %e, %c0.5 : float32 tile.store %d, %m[%i]"""
ARRAY = "%a = tile.alloc : buffer<4*float32, local> tile.store %c0.5, %a[%i] %y = tile.load %a[%i] : float32"


@pytest.mark.parametrize(
    ("body", "around"),
    [
        (f"{STORE}%m[%i]", "%s"),
        (f"%k = arith.floordiv %i, %c2 : int32 {STORE}%m[%k]", "%s"),  # of the two, the last one stays
        (f"%q = tile.load %I[%i] : int32 %r = arith.floormod %q, %c6 : int32 {STORE}%m[%r]", "%s"),
        (f"{STORE}%B[%j, %i]", EACH_POINT),
        ("%x = tile.load %l[%i] : float32 %y = arith.add %x, %c0.5 : float32 tile.store %y, %l[%i]", "%s"),
        (f'{STORE}%m[%i] %o = tile.atomic %x, %B[%c0, %c0] {{kind = "max"}} : float32', "%s"),
        (f"{ARRAY} tile.store %y, %m[%i]", "%s"),
        (f"{ARRAY} tile.store %y, %m[%i]", EACH_POINT),
        (BRANCH, EACH_POINT),
        # a view of what none of them writes
        (VIEWED, "%u = tile.alloc : buffer<6*float32, shared> tile.fill %c0.5, %u "
         "%v = tile.view %u : buffer<2*3*float32, shared> %s"),
    ],
)  # fmt: skip
def test_lanes_that_are_independent(body: str, around: str) -> None:
    made = lanes(body, around)
    assert "tile.parallel {extents = (4,)} (%i: int32) {" in made
    assert not any("scf.for" in line for line in made)


SUM = "%x = tile.load %A[%i, %j] : float32 %y = tile.load %m[%j] : float32 %z = arith.add %x, %y : float32"


@pytest.mark.parametrize(
    ("body", "around"),
    [
        (f"{SUM} tile.store %z, %m[%j]", EACH_POINT),
        (f"{STORE}%m[%c0]", "%s"),
        (f"%k = arith.floordiv %i, %c2 : int32 {STORE}%B[%k, %c0]", "%s"),  # whose last is of no fixed lane
        (f"%r = tile.load %I[%i] : int32 {STORE}%B[%r, %c0]", "%s"),
        # an element that the lane before wrote, and two stores to one place
        ("%k = arith.add %i, %c1 : int32 %x = tile.load %m[%i] : float32 tile.store %x, %m[%k]", "%s"),
        (f"%k = arith.sub %c3, %i : int32 {STORE}%m[%i] tile.store %x, %m[%k]", "%s"),
        # for each j an order of its own
        (f"scf.for %c0, %c2, %c1 (%j: int32) {{ %k = arith.add %i, %j : int32 {STORE}%m[%k] scf.yield }}", "%s"),
        (f"{STORE}%l[%i]", EACH_POINT),  # an array that each point has
        (f"{OLD} tile.store %o, %B[%i, %c1]", "%s"),
        (f'{STORE}%m[%i] tile.print [%i] {{message = "lane"}}', "%s"),
        (f"{OLD} tile.store %o, %m[%i]", "%s"),
        (f"{OLD} %q = tile.load %B[%c0, %c0] : float32 tile.store %q, %m[%i]", "%s"),
        (VIEWED, "%v = tile.view %m : buffer<2*3*float32, fragment> %s"),  # which the lane before wrote
        # of the lanes that compare one element the first one decides, and two kinds of updates do not commute
        ('%o = tile.atomic %i, %I[%c0] compare=%c3 {kind = "cas"} : int32', "%s"),
        (f'{OLD} %n = tile.atomic %x, %B[%c0, %c0] {{kind = "add"}} : float32', "%s"),
    ],
)  # fmt: skip
def test_lanes_that_collide_stay_a_loop(body: str, around: str) -> None:
    made = lanes(body, around)
    assert "scf.for %c0, %c4, %c1 {vectorized = true} (%i: int32) {" in made


COPY = "tile.copy %s[%i, %c0], %w {shape = (8,), source_axes = (1,), target_axes = (0,)}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (COPY, """tile.parallel {extents = (8,)} (%0: int32) {
                    %1 = arith.add %c0, %0 : int32
                    %2 = tile.load %s[%i, %1] : float32
                    tile.store %2, %w[%0]
                  }"""),
        ("%k = arith.add %i, %bx : int32 tile.copy %h, %s[%k, %c2] {shape = (4,), source_axes = (0,), "
         "target_axes = (1,)}",
         """%k = arith.add %i, %bx : int32
            tile.parallel {extents = (4,)} (%0: int32) {
              %1 = tile.load %h[%0] : float16
              %2 = arith.cast %1 : float32
              %3 = arith.add %c2, %0 : int32
              tile.store %2, %s[%k, %3]
            }"""),
        ("scf.if %b { tile.copy %A[%l, %c4], %t {shape = (1, 8), source_axes = (0, 1), target_axes = (0, 1)} scf.yield "
         "} { scf.yield } tile.fill %c0.5, %w %x = tile.load %s[%i, %c1] : float32",
         """scf.if %b {
              tile.parallel {extents = (1, 8)} (%0: int32, %1: int32) {
                %2 = arith.cast %0 : int64
                %3 = arith.add %l, %2 : int64
                %4 = arith.add %c4, %1 : int32
                %5 = tile.load %A[%3, %4] : float32
                tile.store %5, %t[%0, %1]
              }
              scf.yield
            } {
              scf.yield
            }
            tile.parallel {extents = (8,)} (%6: int32) {
              tile.store %c0p5, %w[%6]
            }
            %x = tile.load %s[%i, %c1] : float32"""),
        ("%x = tile.load %s[%i, %c1] : float32", None),  # no copies
        (COPY.replace("%s[%i", "%s[%bx"), None),  # the index picks nothing
        (COPY.replace("%s[%i", "%A[%i"), None),  # nor anything on the chip
        ("tile.copy %A[%i, %c0], %B[%i, %c0] {shape = (1, 8), source_axes = (0, 1), target_axes = (0, 1)} "
         "%x = tile.load %s[%i, %c1] : float32", None),  # through no tile
        ("tile.copy %s[%i, %c0], %s[%c0, %c0] {shape = (1, 8), source_axes = (0, 1), target_axes = (0, 1)}", None),
        (COPY.replace("{shape", "{safe_value = 1.0, shape"), None),
        (COPY + ' tile.print [%i] {message = "row"}', None),
        (COPY + ' %o = tile.atomic %f, %D[%c0] {kind = "add"} : float32', None),
        (COPY + f" {COPY[:-1]}, safe_value = 1.0}}", None),
        (COPY + " scf.while { scf.condition %b } { scf.yield }", None),
    ],
)  # fmt: skip
def test_copies_and_fills_as_loops_over_elements(body: str, expected: str | None) -> None:
    made = program(f"""
      %s = tile.alloc : buffer<6*8*float32, fragment> %w = tile.alloc : buffer<8*float32, shared>
      %h = tile.alloc : buffer<8*float16, fragment> %t = tile.alloc : buffer<1*8*float32, fragment>
      scf.for %c0, %c6, %c1 (%i: int32) {{ {body} scf.yield }}""")
    (loop,) = [op for op in kernel_of(made).body if isinstance(op, scf.ForOp)]
    before = body_lines(made)
    clone = with_elements(loop)
    assert (clone is None) is (expected is None)
    if expected is None:
        assert body_lines(made) == before
        return
    loop.erase()
    verify(made.root)
    filecheck(body_lines(made)[4:], f"scf.for %c0, %c6, %c1 (%i: int32) {{\n{expected}\nscf.yield\n}}")


@T.prim_func
def softmax_by_rows(X: T.Tensor((10, 100), "float16"), Y: T.Tensor((10, 128), "float16")):
    with T.Kernel(T.ceildiv(10, 4), threads=128) as b:
        x = T.alloc_fragment((4, 128), "float32")
        out = T.alloc_fragment((4, 128), "float16")
        top, total = T.alloc_fragment((4,), "float32"), T.alloc_fragment((4,), "float32")
        for i in T.serial(4):
            for j in T.Parallel(128):
                inside = T.And(b * 4 + i < 10, j < 100)
                x[i, j] = T.if_then_else(inside, T.cast(X[b * 4 + i, j], "float32"), -T.infinity("float32"))
        T.reduce_max(x, top, dim=1)
        for i in T.serial(4):
            for j in T.Parallel(128):
                x[i, j] = T.exp(x[i, j] - top[i])
        T.reduce_sum(x, total, dim=1)
        for i in T.serial(4):
            for j in T.Parallel(128):
                out[i, j] = x[i, j] / total[i]
        T.copy(out, Y[b * 4, 0])


def test_a_program_by_rows_becomes_one_by_tiles() -> None:
    kernel = tiledsl.compile(softmax_by_rows, out_idx=-1, target="interpret")
    assert "for " not in kernel.source and "== i" not in kernel.source
    x = torch.randn(10, 100, dtype=torch.float16)
    y = kernel(x)
    torch.testing.assert_close(y[:, :100], torch.softmax(x.float(), -1).half(), rtol=1e-3, atol=1e-4)
    assert not y[:, 100:].any()
    plain = tiledsl.compile(
        softmax_by_rows, out_idx=-1, target="interpret", pass_configs={"parallelize-loops.enabled": False}
    )
    assert plain.source.count("for i in range(4)") == 3
    torch.testing.assert_close(plain(x), y, rtol=0, atol=0)


def test_lanes_over_the_array_of_a_thread_are_parallel() -> None:
    """An array of each point of a T.Parallel is not known to be one yet; an array of a thread is."""
    for lockstep in ("true", "false"):
        text = f"""
          %l = tile.alloc : buffer<4*float32, local>
          tile.parallel {{extents = (6,), lockstep = {lockstep}}} (%i: int32) {{
            scf.for %c0, %c4, %c1 {{vectorized = true}} (%v: int32) {{
              %x = tile.load %A[%i, %v] : float32 tile.store %x, %l[%v] scf.yield }}
            %y = tile.load %l[%c1] : float32 tile.store %y, %B[%i, %c0] }}"""
        func = kernel("A: 6*8*float32, B: 6*8*float32", text)
        found = body_lines(Program(check_pass(ParallelizeLoops(), func, inputs_for(func))))
        assert sum(line.startswith("tile.parallel") for line in found) == (2 if lockstep == "true" else 1)


@pytest.mark.parametrize(
    ("place", "order"),
    [
        ("%i, %j", None),  # as they are
        ("%j, %i", "ji"),
        ("%j, %i4", "ji"),
        ("%c0, %i_j4", "ji"),  # which moves by more comes first
        ("%c0, %j_i4", None),
        ("%c0, %i_jm4", "ji"),  # also backwards
        ("%j, %c0", None),  # which does not tell of both
        ("%j, %ij", None),
    ],
)
def test_indices_in_the_order_of_a_tile(place: str, order: str | None) -> None:
    made = kernel_of(
        program(f"""tile.parallel {{extents = (2, 2)}} (%i: int32, %j: int32) {{
        %i4 = arith.mul %i, %c4 : int32
        %j4 = arith.mul %j, %c4 : int32
        %ij = arith.mul %i, %j : int32
        %i_j4 = arith.add %i, %j4 : int32
        %j_i4 = arith.add %j, %i4 : int32
        %i_jm4 = arith.sub %i, %j4 : int32
        %x = tile.load %A[{place}] : float32
    }}""")
    )
    (parallel,) = of_kinds(made.walk(), tile.ParallelOp)
    (load,) = of_kinds(made.walk(), tile.LoadOp)
    found = _order(list(parallel.body.args), load)
    assert (None if found is None else "".join(each.name for each in found)) == order
