"""The source of a Gluon kernel whose loops one group of all warps runs in order, beside a warp that loads.

    for step in ...:
        wait for tiles; issue products; wait for products; compute; store an operand to shared memory; issue a product
        compute what no product needs; wait for the product; release tiles

Products are issued as soon as their operands are there, and awaited where something uses them, or at the end of the
turn; those that `gluon.schedule` names (`in_flight`) in the next turn. A tile is released when the last product that
reads it is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tiledsl.analysis.gluon.ordered_loops import (
    OrderedLoop,
    block,
    divided,
    instruction_columns,
    is_stored,
    ordered_loops,
)
from tiledsl.analysis.gluon.slices import needed_for
from tiledsl.codegen.expressions import ADD
from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.expressions import Layouts
from tiledsl.codegen.gluon.writer import SpecializedWriter, accumulator_layout, box_bytes
from tiledsl.codegen.names import PythonNames
from tiledsl.codegen.variables import Variables
from tiledsl.dialects import gluon, scf, tensor, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds


class _Variables(Variables):
    """Left operands that are computed have variables: they are stored as soon as they are there."""

    def __init__(self, body: Region, names: PythonNames, operands: Iterable[Value]) -> None:
        self._operands = {value.op for value in operands}
        super().__init__(body, names)

    def _choose_inlined(self, region: Region, length: dict[Value, int]) -> None:
        super()._choose_inlined(region, length)
        self.inlined -= self._operands


@dataclass(frozen=True)
class _Flying:
    """A product that has been issued: the value that has its sum, unless another product is added to that, the operand
    that it reads from registers, if any, and whether the turn before this one has issued it."""

    op: tensor.DotOp
    value: Value | None
    operand: str = ""
    is_old: bool = False


class OrderedKernelWriter(SpecializedWriter):
    """Writes loops of products in the order of their text."""

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        self.ordered = ordered_loops(launch.body)
        self.warps = int(dict(launch.options)["num_warps"])
        self.turns = {loop.op: loop for loop in self.ordered.loops}
        self.kept: list[triton.LoadBlockOp] = of_kinds(self.ordered.kept, triton.LoadBlockOp)
        self.loads: dict[scf.ForOp, list[triton.LoadBlockOp]] = {
            loop.op: of_kinds(loop.loads, triton.LoadBlockOp) for loop in self.ordered.loops
        }
        self.stages = self.ordered.loops[0].op.num_stages
        self.flying: list[_Flying] = []
        skipped = [op.out.shape for op in launch.body.walk() if isinstance(op, gluon.RescaleOp) and op.skip]
        if skipped:
            self.helpers = (api.rescaled(skipped[0][1] // divided(skipped[0], self.warps)[1]),)
        super().__init__(launch, module_names)

    # Names

    def make_layouts(self, module_names: set[str]) -> Layouts:
        tiles: dict[tuple[int, ...], str] = {}
        rows: dict[int, str] = {}
        self.operand_layouts: dict[tuple[int, ...], str] = {}
        for product in self.ordered.products:
            shape, dtype = product.out.shape, product.a.dtype
            if shape not in tiles:
                columns, warps = instruction_columns(shape, self.warps), divided(shape, self.warps)
                name = f"TILE_{shape[0]}_{shape[1]}"
                tiles[shape] = self.define(module_names, name, accumulator_layout(columns, dtype, warps))
            if shape[0] not in rows:
                rows[shape[0]] = self.define(module_names, f"ROWS_{shape[0]}", f"gl.SliceLayout(1, {tiles[shape]})")
            if shape not in self.operand_layouts and self._reads_registers(product):
                text = f"gl.DotOperandLayout(operand_index=0, parent={tiles[shape]}, k_width=2)"
                self.operand_layouts[shape] = self.define(module_names, f"OPERAND_{shape[0]}_{shape[1]}", text)
        return Layouts(tiles, rows)

    def make_variables(self) -> Variables:
        return _Variables(self.launch.body, self.names, self.ordered.computed)

    def claim_names(self) -> None:
        claim, name = self.names.claim, self.variables.name
        rings = self.ordered.rings
        owners = {load: rings.get(load, load) for load in self._all_loads()}
        self.own: list[triton.LoadBlockOp] = of_kinds(dict.fromkeys(owners.values()), triton.LoadBlockOp)
        self.keys = {load: name(owner.out) for load, owner in owners.items()}
        self.rings = {self.keys[load]: claim(f"{self.keys[load]}_ring") for load in self.own}
        users = {key: tuple(loop for loop in self.turns if key in self._keys(loop)) for key in self.rings}
        in_turns = [key for key, loops in users.items() if loops]
        self.full = {key: claim(f"{key}_full") for key in in_turns}
        self.empty = {key: claim(f"{key}_empty") for key in in_turns}
        if self.kept:
            self.full[""], self.empty[""] = claim("full"), claim("empty")
        # tiles that all the same loops load are at the same place of their rings
        counters = {loops: (claim("stage"), claim("phase")) for loops in dict.fromkeys(users[key] for key in in_turns)}
        self.counters = {key: counters[users[key]] for key in in_turns}
        in_flight = any(self.schedule.in_flight)
        self.before = {stage: claim(f"{stage}_before") for stage, _ in counters.values() if in_flight}
        self.claim_out_buffers()
        stored = self.ordered.buffers(self.warps)
        buffers = {owner: claim(f"{name(owner)}_buffer") for owner in dict.fromkeys(stored.values())}
        self.buffers = {value: buffers[owner] for value, owner in stored.items()}
        in_registers = [each for each in self.ordered.products if self._reads_registers(each)]
        self.operand_names = {product: claim(f"{name(product.a)}_operand") for product in in_registers}
        self.in_item: dict[triton.StoreBlockOp, str] = {}
        free = list(self.kept)
        for store in self.box_stores():
            if store.ring != "results":
                load = next(each for each in free if gluon.box(each) == gluon.box(store))
                free.remove(load)
                self.in_item[store] = self.rings[self.key(load)]

    def _reads_registers(self, product: tensor.DotOp) -> bool:
        return block(product.a) is None and not is_stored(product, self.warps)

    def _all_loads(self) -> list[triton.LoadBlockOp]:
        return [*self.kept, *(load for loads in self.loads.values() for load in loads)]

    def _keys(self, loop: scf.ForOp) -> list[str]:
        return [self.keys[load] for load in self.loads[loop]]

    def key(self, op: triton.LoadBlockOp) -> str:
        return self.keys[op]

    def store_buffer(self, op: triton.StoreBlockOp) -> str:
        return self.out_buffers[op] if op.ring == "results" else self.in_item[op]

    def loaded(self) -> list[str]:
        return list(dict.fromkeys(map(self.descriptor, self._all_loads())))

    def shared(self) -> list[str]:
        return [*super().shared(), *dict.fromkeys(self.buffers.values())]

    # The producer

    def producer(self, name: str) -> list[str]:
        starts = [value for load in self._all_loads() for value in load.starts]
        bounds = [value for loop in self.turns for value in loop.operands[:2]]
        needed = needed_for([*starts, *bounds])
        self._begin(1, "  # the first turn of an empty place does not wait")
        self.items()
        for op in self.launch.body:
            if isinstance(op, scf.ForOp):
                self._produce(op, needed)
            else:
                self.needed_ops([op], needed)
                if self.kept and op is self.kept[-1]:
                    self._produce_kept()
        return self.producer_function(name)

    def _begin(self, phase: int, remark: str = "") -> None:
        for stage, name in dict.fromkeys(self.counters.values()):
            self.line(f"{stage} = 0")
            self.line(f"{name} = {phase}{remark}")
        if self.kept and self.item is not None:
            self.line(f"{self.turn} = {phase}")

    def _produce_kept(self) -> None:
        turn = self.turn if self.item is not None else "1"
        full = f"{self.full['']}.index(0)"
        self.line(f"mbarrier.wait({self.empty['']}.index(0), {turn})")
        self.line(f"mbarrier.expect({full}, {sum(map(box_bytes, self.kept))})")
        for load in self.kept:
            self.origin(load)
            starts = ", ".join(self.expressions.text(value) for value in load.starts)
            self.line(f"_load_box({self.descriptor(load)}, [{starts}], {full}, {self.rings[self.key(load)]}.index(0))")
        if self.item is not None:
            self.line(f"{self.turn} ^= 1")

    def _produce(self, loop: scf.ForOp, needed: set[Operation]) -> None:
        with self.range_of(loop):
            self.needed_ops(loop.body, needed)
            for load in self.loads[loop]:
                self.load_box(load, *self.counters[self.key(load)])
            self._advance(loop)

    def _advance(self, loop: scf.ForOp) -> None:
        for stage, phase in dict.fromkeys(self.counters[key] for key in self._keys(loop)):
            self.line(f"{stage}, {phase} = _advance({stage}, {phase}, {self.stages})")

    # The consumers

    def consumers(self, name: str) -> list[str]:
        self._begin(0)
        self.items()
        last_loop = self.ordered.loops[-1].op
        for op in self.launch.body:
            if isinstance(op, scf.ForOp):
                self._consume(self.turns[op])
            else:
                self.ops([op])
            if op is last_loop and self.kept and not self.in_item:
                self._release_kept()
        if self.in_item:
            self.line("tma.store_wait(0)")
            self._release_kept()
        return self.consumer_function(name)

    def statement(self, op: Operation) -> None:
        if op in self.kept:
            if op is self.kept[-1]:
                self.origin(op)
                self.line(f"mbarrier.wait({self.full['']}.index(0), {self.turn if self.item is not None else '0'})")
        elif isinstance(op, tensor.DotOp):
            self._issue(op)
        elif isinstance(op, triton.LoadBlockOp) or isinstance(op, tensor.TransposeOp) and block(op.out) is not None:
            pass  # products see what is in shared memory
        else:
            self._await_values(self._read_by(op))
            super().statement(op)
            for value in op.results:
                if value in self.buffers:
                    self._store_operand(value)

    def _store_operand(self, value: Value) -> None:
        """Store a computed operand where no product reads the one before it any more."""
        buffer = self.buffers[value]
        reading = [number for number, each in enumerate(self.flying, 1) if self.buffers.get(each.op.a) == buffer]
        self._await(max(reading, default=0))
        self.line(f"{buffer}.store({self.name(value)})")
        self.line("fence_async_shared()")

    def _release_kept(self) -> None:
        self.release("", "0")
        if self.item is not None:
            self.line(f"{self.turn} ^= 1")

    def _consume(self, loop: OrderedLoop) -> None:
        op, number = loop.op, self.ordered.loops.index(loop)
        carried = self.schedule.in_flight[number]
        lower, upper = (self.expressions.value(each).at(ADD) for each in op.operands[:2])
        stages = dict.fromkeys(self.counters[key][0] for key in self._keys(op)) if carried else {}
        self.assign(op.iter_args, op.inits)
        old: list[_Flying] = []
        for each in carried:
            name, product = self.name(op.iter_args[each]), op.yielded[each].op
            assert isinstance(product, tensor.DotOp)
            self.line(f"{name} = warpgroup_mma_init({name})")
            old.append(_Flying(product, op.iter_args[each], is_old=True))
        for stage in stages:
            self.line(f"{self.before[stage]} = 0")
        with self.range_of(op):
            self.flying, self.has_before = list(old), f", pred={self.name(op.index)} > {lower}"
            self.awaited: set[str] = set()
            self.readers = self._readers(loop)
            self.ops(each for each in op.body if not each.is_terminator)
            self._await(len(self.flying) - len(old))
            for stage in stages:
                self.line(f"{self.before[stage]} = {stage}")
            self._advance(op)
            self.assign(op.iter_args, op.yielded)
        self.flying, self.has_before = old, "" if self.schedule.runs[number] else f", pred={lower} < {upper}"
        self._await(len(old))

    def _readers(self, loop: OrderedLoop) -> dict[str, tensor.DotOp]:
        """The last product that reads each of a loop's tiles."""
        read = [(block(value), product) for product in loop.products for value in (product.a, product.b)]
        return {self.key(load): product for load in self.loads[loop.op] for each, product in read if each is load}

    def _operand(self, value: Value) -> str:
        load = block(value)
        assert isinstance(load, triton.LoadBlockOp)
        key = self.key(load)
        if load in self.kept:
            return self.operand(value, "0")
        stage, phase = self.counters[key]
        if key not in self.awaited:
            self.awaited.add(key)
            self.line(f"mbarrier.wait({self.full[key]}.index({stage}), {phase})")
        return self.operand(value, stage)

    def _issue(self, op: tensor.DotOp) -> None:
        """Issue a product. What it is added to may be on its way, if nothing else wants it."""
        self.origin(op)
        chained = any(each.value is op.accumulator for each in self.flying) and set(op.accumulator.uses) == {op}
        if not chained:
            self._await_values(self._inside(op.accumulator))
        operand = ""
        if block(op.a) is not None:
            left = self._operand(op.a)
        elif op.a in self.buffers:
            left = self.buffers[op.a]
        else:
            left = operand = self.operand_names[op]
            self.line(f"{left} = gl.convert_layout({self.name(op.a)}, {self.operand_layouts[op.out.shape]})")
        right = self._operand(op.b)
        from_zero = constant_of(op.accumulator) == 0
        acc = f"{self.zeros(op.out)}, use_acc=False" if from_zero else self.expressions.text(op.accumulator)
        self.line(f"{self.name(op.out)} = warpgroup_mma({left}, {right}, {acc}, is_async=True)")
        self.flying = [replace(each, value=None) if each.value is op.accumulator else each for each in self.flying]
        self.flying.append(_Flying(op, op.out, operand))

    def _read_by(self, op: Operation) -> Iterator[Value]:
        """The values that the text of an operation reads, those inside of branches and inlined ones included."""
        for inner in op.walk():
            for value in inner.operands:
                yield from self._inside(value)

    def _inside(self, value: Value) -> Iterator[Value]:
        yield value
        if value.op is not None and value.op in self.variables.inlined:
            yield from self._read_by(value.op)

    def _await_values(self, values: Iterable[Value]) -> None:
        read = set(values)
        needed = [number for number, each in enumerate(self.flying) if each.value in read]
        if needed:
            self._await(needed[-1] + 1)

    def _await(self, number: int) -> None:
        """Wait for so many of the products on their way, the oldest ones, and release what none of the others reads.

        ptxas takes products one by one if those of the turn before are awaited while others are on their way.
        """
        if any(each.is_old for each in self.flying[:number]):
            number = len(self.flying)
        finished, self.flying = self.flying[:number], self.flying[number:]
        if not finished:
            return
        names = [self.name(each.value) for each in finished if each.value is not None]
        names += [each.operand for each in finished if each.operand]
        deps = ", ".join(dict.fromkeys(names))
        self.line(f"{deps} = warpgroup_mma_wait({len(self.flying)}, deps=[{deps}])")
        freed = [(key, each.is_old) for each in finished for key, reader in self.readers.items() if reader is each.op]
        for key, is_old in freed:
            stage, condition = self.counters[key][0], self.has_before if is_old else ""
            stage = self.before[stage] if is_old else stage
            self.line(f"mbarrier.arrive({self.empty[key]}.index({stage}), count=1{condition})")
        overwritten = any(each.op.a in self.buffers for each in finished) or bool(self.in_item)
        if overwritten and not freed:  # to arrive makes warps wait for one another, before one stores what others read
            self.helpers = tuple(dict.fromkeys((*self.helpers, api.BARRIER)))
            self.line("_barrier()")

    # The entry

    def entry(self, name: str) -> list[str]:
        for load in self.own:
            self.allocate(self.rings[self.key(load)], load, 1 if load in self.kept else self.stages)
        for buffer, value in {buffer: value for value, buffer in self.buffers.items()}.items():
            layout = api.shared_layout(value.shape, value.dtype)
            shape = ", ".join(map(str, value.shape))
            self.line(f"{buffer} = gl.allocate_shared_memory({TRITON_TYPES[value.dtype]}, [{shape}], {layout})")
        self.allocate_results()
        for key in self.full:
            places = self.stages if key else 1
            self.line(f"{self.full[key]} = _barriers({places}, 1)")
            self.line(f"{self.empty[key]} = _barriers({places}, 1)")
        self.start(name)
        return self.function(name, map(self.argument, self.launch.body.args))
