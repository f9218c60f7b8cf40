"""The text of a Gluon kernel of one loop of products: a deep ring of tiles, filled by one warp, and its consumers.

Where products are added to the loop's accumulator, one of them stays in flight while the next is issued, and its tiles
are released when the next is in flight. Where each product starts from zero, what is done with it runs while the
products of the other consumers do:

    for step in ...:  wait for tiles; issue product; load scales of step + 1; wait for product; release; update
"""

from __future__ import annotations

from tiledsl.codegen.expressions import ADD
from tiledsl.codegen.gluon.expressions import Layouts
from tiledsl.codegen.gluon.writer import SpecializedWriter, accumulator_layout, box_bytes, dependents, needed_for
from tiledsl.dialects import gluon, tensor, triton
from tiledsl.ir.core import Operation
from tiledsl.passes.canonicalize_control_flow import trip_count
from tiledsl.passes.tiled_products import TiledProduct, find_tiled_product


class ProductKernelWriter(SpecializedWriter):
    """Writes a loop of products."""

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        self.found = _schedule(find_tiled_product(launch.body))
        self.stages = self.found.op.num_stages
        super().__init__(launch, module_names)

    # Names

    def make_layouts(self, module_names: set[str]) -> Layouts:
        found = self.found
        sums = self.define(module_names, "SUMS", accumulator_layout(found.columns, found.left.out.dtype))
        rows = self.define(module_names, "ROWS", f"gl.SliceLayout(1, {sums})")
        return Layouts(sums, sums, rows, found.columns, found.columns)

    def claim_names(self) -> None:
        claim = self.names.claim
        self.left, self.right = (self.variables.name(op.out) for op in (self.found.left, self.found.right))
        self.rings = {name: claim(f"{name}_ring") for name in (self.left, self.right)}
        self.full, self.empty = {"": claim("full")}, {"": claim("empty")}
        self.stage, self.phase, self.before = claim("stage"), claim("phase"), claim("stage_before")
        self.claim_out_buffers(self.box_stores())

    def box_stores(self) -> list[gluon.StoreBoxOp]:
        return [op for op in self.found.after if isinstance(op, gluon.StoreBoxOp)]

    def loaded(self) -> list[str]:
        return list(dict.fromkeys(self.descriptor(op) for op in (self.found.left, self.found.right)))

    # The producer

    def producer(self, name: str) -> list[str]:
        found = self.found
        needed = needed_for([*found.left.offsets, *found.right.offsets, *found.op.operands[:2]])
        by_part = dependents([op for op in self.launch.body if isinstance(op, gluon.PartOp)], needed)
        self.line(f"{self.stage} = 0")
        self.line(f"{self.phase} = 1  # the first turn of an empty place does not wait")
        self.items()
        self.needed_ops([op for op in found.before if op not in by_part], needed)
        self._loop()
        self.line(f"mbarrier.wait({self.empty['']}.index({self.stage}), {self.phase})")
        size = self.parts * box_bytes(found.left) + box_bytes(found.right)
        self.line(f"mbarrier.expect({self.full['']}.index({self.stage}), {size})")
        inside = list(found.op.body)
        self.needed_ops([op for op in inside if op not in by_part], needed_for(found.right.offsets))
        self._load(found.right, self.right, self.stage)
        self.line(f"for {self.consumer} in gl.static_range({self.parts}):")
        self.indent += "    "
        self.needed_ops(found.before, by_part)
        self.needed_ops([op for op in inside if op in by_part], needed_for(found.left.offsets))
        self._load(found.left, self.left, self._place_of_part())
        self.indent = self.indent[:-4]
        self._advance()
        arguments = [*(self.argument(value) for value in self.arguments), *self.loaded(), *self.shared()]
        return self.function(name, arguments)

    def _loop(self) -> None:
        op = self.found.op
        bounds = ", ".join(self.expressions.text(value) for value in op.operands[:2])
        self.origin(op)
        self.line(f"for {self.name(op.index)} in range({bounds}):")
        self.indent += "    "

    def _advance(self) -> None:
        self.line(f"{self.stage}, {self.phase} = _advance({self.stage}, {self.phase}, {self.stages})")

    def _place_of_part(self) -> str:
        return self.stage if self.parts == 1 else f"{self.stage} * {self.parts} + {self.consumer}"

    def _load(self, op: gluon.LoadBoxOp, ring: str, place: str) -> None:
        self.origin(op)
        offsets = ", ".join(self.expressions.text(value) for value in op.offsets)
        full = f"{self.full['']}.index({self.stage})"
        self.line(f"_load_box({self.descriptor(op)}, [{offsets}], {full}, {self.rings[ring]}.index({place}))")

    # The consumers

    def consumers(self, name: str) -> list[str]:
        found = self.found
        self.line(f"{self.stage} = 0")
        self.line(f"{self.phase} = 0")
        self.items()
        self.ops(found.before)
        self.assign(found.op.body.args[1:], found.op.inits)
        if found.carried is None:
            self._fresh_products()
        else:
            self._added_products(found.carried)
        self.ops(found.after)
        self.indent = "    "
        if self.out_buffers:
            self.line("tma.store_wait(0)")
        arguments = [f"{self.consumer}: gl.constexpr", *(self.argument(value) for value in self.arguments)]
        arguments += [*self.stored(), *self.out_buffers.values(), *self.shared()]
        return self.function(name, arguments)

    def _fresh_products(self) -> None:
        """Products that start from zero, each awaited before what is done with it."""
        found = self.found
        part, (rows, columns) = self.name(found.product.out), found.product.out.shape
        self._loop()
        self._await_tiles()
        zeros = f"gl.zeros(({rows}, {columns}), gl.float32, {self.layouts.scores})"
        self.origin(found.product)
        self.line(f"{part} = warpgroup_mma({self._operands()}, {zeros}, use_acc=False, is_async=True)")
        self.ops(found.beside)
        self.line(f"{part} = warpgroup_mma_wait(0, deps=[{part}])")
        self.line(f"mbarrier.arrive({self.empty['']}.index({self.stage}), count=1)")
        self._advance()
        self.ops(found.update)
        self.assign(found.op.body.args[1:], found.op.body.terminator.operands)
        self.indent = self.indent[:-4]

    def _added_products(self, carried: int) -> None:
        """Products that are added up: when one is issued, the one before is awaited."""
        found = self.found
        arguments, yielded = found.op.body.args[1:], found.op.body.terminator.operands
        acc = self.name(arguments[carried])
        self.line(f"{self.before} = 0")
        self._loop()
        self._await_tiles()
        self.origin(found.product)
        self.line(f"{acc} = warpgroup_mma({self._operands()}, {acc}, is_async=True)")
        self.ops(found.beside)
        self.line(f"{acc} = warpgroup_mma_wait(1, deps=[{acc}])")
        index, lower, upper = (
            self.expressions.value(each).at(ADD) for each in (found.op.index, *found.op.operands[:2])
        )
        released = f"{self.empty['']}.index({self.before})"
        self.line(f"mbarrier.arrive({released}, count=1, pred={index} > {lower})")
        self.line(f"{self.before} = {self.stage}")
        self._advance()
        rest = [number for number in range(len(yielded)) if number != carried]
        self.assign([arguments[number] for number in rest], [yielded[number] for number in rest])
        self.indent = self.indent[:-4]
        self.line(f"{acc} = warpgroup_mma_wait(0, deps=[{acc}])")
        condition = "" if trip_count(found.op) else f", pred={lower} < {upper}"
        self.line(f"mbarrier.arrive({released}, count=1{condition})")

    def _await_tiles(self) -> None:
        self.line(f"mbarrier.wait({self.full['']}.index({self.stage}), {self.phase})")

    def _operands(self) -> str:
        found = self.found
        left = self.matrix(self.rings[self.left], self._place_of_part(), found.left)
        right = self.matrix(self.rings[self.right], self.stage, found.right)
        return f"{left}, {right}" + ".permute((1, 0))" * isinstance(found.product.b.op, tensor.TransposeOp)

    # The entry

    def entry(self, name: str) -> list[str]:
        found = self.found
        self.allocate(self.rings[self.left], found.left, self.stages * self.parts)
        self.allocate(self.rings[self.right], found.right, self.stages)
        for store, buffer in self.out_buffers.items():
            self.allocate(buffer, store, self.parts)
        self.line(f"{self.full['']} = _barriers({self.stages}, 1)")
        self.line(f"{self.empty['']} = _barriers({self.stages}, {self.parts})")
        self.start(name)
        return self.function(name, map(self.argument, self.launch.body.args))


def _schedule(found: TiledProduct) -> TiledProduct:
    """Bring the operations into the order in which they are written, which variables are shared by."""
    for op in found.before:
        op.move_before(found.op)
    end = found.op.body.terminator
    transposed = found.product.b.op
    boxes = needed_for([*found.left.offsets, *found.right.offsets])
    ahead = [op for op in found.beside if op in boxes]
    rest = [op for op in found.beside if op not in boxes]
    assert transposed is not None
    order: list[Operation] = [*ahead, found.left, found.right]
    if isinstance(transposed, tensor.TransposeOp):
        order.append(transposed)
    for op in (*order, found.product, *rest, *found.update):
        op.move_before(end)
    return found
