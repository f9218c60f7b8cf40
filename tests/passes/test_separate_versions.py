"""separate-versions: tiles whose versions are replaced and picked by an index become values; and what stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.ir_cases import after, filecheck, kernel
from tests.support.programs import check_pass
from tiledsl.passes.separate_versions import SeparateVersions

PARAMETERS = "A: 80*16*float32, C: 16*16*float32, D: 2*16*16*float32, n: int32, s: int32, b: bool"
TILE, TWO = "tensor<16x16xfloat32>", "tensor<2x16x16xfloat32>"
PROGRAM = f"""
%rows = tensor.iota {{axis = 0}} : tensor<16x1xint32>
%columns = tensor.iota {{axis = 1}} : tensor<1x16xint32>
%lanes = tensor.iota {{axis = 0}} : tensor<2x1x1xint32>
%zero = arith.constant {{value = 0.0}} : {TILE}
%none = arith.constant {{value = 1.0}} : {TWO}
%last = arith.floormod %s, %c2 : int32
%sum, %kept = scf.for %c0, %n, %c1[%zero, %none] : {TILE}, {TWO} (%k: int32, %acc: {TILE}, %v: {TWO}) {{
  %i = arith.floormod %k, %c2 : int32
  %hit = arith.cmp %lanes, %i {{predicate = "eq"}} : tensor<2x1x1xbool>
  %start = arith.mul %k, %c16 : int32
  %p = arith.add %start, %rows : tensor<16x1xint32>
  %a = tile.load %A[%p, %columns] : {TILE}
  %a1 = tensor.reshape %a : tensor<1x16x16xfloat32>
  %w = arith.select %hit, %a1, %v : {TWO}
  %k1 = arith.add %k, %c1 : int32
  %j = arith.floormod %k1, %c2 : int32
  %hit1 = arith.cmp %lanes, %j {{predicate = "eq"}} : tensor<2x1x1xbool>
  %at = arith.select %hit1, %w, %c0.0 : {TWO}
  %y = tensor.reduce %at {{kind = "sum", axis = 0}} : {TILE}
  %acc1 = arith.add %acc, %y : {TILE}
  scf.yield [%acc1, %w]
}}
tile.store %sum, %C[%rows, %columns]
"""
LAST = f"""
%hit9 = arith.cmp %lanes, %last {{predicate = "eq"}} : tensor<2x1x1xbool>
%at9 = arith.select %hit9, %kept, %c0.0 : {TWO}
%y9 = tensor.reduce %at9 {{kind = "sum", axis = 0}} : {TILE}
tile.store %y9, %C[%rows, %columns]
"""


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def separated(text: str) -> list[str]:
    return after(SeparateVersions(), text, parameters=PARAMETERS)


def turn_of(text: str) -> list[str]:
    lines = separated(text)
    first = next(number for number, line in enumerate(lines) if "scf.for" in line)
    return [lines[first].partition(" (")[0], *lines[first + 1 : lines.index("}", first)]]


def keeps_its_meaning(text: str) -> None:
    generator = np.random.default_rng(0)
    shapes = ((80, 16), (16, 16), (2, 16, 16))
    tiles = [generator.integers(-4, 5, shape).astype(np.float32) for shape in shapes]
    for n in range(5):
        check_pass(SeparateVersions(), kernel(PARAMETERS, text), [*tiles, n, n % 2, n % 3 == 0])


LOADED = f"""
%start = arith.mul %k, %c16 : int32
%p = arith.add %start, %rows : tensor<16x1xint32>
%a = tile.load %A[%p, %columns] : {TILE}"""
REPLACED = f"""
%i = arith.floormod %k, %c2 : int32
{LOADED}
%0 = arith.cmp %i, %c0 {{predicate = "eq"}} : bool
%1 = arith.cmp %i, %c1 {{predicate = "eq"}} : bool
%w = arith.select %0, %a, %v : {TILE}
%w_1 = arith.select %1, %a, %v_1 : {TILE}"""


def test_what_stood_in_the_other_version_is_picked_as_it_was() -> None:
    text = replaced(PROGRAM, ("scf.for %c0", "scf.for %s"))
    first, *turn = turn_of(text)
    assert first == f"%sum, %kept, %kept_1 = scf.for %s, %n, %c1[%c0p0, %c1p0, %c1p0] : {TILE}, {TILE}, {TILE}"
    filecheck(
        turn,
        f"""
        {REPLACED}
        %k1 = arith.add %k, %c1 : int32
        %j = arith.floormod %k1, %c2 : int32
        %2 = arith.cmp %j, %c0 {{predicate = "eq"}} : bool
        %y = arith.select %2, %v, %v_1 : {TILE}
        %acc1 = arith.add %acc, %y : {TILE}
        scf.yield [%acc1, %w, %w_1]
        """,
    )
    keeps_its_meaning(text)


def test_what_a_turn_put_there_is_carried_where_versions_take_turns() -> None:
    first, *turn = turn_of(PROGRAM)
    assert first == f"%sum, %kept = scf.for %c0, %n, %c1[%c0p0, %c1p0] : {TILE}, {TILE}"
    filecheck(turn, f"{LOADED}\n%acc1 = arith.add %acc, %v : {TILE}\nscf.yield [%acc1, %a]")
    keeps_its_meaning(PROGRAM)


def ring(behind: str, replaced: str = "%k2", picked: str = "%k") -> str:
    """Two of three versions are replaced in front of a loop, one in each of its turns."""
    three, one = "tensor<3x16x16xfloat32>", "tensor<1x16x16xfloat32>"
    put = [
        f"""
        %x{place} = tile.load %A[%first{place}, %columns] : {TILE}
        %r{place} = tensor.reshape %x{place} : {one}
        %h{place} = arith.cmp %lanes, %c{place} {{predicate = "eq"}} : tensor<3x1x1xbool>
        %v{place} = arith.select %h{place}, %r{place}, {old} : {three}"""
        for place, old in ((0, "%none"), (1, "%v0"))
    ]
    picks = "".join(
        f"""
        %place{number} = arith.floormod {index}, %c3 : int32
        %hit{number} = arith.cmp %lanes, %place{number} {{predicate = "eq"}} : tensor<3x1x1xbool>
        %at{number} = arith.select %hit{number}, %kept, %c0.0 : {three}
        %y{number} = tensor.reduce %at{number} {{kind = "sum", axis = 0}} : {TILE}
        %sum{number} = arith.add %sum{number - 1 if number > 4 else ""}, %y{number} : {TILE}"""
        for number, index in enumerate(behind.split(), 4)
    )
    last = f"%sum{3 + len(behind.split())}" if behind else "%sum"
    return f"""
    %rows = tensor.iota {{axis = 0}} : tensor<16x1xint32>
    %columns = tensor.iota {{axis = 1}} : tensor<1x16xint32>
    %lanes = tensor.iota {{axis = 0}} : tensor<3x1x1xint32>
    %zero = arith.constant {{value = 0.0}} : {TILE}
    %none = arith.constant {{value = 1.0}} : {three}
    %first0 = arith.add %rows, %c48 : tensor<16x1xint32>
    %first1 = arith.add %rows, %c64 : tensor<16x1xint32>
    {"".join(put)}
    %n1 = arith.add %n, %c1 : int32
    %sum, %kept = scf.for %c0, %n, %c1[%zero, %v1] : {TILE}, {three} (%k: int32, %acc: {TILE}, %v: {three}) {{
      %k2 = arith.add %k, %c2 : int32
      %k1 = arith.add %k, %c1 : int32
      %i = arith.floormod {replaced}, %c3 : int32
      %hit = arith.cmp %lanes, %i {{predicate = "eq"}} : tensor<3x1x1xbool>
      %start = arith.mul %k, %c16 : int32
      %p = arith.add %start, %rows : tensor<16x1xint32>
      %a = tile.load %A[%p, %columns] : {TILE}
      %a1 = tensor.reshape %a : {one}
      %w = arith.select %hit, %a1, %v : {three}
      %j = arith.floormod {picked}, %c3 : int32
      %hit1 = arith.cmp %lanes, %j {{predicate = "eq"}} : tensor<3x1x1xbool>
      %at = arith.select %hit1, %w, %c0.0 : {three}
      %y = tensor.reduce %at {{kind = "sum", axis = 0}} : {TILE}
      %acc1 = arith.add %acc, %y : {TILE}
      scf.yield [%acc1, %w]
    }}
    {picks}
    tile.store {last}, %C[%rows, %columns]
    """


@pytest.mark.parametrize(
    ("behind", "replaced", "picked", "carried"),
    [
        ("", "%k2", "%k", 2), ("", "%k2", "%k1", 1), ("%n", "%k2", "%k", 2), ("%n1", "%k2", "%k1", 1),
        ("%n %n1", "%k2", "%k", 2), ("%s", "%k2", "%k", 3), ("", "%k", "%k1", 2), ("%c1", "%k2", "%k", 3),
    ],
)  # fmt: skip
def test_rings_carry_as_many_tiles_as_turns_go_by(behind: str, replaced: str, picked: str, carried: int) -> None:
    text = ring(behind, replaced, picked)
    lines = separated(text)
    (loop,) = [line for line in lines if "scf.for" in line]
    assert loop.partition(" (")[0].count(TILE) == 1 + carried and not any("3x16x16" in line for line in lines)
    assert any("scf.if" in line for line in lines) is (bool(behind) and carried < 3)
    keeps_its_meaning(text)


def test_what_is_put_where_it_is_picked_is_taken_as_it_is() -> None:
    text = replaced(PROGRAM, ("%hit1, %w", "%hit, %w"))
    first, *turn = turn_of(text)
    assert first == f"%sum = scf.for %c0, %n, %c1[%c0p0] : {TILE}"
    filecheck(turn, f"{LOADED}\n%acc1 = arith.add %acc, %a : {TILE}\nscf.yield [%acc1]")
    keeps_its_meaning(text)


@pytest.mark.parametrize("other", ["%s, %c2", "%s1, %c2"])
def test_places_that_may_be_the_same(other: str) -> None:
    numbers = "%k2 = arith.add %k, %c2 : int32\n%s1 = arith.add %s, %c1 : int32"
    text = replaced(PROGRAM, ("%j = arith.floormod %k1, %c2", f"{numbers}\n%j = arith.floormod {other}"))
    filecheck(
        turn_of(text)[1:],
        f"""
        CHECK: %w = arith.select %{{{{.*}}}}, %a, %v : {TILE}
        CHECK: %w_1 = arith.select %{{{{.*}}}}, %a, %v_1 : {TILE}
        CHECK: %y = arith.select %{{{{.*}}}}, %w, %w_1 : {TILE}
        """,
    )
    keeps_its_meaning(text)


def test_the_only_place() -> None:
    text = replaced(PROGRAM, ("%j = arith.floormod %k1, %c2", "%j = arith.floormod %s, %c1"))
    assert f"%acc1 = arith.add %acc, %w : {TILE}" in turn_of(text)
    keeps_its_meaning(text)


def test_what_is_replaced_for_a_turn_alone() -> None:
    text = replaced(PROGRAM, ("scf.yield [%acc1, %w]", "scf.yield [%acc1, %v]"))
    assert not any(TWO in line for line in separated(text))
    keeps_its_meaning(text)


def test_the_kept_versions_are_picked_behind_the_loop() -> None:
    text = PROGRAM + LAST
    *_, hit, picked, _ = separated(text)
    assert (hit, picked) == (
        '%3 = arith.cmp %last, %c0 {predicate = "eq"} : bool',
        f"%y9 = arith.select %3, %kept, %kept_1 : {TILE}",
    )
    keeps_its_meaning(text)


def test_branches_hand_versions_on() -> None:
    branch = f"""
    %kept2 = scf.if %b : {TWO} {{
      %hit3 = arith.cmp %lanes, %last {{predicate = "eq"}} : tensor<2x1x1xbool>
      %w3 = arith.select %hit3, %one1, %kept : {TWO}
      scf.yield [%w3]
    }} {{
      scf.yield [%kept]
    }}"""
    one = "%one1 = arith.constant {value = 5.0} : tensor<1x16x16xfloat32>"
    text = replaced(PROGRAM + one + branch + LAST, ("%hit9, %kept,", "%hit9, %kept2,"))
    lines = separated(text)
    assert f"%kept2, %kept2_1 = scf.if %b : {TILE}, {TILE} {{" in lines and not any(TWO in line for line in lines)
    keeps_its_meaning(text)


STORE = """
%ds = tensor.iota {axis = 1} : tensor<1x16x1xint32>
%de = tensor.iota {axis = 2} : tensor<1x1x16xint32>
tile.store %kept, %D[%lanes, %ds, %de]
tile.store %sum"""
NUMBER = ("%i = arith", "%f = arith.constant {value = 3.0} : float32\n%i = arith")
WHOLE = ("%a1 = tensor.reshape %a : tensor<1x16x16xfloat32>", f"%a1 = tensor.broadcast %f : {TWO}")
ADDED = ("%at = arith.select %hit1, %w,", f"%v2 = arith.add %w, %w : {TWO}\n%at = arith.select %hit1, %v2,")
DOUBLED = ("scf.yield [%acc1, %w]", f"%v2 = arith.add %w, %w : {TWO}\nscf.yield [%acc1, %v2]")


OTHER_AXIS = ("%y = tensor.reduce %at {kind = \"sum\", axis = 0} : " + TILE, """
  %down = tensor.iota {axis = 1} : tensor<1x16x1xint32>
  %hit3 = arith.cmp %down, %j {predicate = "eq"} : tensor<1x16x1xbool>
  %at3 = arith.select %hit3, %w, %c0.0 : tensor<2x16x16xfloat32>
  %y3 = tensor.reduce %at3 {kind = "sum", axis = 1} : tensor<2x16xfloat32>
  %y4 = tensor.reduce %y3 {kind = "sum", axis = 0} : tensor<16xfloat32>
  %y5 = tensor.reshape %y4 : tensor<1x16xfloat32>
  %y = tensor.broadcast %y5 : tensor<16x16xfloat32>""")  # fmt: skip
WHILE = ("%k1 = arith.add", f"""
  %u = scf.while [%none] : {TWO} (%x: {TWO}) {{
    scf.condition %b [%x]
  }} (%z: {TWO}) {{
    scf.yield [%v]
  }}
  %k1 = arith.add""")  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        [OTHER_AXIS],
        [WHILE],
        [("tile.store %sum", LAST + "tile.store %sum"), ("%s, %c2", "%s, %c3")],
        [("%i = arith.floormod %k, %c2", "%i = arith.floormod %k, %c3")],  # the third place is none of a version's
        [("%j = arith.floormod %k1, %c2", "%j = arith.floormod %k1, %c3")],
        [("%i = arith.floormod %k, %c2", "%i = arith.sub %last, %c1")],
        [("tile.store %sum", STORE)],
        [WHOLE, NUMBER],
        [ADDED],
        [DOUBLED],
        [("%at = arith.select %hit1, %w, %c0.0", "%at = arith.select %hit1, %w, %c2.0")],
        [('%y = tensor.reduce %at {kind = "sum"', '%y = tensor.reduce %at {kind = "max"')],
        [('%hit = arith.cmp %lanes, %i {predicate = "eq"}', '%hit = arith.cmp %lanes, %i {predicate = "le"}')],
    ],
)  # fmt: skip
def test_what_stays(changes: list[tuple[str, str]]) -> None:
    text = replaced(PROGRAM, *changes)
    assert separated(text) == after([], text, parameters=PARAMETERS)


def test_more_versions_than_pay_stay() -> None:
    for count, goes in ((4, True), (5, False)):
        text = replaced(PROGRAM, ("2x16x16", f"{count}x16x16"), ("2x1x1", f"{count}x1x1"), ("%c2", f"%c{count}"))
        text = text.replace(f"{count}*16*16", "2*16*16")
        assert any(f"<{count}x16x16" in line for line in separated(text)) is not goes
        keeps_its_meaning(text)


def test_numbers_stay_and_rows_go() -> None:
    row = replaced(
        PROGRAM, ("2x16x16", "2x16"), ("1x16x16", "1x16"), ("2x1x1", "2x1"),
        ("%p = arith.add %start, %rows : tensor<16x1xint32>", "%p = arith.add %start, %c0 : int32"),
        ("tile.load %A[%p, %columns] : tensor<16x16x", "tile.load %A[%p, %line] : tensor<16x"),
        ("%columns = tensor", "%line = tensor.iota {axis = 0} : tensor<16xint32>\n%columns = tensor"),
        (TILE, "tensor<16xfloat32>"), ("%C[%rows, %columns]", "%C[%c0, %line]"),
    )  # fmt: skip
    assert not any("<2x16" in line for line in separated(row))
    keeps_its_meaning(row)
    number = replaced(
        PROGRAM, ("2x16x16", "2"), ("1x16x16", "1"), ("2x1x1", "2"),
        ("%p = arith.add %start, %rows : tensor<16x1xint32>", "%p = arith.add %start, %c0 : int32"),
        ("tile.load %A[%p, %columns] : tensor<16x16xfloat32>", "tile.load %A[%p, %c0] : float32"),
        (TILE, "float32"), ("%zero = arith.constant {value = 0.0} : float32", ""), ("%zero", "%c0.0"),
        ("%C[%rows, %columns]", "%C[%c0, %c0]"),
    )  # fmt: skip
    assert separated(number) == after([], number, parameters=PARAMETERS)


def test_a_second_loop_goes_on_with_the_versions() -> None:
    head, loop = PROGRAM.split("%sum, %kept")
    loop, store = loop.split("tile.store")
    second = loop.replace("[%zero, %none]", "[%sum, %kept]")
    text = f"{head}%sum, %kept{loop}%sum2, %kept2{second}tile.store{store.replace('%sum', '%sum2')}"
    lines = separated(text)
    assert [line.partition(" = ")[0] for line in lines if "scf.for" in line] == [
        "%sum, %kept, %kept_1",
        "%sum2, %kept2",
    ]
    assert sum("arith.select" in line for line in lines) == 3 and not any(TWO in line for line in lines)
    keeps_its_meaning(text)
