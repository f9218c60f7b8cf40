"""parallelize-loops: serial loops that leave a running total, or a recurrence's state, in each row become scans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import body_lines, filecheck, kernel, program
from tests.support.programs import check_pass, inputs_for
from tiledsl.ir.pass_manager import Program
from tiledsl.passes.parallelize_loops import ParallelizeLoops

HEAD = """%s = tile.alloc : buffer<6*8*float32, shared> %c = tile.alloc : buffer<6*8*float32, fragment>
          %t = tile.alloc : buffer<8*float32, fragment> %g = tile.alloc : buffer<6*8*float16, fragment>
          tile.copy %A[%c0, %c0], %s {shape = (6, 8), source_axes = (0, 1), target_axes = (0, 1)}
          tile.fill %c0.5, %t tile.fill %c0.5, %c"""
TAIL = """tile.copy %c, %B[%c0, %c0] {shape = (6, 8), source_axes = (0, 1), target_axes = (0, 1)}
          tile.copy %t, %C[%c0] {shape = (8,), source_axes = (0,), target_axes = (0,)}
          tile.copy %s, %D[%c0, %c0] {shape = (6, 8), source_axes = (0, 1), target_axes = (0, 1)}"""


def lines(body: str) -> list[str]:
    """What stands between head and tail after the pass, which keeps what the program computes."""
    parameters = "A: 6*8*float32, B: 6*8*float32, C: 8*float32, D: 6*8*float32, I: 6*int32"
    func = kernel(parameters, f"{HEAD} {body} {TAIL}")
    made = check_pass(ParallelizeLoops(), func, inputs_for(func))
    return body_lines(Program(made))[7:-3]


def over_rows(body: str, lower: int = 0, upper: int = 6, step: int = 1) -> str:
    return f"scf.for %c{lower}, %c{upper}, %c{step} (%k: int32) {{ {body} scf.yield }}"


def each_column(body: str) -> str:
    return f"tile.parallel {{extents = (8,)}} (%j: int32) {{ {body} }}"


def over_wide_rows(body: str) -> str:
    """From row 2 on, as int64."""
    bounds = "".join(f"%w{n} = arith.constant {{value = {n}}} : int64 " for n in (1, 2, 6))
    return f"{bounds} scf.for %w2, %w6, %w1 (%k: int64) {{ {each_column(body)} scf.yield }}"


ADD = """%x = tile.load %s[%k, %j] : float32 %o = tile.load %t[%j] : float32
         %n = arith.add %o, %x : float32 tile.store %n, %t[%j]"""
PUT = "%v = tile.load %t[%j] : float32 tile.store %v, %c[%k, %j]"
TERMS = """
    tile.parallel {extents = (6, 8)} (%k: int32, %j: int32) {
    %x = tile.load %s[%k, %j] : float32
    tile.store %x, %t_terms[%k, %j]
    }
    tile.scan %t_terms, %t_terms {kind = "sum", axis = 0}"""
LAST = """
    [[ROW:%[0-9]+]] = tile.load %t_terms[%c5, %j_2] : float32
    [[OLD:%[0-9]+]] = tile.load %t[%j_2] : float32
    [[SUM:%[a-z0-9_]+]] = arith.add [[OLD]], [[ROW]] : float32
    tile.store [[SUM]], %t[%j_2]
    }"""


def test_totals_that_are_put_into_rows() -> None:
    alloc = "%t_terms = tile.alloc : buffer<6*8*float32, fragment>"
    rows = """
        tile.parallel {extents = (6,)} (%k_1: int32) {
        tile.parallel {extents = (8,)} (%j_1: int32) {
        [[TERM:%[0-9]+]] = tile.load %t_terms[%k_1, %j_1] : float32
        [[BEGIN:%[0-9]+]] = tile.load %t[%j_1] : float32
        [[TOTAL:%[a-z0-9_]+]] = arith.add [[BEGIN]], [[TERM]] : float32
        tile.store [[TOTAL]], %c[%k_1, %j_1]
        }
        }
        tile.parallel {extents = (8,)} (%j_2: int32) {"""
    filecheck(lines(over_rows(each_column(ADD + PUT))), f"{alloc}{TERMS}{rows}{LAST}")


STEP = """%p = arith.sub %k, %c1 : int32 %o = tile.load %s[%p, %j] : float32
          %x = tile.load %s[%k, %j] : float32 %n = arith.add %o, %x : float32 tile.store %n, %s[%k, %j]"""


def test_totals_of_a_tile_in_itself_have_the_first_row_among_them() -> None:
    filecheck(
        lines(over_rows(each_column(STEP), lower=1)),
        """
        %s_terms = tile.alloc : buffer<6*8*float32, fragment>
        tile.parallel {extents = (6, 8)} (%k: int32, %j: int32) {
        %x = tile.load %s[%k, %j] : float32
        [[BEGIN:%[0-9]+]] = tile.load %s[%k, %j] : float32
        [[FIRST:%[0-9]+]] = arith.cmp %k, %c0 {predicate = "eq"} : bool
        [[TERM:%[0-9]+]] = arith.select [[FIRST]], [[BEGIN]], %x : float32
        tile.store [[TERM]], %s_terms[%k, %j]
        }
        tile.scan %s_terms, %s_terms {kind = "sum", axis = 0}
        tile.parallel {extents = (6,)} (%k_1: int32) {
        tile.parallel {extents = (8,)} (%j_1: int32) {
        %n = tile.load %s_terms[%k_1, %j_1] : float32
        tile.store %n, %s[%k_1, %j_1]
        }
        }
        """,
    )


NEXT = """%q = arith.add %k, %c1 : int32 %o = tile.load %s[%k, %j] : float32
          %x = tile.load %s[%q, %j] : float32 %n = arith.add %o, %x : float32 tile.store %n, %s[%q, %j]"""
EARLY = "%u = tile.load %t[%j] : float32 tile.store %u, %c[%k, %j]"


@pytest.mark.parametrize(
    "body",
    [
        each_column(over_rows(ADD + PUT)),
        each_column(f"%f = tile.load %s[%c2, %j] : float32 tile.store %f, %t[%j] {over_rows(ADD + PUT)}"),
        over_rows(each_column(ADD) + each_column(PUT)),
        over_rows(each_column(ADD + "tile.store %n, %c[%k, %j]")),
        over_rows(each_column(ADD + PUT), lower=2, upper=5),
        over_rows(each_column(STEP.replace("%n, %s[%k, %j]", "%n, %s[%k, %j] tile.store %n, %c[%k, %j]")), lower=1),
        over_rows(each_column(STEP), lower=3, upper=5),
        # rows from the last to the first
        over_rows(each_column("%r = arith.sub %c5, %k : int32 " + ADD.replace("%s[%k", "%s[%r") + PUT)),
        over_rows(each_column(ADD.replace("arith.add", "arith.max") + PUT)),
        over_rows(each_column(ADD.replace("arith.add", "arith.sub") + PUT)),
        # what there was before the row, in a load of its own or in the same
        over_rows(each_column(EARLY + ADD)),
        over_rows(each_column(EARLY) + each_column(ADD)),
        over_rows(each_column(ADD + "tile.store %o, %c[%k, %j]"), lower=1),
        # in place of what is added
        over_rows(each_column(ADD + PUT.replace("%c", "%s"))),
        each_column(over_rows(EARLY + ADD + "tile.store %n, %s[%k, %j]")),
        over_rows(each_column(NEXT), upper=5),
        # counted in 64 bits
        over_wide_rows(ADD + PUT),
        over_wide_rows(STEP.replace("%k, %c1 : int32", "%k, %w1 : int64")),
        over_rows(each_column(ADD.replace("%n = arith.add %o, %x", "%n = arith.min %x, %o") + PUT)),
        # of two terms, one of them subtracted
        over_rows(each_column(ADD.replace("arith.add %o, %x", "arith.sub %o, %x : float32 %n = arith.add %e, %c2.0")
                              .replace("%n = arith.sub", "%e = arith.sub") + PUT)),
        # a place that is the same in all iterations, beside the points'
        over_rows(each_column((ADD + PUT).replace("%t[%j]", "%c[%c2, %j]").replace("%c[%k, %j]", "%s[%k, %j]"))),
        # the points of two T.Parallel, one in the other
        "%d = tile.alloc : buffer<2*8*float32, fragment> tile.fill %c0.5, %d "
        "%e = tile.alloc : buffer<6*2*8*float32, fragment> "
        + over_rows(f"tile.parallel {{extents = (2,)}} (%i: int32) {{ {each_column(ADD + PUT)} }}")
        .replace("%t[%j]", "%d[%i, %j]").replace("%c[%k, %j]", "%e[%k, %i, %j]"),
    ],
)  # fmt: skip
def test_other_forms(body: str) -> None:
    made = lines(body)
    assert any(line.startswith("tile.scan") for line in made)
    assert not any("scf.for" in line for line in made)


NARROW = """%x = tile.load %g[%k, %j] : float16 %p = arith.sub %k, %c1 : int32 %o = tile.load %g[%p, %j] : float16
            %n = arith.add %o, %x : float16 tile.store %n, %g[%k, %j]"""
BRANCH = f'%q = arith.cmp %k, %c3 {{predicate = "lt"}} : bool scf.if %q {{ {ADD} scf.yield }} {{ scf.yield }} {PUT}'

MASK = '%q = arith.cmp %j, %c3 {predicate = "lt"} : bool '
ARRAY = """%l = tile.alloc : buffer<6*float32, local>
           scf.for %c0, %c6, %c1 (%q: int32) { tile.store %c0.5, %l[%q] scf.yield }"""
SQUARES = """tile.parallel {extents = (8, 8)} (%i: int32, %e: int32) {
               %v = tile.load %d[%i, %e] : float32 tile.store %v, %f[%k, %i, %e] }"""
DIAGONAL = f"""%d = tile.alloc : buffer<8*8*float32, fragment> tile.fill %c0.5, %d
               %f = tile.alloc : buffer<6*8*8*float32, fragment>
               {over_rows(each_column(ADD.replace("%t[%j]", "%d[%j, %j]")) + SQUARES)}
               %w = tile.load %f[%c3, %c2, %c4] : float32 tile.store %w, %c[%c0, %c0]"""


def whole_numbers(combined: str) -> str:
    body = f"""%y = arith.add %k, %j : int32 %o = tile.load %u[%j] : int32 {combined} : int32
               tile.store %n, %u[%j] %v = tile.load %u[%j] : int32 %w = arith.cast %v : float32
               tile.store %w, %c[%k, %j]"""
    return f"%u = tile.alloc : buffer<8*int32, fragment> tile.fill %c3, %u {over_rows(each_column(body))}"


@pytest.mark.parametrize("body", [over_rows(each_column(ADD) + each_column(PUT).replace("(8,)", "(6,)")),
                                  whole_numbers("%n = arith.add %o, %y")])  # fmt: skip
def test_reads_of_fewer_points_and_whole_numbers(body: str) -> None:
    assert any(line.startswith("tile.scan") for line in lines(body))


@pytest.mark.parametrize(
    "body",
    [
        over_rows(each_column(ADD + PUT), step=2),
        over_rows(each_column(NARROW), lower=1),
        over_rows(each_column(BRANCH)),
        # a term that may divide by 0 in the row before the first one
        over_rows(each_column("%y = arith.floordiv %c8, %k : int32 " + ADD.replace("%s[%k", "%s[%y") + PUT), lower=2),
        over_rows(each_column("%r = arith.sub %c5, %k : int32 " + STEP.replace("%k", "%r")), upper=5),  # the row behind
        over_rows(each_column(STEP.replace("%n, %s[%k, %j]", "%n, %s[%k, %c1]")), lower=1),  # all to one column
        over_rows(each_column(ADD + PUT + "%w = tile.load %t[%c2] : float32 tile.store %w, %s[%k, %j]")),
        over_rows(each_column(STEP.replace("%k, %c1", "%k, %c2")), lower=2),  # two rows before
        over_rows(each_column(STEP.replace("%s[%p, %j]", "%s[%p, %c1]")), lower=1),  # of another column
        over_rows(each_column(STEP + "%w = tile.load %s[%c5, %j] : float32 tile.store %w, %c[%k, %j]"), lower=1),
        # a term of rows that are written before
        over_rows(each_column("%p = arith.sub %k, %c1 : int32 " + ADD.replace("%s[%k", "%c[%p") + PUT), lower=1),
        over_rows(each_column(ADD + PUT.replace("%t[%j]", "%t[%c3]"))),
        over_rows(each_column(f"{ADD} %r = arith.sub %c7, %j : int32 " + PUT.replace("%t[%j]", "%t[%r]"))),
        over_rows(each_column(ADD.replace("%t[%j]", "%t[%c3]") + PUT)),
        # read at another place than that which is added to
        *(
            "%h = arith.floormod %bx, %c8 : int32 " + over_rows(
                ADD.replace("%x = tile.load %s[%k, %j]", "%x = tile.load %s[%k, %c1]").replace("%t[%j]", f"%t[{to}]")
                + f"%v = tile.load %t[{place}] : float32 tile.store %v, %c[%k, %c2]"
            )
            for to, place in (("%h", "%bx"), ("%bx", "%h"), ("%c3", "%c4"), ("%bx", "%c3"), ("%c3", "%bx"))
        ),
        over_rows(each_column(ADD.replace("arith.add", "arith.mul") + PUT)),
        over_rows(each_column((ADD + PUT).replace("%t[", "%C["))),  # in memory
        # masks: of what is stored, of its own element, and of what is read behind it
        over_rows(each_column(MASK + (ADD + PUT).replace("%n, %t[%j]", "%n, %t[%j] mask=%q"))),
        over_rows(each_column(MASK + ADD.replace("%t[%j] :", "%t[%j] mask=%q other=%c2.0 :") + PUT)),
        over_rows(each_column(MASK + ADD + PUT.replace("%t[%j]", "%t[%j] mask=%q other=%c2.0"))),
        # elements that are not written: beside those of the points, and beside a diagonal
        over_rows(each_column(ADD).replace("(8,)", "(6,)") + each_column(PUT)),
        DIAGONAL,
        # in a loop whose index is that of no point
        "%u = arith.add %bx, %c7 : int32 " + over_rows(
            each_column(ADD) + f"scf.for %c0, %u, %c1 (%e: int32) {{ {PUT.replace('%j', '%e')} scf.yield }}"
        ),
        # what the row before left is used again, each second row, and elements of one row each
        over_rows(each_column(STEP + "tile.store %o, %c[%k, %j]"), lower=1),
        over_rows(each_column("%d = arith.mul %k, %c2 : int32 " + STEP.replace("%k", "%d")), lower=1, upper=3),
        ARRAY + over_rows("%x = tile.load %s[%k, %c1] : float32 %o = tile.load %l[%k] : float32 "
                          "%n = arith.add %o, %x : float32 tile.store %n, %l[%k]")
        + "%w = tile.load %l[%c4] : float32 tile.store %w, %c[%c0, %c0]",
        over_rows("%g = tile.load %I[%k] : int32 %h = arith.and %g, %c1 : int32 %r = arith.add %k, %h : int32 "
                  + each_column(STEP.replace("%k", "%r")), lower=1, upper=5),
        # under a condition, in two T.Parallel, of an element that each point has
        each_column(f"{MASK} scf.if %q {{ {over_rows(ADD + PUT)} scf.yield }} {{ scf.yield }}"),
        "%d = tile.alloc : buffer<2*8*float32, fragment> tile.fill %c0.5, %d "
        "%e = tile.alloc : buffer<6*2*8*float32, fragment> tile.parallel {extents = (2,)} (%i: int32) { "
        + each_column(over_rows(ADD + PUT)).replace("%t[%j]", "%d[%i, %j]").replace("%c[%k, %j]", "%e[%k, %i, %j]")
        + "}",
        "%l = tile.alloc : buffer<1*float32, local> "
        + each_column("tile.store %c0.5, %l[%c0] " + over_rows((ADD + PUT).replace("%t[%j]", "%l[%c0]"))),
        over_rows(each_column(ADD + PUT).replace("(8,)", "(8,), lockstep = true")),
        "%l = tile.alloc : buffer<8*float32, local> "
        + each_column("tile.store %c0.5, %l[%j]") + over_rows(each_column((ADD + PUT).replace("%t[%j]", "%l[%j]"))),
        # places of a table, and a term of a branch
        over_rows("%g = tile.load %I[%k] : int32 %e = arith.and %g, %c3 : int32 "
                  + each_column((ADD + PUT).replace("%t[%j]", "%c[%e, %j]").replace("%c[%k, %j]", "%s[%k, %j]"))),
        over_rows(each_column(MASK + ADD.replace("%x =", "%y =").replace(
            "%o = tile", "%x = scf.if %q : float32 { scf.yield [%y] } { scf.yield [%c2.0] } %o = tile") + PUT)),
        # of integers: no kind of a scan, and a recurrence
        whole_numbers("%n = arith.xor %o, %y"),
        whole_numbers("%p = arith.mul %o, %y : int32 %n = arith.add %p, %y"),
    ],
)  # fmt: skip
def test_what_stays_a_loop(body: str) -> None:
    made = lines(body)
    assert any("scf.for" in line for line in made)
    assert not any(line.startswith("tile.scan") for line in made)


STEP_LINEAR = """%f = tile.load %s[%k, %j] : float32 %x = tile.load %c[%k, %j] : float32 %o = tile.load %t[%j] : float32
                 %p = arith.mul %f, %o : float32 %n = arith.add %p, %x : float32 tile.store %n, %t[%j]"""
TWO_TERMS = STEP_LINEAR.replace("%n = arith.add %p", "%q = arith.sub %p, %f : float32 %n = arith.add %q")
ROW_LINEAR = """%p = arith.sub %k, %c1 : int32 %o = tile.load %s[%p, %j] : float32 %x = tile.load %s[%k, %j] : float32
                %m = arith.mul %o, %c0.5 : float32 %n = arith.add %x, %m : float32 tile.store %n, %s[%k, %j]"""


def test_linear_recurrences() -> None:
    """What there was before the loop is among the terms; the state behind the loop is the last row's."""
    filecheck(
        lines(over_rows(each_column(STEP_LINEAR + PUT))),
        """
        %t_terms = tile.alloc : buffer<6*8*float32, fragment>
        %t_factors = tile.alloc : buffer<6*8*float32, fragment>
        tile.parallel {extents = (6, 8)} (%k: int32, %j: int32) {
        %f = tile.load %s[%k, %j] : float32
        %x = tile.load %c[%k, %j] : float32
        [[BEGIN:%[0-9]+]] = tile.load %t[%j] : float32
        [[PRODUCT:%[0-9]+]] = arith.mul %f, [[BEGIN]] : float32
        [[STATE:%[0-9]+]] = arith.add [[PRODUCT]], %x : float32
        [[FIRST:%[0-9]+]] = arith.cmp %k, %c0 {predicate = "eq"} : bool
        [[TERM:%[0-9]+]] = arith.select [[FIRST]], [[STATE]], %x : float32
        tile.store [[TERM]], %t_terms[%k, %j]
        tile.store %f, %t_factors[%k, %j]
        }
        tile.scan %t_terms, %t_terms factors=%t_factors {kind = "linear", axis = 0}
        tile.parallel {extents = (6,)} (%k_1: int32) {
        tile.parallel {extents = (8,)} (%j_1: int32) {
        %v = tile.load %t_terms[%k_1, %j_1] : float32
        tile.store %v, %c[%k_1, %j_1]
        }
        }
        tile.parallel {extents = (8,)} (%j_2: int32) {
        [[LAST:%[0-9]+]] = tile.load %t_terms[%c5, %j_2] : float32
        tile.store [[LAST]], %t[%j_2]
        }
        """,
    )


LINEAR_FORMS = [
    over_rows(each_column(ROW_LINEAR), lower=1),
    over_rows(each_column(ROW_LINEAR), lower=3, upper=5),
    each_column(over_rows(STEP_LINEAR + PUT)),
    over_rows(each_column(STEP_LINEAR), lower=2),
    over_rows(each_column(EARLY + STEP_LINEAR.replace("%c[", "%s["))),
    over_rows(each_column(STEP_LINEAR.replace("arith.add", "arith.sub") + PUT)),
    over_rows(each_column(TWO_TERMS + PUT)),
]  # fmt: skip


@pytest.mark.parametrize("body", LINEAR_FORMS)
def test_other_linear_forms(body: str) -> None:
    made = lines(body)
    assert any('kind = "linear"' in line for line in made)
    assert not any("scf.for" in line for line in made)


SQUARE = STEP_LINEAR.replace("%p = arith.mul %f, %o", "%p = arith.mul %o, %o")


@pytest.mark.parametrize(
    "body",
    [
        over_rows(each_column(SQUARE + PUT)),
        over_rows(each_column(STEP_LINEAR.replace("%n = arith.add %p, %x", "%n = arith.sub %x, %p") + PUT)),
        over_rows(each_column(STEP_LINEAR.replace("%n = arith.add %p, %x", "%n = arith.max %p, %x") + PUT)),
        # a factor of rows that are written before
        over_rows(
            each_column("%r = arith.sub %k, %c1 : int32 " + STEP_LINEAR.replace("%s[%k", "%c[%r") + PUT), lower=1
        ),
        over_rows(each_column(MASK + STEP_LINEAR.replace("%t[%j] :", "%t[%j] mask=%q other=%c2.0 :") + PUT)),
        # what is multiplied is used again
        over_rows(each_column(STEP_LINEAR + "tile.store %p, %c[%k, %j]")),
    ],
)
def test_recurrences_that_stay_loops(body: str) -> None:
    made = lines(body)
    assert any("scf.for" in line for line in made)
    assert not any(line.startswith("tile.scan") for line in made)


SHAPE = (16, 8)


@T.prim_func
def into_rows(A: T.Tensor(SHAPE, "float32"), O: T.Tensor(SHAPE, "float32")):
    with T.Kernel(1, threads=32):
        a, c = T.alloc_shared(SHAPE, "float32"), T.alloc_fragment(SHAPE, "float32")
        total = T.alloc_fragment((SHAPE[1],), "float32")
        T.copy(A, a)
        T.clear(total)
        for i in T.serial(SHAPE[0]):
            for j in T.Parallel(SHAPE[1]):
                total[j] += a[i, j]
                c[i, j] = total[j]
        T.copy(c, O)


@T.prim_func
def in_itself(A: T.Tensor(SHAPE, "float32"), O: T.Tensor(SHAPE, "float32")):
    with T.Kernel(1, threads=32):
        a = T.alloc_shared(SHAPE, "float32")
        T.copy(A, a)
        for j in T.Parallel(SHAPE[1]):
            for i in T.serial(1, SHAPE[0]):
                a[i, j] = a[i - 1, j] + a[i, j]
        T.copy(a, O)


@T.prim_func
def along_rows(A: T.Tensor(SHAPE, "float32"), O: T.Tensor(SHAPE, "float32")):
    with T.Kernel(SHAPE[0], threads=32) as b:
        a, c = T.alloc_shared((SHAPE[1],), "float32"), T.alloc_shared((SHAPE[1],), "float32")
        total = T.alloc_var("float32", 0.0)
        T.copy(A[b, :], a)
        for j in T.serial(SHAPE[1]):
            total += a[j]
            c[j] = total
        T.copy(c, O[b, :])


@T.prim_func
def gated(F: T.Tensor(SHAPE, "float32"), A: T.Tensor(SHAPE, "float32"), O: T.Tensor(SHAPE, "float32")):
    with T.Kernel(1, threads=32):
        f, a, state = (
            T.alloc_shared(SHAPE, "float32"),
            T.alloc_shared(SHAPE, "float32"),
            T.alloc_fragment(SHAPE[1:], "float32"),
        )
        T.copy(F, f)
        T.copy(A, a)
        T.fill(state, 2.0)
        for i in T.serial(SHAPE[0]):
            for j in T.Parallel(SHAPE[1]):
                state[j] = f[i, j] * state[j] + a[i, j]
                a[i, j] = state[j]
        T.copy(a, O)


@T.prim_func
def gated_rows(F: T.Tensor(SHAPE, "float32"), A: T.Tensor(SHAPE, "float32"), O: T.Tensor(SHAPE, "float32")):
    with T.Kernel(SHAPE[1], threads=32) as b:
        f, a = T.alloc_shared(SHAPE[:1], "float32"), T.alloc_shared(SHAPE[:1], "float32")
        for i in T.Parallel(SHAPE[0]):
            f[i] = F[i, b]
            a[i] = A[i, b]
        a[0] += f[0] * 2.0
        for i in T.serial(1, SHAPE[0]):
            a[i] = a[i - 1] * f[i] + a[i]
        for i in T.Parallel(SHAPE[0]):
            O[i, b] = a[i]


@pytest.mark.parametrize("program", [gated, gated_rows])
def test_results_of_linear_recurrences(program: Any) -> None:
    generator = np.random.default_rng(0)
    factors, terms = (generator.integers(-most, most + 1, SHAPE).astype(np.float32) for most in (1, 8))
    made = tiledsl.compile(program, target="interpret", out_idx=-1)(torch.from_numpy(factors), torch.from_numpy(terms))
    state, states = np.full(SHAPE[1], 2.0, np.float32), []
    for factor, term in zip(factors, terms, strict=True):
        state = factor * state + term
        states.append(state)
    np.testing.assert_array_equal(made.numpy(), np.stack(states))
    compiled = tiledsl.compile(program, target="cuda:90")
    assert "tl.associative_scan((" in compiled.source and "for " not in compiled.source and not compiled.remarks
    certificate = compiled.verify()
    assert certificate.ok and "parallelize-loops: equal but for recurrence" in " ".join(str(certificate).split())
    exact = tiledsl.compile(program, target="cuda:90", pass_configs={"parallelize-loops.fast_math": False})
    assert "for " in exact.source and "associative_scan" not in exact.source and exact.verify().ok


@pytest.mark.parametrize(("program", "axis"), [(into_rows, 0), (in_itself, 0), (along_rows, 1)])
def test_results(program: Any, axis: int) -> None:
    given = np.random.default_rng(0).integers(-8, 9, SHAPE).astype(np.float32)  # whose sums are exact in any order
    made = tiledsl.compile(program, target="interpret", out_idx=-1)(torch.from_numpy(given)).numpy()
    np.testing.assert_array_equal(made, np.cumsum(given, axis))
    compiled = tiledsl.compile(program, target="cuda:90")
    assert "tl.cumsum(" in compiled.source and "for " not in compiled.source and not compiled.remarks
    certificate = compiled.verify()
    assert certificate.ok and "parallelize-loops: equal but for reassociation" in " ".join(str(certificate).split())


def test_the_other_order_is_named() -> None:
    """Without the allowance the certificate fails at this pass; extrema and integers need none."""
    root = tiledsl.compile(into_rows, target="cuda:90").program_root()
    assert ParallelizeLoops().allowances(Program(root)) == {"reassociation"}
    assert not ParallelizeLoops(reductions=False).allowances(Program(root))
    assert not ParallelizeLoops(enabled=False).allowances(Program(root))
    whole = over_rows(each_column(ADD + PUT)).replace("float32", "int32")
    allocs = "%s = tile.alloc : buffer<6*8*int32, shared> %c = tile.alloc : buffer<6*8*int32, fragment>"
    whole = f"{allocs} %t = tile.alloc : buffer<8*int32, fragment> tile.fill %c1, %s tile.fill %c0, %t {whole}"
    made = program(whole)
    assert not ParallelizeLoops().allowances(made)
    ParallelizeLoops().run(made)
    assert any("tile.scan" in line for line in body_lines(made))
    root = tiledsl.compile(gated, target="cuda:90").program_root()
    assert ParallelizeLoops().allowances(Program(root)) == {"recurrence"}
    assert not ParallelizeLoops(fast_math=False).allowances(Program(root))
