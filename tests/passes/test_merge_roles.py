"""merge-roles: which roles there are, what becomes of them, exact IR, and every error with its place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.ir_cases import kernel_of
from tests.passes.role_programs import (
    ALLOCS,
    ARRIVE,
    ASYNC,
    BOTH,
    FILL,
    GIVE,
    IF,
    LOW,
    ONE,
    OUT,
    READY,
    S_TO_Y,
    START,
    STORE,
    TAKE,
    TOGETHER,
    WAIT,
    X_TILES,
    X_TO_S,
    ZERO,
    S,
    branch,
    check,
    copied,
    lines,
    loop,
    made,
    merged,
    refused,
    roles,
    split,
)
from tiledsl.dialects import tile
from tiledsl.passes import merge_roles
from tiledsl.passes.merge_roles import MergeRoles

# Roles


def test_roles_of_both_sides_of_a_branch() -> None:
    assert roles(split(GIVE, TAKE)) == {
        "threads 0 to 31": [*2 * [START.format([0])], "tile.copy [0] 32", "thread.arrive [0] 32"],
        "threads 32 to 63": [*2 * [START.format([1])], "thread.wait [1] 32", "tile.copy [1] 32"],
    }


@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        (BOTH + branch("%both", ARRIVE), ["thread.arrive [0] 32 if p"], []),
        (
            BOTH + branch("%both", "") + branch("%low", "", WAIT),
            ["scf.if [0] 32"],
            ["scf.if [1] 32", "thread.wait [1] 32"],
        ),
        (branch("%low", WAIT) + ASYNC, ["thread.wait [0] 32", "thread.async [0] 32"], []),
        (ONE + branch("%low", "", ASYNC) + branch("%one", ARRIVE), [], ["thread.async [1] 32", "thread.arrive [1] 1"]),
        (
            branch("%low", loop("%n", ARRIVE), loop("%n", WAIT)),
            ["for k", "  thread.arrive [0] 32"],
            ["for k", "  thread.wait [1] 32"],
        ),
        (
            branch("%low", branch("%p", loop("%n", ARRIVE), WAIT)),
            ["for k if p", "  thread.arrive [0] 32", "thread.wait [0] 32 unless p"],
            [],
        ),
        (
            "%pq = arith.and %p, %q : bool\n" + branch("%low", branch("%pq", ARRIVE, WAIT)),
            ["thread.arrive [0] 32 if p if q", "thread.wait [0] 32 unless pq"],
            [],
        ),
        (
            branch("%low", ARRIVE) + f"tile.fill %z, %s{STORE}tile.store %c0, %v\n%ld = tile.load %v : int32\n",
            ["thread.arrive [0] 32", *TOGETHER, "tile.store [0] 32", "tile.load [0] 32"],
            [*TOGETHER, "tile.store [1] 32", "tile.load [1] 32"],
        ),
        (
            branch("%low", ARRIVE) + loop("%n", "tile.fill %z, %s"),
            ["thread.arrive [0] 32", "scf.for [0, 1] 64"],
            ["scf.for [0, 1] 64"],
        ),
        (
            branch("%low", ARRIVE) + "tile.parallel {extents = (4,)} (%e: int32) {\ntile.store %c0, %v\n}\n",
            ["thread.arrive [0] 32", "tile.parallel [0] 32"],
            ["tile.parallel [1] 32"],
        ),
        (
            branch("%low", ARRIVE) + "thread.barrier\n",
            ["thread.arrive [0] 32", "thread.barrier [0, 1] 64"],
            ["thread.barrier [0, 1] 64"],
        ),
    ],
)
def test_what_roles_do(body: str, low: list[str], high: list[str]) -> None:
    """Of a loop without barriers one step; of a copy that all come to, one of the first thread's role."""
    assert roles(READY + LOW + ZERO + body) == {
        "threads 0 to 31": [START.format([0]), *low],
        "threads 32 to 63": [START.format([1]), *high],
    }


def test_variables_alone_are_read_under_no_condition() -> None:
    read = "%g = tile.load %array[%c0] : int32\n%h = tile.load %v : int32\n"
    found = roles(
        READY + LOW + branch("%low", branch("%p", read + ARRIVE)),
        allocs=ALLOCS + "%array = tile.alloc : buffer<2*int32, local>\n",
    )
    assert found["threads 0 to 31"][1:] == ["tile.load [0] 32 if p", "tile.load [0] 32", "thread.arrive [0] 32 if p"]


