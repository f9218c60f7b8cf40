"""vectorize-parallel on a parallel whose points are threads: exact text, and what is refused."""

from __future__ import annotations

import re

import pytest

from tests.passes.ir_cases import body_lines, kernel, program
from tests.support.programs import check_pass, inputs_for
from tiledsl.dialects.tile import ParallelOp
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import Program
from tiledsl.passes.vectorize_parallel import VectorizeParallel
from tiledsl.passes.vectorize_parallel.arrays import split_arrays
from tiledsl.passes.vectorize_parallel.threads import _at, _Unknown

PARAMETERS = "A: 64*float32, B: 64*float32, N: 64*int32"


def lines(body: str, extents: str = "(64,)", indices: str = "%tx: int32", before: str = "") -> list[str]:
    """What the pass makes of threads that run a body, which uses the local %own, %loc and the shared %s."""
    text = f"""
      %own = tile.alloc : buffer<float32, local>
      %loc = tile.alloc : buffer<2*float32, local>
      %s = tile.alloc : buffer<4*float32, shared>
      {before}
      tile.parallel {{extents = {extents}, lockstep = true}} ({indices}) {{ {body} }}"""
    func = kernel(PARAMETERS, text)
    return body_lines(Program(check_pass(VectorizeParallel(), func, inputs_for(func), uninitialised="zero")))


LOAD = "%x = tile.load %A[%tx] : float32"
LOADED = ["%tx = tensor.iota {axis = 0} : tensor<64xint32>", "%x = tile.load %A[%tx] : tensor<64xfloat32>"]


def test_a_local_buffer_is_an_element_of_each_thread() -> None:
    found = lines(f"{LOAD} tile.store %x, %own[] %y = tile.load %own[] : float32 tile.store %y, %B[%tx]")
    assert found[3:] == [
        "%own_1 = tile.alloc : buffer<64*float32, fragment>",
        *LOADED,
        "tile.store %x, %own_1[%tx]",
        "%y = tile.load %own_1[%tx] : tensor<64xfloat32>",
        "tile.store %y, %B[%tx]",
    ]


def test_a_tile_that_is_the_same_in_all_threads_fills_an_array_of_each() -> None:
    body = f"""{LOAD} tile.store %x, %loc[%c0] %z = tensor.broadcast %c0.5 : tensor<2xfloat32>
               %c = arith.cmp %tx, %c3 {{predicate = "lt"}} : bool
               scf.if %c {{ tile.write %z, %loc scf.yield }} {{ scf.yield }}"""
    assert lines(body)[-7:] == [
        '%c = arith.cmp %tx, %c3 {predicate = "lt"} : tensor<64xbool>',
        "%0 = arith.not %c : tensor<64xbool>",
        "%z_1 = tensor.reshape %z : tensor<1x2xfloat32>",
        "%1 = tile.read %loc_1 : tensor<64x2xfloat32>",
        "%c_1 = tensor.reshape %c : tensor<64x1xbool>",
        "%2 = arith.select %c_1, %z_1, %1 : tensor<64x2xfloat32>",
        "tile.write %2, %loc_1",
    ]


def test_a_tile_of_one_element_fills_an_element_of_each() -> None:
    found = lines(
        f"""{LOAD} tile.store %x, %one[%c0] %z = tensor.broadcast %c0.5 : tensor<1xfloat32> tile.write %z, %one
            %c = arith.cmp %tx, %c3 {{predicate = "lt"}} : bool scf.if %c {{ tile.store %x, %one[%c0] scf.yield }}
            {{ scf.yield }} %y = tile.load %one[%c0] : float32 tile.store %y, %B[%tx]""",
        before="%one = tile.alloc : buffer<1*float32, local>",
    )
    assert "%one_1 = tile.alloc : buffer<64*float32, fragment>" in found
    assert any(line.startswith("tile.write") and line.endswith("%one_1") for line in found)


def test_a_shuffle_is_a_gather_in_each_group() -> None:
    body = f"{LOAD} %y = thread.shuffle %x, %c3 {{group = 8}} : float32 tile.store %y, %B[%tx]"
    assert lines(body)[3:] == [
        *LOADED,
        "%x_1 = tensor.reshape %x : tensor<8x8xfloat32>",
        "%y = tensor.gather %x_1, %c3 {axis = 1} : tensor<8x8xfloat32>",
        "%y_1 = tensor.reshape %y : tensor<64xfloat32>",
        "tile.store %y_1, %B[%tx]",
    ]


