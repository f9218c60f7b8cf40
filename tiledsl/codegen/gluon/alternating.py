"""Consumers that take the turns of a loop in turn: what one computes hides behind the products of the other.

    group 0                                  group 1
    first products of turn 0
    for pair in ...:                         for pair in ...:
        what comes of them, told                 first products of turn 1
        its sums, of turn 0                      its sums, of what is told of turn 0
        its sums, of what is told of turn 1      what comes of its first products, told
        first products of turn 2                 its sums, of turn 1

What is told has a barrier, whose phases are turns: one group alone arrives there, and then waits for the other's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from tiledsl.analysis.dependence import reached
from tiledsl.analysis.gluon.alternation import Alternation, alternation
from tiledsl.analysis.gluon.schedule import PAIR, Loop
from tiledsl.analysis.gluon.tile_loops import dependent_on, read_for
from tiledsl.analysis.loops import trip_count
from tiledsl.codegen.expressions import ADD
from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.kernel import Flying, GluonKernelWriter, Turn
from tiledsl.codegen.gluon.producer import Counter
from tiledsl.codegen.gluon.variables import LoopVariables
from tiledsl.dialects import gluon, tensor
from tiledsl.ir.core import Effect, Operation, Value

At = tuple[str, str]  # the names of a place and of its phase


@dataclass(eq=False)
class _Turn(Turn):
    """A turn of one group at a place of the rings. heard: the phase of what it is told, in the other's turns."""

    at: At | None = None
    heard: str = ""


class _Half:
    """What one of the groups computes: `first` and `own` in its turns, `heard` in the other's. sums: its own, `mine`
    the numbers of what it carries; lower: what indices begin with; awaited: rings that first products have awaited."""

    def __init__(self, loop: Loop, found: Alternation, sums: Sequence[Sequence[int]], group: int, lower: str) -> None:
        ops = [op for cluster in loop.clusters for op in cluster.ops]
        needed = {value.op for value in reached((v for op in found.first for v in op.operands), read_for)}
        self.first = [op for op in ops if op in needed or op in found.first]
        self.own = [op for op in ops if op not in found.first and op not in found.summed[1 - group]]
        self.heard = [op for op in ops if op in found.heard[group]]
        self.sums = [loop.op.iter_args[n] for n in sums[group]]
        self.mine = [n for n in range(len(loop.op.yielded)) if n not in sums[1 - group]]
        self.lower = lower
        self.awaited: set[str] = set()


