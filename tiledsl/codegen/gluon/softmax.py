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

from tiledsl.analysis.gluon.plan import query_in_registers
from tiledsl.analysis.gluon.softmax_loops import SoftmaxLoop, SoftmaxLoops, find_softmax_loops
from tiledsl.analysis.ranges import Ranges
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.expressions import Layouts
from tiledsl.codegen.gluon.writer import SpecializedWriter, accumulator_layout, dependents, needed_for
from tiledsl.codegen.names import PythonNames
from tiledsl.codegen.variables import Variables
from tiledsl.dialects import gluon, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import ELEMENTS


class _Variables(Variables):
    """The loops hand all carried values on: they share variables throughout. So do factors that the next turn reads,
    and nothing else has their variable."""

    def __init__(self, body: Region, names: PythonNames, found: SoftmaxLoops) -> None:
        self._found = found
        self._held = late_factors(found)
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
        for one, following in zip(self._found.loops, self._found.loops[1:]):
            for result, argument in zip(one.op.results, following.op.body.args[1:], strict=True):
                self._join(result, argument, always=True)
        super()._coalesce(body)


class SoftmaxKernelWriter(SpecializedWriter):
    """Writes loops of product, row-wise update, product."""

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        self.found = found = _schedule(find_softmax_loops(launch.body))
        self.stages = found.loops[0].op.num_stages
        parts = next(int(op.parts) for op in launch.body if isinstance(op, gluon.WarpGroupIdOp))
        self.late = bool(late_factors(found))
        self.ranges = Ranges.around(launch)
        if any(isinstance(op, gluon.RescaleOp) and op.skip for loop in found.loops for op in loop.rescale):
            self.helpers = (api.rescaled(found.width),)
        weights = found.loops[0].product.a.dtype
        self.packs = parts > 2 and ELEMENTS[weights].bits == 16
        if self.packs:
            self.helpers = (*self.helpers, api.packed(weights))
        self.in_registers = query_in_registers(found.columns, found.depth, found.width, parts, None)
        super().__init__(launch, module_names)

    # Names

    def make_layouts(self, module_names: set[str]) -> Layouts:
        found = self.found

        def define(wanted: str, text: str) -> str:
            return self.define(module_names, wanted, text)

        scores = define("SCORES", accumulator_layout(found.columns, found.query.out.dtype))
        wide = accumulator_layout(found.width, found.query.out.dtype)
        out = scores if found.width == found.columns else define("OUT", wide)
        rows = define("ROWS", f"gl.SliceLayout(1, {scores})")
        self.query_layout = define("QUERY", f"gl.DotOperandLayout(operand_index=0, parent={scores}, k_width=2)")
        self.weights_layout = self.query_layout
        if out != scores:
            self.weights_layout = define("WEIGHTS", f"gl.DotOperandLayout(operand_index=0, parent={out}, k_width=2)")
        return Layouts(scores, out, rows, found.columns, found.width)

    def make_variables(self) -> Variables:
        return _Variables(self.launch.body, self.names, self.found)

    def claim_names(self) -> None:
        claim = self.names.claim
        first = self.found.loops[0]
        q, k, v = (self.variables.name(op.out) for op in (self.found.query, first.keys, first.values))
        self.q, self.k, self.v = q, k, v
        self.rings = {name: claim(f"{name}_ring") for name in (q, k, v)}
        self.full = {name: claim(f"{name}_full") for name in (q, k, v)}
        self.empty = {name: claim(f"{name}_empty") for name in (q, k, v)}
        self.stage = {name: claim(f"{name}_stage") for name in (k, v)}
        self.phase = {name: claim(f"{name}_phase") for name in (k, v)}
        self.claim_out_buffers(op for op in self.box_stores() if not op.in_query)
        self.out_in_query = any(op.in_query for op in self.box_stores())
        self.operand = claim(f"{first.product.a.name or 'weights'}_operand")
        self.packed = claim(f"{first.product.a.name or 'weights'}_packed") if self.packs else ""
        self.starts = [claim("start") for _ in self.found.loops]

    def box_stores(self) -> list[gluon.StoreBoxOp]:
        return [op for op in self.found.after if isinstance(op, gluon.StoreBoxOp)]

    def loaded(self) -> list[str]:
        first = self.found.loops[0]
        return list(dict.fromkeys(self.descriptor(op) for op in (self.found.query, first.keys, first.values)))

    def store_buffer(self, op: gluon.StoreBoxOp) -> str:
        return self.rings[self.q] if op.in_query else super().store_buffer(op)

    def statement(self, op: Operation) -> None:
        if op is self.found.query:
            self._receive_query()
        else:
            super().statement(op)

    # The producer

    def producer(self, name: str) -> list[str]:
        found = self.found
        offsets = [
            *found.query.offsets,
            *(v for loop in found.loops for v in (*loop.keys.offsets, *loop.values.offsets)),
        ]
        bounds = [value for loop in found.loops for value in loop.op.operands[:2]]
        needed = needed_for([*offsets, *bounds])
        by_part = dependents([op for op in self.launch.body if isinstance(op, gluon.WarpGroupIdOp)], needed)
        stage, phase = self.stage[self.k], self.phase[self.k]
        self.line(f"{stage} = 0")
        self.line(f"{phase} = 1  # the first turn of an empty place does not wait")
        if self.item is not None:
            self.line(f"{self.turn} = 1")
        self.items()
        self.needed_ops([op for op in found.before if op not in by_part], needed)
        self.line(f"for {self.consumer} in gl.static_range({self.parts}):")
        self.indent += "    "
        self.needed_ops(found.before, by_part)
        self.load_box(found.query, self.q, self.consumer, self.turn if self.item is not None else "1")
        self.indent = self.indent[:-4]
        if self.item is not None:
            self.line(f"{self.turn} ^= 1")
        for loop in found.loops:
            bounds_text = ", ".join(self.expressions.text(value) for value in loop.op.operands[:2])
            self.origin(loop.op)
            self.line(f"for {self.name(loop.op.index)} in range({bounds_text}):")
            self.indent += "    "
            for box, ring in ((loop.keys, self.k), (loop.values, self.v)):
                self.needed_ops(loop.op.body, needed_for(box.offsets))
                self.load_box(box, ring, stage, phase)
            self.line(f"{stage}, {phase} = _advance({stage}, {phase}, {self.stages})")
            self.indent = self.indent[:-4]
        arguments = [self.argument(value) for value in self.arguments]
        arguments += self.loaded()
        return self.function(name, [*arguments, *self.rings.values(), *self.full.values(), *self.empty.values()])

    # The consumers

    def consumers(self, name: str) -> list[str]:
        found = self.found
        for ring in (self.k, self.v):
            self.line(f"{self.stage[ring]} = 0")
            self.line(f"{self.phase[ring]} = 0")
        if self.item is not None:
            self.line(f"{self.turn} = 0")
        self.items()
        self.ops(found.before)
        self.assign(found.loops[0].op.body.args[1:], found.loops[0].op.inits)
        indented = self._if_any_tile()
        self._first_tile()
        for number, loop in enumerate(found.loops):
            self._rest_of(loop, self.starts[number])
        self._await_values()
        if self.late:
            self._rescale(found.loops[-1])
        self._issue_product(found.loops[-1])
        self._finish_product(found.loops[-1])
        if indented:
            self.indent = self.indent[:-4]
        if not self.in_registers and not self.out_in_query:
            self.release(self.q, self.consumer)
        self.ops(found.after)
        if self.out_in_query:
            self.line("tma.store_wait(0)")
            self.release(self.q, self.consumer)
        self.indent = "    "
        if self.out_buffers:
            self.line("tma.store_wait(0)")
        arguments = [f"{self.consumer}: gl.constexpr", *(self.argument(value) for value in self.arguments)]
        arguments += [*self.stored(), *self.out_buffers.values()]
        return self.function(name, [*arguments, *self.rings.values(), *self.full.values(), *self.empty.values()])

    def _receive_query(self) -> None:
        self.origin(self.found.query)
        turn = self.turn if self.item is not None else "0"
        place = self.matrix(self.rings[self.q], self.consumer, self.found.query)
        self.line(f"mbarrier.wait({self.full[self.q]}.index({self.consumer}), {turn})")
        if self.item is not None:
            self.line(f"{self.turn} ^= 1")
        if self.in_registers:
            self.line(f"{self.q} = {place}.load({self.query_layout})")
            if not self.out_in_query:
                self.release(self.q, self.consumer)
        else:
            self.line(f"{self.q} = {place}")

    def _next(self, ring: str) -> None:
        """Release the ring's tile and go on to the next."""
        stage, phase = self.stage[ring], self.phase[ring]
        self.release(ring, stage)
        self.line(f"{stage}, {phase} = _advance({stage}, {phase}, {self.stages})")

    def _await(self, ring: str) -> None:
        self.line(f"mbarrier.wait({self.full[ring]}.index({self.stage[ring]}), {self.phase[ring]})")

    def _await_values(self) -> None:
        self._await(self.v)

    def _issue_scores(self, loop: SoftmaxLoop) -> None:
        shape = loop.scores.out.shape
        keys = self.matrix(self.rings[self.k], self.stage[self.k], loop.keys) + ".permute((1, 0))"
        scores = self.name(loop.scores.out)
        zeros = f"gl.zeros(({shape[0]}, {shape[1]}), gl.float32, {self.layouts.scores})"
        self.origin(loop.scores)
        self.line(f"{scores} = warpgroup_mma({self.q}, {keys}, {zeros}, use_acc=False, is_async=True)")

    def _issue_product(self, loop: SoftmaxLoop) -> None:
        values = self.matrix(self.rings[self.v], self.stage[self.v], loop.values)
        acc = self._accumulator(loop)
        self.origin(loop.product)
        if self.packs:
            self.line(f"{self.operand} = _unpacked({self.packed}, {self.weights_layout})")
        self.line(f"{acc} = warpgroup_mma({self.operand}, {values}, {acc}, is_async=True)")

    def _accumulator(self, loop: SoftmaxLoop) -> str:
        return self.name(loop.op.body.args[1 + loop.carried])

    def _await_scores(self, loop: SoftmaxLoop, left: int) -> None:
        scores = self.name(loop.scores.out)
        if self.in_registers:  # ptxas may reuse the registers of operands that no wait mentions
            self.line(f"{scores}, {self.q} = warpgroup_mma_wait({left}, deps=[{scores}, {self.q}])")
        else:
            self.line(f"{scores} = warpgroup_mma_wait({left}, deps=[{scores}])")
        self._next(self.k)

    def _finish_product(self, loop: SoftmaxLoop) -> None:
        acc, operand = self._accumulator(loop), self.operand
        self.line(f"{acc}, {operand} = warpgroup_mma_wait(0, deps=[{acc}, {operand}])")
        self._next(self.v)

    def _rescale(self, loop: SoftmaxLoop) -> None:
        """What comes between the accumulator's old value and the next product."""
        self.ops(loop.rescale)
        acc, new = self._accumulator(loop), loop.product.accumulator
        if new.op in self.variables.inlined or not self.variables.same(new, loop.op.body.args[1 + loop.carried]):
            self.line(f"{acc} = {self.expressions.text(new)}")

    def _hand_on(self, loop: SoftmaxLoop) -> None:
        """The product's left operand, and the values that are carried on."""
        weights = self.expressions.text(loop.product.a)
        if self.packs:
            self.line(f"{self.packed} = _packed({weights})")
        else:
            self.line(f"{self.operand} = gl.convert_layout({weights}, {self.weights_layout})")
        yielded = loop.op.body.terminator.operands
        rest = [number for number in range(len(yielded)) if number != loop.carried]
        self.assign([loop.op.body.args[1 + number] for number in rest], [yielded[number] for number in rest])

    def _tile_count(self, loop: SoftmaxLoop) -> int | None:
        """How many tiles a loop has, where its bounds are constants."""
        lower, upper = (constant_of(value) for value in loop.op.operands[:2])
        return None if lower is None or upper is None else max(0, int(upper) - int(lower))

    def _runs(self, loop: SoftmaxLoop) -> str:
        lower, upper = (self.expressions.value(value) for value in loop.op.operands[:2])
        return f"{lower.at(5)} < {upper.at(5)}"

    def _certainly_runs(self, loop: SoftmaxLoop) -> bool:
        return self.ranges.below(loop.op.lower, loop.op.upper)

    def _if_any_tile(self) -> bool:
        """A condition around everything, unless a loop certainly runs."""
        loops = self.found.loops
        if any(map(self._certainly_runs, loops)):
            return False
        self.line(f"if {' or '.join(map(self._runs, loops))}:")
        self.indent += "    "
        return True

    def _first_tile(self) -> None:
        """Scores of the first tile, and the update of the loop that it belongs to."""
        loops = self.found.loops
        first = loops[0]
        self._await(self.k)
        self._issue_scores(first)
        self._await_scores(first, 0)
        self._update_first(list(enumerate(loops)))

    def _update_first(self, left: Sequence[tuple[int, SoftmaxLoop]]) -> None:
        (number, loop), *rest = left
        certain = self._certainly_runs(loop) or not rest
        indent = self.indent
        if not certain:
            self.line(f"if {self._runs(loop)}:")
            self.indent += "    "
        lower = self.expressions.value(loop.op.lower)
        scores, made = self.name(loop.scores.out), self.name(self.found.loops[0].scores.out)
        if scores != made:
            self.line(f"{scores} = {made}")
        self.line(f"{self.name(loop.op.index)} = {lower.text}")
        self.ops(loop.update)
        if not self.late:
            self._rescale(loop)
        self._hand_on(loop)
        self.line(f"{self.starts[number]} = {lower.at(5)} + 1")
        for later, other in rest:
            self.line(f"{self.starts[later]} = {self.expressions.text(other.op.lower)}")
        if not certain:
            self.indent = indent
            self.line("else:")
            self.indent += "    "
            self.line(f"{self.starts[number]} = {self.expressions.text(loop.op.upper)}")
            self._update_first(rest)
            self.indent = indent

    def _rest_of(self, loop: SoftmaxLoop, start: str) -> None:
        if self._tile_count(loop) == 0:
            return
        self.origin(loop.op)
        self.line(f"for {self.name(loop.op.index)} in range({start}, {self.expressions.text(loop.op.upper)}):")
        self.indent += "    "
        self._await(self.k)
        self._issue_scores(loop)
        if self.late:
            self._rescale(loop)
        self._await_values()
        self._issue_product(loop)
        self._await_scores(loop, 1)
        self.ops(loop.update)
        self._finish_product(loop)
        if not self.late:
            self._rescale(loop)
        self._hand_on(loop)
        self.indent = self.indent[:-4]

    # The entry

    def entry(self, name: str) -> list[str]:
        found, first = self.found, self.found.loops[0]
        for op, ring, places in ((found.query, self.q, self.parts), (first.keys, self.k, self.stages),
                                 (first.values, self.v, self.stages)):  # fmt: skip
            self.allocate(self.rings[ring], op, places)
        for store, buffer in self.out_buffers.items():
            self.allocate(buffer, store, self.parts)
        for ring in (self.q, self.k, self.v):
            places, readers = (self.parts, 1) if ring == self.q else (self.stages, self.parts)
            self.line(f"{self.full[ring]} = _barriers({places}, 1)")
            self.line(f"{self.empty[ring]} = _barriers({places}, {readers})")
        self.start(name)
        return self.function(name, map(self.argument, self.launch.body.args))


def late_factors(found: SoftmaxLoops) -> list[Value]:
    """By what each loop's accumulator is multiplied in the next turn; empty where it has to be done in the same."""
    factors = [op.factor for loop in found.loops for op in loop.rescale if isinstance(op, gluon.RescaleOp)]
    each = zip(found.loops, factors)
    simple = len(factors) == len(found.loops) == sum(len(loop.rescale) for loop in found.loops)
    return factors if simple and all(factor.op in loop.update for loop, factor in each) else []


def _schedule(found: SoftmaxLoops) -> SoftmaxLoops:
    """Bring a loop's operations into the order in which they are written, which variables are shared by."""
    first = found.loops[0].op
    for op in found.before:
        op.move_before(first)
    for loop in found.loops:
        end = loop.op.body.terminator
        first_needed = needed_for([*loop.keys.offsets, loop.scores.a])
        ahead = [op for op in loop.update if op in first_needed]
        rest = [op for op in loop.update if op not in first_needed]
        transposed = loop.scores.b.op
        assert transposed is not None
        order: list[Operation] = [*ahead, loop.keys, transposed, loop.scores, *rest, *loop.rescale]
        for op in (*order, loop.values, loop.product):
            op.move_before(end)
    return found
