"""The source of a Gluon kernel: its loops as gluon.schedule and gluon.cluster say, by a producer and by consumers.

The consumers walk a turn cluster by cluster. A product is issued where it stands, once its tiles are there, and awaited
where something reads it, or at the end of the turn; those in flight (`gluon.schedule`) in the next turn. Matrix
instructions end in the order in which they are issued, so that to await one is to let as many be on their way as were
issued after it. A tile is released when the last product that reads it is done.

Where clusters wait for the next turn, the first turn stands before the loop, and what is left of the last one after it:

    stage 0 of the first turn
    for turn in ...:  clusters by slot: stage 0 of this turn, stage 1 of the one before
    stage 1 of the last turn
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from tiledsl.analysis.dependence import read_by
from tiledsl.analysis.gluon.schedule import (
    AT_ONCE,
    PAIR,
    PLACES,
    Loop,
    block,
    ending_in,
    in_order,
    in_words,
    is_only_added_to,
    is_stored,
    last_of,
    other_readers,
    prepared,
    shared_axis,
)
from tiledsl.analysis.gluon.words import differs_by_column
from tiledsl.analysis.loops import trip_count
from tiledsl.codegen.expressions import ADD
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.producer import Counter, ProducerWriter
from tiledsl.dialects import gluon, scf, tensor, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value


@dataclass(eq=False)
class Turn:
    """What has happened in a turn: rings whose tiles were awaited, and for each counter those still to be read;
    `passed`: counters that have gone on to the next turn, while this one still reads tiles."""

    awaited: set[str] = field(default_factory=set)
    left: dict[Counter, set[str]] = field(default_factory=dict)
    passed: set[Counter] = field(default_factory=set)


@dataclass(eq=False)
class Flying:
    """A product that has been issued.

    values: what has its sum, unless another product is added to that; names: of what a wait must mention: the sum, and
    the operand that it reads from registers; read: the rings that no later product of its stage reads; freed: those
    that none does, and at which place; turn: that has issued it, None if it is the one before; copy: of several turns;
    place: of an operand that another group of warps has stored.
    """

    op: tensor.DotOp
    values: set[Value]
    names: list[str]
    read: list[str]
    freed: dict[str, str]
    turn: Turn | None
    copy: int
    place: str = ""


class GluonKernelWriter(ProducerWriter):
    """Writes a launch that schedule-loops has been through."""

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        super().__init__(launch, module_names)
        self.flying: list[Flying] = []
        self.now = Turn()
        self.read_by_threads = {load.ring for load in self.plan.loads if self._is_read_by_threads(load)}
        self.unfenced = set(self.read_by_threads)  # those with loads that no fence of the turn is behind
        self.has_before = ""  # a condition on arrivals for the turn before

    # The consumers

    def consumers(self, name: str) -> list[str]:
        self._begin(self.counters.values(), 0)
        if self.plan.op.in_turns:
            self.line(f"{self.next_turn} = 1 if {self.consumer} == 0 else 0  # the first one begins")
        for _, place, phase in self.exchanges.values():
            self.line(f"{place} = {PLACES - 1}")
            self.line(f"{phase} = 1")
        for place in self.out_places.values():
            self.line(f"{place} = 0")
        self.items()
        self._consume(self.launch.body)
        if self.in_item:
            self.line("tma.store_wait(0)")
            self._release_kept()
        return self.consumer_function(name)

    def _consume(self, region: Region) -> None:
        chains = {chain[0].op: chain for chain in self.plan.chains()}
        rest = {loop.op for loop in self.plan.loops} - {*chains}
        last = last_of(self.launch.body, self.plan.loops)
        in_registers = all(map(self.plan.in_registers, self.plan.kept))
        for op in region:
            if isinstance(op, scf.ForOp) and op in chains:
                self._loops(chains[op])
            elif isinstance(op, scf.ForOp) and op in self.outer:
                self.assign(op.iter_args, op.inits)
                with self.range_of(op):
                    self._consume(op.body)
                    self.assign(op.iter_args, op.yielded)
            elif op not in rest and not op.is_terminator:
                self.ops([op])
            if op is last and self.plan.kept and not in_registers and not self.in_item:
                self._release_kept()

    def statement(self, op: Operation) -> None:
        if op in self.plan.kept:
            if op is self.plan.kept[-1]:
                self._receive_kept()
        elif isinstance(op, tensor.DotOp):
            self._issue(op)
        elif gluon.loads_tile(op):
            if op in self.plan.for_registers:
                self._read_to_registers(op)
            elif other_readers(op):
                self._read_row(op)
        elif isinstance(op, gluon.ClusterOp):
            pass
        elif isinstance(op, tensor.TransposeOp):
            pass  # products see what is in shared memory
        elif op in self.rounded:
            self._await_values(self._read_by(op))
            self.origin(op)
            rounding = "_ROUND" if differs_by_column(op.operands[0]) else "_ROUND_APART"
            words = f"_words({self.expressions.text(op.operands[0])}, {rounding})"
            self.line(f"{self.name(op.result)} = {words if self.in_fours else f'_exchanged({words})'}")
        else:
            self._await_values(self._read_by(op))
            super().statement(op)
            for value in op.results:
                if value in self.buffers:
                    self._store_operand(value)

    def _item_place(self, ring: str) -> str:
        return self.consumer if self.plan.rings[ring].by_consumer else "0"

    def _receive_kept(self) -> None:
        self.origin(self.plan.kept[-1])
        rings = dict.fromkeys(load.ring for load in self.plan.kept)
        for ring in rings:
            turn = self.turn if self.item is not None else "0"
            self._await_full(ring, self._item_place(ring), turn)
        if self.item is not None:
            self.line(f"{self.turn} ^= 1")
        for load in self.plan.kept:
            if self.plan.in_registers(load):
                self.unfenced.add(load.ring)
                reader = next(each for each in self.plan.products if block(each.a) is load)
                tile, layout = self._tile_at(load, "0"), self.operand_layouts[reader.out.shape]
                text = self.operand(load.out, tile)
                if in_words(reader):
                    text = api.in_words(f"{self.tile_buffer(load)}.index({tile})", load.out.shape, load.out.dtype)
                    self.helpers = tuple(dict.fromkeys((*self.helpers, api.IN_WORDS)))
                    layout = self.word_layouts[reader.out.shape]
                self.line(f"{self.name(load.out)} = {text}.load({layout})")
        if all(map(self.plan.in_registers, self.plan.kept)) and not self.in_item:
            self._release_kept()

    def _release_kept(self) -> None:
        rings = dict.fromkeys(load.ring for load in self.plan.kept)
        self._release([(ring, self._item_place(ring), "") for ring in rings])

    def _release(self, freed: Sequence[tuple[str, str, str]]) -> None:
        """Let the producer load to places of rings, under conditions. What threads have read there they have, then:
        without a fence a copy may overtake their loads."""
        if not self.unfenced.isdisjoint(ring for ring, _, _ in freed):
            self.fence()
        for ring, place, condition in freed:
            self.line(f"mbarrier.arrive({self.empty[ring]}.index({place}), count=1{condition})")

    def _store_operand(self, value: Value) -> None:
        """Store a computed operand where no product reads the one before it any more."""
        buffer = self.buffers[value]
        reading = [number for number, each in enumerate(self.flying, 1) if self._buffer(each.op) == buffer]
        self._await(max(reading, default=0))
        if buffer not in self.exchanges:
            self.line(f"{buffer}.store({self.name(value)})")
            self.fence()
            return
        full, place, phase = self.exchanges[buffer]
        self.line(f"{place}, {phase} = _advance({place}, {phase}, {PLACES})")
        own = self._own(f"{buffer}.index({place})", value.shape, shared_axis(value.shape, self.plan.warps))
        self.line(f"{own}.store({self.name(value)})")
        self.fence()
        self.line(f"mbarrier.arrive({full}.index({place}), count=1)")
        self.unseen.add(buffer)

    def fence(self) -> None:
        super().fence()
        self.unfenced.clear()

    def _own(self, place: str, shape: tuple[int, ...], axis: int) -> str:
        """The rows or columns of a tile that are those of a group of warps."""
        extent = shape[axis] // self.plan.groups
        return f"{place}.slice({self.consumer} * {extent}, {extent}, {axis})"

    def _seen(self, place: str, value: Value, product: tensor.DotOp) -> str:
        """A tile in shared memory as an operand: of groups of warps, each multiplies its rows or its columns."""
        turned = isinstance(value.op, tensor.TransposeOp)
        axis = shared_axis(product.out.shape, self.plan.warps)
        if self.plan.groups > 1 and value is (product.a, product.b)[axis]:
            place = self._own(place, in_order(value).shape, 1 - axis if turned else axis)
        return f"{place}.permute({value.op.permutation})" if isinstance(value.op, tensor.TransposeOp) else place

    def _exchanged(self, op: tensor.DotOp) -> str:
        """The place of a computed operand, once all groups of warps have stored their parts of it."""
        buffer = self._buffer(op)
        if buffer not in self.exchanges:
            return buffer
        full, place, phase = self.exchanges[buffer]
        if buffer in self.unseen:
            self.unseen.remove(buffer)
            self.line(f"mbarrier.wait({full}.index({place}), {phase})")
        return f"{buffer}.index({place})"

    def _buffer(self, op: tensor.DotOp) -> str:
        """The shared memory that a product reads its computed left operand from, if any."""
        return self.buffers[in_order(op.a)] if is_stored(op, self.plan.warps) else ""

    # Loops

    def _loops(self, chain: Sequence[Loop]) -> None:
        """Loops that hand their values to the next."""
        first = chain[0]
        self.assign(first.op.iter_args, first.op.inits)
        if not first.is_skewed:
            self._turns(first)
            return
        condition = " or ".join(map(self._runs, chain))
        with nullcontext() if any(loop.runs for loop in chain) else self.under(f"if {condition}:"):
            self._first_turn(chain)
            for loop in chain:
                self._turns(loop)
            self._turn(chain[-1], {1})

    def _runs(self, loop: Loop) -> str:
        lower, upper = (self.expressions.value(value).at(ADD) for value in loop.op.operands[:2])
        return f"{lower} < {upper}"

    def _first_turn(self, chain: Sequence[Loop]) -> None:
        """Stage 0 of the first turn, of the first loop that has one."""
        loop, *later = chain
        certain = loop.runs or not later
        lower, upper = (self.expressions.value(value) for value in loop.op.operands[:2])
        with nullcontext() if certain else self.under(f"if {self._runs(loop)}:"):
            self.line(f"{self.name(loop.op.index)} = {lower.text}")
            self._turn(loop, {0})
            self.line(f"{self.starts[loop]} = {lower.at(ADD)} + 1")
            for each in later:
                self.line(f"{self.starts[each]} = {self.expressions.text(each.op.lower)}")
        if not certain:
            with self.under("else:"):
                self.line(f"{self.starts[loop]} = {upper.text}")
                self._first_turn(later)

    def _turns(self, loop: Loop) -> None:
        op = loop.op
        old = self._in_flight(loop)
        index, lower, upper = self.name(op.index), self.expressions.value(op.lower), self.expressions.text(op.upper)
        self.flying, self.has_before = list(old), f", pred={index} > {lower.at(ADD)}"
        steps = trip_count(op) or 0
        if loop.at_once == PAIR:
            self._pairs(loop)
        elif loop.at_once == AT_ONCE and steps:
            self._several_turns(loop, steps)
        elif loop.is_skewed:
            self.origin(op)
            with self.under(f"for {index} in range({self.starts[loop]}, {upper}):"):
                if self.plan.op.in_turns:
                    self.line(f"mbarrier.wait({self.order}.index({self.consumer}), {self.next_turn})")
                    self.line(f"{self.next_turn} ^= 1")
                self._turn(loop, {0, 1})
        else:
            with self.range_of(op):
                self._turn(loop, {0})
        self.flying, self.has_before = old, "" if loop.runs else f", pred={self._runs(loop)}"
        self.unfenced = set(self.read_by_threads)
        self._await(len(old))

    def _in_flight(self, loop: Loop) -> list[Flying]:
        """What the turn before has issued and this one awaits. One that is the accumulator of its own product needs no
        other type than what a wait gives."""
        old: list[Flying] = []
        for number in loop.in_flight:
            argument, product = loop.op.iter_args[number], loop.op.yielded[number].op
            assert isinstance(product, tensor.DotOp)
            if not is_only_added_to(argument, ending_in(product.out)[-1]):
                self.line(f"{self.name(argument)} = warpgroup_mma_init({self.name(argument)})")
            each = self._flying(loop, product)
            each.values, each.turn = {argument}, None
            if block(product.a) is not None and self.plan.reads_registers(product):
                each.names.append(self.name(product.a))
            each.freed = {ring: self._before(place) for ring, place in each.freed.items()}
            old.append(each)
        for place in dict.fromkeys(self._before(stage) for stage, _ in self._stages(loop) if old):
            self.line(f"{place} = 0")
        return old

    def _stages(self, loop: Loop) -> list[tuple[str, str]]:
        return [self.counters[each] for each in self._counters(loop, {0, 1})]

    def _before(self, stage: str) -> str:
        """The name of the place of the turn before."""
        if stage not in self.before:
            self.before[stage] = self.names.claim(f"{stage}_before")
        return self.before[stage]

    def _several_turns(self, loop: Loop, steps: int) -> None:
        """Several turns at a time, of which two have products in flight: one's are used while the other's run."""
        op, rest = loop.op, steps % AT_ONCE
        index, lower = self.name(op.index), self.expressions.value(op.lower)
        self.origin(op)
        if steps >= AT_ONCE:
            four = self.names.claim("four")
            with self.under(f"for {four} in range({steps // AT_ONCE}):"):
                first = f"{AT_ONCE} * {four}"
                self.line(f"{index} = {first}" if lower.text == "0" else f"{index} = {lower.at(ADD)} + {first}")
                self._turn(loop, {0}, copies=AT_ONCE)
        if rest:
            self.line(f"{index} = {self.expressions.text(op.upper)} - {rest}")
            self._turn(loop, {0}, copies=rest)

    def _pairs(self, loop: Loop) -> None:
        """Two turns at a time: the second one's first products run while the first one's are used."""
        op, steps, pair = loop.op, trip_count(loop.op), self.names.claim("pair")
        index, lower, upper = self.name(op.index), self.expressions.value(op.lower), self.expressions.value(op.upper)
        begin, before = ("", "") if lower.text == "0" else (f"{lower.at(ADD)} + ", f" - {lower.at(ADD + 1)}")
        self.origin(op)
        if steps is None:
            turns = self.names.claim("turns")
            self.line(f"{turns} = gl.maximum({upper.at(ADD)}{before}, 0)")
        if steps is None or steps >= PAIR:
            with self.under(f"for {pair} in range({f'{turns} // {PAIR}' if steps is None else steps // PAIR}):"):
                self.line(f"{index} = {begin}{PAIR} * {pair}")
                self._turn(loop, {0}, copies=PAIR)
        if steps is None:
            with self.under(f"for {index} in range({upper.at(ADD)} - {turns} % {PAIR}, {upper.text}):"):
                self._turn(loop, {0})
        elif steps % PAIR:
            self.line(f"{index} = {upper.at(ADD)} - 1")
            self._turn(loop, {0})

    def _turn(self, loop: Loop, stages: set[int], copies: int = 1) -> None:
        """The clusters of these stages, those of stage 1 for the turn before."""
        self.loop, self.unfenced = loop, set(self.read_by_threads)
        clusters = [cluster for cluster in loop.clusters if cluster.stage in stages]
        carried = len(self.flying)
        turns = [Turn(left=self._counters(loop, stages)) for _ in range(copies)]
        self.now = turns[0]
        late: dict[Value, str] = {}
        if loop.index_late and 1 in stages:
            index = self.name(loop.op.index)
            if loop not in self.late_names:
                self.late_names[loop] = self.names.claim(f"{index}_before")
            late[loop.op.index] = self.late_names[loop]
            following = index if 0 in stages else self.expressions.value(loop.op.upper).at(ADD)
            self.line(f"{self.late_names[loop]} = {following} - 1")
        if 0 not in stages:  # nothing runs while tiles arrive
            for product in (op for op in loop.products if loop.stage[op]):
                for load in (block(product.a), block(product.b)):
                    if gluon.loads_tile(load) and load not in self.plan.kept:
                        self._await_tile(load, product)
        for number, copy in loop.steps(len(clusters), copies):
            cluster = clusters[number]
            if copy and not number:
                index = self._name_of(loop.op.index, copy - 1)
                self.line(f"{self._name_of(loop.op.index, copy)} = {index} + 1")
            if copy and number == loop.first_products:
                self.now = turns[copy - 1]
                if copies == PAIR:
                    self._pass_on()
                self._step_on()
            self.now, self.variables.copy = turns[copy], copy
            self.variables.late = late if cluster.stage else {}
            if number:
                read = (value for op in cluster.ops for value in self._read_by(op))
                self._await_values(value for value in read if copies == 1 or value not in loop.op.iter_args)
            self.ops(cluster.ops)
            if self.plan.op.in_turns and stages == {0, 1} and loop.products[-1] in cluster.ops:
                following = f"({self.consumer} + 1) % {self.warp_groups}"
                self.line(f"mbarrier.arrive({self.order}.index({following}), count=1)")
            self._await_chained()
            if number == len(clusters) - 1:
                self._end_of_turn(loop, stages, carried, copy == copies - 1)
        self.variables.copy, self.variables.late = 0, {}

    def _name_of(self, value: Value, copy: int) -> str:
        """The name that a value has in one of several turns."""
        now, self.variables.copy = self.variables.copy, copy
        name = self.name(value)
        self.variables.copy = now
        return name

    def _end_of_turn(self, loop: Loop, stages: set[int], carried: int, is_last: bool) -> None:
        if is_last:
            self._await(len(self.flying) - carried)
            self._step_on()
        for product in loop.products:
            if 0 in stages and product in self.handed_on:
                self._hand_on(product)
        iter_args, yielded = loop.op.iter_args, loop.op.yielded
        stage = loop.stage
        mine = [n for n, value in enumerate(yielded) if (stage.get(value.op, 0) if value.op else 0) in stages]
        self.assign([iter_args[n] for n in mine], [yielded[n] for n in mine])
        copy = self.variables.copy
        for each in self.flying if not is_last else ():  # the next turn reads them as what it carries
            carried_on = {arg for arg, value in zip(iter_args, yielded) if value in each.values}
            if each.copy == copy and carried_on:
                each.values, each.copy = carried_on, copy + 1
        if loop.at_once == AT_ONCE:
            self.helpers = tuple(dict.fromkeys((*self.helpers, api.PINNED)))
            for value in iter_args:
                if value.dtype == "float32" and value.shape:
                    self.line(f"{self.name(value)} = _pinned({self.name(value)})")

    def _hand_on(self, product: tensor.DotOp) -> None:
        """The left operand of a product of the next turn."""
        name, text = self.handed_on[product], self.expressions.text(product.a)
        if in_words(product):
            self.line(f"{name} = {text}")
        elif self.plan.op.packed:
            self.line(f"{name} = _packed({text})")
        else:
            self.line(f"{name} = gl.convert_layout({text}, {self.operand_layouts[product.out.shape]})")

    def _pass_on(self) -> None:
        """Keep the places of a turn, which reads its tiles behind the first products of the next one, too."""
        for counter, rings in self.now.left.items():
            stage, phase = self.counters[counter]
            names = [stage] if rings <= self.now.awaited else [stage, phase]
            self.now.passed.add(counter)
            self.line(f"{', '.join(map(self._before, names))} = {', '.join(names)}")

    def _at(self, counter: Counter) -> tuple[str, str]:
        """The names of a turn's place, and of its phase."""
        stage, phase = self.counters[counter]
        return (self._before(stage), self._before(phase)) if counter in self.now.passed else (stage, phase)

    def _step_on(self) -> None:
        """Go on to the next places where that has not been done; products in flight keep theirs by another name."""
        for counter in list(self.now.left):
            self._step(counter)

    def _step(self, counter: Counter) -> None:
        del self.now.left[counter]
        stage, phase = self.counters[counter]
        kept = [(each, ring) for each in self.flying for ring, place in each.freed.items() if place == stage]
        for each, ring in kept:
            each.freed[ring] = self._before(stage)
        if kept and counter not in self.now.passed:
            self.line(f"{self._before(stage)} = {stage}")
        self._advance(stage, phase)

    # Products

    def _flying(self, loop: Loop, op: tensor.DotOp) -> Flying:
        read, freed = [], {}
        stage = loop.stage[op]
        for name, ring in self.plan.rings.items():
            last = ring.readers.get(loop, {})
            if last.get(stage) is op:
                read.append(name)
                if stage == max(last):
                    freed[name] = self._at((tuple(ring.readers), stage))[0]
        values = {op.out}
        if stage:  # which the next turn reads as what it carries
            values |= {arg for arg, value in zip(loop.op.iter_args, loop.op.yielded) if value is op.out}
        return Flying(op, values, [self.name(op.out)], read, freed, self.now, self.variables.copy)

    def _meet(self) -> None:
        """Have the warps wait for one another, before one stores what others' products read."""
        self.helpers = tuple(dict.fromkeys((*self.helpers, api.BARRIER)))
        self.line("_barrier()")

    def send_box(self, op: triton.StoreBlockOp) -> None:
        if op in self.in_item:
            self._meet()
        super().send_box(op)

    def _tile(self, value: Value, product: tensor.DotOp) -> str:
        """A tile as an operand, once it is there."""
        load = block(value)
        assert gluon.loads_tile(load)
        if load in self.plan.kept:
            place = self._tile_at(load, "0")
            if place == "0" and self.loop.is_skewed:
                place = "_zero()"
                self.helpers = tuple(dict.fromkeys((*self.helpers, api.ZERO)))
        else:
            place = self._tile_at(load, self._await_tile(load, product))
        return self._seen(self.matrix(self.tile_buffer(load), place, load), value, product)

    def _await_tile(self, load: gluon.TileLoad, reader: Operation) -> str:
        """Wait for a tile where that has not been done in the turn; its place in its ring."""
        ring, stage = self.plan.rings[load.ring], self.loop.stage[reader]
        place, phase = self._at((tuple(ring.readers), stage))
        if load.ring not in self.now.awaited and stage == min(ring.readers[self.loop]):
            self.now.awaited.add(load.ring)
            self._await_full(load.ring, place, phase)
        return place

    def _await_full(self, ring: str, place: str, phase: str) -> None:
        """Wait for the tiles of a place. Those that threads have copied products see behind a fence alone."""
        self.line(f"mbarrier.wait({self.full[ring]}.index({place}), {phase})")
        if self.plan.rings[ring].gathered:
            self.fence()

    def _is_read_by_threads(self, op: gluon.TileLoad) -> bool:
        return op in self.plan.for_registers or self.plan.in_registers(op) or bool(other_readers(op))

    def _read_row(self, op: gluon.TileLoad) -> None:
        """Read what is no operand of a product from its place in shared memory."""
        self.origin(op)
        row = self.matrix(self.tile_buffer(op), self._tile_at(op, self._await_tile(op, op)), op)
        self.unfenced.add(op.ring)
        self.line(f"{self.name(op.out)} = {row}.load({self.layouts.of(op.out.shape)})")

    def _read_to_registers(self, op: gluon.TileLoad) -> None:
        """Read what left operands are made of, once it is there; its place is free then."""
        self.origin(op)
        place, phase = self._at((tuple(self.plan.rings[op.ring].readers), 0))
        self._await_full(op.ring, place, phase)
        buffer, at = self.tile_buffer(op), self._tile_at(op, place)
        if op in self.expressions.in_words:
            tile = api.in_words(f"{buffer}.index({at})", op.out.shape, op.out.dtype)
            self.helpers = tuple(dict.fromkeys((*self.helpers, api.IN_WORDS)))
            layout = next(self.word_layouts[each.out.shape] for each in self.plan.products if op in prepared([each]))
        else:
            tile, layout = self.matrix(buffer, at, op), self.layouts.of(op.out.shape)
        self.line(f"{self.name(op.out)} = {tile}.load({layout})")
        self.unfenced.add(op.ring)
        self._release([(op.ring, place, "")])

    def tile_buffer(self, op: gluon.TileLoad) -> str:
        return self.tiles[self.plan.owner[op]]

    def _issue(self, op: tensor.DotOp) -> None:
        """Issue a product. What it is added to may be on its way, if nothing else wants it."""
        self.origin(op)
        copy = self.variables.copy  # the registers of the turn before the last are used before they change again
        before = [each for each in self.flying if op.accumulator in each.values and each.copy == copy]
        chained = bool(before) and set(op.accumulator.uses) == {op}
        if not chained:
            self._await_values(self._inside(op.accumulator))
        left, held = self._left(op)
        right = self._tile(op.b, op)
        from_zero = constant_of(op.accumulator) == 0
        place = self._name_of(op.out, copy - 2) if copy > 1 else self.zeros(op.out) if from_zero else ""
        acc = f"{place}, use_acc=False" if from_zero else self.expressions.text(op.accumulator)
        each = self._flying(self.loop, op)
        each.names += held
        self.line(f"{each.names[0]} = warpgroup_mma({left}, {right}, {acc}, is_async=True)")
        if chained:
            for other in before:
                other.values, other.names[0] = set(), each.names[0]
        self.flying.append(each)
        if self._is_read_once(op):  # registers that older ones read are free then; this one keeps the tensor cores busy
            older = (n for n, other in enumerate(self.flying[:-1], 1) if self._is_read_once(other.op))
            self._await(max(older, default=0))

    def _is_read_once(self, op: tensor.DotOp) -> bool:
        """Whether a product's left operand is in registers that nothing wants behind it, in a loop that needs many."""
        in_registers = op in self.operand_names and op not in self.handed_on
        return in_registers and self.loop.is_skewed

    def _left(self, op: tensor.DotOp) -> tuple[str, list[str]]:
        """The left operand, and the registers that it is in."""
        load = block(op.a)
        if load is not None and self.plan.in_registers(load):
            return self._operand(op, self.name(op.a)), [self.name(op.a)]
        if load is not None:
            return self._tile(op.a, op), []
        if self._buffer(op):
            return self._seen(self._exchanged(op), op.a, op), []
        operand, layout = self.operand_names[op], self.operand_layouts[op.out.shape]
        if op not in self.handed_on:
            reading = (number for number, each in enumerate(self.flying, 1) if operand in each.names)
            self._await(max(reading, default=0))
            text = self.expressions.text(op.a)
            self.line(f"{operand} = {text if in_words(op) else f'gl.convert_layout({text}, {layout})'}")
        elif self.plan.op.packed:
            self.line(f"{operand} = _unpacked({self.handed_on[op]}, {layout})")
        return self._operand(op, operand), [operand]

    def _operand(self, op: tensor.DotOp, name: str) -> str:
        """What a variable has of a left operand in registers."""
        if not in_words(op):
            return name
        return f"_of_words({name}, {self.operand_layouts[op.out.shape]})"

    def _read_by(self, op: Operation) -> Iterator[Value]:
        """The values that the text of an operation reads, those inside of branches and inlined ones included."""
        for value in read_by(op):
            yield from self._inside(value)

    def _inside(self, value: Value) -> Iterator[Value]:
        yield value
        if value.op is not None and (value.op in self.variables.inlined or isinstance(value.op, tensor.TransposeOp)):
            yield from self._read_by(value.op)

    def _await_values(self, values: Iterable[Value]) -> None:
        if not self.flying:
            return
        read, copy = set(values), self.variables.copy
        needed = [n for n, each in enumerate(self.flying) if not read.isdisjoint(each.values) and each.copy == copy]
        if needed:
            self._await(needed[-1] + 1)

    def _await_chained(self) -> None:
        """Wait for the products of the turn before that products of this one are added to."""
        chained = [number for number, each in enumerate(self.flying, 1) if each.turn is None and not each.values]
        self._await(max(chained, default=0))

    def _await(self, number: int) -> None:
        """Wait for so many of the products on their way, the oldest ones, and release what none of the others reads.

        ptxas takes products one by one if those of the turn before are awaited while others are on their way, unless
        these are added to them.
        """
        if any(each.turn is None and each.values for each in self.flying[:number]):
            number = len(self.flying)
        finished, self.flying = self.flying[:number], self.flying[number:]
        if not finished:
            return
        sums, operands = [each.names[0] for each in finished], [name for each in finished for name in each.names[1:]]
        deps = ", ".join(dict.fromkeys([*sums, *operands]))
        self.line(f"{deps} = warpgroup_mma_wait({len(self.flying)}, deps=[{deps}])")
        freed = [
            (ring, place, "" if each.turn else self.has_before)
            for each in finished
            for ring, place in each.freed.items()
        ]
        self._release(freed)
        buffers = {name for each in finished for name in (each.place, self._buffer(each.op))} - {"", *self.exchanges}
        if buffers and not freed:  # to arrive does the same
            self._meet()
        done = {ring for each in finished if each.turn is self.now for ring in each.read}
        stage = {self.loop.stage[each.op] for each in finished}
        for counter in [each for each in self.now.left if each[1] in stage]:
            self.now.left[counter] -= done
            if not self.now.left[counter]:
                self._step(counter)