class AlternatingWriter(GluonKernelWriter):
    """Writes a launch of two groups that take turns in turn."""

    now: _Turn

    # Names

    def make_variables(self) -> LoopVariables:
        self.alternation = alternation(self.plan.loops[0].op, self.plan.alternate)
        return LoopVariables(self.launch.body, self.names, self.plan, self.alternation.told)

    def claim_names(self) -> None:
        super().claim_names()
        claim = self.names.claim
        self.parity, self.following = claim("parity"), (claim("stage"), claim("phase"))
        self.told: dict[Value, tuple[str, str]] = {}  # of what is told the place, and the barrier
        self.hosts = self.alternation.hosts
        operands = (op.a for op in self.plan.products if op in self.alternation.sums)
        for value in dict.fromkeys([*(op.out for op in self.alternation.told), *operands]):
            host, hint = self.hosts.get(value), self.name(value)
            self.told[value] = self.tiles[host] if host else claim(f"{hint}_told"), claim(f"{hint}_full")

    def shared(self) -> list[str]:
        return list(dict.fromkeys([*super().shared(), *(each for names in self.told.values() for each in names)]))

    def arrivals(self, ring: str) -> int:
        return 1 if self.plan.rings[ring].readers else super().arrivals(ring)

    def result_at(self) -> str:
        return "0"

    def allocate_results(self) -> None:
        for buffer, store in {buffer: store for store, buffer in self.out_buffers.items()}.items():
            self.allocate(buffer, store, store.places)
        for value, (place, full) in self.told.items():
            if value not in self.hosts:
                shape, layout = ", ".join(map(str, (1, *value.shape))), api.shared_layout(value.shape, value.dtype)
                dtype = TRITON_TYPES[value.dtype]
                self.line(f"{place} = gl.allocate_shared_memory({dtype}, [{shape}], {layout})")
            self.line(f"{full} = _barriers(1, 1)")

    # What is told

    def _tell(self, value: Value) -> None:
        """Store what the other group needs where no product reads any more what that has told before."""
        place, full = self.told[value]
        self._await(max((n for n, each in enumerate(self.flying, 1) if each.place == place), default=0))
        self.line(f"{self._told_at(value)}.store({self.name(value)})")
        if len(value.shape) > 1:
            self.fence()
        self.line(f"mbarrier.arrive({full}.index(0), count=1)")

    def _hear(self, value: Value) -> str:
        """Where the other group has told a value, once it is there."""
        full = self.told[value][1]
        if full not in self.now.awaited:
            self.now.awaited.add(full)
            self.line(f"mbarrier.wait({full}.index(0), {self.now.heard})")
        return self._told_at(value)

    def _told_at(self, value: Value) -> str:
        """A place of its own, or that of a tile of the turn."""
        host = self.hosts.get(value)
        if host is None:
            return f"{self.told[value][0]}.index(0)"
        return self.matrix(self.tile_buffer(host), self._place(), host)

    def _place(self) -> str:
        assert self.now.at is not None
        return self.now.at[0]

    # Statements

    def statement(self, op: Operation) -> None:
        if op.parent is self.launch.body and op.effects & Effect.WRITE:
            with self.under(f"if {self.consumer} == {self._group_of(op)}:"):
                super().statement(op)
        elif op in self.alternation.told and self.now.heard:
            (value,) = op.results
            self.origin(op)
            self.line(f"{self.name(value)} = {self._hear(value)}.load({self.layouts.of(value.shape)})")
        else:
            super().statement(op)
            for value in op.results:
                if value in self.told:
                    self._tell(value)

    def _group_of(self, op: Operation) -> int:
        """Which group has what an operation behind the loop writes; the first one, if both have."""
        loop, (_, second) = self.plan.loops[0].op, self.plan.alternate
        return int(op in dependent_on([loop.results[n] for n in second], self.launch.body))

    def _at(self, counter: Counter) -> At:
        return self.now.at or super()._at(counter)

    def _tile_at(self, load: gluon.TileLoad, place: str) -> str:
        if load not in self.plan.kept:
            return super()._tile_at(load, place)
        self.helpers = tuple(dict.fromkeys((*self.helpers, api.ZERO)))
        return "_zero()"  # no address is kept in registers

    def _left(self, op: tensor.DotOp) -> tuple[str, list[str]]:
        return (self._hear(op.a), []) if op.a in self.told and self.now.heard else super()._left(op)

    def _flying(self, loop: Loop, op: tensor.DotOp) -> Flying:
        each = super()._flying(loop, op)
        for value, host in self.hosts.items():
            each.freed.pop(host.ring, None)
            if op.a is value and self.now.heard and op is self._last_reader(op):
                each.freed[host.ring] = self._place()
        if op.a in self.told and op.a not in self.hosts and self.now.heard:
            each.place = self.told[op.a][0]
        return each

    def _last_reader(self, op: tensor.DotOp) -> tensor.DotOp:
        """The last of a group's products that read an operand."""
        mine = next(each for each in self.alternation.summed if op in each)
        return [each for each in self.plan.products if each in mine and each.a is op.a][-1]

    # Turns

    def _begin(self, counters: Iterable[At], phase: int, remark: str = "") -> None:
        super()._begin(counters, phase, remark)
        if not remark:
            self.line(f"{self.parity} = 0")

    def _turns(self, loop: Loop) -> None:
        self.loop, steps = loop, trip_count(loop.op)
        lower, upper = (self.expressions.value(value) for value in loop.op.operands[:2])
        begin, before = ("", "") if lower.text == "0" else (f"{lower.at(ADD)} + ", f" - {lower.at(ADD + 1)}")
        self.origin(loop.op)
        number = str(steps)
        if steps is None:
            number = self.names.claim("turns")
            self.line(f"{number} = gl.maximum({upper.at(ADD)}{before}, 0)")
        for group, turns in enumerate((self._first_and_third, self._second_and_fourth)):
            half = _Half(loop, self.alternation, self.plan.alternate, group, begin)
            with self.under(f"if {self.consumer} == {group}:"):
                turns(half, steps, number)
        if steps is None:
            self.line(f"{self.parity} ^= {number} % {PAIR}")
        elif steps % PAIR:
            self.line(f"{self.parity} ^= 1")
        self.now = _Turn()

    def _first_and_third(self, half: _Half, steps: int | None, number: str) -> None:
        """Every second turn from the first one on; its first products are issued before the turn before is over."""
        (at,), following, other = self.counters.values(), self.following, f"{self.parity} ^ 1"
        pair = self.names.claim("pair")
        pairs = f"({number} - 1) // {PAIR}" if steps is None else str((steps - 1) // PAIR)
        with nullcontext() if steps else self.under(f"if {number} > 0:"):
            self._begin_turn(half, at, "0")
            with self.under(f"for {pair} in range({pairs}):"):
                self._own_turn(half, at, f"{PAIR} * {pair}")
                self._go_on(at, following)
                self._other_turn(half, following, f"{PAIR} * {pair} + 1", other)
                self._go_on(following, at)
                self._begin_turn(half, at, f"{PAIR} * {pair} + {PAIR}")
            self._own_turn(half, at, f"{PAIR} * ({pairs})")
            self._await(len(self.flying))
            self._go_on(at, at)
            if steps is None or steps % PAIR == 0:
                with nullcontext() if steps else self.under(f"if {number} % {PAIR} == 0:"):
                    self._other_turn(half, at, f"{number} - 1", other)
                    self._await(len(self.flying))
                    self._go_on(at, at)

    def _second_and_fourth(self, half: _Half, steps: int | None, number: str) -> None:
        """Every second turn from the second one on; its first products are issued before the turn before is heard."""
        (at,), following = self.counters.values(), self.following
        pair = self.names.claim("pair")
        pairs = f"{number} // {PAIR}" if steps is None else str(steps // PAIR)
        with self.under(f"for {pair} in range({pairs}):"):
            self._go_on(at, following)
            self._begin_turn(half, following, f"{PAIR} * {pair} + 1")
            self._other_turn(half, at, f"{PAIR} * {pair}", self.parity)
            self._own_turn(half, following, f"{PAIR} * {pair} + 1")
            self._await(len(self.flying))
            self._go_on(following, at)
        if steps is None or steps % PAIR:
            with nullcontext() if steps else self.under(f"if {number} % {PAIR} == 1:"):
                self._other_turn(half, at, f"{number} - 1", self.parity)
                self._await(len(self.flying))
                self._go_on(at, at)

    def _go_on(self, at: At, following: At) -> None:
        depth = self.plan.loops[0].op.num_stages
        self.line(f"{', '.join(following)} = _advance({', '.join(at)}, {depth})")

    def _begin_turn(self, half: _Half, at: At, turn: str) -> None:
        """Issue the first products; what is on its way is awaited behind the first of them."""
        self.now, older = _Turn(at=at), len(self.flying)
        self._index(half, turn, half.first)
        for op in half.first:
            self.ops([op])
            if isinstance(op, tensor.DotOp):
                self._await(older)
                older = 0
        half.awaited = self.now.awaited

    def _own_turn(self, half: _Half, at: At, turn: str) -> None:
        """What comes of the first products, and what is added to the group's own sums."""
        self.now = _Turn({*half.awaited}, at=at)
        self._index(half, turn, half.own)
        self.ops(half.own)
        self._end(half)

    def _other_turn(self, half: _Half, at: At, turn: str, heard: str) -> None:
        """What is added to the group's own sums in the other's turn. What first products awaited is there: who tells
        has awaited it."""
        self.now = _Turn({*half.awaited}, at=at, heard=heard)
        self._index(half, turn, half.heard)
        if any(value in each.values for each in self.flying for value in half.sums):
            self._await(len(self.flying))  # which releases tiles before the other group tells anything
        elif self.flying:
            for name in map(self.name, half.sums):  # else ptxas takes one by one those on their way and those to come
                self.line(f"{name} = warpgroup_mma_wait({len(self.flying)}, deps=[{name}])")
        self.ops(half.heard)
        self._end(half)

    def _index(self, half: _Half, turn: str, ops: Iterable[Operation]) -> None:
        """The index of a turn, if it is read."""
        index = self.loop.op.index
        if any(value is index for op in ops if op not in self.produced for value in self._read_by(op)):
            self.line(f"{self.name(index)} = {half.lower}{turn}")

    def _end(self, half: _Half) -> None:
        """Carry on what the group has."""
        iter_args, yielded = self.loop.op.iter_args, self.loop.op.yielded
        self.assign([iter_args[n] for n in half.mine], [yielded[n] for n in half.mine])
        for each in self.flying:
            each.values = {iter_args[n] for n in half.mine if yielded[n] in each.values} or each.values
