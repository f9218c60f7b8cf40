"""What of a scheduled Gluon kernel is no consumer: names and layouts, the producer that loads tiles, the entry.

The producer loads the tiles of a turn to the next place of each ring as soon as that is free. A ring has a barrier for
"full" and one for "empty" at each place; rings that the same loops load and the same stage reads count places together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from tiledsl.analysis.gluon.checks import checked
from tiledsl.analysis.gluon.plan import GATHER_WARPS
from tiledsl.analysis.gluon.schedule import (
    PLACES,
    Loop,
    Ring,
    block,
    divided,
    in_words,
    instruction_columns,
    prepared,
    share,
    shared_axis,
)
from tiledsl.analysis.gluon.slices import needed_for
from tiledsl.analysis.gluon.words import FOUR, described
from tiledsl.codegen.expressions import ADD, MULTIPLY
from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.expressions import GluonExpressions, Layouts
from tiledsl.codegen.gluon.variables import LoopVariables
from tiledsl.codegen.gluon.writer import SpecializedWriter, accumulator_layout, box_bytes
from tiledsl.dialects import gluon, scf, tensor, tile, triton
from tiledsl.ir.core import Operation, Region
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.types import ELEMENTS

THREADS = 32 * GATHER_WARPS  # that copy rows
Counter = tuple[tuple[Loop, ...], int]  # of places: the loops that load a ring, and the stage of what reads it


class ProducerWriter(SpecializedWriter):
    """What a launch's tiles, barriers and registers are called, and all of its text but the consumers."""

    variables: LoopVariables

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        self.plan = checked(launch)
        inside = {loop.op for loop in self.plan.loops}
        fors = [op for op in launch.nests() if isinstance(op, scf.ForOp)]
        self.outer = [op for op in fors if not inside.isdisjoint(op.nests()[1:])]
        skipped = [op.out.shape for op in launch.body.walk() if isinstance(op, gluon.RescaleOp) and op.skip]
        self.widths = {shape: shape[1] // divided(shape, self.plan.warps)[1] for shape in skipped}
        self.helpers = tuple(map(api.rescaled, sorted({*self.widths.values()})))
        if self.plan.op.packed:
            self.helpers = (*self.helpers, api.packed(self.plan.products[-1].a.dtype))
        words = [each for each in self.plan.products if in_words(each) and self.plan.reads_registers(each)]
        self.rounded = {each.a.op for each in words if block(each.a) is None} - self.plan.prepared
        if words:
            self.in_fours = any(isinstance(load, triton.LoadBlockOp) and load.in_fours for load in self.plan.loads)
            exchanged = () if self.in_fours else (api.EXCHANGED,)
            made = (*exchanged, api.words(words[0].a.dtype, self.in_fours)) if self.rounded else ()
            self.helpers = (*self.helpers, *made, api.of_words(words[0].a.dtype))
        super().__init__(launch, module_names)
        if self.gathered:
            self.helpers = (*self.helpers, api.LOAD_AHEAD)
        self.expressions.in_words = self._made_in_words()
        if any(op.in_fours for op in of_kinds(launch.body.walk(), tensor.IotaOp)):
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
        if plan.gathered:
            tiles_of_rows = [(load.out.shape, load.out.dtype) for load in plan.gathered]
            self.gather_layout = self.define(module_names, "GATHERED", api.gather_layout(tiles_of_rows))
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
        return list(dict.fromkeys(self.descriptor(op) for op in self.plan.loads if isinstance(op, triton.LoadBlockOp)))

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

    def _tile_at(self, load: gluon.TileLoad, place: str) -> str:
        """Where a tile is, of those at a place of its ring."""
        return self._tile_of(self.consumer, place) if load in self.plan.own else place

    def _tile_of(self, consumer: str, place: str) -> str:
        """The same of a tile of its own that each consumer has."""
        if place == "0":
            return consumer
        return place if self.warp_groups == 1 else f"{place} * {self.warp_groups} + {consumer}"

    # The producer

    def producer(self, name: str) -> list[str]:
        places = [value for load in self.plan.loads for value in load.operands]
        loops = [*self.outer, *(loop.op for loop in self.plan.loops)]
        bounds = [value for loop in loops for value in loop.operands[:2]]
        self.needed = needed_for([*places, *bounds])
        self.by_consumer = self.by_group(self.needed)
        if any(map(gluon.gathers, self.plan.own)):  # what they copy they know before they wait
            self.variables.by_consumer = {value for op in self.by_consumer for value in op.results}
        self.produced_at: dict[tuple[Loop, ...], tuple[str, str]] = {}
        for (users, _), names in self.counters.items():
            self.produced_at.setdefault(users, names)
        self._begin(self.produced_at.values(), 1, "  # the first turn of an empty place does not wait")
        self.items()
        of_consumers, self.expressions = self.expressions, self._expressions_of_rows()
        self._produce(self.launch.body)
        self.expressions, self.variables.by_consumer = of_consumers, frozenset()
        return self.producer_function(name)

    def _expressions_of_rows(self) -> GluonExpressions:
        """The expressions of threads that copy rows: each has pieces of some."""
        if not self.gathered:
            return self.expressions
        shapes = [load.out.shape for load in self.gathered]
        rows = {rows: f"gl.SliceLayout(1, {self.gather_layout})" for rows, _ in shapes}
        made = GluonExpressions(self.variables, Layouts(dict.fromkeys(shapes, self.gather_layout), rows, {}, {}))
        made.consumer = self.consumer
        return made

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
            else:
                self._compute([op])
            if self.plan.kept and op is self.plan.kept[-1]:
                self._produce_tiles(region, {})

    def _compute(self, ops: Iterable[Operation]) -> None:
        """What loads need. What differs by consumer is computed for each, here or where it is loaded."""
        for op in ops:
            if op not in self.by_consumer:
                self.needed_ops([op], self.needed)
            elif self.variables.by_consumer:
                for number in self._each_consumer():
                    if isinstance(op, gluon.WarpGroupIdOp):
                        self.line(f"{self.name(op.out)} = gl.to_tensor({number})")
                    else:
                        self.needed_ops([op], self.by_consumer)

    def _each_consumer(self) -> Iterator[int]:
        """The numbers of the consumers; values that differ by consumer have the names of one."""
        for number in range(self.warp_groups):
            self.variables.consumer = number
            yield number
        self.variables.consumer = 0

    def _first_counters(self, loop: Loop) -> dict[str, tuple[str, str]]:
        """The names of a place and of its phase, by the ring that a loop loads."""
        rings = {name: ring for name, ring in self.plan.rings.items() if loop in ring.readers}
        return {name: self.produced_at[tuple(ring.readers)] for name, ring in rings.items()}

    def _produce_tiles(self, region: Region, counters: dict[str, tuple[str, str]]) -> None:
        """Load what a turn needs, or without counters what is loaded once."""
        by_consumer = [op for each in self._regions(region) for op in each if op in self.by_consumer]
        if counters:
            self._compute(region)
        for name, ring in self.plan.rings.items():
            loads = [op for op in self.plan.loads if op.parent is region and op.ring == name]
            if not loads:
                continue
            place, phase = counters.get(name, ("0", self.turn if self.item is not None else "1"))
            own = [load for load in loads if load in self.plan.own]
            size = sum(map(box_bytes, loads))
            if not ring.by_consumer:
                size += sum(map(box_bytes, own)) * (self.warp_groups - 1)
                self._begin_tiles(name, place, phase, size)
            for load in loads:
                if load not in own:
                    self._load(load, place, place)
            if own and self.variables.by_consumer:
                for number in self._each_consumer():
                    self._load_own(own, str(number), place, phase, size)
            elif own:
                with self.under(f"for {self.consumer} in gl.static_range({self.warp_groups}):"):
                    self.needed_ops(by_consumer, self.by_consumer)
                    self._load_own(own, self.consumer, place, phase, size)
            if not ring.by_consumer:
                self._end_tiles(name, place)
        for place, phase in dict.fromkeys(counters.values()):
            self._advance(place, phase)
        if not counters and self.item is not None:
            self.line(f"{self.turn} ^= 1")

    def _load_own(self, loads: Sequence[gluon.TileLoad], consumer: str, place: str, phase: str, size: int) -> None:
        """Load a consumer's tiles of a ring."""
        ring = loads[0].ring
        if self.plan.rings[ring].by_consumer:
            self._begin_tiles(ring, consumer, phase, size)
        for load in loads:
            at = self._tile_of(consumer, place)
            self._load(load, *((consumer, consumer) if self.plan.rings[ring].by_consumer else (place, at)))
        if self.plan.rings[ring].by_consumer:
            self._end_tiles(ring, consumer)

    def _regions(self, region: Region) -> list[Region]:
        """A region behind those that it is inside of."""
        loop = region.parent
        inside = isinstance(loop, scf.ForOp) and loop.parent is not None
        return [*(self._regions(loop.parent) if inside else []), region]  # type: ignore[union-attr, arg-type]

    def _begin_tiles(self, ring: str, place: str, phase: str, size: int) -> None:
        """Wait until a place is free. size: bytes of the blocks that will be there."""
        self.line(f"mbarrier.wait({self.empty[ring]}.index({place}), {phase})")
        if size:
            self.line(f"mbarrier.expect({self.full[ring]}.index({place}), {size})")

    def _end_tiles(self, ring: str, place: str) -> None:
        """Have each thread arrive when what it copies is there."""
        if self.plan.rings[ring].gathered:
            self.line(f"async_copy.mbarrier_arrive({self.full[ring]}.index({place}), increment_count=False)")

    def _load(self, op: gluon.TileLoad, place: str, at: str) -> None:
        self.origin(op)
        full, tile = f"{self.full[op.ring]}.index({place})", f"{self.tile_buffer(op)}.index({at})"
        if isinstance(op, triton.LoadBlockOp):
            self.line(f"_load_box({self.descriptor(op)}, [{', '.join(self._starts(op))}], {full}, {tile})")
        elif isinstance(op, triton.LoadOp):
            with self.expressions.operands_of(op):
                mask = "" if op.mask is None else f", mask={self.expressions.text(op.mask)}"
                self.line(f"_load_ahead({tile}, {self.expressions.text(op.pointer)}{mask})")

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

    # The entry

    def arrivals(self, ring: str) -> int:
        """How many consumers release a place of a ring."""
        return 1 if self.plan.rings[ring].by_consumer else self.warp_groups

    def _arrivals_of_tiles(self, ring: Ring) -> int:
        """How often the producer arrives for the tiles of a place: once for blocks, each thread for what it copies."""
        return (len(ring.gathered) < len(ring.tiles)) + (THREADS * bool(ring.gathered))

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
            self.line(f"{self.full[ring]} = _barriers({places}, {self._arrivals_of_tiles(found)})")
            self.line(f"{self.empty[ring]} = _barriers({places}, {self.arrivals(ring)})")
        if self.plan.op.in_turns:
            self.line(f"{self.order} = _barriers({self.warp_groups}, 1)")
        for full, _, _ in self.exchanges.values():
            self.line(f"{full} = _barriers({PLACES}, {self.warp_groups})")
        self.start(name)
        return self.function(name, map(self.argument, self.launch.body.args))


def _place(op: gluon.TileLoad | triton.StoreBlockOp) -> tuple[tuple[int, ...], str]:
    """What a place in shared memory is made for."""
    return gluon.box(op), (op.value if isinstance(op, triton.StoreBlockOp) else op.out).dtype
