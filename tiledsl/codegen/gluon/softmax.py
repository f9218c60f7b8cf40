"""The text of one Gluon kernel: its layouts, the producer, the consumers and the entry that starts them.

The consumers' loop is skewed: the next tile's scores are issued before the second product of the tile before, so that
the row-wise update runs while the matrix unit works (Shah et al. 2024, FlashAttention-3, section 3.2). The first tile
stands before the loops, and the last product after them:

    scores(0); update(0)
    for tile in 1 ...:  issue scores(tile); issue product(tile - 1); wait for scores; update(tile); wait for product
    product(last)

What the accumulator is multiplied by (`gluon.rescale`) waits until the next tile's scores are on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tiledsl.analysis.gluon.slices import needed_for
from tiledsl.analysis.gluon.softmax_loops import ROWS_OF_CONSUMER
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.expressions import Layouts
from tiledsl.codegen.gluon.writer import SpecializedWriter, accumulator_layout, loads_of, moved_by, schedule_of
from tiledsl.codegen.names import PythonNames
from tiledsl.codegen.variables import Variables
from tiledsl.dialects import gluon, scf, tensor, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value


@dataclass(frozen=True)
class _Loop:
    """The clusters of one loop, by what they are for."""

    op: scf.ForOp
    keys: triton.LoadBlockOp
    values: triton.LoadBlockOp
    scores: tensor.DotOp
    product: tensor.DotOp
    update: tuple[Operation, ...]
    rescale: tuple[Operation, ...]
    late: bool  # whether the accumulator waits for the next turn to be rescaled

    @staticmethod
    def of(op: scf.ForOp) -> _Loop:
        (_, first), (stage, rescale), _ = gluon.clusters(op.body)
        scores, product = (each for each in op.body if isinstance(each, tensor.DotOp))
        loads = loads_of(op)
        update = tuple(each for each in first if not moved_by(each))
        return _Loop(op, loads["keys"], loads["values"], scores, product, update, tuple(rescale), stage == 1)

    @property
    def acc_position(self) -> int:
        """Where the accumulator is among the carried values."""
        return self.op.yielded.index(self.product.out)


class _Variables(Variables):
    """The loops hand all carried values on: they share variables throughout. So do factors that the next turn reads,
    and nothing else has their variable."""

    def __init__(self, body: Region, names: PythonNames, loops: Sequence[_Loop]) -> None:
        self._loops = loops
        late = [op for loop in loops if loop.late for op in loop.rescale]
        self._held = [op.factor for op in late if isinstance(op, gluon.RescaleOp)]
        super().__init__(body, names)

    def _choose_inlined(self, region: Region, length: dict[Value, int]) -> None:
        super()._choose_inlined(region, length)
        self.inlined.difference_update(value.op for value in self._held if value.op is not None)

    def _join(self, a: Value, b: Value, always: bool = False) -> bool:
        held = any(value in self._held for value in (*self.members(a), *self.members(b)))
        return (always or not held) and super()._join(a, b, always)

    def _coalesce(self, body: Region) -> None:
        for factor in self._held[1:]:
            self._join(self._held[0], factor, always=True)
        for one, following in zip(self._loops, self._loops[1:]):
            for result, argument in zip(one.op.results, following.op.iter_args, strict=True):
                self._join(result, argument, always=True)
        super()._coalesce(body)


class SoftmaxKernelWriter(SpecializedWriter):
    """Writes loops of product, row-wise update, product."""

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        self.turns = [_Loop.of(op) for op in launch.body if isinstance(op, scf.ForOp)]
        first = self.turns[0]
        (self.query,) = [op for op in launch.body if isinstance(op, triton.LoadBlockOp) and op.ring == "query"]
        self.columns, self.width = first.scores.out.shape[1], first.product.out.shape[1]
        self.stages = first.op.num_stages
        self.late = first.late
        if any(isinstance(op, gluon.RescaleOp) and op.skip for loop in self.turns for op in loop.rescale):
            self.helpers = (api.rescaled(self.width),)
        schedule = schedule_of(launch)
        self.packs, self.in_registers = schedule.packed, schedule.query_in_registers
        if self.packs:
            self.helpers = (*self.helpers, api.packed(first.product.a.dtype))
        super().__init__(launch, module_names)

    # Names

    def make_layouts(self, module_names: set[str]) -> Layouts:
        dtype = self.query.out.dtype

        def define(wanted: str, text: str) -> str:
            return self.define(module_names, wanted, text)

        scores = define("SCORES", accumulator_layout(self.columns, dtype))
        wide = accumulator_layout(self.width, dtype)
        out = scores if self.width == self.columns else define("OUT", wide)
        rows = define("ROWS", f"gl.SliceLayout(1, {scores})")
        self.query_layout = define("QUERY", f"gl.DotOperandLayout(operand_index=0, parent={scores}, k_width=2)")
        self.weights_layout = self.query_layout
        if out != scores:
            self.weights_layout = define("WEIGHTS", f"gl.DotOperandLayout(operand_index=0, parent={out}, k_width=2)")
        number = ROWS_OF_CONSUMER
        return Layouts({(number, self.columns): scores, (number, self.width): out}, {number: rows})

    def make_variables(self) -> Variables:
        return _Variables(self.launch.body, self.names, self.turns)

    def claim_names(self) -> None:
        claim = self.names.claim
        first = self.turns[0]
        names = {op.ring: self.variables.name(op.out) for op in (self.query, first.keys, first.values)}
        self.q = names["query"]
        self.rings = {ring: claim(f"{name}_ring") for ring, name in names.items()}
        self.full = {ring: claim(f"{name}_full") for ring, name in names.items()}
        self.empty = {ring: claim(f"{name}_empty") for ring, name in names.items()}
        self.stage = {ring: claim(f"{names[ring]}_stage") for ring in ("keys", "values")}
        self.phase = {ring: claim(f"{names[ring]}_phase") for ring in ("keys", "values")}
        self.claim_out_buffers()
        self.out_in_query = any(op.ring == "query" for op in self.box_stores())
        self.operand_name = claim(f"{first.product.a.name or 'weights'}_operand")
        self.packed = claim(f"{first.product.a.name or 'weights'}_packed") if self.packs else ""
        self.starts = [claim("start") for _ in self.turns]

    def loaded(self) -> list[str]:
        first = self.turns[0]
        return list(dict.fromkeys(self.descriptor(op) for op in (self.query, first.keys, first.values)))

    def statement(self, op: Operation) -> None:
        if op is self.query:
            self._receive_query()
        else:
            super().statement(op)

    # The producer

    def producer(self, name: str) -> list[str]:
        query = self.query
        starts = [*query.starts, *(v for loop in self.turns for v in (*loop.keys.starts, *loop.values.starts))]
        bounds = [value for loop in self.turns for value in loop.op.operands[:2]]
        needed = needed_for([*starts, *bounds])
        by_group = self.by_group(needed)
        stage, phase = self.stage["keys"], self.phase["keys"]
        self.line(f"{stage} = 0")
        self.line(f"{phase} = 1  # the first turn of an empty place does not wait")
        if self.item is not None:
            self.line(f"{self.turn} = 1")
        self.items()
        self.needed_ops([op for op in self.ops_before if op not in by_group], needed)
        with self.under(f"for {self.consumer} in gl.static_range({self.warp_groups}):"):
            self.needed_ops(self.ops_before, by_group)
            self.load_box(query, self.consumer, self.turn if self.item is not None else "1")
        if self.item is not None:
            self.line(f"{self.turn} ^= 1")
        for loop in self.turns:
            with self.range_of(loop.op):
                for box in (loop.keys, loop.values):
                    self.needed_ops(loop.op.body, needed_for(box.starts))
                    self.load_box(box, stage, phase)
                self.line(f"{stage}, {phase} = _advance({stage}, {phase}, {self.stages})")
        return self.producer_function(name)

    # The consumers

    def consumers(self, name: str) -> list[str]:
        for ring in ("keys", "values"):
            self.line(f"{self.stage[ring]} = 0")
            self.line(f"{self.phase[ring]} = 0")
        if self.item is not None:
            self.line(f"{self.turn} = 0")
        self.items()
        self.ops(self.ops_before)
        self.assign(self.turns[0].op.iter_args, self.turns[0].op.inits)
        with self._if_any_tile():
            self._first_tile()
            for number, loop in enumerate(self.turns):
                self._rest_of(loop, self.starts[number])
            self._await("values")
            if self.late:
                self._rescale(self.turns[-1])
            self._issue_product(self.turns[-1])
            self._finish_product(self.turns[-1])
        if not self.in_registers and not self.out_in_query:
            self.release("query", self.consumer)
        self.ops(self.ops_after)
        if self.out_in_query:
            self.line("tma.store_wait(0)")
            self.release("query", self.consumer)
        return self.consumer_function(name)

    def _receive_query(self) -> None:
        self.origin(self.query)
        turn = self.turn if self.item is not None else "0"
        place = self.operand(self.query.out, self.consumer)
        self.line(f"mbarrier.wait({self.full['query']}.index({self.consumer}), {turn})")
        if self.item is not None:
            self.line(f"{self.turn} ^= 1")
        if self.in_registers:
            self.line(f"{self.q} = {place}.load({self.query_layout})")
            if not self.out_in_query:
                self.release("query", self.consumer)
        else:
            self.line(f"{self.q} = {place}")

    def _next(self, ring: str) -> None:
        """Release the ring's tile and go on to the next."""
        stage, phase = self.stage[ring], self.phase[ring]
        self.release(ring, stage)
        self.line(f"{stage}, {phase} = _advance({stage}, {phase}, {self.stages})")

    def _await(self, ring: str) -> None:
        self.line(f"mbarrier.wait({self.full[ring]}.index({self.stage[ring]}), {self.phase[ring]})")

    def _issue_scores(self, loop: _Loop) -> None:
        keys = self.operand(loop.scores.b, self.stage["keys"])
        scores = self.name(loop.scores.out)
        self.origin(loop.scores)
        self.line(
            f"{scores} = warpgroup_mma({self.q}, {keys}, {self.zeros(loop.scores.out)}, use_acc=False, is_async=True)"
        )

    def _issue_product(self, loop: _Loop) -> None:
        values = self.operand(loop.product.b, self.stage["values"])
        acc = self._accumulator(loop)
        self.origin(loop.product)
        if self.packs:
            self.line(f"{self.operand_name} = _unpacked({self.packed}, {self.weights_layout})")
        self.line(f"{acc} = warpgroup_mma({self.operand_name}, {values}, {acc}, is_async=True)")

    def _accumulator(self, loop: _Loop) -> str:
        return self.name(loop.op.body.args[1 + loop.acc_position])

    def _await_scores(self, loop: _Loop, left: int) -> None:
        scores = self.name(loop.scores.out)
        if self.in_registers:  # ptxas may reuse the registers of operands that no wait mentions
            self.line(f"{scores}, {self.q} = warpgroup_mma_wait({left}, deps=[{scores}, {self.q}])")
        else:
            self.line(f"{scores} = warpgroup_mma_wait({left}, deps=[{scores}])")
        self._next("keys")

    def _finish_product(self, loop: _Loop) -> None:
        acc, operand = self._accumulator(loop), self.operand_name
        self.line(f"{acc}, {operand} = warpgroup_mma_wait(0, deps=[{acc}, {operand}])")
        self._next("values")

    def _rescale(self, loop: _Loop) -> None:
        """What comes between the accumulator's old value and the next product."""
        self.ops(loop.rescale)
        acc, new = self._accumulator(loop), loop.product.accumulator
        if new.op in self.variables.inlined or not self.variables.same(new, loop.op.body.args[1 + loop.acc_position]):
            self.line(f"{acc} = {self.expressions.text(new)}")

    def _hand_on(self, loop: _Loop) -> None:
        """The product's left operand, and the values that are carried on."""
        weights = self.expressions.text(loop.product.a)
        if self.packs:
            self.line(f"{self.packed} = _packed({weights})")
        else:
            self.line(f"{self.operand_name} = gl.convert_layout({weights}, {self.weights_layout})")
        yielded = loop.op.yielded
        others = [number for number in range(len(yielded)) if number != loop.acc_position]
        self.assign([loop.op.body.args[1 + number] for number in others], [yielded[number] for number in others])

    def _tile_count(self, loop: _Loop) -> int | None:
        """How many tiles a loop has, where its bounds are constants."""
        lower, upper = (constant_of(value) for value in loop.op.operands[:2])
        return None if lower is None or upper is None else max(0, int(upper) - int(lower))

    def _runs(self, loop: _Loop) -> str:
        lower, upper = (self.expressions.value(value) for value in loop.op.operands[:2])
        return f"{lower.at(5)} < {upper.at(5)}"

    def _if_any_tile(self) -> AbstractContextManager[None]:
        """A condition around everything, unless a loop certainly runs."""
        if any(self.schedule.runs):
            return nullcontext()
        return self.under(f"if {' or '.join(map(self._runs, self.turns))}:")

    def _first_tile(self) -> None:
        """Scores of the first tile, and the update of the loop that it belongs to."""
        first = self.turns[0]
        self._await("keys")
        self._issue_scores(first)
        self._await_scores(first, 0)
        self._update_first(list(enumerate(self.turns)))

    def _update_first(self, left: Sequence[tuple[int, _Loop]]) -> None:
        (number, loop), *later = left
        certain = self.schedule.runs[number] or not later
        with nullcontext() if certain else self.under(f"if {self._runs(loop)}:"):
            lower = self.expressions.value(loop.op.lower)
            scores, first_scores = self.name(loop.scores.out), self.name(self.turns[0].scores.out)
            if scores != first_scores:
                self.line(f"{scores} = {first_scores}")
            self.line(f"{self.name(loop.op.index)} = {lower.text}")
            self.ops(loop.update)
            if not self.late:
                self._rescale(loop)
            self._hand_on(loop)
            self.line(f"{self.starts[number]} = {lower.at(5)} + 1")
            for place, later_loop in later:
                self.line(f"{self.starts[place]} = {self.expressions.text(later_loop.op.lower)}")
        if not certain:
            with self.under("else:"):
                self.line(f"{self.starts[number]} = {self.expressions.text(loop.op.upper)}")
                self._update_first(later)

    def _rest_of(self, loop: _Loop, start: str) -> None:
        if self._tile_count(loop) == 0:
            return
        self.origin(loop.op)
        with self.under(f"for {self.name(loop.op.index)} in range({start}, {self.expressions.text(loop.op.upper)}):"):
            self._await("keys")
            self._issue_scores(loop)
            if self.late:
                self._rescale(loop)
            self._await("values")
            self._issue_product(loop)
            self._await_scores(loop, 1)
            self.ops(loop.update)
            self._finish_product(loop)
            if not self.late:
                self._rescale(loop)
            self._hand_on(loop)

    # The entry

    def entry(self, name: str) -> list[str]:
        first = self.turns[0]
        for op, places in ((self.query, self.warp_groups), (first.keys, self.stages), (first.values, self.stages)):
            self.allocate(self.rings[op.ring], op, places)
        self.allocate_results()
        for ring in ("query", "keys", "values"):
            places, readers = (self.warp_groups, 1) if ring == "query" else (self.stages, self.warp_groups)
            self.line(f"{self.full[ring]} = _barriers({places}, 1)")
            self.line(f"{self.empty[ring]} = _barriers({places}, {readers})")
        self.start(name)
        return self.function(name, map(self.argument, self.launch.body.args))
