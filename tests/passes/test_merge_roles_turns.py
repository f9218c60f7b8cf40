"""merge-roles: last turns behind a loop; exact IR."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.passes.ir_cases import kernel_of
from tests.passes.short_ir import allocated, lines_of, spelled, whole
from tiledsl.dialects import tile
from tiledsl.ir.kinds import of_kinds
from tiledsl.passes.merge_roles.roles import Threads
from tiledsl.passes.merge_roles.turns import take_last_turns


def turned(
    own: str,
    last: str,
    other: str,
    *,
    bounds: tuple[str, str] = ("%c0", "%c1"),
    around: tuple[str, str] = ("%c0", "%c1"),
    behind: str = "",
    inner: str = "thread.wait %bar, %c0, %c0",
    swapped: bool = False,
) -> tuple[bool, list[str]]:
    """One role's loop of %u turns and what it does behind, beside another one's of %w; whether it has changed."""
    lower, step = bounds
    mine = f"""{own}
        scf.for {lower}, %u, {step} (%k: int32) {{
        thread.wait %bar, %c0, %k
        scf.yield
        }}
        {behind}
        {last}
        scf.if %b {{
        {inner}
        scf.yield
        }} {{
        scf.yield
        }}"""
    theirs = f"""{other}
        scf.for {around[0]}, %w, {around[1]} (%z: int32) {{
        thread.arrive %bar, %c0
        scf.yield
        }}"""
    one, two = (theirs, mine) if swapped else (mine, theirs)
    made = whole(
        f"""%s = tile.alloc : buffer<16*float32, shared>
        %bar = tile.alloc : buffer<1*uint64, shared>
        %var = tile.alloc : buffer<int32, local>
        tile.parallel {{extents = (64,), lockstep = true}} (%t: int32) {{
        thread.init_barriers %bar {{counts = (32,)}}
        %first = %t < 32
        scf.if %first {{
        {one}
        scf.yield
        }} {{
        {two}
        scf.yield
        }}
        }}""",
        "X: 16*float32, n: int32, m: int32",
    )
    kernel = kernel_of(made)
    kernel.set_attribute("threads", 64)
    (op,) = of_kinds(kernel.walk(), tile.ParallelOp)
    done = take_last_turns(op.body, Threads(op.body, 64))
    return done, allocated(lines_of(made))[1]


QUOTIENTS = ("%u = %n // 16", "%p = %n + 15;%w = %p // 16")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("own", "last", "other"),
    [
        # n is u, u + 1, or one of both; the condition says which
        (QUOTIENTS[0], f"{QUOTIENTS[1]};%b = %u < %w".replace("%w", "%v"), QUOTIENTS[1]),
        (QUOTIENTS[0], f"{QUOTIENTS[1]};%b = %w > %u".replace("%w", "%v"), QUOTIENTS[1]),
        (QUOTIENTS[0], "%p = %n + 16;%v = %p // 16;%b = %u < %v", "%p = %n + 16;%w = %p // 16"),
        ("%u = %n - 1", "%v = %u + 1;%b = %u < %v", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %c0 < %n", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %n > %c0", "%w = %n + 0"),
        ("%u = %n + %m", "%y = %m + %n;%v = %y + 1;%b = %u < %v", "%h = %n + 1;%w = %m + %h"),
    ],
)
def test_a_last_turn_goes_back_into_the_loop(own: str, last: str, other: str, swapped: bool) -> None:
    done, found = turned(own, last, other, swapped=swapped)
    text = "\n".join(found)
    assert done
    loop = re.search(
        r"scf.for %c0, (%\w+), %c1 \(%k: int32\) \{\n(%\w+) = arith.cmp %k, %u \{predicate = \"lt\"\} : bool\n"
        r"scf.if (%\w+) \{\nthread.wait %bar, %c0, %k\nscf.yield\n\} \{\nscf.if %b \{\nthread.wait %bar, %c0, %c0\n"
        r"scf.yield\n\} \{\nscf.yield\n\}\nscf.yield\n\}\nscf.yield\n\}\n",
        text,
    )
    assert loop is not None, text
    assert loop[2] == loop[3] and loop[1] != "%u"
    before = text[: loop.start()]
    assert spelled(last).split("\n")[-1] in before  # the condition comes before the loop
    assert f"{loop[1]} = arith." in before  # and so does the number of turns


@pytest.mark.parametrize(
    ("own", "last", "other"),
    [
        ("%u = %n // 16", "%p = %n + 17;%v = %p // 16;%b = %u < %v", "%p = %n + 17;%w = %p // 16"),  # or two turns more
        ("%u = %n // 16", "%p = %n - 1;%v = %p // 16;%b = %u < %v", "%p = %n - 1;%w = %p // 16"),  # or one less
        ("%u = %n // 16", "%p = %n + 7;%v = %p // 8;%b = %u < %v", "%p = %n + 7;%w = %p // 8"),
        ("%u = %n // 16", "%p = %m + 15;%v = %p // 16;%b = %u < %v", "%p = %m + 15;%w = %p // 16"),
        ("%u = %n // 16", "%p = %n + 15;%v = %p // 16;%b = %c0 < %v", "%p = %n + 15;%w = %p // 16"),
        ("%u = %n // 16", "%p = %n + 15;%v = %p // 16;%b = %u != %v", "%p = %n + 15;%w = %p // 16"),
        ("%u = %n // 16", "%p = %n + 15;%v = %p // 16;%b = %v < %u", "%p = %n + 15;%w = %p // 16"),
        ("%u = %n - 2", "%b = %u < %n", "%w = %n + 0"),
        ("%u = %m + 0", "%b = %u < %n", "%w = %n + 0"),  # or any number of turns more
        ("%u = %n + 1", "%b = %u < %n", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %c1 < %n", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %m < %n", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %u < %m", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %t < %n", "%w = %n + 0"),  # it is not the same for all threads
        ("%u = %n + 0", "%b = %u < %n", "%w = %n + 0"),  # they have as many turns
    ],
)
def test_what_stands_behind_a_loop_is_no_last_turn(own: str, last: str, other: str) -> None:
    done, found = turned(own, last, other)
    assert not done
    assert "scf.for %c0, %u, %c1 (%k: int32) {\nthread.wait %bar, %c0, %k\nscf.yield\n}\n" in "\n".join(found)


@pytest.mark.parametrize(
    "change",
    [
        {"bounds": ("%c1", "%c1")},
        {"bounds": ("%c0", "%c2")},
        {"around": ("%c1", "%c1")},
        {"around": ("%c0", "%c2")},
        {"behind": "tile.fill %c1.0, %s"},
        {"inner": "tile.fill %c1.0, %s"},
    ],
)
def test_loops_and_branches_of_other_forms_have_no_last_turn(change: Any) -> None:
    """A loop that does not count from 0 on, other work between it and the branch, no wait in that."""
    texts = ("%u = %n - 1", "%b = %u < %n", "%w = %n + 0")
    assert turned(*texts)[0] and turned(*texts, behind="%q = tile.load %var : int32")[0]
    assert not turned(*texts, **change)[0]
