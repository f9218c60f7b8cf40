"""merge-roles: which roles there are, what becomes of them, exact IR, and every error with its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.passes.ir_cases import body_lines, kernel_of, program
from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.printer import print_op
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BufferType
from tiledsl.ir.verifier import verify
from tiledsl.location import Loc
from tiledsl.passes import merge_roles
from tiledsl.passes.merge_roles import MergeRoles
from tiledsl.passes.merge_roles.emit import _only_loop, _touches
from tiledsl.passes.merge_roles.numbers import number_of
from tiledsl.passes.merge_roles.order import Fused, Item, Keys, _stores, region_of, resolved
from tiledsl.passes.merge_roles.roles import Loop, Node, Step, Threads, find_roles
from tiledsl.passes.merge_roles.turns import _copied, _is_or_follows, _says
from tiledsl.runtime.target import Target

PARAMETERS = "X: 64*float32, Y: 64*float32, N: 64*int32, n: int32, p: bool, q: bool"
FIRST = 0
LOW = '%low = arith.cmp %tx, %c32 {predicate = "lt"} : bool\n'
READY = "thread.init_barriers %ready {counts = (32,)}\n"
ALLOCS = """
    %s = tile.alloc : buffer<64*float32, shared>
    %x = tile.alloc : buffer<64*float32, fragment>
    %v = tile.alloc : buffer<int32, local>
    %ready = tile.alloc : buffer<1*uint64, shared>
    %free = tile.alloc : buffer<1*uint64, shared>
