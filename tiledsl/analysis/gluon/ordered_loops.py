"""Recognition of loops of products that one group of warps runs in order, and how its warps divide each product.

`find_ordered_loops` looks at a kernel in which operands of products are loaded as blocks (`tile.load_block`, or
`triton.load_block` once it is a launch). In its loops, of which several may follow each other, stand

    blocks that only products read, loaded in the loop or before the first one
    products of two blocks, or of a computed tile and a block, from zero or added to any tile
    operations on tiles of products' shapes, and on values for each row or column of them

Where a product has fewer rows than the warps' instructions have together, its columns are divided as well, so that no
two warps compute the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tiledsl.analysis.dependence import operands_of, reached
from tiledsl.analysis.gluon.schedule import LOADS, ROWS_OF_WARPS, LoadBlock, block, is_stored, shared
from tiledsl.analysis.gluon.softmax_loops import (
    EXTENTS,
    HALVES,
    NotRecognised,
    check_extent,
    check_rows,
    check_supported,
    dependent_on,
)
from tiledsl.dialects import gluon, scf, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.types import ELEMENTS, TensorType

WARPS = {4: 1, 8: 2}  # that a kernel has, and their groups, which share an instruction's rows
TURNS, ITEM = "turns", "item"  # the rings of blocks that loops load, and of those loaded before


@dataclass(frozen=True)
class OrderedLoop:
    """One loop: its products, and the blocks that it loads in the order in which products need them."""

    op: scf.ForOp
    products: tuple[tensor.DotOp, ...]
    loads: tuple[LoadBlock, ...]


@dataclass(frozen=True)
class OrderedLoops:
    """All of a kernel: its loops, and the blocks that are loaded once, before them."""

    loops: tuple[OrderedLoop, ...]
    kept: tuple[LoadBlock, ...]

    @property
    def products(self) -> Iterator[tensor.DotOp]:
        return (product for loop in self.loops for product in loop.products)

    @property
    def tiles(self) -> list[tuple[int, ...]]:
        """The shapes of products."""
        return list(dict.fromkeys(product.out.shape for product in self.products))

    @property
    def computed(self) -> list[Value]:
        """Left operands that are no blocks."""
        return list(dict.fromkeys(each.a for each in self.products if block(each.a) is None))

    @property
    def rings(self) -> dict[LoadBlock, LoadBlock]:
        """For each block that a loop loads the one whose place it has: the same box of the same buffer, which an
        earlier loop loads."""
        return shared([{load: (load.operands[0], gluon.box(load)) for load in loop.loads} for loop in self.loops])

    def buffers(self, warps: int) -> dict[Value, Value]:
        """For each computed operand that passes through shared memory, since warps that share its rows hold other
        columns of it, the one whose place it has: a tile like it, of an earlier loop."""
        stored = [[each.a for each in loop.products if is_stored(each, warps)] for loop in self.loops]
        return shared([{value: value.type for value in values} for values in stored])


def is_computed_twice(body: Region, warps: int) -> bool:
    """Whether warps compute the same rows in Triton, which gives a product whose result goes into another one no warps
    along the columns."""
    loops = [op.body for op in body if isinstance(op, scf.ForOp)]
    products = [op for loop in loops for op in loop if isinstance(op, tensor.DotOp)]
    few = [op for op in products if ROWS_OF_WARPS <= op.out.shape[0] < 16 * warps]
    after = (each for op in few for loop in loops if op.parent is loop for each in dependent_on([op.out], loop))
    return any(isinstance(each, tensor.DotOp) for each in after)


def ordered_loops(body: Region) -> OrderedLoops:
    """The loops of a kernel that has been found to be such a one."""
    loops = []
    for op in body:
        if isinstance(op, scf.ForOp):
            products = tuple(each for each in op.body if isinstance(each, tensor.DotOp))
            blocks = (block(value) for product in products for value in (product.a, product.b))
            loads = dict.fromkeys(each for each in blocks if each is not None and each.parent is op.body)
            loops.append(OrderedLoop(op, products, tuple(loads)))
    return OrderedLoops(tuple(loops), tuple(op for op in body if isinstance(op, LOADS)))


def find_ordered_loops(body: Region) -> OrderedLoops:
    """The structure of a kernel's body. Raises NotRecognised with the reason."""
    check_supported(body, branches_read=True)
    products = [op for op in body.walk() if isinstance(op, tensor.DotOp)]
    if len(products) < 2:
        raise NotRecognised(f"{len(products)} products are not several")
    for product in products:
        if product.parent is body:
            raise NotRecognised("a product outside of the loops", product)
        _check_product(product)
    ordered = ordered_loops(body)
    place = {op: number for number, op in enumerate(body)}
    fors = [place[loop.op] for loop in ordered.loops]
    for op in body:
        if op in ordered.kept and place[op] > fors[0]:
            raise NotRecognised("a product's operand is loaded after a loop", op)
        if op.effects & Effect.WRITE and place[op] < fors[-1]:
            raise NotRecognised("memory is written before the last loop", op)
    for loop in ordered.loops:
        _check_loop(loop)
    loads = [*ordered.kept, *ordered.rings]
    for load in loads:
        _check_extents(load.out.shape, load)
        _check_produced(load.starts, load)
    transposes = {product.b.op for product in products if isinstance(product.b.op, tensor.TransposeOp)}
    check_rows(body, ordered.tiles, {*loads, *transposes})
    return ordered