def test_a_branch_of_the_block_divides_nobody() -> None:
    assert roles(READY + branch("%p", ARRIVE, WAIT)) == {
        "threads 0 to 63": [
            "thread.init_barriers [0] 64",
            "thread.arrive [0] 64 if p",
            "thread.wait [0] 64 unless p",
        ]
    }


def test_roles_of_several_branches() -> None:
    more = '%more = arith.cmp %tx, %c64 {predicate = "lt"} : bool\n'
    inner = branch("%more", "tile.fill %z, %x", ARRIVE)
    found = roles(READY + LOW + more + ZERO + branch("%low", WAIT, inner), threads=160)
    start = "thread.init_barriers [{}] {}"
    assert found == {
        "threads 0 to 31": [start.format(0, 32), "thread.wait [0] 32"],
        "threads 32 to 63": [start.format(1, 32), "tile.fill [1] 32"],
        "threads 64 to 159": [start.format(2, 96), "thread.arrive [2] 96"],
    }


@pytest.mark.parametrize(("then", "step"), [(ARRIVE, "thread.arrive [0] 1"), ("tile.fill %z, %s", "scf.if [0] 64")])
def test_a_part_of_a_warp_is_no_role(then: str, step: str) -> None:
    """But one thread may arrive."""
    found = roles(READY + ZERO + ONE + branch("%one", then))
    assert found == {"threads 0 to 63": ["thread.init_barriers [0] 64", step]}


LOADED = '%l = tile.load %N[%tx] : int32\n%zero = arith.cmp %l, %c0 {predicate = "eq"} : bool\n'


@pytest.mark.parametrize(
    ("body", "message", "place", "notes"),
    [
        (
            split("thread.barrier\n" + GIVE, TAKE),
            "T.sync_threads where not all threads of the block come: the others would wait for ever",
            "thread.barrier",
            ["give it the number of a barrier and of the threads that come, or use T.alloc_barrier"],
        ),
        (
            READY + ONE + branch("%one", loop("%n", ARRIVE)),
            "a part of a warp's threads runs a loop in which it waits or arrives",
            "scf.for %c0, %n, %c1 (%k: int32) {",
            [],
        ),
        *[
            (
                READY + loop(**{"upper": "%n", **bound}, body=ARRIVE),
                "the bounds of a loop in which threads wait for each other differ from thread to thread",
                f"scf.for {', '.join({'lower': '%c0', 'upper': '%n', 'step': '%c1', **bound}.values())} (%k: int32) {{",
                [],
            )
            for bound in ({"lower": "%tx"}, {"upper": "%tx"}, {"step": "%tx"})
        ],
        (
            READY + LOW + BOTH + branch("%both", GIVE, TAKE),
            "an else of a condition on both the thread and other values: write two `if`",
            "scf.if %both {",
            [],
        ),
        (
            READY + LOADED + branch("%zero", ARRIVE),
            "whether a thread comes to a barrier is not told by its number and values of the block",
            "scf.if %zero {",
            [],
        ),
        (
            READY + LOADED + "%and = arith.and %zero, %p : bool\n" + branch("%and", ARRIVE),
            "whether a thread comes to a barrier is not told by its number and values of the block",
            "scf.if %and {",
            [],
        ),
        (
            READY + f"scf.while {{\nscf.condition %p\n}} {{\n{ARRIVE}\nscf.yield\n}}\n",
            "a while loop in which threads wait for each other: how often it runs cannot be told",
            "scf.while {",
            ["write `for i in T.serial(n)`"],
        ),
        *[
            (
                split(FILL + GIVE, then, behind=behind),
                f"x is in registers, which are each thread's own, but {who} would need what other warps have there",
                "%x = tile.alloc : buffer<64*float32, fragment>",
                ["hand it over in a tile of T.alloc_shared"],
            )
            for then, behind, who in (
                (TAKE + OUT, "", "threads 32 to 63"),
                (f"{FILL}{TAKE}", OUT, "the block together"),
            )
        ],
        (
            split(
                branch(
                    "%p",
                    "%l = tile.load %X[%c3] : float32\nthread.wait %free, %c0, %c0\n%m = arith.add %l, %l : float32\n"
                    "tile.fill %m, %s",
                )
                + FILL,
                f"{copied('%X', '%Y')}\nthread.arrive %free, %c0",
            ),
            "this needs a value that was read under a condition, before the role waited",
            "tile.fill %m, %s",
            ["read it into T.alloc_var"],
        ),
        (
            split(
                branch(
                    "%p",
                    branch(
                        "%q",
                        "%l = tile.load %X[%c3] : float32\nthread.wait %free, %c0, %c0\n"
                        "%m = arith.add %l, %l : float32\ntile.fill %m, %s",
                    ),
                )
                + FILL,
                branch("%p", f"{copied('%X', '%Y')}\nthread.arrive %free, %c0"),
            ),
            "this needs a value that was read under a condition, before the role waited",
            "tile.fill %m, %s",
            ["read it into T.alloc_var"],
        ),
        (
            split(
                loop("%c4", f"{X_TO_S}\n{ARRIVE}") + loop("%c5", "thread.arrive %free, %c0", "j"),
                loop("%c5", "thread.wait %free, %c0, %c0", "i") + loop("%c4", WAIT, "h"),
            ),
            "the loops of the roles do not come in one order",
            "scf.for %c0, %c4, %c1 (%k: int32) {",
            ["this is to become one with it: scf.for %c0, %c4, %c1 (%h: int32) {"],
        ),
    ],
)
def test_what_is_refused(body: str, message: str, place: str, notes: list[str]) -> None:
    assert refused(body) == (message, place, notes)