def test_a_source_outside_of_the_group_is_moved_into_it() -> None:
    body = "%n = tile.load %N[%tx] : int32 %y = thread.shuffle %n, %n {group = 64} : int32 tile.store %y, %N[%tx]"
    assert lines(body)[5:] == [
        "%0 = arith.min %n, %c63 : tensor<64xint32>",
        "%1 = arith.max %0, %c0 : tensor<64xint32>",
        "%y = tensor.gather %n, %1 {axis = 0} : tensor<64xint32>",
        "tile.store %y, %N[%tx]",
    ]


@pytest.mark.parametrize(
    ("low", "high", "moved"), [(0, 7, False), (0, 8, True), (-1, 7, True), (-1, 6, True), (-3, -1, True), (9, 12, True)]
)
def test_a_source_is_moved_into_the_group_unless_it_is_known_to_be_there(low: int, high: int, moved: bool) -> None:
    places = f"%p = arith.floormod %tx, %c{high - low + 1} : int32 %q = arith.add %p, %c{low} : int32"
    body = f"{LOAD} {places} %y = thread.shuffle %x, %q {{group = 8}} : float32 tile.store %y, %B[%tx]"
    found = lines(body)
    assert any(line.startswith("%0 = arith.min %q, %c7") for line in found) is moved
    assert any(line.startswith("%1 = arith.max %0, %c0") for line in found) is moved


@pytest.mark.parametrize(("group", "differs"), [(32, True), (64, False), (128, False)])
def test_what_a_group_reduces_differs_between_groups(group: int, differs: bool) -> None:
    """A tile that holds it has a row for each thread where it does."""
    body = f"""{LOAD} %y = thread.reduce %x {{kind = "sum", group = {group}}} : float32
               tile.store %y, %own[] %z = tile.load %own[] : float32 tile.store %z, %B[%tx]"""
    assert any("%own_1 = tile.alloc : buffer<64*float32, fragment>" in line for line in lines(body)) is differs


def test_a_reduction_of_a_group_and_of_all() -> None:
    body = f"""{LOAD} %y = thread.reduce %x {{kind = "sum", group = 32}} : float32 tile.store %y, %B[%tx]
               %z = thread.reduce %x {{kind = "max", group = 64}} : float32 tile.store %z, %B[%c0]
               %w = thread.reduce %c0.5 {{kind = "sum", group = 32}} : float32 tile.store %w, %B[%c1]"""
    assert lines(body)[3:] == [
        *LOADED,
        "%x_1 = tensor.reshape %x : tensor<2x32xfloat32>",
        '%0 = tensor.reduce %x_1 {kind = "sum", axis = 1} : tensor<2xfloat32>',
        "%1 = tensor.reshape %0 : tensor<2x1xfloat32>",
        "%2 = tensor.broadcast %1 : tensor<2x32xfloat32>",
        "%3 = tensor.reshape %2 : tensor<64xfloat32>",
        "tile.store %3, %B[%tx]",
        '%4 = tensor.reduce %x {kind = "max", axis = 0} : float32',
        "%5 = tensor.reshape %4 : tensor<1xfloat32>",
        "%6 = tensor.reshape %5 : float32",
        "tile.store %6, %B[%c0]",
        '%7 = tensor.reduce %c0p5 {kind = "sum", axis = 0} : float32',
        "tile.store %7, %B[%c1]",
    ]


@pytest.mark.parametrize("points", [2, 4])
def test_a_reduction_for_each_point_of_a_parallel(points: int) -> None:
    body = f"""{LOAD} tile.parallel {{extents = ({points},)}} (%q: int32) {{ %v = tile.load %A[%q] : float32
      %z = arith.mul %x, %v : float32 %y = thread.reduce %z {{kind = "max", group = GROUP}} : float32
      tile.store %y, %s[%q] }}"""
    assert lines(body.replace("GROUP", "64"))[7:] == [
        f"%z = arith.mul %x, %v : tensor<64x{points}xfloat32>",
        f'%0 = tensor.reduce %z {{kind = "max", axis = 0}} : tensor<{points}xfloat32>',
        f"%1 = tensor.reshape %0 : tensor<1x{points}xfloat32>",
        "tile.store %1, %s[%q]",
    ]
    with pytest.raises(TileError, match="what they write differs from thread to thread"):
        lines(body.replace("GROUP", "32"))