"""


def copied(source: str, target: str) -> str:
    return f"tile.copy {source}, {target} {{shape = (64,), source_axes = (0,), target_axes = (0,)}}"


def branch(condition: str, then: str, other: str = "") -> str:
    return f"scf.if {condition} {{\n{then}\nscf.yield\n}} {{\n{other}\nscf.yield\n}}\n"


def loop(upper: str, body: str, name: str = "k", lower: str = "%c0", step: str = "%c1") -> str:
    return f"scf.for {lower}, {upper}, {step} (%{name}: int32) {{\n{body}\nscf.yield\n}}\n"


GIVE = f"{copied('%X', '%s')}\nthread.arrive %ready, %c0"
TAKE = f"thread.wait %ready, %c0, %c0\n{copied('%s', '%Y')}"


def made(body: str, *, threads: int = 64, allocs: str = ALLOCS, axes: str | None = None) -> Program:
    """A block of threads that do this. Its operations are on lines of their own, in the order of the text."""
    index, extents = ("%tx: int32", f"{threads},") if axes is None else ("%ty: int32, %tx: int32", axes)
    around = f"tile.parallel {{extents = ({extents}), lockstep = true}} ({index}) {{"
    found = program(f"{allocs}\n{around}\n{body}\n}}", parameters=PARAMETERS, grid=(1,))
    kernel = kernel_of(found)
    assert isinstance(kernel, tile.KernelOp)
    kernel.body.terminator.erase()
    kernel.set_attribute("threads", threads)
    for number, op in enumerate(found.root.walk()):
        op.loc = Loc("roles.py", number, 1, number, 2)
    return found


def lines_of(found: Program) -> list[str]:
    """The lines of the kernel, without constants, which are named by their numbers."""
    kernel = kernel_of(found)
    kernel.regions[0].insert(scf.YieldOp())
    return body_lines(found)


def merged(body: str, **options: Any) -> list[str]:
    found = made(body, **options)
    MergeRoles().run(found)
    verify(found.root)
    return lines_of(found)


def refused(body: str, **options: Any) -> tuple[str, str, list[str]]:
    """The message, the first line of the operation that it is about, and the notes, places as such lines."""
    found = made(body, **options)
    heads = {op.loc: print_op(op).splitlines()[0] for op in found.root.walk()}
    with pytest.raises(TileError) as caught:
        MergeRoles().run(found)
    error = caught.value
    assert error.loc is not None
    notes = [each if isinstance(each, str) else f"{each[0]}: {heads[each[1]]}" for each in error.notes]
    return error.message, heads[error.loc], notes


def roles(body: str, **options: Any) -> dict[str, list[str]]:
    """What each role does, without constants: operations, who does them, how many threads, under which guards."""
    found = made(body, **options)
    kernel = kernel_of(found)
    assert isinstance(kernel, tile.KernelOp)
    region = region_of(kernel)
    return {str(role): list(_nodes(role.program)) for role in find_roles(region, Threads(region, kernel.threads))}


def _nodes(program: Sequence[Node]) -> Iterator[str]:
    for node in program:
        guards = "".join(f" {'if' if holds else 'unless'} {value.name}" for value, holds in node.guards)
        if isinstance(node, Loop):
            yield f"for {node.op.index.name}{guards}"
            yield from (f"  {each}" for each in _nodes(node.body))
        elif not node.op.is_pure or node.op.regions:
            yield f"{node.op.name} {node.roles} {node.lanes}{guards}"


def split(then: str, other: str, head: str = "", behind: str = "") -> str:
    """Threads 0 to 31 do one thing, those behind them another one."""
    return READY + FREE + LOW + ZERO + head + branch("%low", then, other) + behind


def ring(made: str, taken: str, upper: str = "%n", other: str | None = None, start: bool = False) -> str:
    """Two loops that hand `s` to each other."""
    copy = f"thread.async [%ready], [%c0] {{\n{made}\n}}" if start else made
    give = "%next = arith.add %k, %c1 : int32\n%one = arith.floormod %next, %c2 : int32\nthread.wait %free, %c0, %one\n"
    take = "%par = arith.floormod %k, %c2 : int32\nthread.wait %ready, %c0, %par\n"
    there, back = f"{give}{copy}\n{ARRIVE}", f"{take}{taken}\nthread.arrive %free, %c0"
    return split(loop(upper, there), loop(other or upper, back))


def versions_ring(made: str, taken: str) -> str:
    """The same with two versions, of `two`."""
    stage = "%st = arith.floormod %k, %c2 : int32\n%h = arith.floordiv %k, %c2 : int32\n"
    give = f"{stage}%h1 = arith.add %h, %c1 : int32\n%one = arith.floormod %h1, %c2 : int32\n"
    take = f"{stage}%par = arith.floormod %h, %c2 : int32\nthread.wait %ready, %st, %par\n"
    there = f"{give}thread.wait %free, %st, %one\n{made}\nthread.arrive %ready, %st"
    text = split(loop("%n", there), loop("%n", f"{take}{taken}\nthread.arrive %free, %st"))
    return text.replace("counts = (32,)", "counts = (32, 32)")


def part(source: str, target: str, size: int = 64) -> str:
    """A copy of a row, of which `two` has two."""
    axes = ["1" if "%two" in each else "0" for each in (source, target)]
    return f"tile.copy {source}, {target} {{shape = ({size},), source_axes = ({axes[0]},), target_axes = ({axes[1]},)}}"


FREE = "thread.init_barriers %free {counts = (32,)}\n"
ZERO = "%z = arith.constant {value = 0.0} : float32\n"
ARRIVE, WAIT = "thread.arrive %ready, %c0", "thread.wait %ready, %c0, %c0"
STORE = "\ntile.store %z, %Y[%tx]\n"
BOTH = "%both = arith.and %low, %p : bool\n"
ONE = '%one = arith.cmp %tx, %c40 {predicate = "eq"} : bool\n'
ASYNC = f"thread.async [%ready], [%c0] {{\n{copied('%X', '%s')}\n}}\n"
FILL, OUT = "tile.fill %z, %x\n", "\n" + copied("%x", "%Y") + "\n"
TOGETHER = ["tile.fill [0, 1] 64", "tile.store [0, 1] 64"]
START = "thread.init_barriers {} 32"
TWO_BARRIERS = ALLOCS.replace("1*uint64", "2*uint64")
X_TO_S, S_TO_Y = copied("%X", "%s"), copied("%s", "%Y")


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


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def check(body: str, expected: str, **options: Any) -> None:
    assert merged(body, **options) == lines(expected)


S, X_TILES = "%s = tile.alloc : buffer<64*float32, shared>\n", "%x = tile.alloc : buffer<64*float32, fragment>\n"
IF = "scf.if {} {{\n{}\nscf.yield\n}} {{\nscf.yield\n}}\n"
UNLESS_P = "%0 = arith.not %p : bool\n" + IF.replace("{}", "%0", 1)


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


# Guards

LOAD = "%l = tile.load %N[%c3] : int32\n%m = arith.add %l, %c5 : int32\n%f = arith.cast %m : float32\ntile.fill %f, %s"


def test_guards_of_both_roles_become_one_branch() -> None:
    """What is computed from a value that was read in it stands in it."""
    check(split(branch("%p", f"{LOAD}\n{ARRIVE}"), branch("%p", TAKE)), S + IF.format("%p", f"{LOAD}\n{S_TO_Y}"))
    body = split(branch("%p", "", f"{LOAD}\n{ARRIVE}"), branch("%p", "", TAKE))
    check(body, S + UNLESS_P.format(f"{LOAD}\n{S_TO_Y}"))


@pytest.mark.parametrize(
    ("text", "stores"),
    [
        ("tile.store %c1, %v", True),
        (branch("%p", "tile.store %c1, %v\ntile.store %c2, %N[%c0]"), True),
        (branch("%p", "%l = tile.load %v : int32\ntile.store %l, %N[%c0]"), False),
        (branch("%p", "tile.store %c2, %N[%c0]"), False),
        (loop("%n", "%l = tile.load %v : int32\ntile.store %l, %N[%c0]\ntile.store %c1, %v"), True),
    ],
)
def test_steps_that_may_change_a_variable(text: str, stores: bool) -> None:
    found = made(text)
    (op,) = [each for each in region_of(kernel_of(found)) if each.name in ("tile.store", "scf.if", "scf.for")]
    (variable,) = [each.out for each in found.root.walk() if isinstance(each, tile.AllocOp) and each.out.name == "v"]
    step = Step(op, [0], 64, ())
    assert _stores(step, variable) is stores
    if isinstance(op, scf.ForOp):
        inside = Loop(op, 0, (), [Step(each, [0], 64, ()) for each in op.body])
        assert _stores(Fused([inside]), variable) is stores


@pytest.mark.parametrize(
    ("text", "touches"),
    [
        ("tile.store %tx, %N[%c0]", True),
        ("tile.store %c1, %N[%tx]", True),
        ("%m = arith.add %tx, %c1 : int32\ntile.store %m, %N[%c0]", True),
        ("tile.store %c1, %N[%c0]", False),
        (branch("%p", "tile.store %tx, %N[%c0]"), True),
        ("tile.store %tx, %v\n%l = tile.load %v : int32\ntile.store %l, %N[%c0]", True),  # a variable that was given it
        ("tile.store %c1, %v\n%l = tile.load %v : int32\ntile.store %l, %N[%c0]", False),
        (
            "%l = tile.load %v : int32\n%m = arith.add %l, %c1 : int32\ntile.store %m, %v\ntile.store %l, %N[%c0]",
            False,
        ),
        # An element of a tile is the same for all.
        ("%f = arith.cast %tx : float32\ntile.store %f, %s[%c0]\n%l = tile.load %s[%c0] : float32\n"
         "tile.store %l, %Y[%c0]", False),
    ],
)  # fmt: skip
def test_steps_that_differ_from_thread_to_thread(text: str, touches: bool) -> None:
    region = region_of(kernel_of(made(text)))
    *_, op = [each for each in region if each.name in ("tile.store", "scf.if")]
    assert _touches(op, region.args[0]) is touches


def test_guards_in_guards() -> None:
    body = split(branch("%p", branch("%q", LOAD) + GIVE), branch("%p", TAKE))
    nested = IF.format("%p", IF.format("%q", LOAD) + f"{X_TO_S}\n{S_TO_Y}")
    check(body, S + nested)
    load, *uses = LOAD.split("\n")  # a value of the outer one may be used in the inner one
    body = split(branch("%p", f"{load}\n" + branch("%q", "\n".join(uses)) + GIVE), branch("%p", TAKE))
    check(body, S + IF.format("%p", f"{load}\n" + IF.format("%q", "\n".join(uses)) + f"{X_TO_S}\n{S_TO_Y}"))


def test_the_other_side_of_a_branch_in_a_branch() -> None:
    stores = "tile.store %c1, %N[%c1]\ntile.store %c2, %N[%c2]\n"
    body = split(branch("%p", branch("%q", "", stores) + GIVE), branch("%p", TAKE))
    check(body, S + IF.format("%p", UNLESS_P.replace("%p", "%q").format(stores) + f"{X_TO_S}\n{S_TO_Y}"))


def test_guards_that_differ() -> None:
    one, two = "tile.store %c1, %N[%c1]", "tile.store %c2, %N[%c2]"
    body = split(branch("%p", GIVE) + branch("%q", one), branch("%p", TAKE) + branch("%q", two))
    order = (("%p", X_TO_S), ("%q", one), ("%p", S_TO_Y), ("%q", two))
    check(body, S + "".join(IF.format(*each) for each in order))


def test_a_loop_under_a_guard() -> None:
    body = split(branch("%p", loop("%n", X_TO_S)) + ARRIVE, WAIT)
    inner = f"scf.for %c0, %n, %c1 (%k: int32) {{\n{X_TO_S}\nscf.yield\n}}"
    check(body, S + IF.format("%p", inner))


# Loops


def turns(upper: str, body: str, attributes: str = "", head: str = S) -> str:
    return f"{head}scf.for %c0, {upper}, %c1 {attributes}(%k: int32) {{\n{body}\nscf.yield\n}}"


STAGES = "{num_stages = 2} "
MOVED = f"{X_TO_S}\n{S_TO_Y}"


def test_loops_of_two_roles_become_one() -> None:
    check(ring(X_TO_S, S_TO_Y), turns("%n", MOVED))


@pytest.mark.parametrize(("elements", "attributes"), [(57980, STAGES), (57981, "")])
def test_copies_that_are_started_run_a_turn_ahead_where_there_is_room(elements: int, attributes: str) -> None:
    """232448 bytes, less two tiles of 64 floats and two barriers."""
    big = f"%big = tile.alloc : buffer<{elements}*float32, shared>\n"
    check(ring(X_TO_S, S_TO_Y, start=True), turns("%n", MOVED, attributes), allocs=ALLOCS + big)


@pytest.mark.parametrize(
    ("target", "room"), [(Target("cuda", 80), 166912), (Target("cuda", 90), 232448), (Target("interpret"), 232448)]
)
def test_room_is_that_of_the_target(target: Target, room: int) -> None:
    """Or Hopper's, where it has no limit."""
    ours = (64 + 64) * 4 + 2 * 8  # a second version of `s`, and barriers
    for size, fits in ((room - ours, True), (room - ours + 8, False)):
        found = made(ring(X_TO_S, S_TO_Y, start=True))
        found.target = target
        big = tile.AllocOp(result_types=[BufferType((size // 4,), "float32", "shared")])
        kernel_of(found).regions[0].insert(big, kernel_of(found).regions[0].first)
        MergeRoles().run(found)
        assert ("num_stages" in "\n".join(lines_of(found))) is fits


READ_BOUNDS = "%{0} = tile.load %N[%c0] : int32\n"


def test_loops_whose_bounds_are_loaded_alike() -> None:
    """From a buffer that the kernel does not change."""
    ringed = ring(X_TO_S, S_TO_Y, "%a", "%b").replace("scf.for %c0, %a", READ_BOUNDS.format("a") + "scf.for %c0, %a")
    ringed = ringed.replace("scf.for %c0, %b", READ_BOUNDS.format("b") + "scf.for %c0, %b")
    check(ringed, S + READ_BOUNDS.format("a") + READ_BOUNDS.format("b") + turns("%a", MOVED, head=""))
    changed = ringed.replace(S_TO_Y, f"{S_TO_Y}\ntile.store %c1, %N[%k]")
    assert refused(changed)[0].startswith("this wait is not implied")


def test_turns_of_an_inner_loop_of_a_number_become_turns() -> None:
    ringed = ring(X_TO_S, S_TO_Y, "%c4").replace("%k", "%t").replace(S_TO_Y, f"{S_TO_Y}\ntile.store %i, %N[%k]")
    outer = "scf.for %c0, %n, %c1 (%k: int32) {\nscf.for %c0, %c4, %c1 (%i: int32) {\n"
    outer += "%u = arith.mul %k, %c4 : int32\n%t = arith.add %u, %i : int32"
    ringed = ringed.replace("scf.for %c0, %c4, %c1 (%t: int32) {", outer)
    ringed = ringed.replace("scf.yield\n}\n\nscf.yield", "scf.yield\n}\nscf.yield\n}\nscf.yield")
    body = f"""%1 = arith.floormod %k, %c4 : int32
        %2 = arith.floordiv %k, %c4 : int32
        {MOVED}
        tile.store %1, %N[%2]"""
    check(ringed, S + "%0 = arith.mul %n, %c4 : int32\n" + turns("%0", body, head=""))


NESTED = """scf.for %c0, %n, %c1 (%k: int32) {
%m = arith.mul %k, %c4 : int32
scf.for %c0, %c4, %c1 (%i: int32) {
tile.store %z, %Y[%i]
scf.yield
}
scf.yield
}
"""


def fused(text: str, roles: tuple[int, int] = (1, 1), guarded: bool = False) -> tuple[Fused, Fused]:
    """The outer and the inner loop of a nest, of so many roles each."""
    outer, inner = (op for op in made(ZERO + text).root.walk() if isinstance(op, scf.ForOp))
    guards = ((outer.index, True),) if guarded else ()
    found = Fused([Loop(inner, role, guards) for role in range(roles[1])])
    body: list[Item] = [Step(op, [0], 64, ()) for op in outer.body if not op.is_terminator and op is not inner]
    return Fused([Loop(outer, role, ()) for role in range(roles[0])], [*body, found]), found


def test_a_loop_that_is_all_that_a_loop_does() -> None:
    outer, inner = fused(NESTED)
    assert _only_loop(outer) is inner
    outer, inner = fused(NESTED, (2, 2))
    assert _only_loop(outer) is inner
    again = Fused(outer.loops, [*outer.body, inner])
    assert _only_loop(again) is None and _only_loop(Fused(outer.loops, outer.body[:-1])) is None


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        ("for %c0, %n,", "for %c1, %n,", {}),
        ("%n, %c1", "%n, %c2", {}),
        ("for %c0, %c4,", "for %c1, %c4,", {}),
        ("%c4, %c1", "%c4, %c2", {}),
        ("%c4, %c1", "%n, %c1", {}),
        ("for %c0, %c4, %c1 (%i: int32)", "for %l0, %l4, %l1 (%i: int64)", {}),
        ("for %c0, %n, %c1 (%k: int32)", "for %l0, %l4, %l1 (%k: int64)", {}),
        ("%m = arith.mul %k, %c4 : int32", "tile.store %z, %Y[%c0]", {}),
        ("%z", "%z", {"roles": (2, 1)}),
        ("%z", "%z", {"guarded": True}),
    ],
)
def test_loops_in_loops_that_stay(before: str, after: str, options: dict[str, Any]) -> None:
    assert before in NESTED
    text = NESTED.replace(before, after)
    if "int64" in text:
        text = text.replace("%m = arith.mul %k, %c4 : int32\n", "").replace("%Y[%i]", "%Y[%c1]")
    wide = "".join(f"%l{each} = arith.constant {{value = {each}}} : int64\n" for each in (0, 1, 4))
    assert _only_loop(fused(wide + text, **options)[0]) is None


# Versions of a tile

VERSIONS = TWO_BARRIERS + "%two = tile.alloc : buffer<2*64*float32, shared>\n"
INTO, FROM = part("%X[%c0]", "%two[%st, %c0]"), part("%two[%st, %c0]", "%Y[%c0]")
STAGE = "%st = arith.floormod %k, %c2 : int32\n"
STAGE_1 = STAGE.replace("%st", "%st_1")
ONE_TILE = "%two = tile.alloc : buffer<64*float32, shared>\n"


def one_by_one(there: str, back: str) -> str:
    return turns("%n", f"{STAGE}{there}\n{STAGE_1}{back}", STAGES, ONE_TILE)


def both(there: str, back: str) -> str:
    head = "%two = tile.alloc : buffer<2*64*float32, shared>\n"
    return turns("%n", f"{STAGE}{there}\n{STAGE_1}{back.replace('%st', '%st_1')}", "", head)


def test_versions_that_take_turns_become_one_tile() -> None:
    one = part("%X[%c0]", "%two[%c0]").replace("(1,)", "(0,)"), part("%two[%c0]", "%Y[%c0]").replace("(1,)", "(0,)")
    check(versions_ring(INTO, FROM), one_by_one(*one), allocs=VERSIONS)


def test_versions_that_elements_are_written_to_one_by_one() -> None:
    """In a T.Parallel over all of them; under a mask of some, they stay."""
    parallel = "tile.parallel {extents = (64,)} (%i: int32) {\n%e = tile.load %X[%i] : float32\n"
    there = f"{parallel}tile.store %e, %two[%st, %i]\n}}"
    back = part("%two[%c0]", "%Y[%c0]").replace("(1,)", "(0,)")
    check(versions_ring(there, FROM), one_by_one(there.replace("%st, ", ""), back), allocs=VERSIONS)
    some = f"{parallel}{branch('%p', 'tile.store %e, %two[%st, %i]')}}}"
    assert "%two = tile.alloc : buffer<2*64*float32, shared>" in merged(versions_ring(some, FROM), allocs=VERSIONS)


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("%o = tile.load %X[%k] : float32\ntile.store %o, %two[%st, %c0]", FROM),
        (part("%X[%c0]", "%two[%st, %c0]", 32), FROM),
        (part("%X[%c0]", "%two[%st, %c32]", 32), FROM),
        (INTO + "\n" + part("%X[%c1]", "%two[%st, %c0]", 32), FROM),
    ],
)
def test_versions_that_are_not_written_whole_stay(there: str, back: str) -> None:
    check(versions_ring(there, back), both(there, back), allocs=VERSIONS)