def test_threads_along_two_axes() -> None:
    assert refused(split(GIVE, TAKE), axes="2, 32")[:2] == (
        "threads along several axes, and barriers: give T.Kernel one number of threads",
        "tile.kernel [%grid0] {threads = 64} (%bx: int32) {",
    )


EVERY_OTHER = """%w = arith.floordiv %tx, %c32 : int32
    %odd = arith.floormod %w, %c2 : int32
    %low = arith.cmp %odd, %c0 {predicate = "eq"} : bool
"""


def test_threads_of_a_role_that_do_not_follow_each_other() -> None:
    message, place, _ = refused(
        READY.replace("32", "64") + EVERY_OTHER + ZERO + branch("%low", GIVE + STORE, TAKE), threads=96
    )
    assert message == "the threads of a role do not follow each other"
    assert place == "tile.kernel [%grid0] {threads = 96} (%bx: int32) {"


def test_roles_that_wait_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    body = split(f"thread.wait %free, %c0, %c0\n{GIVE}", f"thread.arrive %free, %c0\n{TAKE}")
    monkeypatch.setattr(merge_roles, "_MOST_EDGES", 1)
    message, place, _ = refused(body)
    assert message == "the roles of this kernel wait too often to be put in one order"
    assert place == "tile.kernel [%grid0] {threads = 64} (%bx: int32) {"
    monkeypatch.setattr(merge_roles, "_MOST_EDGES", 3)
    assert merged(body)[1:] == [X_TO_S, S_TO_Y]


# What becomes of them: exact IR


def test_registers_of_two_roles() -> None:
    """Each has its own, if each writes them."""
    two = X_TILES + X_TILES.replace("%x", "%x_1")
    order = f"tile.fill %c0p0, %x_1\n{X_TO_S}\ntile.fill %c0p0, %x\n{S_TO_Y}\n{copied('%x', '%Y')}"
    check(split(FILL + GIVE, FILL + TAKE + OUT), S + two + order)


def test_registers_that_the_block_has_written_before() -> None:
    out = copied("%x", "%Y")
    order = f"tile.fill %c0p0, %x\n{X_TO_S}\n{out}\n{S_TO_Y}\n{out}"
    check(split(GIVE + OUT, TAKE + OUT, head=FILL), S + X_TILES + order)


def test_registers_of_one_role() -> None:
    check(
        split(GIVE, FILL + TAKE + OUT),
        f"{S}{X_TILES}tile.fill %c0p0, %x\n{X_TO_S}\n{S_TO_Y}\n{copied('%x', '%Y')}",
    )


def test_variables_that_all_threads_write() -> None:
    """Each role has a copy; what the block then does takes the first one's, which is the same."""
    load = "\n%a = tile.load %v : int32\ntile.store %a, %N[%c1]\n"
    given = "tile.store %c7, %{0}\n"
    variables = "%v = tile.alloc : buffer<int32, local>\n%v_1 = tile.alloc : buffer<int32, local>\n"
    first, other = (
        load.replace("%a", name).replace("%v", variable) for name, variable in (("%a", "%v_1"), ("%a_1", "%v"))
    )
    found = merged(split(GIVE, TAKE, head=given.format("v"), behind=load))
    assert found == lines(
        S + variables + given.format("v_1") + X_TO_S + first.rpartition("tile.store")[0] + given.format("v") + S_TO_Y
        + other.rpartition("tile.store")[0] + "tile.store %a, %N[%c1]"
    )  # fmt: skip