def test_the_last_thread_that_writes_an_element_stays() -> None:
    body = f"""{LOAD} %n = tile.load %N[%tx] : int32 %c = arith.cmp %n, %c3 {{predicate = "lt"}} : bool
               scf.if %c {{ tile.store %x, %s[%c1] scf.yield }} {{ scf.yield }}"""
    assert lines(body)[7:] == [
        "%0 = tensor.iota {axis = 0} : tensor<64xint32>",
        "%1 = arith.select %c, %0, %cm1 : tensor<64xint32>",
        '%2 = tensor.reduce %1 {kind = "max", axis = 0} : int32',
        "%3 = tensor.reshape %2 : tensor<1xint32>",
        '%4 = arith.cmp %0, %3 {predicate = "eq"} : tensor<64xbool>',
        "%5 = arith.select %4, %x, %cm0p0 : tensor<64xfloat32>",
        '%6 = tensor.reduce %5 {kind = "sum", axis = 0} : float32',
        "%7 = tensor.reshape %6 : tensor<1xfloat32>",
        '%8 = tensor.reduce %c {kind = "or", axis = 0} : bool',
        "%9 = tensor.reshape %8 : tensor<1xbool>",
        "%10 = tensor.reshape %7 : float32",
        "%11 = tensor.reshape %9 : bool",
        "tile.store %10, %s[%c1] mask=%11",
    ]


@pytest.mark.parametrize(
    "condition", ["", '%n = tile.load %N[%c0] : int32 %c = arith.cmp %n, %tx {predicate = "lt"} : bool']
)
def test_threads_that_write_one_element_of_memory_write_it(condition: str) -> None:
    """Which one stays is not said there."""
    store = "tile.store %x, %B[%c0]"
    found = lines(f"{LOAD} {branch(condition, store) if condition else store}")
    assert found[-1] == (f"{store} mask=%c" if condition else store)
    assert not any("tensor.reduce" in line for line in found)


def test_an_update_of_a_shared_tile_is_one_of_all_threads() -> None:
    found = lines(
        f'{LOAD} %o = tile.atomic %x, %s[%c1] {{kind = "add"}} : float32 %y = tile.load %s[%c1] : float32 '
        "tile.store %y, %B[%tx]",
        before="tile.fill %c0.5, %s",
    )
    assert '%0 = tensor.reduce %x {kind = "sum", axis = 0} : float32' in found and "tile.store %4, %s[%c1]" in found


STATEMENT = "%t = tile.read %s : tensor<4xfloat32> tile.write %t, %s"


def branch(condition: str, then: str, orelse: str = "") -> str:
    return f"{condition} scf.if %c {{ {then} scf.yield }} {{ {orelse} scf.yield }}"


def test_a_branch_that_some_threads_take_runs_once() -> None:
    indices = '%c = arith.cmp %tx, %c3 {predicate = "eq"} : bool'
    assert lines(branch(indices, f"tile.store %c0.5, %B[%c1] {STATEMENT}"))[5:] == [
        "%0 = arith.not %c : tensor<64xbool>",
        "tile.store %c0p5, %B[%c1]",
        "%t = tile.read %s : tensor<4xfloat32>",
        "tile.write %t, %s",
    ]
    assert lines(branch(indices.replace("%c3", "%c64"), STATEMENT))[5:] == ["%0 = arith.not %c : tensor<64xbool>"]


def test_a_branch_that_depends_on_data_runs_if_any_thread_takes_it() -> None:
    data = f'{LOAD} %c = arith.cmp %x, %c0.5 {{predicate = "lt"}} : bool'
    assert lines(branch(data, "tile.store %c0.5, %B[%tx]", STATEMENT))[6:] == [
        "%0 = arith.not %c : tensor<64xbool>",
        "tile.store %c0p5, %B[%tx] mask=%c",
        "%1 = arith.cast %0 : tensor<64xint32>",
        '%2 = tensor.reduce %1 {kind = "max", axis = 0} : int32',
        "%3 = arith.cast %2 : bool",
        "scf.if %3 {",
        "%t = tile.read %s : tensor<4xfloat32>",
        "tile.write %t, %s",
        "scf.yield",
        "} {",
        "scf.yield",
        "}",
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (branch('%c = arith.cmp %tx, %c3 {predicate = "lt"} : bool', "thread.barrier"), "T.sync_threads where not all"),
        (branch('%c = arith.cmp %tx, %c3 {predicate = "lt"} : bool', STATEMENT, STATEMENT), "the two branches run"),
        (f"scf.for %c0, %tx, %c1 (%i: int32) {{ {STATEMENT} scf.yield }}", "a loop that has more turns in some"),
        ("%f = arith.cast %tx : float32 tile.store %f, %s[%c1]", "threads 0 and 1 write 0.0 and 1.0 to one element"),
        (
            "%d = arith.sub %tx, %c5 : int32 %f = arith.cast %d : float32 tile.store %f, %s[%c1]",
            "threads 0 and 1 write -5.0 and -4.0 to one element",
        ),
        (f"{LOAD} tile.store %x, %loc[%c0] %t = tile.read %loc : tensor<2xfloat32>", "but loc differs from thread"),
        (
            f"{LOAD} tile.parallel {{extents = (4,)}} (%i: int32) {{ tile.store %x, %s[%i] }}",
            "all threads run this loop and write the same elements of s",
        ),
    ],
)
def test_is_refused(body: str, message: str) -> None:
    with pytest.raises(TileError, match=message):
        lines(body)


