"""unrotate-loops: which tiles of pipelines by hand become those of a turn, exact IR, and which stay."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from tests.passes.ir_cases import after, filecheck, kernel
from tests.support.programs import check_pass
from tiledsl.passes.unrotate_loops import UnrotateLoops

PARAMETERS = "A: 80*16*float32, B: 16*16*float32, C: 16*16*float32, n: int32, s: int32"
TILE = "tensor<16x16xfloat32>"
FIRST = f"""
  %a0 = tile.load %A[%rows, %columns] : {TILE}
  %s0 = tensor.dot %q, %a0, %zero : {TILE}"""
MORE = """
  %k1 = arith.add %k, %c1 : int32
  %more = arith.cmp %k1, %n {predicate = "lt"} : bool"""
NEXT = f"""
  %a1, %s1 = scf.if %more : {TILE}, {TILE} {{
    %start = arith.mul %k1, %c16 : int32
    %p = arith.add %start, %rows : tensor<16x1xint32>
    %a2 = tile.load %A[%p, %columns] : {TILE}
    %s2 = tensor.dot %q, %a2, %zero : {TILE}
    scf.yield [%a2, %s2]
  }} {{
    scf.yield [%a, %s4]
  }}"""
UNGUARDED = f"""
  %start = arith.mul %k1, %c16 : int32
  %p = arith.add %start, %rows : tensor<16x1xint32>
  %a1 = tile.load %A[%p, %columns] : {TILE}
  %s1 = tensor.dot %q, %a1, %zero : {TILE}"""
PROGRAM = f"""
%rows = tensor.iota {{axis = 0}} : tensor<16x1xint32>
%columns = tensor.iota {{axis = 1}} : tensor<1x16xint32>
%zero = arith.constant {{value = 0.0}} : {TILE}
%q = tile.load %B[%rows, %columns] : {TILE}
FIRST
%sum, %a9, %s9 = scf.for %c0, %n, %c1[%zero, %a0, %s0] : {TILE}, {TILE}, {TILE} (%k: int32, %acc: {TILE}, %a: {TILE}, %s3: {TILE}) {{
  %s4 = arith.mul %s3, %a : {TILE}
  %acc1 = arith.add %acc, %s4 : {TILE}
  MORE
  NEXT
  scf.yield [%acc1, %a1, %s1]
}}
tile.store %sum, %C[%rows, %columns]
"""  # noqa: E501


def pipeline(first: str = FIRST, more: str = MORE, following: str = NEXT) -> str:
    """A loop that loads and multiplies a tile for the next turn."""
    return PROGRAM.replace("FIRST", first).replace("MORE", more).replace("NEXT", following)


def unrotated(text: str) -> list[str]:
    return after(UnrotateLoops(), text, parameters=PARAMETERS)


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def turn_of(text: str) -> list[str]:
    """The lines of the loop, its first one without what it carries."""
    lines = unrotated(text)
    first, last = next(n for n, line in enumerate(lines) if "scf.for" in line), lines.index("}")
    (loop,) = re.findall(r"scf\.for [^:]*", lines[first])
    return [loop.strip(), *lines[first + 1 : last]]


def keeps_its_meaning(text: str, turns: Sequence[int] = range(5)) -> None:
    generator = np.random.default_rng(0)
    tiles = [generator.integers(-4, 5, shape).astype(np.float32) for shape in ((80, 16), (16, 16), (16, 16))]
    for n in turns:
        check_pass(UnrotateLoops(), kernel(PARAMETERS, text), [*tiles, n, 0])


TURN = f"""
%start = arith.mul %k, %c16 : int32
%p = arith.add %start, %rows : tensor<16x1xint32>
%a2 = tile.load %A[%p, %columns] : {TILE}
%s2 = tensor.dot %q, %a2, %c0p0 : {TILE}
%s4 = arith.mul %s2, %a2 : {TILE}
%acc1 = arith.add %acc, %s4 : {TILE}
scf.yield [%acc1]
"""


def test_a_tile_and_a_product_of_it_are_computed_in_their_turn() -> None:
    filecheck(
        unrotated(pipeline()),
        f"""
        %rows = tensor.iota {{axis = 0}} : tensor<16x1xint32>
        %columns = tensor.iota {{axis = 1}} : tensor<1x16xint32>
        %q = tile.load %B[%rows, %columns] : {TILE}
        %sum = scf.for %c0, %n, %c1[%c0p0] {{num_stages = 2}} : {TILE} (%k: int32, %acc: {TILE}) {{
        {TURN}
        }}
        tile.store %sum, %C[%rows, %columns]
        """,
    )
    keeps_its_meaning(pipeline())


UNGUARDED = re.sub(r"scf.yield.*|}.*|.*scf.if.*", "", NEXT).replace("%a2", "%a1").replace("%s2", "%s1")
STEPS = [("%c0, %n, %c1[", "%c3, %c64, %c16["), ("%k, %c1 :", "%k, %c16 :"), ("%k1, %n", "%k1, %c64"),
         ("%start = arith.mul %k1, %c16", "%start = arith.add %k1, %c0")]  # fmt: skip
LATER = ("%a0 = tile.load %A[%rows", "%p0 = arith.add %c3, %rows : tensor<16x1xint32>\n%a0 = tile.load %A[%p0")


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        (pipeline(following=UNGUARDED), "scf.for %c0, %n, %c1[%c0p0] {num_stages = 2}"),
        (replaced(pipeline(), ("%c1[%zero, %a0, %s0]", "%c1[%zero, %a0, %s0] {num_stages = 3}")),
         "scf.for %c0, %n, %c1[%c0p0] {num_stages = 3}"),
        (replaced(pipeline(), ("%k1, %n", "%k, %c3"), ("%c0, %n, %c1[", "%c0, %c4, %c1[")),
         "scf.for %c0, %c4, %c1[%c0p0] {num_stages = 2}"),
        (replaced(pipeline(), ("%k1, %n", "%k, %c9"), ("%c0, %n, %c1[", "%c0, %c4, %c1[")),
         "scf.for %c0, %c4, %c1[%c0p0] {num_stages = 2}"),
    ],
)  # fmt: skip
def test_other_guards_and_depths(text: str, loop: str) -> None:
    first, *turn = turn_of(text)
    assert first == loop
    filecheck(turn, TURN if "%a2" in text else TURN.replace("%a2", "%a1").replace("%s2", "%s1"))


def test_indices_that_do_not_begin_with_0() -> None:
    text = replaced(pipeline(), *STEPS, LATER)
    first, *turn = turn_of(text)
    assert first == "scf.for %c3, %c64, %c16[%c0p0] {num_stages = 2}"
    filecheck(turn, TURN.replace("%start = arith.mul %k, %c16 : int32\n", "").replace("%start", "%k"))
    keeps_its_meaning(text, [0])


def test_a_first_index_that_is_not_known() -> None:
    text = replaced(
        pipeline(),
        ("%c0, %n, %c1[", "%s, %n, %c1["),
        ("%a0 = tile.load %A[%rows", "%o = arith.mul %c16, %s : int32\n"
         "%p0 = arith.add %o, %rows : tensor<16x1xint32>\n%a0 = tile.load %A[%p0"),
    )  # fmt: skip
    assert turn_of(text)[0] == "scf.for %s, %n, %c1[%c0p0] {num_stages = 2}"
    keeps_its_meaning(text)


def test_what_one_branch_hands_to_the_next() -> None:
    """The tile comes in one branch, its product in another one of the same condition."""
    divided = f"""
      %a1 = scf.if %more : {TILE} {{
        %start = arith.mul %k1, %c16 : int32
        %p = arith.add %start, %rows : tensor<16x1xint32>
        %a2 = tile.load %A[%p, %columns] : {TILE}
        scf.yield [%a2]
      }} {{
        scf.yield [%a]
      }}
      %s1 = scf.if %more : {TILE} {{
        %s2 = tensor.dot %q, %a1, %zero : {TILE}
        scf.yield [%s2]
      }} {{
        scf.yield [%s4]
      }}"""
    filecheck(turn_of(pipeline(following=divided))[1:], TURN)
    keeps_its_meaning(pipeline(following=divided))


def test_a_tile_alone() -> None:
    """The product is the turn's own already."""
    text = replaced(
        pipeline(),
        ("%s4 = arith.mul %s3, %a", f"%s5 = tensor.dot %q, %a, %zero : {TILE}\n%s4 = arith.mul %s5, %s3"),
        ("%s2 = tensor.dot %q, %a2, %zero", "%s2 = arith.add %s3, %s3"),
    )
    first, *turn = turn_of(text)
    assert first == "scf.for %c0, %n, %c1[%c0p0, %s0] {num_stages = 2}"
    filecheck(turn[:4], "\n".join(TURN.strip().splitlines()[:3]) + f"\n%s5 = tensor.dot %q, %a2, %c0p0 : {TILE}")
    assert sum("tile.load" in line for line in turn) == 1
    keeps_its_meaning(text)


