"""The source of a Gluon kernel with one loop of products: one warp fills a deep ring of tiles for the consumers.

Where products are added to the loop's accumulator, one of them stays in flight while the next is issued, and its tiles
are released once the next is in flight. Where each product starts from zero, two are in flight, and the first is used
while the second runs; if registers do not suffice for two, the products of the other consumers run meanwhile:

    for pair in ...:  issue product; issue product; wait for the first; update; wait for the second; update
    for step in ...:  issue product; load scales of step + 1; wait for product; update
"""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.analysis.gluon.slices import needed_for
from tiledsl.analysis.loops import trip_count
from tiledsl.codegen.expressions import ADD
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.expressions import Layouts
from tiledsl.codegen.gluon.writer import (
    SpecializedWriter,
    accumulator_layout,
    box_bytes,
    loads_of,
    moved_by,
    schedule_of,
)
from tiledsl.codegen.names import PythonNames
from tiledsl.codegen.variables import Variables
from tiledsl.dialects import gluon, scf, tensor, triton
from tiledsl.ir.core import Region, Value


class _Variables(Variables):
    """What belongs to a product in flight has a second variable, for the product that is in flight beside it."""

    def __init__(self, body: Region, names: PythonNames, own: Iterable[Value]) -> None:
        super().__init__(body, names)
        self.other = False  # whether second variables are meant
        self._own = {id(self.members(value)) for value in own}
        self._second: dict[int, str] = {}

    def name(self, value: Value) -> str:
        name = super().name(value)
        group = id(self.members(value))
        if not self.other or group not in self._own:
            return name
        if group not in self._second:
            self._second[group] = self.names.claim(f"{name}_other")
        return self._second[group]