@pytest.mark.parametrize(
    ("extents", "told"),
    [
        ((2,), "threads 0 and 1 write 0.0 and 1.0 to one element of s"),
        ((1,), ""), ((1, 2), r"threads \(0, 0\) and \(1, 0\) write 0.0 and 2.0"),
        ((2, 1), r"threads \(0, 0\) and \(0, 1\) write 0.0 and 1.0"), ((1, 1), ""),
    ],
)  # fmt: skip
def test_few_threads_that_write_different_values(extents: tuple[int, ...], told: str) -> None:
    names = ("%tx", "%ty")[: len(extents)]
    other = "%ty" if len(names) > 1 else "%c0"
    body = f"""%m = arith.mul {other}, %c2 : int32 %n = arith.add %tx, %m : int32
               %f = arith.cast %n : float32 tile.store %f, %s[%c1]"""
    indices = ", ".join(f"{name}: int32" for name in names)
    if not told:
        assert lines(body, str(extents), indices)
        return
    with pytest.raises(TileError, match=told):
        lines(body, str(extents), indices)


@pytest.mark.parametrize(
    ("row", "column", "masked"),
    [("%c1", "%c3", False), ("%n", "%c3", True), ("%c1", "%n", True), ("%n", "%n", True), ("%low", "%low", False)],
)
def test_reads_of_the_chip_that_may_lie_outside_are_masked(row: str, column: str, masked: bool) -> None:
    """Where only some threads read, the others may have any index."""
    before = "%w = tile.alloc : buffer<4*4*float32, shared> tile.fill %c0.5, %w"
    read = f"%v = tile.load %w[{row}, {column}] : float32 tile.store %v, %B[%tx]"
    body = f"""{LOAD} %n = tile.load %N[%tx] : int32 %low = arith.and %n, %c3 : int32
               %c = arith.cmp %n, %c4 {{predicate = "lt"}} : bool %d = arith.cmp %n, %c0 {{predicate = "ge"}} : bool
               %e = arith.and %c, %d : bool scf.if %e {{ {read} scf.yield }} {{ scf.yield }}"""
    (load,) = [line for line in lines(body, before=before) if "tile.load %w" in line]
    assert ("mask=" in load) is masked


READ = "%t = tile.read %s : tensor<4xfloat32> tile.write %t, %p"
WRITE = "%t = tile.read %p : tensor<4xfloat32> tile.write %t, %s"
ONE_READS = "%e = tile.load %s[%c1] : float32 tile.store %e, %B[%tx]"
ONE_WRITES = "tile.store %c0.5, %s[%c1]"
ALL_READ = "tile.parallel {extents = (4,)} (%q: int32) { %g = tile.load %s[%q] : float32 tile.store %g, %p[%q] }"