WRITE = "tile.store %zero, %B[%rows, %columns]"
PRINT = 'tile.print [%k] {message = "k"}'
USED = ("tile.store %sum", f"%t = arith.add %sum, %a9 : {TILE}\ntile.store %t")
CARRIED = ("%s2 = tensor.dot %q, %a2, %zero", "%s2 = tensor.dot %q, %a2, %s3")
INSIDE = (
    "%s2 = tensor.dot %q, %a2, %zero",
    f"""
    %s2 = scf.for %c0, %k, %c1[%s3] : {TILE} (%j: int32, %s6: {TILE}) {{
      %s7 = arith.add %s6, %a2 : {TILE}
      scf.yield [%s7]
    }}
    %s8 = tensor.dot %q, %s2, %zero""",
)


@pytest.mark.parametrize(
    "changes",
    [
        [("%c0, %n, %c1[", "%c1, %n, %c1[")],  # the first tile is that of another turn
        [("%a0 = tile.load %A[", "%a0 = tile.load %C[")],
        [("tile.load %A[%p,", "tile.load %A[%p1,"),
         ("%p = arith.add %start, %rows", "%p1 = arith.add %start, %c1 : int32\n%p = arith.add %p1, %rows"),
         ("%A[%p1,", "%A[%p,")],
        [("tensor.dot %q, %a0, %zero", "tensor.dot %a0, %q, %zero")],
        [("%k1, %n", "%k, %c2"), ("%c0, %n, %c1[", "%c0, %c4, %c1[")],  # the last turn has no tile
        [("%k1, %n", "%k1, %s")],
        [("%c0, %n, %c1[", "%c0, %n, %s[")],
        [("%c0, %n, %c1[", "%c0, %n, %c-1[")],
        [("%s4 = arith", f"{WRITE}\n%s4 = arith")],
        [("%s4 = arith", f"{PRINT}\n%s4 = arith")],
        [("%s0 = tensor", f"{WRITE}\n%s0 = tensor")],
        [("%s0 = tensor.dot %q, %a0, %zero", "%s0 = arith.mul %q, %a0"),
         ("%s2 = tensor.dot %q, %a2, %zero", "%s2 = arith.mul %q, %a2")],  # no products
        [USED],
        [CARRIED],  # the next turn's tile is needed in this one
        [INSIDE],
    ],
)  # fmt: skip
def test_what_stays(changes: list[tuple[str, str]]) -> None:
    text = replaced(pipeline(), *changes)
    assert unrotated(text) == after([], text, parameters=PARAMETERS)