def test_a_variable_that_roles_write_and_the_block_reads() -> None:
    load = "%a = tile.load %v : int32\n%b = arith.add %a, %c1 : int32\ntile.store %b, %N[%c1]\n"
    message, place, _ = refused(split("tile.store %c7, %v\n" + GIVE, "tile.store %c5, %v\n" + TAKE, behind=load))
    assert message.startswith("v is in registers, which are each thread's own, but the block together would need")
    assert place == "%v = tile.alloc : buffer<int32, local>"
    head = "tile.store %c7, %v\n"
    for there, back in ((f"tile.store %c5, %v\n{GIVE}", TAKE), (GIVE, f"tile.store %c5, %v\n{TAKE}")):
        assert refused(split(there, back, head=head, behind=load))[0] == message  # all have written it, and one again


def test_the_first_of_several_roles_that_need_what_others_have_is_named() -> None:
    more = '%more = arith.cmp %tx, %c64 {predicate = "lt"} : bool\n'
    out = copied("%x", "%Y")
    body = READY + LOW + more + ZERO + branch("%more", branch("%low", FILL + GIVE, f"{TAKE}\n{out}"), out)
    assert refused(body, threads=96)[0].endswith("but threads 32 to 63 would need what other warps have there")


LANE = "tile.parallel {{extents = ({},), lockstep = true}} (%tx: int32) {{\n{}\n}}"
AMONG = """%{0} = arith.cmp %tx, %c{3} {{predicate = "ge"}} : bool
%{1} = arith.cmp %tx, %c{4} {{predicate = "le"}} : bool
%{2} = arith.and %{0}, %{1} : bool
"""
STORED = "tile.store %c0p0, %Y[{}]"


def test_threads_of_two_roles_are_numbered_from_0() -> None:
    order = f"%0 = arith.add %tx, %c32 : int32\n{X_TO_S}\n{STORED.format('%tx')}\n{S_TO_Y}\n{STORED.format('%0')}"
    check(split(GIVE + STORE, TAKE + STORE), S + LANE.format(32, order))


def test_threads_of_a_smaller_role_are_masked() -> None:
    """A load by its mask, since its value is used behind it."""
    load = "%l = tile.load %X[%tx] : float32\n%g = tile.load %X[%tx] mask=%p : float32\n"
    use = "tile.store %l, %Y[%tx]\ntile.store %g, %Y[%tx]\n"
    text = READY.replace("32", "64") + LOW.replace("%c32", "%c64") + ZERO
    order = f"""%0 = arith.add %tx, %c64 : int32
        %1 = arith.cmp %tx, %c32 {{predicate = "lt"}} : bool
        {X_TO_S}
        {STORED.format("%tx")}
        {S_TO_Y}
        %l = tile.load %X[%0] mask=%1 : float32
        %2 = arith.and %p, %1 : bool
        %g = tile.load %X[%0] mask=%2 : float32
        {IF.format("%1", "tile.store %l, %Y[%0]")}{IF.format("%1", "tile.store %g, %Y[%0]")}"""
    check(text + branch("%low", GIVE + STORE, f"{TAKE}\n{load}{use}"), S + LANE.format(64, order), threads=96)


def test_threads_of_a_role_beside_those_of_the_block() -> None:
    order = AMONG.format(0, 1, 2, 0, 31) + f"{X_TO_S}\n{IF.format('%2', STORED.format('%tx'))}"
    check(split(GIVE + STORE, TAKE, behind=STORE), S + LANE.format(64, f"{order}{S_TO_Y}\n{STORED.format('%tx')}"))
    order = AMONG.format(0, 1, 2, 32, 63) + f"{X_TO_S}\n{S_TO_Y}\n{IF.format('%2', STORED.format('%tx'))}"
    check(split(GIVE, TAKE + STORE, behind=STORE), S + LANE.format(64, f"{order}{STORED.format('%tx')}"))


def test_threads_of_the_block_alone() -> None:
    check(split(GIVE, TAKE, behind=STORE), S + LANE.format(64, f"{X_TO_S}\n{S_TO_Y}\n{STORED.format('%tx')}"))


