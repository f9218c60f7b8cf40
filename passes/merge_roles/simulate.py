"""Runs an order of the roles' steps with numbers for what is not known: barriers, and who has seen what.

A wait must let through where it stands. Where it does not, what the other roles still do in the same turn may complete
its phase: then that comes first, which the caller is told (`Before`).

Each role has a vector clock: which steps of each it knows to be over. An arrival hands it to the phase, a wait takes it
from there. So one run speaks for every order (certificate/source/order.py): where each wait is for one phase whatever
the order, and accesses of which one writes are ordered by what is known.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tiledsl.analysis.block_access import root_buffer
from tiledsl.analysis.dependence import ancestors
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, scf, thread, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.passes.merge_roles.accesses import Box, accesses_of, covers, overlap
from tiledsl.passes.merge_roles.numbers import Number, number_of
from tiledsl.passes.merge_roles.order import Fused, Item, Keys, resolved
from tiledsl.passes.merge_roles.roles import Role, Step, is_variable

_SKIPPED = 240  # turns of long loops, a multiple of every usual number of stages and its double
_HEAD, _TAIL = 48, 48
_MOST_SIZE = 4096  # that is chosen for a size
_HOLDS = tuple(itertools.combinations(range(4), 2))  # seeds with which a condition holds: of two, each does alone once


class Before(Exception):
    """A step that must come before another one."""

    def __init__(self, first: Step, last: Step) -> None:
        self.pair = first, last


@dataclass
class Clock:
    """What one knows to be over: of each role its steps up to one, from 1 on; of copies, a bit for each."""

    steps: dict[int, int] = field(default_factory=dict)
    copies: int = 0

    def learn(self, other: Clock) -> None:
        mine = self.steps
        for role, time in other.steps.items():
            if mine.get(role, 0) < time:
                mine[role] = time
        self.copies |= other.copies

    def knows(self, other: Clock) -> bool:
        if other.copies & ~self.copies:
            return False
        return all(self.steps.get(role, 0) >= time for role, time in other.steps.items())

    def copied(self) -> Clock:
        return Clock({**self.steps}, self.copies)


@dataclass
class Barrier:
    """One barrier: its arrivals so far, and what who arrived knew."""

    count: int
    arrived: int = 0
    known: list[Clock] = field(default_factory=list)  # of each phase that is complete, and before
    own: list[Clock] = field(default_factory=list)  # of each phase alone
    under_way: Clock = field(default_factory=Clock)
    waits: dict[tuple[int, int], tuple[int, Step]] = field(default_factory=dict)  # (role, phase) -> when

    @property
    def phase(self) -> int:
        return self.arrived // self.count


@dataclass
class Waiting:
    """What a role waits for: a phase of a barrier, a write of what it reads, or, without either, for other roles."""

    step: Step
    turn: tuple[int, ...]
    barrier: Barrier | None = None
    parity: int = 0
    place: tuple[Value, Box] | None = None


@dataclass
class Access:
    """The last one of its kind. `ends`: what one must know to know that it is over."""

    step: Step
    writes: bool
    ends: Clock


class Event(NamedTuple):
    """An access to a tile in shared memory, in the order of the run."""

    buffer: Value
    step: Step
    box: Box
    writes: bool


@dataclass
class Reads:
    """What is known of reads: those of what nobody writes before; those that only their being defined puts after a
    write, with that write."""

    undefined: set[Step] = field(default_factory=set)
    late: dict[Step, Step] = field(default_factory=dict)


class World:
    """A run. `trips` are those of loops whose bounds are not known, `seed` chooses all other numbers."""

    def __init__(
        self, roles: Sequence[Role], kernel: tile.KernelOp, keys: Keys, reads: Reads, trips: int, seed: int
    ) -> None:
        self.of_reads = reads
        self.roles, self.kernel, self.keys, self.trips, self.seed = roles, kernel, keys, trips, seed
        self.is_certain = True  # whether no number had to be chosen
        self.asks_trips = False  # whether `trips` are those of any loop
        self.env: list[dict[Value, Number | None]] = [{} for _ in roles]
        self.chosen: dict[object, Number] = {}
        self.solved: set[object] = set()  # the bounds of loops that follow from them
        self.guesses: dict[tuple[object, tuple[int, ...]], int] = {}  # conditions in a turn, numbered
        self.vars: dict[tuple[Hashable, ...], Number | None] = {}
        self.barriers: dict[tuple[Value, int], Barrier] = {}
        self.counts: dict[Value, tuple[int, ...]] = {}
        self.clocks: list[Clock] = [Clock({role.number: 1}) for role in roles]
        self.copies = [0 for _ in roles]  # of each role, those that no arrival has spoken of
        self.started = 0  # copies
        self.accesses: dict[Value, dict[tuple[Hashable, ...], Access]] = {}
        self.blocked: dict[int, Waiting] = {}
        self.ranges = Ranges.around(kernel)
        self.turn: tuple[int, ...] = ()
        self.events: list[Event] = []
        self.accesses_within = functools.cache(_accesses_within)

    # Running

    def run(self, items: Sequence[Item]) -> None:
        for fused in _loops(items):
            self._choose_trips(fused.first.op.upper)
        self._items(items)
        self._fail_blocked(None)

    def _items(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Step):
                self._step(item)
            else:
                self._loop(item)

    def _loop(self, fused: Fused) -> None:
        first = fused.first
        if not self._holds(first.guards, first.role):
            return
        op = first.op
        lower, step = (self._number(each, first.role) for each in (op.lower, op.step))
        lower = 0 if lower is None else int(lower)
        step = 1 if not step else int(step)
        upper = self._number(op.upper, first.role)
        if upper is None or arith.constant_of(op.upper) is None and self.keys.of(op.upper) not in self.solved:
            upper = lower + step * self.trips
            self.is_certain, self.asks_trips = False, True
            for loop in fused.loops:
                self.chosen[self.keys.of(loop.op.upper)] = upper
        indices = range(lower, int(upper), step)
        skipped = max(0, (len(indices) - _HEAD - _TAIL) // _SKIPPED) * _SKIPPED
        outer = self.turn
        for number in (*indices[:_HEAD], *indices[_HEAD + skipped :]):
            for loop in fused.loops:
                self.env[loop.role][loop.op.index] = number
            self.turn = (*outer, number)
            self._items(fused.body)
            self._fail_blocked(fused)
        self.turn = outer

    def _fail_blocked(self, fused: Fused | None) -> None:
        """What waits at the end of a loop's turn, or of everything, is not let through."""
        stuck = [each for each in self.blocked.values() if fused is None or _is_in(each.step, fused)]
        for each in stuck:
            if each.place is not None:
                raise Undefined(each.step)
        for each in stuck:
            if each.barrier is not None:
                raise self._never(each.step, each.barrier, each.parity, each.turn)
        if stuck:
            raise TileError(
                "some threads never come here, where all do this together", stuck[0].step.op.loc, code="warp-roles"
            )

    # Numbers

    def _choose_trips(self, upper: Value) -> None:
        """Choose what the number of a loop's turns depends on so that it is `trips`: the least or the greatest such
        number, for remainders of divisions."""
        if arith.constant_of(upper) is not None:
            return
        leaves = dict.fromkeys(_leaves(upper))
        open_leaves = [each for each in leaves if self.keys.of(each) not in self.chosen]
        if not open_leaves:
            self.solved.add(self.keys.of(upper))
            return
        (leaf, *others) = open_leaves
        for other in others:
            self.chosen[self.keys.of(other)] = 0

        self.asks_trips = True
        given = tuple((self.keys.of(each), self.chosen[self.keys.of(each)]) for each in leaves if each is not leaf)
        key = self.keys.of(upper), self.keys.of(leaf), given
        if key not in self.keys.sizes:
            self.keys.sizes[key] = self._sizes(upper, leaf)
        if found := self.keys.sizes[key].get(self.trips, []):
            self.chosen[self.keys.of(leaf)] = (
                found[0 if self.seed % 2 else -1] if len(found) < _MOST_SIZE // 2 else found[0]
            )
            self.solved.add(self.keys.of(upper))
        self.is_certain = False

    def _sizes(self, upper: Value, leaf: Value) -> dict[Number | None, list[int]]:
        """Numbers of what a loop's bound is computed from, by the number that it is then."""
        name, last = self.keys.of(leaf), functools.cache(resolved)
        number = 0

        def known(value: Value) -> Number | None:
            if self.keys.of(value) == name:
                return number
            if last(value) is not value:
                return number_of(last(value), known)
            return self.chosen.get(self.keys.of(value))

        found: dict[Number | None, list[int]] = {}
        for number in range(_MOST_SIZE) if leaf.dtype != "bool" else ():
            found.setdefault(number_of(last(upper), known), []).append(number)
        return found

    def _number(self, value: Value, role: int) -> Number | None:
        return number_of(value, lambda each: self._known(each, role))

    def _known(self, value: Value, role: int) -> Number | None:
        env = self.env[role]
        if value in env:
            return env[value]
        if (found := self.chosen.get(self.keys.of(value))) is not None:
            return found
        if value.op is not None and is_variable(value.op):
            return self.vars.get((role, *value.op.operands))
        owner = value.owner
        if isinstance(owner, Region) and isinstance(owner.parent, (tile.KernelOp, tile.FuncOp)):
            return self._choose(value)
        return None

    def _choose(self, *what: Any) -> int:
        """A number for what is not known: the same for the same."""
        self.is_certain = False
        names = [f"{each.name}{each.type}" if isinstance(each, Value) else str(each) for each in what]
        return zlib.crc32(" ".join([str(self.seed), *names]).encode()) % 5

    def _holds(self, guards: Sequence[tuple[Value, bool]], role: int) -> bool:
        for value, holds in guards:
            number = self._number(value, role)
            if bool(self._guess(value) if number is None else number) is not holds:
                return False
        return True

    def _guess(self, value: Value) -> bool:
        """Whether a condition holds that numbers do not tell: in one turn the same for what is computed alike."""
        self.is_certain = False
        number = self.guesses.setdefault((self.keys.of(value), self.turn), len(self.guesses))
        return self.seed in _HOLDS[number % len(_HOLDS)]

    # Steps

    def _step(self, step: Step) -> None:
        op = step.op
        if not op.has_effects:
            return
        if any(role in self.blocked for role in step.roles):
            for role in step.roles:  # they wait for that one
                self.blocked.setdefault(role, Waiting(step, self.turn))
            return
        role, *_ = step.roles
        if not self._holds(step.guards, role):
            return
        self._meet(step.roles)
        for each in step.roles:
            self.clocks[each].steps[each] += 1
        if isinstance(op, thread.InitBarriersOp):
            self.counts[op.barriers] = op.counts
        elif isinstance(op, thread.ArriveOp):
            self._arrive(op, step, role)
        elif isinstance(op, thread.WaitOp):
            self._wait(op, step, role)
        elif self._accesses(op, step):
            self._scalars(op, role)
        self._meet(step.roles)

    def _meet(self, roles: Sequence[int]) -> None:
        """They wait for each other."""
        first, *others = (self.clocks[role] for role in roles)
        for each in others:
            first.learn(each)
        for each in others:
            each.learn(first)

    def _scalars(self, op: Operation, role: int) -> None:
        if isinstance(op, tile.LoadOp):
            indices = tuple(self._number(each, role) for each in op.indices)
            if tile.buffer_type(op.buffer).scope == "local":
                self.env[role][op.out] = self.vars.get((role, op.buffer, *indices))
            elif None not in indices:
                chosen = self.chosen.get(self.keys.of(op.out))
                self.env[role][op.out] = self._choose(op.buffer, *indices) if chosen is None else chosen
        elif isinstance(op, tile.StoreOp):
            indices = tuple(self._number(each, role) for each in op.indices)
            self.vars[(role, op.buffer, *indices)] = self._number(op.value, role)
        elif isinstance(op, scf.IfOp) and (holds := self._number(op.condition, role)) is not None:
            for inner in op.then if holds else op.orelse:
                self._scalars(inner, role)
        elif op.regions:
            for inner in op.walk():
                if isinstance(inner, tile.StoreOp):
                    for key in [key for key in self.vars if key[:2] == (role, inner.buffer)]:
                        del self.vars[key]

    # Barriers

    def _barrier(self, op: thread.ArriveOp | thread.WaitOp | thread.AsyncOp, index: Value, role: int) -> Barrier:
        barriers = op.barriers[0] if isinstance(op, thread.AsyncOp) else op.barriers
        number = self._number(index, role)
        counts = self.counts.get(barriers, ())
        name = barriers.name or "a barrier"
        if number is None:
            raise TileError(
                f"which barrier of {name} this is, is not told by numbers and the indices of loops",
                op.loc,
                code="warp-roles",
            )
        if not 0 <= number < len(counts):
            raise TileError(
                f"{name}[{number}] is outside of {name}, which has {len(counts)}{self._when()}",
                op.loc,
                code="warp-roles",
            )
        key = barriers, int(number)
        if key not in self.barriers:
            self.barriers[key] = Barrier(counts[int(number)])
        return self.barriers[key]

    def _when(self) -> str:
        return f", in turn {', '.join(map(str, self.turn))}" if self.turn else ""

    def _arrive(self, op: thread.ArriveOp, step: Step, role: int) -> None:
        barrier = self._barrier(op, op.index, role)
        barrier.under_way.learn(self.clocks[role])
        if op.copies:
            barrier.under_way.copies |= self.copies[role]
            self.copies[role] = 0
        old = barrier.phase
        if barrier.arrived % barrier.count + step.lanes > barrier.count:
            raise TileError(
                f"{step.lanes} threads arrive at {_name(op)}, but {barrier.count - barrier.arrived % barrier.count} "
                f"of the {barrier.count} arrivals of its phase are missing{self._when()}",
                op.loc,
                ["T.alloc_barrier takes the number of threads that arrive"],
                code="warp-roles",
            )
        barrier.arrived += step.lanes
        if barrier.phase > old:
            self._complete(barrier, op)
        self._awake(step)

    def _complete(self, barrier: Barrier, op: thread.ArriveOp) -> None:
        known = barrier.under_way
        barrier.own.append(known)
        barrier.known.append(barrier.known[-1].copied() if barrier.known else Clock())
        barrier.known[-1].learn(known)
        barrier.under_way = Clock()
        ended = barrier.phase
        for (role, phase), (time, wait) in list(barrier.waits.items()):
            if phase == ended - 1 and not self.blocked and barrier.known[-1].steps.get(role, 0) < time:
                raise TileError(
                    f"{self.roles[role]} may find {_name(op)} one phase ahead, and wait for ever: nothing keeps the "
                    f"next phase from being complete before this wait{self._when()}",
                    wait.op.loc,
                    [("the last arrival of the next phase", op.loc)],
                    code="warp-roles",
                )
            del barrier.waits[role, phase]

    def _wait(self, op: thread.WaitOp, step: Step, role: int) -> None:
        barrier = self._barrier(op, op.index, role)
        parity = self._number(op.parity, role)
        if parity is None:
            raise TileError(
                "the parity of this wait is not told by numbers and the indices of loops", op.loc, code="warp-roles"
            )
        if parity not in (0, 1):
            raise TileError(
                f"the parity of this wait is {parity}{self._when()}; it is 0 or 1", op.loc, code="warp-roles"
            )
        if barrier.phase % 2 == parity:
            self.blocked[role] = Waiting(step, self.turn, barrier, int(parity))
            return
        phase = barrier.phase
        if phase:
            early = phase >= 2 and not self.clocks[role].knows(barrier.own[phase - 2])
            if early and not self.blocked:
                raise TileError(
                    f"this wait may be let through by an earlier phase of {_name(op)}: nothing tells "
                    f"{self.roles[role]} that phase {phase - 2} is over{self._when()}",
                    op.loc,
                    ["wait for each phase, or for what who arrived has waited for"],
                    code="warp-roles",
                )
            self.clocks[role].learn(barrier.known[phase - 1])
        barrier.waits[role, phase] = self.clocks[role].steps[role], step

    def _awake(self, step: Step) -> None:
        """A step that lets another role go on had to come before."""
        for each in self.blocked.values():
            if each.barrier is not None and each.barrier.phase % 2 != each.parity:
                raise Before(step, each.step)

    def _never(self, step: Step, barrier: Barrier, parity: int, turn: tuple[int, ...]) -> TileError:
        op = step.op
        assert isinstance(op, thread.WaitOp), "only a wait is for a barrier"
        come = barrier.arrived % barrier.count
        when = f" in turn {', '.join(map(str, turn))}" if turn else ""
        arrivals = [each for each in _arrivals(self.kernel, op.barriers) if each is not op]
        notes: list[Any] = [("threads arrive here", each.loc) for each in arrivals]
        if barrier.phase:
            notes.append(
                f"{barrier.phase} phases were complete then; a wait for the last one has the parity {1 - parity}"
            )
        return TileError(
            f"this wait is not implied: nothing that comes before it, or that other roles do in the same turn, "
            f"completes the phase of parity {parity} of {_name(op)}{when}; {come} of its "
            f"{barrier.count} arrivals have come",
            op.loc,
            notes or [f"nobody arrives at {_name(op)}"],
            code="warp-roles",
        )

    # Memory

    def _accesses(self, op: Operation, step: Step) -> bool:
        """Note what a step accesses; whether its role goes on after it."""
        role, *_ = step.roles
        started, found = 1 << self.started, self.accesses_within(op)
        self.started += 1
        for (buffer, box, writes), _ in found:
            if not writes and not self._access(buffer, self._box(box, role), False, step, 0):
                return False
        if isinstance(op, thread.AsyncOp) and op.barriers:
            self._barrier(op, op.index[0], role).under_way.copies |= started
        elif any(is_started for _, is_started in found):
            self.copies[role] |= started
        for (buffer, box, writes), is_started in found:
            if writes:
                self._access(buffer, self._box(box, role), True, step, started if is_started else 0)
        return True

    def _box(self, box: Any, role: int) -> Box:
        found: Box = box(lambda value: self._number(value, role), self.ranges)
        return found

    def _access(self, buffer: Value, box: Box, writes: bool, step: Step, copy: int) -> bool:
        """Note an access; whether the role goes on after it."""
        before = self.accesses.setdefault(buffer, {})
        over = {key: each for key, each in before.items() if overlap(key[0], box)}  # type: ignore[arg-type]
        written = [each for each in over.values() if each.writes]
        if not writes and not written and step not in self.of_reads.undefined and not self.blocked:
            role, *_ = step.roles
            self.blocked[role] = Waiting(step, self.turn, place=(buffer, box))
            return False
        if self.blocked:
            for each in self.blocked.values() if writes else ():
                if each.place is not None and each.place[0] is buffer and overlap(each.place[1], box):
                    self.of_reads.late.setdefault(each.step, step)
                    raise Before(step, each.step)
        else:
            self._in_order(buffer, over.values(), writes, step)
        self.events.append(Event(buffer, step, box, writes))
        ends = Clock(copies=copy) if copy else Clock({role: self.clocks[role].steps[role] for role in step.roles})
        if writes and not self.blocked:
            for key in over:
                if covers(box, key[0]):
                    del before[key]
        before[(box, writes, *step.roles)] = Access(step, writes, ends)
        return True

    def _in_order(self, buffer: Value, over: Any, writes: bool, step: Step) -> None:
        for each in over:
            if not (writes or each.writes):
                continue
            role, *_ = step.roles  # several have met
            clock = self.clocks[role]
            if clock.knows(each.ends) or each.writes and writes and each.step.roles == step.roles:
                continue
            late = self.of_reads.late
            if not writes and late.get(step) == each.step and self._is_only_write(buffer, each.step):
                continue
            if writes and late.get(each.step) is step:  # that read should have waited
                self._race(buffer, each.step, False, step, True)
            self._race(buffer, step, writes, each.step, each.writes)

    def _is_only_write(self, buffer: Value, write: Step) -> bool:
        """Whether a tile is written once so far, by this step."""
        return [each.step for each in self.events if each.writes and each.buffer is buffer] == [write]

    def _race(self, buffer: Value, step: Step, writes: bool, other: Step, wrote: bool) -> None:
        does, did = ("writes" if writes else "reads"), ("wrote" if wrote else "read")
        name = buffer.name or "a tile"
        raise TileError(
            f"{self._who(step)}: this {does} {name}{self._when()}, and nothing orders it against what "
            f"{self._who(other)} {'write' if wrote else 'read'} there: a wait is missing",
            _place(step, buffer),
            [(f"{self._who(other)}: this {did} {name}", _place(other, buffer))],
            code="warp-roles",
        )

    def _who(self, step: Step) -> str:
        role, *others = step.roles
        return "the block" if others else str(self.roles[role])