def test_a_tile_of_an_outer_loop_stays() -> None:
    head, loop = pipeline().split("%sum, %a9")
    body, store = loop.split("tile.store")
    text = f"""{head}
    %all = scf.for %c0, %c2, %c1[%zero] : {TILE} (%o: int32, %before: {TILE}) {{
      %sum, %a9 {body}
      %now = arith.add %before, %sum : {TILE}
      scf.yield [%now]
    }}
    tile.store {store.replace("%sum", "%all")}"""
    assert unrotated(text) == after([], text, parameters=PARAMETERS)


def test_one_loop_of_two() -> None:
    text = f"""{pipeline()}
    %d = scf.for %c0, %n, %c1[%sum] : {TILE} (%j: int32, %e: {TILE}) {{
      %f = tensor.dot %q, %e, %zero : {TILE}
      scf.yield [%f]
    }}
    tile.store %d, %B[%rows, %columns]"""
    filecheck(turn_of(text)[1:], TURN)


def test_a_table_on_chip() -> None:
    table = "%table = tile.alloc : buffer<80*16*float32, local>\n"
    text = table + replaced(pipeline(), ("%A[", "%table["))
    filecheck(turn_of(text)[1:], TURN.replace("%A[", "%table["))


def test_a_branch_in_front_of_the_loop_stays() -> None:
    text = replaced(
        pipeline(),
        ("%q = tile.load %B[%rows, %columns]", "%true = arith.constant {value = true} : bool\n%q = scf.if %true"),
        (f"scf.if %true : {TILE}", f"""scf.if %true : {TILE} {{
          %q1 = tile.load %B[%rows, %columns] : {TILE}
          scf.yield [%q1]
        }} {{
          scf.yield [%zero]
        }}"""),
    )  # fmt: skip
    filecheck(turn_of(text)[1:], TURN.replace("%q", "%q1"))