def test_a_part_of_a_version_may_be_read() -> None:
    there = part("%X[%c0]", "%two[%c0]").replace("(1,)", "(0,)")
    back = part("%two[%c0]", "%Y[%c0]", 32).replace("(1,)", "(0,)")
    check(versions_ring(INTO, part("%two[%st, %c0]", "%Y[%c0]", 32)), one_by_one(there, back), allocs=VERSIONS)


@pytest.mark.parametrize("offsets", [("%c0", "%c32"), ("%c32", "%c0")])
def test_versions_that_are_written_and_read_in_halves_take_turns(offsets: tuple[str, str]) -> None:
    there = "\n".join(part(f"%X[{each}]", f"%two[%st, {each}]", 32) for each in offsets)
    back = "\n".join(part(f"%two[%st, {each}]", f"%Y[{each}]", 32) for each in offsets)
    text = "\n".join(merged(versions_ring(there, back), allocs=VERSIONS))
    assert "buffer<2*64*float32" not in text
    assert "scf.for %c0, %n, %c1 {num_stages = 2} (%k: int32) {" in text


def test_versions_with_numbers_become_a_tile_each() -> None:
    there = f"{part('%X[%c0]', '%two[%c0, %c0]')}\n{part('%X[%n]', '%two[%c1, %c0]')}\n"
    back = f"{part('%two[%c0, %c0]', '%Y[%c0]')}\n%g = tile.load %two[%c1, %n] : float32\ntile.store %g, %Y[%c1]"
    check(
        split(there + ARRIVE, f"{WAIT}\n{back}"),
        ONE_TILE
        + ONE_TILE.replace("%two", "%two_1")
        + (there + back)
        .replace("(1,)", "(0,)")
        .replace("%two[%c0, %c0]", "%two[%c0]")
        .replace("%two[%c1, ", "%two_1["),
        allocs=VERSIONS.replace("2*uint64", "1*uint64"),
    )


