"""The roles of a kernel, and what each of them does: steps and loops, in the order of its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiledsl.analysis.hardware import WARP
from tiledsl.dialects import arith, scf, thread, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.types import BufferType
from tiledsl.passes.merge_roles.numbers import number_of

BARRIER_OPS = (thread.InitBarriersOp, thread.ArriveOp, thread.WaitOp, thread.AsyncOp)


def is_barrier(op: Operation) -> bool:
    """Whether threads arrive or wait, or start a copy that others wait for; not that of each thread's own elements."""
    return isinstance(op, BARRIER_OPS) and not (isinstance(op, thread.AsyncOp) and not op.barriers)


Guard = tuple[Value, bool]  # a condition, and whether it holds or does not


@dataclass(eq=False)
class Step:
    """An operation. `roles` do it together; `lanes` threads of theirs come there, where the guards hold."""

    op: Operation
    roles: list[int]
    lanes: int
    guards: tuple[Guard, ...]


@dataclass(eq=False)
class Loop:
    """A loop of one role in which it waits or arrives, or does not the same as the others."""

    op: scf.ForOp
    role: int
    guards: tuple[Guard, ...]
    body: list[Node] = field(default_factory=list)


Node = Step | Loop


@dataclass
class Role:
    """Warps that do the same. `threads` are the numbers of their threads."""

    number: int
    threads: tuple[int, ...]
    program: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        return f"threads {self.threads[0]} to {self.threads[-1]}"


class Threads:
    """Conditions on the number of the thread."""

    def __init__(self, region: Region, count: int) -> None:
        self.count = count
        self.index = region.args[0] if isinstance(region.parent, tile.ParallelOp) else None
        self._where: dict[Value, frozenset[int] | None] = {}
        self._depends: dict[Value, bool] = {}

    def depends(self, value: Value) -> bool:
        """Whether a value differs from thread to thread, by its own operands."""
        found = self._depends.get(value)
        if found is None:
            found = value is self.index or value.op is not None and any(map(self.depends, value.op.operands))
            self._depends[value] = found
        return found

    def where(self, condition: Value) -> frozenset[int] | None:
        """The threads for which a condition holds; None where the number of the thread alone does not say it."""
        if condition not in self._where:
            self._where[condition] = self._found(condition)
        return self._where[condition]

    def _found(self, condition: Value) -> frozenset[int] | None:
        assert self.index is not None, "the condition is computed from it"
        found = set()
        for number in range(self.count):
            holds = number_of(condition, {self.index: number}.get)
            if holds is None:
                return None
            if holds:
                found.add(number)
        return frozenset(found)

    def parts(self, condition: Value) -> tuple[frozenset[int] | None, list[Value]] | None:
        """A condition as one on the thread and others that are the same in all threads; None if it is not of these."""
        if isinstance(condition.op, arith.AndOp):
            sides = [self.parts(each) for each in condition.op.operands]
            if None in sides:
                return None
            sets = [each[0] for each in sides if each is not None and each[0] is not None]
            rest = [value for each in sides if each is not None for value in each[1]]
            return (frozenset.intersection(*sets) if sets else None), rest
        if not self.depends(condition):
            return None, [condition]
        threads = self.where(condition)
        return None if threads is None else (threads, [])

    def divides(self, op: Operation) -> bool:
        """Whether roles part in an operation, or wait or arrive in it."""
        return any(is_barrier(inner) or self.of_role(inner) is not None for inner in op.walk())

    def of_role(self, op: Operation) -> frozenset[int] | None:
        """The threads of a branch that whole warps take, and in which they do something together; None of others."""
        parts = self.parts(op.condition) if isinstance(op, scf.IfOp) else None
        if parts is None or parts[0] is None or not _is_of_warps(parts[0]):
            return None
        return parts[0] if any(map(self.is_of_block, op.walk())) else None

    def is_of_block(self, op: Operation) -> bool:
        """Whether threads do an operation together, which is no arithmetic and no access of each thread's own."""
        if op.regions or not op.has_effects or op.is_terminator:
            return isinstance(op, tile.ParallelOp)
        return not isinstance(op, (tile.LoadOp, tile.StoreOp, thread.BarrierOp))


