"""merge-roles: which roles there are, what becomes of them, exact IR, and every error with its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.passes.ir_cases import body_lines, filecheck, kernel_of, program
from tiledsl.dialects import scf, tile
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.location import Loc
from tiledsl.passes import merge_roles
from tiledsl.passes.merge_roles import MergeRoles
from tiledsl.passes.merge_roles.numbers import number_of
from tiledsl.passes.merge_roles.order import Keys, region_of, resolved
from tiledsl.passes.merge_roles.roles import Loop, Node, Threads, find_roles

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
    give = (
        f"%next = arith.add %k, %c1 : int32\n%one = arith.floormod %next, %c2 : int32\nthread.wait %free, %c0, %one\n"
    )
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
    return text.replace("(32,)", "(32, 32)")


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


def test_a_part_of_a_warp_is_no_role() -> None:
    """But one thread may arrive."""
    found = roles(READY + ONE + branch("%one", ARRIVE))
    assert found == {"threads 0 to 63": ["thread.init_barriers [0] 64", "thread.arrive [0] 1"]}


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