def test_versions_of_which_one_is_not_known_stay() -> None:
    there = f"{part('%X[%c0]', '%two[%c0, %c0]')}\n{part('%X[%n]', '%two[%c1, %c0]')}\n"
    back = f"{part('%two[%c0, %c0]', '%Y[%c0]')}\n%g = tile.load %two[%n, %c2] : float32\ntile.store %g, %Y[%c1]"
    found = merged(split(there + ARRIVE, f"{WAIT}\n{back}"), allocs=VERSIONS.replace("2*uint64", "1*uint64"))
    assert "%two = tile.alloc : buffer<2*64*float32, shared>" in found
    assert "%g = tile.load %two[%n, %c2] : float32" in found


def test_versions_in_a_branch_that_the_run_does_not_take_stay() -> None:
    ringed = versions_ring(INTO, FROM)
    start, end = "scf.for %c0, %n, %c1 (%k: int32) {", "scf.yield\n}\n\nscf.yield"
    close = "scf.yield\n}\nscf.yield\n}"
    assert ringed.count(start) == ringed.count(end) == 2
    taken = ringed.replace(start, f"scf.if %p {{\n{start}").replace(end, f"{close} {{\nscf.yield\n}}\nscf.yield")
    other = ringed.replace(start, f"scf.if %p {{\nscf.yield\n}} {{\n{start}").replace(end, f"{close}\nscf.yield")
    kept = ["buffer<2*64*float32" in "\n".join(merged(each, allocs=VERSIONS)) for each in (taken, other)]
    assert sorted(kept) == [False, True]


# Numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("arith.add %a, %b : int32", 10),
        ("arith.sub %a, %b : int32", 4),
        ("arith.mul %a, %a : int32", 49),
        ("arith.floordiv %a, %b : int32", 2),
        ("arith.floormod %a, %b : int32", 1),
        ("arith.floordiv %a, %o : int32", None),
        ("arith.add %a, %u : int32", None),
        ("arith.shl %big, %b : int32", -8),
        ("arith.not %a : int32", -8),
        ("arith.not %t : bool", False),
        ("arith.cast %a : float32", 7.0),
        ("arith.cast %a : bool", True),
        ('arith.cmp %a, %b {predicate = "lt"} : bool', False),
        ('arith.cmp %a, %b {predicate = "ge"} : bool', True),
        ("arith.select %t, %a, %u : int32", 7),
        ("arith.select %f, %u, %b : int32", 3),
        ("arith.select %y, %a, %b : int32", None),
        ("arith.select %f, %a, %u : int32", None),
        ("tile.load %N[%a] : int32", None),
        ("arith.neg %a : int32", None),
    ],
)
def test_numbers(text: str, number: object) -> None:
    """Of what is known, with a dtype's wrapping; None where one is not, and of what has no number."""
    found = program(
        f"""%a = arith.constant {{value = 7}} : int32
        %b = arith.constant {{value = 3}} : int32
        %o = arith.constant {{value = 0}} : int32
        %big = arith.constant {{value = 2147483647}} : int32
        %t = arith.constant {{value = true}} : bool
        %f = arith.constant {{value = false}} : bool
        %x = {text}""",
        parameters="N: 64*int32, u: int32, y: bool",
    )
    value = next(op for op in found.root.walk() if op.results and op.results[0].name == "x").results[0]
    computed = number_of(value, lambda _: None)
    assert (computed, type(computed)) == (number, type(number))