def _is_of_warps(threads: frozenset[int]) -> bool:
    return all(set(range(first, first + WARP)) <= threads for first in {each // WARP * WARP for each in threads})


def find_roles(region: Region, threads: Threads) -> list[Role]:
    """The roles of a kernel's body, each with its program."""
    warps = [range(first, min(first + WARP, threads.count)) for first in range(0, threads.count, WARP)]
    marks: list[list[bool]] = [[] for _ in warps]
    for op in region.walk():
        if (own := threads.of_role(op)) is not None:
            for mark, warp in zip(marks, warps, strict=True):
                mark.append(warp[0] in own)
    found: dict[tuple[bool, ...], list[int]] = {}
    for mark, warp in zip(marks, warps, strict=True):
        found.setdefault(tuple(mark), []).extend(warp)
    roles = [Role(number, tuple(each)) for number, each in enumerate(found.values())]
    shared: dict[Operation, Step] = {}
    for role in roles:
        everyone = frozenset(range(threads.count))
        _Projection(role, threads, shared).region(region, role.program, (), everyone)
    return roles


class _Projection:
    """What one role does of a region."""

    def __init__(self, role: Role, threads: Threads, shared: dict[Operation, Step]) -> None:
        self.role, self.threads, self.shared = role, threads, shared
        self.own = frozenset(role.threads)

    def region(self, region: Region, out: list[Node], guards: tuple[Guard, ...], active: frozenset[int]) -> None:
        """`active` are the threads of the block that come there, of whatever role."""
        for op in region:
            if op.is_terminator:
                continue
            if isinstance(op, scf.IfOp) and self._branch(op, out, guards, active):
                continue
            if isinstance(op, scf.ForOp) and self.threads.divides(op):
                self._needs_all(op, active)
                if any(map(self.threads.depends, (op.lower, op.upper, op.step))):
                    raise TileError(
                        "the bounds of a loop in which threads wait for each other differ from thread to thread", op.loc
                    )
                loop = Loop(op, self.role.number, guards)
                self.region(op.body, loop.body, (), active)
                out.append(loop)
                continue
            if isinstance(op, scf.WhileOp) and self.threads.divides(op):
                raise TileError(
                    "a while loop in which threads wait for each other: how often it runs cannot be told",
                    op.loc,
                    ["write `for i in T.serial(n)`"],
                )
            self._step(op, out, guards, active)

    def _branch(self, op: scf.IfOp, out: list[Node], guards: tuple[Guard, ...], active: frozenset[int]) -> bool:
        """Go into a branch, if it must be; whether that was done."""
        if not self.threads.divides(op):
            return False
        parts = self.threads.parts(op.condition)
        if parts is None:
            raise TileError(
                "whether a thread comes to a barrier is not told by its number and values of the block", op.loc
            )
        threads, rest = parts
        taken = active if threads is None else active & threads
        if taken & self.own:
            self.region(op.then, out, (*guards, *((each, True) for each in rest)), taken)
        if op.orelse.first is op.orelse.last:
            return True
        if rest and threads is not None:
            raise TileError("an else of a condition on both the thread and other values: write two `if`", op.loc)
        left = active if threads is None else active - threads
        if not left & self.own:
            return True
        if len(rest) > 1:
            self.region(op.orelse, out, (*guards, (op.condition, False)), left)
        else:
            self.region(op.orelse, out, (*guards, *((each, False) for each in rest)), left)
        return True

    def _needs_all(self, op: Operation, active: frozenset[int]) -> None:
        if not self.own <= active:
            raise TileError("a part of a warp's threads runs a loop in which it waits or arrives", op.loc)

    def _step(self, op: Operation, out: list[Node], guards: tuple[Guard, ...], active: frozenset[int]) -> None:
        if is_variable(op):
            guards = ()
        is_common = not active <= self.own
        if isinstance(op, thread.BarrierOp) and len(active) < self.threads.count:
            raise TileError(
                "T.sync_threads where not all threads of the block come: the others would wait for ever",
                op.loc,
                ["give it the number of a barrier and of the threads that come, or use T.alloc_barrier"],
                code="threads-apart",
            )
        if isinstance(op, thread.AsyncOp) and op.barriers and is_common and min(active) not in self.own:
            return  # the first thread issues it
        if not is_common or is_barrier(op) or _is_of_each(op):
            out.append(Step(op, [self.role.number], len(active & self.own), guards))
            return
        step = self.shared.setdefault(op, Step(op, [], len(active), guards))
        step.roles.append(self.role.number)
        out.append(step)


def is_variable(op: Operation) -> bool:
    """Whether it reads a variable of the thread's own."""
    return isinstance(op, tile.LoadOp) and tile.buffer_type(op.buffer).scope == "local" and not op.indices


def _is_of_each(op: Operation) -> bool:
    """Whether each thread does it for itself: it changes nothing, or what each has for itself."""
    for inner in op.walk():
        if Effect.ORDERED in inner.effects and not inner.regions:
            return False
        if Effect.WRITE in inner.effects:
            buffers = [value for value in inner.operands if isinstance(value.type, BufferType)]
            if any(tile.buffer_type(each).scope != "local" for each in buffers[-1:]) or not buffers:
                return False
    return True


def steps_of(nodes: Sequence[Any]) -> Iterator[Step]:
    """All steps in order, those of loops among them."""
    for node in nodes:
        if isinstance(node, Step):
            yield node
        else:
            yield from steps_of(node.body)