class ProductKernelWriter(SpecializedWriter):
    """Writes a loop of products."""

    variables: _Variables

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        (self.loop,) = [op for op in launch.body if isinstance(op, scf.ForOp)]
        self.stages = self.loop.num_stages
        loads = loads_of(self.loop)
        self.left_load, self.right_load = loads["left"], loads["right"]
        (_, with_product), (_, self.update) = gluon.clusters(self.loop.body)
        (self.product,) = [op for op in with_product if isinstance(op, tensor.DotOp)]
        self.beside = [op for op in with_product if not moved_by(op)]
        self.in_pairs = schedule_of(launch).form == "paired"
        if self.in_pairs:
            self.helpers = (api.PINNED,)
        super().__init__(launch, module_names)

    # Names

    def make_layouts(self, module_names: set[str]) -> Layouts:
        shape = self.product.out.shape
        sums = self.define(module_names, "SUMS", accumulator_layout(shape[1], self.product.a.dtype))
        rows = self.define(module_names, "ROWS", f"gl.SliceLayout(1, {sums})")
        return Layouts({shape: sums}, {shape[0]: rows})

    def make_variables(self) -> Variables:
        beside = [value for op in self.beside for value in op.results]
        return _Variables(self.launch.body, self.names, [self.loop.index, self.product.out, *beside])

    def claim_names(self) -> None:
        claim = self.names.claim
        names = {op.ring: self.variables.name(op.out) for op in (self.left_load, self.right_load)}
        self.rings = {ring: claim(f"{name}_ring") for ring, name in names.items()}
        self.full, self.empty = {"": claim("full")}, {"": claim("empty")}
        self.stage, self.phase, self.before = claim("stage"), claim("phase"), claim("stage_before")
        self.claim_out_buffers()

    def loaded(self) -> list[str]:
        return list(dict.fromkeys(self.descriptor(op) for op in (self.left_load, self.right_load)))

    # The producer

    def producer(self, name: str) -> list[str]:
        left, right, loop = self.left_load, self.right_load, self.loop
        needed = needed_for([*left.starts, *right.starts, *loop.operands[:2]])
        by_group = self.by_group(needed)
        self.line(f"{self.stage} = 0")
        self.line(f"{self.phase} = 1  # the first turn of an empty place does not wait")
        self.items()
        self.needed_ops([op for op in self.ops_before if op not in by_group], needed)
        with self.range_of(loop):
            self.line(f"mbarrier.wait({self.empty['']}.index({self.stage}), {self.phase})")
            size = self.warp_groups * box_bytes(left) + box_bytes(right)
            self.line(f"mbarrier.expect({self.full['']}.index({self.stage}), {size})")
            inside = [op for op in loop.body if op in needed]
            self.needed_ops([op for op in inside if op not in by_group], needed)
            self._load(right, self.stage)
            with self.under(f"for {self.consumer} in gl.static_range({self.warp_groups}):"):
                self.needed_ops(self.ops_before, by_group)
                self.needed_ops(inside, by_group)
                self._load(left, self._place_of_group())
            self._advance()
        return self.producer_function(name)

    def _advance(self) -> None:
        self.line(f"{self.stage}, {self.phase} = _advance({self.stage}, {self.phase}, {self.stages})")

    def _place_of_group(self) -> str:
        return self.stage if self.warp_groups == 1 else f"{self.stage} * {self.warp_groups} + {self.consumer}"

    def _load(self, op: triton.LoadBlockOp, place: str) -> None:
        self.origin(op)
        offsets = ", ".join(self.expressions.text(value) for value in op.starts)
        full = f"{self.full['']}.index({self.stage})"
        self.line(f"_load_box({self.descriptor(op)}, [{offsets}], {full}, {self.rings[op.ring]}.index({place}))")

    # The consumers

    def consumers(self, name: str) -> list[str]:
        self.line(f"{self.stage} = 0")
        self.line(f"{self.phase} = 0")
        self.items()
        self.ops(self.ops_before)
        self.assign(self.loop.iter_args, self.loop.inits)
        steps = trip_count(self.loop)
        if self.in_pairs and steps:
            self._paired_products(steps)
        elif self.schedule.form == "added":
            self._added_products()
        else:
            self._fresh_products()
        self.ops(self.ops_after)
        return self.consumer_function(name)

    def _fresh_products(self) -> None:
        """Products that start from zero, each awaited before what is done with it."""
        with self.range_of(self.loop):
            self._issue_fresh()
            self._finish(0)
            self._release_stage()
            self._update()

    def _release_stage(self) -> None:
        """Release the stage's tiles and go on to the next."""
        self.release("", self.stage)
        self._advance()

    def _issue_fresh(self) -> None:
        """Wait for tiles, issue their product, and compute what does not need it."""
        self._await_tiles()
        self.origin(self.product)
        product, zeros = self.name(self.product.out), self.zeros(self.product.out)
        self.line(f"{product} = warpgroup_mma({self._operands()}, {zeros}, use_acc=False, is_async=True)")
        self.ops(self.beside)

    def _update(self) -> None:
        """What is done with a product, and the values that are carried on."""
        op = self.loop
        self.ops(self.update)
        self.assign(op.iter_args, op.yielded)
        if self.in_pairs:
            for value in op.iter_args:
                if value.dtype == "float32" and value.shape:
                    self.line(f"{self.name(value)} = _pinned({self.name(value)})")

    def _paired_products(self, steps: int) -> None:
        """Products that start from zero, two at a time: the first is made use of while the second is computed."""
        op = self.loop
        index, lower = self.name(op.index), self.expressions.value(op.lower)
        pair = self.names.claim("pair")
        self.origin(op)
        with self.under(f"for {pair} in range({steps // 2}):"):
            first = f"2 * {pair}"
            self.line(f"{index} = {first}" if lower.text == "0" else f"{index} = {lower.at(ADD)} + {first}")
            self._issue_fresh()
            self.line(f"{self.before} = {self.stage}")
            self._advance()
            self.variables.other = True
            self.line(f"{self.name(op.index)} = {index} + 1")
            self._issue_fresh()
            self.variables.other = False
            self._finish(1)
            self.release("", self.before)
            self._update()
            self.variables.other = True
            self._finish(0)
            self._release_stage()
            self._update()
            self.variables.other = False
        if steps % 2:
            self.line(f"{index} = {self.expressions.text(op.upper)} - 1")
            self._issue_fresh()
            self._finish(0)
            self._release_stage()
            self._update()

    def _finish(self, left: int) -> None:
        product = self.name(self.product.out)
        self.line(f"{product} = warpgroup_mma_wait({left}, deps=[{product}])")

    def _added_products(self) -> None:
        """Products that are added up: when one is issued, the one before is awaited."""
        loop = self.loop
        arguments, yielded = loop.iter_args, loop.yielded
        acc_position = arguments.index(self.product.accumulator)
        acc = self.name(arguments[acc_position])
        self.line(f"{self.before} = 0")
        with self.range_of(loop):
            self._await_tiles()
            self.origin(self.product)
            self.line(f"{acc} = warpgroup_mma({self._operands()}, {acc}, is_async=True)")
            self.ops(self.beside)
            self.line(f"{acc} = warpgroup_mma_wait(1, deps=[{acc}])")
            index, lower, upper = (self.expressions.value(each).at(ADD) for each in (loop.index, *loop.operands[:2]))
            released = f"{self.empty['']}.index({self.before})"
            self.line(f"mbarrier.arrive({released}, count=1, pred={index} > {lower})")
            self.line(f"{self.before} = {self.stage}")
            self._advance()
            self.ops(self.update)  # what else the loop carries
            others = [number for number in range(len(yielded)) if number != acc_position]
            self.assign([arguments[number] for number in others], [yielded[number] for number in others])
        self.line(f"{acc} = warpgroup_mma_wait(0, deps=[{acc}])")
        condition = "" if trip_count(loop) else f", pred={lower} < {upper}"
        self.line(f"mbarrier.arrive({released}, count=1{condition})")

    def _await_tiles(self) -> None:
        self.line(f"mbarrier.wait({self.full['']}.index({self.stage}), {self.phase})")

    def _operands(self) -> str:
        left = self.operand(self.product.a, self._place_of_group())
        return f"{left}, {self.operand(self.product.b, self.stage)}"

    # The entry

    def entry(self, name: str) -> list[str]:
        self.allocate(self.rings["left"], self.left_load, self.stages * self.warp_groups)
        self.allocate(self.rings["right"], self.right_load, self.stages)
        self.allocate_results()
        self.line(f"{self.full['']} = _barriers({self.stages}, 1)")
        self.line(f"{self.empty['']} = _barriers({self.stages}, {self.warp_groups})")
        self.start(name)
        return self.function(name, map(self.argument, self.launch.body.args))