def test_numbers_that_are_given() -> None:
    found = program("%x = arith.add %u, %c2 : int32\n%l = tile.load %N[%x] : int32", parameters="N: 64*int32, u: int32")
    values = {value.name: value for op in found.root.walk() for value in op.results}
    known = {values["x"].op.operands[0]: 5, values["l"]: 9}  # type: ignore[union-attr]
    assert number_of(values["x"], known.get) == 7
    assert number_of(values["l"], known.get) == 9
    assert number_of(values["x"], {values["x"]: 0}.get) == 0


# Names of values


def test_values_that_are_computed_alike() -> None:
    found = made("""
        %a = tile.load %N[%c3] : int32
        %b = tile.load %N[%c3] : int32
        %c = tile.load %N[%c2] : int32
        %d = arith.add %a, %c : int32
        %e = arith.add %b, %c : int32
        %f = arith.sub %b, %c : int32
        tile.store %d, %v
        %g = tile.load %v : int32
        %h = tile.load %v : int32""")
    value = {each.name: each for op in found.root.walk() for each in op.results}
    buffer = value["a"].op.operands[0]  # type: ignore[union-attr]
    keys, changed = Keys(set()), Keys({buffer})
    for one, other in ("ab", "de", "gh", "dg"):
        assert keys.of(value[one]) == keys.of(value[other])
    for one, other in ("ac", "df", "ad"):
        assert keys.of(value[one]) != keys.of(value[other])
    assert changed.of(value["a"]) is value["a"] and changed.of(value["a"]) != changed.of(value["b"])
    assert changed.of(value["d"]) != changed.of(value["e"])
    assert resolved(value["g"]) is value["d"] and resolved(value["a"]) is value["a"]
    fused = Keys(set())
    fused.same[value["a"]] = value["c"]  # indices of loops that have become one
    assert fused.of(value["a"]) is value["c"] and fused.of(value["b"]) is not value["c"]