def test_numbers_that_are_loaded_ahead_stay() -> None:
    text = f"""
    %rows = tensor.iota {{axis = 0}} : tensor<16x1xint32>
    %columns = tensor.iota {{axis = 1}} : tensor<1x16xint32>
    %zero = arith.constant {{value = 0.0}} : {TILE}
    %q = tile.load %B[%rows, %columns] : {TILE}
    %first = tile.load %A[%c0, %c0] : float32
    %sum, %last = scf.for %c0, %n, %c1[%zero, %first] : {TILE}, float32 (%k: int32, %acc: {TILE}, %f: float32) {{
      %g = arith.mul %q, %f : {TILE}
      %acc1 = tensor.dot %q, %g, %acc : {TILE}
      %k1 = arith.add %k, %c1 : int32
      %next = tile.load %A[%k1, %c0] : float32
      scf.yield [%acc1, %next]
    }}
    tile.store %sum, %C[%rows, %columns]"""
    assert unrotated(text) == after([], text, parameters=PARAMETERS)


UNBRANCHED = f"""
  %start = arith.mul %k1, %c16 : int32
  %p = arith.add %start, %rows : tensor<16x1xint32>
  %a1 = tile.load %A[%p, %columns] : {TILE}
  %s1 = tensor.dot %q, %a1, %zero : {TILE}"""
BEHIND = f"""
%more = arith.cmp %n, %s {{predicate = "gt"}} : bool
%used = scf.if %more : {TILE} {{
  %t = arith.add %sum, %a9 : {TILE}
  scf.yield [%t]
}} {{
  scf.yield [%sum]
}}
tile.store %used"""


def behind(lines: list[str]) -> list[str]:
    """What stands behind the loop."""
    return lines[lines.index("}") + 1 :]


@pytest.mark.parametrize(
    ("use", "loads", "products"), [(USED[1], 1, 0), (USED[1].replace("%a9", "%s9"), 1, 1), (BEHIND, 1, 0)]
)
def test_a_tile_of_the_last_turn_is_made_behind_the_loop_where_it_is_used(use: str, loads: int, products: int) -> None:
    text = replaced(pipeline(following=UNBRANCHED), ("tile.store %sum", use))
    lines = unrotated(text)
    assert turn_of(text)[0] == "scf.for %c0, %n, %c1[%c0p0] {num_stages = 2}"
    assert [sum(op in line for line in behind(lines)) for op in ("tile.load", "tensor.dot")] == [loads, products]
    assert any("scf.if" in line for line in lines) is (use is BEHIND)
    if use is BEHIND:  # in the branch
        first = next(number for number, line in enumerate(lines) if "scf.if" in line)
        assert not any("tile.load" in line for line in lines[lines.index("}") : first])
    keeps_its_meaning(text)


@pytest.mark.parametrize(
    "changes",
    [
        [("tile.store %sum", "tile.store %q, %A[%rows, %columns]\n" + USED[1])],  # memory is another one there
        [("%c0, %n, %c1[", "%c0, %n, %c2["), ("%k, %c1 :", "%k, %c2 :"), USED],
        [("%s1 = tensor.dot %q, %a1, %zero", "%s1 = tensor.dot %q, %a1, %s3"), ("%a9, %s9", "%s8, %s9"), ("", "")],
    ],
)
def test_tiles_of_the_last_turn_that_stay(changes: list[tuple[str, str]]) -> None:
    text = replaced(pipeline(following=UNBRANCHED), *changes)
    if ("%a9, %s9", "%s8, %s9") in changes:
        text = text.replace("tile.store %sum", f"%t = arith.add %sum, %s8 : {TILE}\ntile.store %t")
        assert sum("tile.load" in line for line in behind(unrotated(text))) == 0
    else:
        assert unrotated(text) == after([], text, parameters=PARAMETERS)