def test_what_two_of_three_roles_do_together() -> None:
    more = '%more = arith.cmp %tx, %c64 {predicate = "lt"} : bool\n'
    body = READY + LOW + more + ZERO + branch("%more", branch("%low", GIVE, TAKE) + STORE)
    order = AMONG.format(0, 1, 2, 0, 63) + f"{X_TO_S}\n{S_TO_Y}\n{IF.format('%2', STORED.format('%tx'))}"
    check(body, S + LANE.format(96, order), threads=96)


def test_threads_that_do_not_follow_each_other_beside_those_of_the_block() -> None:
    body = READY.replace("32", "64") + EVERY_OTHER + ZERO + branch("%low", GIVE + STORE, TAKE) + STORE
    order = (
        AMONG.format(0, 1, 2, 0, 31) + AMONG.format(3, 4, 5, 64, 95) + "%6 = arith.or %2, %5 : bool\n" + X_TO_S + "\n"
    )
    order += IF.format("%6", STORED.format("%tx")) + f"{S_TO_Y}\n{STORED.format('%tx')}"
    check(body, S + LANE.format(96, order), threads=96)


def test_a_variable_with_the_number_of_a_thread() -> None:
    """A store where it says so differs from thread to thread, too."""
    load = "\n%a = tile.load %v : int32\ntile.store %z, %Y[%a]\n"
    found = merged(split(GIVE, TAKE, head="tile.store %tx, %v\n", behind=load))
    assert found[3] == "tile.parallel {extents = (64,), lockstep = true} (%tx: int32) {"
    assert [line for line in found if "store" in line] == [
        "tile.store %tx, %v_1",
        "tile.store %tx, %v",
        "tile.store %c0p0, %Y[%a]",
    ]
    assert "scf.if" not in "\n".join(found)


@pytest.mark.parametrize(
    ("value", "more", "scope"),
    [
        ("%tx", "", "local"),
        ("%n", "", "fragment"),
        ("%tx", "tile.fill %z, %x\n", "fragment"),
        (
            "%tx",
            "tile.parallel {extents = (64,)} (%j: int32) {\n%h = tile.load %x[%j] : float32\n"
            "tile.store %h, %Y[%j]\n}\n",
            "fragment",
        ),
    ],
)
def test_elements_of_each_thread(value: str, more: str, scope: str) -> None:
    """A fragment of which threads write elements of their own, and nobody all, is an array of each."""
    own = f"%e = arith.cast {value} : float32\ntile.store %e, %x[%c1]\n%g = tile.load %x[%c1] : float32\n"
    found = merged(split(GIVE, TAKE, behind=own + "tile.store %g, %Y[%tx]\n" + more))
    assert {line.rpartition(", ")[2] for line in found if line.startswith("%x")} == {f"{scope}>"}


def test_a_variable_that_counts_is_the_same_in_all_threads() -> None:
    count = "%a = tile.load %v : int32\n%b = arith.add %a, %c1 : int32\ntile.store %b, %v\n%d = tile.load %v : int32\n"
    body = READY.replace("32", "64") + LOW.replace("%c32", "%c64") + ZERO
    body += branch("%low", GIVE + STORE, f"tile.store %c3, %v\n{TAKE}\n{loop('%n', count)}{count}tile.store %z, %Y[%d]")
    found = "\n".join(merged(body, threads=96))
    assert "scf.if" not in found and "mask=" not in found and "tile.store %c0p0, %Y[%d" in found


@pytest.mark.parametrize(
    ("made", "taken", "threads"),
    [(X_TO_S, S_TO_Y, 96), (X_TO_S, f"tile.fill %z, %x\n{S_TO_Y}", 32), ("tile.fill %z, %s", S_TO_Y, 64)],
)
def test_threads_that_compute_are_left(made: str, taken: str, threads: int) -> None:
    low = LOW.replace("%c32", "%c64")
    body = READY.replace("32", "64") + low + ZERO + branch("%low", f"{made}\n{ARRIVE}", f"{WAIT}\n{taken}")
    found = program_of(body, threads=96)
    assert found.threads == threads


def program_of(body: str, **options: Any) -> tile.KernelOp:
    found = made(body, **options)
    MergeRoles().run(found)
    kernel = kernel_of(found)
    assert isinstance(kernel, tile.KernelOp)
    return kernel


def test_a_read_that_nothing_orders_is_remarked() -> None:
    (remark,) = program_of(READY + LOW + branch("%low", GIVE, S_TO_Y)).remarks
    assert remark.startswith("merge-roles: nothing orders the read at roles.py:")
    assert remark.endswith(", which is the only one; it comes after it")