def named(body: str) -> dict[str | None, Value]:
    return {each.name: each for op in made(body).root.walk() for each in op.results}


@pytest.mark.parametrize(
    ("n", "u", "follows"),
    [
        *((f"%x + {n}", f"%x + {u}", n - u in (0, 1)) for n, u in ((3, 3), (4, 3), (5, 3), (3, 4))),
        *(
            (f"%a + {n} // {by}", f"%b + {u} // {of}", follows)
            for n, u, by, of, follows in (
                (3, 3, 4, 4, True), (4, 3, 4, 4, True), (7, 3, 4, 4, True), (8, 3, 4, 4, False), (2, 3, 4, 4, False),
                (4, 3, 4, 5, False),
            )
        ),
        ("%x + 3", "%y + 3", False),
        ("%x + 3 // 4", "%y + 3 // 4", False),
        ("%x + 3 // 4", "%x + 3", False),
        ("%x + 3", "%x + 3 // 4", False),
    ],
)  # fmt: skip
def test_numbers_that_are_the_same_or_follow_each_other(n: str, u: str, follows: bool) -> None:
    """%a and %b are the same, which only their sums tell."""
    lines = ["%x = tile.load %N[%c3] : int32", "%y = tile.load %N[%c4] : int32"]
    for name, sides in (("a", "%x, %y"), ("b", "%y, %x")):
        lines += [f"%{name}_y = arith.add {sides} : int32", f"%{name} = arith.sub %{name}_y, %y : int32"]
    for name, text in (("n", n), ("u", u)):
        total, _, by = text.partition(" // ")
        lines.append(f"%{name} = arith.add {total.replace(' + ', ', %c')} : int32")
        if by:
            lines.append(f"%{name}_part = arith.floordiv %{name}, %c{by} : int32")
    value = named("\n".join(lines))
    one, other = (value.get(f"{name}_part") or value[name] for name in "nu")
    assert _is_or_follows(one, other, Keys(set())) is follows


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ('arith.cmp %u, %n {predicate = "lt"}', True),
        ('arith.cmp %n, %u {predicate = "gt"}', True),
        ('arith.cmp %n, %u {predicate = "lt"}', False),
        ('arith.cmp %u, %n {predicate = "le"}', False),
        ('arith.cmp %c0, %n {predicate = "lt"}', True),
        ('arith.cmp %n, %c0 {predicate = "gt"}', True),
        ('arith.cmp %c1, %n {predicate = "lt"}', False),
        ('arith.cmp %c0, %u {predicate = "lt"}', False),
        ('arith.cmp %c0, %m {predicate = "lt"}', False),
        ('arith.cmp %u, %m {predicate = "lt"}', False),
    ],
)
def test_conditions_that_say_whether_there_is_a_turn(condition: str, says: bool) -> None:
    """Of u turns, and one more: n is u + 1, and m is u + 2."""
    value = named(f"""
        %u = tile.load %N[%c3] : int32
        %n = arith.add %u, %c1 : int32
        %m = arith.add %u, %c2 : int32
        %b = {condition} : bool""")
    assert _says(value["b"], value["u"], value["n"], Keys(set())) is says
    if "%c0" in condition:
        assert not _says(value["b"], value["u"], value["m"], Keys(set()))