def _check_loop(loop: OrderedLoop) -> None:
    if not loop.products:
        raise NotRecognised("a loop without products", loop.op)
    if not loop.loads:
        raise NotRecognised("a loop that loads no operand of a product", loop.op)
    if constant_of(loop.op.step) != 1:
        raise NotRecognised("a loop's step is not 1", loop.op)
    for op in loop.op.body.walk():
        if op.effects & Effect.WRITE:
            raise NotRecognised(f"{op.name} in the loop", op)
    _check_produced(loop.op.operands[:2], loop.op)
    changing = dependent_on([*loop.op.body.args, *(load.out for load in loop.loads)], loop.op.body)
    for product in loop.products:
        if block(product.a) is None and product.a.op not in changing:
            raise NotRecognised("a product's left operand is computed, but the same in each turn", product)


def _check_product(dot: tensor.DotOp) -> None:
    if dot.out.shape[0] % ROWS_OF_WARPS:
        raise NotRecognised(f"{dot.out.shape[0]} rows are not a multiple of {ROWS_OF_WARPS}", dot)
    _check_extents(dot.out.shape, dot)
    if dot.a.dtype not in HALVES or dot.b.dtype != dot.a.dtype or dot.out.dtype != "float32":
        raise NotRecognised(f"a product of {dot.a.dtype} and {dot.b.dtype} added up in {dot.out.dtype}", dot)
    if block(dot.b) is None:
        raise NotRecognised("a product's right operand is not a loaded tile", dot)
    if isinstance(dot.a.op, tensor.TransposeOp):
        raise NotRecognised("a product's left operand is transposed", dot)
    if block(dot.a) is None and (dot.a.op is None or dot.a.op.parent is not dot.parent):
        raise NotRecognised("a product's left operand is not computed beside it", dot)


def _check_extents(shape: Sequence[int], op: Operation) -> None:
    for extent, extents in zip(shape, (EXTENTS, (*EXTENTS, 512)), strict=True):
        check_extent(extent, extents, op)


def _check_produced(values: Iterable[Value], op: Operation) -> None:
    """Raises NotRecognised for what a producer would need a loop's results, or what it carries, to compute."""
    for value in reached(values, operands_of):
        loop = value.owner.parent if isinstance(value.owner, Region) else None
        carried = isinstance(loop, scf.ForOp) and value is not loop.index
        if carried or isinstance(value.type, TensorType) or isinstance(value.op, (scf.ForOp, scf.IfOp)):
            raise NotRecognised("where a tile is loaded from depends on what is computed", op)


def live_registers(loop: OrderedLoop, warps: int) -> int:
    """The most registers of a thread that tiles take at one time in a turn of a loop."""
    body = loop.op.body
    read = {op: [value for each in op.walk() for value in each.operands if _takes_registers(value)] for op in body}
    last = {value: op for op, values in read.items() for value in values}
    inside = {*body.args, *(value for op in body for value in op.results)}
    live = {value for value in last if value not in inside or value in loop.op.iter_args}
    sizes = [_registers(live, warps)]
    for op in body:
        live -= {value for value in read[op] if value in inside and last[value] is op}
        live |= {value for value in op.results if value in last}
        sizes.append(_registers(live, warps))
    return max(sizes)


def _takes_registers(value: Value) -> bool:
    is_tile = isinstance(value.type, TensorType) and len(value.shape) == 2 and 1 not in value.shape
    return is_tile and block(value) is None and constant_of(value) is None


def _registers(values: Iterable[Value], warps: int) -> int:
    bits = sum(math.prod(value.shape) * ELEMENTS[value.dtype].bits for value in values)
    return bits // (32 * 32 * warps)
