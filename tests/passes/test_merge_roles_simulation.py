"""merge-roles: orders of waits and accesses that are found."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.passes.ir_cases import kernel_of, program
from tests.passes.waiting_roles import (
    BEHIND,
    CONSUMER,
    EIGHTHS,
    FOURTHS,
    HALF,
    HERE,
    MANY,
    NEGATIVE,
    OF_DATA,
    OF_LOADED,
    OF_THREAD,
    OF_VARIABLE,
    PRODUCER,
    VARIABLE,
    WHOLE,
    A,
    B,
    merged,
    never,
    race,
    refused,
    roles,
)
from tiledsl.dialects import arith, tile
from tiledsl.passes.merge_roles import _RUNS
from tiledsl.passes.merge_roles.accesses import covers, overlap
from tiledsl.passes.merge_roles.order import Keys
from tiledsl.passes.merge_roles.simulate import Reads, World

COPY = f"tile.copy %X, %s {WHOLE}"
BACK = f"tile.copy %s, %Y {WHOLE}"
OFFSET = f"{OF_THREAD};%l = arith.floormod %i, %c8 : int32;%h = arith.add %l, %c8 : int32"
QUESTION = f"{MANY.format(2)}"


@pytest.mark.parametrize(
    ("first", "second", "options", "expected"),
    [
        ("put s;arrive one", "wait one c0;get s;put s", {}, [COPY, BACK, COPY]),
        ("get s;arrive one", "wait one c0", {}, [BACK]),
        ("start s one;arrive one;wait one c0;get s", "wait one c0;get s", {}, [COPY, BACK, BACK]),
        ("begin s;thread.arrive %one, %c0 {copies = true}", "wait one c0;get s", {}, [COPY, BACK]),
        ("put s;arrive one", "wait one c0", {"before": "put s", "behind": "get s"}, [COPY, COPY, BACK]),
        ("put s;arrive one", "wait one c0", {"behind": "put s"}, [COPY, COPY]),
        (
            "write s c1;arrive one;write s c2",
            "wait one c0;read s c1",
            {},
            [
                *(f"tile.store %c1p0, %s[%c{at}]" for at in (1, 2)),
                "%vc1 = tile.load %s[%c1] : float32",
                "tile.store %vc1, %Y[%c1]",
            ],
        ),
        (
            f"tile.copy %X, %s[%c0] {HALF};arrive one;tile.copy %X, %s[%c8] {HALF};arrive two",
            f"wait one c0;tile.copy %s[%c0], %Y {HALF};wait two c0;tile.copy %s[%c8], %Y {HALF}",
            {},
            [
                *(f"tile.copy %X, %s[%c{at}] {HALF}" for at in (0, 8)),
                *(f"tile.copy %s[%c{at}], %Y {HALF}" for at in (0, 8)),
            ],
        ),
        *(
            (
                f"loop {turns};{PRODUCER}",
                f"loop {turns};{CONSUMER}",
                {},
                [f"scf.for %c0, %{turns}, %c1 (%k: int32) {{", COPY, BACK, "scf.yield", "}"],
            )
            for turns in ("c4", "n", "c400")
        ),
        *(
            (
                f"{EIGHTHS};{PRODUCER}{behind}",
                f"{EIGHTHS};{CONSUMER}",
                {},
                [
                    "%m = arith.mul %n, %c8 : int32",
                    "scf.for %c0, %m, %c1 (%k: int32) {",
                    COPY,
                    BACK,
                    "scf.yield",
                    "}",
                ],
            )
            for behind in ("", f";{BEHIND.format('%m')}")
        ),
        (
            # A loaded number of which more than the turns is computed: of 8 more there are two turns more.
            f"{OF_LOADED};{PRODUCER};%e = arith.add %v, %c8 : int32;%f = arith.floordiv %e, %c4 : int32;"
            f"{BEHIND.format('%f')}",
            f"{OF_LOADED};{CONSUMER}",
            {},
            [
                "%v = tile.load %I[%c3] : int32",
                "%m = arith.floordiv %v, %c4 : int32",
                "%v_1 = tile.load %I[%c3] : int32",
                "scf.for %c0, %m, %c1 (%k: int32) {",
                COPY,
                BACK,
                "scf.yield",
                "}",
            ],
        ),
        (
            f"{OF_VARIABLE};{PRODUCER};{BEHIND.format('%m')}",
            f"{OF_VARIABLE};{CONSUMER}",
            {},
            [
                "%more = arith.add %n, %c3 : int32",
                "tile.store %more, %st",
                "%p = tile.load %st : int32",
                "%m = arith.floordiv %p, %c4 : int32",
                "%more_1 = arith.add %n, %c3 : int32",
                "tile.store %more_1, %st_1",
                "%p_1 = tile.load %st_1 : int32",
                "scf.for %c0, %m, %c1 (%k: int32) {",
                COPY,
                BACK,
                "scf.yield",
                "}",
            ],
        ),
        (
            NEGATIVE.format("put s;arrive one"),
            NEGATIVE.format("wait one c0;get s"),
            {},
            [
                "%g = arith.neg %n : int32",
                '%b = arith.cmp %g, %c0 {predicate = "gt"} : bool',
                "scf.if %b {",
                COPY,
                BACK,
                "scf.yield",
                "} {",
                "scf.yield",
                "}",
            ],
        ),
        (
            f"{FOURTHS};{PRODUCER};{BEHIND.format('%m')};put s",
            f"{FOURTHS};{CONSUMER}",
            {},
            [
                "%m = arith.floordiv %n, %c4 : int32",
                "scf.for %c0, %m, %c1 (%k: int32) {",
                COPY,
                BACK,
                "scf.yield",
                "}",
                COPY,
            ],
        ),
        (
            f'{VARIABLE};%b = arith.cmp %k, %c0 {{predicate = "ge"}} : bool;scf.if %b {{;tile.store %q, %st[];'
            "scf.yield } {;tile.store %c1, %st[];scf.yield };end",
            f"loop c4;{CONSUMER}",
            {},
            [
                "tile.store %c0, %st",
                "scf.for %c0, %c4, %c1 (%k: int32) {",
                "%p = tile.load %st : int32",
                "%q = arith.sub %c1, %p : int32",
                COPY,
                '%b = arith.cmp %k, %c0 {predicate = "ge"} : bool',
                *["scf.if %b {", "tile.store %q, %st", "scf.yield", "} {", "tile.store %c1, %st", "scf.yield", "}"],
                *[BACK, "scf.yield", "}"],
            ],
        ),
        (
            f"{QUESTION};scf.if %b {{;put s;arrive one;scf.yield }} {{ scf.yield }}",
            f"{QUESTION};scf.if %b {{;wait one c0;get s;scf.yield }} {{ scf.yield }}",
            {},
            [QUESTION, "scf.if %b {", COPY, BACK, "scf.yield", "} {", "scf.yield", "}"],
        ),
        (
            f"{OF_DATA};thread.arrive %one, %o",
            f"{OF_DATA};thread.wait %one, %o, %c0",
            {"counts": (32, 32)},
            ["%m = tile.load %I[%c3] : int32", "%m_1 = tile.load %I[%c3] : int32"],
        ),
        *[
            (
                f"{offset};write s c{at};arrive one;write s {name}",
                f"wait one c0;read s c{at}",
                {},
                [
                    "tile.parallel {extents = (32,), lockstep = true} (%tx: int32) {",
                    *[line.strip() for line in offset.split(";")],
                    f"tile.store %c1p0, %s[%c{at}]",
                    f"tile.store %c1p0, %s[%{name}]",
                    f"%vc{at} = tile.load %s[%c{at}] : float32",
                    f"tile.store %vc{at}, %Y[%c{at}]",
                    "}",
                ],
            )
            for at, offset, name in ((7, OFFSET, "h"), (8, OFFSET.rpartition(";")[0], "l"))
        ],
    ],
)
def test_orders(first: str, second: str, options: Any, expected: list[str]) -> None:
    """What is ordered by the barriers comes in that order, and accesses to other places do not count."""
    made = roles(first, second, **options)
    assert merged(made) == expected
    assert kernel_of(made).attributes["remarks"] == ()


def test_copies_that_one_role_starts_into_one_tile_keep_their_order() -> None:
    assert merged(roles("begin s;begin s", "arrive one")) == [COPY, COPY]
    assert merged(roles("begin s;put s", "arrive one")) == [COPY, COPY]
    found = refused(roles("begin s", "begin s"))
    assert found == [race(B, "writes", "s", A, "write"), 11, (f"{A}: this wrote s", 1)]


@pytest.mark.parametrize("at", [8, 15])
def test_an_unknown_place_is_anywhere_in_its_range(at: int) -> None:
    texts = (f"{OFFSET};write s c{at};arrive one;write s h", f"wait one c0;read s c{at}")
    assert refused(roles(*texts)) == [race(B, "reads", "s", A, "write"), 12, (f"{A}: this wrote s", 6)]


@pytest.mark.parametrize(
    ("first", "second", "read", "write"),
    [
        ("put s;arrive one", "get s", 11, 1),
        ("put s;arrive one;put t", "wait one c0;get s;get t", 13, 3),
        ("arrive one;put t", "get t;wait one c0", 11, 2),
    ],
)
def test_a_read_comes_after_the_only_write_and_that_is_said(first: str, second: str, read: int, write: int) -> None:
    made = roles(first, second)
    merged(made)
    assert kernel_of(made).attributes["remarks"] == (
        f"merge-roles: nothing orders the read at t:{read}:1 after the write at t:{write}:1, which is the only one; "
        "it comes after it",
    )


def test_several_reads_come_after_the_only_write() -> None:
    made = roles("put s", "get s", "get s")
    assert merged(made) == [COPY, BACK, BACK]
    assert [each.partition(" after")[0] for each in kernel_of(made).attributes["remarks"]] == [
        f"merge-roles: nothing orders the read at t:{line}:1" for line in (11, 21)
    ]
    assert refused(roles("put s", "get s", "put s"))[0] == race(B, "reads", "s", A, "write")


@pytest.mark.parametrize("counts", [(64,), (32,)])
def test_three_roles(counts: tuple[int, ...]) -> None:
    """Two write, and the third waits for both: at a barrier of both, or at one of each."""
    both = counts == (64,)
    texts = ("put s;arrive one", "put t;arrive one" if both else "put t;arrive two")
    waits = "wait one c0" if both else "wait one c0;wait two c0"
    found = merged(roles(*texts, f"{waits};get s;get t", counts=counts))
    assert found == [COPY, COPY.replace("%s", "%t"), BACK, BACK.replace("%s", "%t")]
    written = roles(*texts, f"{waits};get s;get t", "put s", counts=counts)
    expected = race("threads 96 to 127", "writes", "s", A, "write")
    assert refused(written) == [expected, 31, (f"{A}: this wrote s", 1)]


FILLED = "fill ga;fill gb;fill gc;fill s;arrive one"
SUM = 'tile.reduce %ga, %s {kind = "sum", axis = 1, clear = CLEAR}'


@pytest.mark.parametrize(
    ("op", "tile", "does"),
    [
        ("tile.gemm %ga, %gb, %gc", "ga", "reads"),
        ("tile.gemm %ga, %gb, %gc", "gb", "reads"),
        ("tile.gemm %ga, %gb, %gc", "gc", "reads"),
        ("tile.gemm %ga, %gb, %gc {clear = true}", "gc", "writes"),
        (SUM.replace("CLEAR", "true"), "ga", "reads"),
        (SUM.replace("CLEAR", "true"), "s", "writes"),
        (SUM.replace("CLEAR", "false"), "s", "reads"),
        ('%w = tile.view %s {kind = "reshape"} : buffer<4*4*float32, shared>;read w c0, %c0', "s", "reads"),
    ],
)
def test_what_products_sums_and_views_access(op: str, tile: str, does: str) -> None:
    """The other role writes it anew without a wait; but not where nothing of it is accessed."""
    op = op.replace("read w c0, %c0", "%v = tile.load %w[%c0, %c0] : float32")
    line = 13 if "view" in op else 12
    made = roles(f"{FILLED};fill {tile}", f"wait one c0;{op}")
    assert refused(made) == [race(B, does, tile, A, "write"), line, (f"{A}: this wrote {tile}", 6)]
    assert "tile.fill %c1p0, %t" in merged(roles(f"{FILLED};fill t", f"wait one c0;{op}"))


def test_a_read_does_not_hide_the_write_behind_it() -> None:
    made = roles("put s;arrive one;get s;write s c1", "wait one c0;read s c1")
    assert refused(made) == [race(B, "reads", "s", A, "write"), 12, (f"{A}: this wrote s", 4)]


def test_a_phase_of_two_roles_of_which_one_is_not_known() -> None:
    """The third role knows that the first has arrived, by another barrier, but not that the second has."""
    texts = ("arrive one;arrive two;arrive one", "arrive one;arrive one", "wait two c0;wait one c1")
    expected = [
        "this wait may be let through by an earlier phase of one: nothing tells threads 64 to 95 that phase 0 is over",
        22,
        "wait for each phase, or for what who arrived has waited for",
    ]
    assert refused(roles(*texts, counts=(64,))) == expected


def test_a_write_of_a_part_leaves_the_rest_to_the_one_before() -> None:
    parts = [f"tile.copy %X, %s[%c{at}] {HALF}" for at in (4, 0, 8)]
    for first, second, read, line in ((0, 1, 10, 3), (0, 2, 5, 3), (0, 1, 2, 4), (0, 1, 6, 3)):
        made = roles(f"put s;arrive one;{parts[first]};{parts[second]}", f"wait one c0;read s c{read}")
        assert refused(made) == [race(B, "reads", "s", A, "write"), 12, (f"{A}: this wrote s", line)]


def guarded(first: str, second: str, condition: str) -> tuple[str, str]:
    """Two roles of which one gives and the other takes, each under a condition on an element of `Y` or `X`."""
    texts = (("put s;arrive one", first), ("wait one c0;get s", second))
    both = (
        f'%x = tile.load %{at} : float32;%e = arith.math [%x] {{function = "exp"}} : float32;%b = {condition};'
        f"scf.if %b {{;{text};scf.yield }} {{ scf.yield }}"
        for text, at in texts
    )
    first, second = both
    return first, second


@pytest.mark.parametrize(
    "condition",
    [
        'arith.cmp %e, %c1.0 {predicate = "gt"} : bool',
        'arith.cmp %e, %c2.0 {predicate = "gt"} : bool',
        "arith.cast %e : bool",
    ],
)
def test_conditions_that_no_number_tells(condition: str) -> None:
    """They hold together where they are computed alike, of elements that do not change, and each alone otherwise."""
    alike = merged(roles(*guarded("X[%c1]", "X[%c1]", condition)))
    assert [line for line in alike if line.startswith("tile.copy")] == [COPY, BACK]
    for others in (("X[%c1]", "X[%c2]"), ("X[%c2]", "X[%c1]"), ("Y[%c1]", "Y[%c1]")):  # of which Y is written
        assert refused(roles(*guarded(*others, condition)))[0] == never(0, "one", "0 of its 32")


def test_of_two_conditions_each_holds_alone_in_some_run() -> None:
    """For any two of six, and in one turn always alike."""
    kernel = kernel_of(program("\n".join(f"%q{n} = arith.constant {{value = {n}}} : int32" for n in range(6))))
    assert isinstance(kernel, tile.KernelOp)
    values = [op.result for op in kernel.walk() if isinstance(op, arith.ConstantOp)]
    seeds = {0, *(seed for _, seed in _RUNS)}
    worlds = [World([], kernel, Keys(set()), Reads(), 6, seed) for seed in seeds]
    held = [[world._guess(value) for value in values] for world in worlds]
    assert len(values) == 6
    for one, other in itertools.permutations(range(6), 2):
        assert any(each[one] and not each[other] for each in held)
    assert held == [[world._guess(value) for value in values] for world in worlds]
    for world in worlds:
        world.turn = (1,)  # in which what is asked for first is the first
    assert held == [[world._guess(value) for value in values[1:] + values[:1]] for world in worlds]
    assert not any(world.is_certain for world in worlds)


BOTH = "%a = arith.mul %k, %c3 : int32;%b = arith.add %a, %j : int32"
INNER = "loop c2;scf.for %c0, %c3, %c1 (%j: int32) {"
NESTED = (
    f"{INNER};{BOTH};%next = arith.add %b, %c1 : int32;%odd = arith.floormod %next, %c2 : int32;"
    "wait two odd;put s;arrive one;end;end",
    f"{INNER};{BOTH};%even = arith.floormod %b, %c2 : int32;wait one even;get s;arrive two;end;end",
)


def test_loops_in_loops() -> None:
    """Their turns count on; or the parity is wrong in the second turn of the outer one."""
    assert [line for line in merged(roles(*NESTED)) if line.startswith("tile.copy")] == [COPY, BACK]
    wrong = roles(NESTED[0].replace("%next = arith.add %b", "%next = arith.add %j"), NESTED[1])
    expected = [
        never(1, "two", "0 of its 32", " in turn 1, 0"),
        7,
        (HERE, 18),
        "3 phases were complete then; a wait for the last one has the parity 0",
    ]
    assert refused(wrong) == expected


def test_what_is_computed_between_loops_that_become_one() -> None:
    outer, inner = BOTH.split(";")
    between = INNER.replace("loop c2", f"loop c2;{outer}")
    first, second = (each.replace(f"{INNER};{BOTH}", f"{between};{inner}") for each in NESTED)
    found = merged(roles(first.replace("put s", "put s;write t a"), second))
    (loop,) = [line for line in found if line.startswith("scf.for")]
    (stored,) = [line for line in found if line.startswith("tile.store")]
    (made,) = [line for line in found if "arith.mul" in line and line.endswith(", %c3 : int32")]
    assert found.index(loop) < found.index(made) < found.index(stored)
    assert stored == f"tile.store %c1p0, %t[{made.split()[0]}]"


def test_loops_with_steps() -> None:
    """Of numbers, or to a bound that is not known, from 2 on in steps of 2."""
    half = "%h = arith.floordiv %k, %c2 : int32"
    for bound in ("c9", "n"):
        loop = f"scf.for %c2, %{bound}, %c2 (%k: int32) {{;{half}"
        first = f"{loop};%odd = arith.floormod %h, %c2 : int32;wait two odd;put s;arrive one;end"
        second = f"{loop};%b = arith.sub %h, %c1 : int32;%even = arith.floormod %b, %c2 : int32;wait one even;get s;"
        assert merged(roles(first, f"{second}arrive two;end")) == [
            f"scf.for %c2, %{bound}, %c2 (%k: int32) {{",
            COPY,
            BACK,
            "scf.yield",
            "}",
        ]
        wrong = roles(first.replace("floordiv %k, %c2", "floordiv %k, %c4"), f"{second}arrive two;end")
        assert refused(wrong)[0] == never(0, "two", "0 of its 32", " in turn 2")


def test_a_number_of_turns_that_is_computed_of_two_numbers() -> None:
    """And a wait behind for the last of them."""
    head = "%m = arith.add %n, %bx : int32;loop m"
    found = merged(roles(f"{head};{PRODUCER};{BEHIND.format('%m')};put s", f"{head};{CONSUMER}"))
    assert found[1:] == ["scf.for %c0, %m, %c1 (%k: int32) {", COPY, BACK, "scf.yield", "}", COPY]


UNROLLED = "scf.for %c0, %{}, %c1 {{unroll = {}}} (%k: int32) {{"
TWICE = "wait one c0;get s;arrive two;wait one c1;get s;arrive two"


def test_a_loop_that_is_to_be_unrolled_is_where_the_other_role_is_written_out() -> None:
    """But not one in which roles do not part, nor where loops go together."""
    first = f"{UNROLLED.format('c2', 1)};{PRODUCER}"
    assert merged(roles(first, TWICE)) == [COPY, BACK, COPY, BACK]
    own = UNROLLED.format("c2", 1).replace("%k", "%z")
    assert merged(roles(f"{first};{own};put t;end", TWICE)) == [
        COPY, BACK, COPY, own, f"tile.copy %X, %t {WHOLE}", "scf.yield", "}", BACK,
    ]  # fmt: skip
    both = merged(roles(first, f"{UNROLLED.format('c2', 1)};{CONSUMER}"))
    assert both == [UNROLLED.format("c2", 1), COPY, BACK, "scf.yield", "}"]


@pytest.mark.parametrize(("turns", "unroll"), [("c2", 2), ("n", 1)])
def test_other_loops_stay_beside_what_is_written_out(turns: str, unroll: int) -> None:
    first = f"{UNROLLED.format(turns, unroll)};{PRODUCER}"
    assert refused(roles(first, TWICE)) == [never(0, "two", "0 of its 32", " in turn 1"), 3, (HERE, 13), (HERE, 16)]


def test_a_variable_is_read_behind_what_it_was_given_there() -> None:
    """Though what it is given may wait for another role, and the read does not."""
    second = (
        "%st = tile.alloc : buffer<int32, local>;wait one c0;get s;tile.store %c7, %st[];%p = tile.load %st[] : int32"
    )
    found = merged(roles("put s;arrive one", f"{second};tile.store %p, %I[%c0]"))
    assert found == [COPY, BACK, "tile.store %c7, %st", "%p = tile.load %st : int32", "tile.store %p, %I[%c0]"]


UNTOLD = '%x = tile.load %X[%c1] : float32;%e = arith.math [%x] {function = "exp"} : float32;%b = arith.cast %e : bool'
GIVEN = "%st = tile.alloc : buffer<2*int32, local>;tile.store %c1, %st[%c0];tile.store %c0, %st[%c1]"
OTHER = "%other = tile.alloc : buffer<2*int32, local>"
IF_ELSE = "scf.if %b {{;{};scf.yield }} {{;{};scf.yield }}"


@pytest.mark.parametrize(
    ("between", "at", "parity"),
    [
        ("", 0, 1),
        ("", 1, 0),
        ("tile.store %c1, %st[%c1]", 1, 1),
        ("tile.store %c1, %I[%c1]", 1, 0),  # elsewhere
        ("%b = arith.cmp %c1, %c2 {predicate = \"lt\"} : bool;" + IF_ELSE.format("tile.store %c1, %st[%c1]", ""), 1, 1),
        ("%b = arith.cmp %c1, %c2 {predicate = \"gt\"} : bool;" + IF_ELSE.format("tile.store %c1, %st[%c1]", ""), 1, 0),
        ("%b = arith.cmp %c1, %c2 {predicate = \"gt\"} : bool;" + IF_ELSE.format("", "tile.store %c1, %st[%c1]"), 1, 1),
        (f"{UNTOLD};" + IF_ELSE.format("tile.store %c1, %I[%c1]", ""), 1, 0),
        (f"{UNTOLD};" + IF_ELSE.format("tile.store %c0, %st[%c1]", ""), 1, None),
        (f"{UNTOLD};" + IF_ELSE.format("", "tile.store %c0, %st[%c0]"), 1, None),
        ("scf.for %c0, %c2, %c1 (%z: int32) {;tile.store %z, %st[%c1];end", 1, None),
        (f"{UNTOLD};" + IF_ELSE.format("tile.store %c0, %st[%c1]", "") + ";tile.store %c0, %st[%c1]", 1, 0),
        (f"{OTHER};scf.for %c0, %c2, %c1 (%z: int32) {{;tile.store %z, %other[%c1];end", 1, 0),
        ("%q = tile.load %I[%c5] : int32;%r = tile.load %I[%c5] : int32;%d = arith.sub %q, %r : int32;"
         "tile.store %d, %st[%c1]", 1, 0),  # an element of memory is what it is
        (f"{OTHER};tile.store %c1, %other[%c1];tile.store %c1, %other[%c0]", 1, 0),
    ],
)  # fmt: skip
def test_what_a_variable_holds(between: str, at: int, parity: int | None) -> None:
    """A wait of the parity that it holds: of 1 it is let through, of 0 never; None where no parity is told."""
    text = f"{GIVEN};{between};%p = tile.load %st[%c{at}] : int32;wait one p".replace(";;", ";")
    made = roles("arrive two", text)
    if parity == 1:
        merged(made)
    else:
        untold = "the parity of this wait is not told by numbers and the indices of loops"
        assert refused(made)[0] == (untold if parity is None else never(0, "one", "0 of its 32"))


@pytest.mark.parametrize(
    ("loop", "turns", "number"),
    [
        *(("loop n", turns, turns) for turns in (0, 1, 2, 3, 4, 5, 6, 7, 34)),
        *((FOURTHS, turns, 4 * turns) for turns in (3, 6)),  # the least number of so many turns
        *((FOURTHS, turns, 4 * turns + 3) for turns in (3, 34)),  # and the greatest
    ],
)
def test_a_number_of_turns_with_which_a_wait_never_ends(loop: str, turns: int, number: int) -> None:
    more = f'%z = arith.cmp %n, %c{number} {{predicate = "eq"}} : bool;scf.if %z {{;wait one c{turns % 2};scf.yield }}'
    made = roles(f"{loop};{PRODUCER}", f"{loop};{CONSUMER};{more} {{ scf.yield }}")
    assert refused(made)[0] == never(turns % 2, "one", "0 of its 32")


@pytest.mark.parametrize(
    ("one", "other", "is_covered", "meets"),
    [
        ((0, 4), (0, 4), True, True), ((0, 4), (1, 3), True, True), ((1, 4), (0, 4), False, True),
        ((0, 3), (0, 4), False, True), ((0, 4), (4, 8), False, False), ((4, 8), (0, 4), False, False),
        ((0, 4), (3, 8), False, True),
    ],
)  # fmt: skip
def test_boxes(one: tuple[int, int], other: tuple[int, int], is_covered: bool, meets: bool) -> None:
    for more in ((), ((0, 2),)):
        a, b = (one, *more), (other, *more)
        assert covers(a, b) is is_covered and overlap(a, b) is meets
        assert not more or not overlap(a, (other, (2, 4))) and not covers(a, (other, (1, 3)))