def test_a_number_is_computed_anew_of_variables() -> None:
    found = made("""
        %h = tile.load %N[%c0] : int32
        %g = tile.load %v : int32
        %d = arith.mul %g, %h : int32
        %e = arith.add %d, %g : int32
        thread.barrier""")
    value = {each.name: each for op in found.root.walk() for each in op.results}
    (barrier,) = [op for op in found.root.walk() if op.name == "thread.barrier"]
    _copied(value["e"], Builder.at(barrier))
    assert [line for line in lines_of(found) if line.startswith("%")][-4:] == [
        "%g_1 = tile.load %v : int32",
        "%d_1 = arith.mul %g_1, %h : int32",
        "%g_2 = tile.load %v : int32",
        "%e_1 = arith.add %d_1, %g_2 : int32",
    ]


@pytest.mark.parametrize(
    ("body", "is_known"),
    [
        ("tile.store %c7, %v\n%g = tile.load %v : int32", True),
        ("tile.store %c5, %v\ntile.store %c7, %v\n%g = tile.load %v : int32", True),
        ("tile.store %c7, %v\n" + loop("%n", "%g = tile.load %v : int32"), True),
        ("%g = tile.load %v : int32\ntile.store %c7, %v", False),
        ("tile.store %c7, %v\ntile.fill %c7, %v\n%g = tile.load %v : int32", False),
        ('tile.store %c7, %v\n%o = tile.atomic %c7, %v {kind = "max"} : int32\n%g = tile.load %v : int32', False),
        ("%g = tile.load %v : int32", False),
        (branch("%p", "tile.store %c7, %v") + "%g = tile.load %v : int32", False),
        ("tile.store %c7, %v\n" + branch("%p", "tile.store %c5, %v") + "%g = tile.load %v : int32", False),
        ("tile.store %c7, %v\n" + loop("%n", "%g = tile.load %v : int32\ntile.store %c5, %v"), False),
        ("tile.store %c7, %N[%c0]\n%g = tile.load %N[%c0] : int32", False),
    ],
)
def test_what_a_variable_was_given_last(body: str, is_known: bool) -> None:
    found = made(body)
    value = next(each for op in found.root.walk() for each in op.results if each.name == "g")
    assert constant_of(resolved(value)) == (7 if is_known else None)
