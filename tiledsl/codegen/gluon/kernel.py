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
from math import prod

from tiledsl.analysis.gluon.checks import checked
from tiledsl.analysis.gluon.schedule import (
    AT_ONCE,
    PAIR,
    PLACES,
    Loop,
    block,
    divided,
    ending_in,
    in_order,
    in_words,
    instruction_columns,
    is_only_added_to,
    is_stored,
    last_of,
    prepared,
    share,
    shared_axis,
)
from tiledsl.analysis.gluon.slices import needed_for
from tiledsl.analysis.gluon.words import FOUR, described, loads_in_fours
from tiledsl.analysis.loops import trip_count
from tiledsl.codegen.expressions import ADD, MULTIPLY
from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.expressions import Layouts
from tiledsl.codegen.gluon.variables import LoopVariables
from tiledsl.codegen.gluon.writer import SpecializedWriter, accumulator_layout, box_bytes
from tiledsl.dialects import gluon, scf, tensor, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import ELEMENTS

Counter = tuple[tuple[Loop, ...], int]  # of places: the loops that load a ring, and the stage of what reads it


@dataclass(eq=False)
class _Turn:
    """What has happened in a turn: rings whose tiles were awaited, and for each counter those still to be read;
    `passed`: counters that have gone on to the next turn, while this one still reads tiles."""

    awaited: set[str] = field(default_factory=set)
    left: dict[Counter, set[str]] = field(default_factory=dict)
    passed: set[Counter] = field(default_factory=set)


@dataclass(eq=False)
class _Flying:
    """A product that has been issued.

    values: what has its sum, unless another product is added to that; names: of what a wait must mention: the sum, and
    the operand that it reads from registers; read: the rings that no later product of its stage reads; freed: those
    that none does, and at which place; turn: that has issued it, None if it is the one before; copy: of several turns.
    """

    op: tensor.DotOp
    values: set[Value]
    names: list[str]
    read: list[str]
    freed: dict[str, str]
    turn: _Turn | None
    copy: int