@pytest.mark.parametrize(("first", "last", "goes"), [(0, 63, True), (1, 63, False), (0, 14, False), (0, 15, True)])
def test_the_first_places_of_a_vector_are_picked_of_its_first_row(first: int, last: int, goes: bool) -> None:
    gathered = f"""
    %start = arith.mul %k1, %c16 : int32
    %at = arith.add %start, %lanes : tensor<16xint32>
    %least = arith.min %at, %c{last} : tensor<16xint32>
    %g = tensor.gather %table, %least {{axis = 0}} : tensor<16xint32>
    %p = tensor.reshape %g : tensor<16x1xint32>
    %a1 = tile.load %A[%p, %columns] : {TILE}
    %s1 = tensor.dot %q, %a1, %zero : {TILE}"""
    text = replaced(
        pipeline(following=gathered),
        ("%a0 = tile.load %A[%rows", f"""
        %lanes = tensor.iota {{axis = 0}} : tensor<16xint32>
        %all = tensor.iota {{axis = 0}} : tensor<64xint32>
        %three = arith.constant {{value = 3}} : int32
        %mixed = arith.xor %all, %three : tensor<64xint32>
        %table = arith.add %mixed, %s : tensor<64xint32>
        %grid = tensor.reshape %table : tensor<4x16xint32>
        %row = tensor.iota {{axis = 0}} : tensor<4x1xint32>
        %hit = arith.cmp %row, %c{first} {{predicate = "eq"}} : tensor<4x1xbool>
        %one = arith.select %hit, %grid, %c0 : tensor<4x16xint32>
        %places = tensor.reduce %one {{kind = "sum", axis = 0}} : tensor<16xint32>
        %p0 = tensor.reshape %places : tensor<16x1xint32>
        %a0 = tile.load %A[%p0"""),
    )  # fmt: skip
    assert any("%a9" in line for line in unrotated(text)) is not goes
    keeps_its_meaning(text, range(4))


KEPT = f"""
%rows = tensor.iota {{axis = 0}} : tensor<16x1xint32>
%columns = tensor.iota {{axis = 1}} : tensor<1x16xint32>
%zero = arith.constant {{value = 0.0}} : {TILE}
%q = tile.load %B[%rows, %columns] : {TILE}
%sum, %last = scf.for %c0, %n, %c1[%zero, %q] : {TILE}, {TILE} (%k: int32, %acc: {TILE}, %kept: {TILE}) {{
  %start = arith.mul %k, %c16 : int32
  %p = arith.add %start, %rows : tensor<16x1xint32>
  %a = tile.load %A[%p, %columns] : {TILE}
  %acc1 = tensor.dot %q, %a, %acc : {TILE}
  %k1 = arith.add %k, %c1 : int32
  %turn = arith.floormod %k1, %c3 : int32
  %is = arith.cmp %turn, %c1 {{predicate = "eq"}} : bool
  %kept1 = arith.select %is, %a, %kept : {TILE}
  scf.yield [%acc1, %kept1]
}}
%t = arith.add %sum, %last : {TILE}
tile.store %t, %C[%rows, %columns]
"""


@pytest.mark.parametrize(("count", "number"), [(3, 1), (3, 0), (2, 1), (4, 2), (1, 0)])
def test_what_is_kept_of_some_turns_is_loaded_behind_the_loop(count: int, number: int) -> None:
    text = replaced(KEPT, ("%k1, %c3", f"%k1, %c{count}"), ("%turn, %c1", f"%turn, %c{number}"))
    lines = unrotated(text)
    assert f"%sum = scf.for %c0, %n, %c1[%c0p0] : {TILE} (%k: int32, %acc: {TILE}) {{" in lines
    found = behind(lines)
    assert any("scf.if" in line for line in found)
    assert sum("tile.load" in line for line in found) == 1
    keeps_its_meaning(text, range(6))


@pytest.mark.parametrize(
    "changes",
    [
        [("scf.for %c0", "scf.for %s")],  # turns may be before 0
        [("%c1[%zero, %q]", "%c2[%zero, %q]")],
        [("%acc1 = tensor.dot %q, %a, %acc", "%acc1 = tensor.dot %kept, %a, %acc")],
        [("%is, %a, %kept", "%is, %kept, %a")],
        [("%turn, %c1", "%turn, %c3")],
        [("%k1 = arith.add %k, %c1", "%k1 = arith.add %k, %k")],
        [("%is, %a, %kept", "%is, %acc1, %kept")],  # it is of all turns
        [("%t = arith", "tile.store %q, %A[%rows, %columns]\n%t = arith")],
        [("%acc1 = tensor", "tile.store %q, %A[%rows, %columns]\n%acc1 = tensor")],
    ],
)
def test_what_is_kept_stays(changes: list[tuple[str, str]]) -> None:
    text = replaced(KEPT, *changes)
    assert unrotated(text) == after([], text, parameters=PARAMETERS)