class Undefined(Exception):
    """A read of what nobody writes before."""

    def __init__(self, step: Step) -> None:
        self.step = step


def _loops(items: Sequence[Item]) -> Iterator[Fused]:
    for item in items:
        if isinstance(item, Fused):
            yield item
            yield from _loops(item.body)


def _leaves(value: Value) -> Iterator[Value]:
    """What a value is computed from."""
    value = resolved(value)
    op = value.op
    if op is None or op.has_effects:
        yield value
        return
    for operand in op.operands:
        yield from _leaves(operand)


def _is_in(step: Step, fused: Fused) -> bool:
    return any(each is step if isinstance(each, Step) else _is_in(step, each) for each in fused.body)


def _name(op: thread.ArriveOp | thread.WaitOp) -> str:
    name, index = op.barriers.name or "the barrier", arith.constant_of(op.index)
    one = tile.buffer_type(op.barriers).shape == (1,)
    return name if one else f"{name}[{'...' if index is None else index}]"


def _arrivals(kernel: tile.KernelOp, barriers: Value) -> list[Operation]:
    return [op for op in kernel.walk() if isinstance(op, thread.ArriveOp) and op.barriers is barriers]


def _place(step: Step, buffer: Value) -> Any:
    return next((inner.loc for inner in step.op.walk() if buffer in map(root_buffer, inner.operands)), step.op.loc)


def _accesses_within(op: Operation) -> list[tuple[tuple[Value, Any, bool], bool]]:
    """The accesses to shared tiles, and whether they belong to a copy that goes on."""
    return [(each, _is_started(inner, op)) for inner in op.walk() for each in accesses_of(inner, "shared")]


def _is_started(op: Operation, outer: Operation) -> bool:
    """Whether an operation is a part of a copy that goes on behind `outer`, in which it stands."""
    return any(
        isinstance(each, thread.AsyncOp)
        for each in itertools.takewhile(lambda each: each is not outer.parent_op, ancestors(op))
    )
