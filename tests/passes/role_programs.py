"""Blocks of threads that do different things by their numbers, as short IR, and what merge-roles makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.passes.ir_cases import body_lines, kernel_of, program
from tiledsl.dialects import scf, tile
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.location import Loc
from tiledsl.passes.merge_roles import MergeRoles
from tiledsl.passes.merge_roles.order import region_of
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


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def check(body: str, expected: str, **options: Any) -> None:
    assert merged(body, **options) == lines(expected)


S, X_TILES = "%s = tile.alloc : buffer<64*float32, shared>\n", "%x = tile.alloc : buffer<64*float32, fragment>\n"
IF = "scf.if {} {{\n{}\nscf.yield\n}} {{\nscf.yield\n}}\n"
UNLESS_P = "%0 = arith.not %p : bool\n" + IF.replace("{}", "%0", 1)


def turns(upper: str, body: str, attributes: str = "", head: str = S) -> str:
    return f"{head}scf.for %c0, {upper}, %c1 {attributes}(%k: int32) {{\n{body}\nscf.yield\n}}"


STAGES = "{num_stages = 2} "