@pytest.mark.parametrize(
    ("then", "orelse", "refused"),
    [
        (WRITE, ONE_READS, True),
        (WRITE, ONE_WRITES, True),
        (READ, ONE_WRITES, True),
        (READ, ONE_READS, False),  # nothing is written
        (ONE_WRITES, ONE_READS, False),  # each thread for itself, under the mask of its branch
        (WRITE, "tile.store %c0.5, %B[%tx]", False),  # other buffers
        (ALL_READ, ONE_WRITES, True),
        (ALL_READ, ONE_READS, False),
        (READ + ONE_READS, ONE_WRITES, True),
        (ONE_WRITES.replace("%s", "%B") + ONE_READS, WRITE, True),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_branches_of_which_one_sees_what_the_other_writes(then: str, orelse: str, refused: bool, turned: bool) -> None:
    other = "%p = tile.alloc : buffer<4*float32, shared> tile.fill %c0.5, %p"
    data = f'{LOAD} %c = arith.cmp %x, %c0.5 {{predicate = "lt"}} : bool'
    body = branch(data, *((orelse, then) if turned else (then, orelse)))
    if not refused:
        assert lines(body, before=other)
        return
    with pytest.raises(TileError, match="the two branches run at the same time, in different threads; s is written"):
        lines(body, before=other)


def test_a_barrier_that_all_threads_reach_is_nothing() -> None:
    assert lines(branch('%c = arith.cmp %tx, %c64 {predicate = "lt"} : bool', "thread.barrier"))[3:] == [
        "%tx = tensor.iota {axis = 0} : tensor<64xint32>",
        '%c = arith.cmp %tx, %c64 {predicate = "lt"} : tensor<64xbool>',
    ]


@pytest.mark.parametrize(("read", "waits"), [("A", False), ("B", True)])
def test_threads_wait_for_what_others_write_to_global_memory(read: str, waits: bool) -> None:
    body = f"{LOAD} tile.store %x, %B[%tx] thread.barrier %y = tile.load %{read}[%c0] : float32 tile.store %y, %own[]"
    assert ("thread.barrier" in lines(body)) is waits


def test_arrays_at_numbers_are_divided() -> None:
    """Along an axis with a loop's index they stay whole; a fill reaches each part."""
    text = f"""
      %own = tile.alloc : buffer<2*3*float32, local>
      tile.parallel {{extents = (64,), lockstep = true}} (%tx: int32) {{
        {LOAD} %z = arith.constant {{value = 0.0}} : tensor<2x3xfloat32> tile.write %z, %own
        scf.for %c0, %c3, %c1 (%i: int32) {{ tile.store %x, %own[%c1, %i] scf.yield }}
        %y = tile.load %own[%c0, %c2] : float32 %w = tile.load %own[%c1, %c2] : float32
        tile.store %y, %A[%tx] tile.store %w, %B[%tx] }}"""
    func = kernel(PARAMETERS, text)
    found = body_lines(Program(check_pass(VectorizeParallel(), func, inputs_for(func), uninitialised="zero")))
    assert found == [
        "%own = tile.alloc : buffer<3*float32, local>",
        "%own_1 = tile.alloc : buffer<3*float32, local>",
        "%own_2 = tile.alloc : buffer<64*3*float32, fragment>",
        *LOADED,
        "tile.write %c0p0, %own_2",
        "tile.write %c0p0, %own_1",
        "scf.for %c0, %c3, %c1 (%i: int32) {",
        "tile.store %x, %own_2[%tx, %i]",
        "scf.yield",
        "}",
        "%y = tile.load %own_1[%c2] : float32",
        "%w = tile.load %own_2[%tx, %c2] : tensor<64xfloat32>",
        "tile.store %y, %A[%tx]",
        "tile.store %w, %B[%tx]",
    ]


FILL = "%z = arith.constant {value = 0.5} : tensor<2x3xfloat32> tile.write %z, %a"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("tile.store %f, %a[%c1, %k] %x = tile.load %a[%c0, %k] : float32 tile.store %x, %a[%c1, %c2]",
         ["%a = 3", "%a_1 = 3", "tile.store %f, %a[%k]", "%x = tile.load %a_1[%k] : float32",
          "tile.store %x, %a[%c2]"]),
        ("tile.store %f, %a[%k, %c2] mask=%b", ["%a = 2", "tile.store %f, %a[%k] mask=%b"]),
        ("tile.store %f, %a[%c1, %c2] mask=%b %x = tile.load %a[%c0, %c0] mask=%b other=%f : float32",
         ["%a = ", "%a_1 = ", "tile.store %f, %a mask=%b", "%x = tile.load %a_1 mask=%b other=%f : float32"]),
        (f"{FILL} tile.store %f, %a[%c1, %k]", ["%a = 3", "tile.write %c0p5, %a", "tile.store %f, %a[%k]"]),
        (f"{FILL} tile.store %f, %a[%c1, %c2] tile.store %f, %a[%c0, %c2]",
         ["%a = ", "%a_1 = ", "tile.store %c0p5, %a", "tile.store %c0p5, %a_1", "tile.store %f, %a",
          "tile.store %f, %a_1"]),
        ("tile.store %f, %a[%k, %k]", None),
        ("tile.store %f, %a[%c1, %k] tile.store %f, %a[%k, %c2]", None),
        ("tile.store %f, %a[%c2, %k]", None),  # outside of the array, as code may be that never runs
        ("tile.store %f, %a[%c-1, %k]", None),
        ("%z = tensor.broadcast %f : tensor<2x3xfloat32> tile.write %z, %a tile.store %f, %a[%c1, %k]", None),
        ('%o = tile.atomic %f, %a[%c1, %k] {kind = "add"} : float32', None),
    ],
)  # fmt: skip
def test_which_arrays_are_divided(body: str, expected: list[str] | None) -> None:
    def divided(behind: str = "") -> tuple[list[str], list[str]]:
        made = program(f"""%a = tile.alloc : buffer<2*3*float32, local> %k = arith.and %bx, %c1 : int32
          tile.parallel {{extents = (4,), lockstep = true}} (%tx: int32) {{ {body} }} {behind}""")
        before = body_lines(made)
        split_arrays(next(op for op in made.root.walk() if isinstance(op, ParallelOp)))
        return before, body_lines(made)

    before, lines = divided()
    found = [re.sub(r"tile.alloc : buffer<(\d?).*", r"\1", each) for each in lines if "%a" in each]
    assert found == expected if expected is not None else lines == before
    before, lines = divided("%y = tile.load %a[%c0, %c0] : float32")
    assert lines == before