class GluonKernelWriter(SpecializedWriter):
    """Writes a launch that schedule-loops has been through."""

    variables: LoopVariables

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        self.plan = checked(launch)
        self.flying: list[_Flying] = []
        self.now = _Turn()
        inside = {loop.op for loop in self.plan.loops}
        fors = [op for op in launch.nests() if isinstance(op, scf.ForOp)]
        self.outer = [op for op in fors if not inside.isdisjoint(op.nests()[1:])]
        self.has_before = ""  # a condition on arrivals for the turn before
        skipped = [op.out.shape for op in launch.body.walk() if isinstance(op, gluon.RescaleOp) and op.skip]
        self.widths = {shape: shape[1] // divided(shape, self.plan.warps)[1] for shape in skipped}
        self.helpers = tuple(map(api.rescaled, sorted({*self.widths.values()})))
        if self.plan.op.packed:
            self.helpers = (*self.helpers, api.packed(self.plan.products[-1].a.dtype))
        words = [each for each in self.plan.products if in_words(each) and self.plan.reads_registers(each)]
        self.rounded = {each.a.op for each in words if block(each.a) is None} - self.plan.prepared
        if words:
            self.in_fours = any(load.in_fours for load in self.plan.loads)
            exchanged = () if self.in_fours else (api.EXCHANGED,)
            made = (*exchanged, api.words(words[0].a.dtype, self.in_fours)) if self.rounded else ()
            self.helpers = (*self.helpers, *made, api.of_words(words[0].a.dtype))
        super().__init__(launch, module_names)
        self.expressions.in_words = self._made_in_words()
        if words and self.in_fours:
            _, self.expressions.in_fours = loads_in_fours(launch)
            if self.expressions.in_fours:
                self.helpers = (*self.helpers, api.COLUMNS_IN_FOURS)

    def _made_in_words(self) -> set[Operation]:
        """What makes operands of 8 bits of tiles that are loaded for them."""
        found: set[Operation] = set()
        for product in filter(in_words, self.plan.products):
            found |= prepared([product])
        return found

    # Names

    def make_layouts(self, module_names: set[str]) -> Layouts:
        tiles: dict[tuple[int, ...], str] = {}
        rows: dict[int, str] = {}
        self.operand_layouts: dict[tuple[int, ...], str] = {}
        self.word_layouts: dict[tuple[int, ...], str] = {}  # of operands of 8 bits
        shares: dict[tuple[int, ...], tuple[int, ...]] = {}
        plan = self.plan
        by_columns = {op: plan.groups > 1 and shared_axis(op.out.shape, plan.warps) == 1 for op in plan.products}
        for product in sorted(plan.products, key=by_columns.__getitem__):  # values for columns lie as in rows' tiles
            shape, dtype = product.out.shape, product.a.dtype
            if shape not in tiles:
                columns, warps = instruction_columns(shape, plan.warps), divided(shape, plan.warps)
                name = f"TILE_{shape[0]}_{shape[1]}"
                if plan.groups > 1:
                    shares[shape] = share(shape, shared_axis(shape, plan.warps), plan.groups)
                    warps = divided(shares[shape], plan.warps // plan.groups)
                tiles[shape] = self.define(module_names, name, accumulator_layout(columns, dtype, warps))
            if shape[0] not in rows:
                rows[shape[0]] = self.define(module_names, f"ROWS_{shape[0]}", f"gl.SliceLayout(1, {tiles[shape]})")
            if shape not in self.operand_layouts and self.plan.reads_registers(product):
                width = 32 // ELEMENTS[dtype].bits
                if in_words(product):
                    words = f"gl.DotOperandLayout(operand_index=0, parent={tiles[shape]}, k_width=1)"
                    self.word_layouts[shape] = self.define(module_names, f"WORDS_{shape[0]}_{shape[1]}", words)
                text = f"gl.DotOperandLayout(operand_index=0, parent={tiles[shape]}, k_width={width})"
                self.operand_layouts[shape] = self.define(module_names, f"OPERAND_{shape[0]}_{shape[1]}", text)
        operands = {
            each.a.shape: self.operand_layouts[each.out.shape]
            for each in self.plan.products
            if each.a.op in self.plan.prepared and not in_words(each)
        }
        return Layouts(tiles, rows, self.widths, operands, shares)

    def make_variables(self) -> LoopVariables:
        return LoopVariables(self.launch.body, self.names, self.plan)

    def claim_names(self) -> None:
        claim, name, plan = self.names.claim, self.variables.name, self.plan
        self.tiles = {load: claim(f"{name(load.out)}_ring") for ring in plan.rings.values() for load in ring.tiles}
        alone = {ring: found.tiles[0] for ring, found in plan.rings.items() if len(found.tiles) == 1}
        hints = {ring: f"{name(alone[ring].out)}_" if ring in alone else "" for ring in plan.rings}
        self.full = {ring: claim(f"{hint}full") for ring, hint in hints.items()}
        self.empty = {ring: claim(f"{hint}empty") for ring, hint in hints.items()}
        # tiles that the same loops load and the same stage reads are at the same place of their rings
        read: dict[Counter, list[str]] = {}
        for ring, found in plan.rings.items():
            for stage in sorted({stage for each in found.readers.values() for stage in each}):
                read.setdefault((tuple(found.readers), stage), []).append(hints[ring])
        self.counters: dict[Counter, tuple[str, str]] = {}
        for counter, names in read.items():
            hint = names[0] if len(names) == 1 < len(read) else ""
            self.counters[counter] = claim(f"{hint}stage"), claim(f"{hint}phase")
        self.order, self.next_turn = claim("order"), claim("next_turn")
        self.before: dict[str, str] = {}
        self.late_names: dict[Loop, str] = {}
        self.expressions.consumer = self.consumer
        self.claim_out_buffers()
        buffers = {value: claim(f"{name(value)}_buffer") for value in dict.fromkeys(plan.buffers.values())}
        self.buffers = {value: buffers[owner] for value, owner in plan.buffers.items()}
        # of tiles that groups of warps exchange: the barrier for "full", the place, its phase
        exchanged = dict.fromkeys(self.buffers.values()) if plan.groups > 1 else {}
        self.exchanges = {
            each: (claim(f"{each}_full"), claim(f"{each}_place"), claim(f"{each}_phase")) for each in exchanged
        }
        self.unseen: set[str] = set()  # those of which no product has awaited the last tile
        in_registers = [each for each in plan.products if plan.reads_registers(each) and block(each.a) is None]
        self.operand_names: dict[tensor.DotOp, str] = {}
        self.handed_on: dict[tensor.DotOp, str] = {}  # for the next turn; loops of a chain hand on to each other
        for chain in plan.chains():
            for products in zip(*(loop.products for loop in chain)):
                first = products[0]
                if first in in_registers:
                    operand = claim(f"{name(first.a)}_operand")
                    self.operand_names.update(dict.fromkeys(products, operand))
                    if first.a in chain[0].held:
                        packed = claim(f"{name(first.a)}_packed") if plan.op.packed else operand
                        self.handed_on.update(dict.fromkeys(products, packed))
        self.starts = {loop: claim("start") for loop in plan.loops if loop.is_skewed}
        self.in_item: dict[triton.StoreBlockOp, str] = {}
        free = list(plan.kept)
        for store in self.box_stores():
            if store.ring != "results":
                load = next(each for each in free if _place(each) == _place(store))
                free.remove(load)
                self.in_item[store] = self.tiles[load]

    def store_buffer(self, op: triton.StoreBlockOp) -> str:
        return self.out_buffers[op] if op.ring == "results" else self.in_item[op]

    def loaded(self) -> list[str]:
        return list(dict.fromkeys(map(self.descriptor, self.plan.loads)))

    def shared(self) -> list[str]:
        barriers = [*self.full.values(), *self.empty.values(), *([self.order] if self.plan.op.in_turns else [])]
        exchanged = [full for full, _, _ in self.exchanges.values()]
        return [*self.tiles.values(), *barriers, *dict.fromkeys(self.buffers.values()), *exchanged]

    def _counters(self, loop: Loop, stages: Iterable[int]) -> dict[Counter, set[str]]:
        """The counters of a loop's turns, and the rings that are read there."""
        found: dict[Counter, set[str]] = {}
        for name, ring in self.plan.rings.items():
            for stage in ring.readers.get(loop, ()):
                if stage in stages:
                    found.setdefault((tuple(ring.readers), stage), set()).add(name)
        return found

    def _tile_at(self, load: triton.LoadBlockOp, place: str) -> str:
        """Where a tile is, of those at a place of its ring."""
        if load not in self.plan.own:
            return place
        if place == "0":
            return self.consumer
        return place if self.warp_groups == 1 else f"{place} * {self.warp_groups} + {self.consumer}"

    # The producer

    def producer(self, name: str) -> list[str]:
        starts = [value for load in self.plan.loads for value in load.starts]
        loops = [*self.outer, *(loop.op for loop in self.plan.loops)]
        bounds = [value for loop in loops for value in loop.operands[:2]]
        self.needed = needed_for([*starts, *bounds])
        self.by_consumer = self.by_group(self.needed)
        self.produced_at: dict[tuple[Loop, ...], tuple[str, str]] = {}
        for (users, _), names in self.counters.items():
            self.produced_at.setdefault(users, names)
        self._begin(self.produced_at.values(), 1, "  # the first turn of an empty place does not wait")
        self.items()
        self._produce(self.launch.body)
        return self.producer_function(name)

    def _begin(self, counters: Iterable[tuple[str, str]], phase: int, remark: str = "") -> None:
        for stage, name in counters:
            self.line(f"{stage} = 0")
            self.line(f"{name} = {phase}{remark}")
        if self.plan.kept and self.item is not None:
            self.line(f"{self.turn} = {phase}")

    def _produce(self, region: Region) -> None:
        loops = {loop.op: loop for loop in self.plan.loops}
        for op in region:
            if isinstance(op, scf.ForOp) and op in loops:
                with self.range_of(op):
                    self._produce_tiles(op.body, self._first_counters(loops[op]))
            elif isinstance(op, scf.ForOp) and op in self.outer:
                with self.range_of(op):
                    self._produce(op.body)
            elif op not in self.by_consumer:
                self.needed_ops([op], self.needed)
            if self.plan.kept and op is self.plan.kept[-1]:
                self._produce_tiles(region, {})

    def _first_counters(self, loop: Loop) -> dict[str, tuple[str, str]]:
        """The names of a place and of its phase, by the ring that a loop loads."""
        rings = {name: ring for name, ring in self.plan.rings.items() if loop in ring.readers}
        return {name: self.produced_at[tuple(ring.readers)] for name, ring in rings.items()}

    def _produce_tiles(self, region: Region, counters: dict[str, tuple[str, str]]) -> None:
        """Load what a turn needs, or without counters what is loaded once."""
        by_consumer = [op for each in self._regions(region) for op in each if op in self.by_consumer]
        if counters:
            self.needed_ops([op for op in region if op not in self.by_consumer], self.needed)
        for name, ring in self.plan.rings.items():
            loads = [op for op in self.plan.loads if op.parent is region and op.ring == name]
            if not loads:
                continue
            place, phase = counters.get(name, ("0", self.turn if self.item is not None else "1"))
            own = [load for load in loads if load in self.plan.own]
            size = sum(map(box_bytes, loads))
            if not ring.by_consumer:
                size += sum(map(box_bytes, own)) * (self.warp_groups - 1)
                self._expect(name, place, phase, size)
            for load in loads:
                if load not in own:
                    self._load(load, place, place)
            if own:
                with self.under(f"for {self.consumer} in gl.static_range({self.warp_groups}):"):
                    self.needed_ops(by_consumer, self.by_consumer)
                    if ring.by_consumer:
                        place = self.consumer
                        self._expect(name, place, phase, size)
                    for load in own:
                        self._load(load, place, self.consumer if ring.by_consumer else self._tile_at(load, place))
        for place, phase in dict.fromkeys(counters.values()):
            self._advance(place, phase)
        if not counters and self.item is not None:
            self.line(f"{self.turn} ^= 1")

    def _regions(self, region: Region) -> list[Region]:
        """A region behind those that it is inside of."""
        loop = region.parent
        inside = isinstance(loop, scf.ForOp) and loop.parent is not None
        return [*(self._regions(loop.parent) if inside else []), region]  # type: ignore[union-attr, arg-type]

    def _expect(self, ring: str, place: str, phase: str, size: int) -> None:
        self.line(f"mbarrier.wait({self.empty[ring]}.index({place}), {phase})")
        self.line(f"mbarrier.expect({self.full[ring]}.index({place}), {size})")

    def _load(self, op: triton.LoadBlockOp, place: str, at: str) -> None:
        self.origin(op)
        offsets = ", ".join(self._starts(op))
        full, tile = f"{self.full[op.ring]}.index({place})", f"{self.tile_buffer(op)}.index({at})"
        self.line(f"_load_box({self.descriptor(op)}, [{offsets}], {full}, {tile})")

    def _starts(self, op: triton.LoadBlockOp) -> list[str]:
        """Where a box starts in its descriptor's view of memory."""
        starts = [self.expressions.value(value) for value in op.starts]
        if not op.in_fours:
            return [start.text for start in starts]
        *outer, row, column = starts
        sizes = tile.buffer_type(described(op, self.launch).buffer).shape
        strides = [prod(map(int, sizes[n + 1 : -2])) for n in range(len(outer))]
        at = " + ".join(
            start.at(ADD) if step == 1 else f"{start.at(MULTIPLY)} * {step}" for start, step in zip(outer, strides)
        )
        return [*([at] if outer else []), "0", f"{row.at(MULTIPLY)} // {FOUR}", "0", column.text]

    def _advance(self, stage: str, phase: str) -> None:
        depth = self.plan.loops[0].op.num_stages
        self.line(f"{stage}, {phase} = _advance({stage}, {phase}, {depth})")

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
        elif isinstance(op, triton.LoadBlockOp):
            if op in self.plan.for_registers:
                self._read_to_registers(op)
            elif not all(isinstance(user, (tensor.DotOp, tensor.TransposeOp)) for user in op.out.uses):
                self._read_row(op)
        elif isinstance(op, gluon.ClusterOp):
            pass
        elif isinstance(op, tensor.TransposeOp):
            pass  # products see what is in shared memory
        elif op in self.rounded:
            self._await_values(self._read_by(op))
            self.origin(op)
            words = f"_words({self.expressions.text(op.operands[0])})"
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
            self.line(f"mbarrier.wait({self.full[ring]}.index({self._item_place(ring)}), {turn})")
        if self.item is not None:
            self.line(f"{self.turn} ^= 1")
        for load in self.plan.kept:
            if self.plan.in_registers(load):
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
        for ring in dict.fromkeys(load.ring for load in self.plan.kept):
            self.line(f"mbarrier.arrive({self.empty[ring]}.index({self._item_place(ring)}), count=1)")

    def _store_operand(self, value: Value) -> None:
        """Store a computed operand where no product reads the one before it any more."""
        buffer = self.buffers[value]
        reading = [number for number, each in enumerate(self.flying, 1) if self._buffer(each.op) == buffer]
        self._await(max(reading, default=0))
        if buffer not in self.exchanges:
            self.line(f"{buffer}.store({self.name(value)})")
            self.line("fence_async_shared()")
            return
        full, place, phase = self.exchanges[buffer]
        self.line(f"{place}, {phase} = _advance({place}, {phase}, {PLACES})")
        own = self._own(f"{buffer}.index({place})", value.shape, shared_axis(value.shape, self.plan.warps))
        self.line(f"{own}.store({self.name(value)})")
        self.line("fence_async_shared()")
        self.line(f"mbarrier.arrive({full}.index({place}), count=1)")
        self.unseen.add(buffer)

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
        self._await(len(old))

    def _in_flight(self, loop: Loop) -> list[_Flying]:
        """What the turn before has issued and this one awaits. One that is the accumulator of its own product needs no
        other type than what a wait gives."""
        old: list[_Flying] = []
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
        self.loop = loop
        clusters = [cluster for cluster in loop.clusters if cluster.stage in stages]
        carried = len(self.flying)
        turns = [_Turn(left=self._counters(loop, stages)) for _ in range(copies)]
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
                    if isinstance(load, triton.LoadBlockOp) and load not in self.plan.kept:
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

    def _flying(self, loop: Loop, op: tensor.DotOp) -> _Flying:
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
        return _Flying(op, values, [self.name(op.out)], read, freed, self.now, self.variables.copy)

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
        assert isinstance(load, triton.LoadBlockOp)
        if load in self.plan.kept:
            place = self._tile_at(load, "0")
            if place == "0" and self.loop.is_skewed:
                place = "_zero()"
                self.helpers = tuple(dict.fromkeys((*self.helpers, api.ZERO)))
        else:
            place = self._tile_at(load, self._await_tile(load, product))
        return self._seen(self.matrix(self.tile_buffer(load), place, load), value, product)

    def _await_tile(self, load: triton.LoadBlockOp, reader: Operation) -> str:
        """Wait for a tile where that has not been done in the turn; its place in its ring."""
        ring, stage = self.plan.rings[load.ring], self.loop.stage[reader]
        place, phase = self._at((tuple(ring.readers), stage))
        if load.ring not in self.now.awaited and stage == min(ring.readers[self.loop]):
            self.now.awaited.add(load.ring)
            self.line(f"mbarrier.wait({self.full[load.ring]}.index({place}), {phase})")
        return place

    def _read_row(self, op: triton.LoadBlockOp) -> None:
        """Read what is no operand of a product from its place in shared memory."""
        self.origin(op)
        row = self.matrix(self.tile_buffer(op), self._tile_at(op, self._await_tile(op, op)), op)
        self.line(f"{self.name(op.out)} = {row}.load({self.layouts.of(op.out.shape)})")

    def _read_to_registers(self, op: triton.LoadBlockOp) -> None:
        """Read what left operands are made of, once it is there; its place is free then."""
        self.origin(op)
        place, phase = self._at((tuple(self.plan.rings[op.ring].readers), 0))
        self.line(f"mbarrier.wait({self.full[op.ring]}.index({place}), {phase})")
        buffer, at = self.tile_buffer(op), self._tile_at(op, place)
        if op in self.expressions.in_words:
            tile = api.in_words(f"{buffer}.index({at})", op.out.shape, op.out.dtype)
            self.helpers = tuple(dict.fromkeys((*self.helpers, api.IN_WORDS)))
            layout = next(self.word_layouts[each.out.shape] for each in self.plan.products if op in prepared([each]))
        else:
            tile, layout = self.matrix(buffer, at, op), self.layouts.of(op.out.shape)
        self.line(f"{self.name(op.out)} = {tile}.load({layout})")
        self.line(f"mbarrier.arrive({self.empty[op.ring]}.index({place}), count=1)")

    def tile_buffer(self, op: triton.LoadBlockOp) -> str:
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
        for inner in op.walk():
            for value in inner.operands:
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
        freed = [(ring, place, each.turn) for each in finished for ring, place in each.freed.items()]
        for ring, place, turn in freed:
            condition = "" if turn else self.has_before
            self.line(f"mbarrier.arrive({self.empty[ring]}.index({place}), count=1{condition})")
        buffers = {self._buffer(each.op) for each in finished} - {"", *self.exchanges}
        if buffers and not freed:  # to arrive does the same
            self._meet()
        done = {ring for each in finished if each.turn is self.now for ring in each.read}
        stage = {self.loop.stage[each.op] for each in finished}
        for counter in [each for each in self.now.left if each[1] in stage]:
            self.now.left[counter] -= done
            if not self.now.left[counter]:
                self._step(counter)

    # The entry

    def entry(self, name: str) -> list[str]:
        for found in self.plan.rings.values():
            for load in found.tiles:
                parts = self.warp_groups if load in self.plan.own else 1
                self.allocate(self.tiles[load], load, found.depth * parts)
        for buffer, value in {buffer: value for value, buffer in self.buffers.items()}.items():
            layout = api.shared_layout(value.shape, value.dtype)
            all_places = (PLACES,) if buffer in self.exchanges else ()
            shape = ", ".join(map(str, (*all_places, *value.shape)))
            self.line(f"{buffer} = gl.allocate_shared_memory({TRITON_TYPES[value.dtype]}, [{shape}], {layout})")
        self.allocate_results()
        for ring, found in self.plan.rings.items():
            places = found.depth * (self.warp_groups if found.by_consumer else 1)
            self.line(f"{self.full[ring]} = _barriers({places}, 1)")
            self.line(f"{self.empty[ring]} = _barriers({places}, {1 if found.by_consumer else self.warp_groups})")
        if self.plan.op.in_turns:
            self.line(f"{self.order} = _barriers({self.warp_groups}, 1)")
        for full, _, _ in self.exchanges.values():
            self.line(f"{full} = _barriers({PLACES}, {self.warp_groups})")
        self.start(name)
        return self.function(name, map(self.argument, self.launch.body.args))


def _place(op: triton.LoadBlockOp | triton.StoreBlockOp) -> tuple[tuple[int, ...], str]:
    """What a place in shared memory is made for."""
    return gluon.box(op), (op.out if isinstance(op, triton.LoadBlockOp) else op.value).dtype