@pytest.mark.parametrize(("value", "own"), [("%c0.5", False), ("%x", True)])
def test_an_array_that_a_parallel_of_threads_fills(value: str, own: bool) -> None:
    """It is one for all threads, if all put the same into it."""
    found = lines(f"""{LOAD} tile.parallel {{extents = (2,)}} (%i: int32) {{ tile.store {value}, %loc[%i] }}
      %y = tile.load %loc[%c1] : float32 tile.store %y, %B[%tx]""")
    (store,) = [line for line in found if line.startswith("tile.store") and "%loc" in line]
    assert ("[%tx, " in store or "[%tx_1, " in store) is own, found


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("%x = arith.add %i, %j : tensor<4x8xint32>", 7),
        ("%x = arith.floordiv %j, %i : tensor<4x8xint32>", 2),
        ("%z = arith.sub %i, %c2 : tensor<4x1xint32>\n%x = arith.floordiv %j, %z : tensor<4x8xint32>", None),
        ("%x = tensor.broadcast %i : tensor<4x8xint32>", 2),
        ("%x = tensor.iota {axis = 1} : tensor<1x1xint32>", 0),
        ('%x = arith.cmp %i, %j {predicate = "lt"} : tensor<4x8xbool>', True),
        ('%c = arith.cmp %i, %j {predicate = "lt"} : tensor<4x8xbool>\n%x = arith.not %c : tensor<4x8xbool>', False),
        ("%x = arith.not %i : tensor<4x1xint32>", None),  # of bits
        ("%x = arith.cast %i : tensor<4x1xfloat32>", 2.0),
        ("%w = arith.cast %i : tensor<4x1xint64>\n%x = arith.cast %w : tensor<4x1xint32>", None),
        ("%f = arith.cast %i : tensor<4x1xfloat32>\n%x = arith.mul %f, %c0.5 : tensor<4x1xfloat32>", 1.0),
        ("%w = arith.cast %i : tensor<4x1xint64>\n%x = arith.add %w, %w : tensor<4x1xint64>", None),
        ("%w = arith.cast %i : tensor<4x1xfloat16>\n%x = arith.add %w, %w : tensor<4x1xfloat16>", None),
        ("%x = tile.load %N[%i] : tensor<4x1xint32>", None),
        ("%x = arith.add %i, %bx : tensor<4x1xint32>", None),
    ],
)
def test_what_a_value_of_indices_alone_is_at_a_point(made: str, found: float | None) -> None:
    text = f"""%i = tensor.iota {{axis = 0}} : tensor<4x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
    {made}
    tile.print [%x] {{message = ""}}"""
    (shown,) = (op for op in program(text).root.walk() if op.name == "tile.print")
    try:
        number = _at(shown.operands[0], (2, 5))
    except _Unknown:
        assert found is None
    else:
        assert (type(number), number) == (type(found), found)
