"""Which loops of tiles can be scheduled for Hopper, and what their kernel has of tiles; where they cannot, why not.

`find_tile_loops` looks at a kernel in which operands of products are loaded as blocks (`tile.load_block`). In its
loops, which follow each other or stand inside of loops without products, there are

    blocks that only products read, loaded in the loop or before the first one
    blocks that left operands are computed from, element by element, in registers
    products of two blocks, or of a computed tile, which may be transposed, and a block, from zero or added to any tile
    additions of tiles to memory, in any order, and stores to buffers that nothing reads
    operations on tiles of products' shapes, and on values for each row or column of them

Rows of products are divided among consumers, or all warps run the loops as one group; where a product then has fewer
rows than the warps' instructions have together, its columns are divided as well, so that no two warps compute the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiledsl.analysis.dependence import ancestors, operands_of, reached, read_by
from tiledsl.analysis.gluon.schedule import (
    ALWAYS,
    ROWS_OF_WARPS,
    Span,
    block,
    ending_in,
    in_order,
    is_stored,
    operand_places,
    prepared,
    shared,
)
from tiledsl.analysis.gluon.slices import needed_for, only_for_loads
from tiledsl.dialects import arith, gluon, scf, tensor, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.types import ELEMENTS, TensorType, is_float
from tiledsl.math_functions import MATH_FUNCTIONS

HALVES = ("float16", "bfloat16")
BYTES = ("float8_e4m3fn", "float8_e5m2")
EXTENTS = (16, 32, 64, 128, 256, 512)  # of tiles; only one group of warps has room for 512 columns
MOST_CONSUMERS = 3
WARPS = (4, 8)  # that one group has
ADDRESS_BITS = 64
ITEM = "item"  # the ring of blocks that are loaded before the loops
REDUCTIONS = frozenset({"sum", "max", "min"})
_ALLOWED = (
    arith.ConstantOp, arith.BinaryOp, arith.CmpOp, arith.SelectOp, arith.CastOp, arith.BitcastOp, arith.NegOp,
    arith.NotOp, arith.MathOp, tensor.IotaOp, tensor.ReshapeOp, tensor.ReduceOp, tensor.BroadcastOp,
    tensor.TransposeOp, tensor.DotOp,
    tile.LoadOp, tile.StoreOp, tile.LoadBlockOp, tile.StoreBlockOp, tile.AssumeOp,
    gluon.WarpGroupIdOp, gluon.WorkItemOp, gluon.LongestFirstOp, gluon.RescaleOp,
    scf.ForOp, scf.IfOp, scf.YieldOp,
    triton.ProgramIdOp, triton.AddPtrOp, triton.LoadOp, triton.StoreOp, triton.LoadBlockOp, triton.StoreBlockOp,
    tile.AtomicOp, triton.AtomicOp,
)  # fmt: skip


_OF_ROWS = (  # which of them a tile has
    arith.ConstantOp, arith.Elementwise, tensor.IotaOp, tensor.BroadcastOp, tensor.ReshapeOp, triton.AddPtrOp,
    tile.LoadOp, triton.LoadOp,
)  # fmt: skip


class NotRecognised(Exception):
    """Why a kernel cannot be scheduled; `op` is where."""

    def __init__(self, reason: str, op: Operation | None = None) -> None:
        super().__init__(reason)
        self.op = op


@dataclass(frozen=True)
class TileLoop:
    """One loop: its products, and the blocks that it loads in the order in which products need them."""

    op: scf.ForOp
    products: tuple[tensor.DotOp, ...]
    loads: tuple[gluon.TileLoad, ...]

    @property
    def late(self) -> tuple[tensor.DotOp, ...]:
        """The products that may wait until those of the next turn are on their way: sums of some whose left operands
        are computed from these, if nothing depends on what is added up but the sums. None if a turn needs one."""
        body = self.op.body
        after = dependent_on([product.out for product in self.products], body)
        late: set[Operation] = set()
        for argument, value in zip(self.op.iter_args, self.op.yielded):
            chain = ending_in(value)
            if not any(product.a.op in after for product in chain):
                continue
            summed = dependent_on([argument], body)
            if not summed.issuperset(chain) or any(op.has_effects for op in summed):
                return ()
            outside = [other for other in self.op.yielded if other is not value]
            if any(other.op in summed or other is argument for other in outside) or value.uses[body.terminator] > 1:
                return ()
            if any(each.a.op in summed or each in summed and each not in chain for each in self.products):
                return ()
            late.update(chain)
        needed = {product for product in self.products if product.a.op in after}
        return tuple(each for each in self.products if each in late) if needed <= late else ()

    @property
    def summed(self) -> tuple[Operation, ...]:
        """What comes between the carried sums and the late products that are added to them."""
        late = self.late
        outs = [product.out for product in late]
        carried = [arg for arg, value in zip(self.op.iter_args, self.op.yielded) if value in outs]
        dependent = dependent_on(carried, self.op.body)
        return tuple(op for op in self.op.body if op in dependent and op not in late)

    @property
    def of_tiles(self) -> tuple[tensor.DotOp, ...]:
        """The products that start from zero and need nothing that a turn computes: they keep the tensor cores busy
        while the others' operands are computed. None where a turn stores results, which must not come late."""
        if any(op.effects & Effect.WRITE and not is_addition(op) for op in self.op.body):
            return ()
        from_zero = (each for each in self.products if constant_of(each.accumulator) == 0)
        return tuple(each for each in from_zero if block(each.a) is not None)

    @property
    def issued(self) -> list[tensor.DotOp]:
        """The products in the order in which one group of warps issues them: first those that wait for none of the
        others."""
        waiting: set[Operation] = set()
        for product in self.products:
            before = product.accumulator.op if len(product.accumulator.uses) == 1 else None
            added = before if isinstance(before, tensor.DotOp) else None
            read = [product.a, product.b, *([] if added else [product.accumulator])]
            if added in waiting or any(value.op in self.products for value in reached(read, read_for)):
                waiting.add(product)
        return sorted(self.products, key=lambda each: each in waiting)

    def has_place(self, row: Operation) -> bool:
        """Whether a row arrives with a tile that no product reads later than the row first, and one does last."""
        issued = self.issued
        needed = [{each.op for each in reached(product.operands, read_for)} for product in issued]
        users = {user for value in row.results for user in value.uses}
        first = [next((n for n, ops in enumerate(needed) if user in ops), None) for user in users]
        if None in first:
            return False
        places = [n for n in first if n is not None]
        for load in self.loads:
            readers = [n for n, each in enumerate(issued) if load in (block(each.a), block(each.b))]
            if readers[0] <= min(places) and max(places) <= readers[-1]:
                return True
        return False

    def operands(self, warps: int, stages: int) -> dict[Value, Span]:
        """The computed operands that pass through shared memory, and when, if products are issued in order: by the
        numbers of products, in front of the first that needs one to the last that reads it."""
        issued = self.issued
        read = {in_order(each.a): n for n, each in enumerate(issued) if is_stored(each, warps)}
        if stages > 1:
            return dict.fromkeys(read, ALWAYS)
        needed = [{each.op for each in reached(product.operands, read_for)} for product in issued]
        return {
            value: (next(n for n, ops in enumerate(needed) if value.op in ops), last) for value, last in read.items()
        }

    @property
    def adds(self) -> bool:
        """Whether a turn adds a product to memory."""
        after = dependent_on([product.out for product in self.products], self.op.body)
        return any(is_addition(op) and op in after for op in self.op.body)

    @property
    def first_from_zero(self) -> tensor.DotOp | None:
        """The only product, if it starts from zero."""
        alone = self.products if len(self.products) == 1 else ()
        return next((each for each in alone if constant_of(each.accumulator) == 0), None)


@dataclass(frozen=True)
class TileLoops:
    """All of a kernel: its loops, and the blocks that are loaded once, before them."""

    loops: tuple[TileLoop, ...]
    kept: tuple[gluon.TileLoad, ...]

    @property
    def products(self) -> list[tensor.DotOp]:
        return [product for loop in self.loops for product in loop.products]

    @property
    def tiles(self) -> list[tuple[int, ...]]:
        """The shapes of products."""
        return list(dict.fromkeys(product.out.shape for product in self.products))

    @property
    def undivided(self) -> set[Operation]:
        """Right operands, which have no rows of the block, and what tells which rows are gathered for them."""
        found = {op for product in self.products for op in (block(product.b), product.b.op) if op is not None}
        places = {op for load in found if gluon.gathers(load) for op in needed_for(load.operands)}
        return found | {op for op in places if any(isinstance(value.type, TensorType) for value in op.results)}

    @property
    def rings(self) -> dict[gluon.TileLoad, gluon.TileLoad]:
        """For each block that a loop loads the one whose place it has: the same box of the same buffer, which an
        earlier loop loads."""
        return self.places(are_late=False)

    def places(self, are_late: bool) -> dict[gluon.TileLoad, gluon.TileLoad]:
        """The same; where products are held back for a turn, only what an earlier loop holds as long."""

        def kind(loop: TileLoop, load: gluon.TileLoad) -> object:
            readers = (each for each in loop.products if load in (block(each.a), block(each.b)))
            return load.operands[0], gluon.box(load), {are_late and each in loop.late for each in readers}

        return shared([{load: kind(loop, load) for load in loop.loads} for loop in self.loops])

    def buffers(self, warps: int, stages: int) -> dict[Value, Value]:
        """For each computed operand that passes through shared memory, since warps that share its rows hold other
        columns of it, the one whose place it has, in loops of so many stages."""
        return operand_places([loop.operands(warps, stages) for loop in self.loops])


def tile_loops(body: Region) -> TileLoops:
    """The loops of a kernel that has been found to be such a one."""
    loops = []
    for op in body.walk():
        if isinstance(op, scf.ForOp) and any(isinstance(each, tensor.DotOp) for each in op.body):
            products = tuple(each for each in op.body if isinstance(each, tensor.DotOp))
            blocks = (block(value) for product in products for value in (product.a, product.b))
            loads = dict.fromkeys(each for each in blocks if each is not None and each.parent is op.body)
            made = prepared(products)
            loads |= dict.fromkeys(each for each in op.body if gluon.loads_tile(each) and each in made)
            loops.append(TileLoop(op, products, tuple(loads)))
    return TileLoops(tuple(loops), tuple(op for op in body if gluon.loads_tile(op)))


def find_tile_loops(body: Region, warps: int) -> TileLoops:
    """The loops of a kernel, whose rows shall be divided among consumers, or which one group of `warps` shall run.
    Raises NotRecognised with the reason."""
    found = tile_loops(body)
    _check_supported(body, found, warps)
    made = prepared(found.products)
    for product in found.products:
        _check_product(product, warps, product.a.op in made)
    loads = [*found.kept, *found.rings]
    for loop in found.loops:
        _check_loop(loop)
    for load in loads:
        _check_produced(load.operands, load)
    rows = {product.out.shape[0] for product in found.products}
    left = {block(product.a) for product in found.products} & {*found.undivided}
    if not warps and len(rows) > 1:
        raise NotRecognised(f"products of {' and '.join(map(str, sorted(rows)))} rows", found.products[-1])
    if not warps and left:
        raise NotRecognised("a tile is a left operand and a right one", next(iter(left)))
    transposes = {product.a.op for product in found.products if isinstance(product.a.op, tensor.TransposeOp)}
    for op in made:
        for user in op.results[0].uses:
            if user not in made and not (isinstance(user, tensor.DotOp) and user.b is not op.results[0]):
                raise NotRecognised("a tile that a left operand is computed from is used for something else", user)
    boxes = [op.value.op for op in body if isinstance(op, tile.StoreBlockOp)]
    turned = {op for op in boxes if isinstance(op, tensor.TransposeOp)}
    produced = only_for_loads(body.walk())
    check_rows(body, found.tiles, {*loads, *found.undivided, *transposes, *made, *turned, *produced})
    return found


def read_for(value: Value) -> list[Value]:
    """The values that the operation that gives one reads, inside of branches too."""
    return [] if value.op is None else [operand for op in value.op.walk() for operand in op.operands]


def is_addition(op: Operation) -> bool:
    """Whether an operation only adds to memory, in any order."""
    if isinstance(op, (tile.StoreBlockOp, triton.StoreBlockOp)):
        return bool(op.add)
    if not isinstance(op, (tile.AtomicOp, triton.AtomicOp)):
        return False
    return (op.kind, op.semantics) == ("add", "relaxed") and not op.is_used


def is_result(op: Operation) -> bool:
    """Whether an operation writes a tile to a buffer that nothing else in its kernel uses."""
    if not isinstance(op, (tile.StoreOp, tile.StoreBlockOp)):
        return False
    kernel = next(each for each in ancestors(op) if isinstance(each, tile.KernelOp))
    return not any(user is not op and kernel in ancestors(user) for user in op.buffer.uses)


def consumers(found: TileLoops) -> int:
    """The number of consumers that share a block's rows. Raises NotRecognised."""
    product = found.products[0]
    groups, rest = divmod(product.out.shape[0], ROWS_OF_WARPS)
    if rest or groups > MOST_CONSUMERS:
        raise NotRecognised(f"{product.out.shape[0]} rows are not 64, 128 or 192", product)
    return groups


def _check_supported(body: Region, found: TileLoops, warps: int) -> None:
    if not found.loops:
        raise NotRecognised("no loop with a product")
    scheduled = {loop.op for loop in found.loops}
    top = list(body)
    around = [next(op for op in top if loop in op.nests()) for loop in scheduled]
    first, last = min(map(top.index, around)), max(map(top.index, around))
    for op in body.walk():
        if not isinstance(op, _ALLOWED):
            raise NotRecognised(f"{op.name} is not supported", op)
        if isinstance(op, scf.ForOp) and op.parent_op in scheduled:
            raise NotRecognised("a loop inside of a loop with products", op)
        if isinstance(op, scf.ForOp) and scheduled.isdisjoint(op.nests()):
            raise NotRecognised("a loop without products", op)
        if isinstance(op, scf.ForOp) and constant_of(op.step) != 1:
            raise NotRecognised("a loop's step is not 1", op)
        if isinstance(op, scf.IfOp) and any(each.effects & Effect.WRITE for each in op.walk()):
            raise NotRecognised("a branch with effects", op)
        if isinstance(op, tensor.DotOp) and op.parent_op not in scheduled:
            raise NotRecognised("a product outside of the loops, or in a branch", op)
        if gluon.loads_tile(op) and op.parent_op not in scheduled and op not in top[:first]:
            raise NotRecognised("a product's operand is loaded after a loop, or in one without products", op)
        if warps and (is_addition(op) or is_result(op)) and op.parent_op in scheduled:
            continue
        if op.effects & Effect.WRITE and op.parent is not body:
            raise NotRecognised(f"{op.name} in a loop", op)
        if op.effects & Effect.WRITE and op in top[:last]:
            raise NotRecognised("memory is written before the last loop", op)


def _check_loop(loop: TileLoop) -> None:
    if not loop.loads:
        raise NotRecognised("a loop that loads no operand of a product", loop.op)
    around: Operation | None = loop.op
    while isinstance(around, scf.ForOp):
        _check_produced(around.operands[:2], around)
        around = around.parent_op
    changing = dependent_on([*loop.op.body.args, *(load.out for load in loop.loads)], loop.op.body)
    for product in loop.products:
        if block(product.a) is None and in_order(product.a).op not in changing:
            raise NotRecognised("a product's left operand is computed, but the same in each turn", product)


def _check_product(dot: tensor.DotOp, warps: int, is_prepared: bool) -> None:
    left, right, computed = block(dot.a), block(dot.b), in_order(dot.a)
    (rows, depth), columns = dot.a.shape, dot.out.shape[1]
    if dot.a.dtype not in (*HALVES, *BYTES) or dot.b.dtype != dot.a.dtype or dot.out.dtype != "float32":
        raise NotRecognised(f"a product of {dot.a.dtype} and {dot.b.dtype} added up in {dot.out.dtype}", dot)
    in_registers = left is None and dot.a.dtype in BYTES and not is_stored(dot, warps or 4)
    if in_registers and not is_prepared and not _is_rounded(dot.a):
        raise NotRecognised(f"a product's left operand of {dot.a.dtype} is no conversion of float32 for it alone", dot)
    if right is None:
        raise NotRecognised("a product's right operand is not a loaded tile", dot)
    if computed is not dot.a and (not warps or left is not None and dot.a.dtype in BYTES):
        raise NotRecognised("a product's left operand is transposed", dot)
    if left is right:
        raise NotRecognised("a tile is multiplied by itself", dot)
    if left is None and (computed.op is None or computed.op.parent is not dot.parent):
        raise NotRecognised("a product's left operand is not computed beside it", dot)
    if dot.a.dtype in BYTES and not isinstance(dot.b.op, tensor.TransposeOp):
        raise NotRecognised(f"the columns of a right operand of {dot.b.dtype} are not contiguous", dot)
    if rows % ROWS_OF_WARPS:
        raise NotRecognised(f"{rows} rows are not a multiple of {ROWS_OF_WARPS}", dot)
    extents = EXTENTS if warps else EXTENTS[:-1]
    least_depth = 32 if dot.a.dtype in BYTES else EXTENTS[0]  # 32 bytes
    for extent, least in ((rows if warps else columns, EXTENTS[0]), (columns, EXTENTS[0]), (depth, least_depth)):
        if extent not in extents or extent < least:
            reason = f"a tile's extent {extent} is not a power of two from {least} to {extents[-1]}"
            raise NotRecognised(reason, dot)


def _is_rounded(value: Value) -> bool:
    """Whether a tile is made of one of float32 for products alone."""
    made = isinstance(value.op, arith.CastOp) and value.op.source.dtype == "float32"
    return made and all(isinstance(user, tensor.DotOp) for user in value.uses)


def _check_produced(values: Iterable[Value], op: Operation) -> None:
    """Raises NotRecognised for what a producer would need a loop's results, or what it carries, to compute."""
    for value in reached(values, operands_of):
        loop = value.owner.parent if isinstance(value.owner, Region) else None
        carried = isinstance(loop, scf.ForOp) and value is not loop.index
        is_tile = isinstance(value.type, TensorType) and not (gluon.gathers(op) and isinstance(value.op, _OF_ROWS))
        if carried or is_tile or isinstance(value.op, (scf.ForOp, scf.IfOp)):
            raise NotRecognised("where a tile is loaded from depends on what is computed", op)


def is_computed_twice(body: Region, warps: int) -> bool:
    """Whether warps compute the same rows in Triton, which gives a product whose result goes into another one no warps
    along the columns."""
    loops = [op.body for op in body.walk() if isinstance(op, scf.ForOp)]
    products = [op for loop in loops for op in loop if isinstance(op, tensor.DotOp)]
    few = [op for op in products if ROWS_OF_WARPS <= op.out.shape[0] < 16 * warps]
    after = (each for op in few for loop in loops if op.parent is loop for each in dependent_on([op.out], loop))
    return any(isinstance(each, tensor.DotOp) for each in after)


def dependent_on(start: Sequence[Value], body: Region) -> set[Operation]:
    """The operations of a body that need one of these values."""
    reached, values = set(), set(start)
    for op in body:
        if not op.is_terminator and any(not values.isdisjoint(each.operands) for each in op.walk()):
            reached.add(op)
            values.update(op.results)
    return reached


def check_rows(body: Region, tiles: Sequence[tuple[int, ...]], operands: set[Operation]) -> None:
    """Raises NotRecognised where an operation does not map each row to the same row, or Gluon has no name for it.

    `tiles` are the products' shapes; `operands`, which are loaded for products, may have others.
    """
    rows = list(dict.fromkeys(shape[0] for shape in tiles))
    columns = {shape[1] for shape in tiles}
    for op in body.walk():
        if op in operands:
            continue
        for value in (*op.results, *(arg for region in op.regions for arg in region.args)):
            shape = value.shape
            if (
                len(shape) > 2
                or (len(shape) == 1 and shape[0] not in rows)
                or (len(shape) == 2 and shape[0] not in (1, *rows))
            ):
                raise NotRecognised(f"{value.type} is not a tile of the block's {' or '.join(map(str, rows))} rows", op)
            if len(shape) == 2 and (shape[1] not in (1, *columns) or 1 not in shape and shape not in tiles):
                raise NotRecognised(f"{value.type} has the columns of no product", op)
        if isinstance(op, tensor.ReduceOp):
            narrow = ELEMENTS[op.out.dtype].bits < 32 or op.out.dtype == "bool"
            if op.axis != 1:
                raise NotRecognised("a reduction over rows", op)
            if op.kind not in REDUCTIONS or op.propagate_nan or narrow:
                raise NotRecognised(f"a reduction by {op.kind} of {op.out.dtype}", op)
        elif isinstance(op, tensor.ReshapeOp):
            if {op.source.shape, op.out.shape} not in [{(each,), (each, 1)} for each in rows]:
                raise NotRecognised(f"a reshape of {op.source.type} to {op.out.type}", op)
        elif isinstance(op, tensor.IotaOp):
            if op.out.dtype != "int32":
                raise NotRecognised(f"indices of {op.out.dtype}", op)
        elif isinstance(op, arith.MathOp):
            if not MATH_FUNCTIONS[op.function].spelling.startswith("tl."):  # Gluon has the same
                raise NotRecognised(f"the function {op.function}", op)
        elif isinstance(op, tensor.TransposeOp):
            raise NotRecognised("a transpose", op)


def live_registers(loop: TileLoop, warps: int, everywhere: bool) -> int:
    """The most registers of a thread that tiles take at one time in a turn of a loop: all tiles `everywhere`, or sums
    and what is carried while products are issued, with the operands of those that wait for the next turn."""
    body = loop.op.body
    sums = {*loop.op.iter_args, *(product.out for product in loop.products)}
    read = {op: [*filter(_takes_registers, read_by(op))] for op in body}
    last = {value: op for op, values in read.items() for value in values}
    inside = {*body.args, *(value for op in body.walk() for value in op.results)}
    live = {value for value in last if value not in inside or value in loop.op.iter_args}
    sizes = [_registers(live if everywhere else live & sums, warps)]
    for op in body:
        live -= {value for value in read[op] if value in inside and last[value] is op}
        live |= {value for value in op.results if value in last}
        if everywhere:
            sizes.append(_registers(live, warps))
        elif op in loop.products:
            sizes.append(_registers((live & sums) | {product.a for product in loop.late}, warps))
    return max(sizes)


def _takes_registers(value: Value) -> bool:
    """Whether a value is a tile in registers; masks and places are computed where they are needed."""
    is_tile = isinstance(value.type, TensorType) and len(value.shape) == 2 and 1 not in value.shape
    is_tile &= is_float(value.dtype)
    return is_tile and block(value) is None and constant_of(value) is None


def _registers(values: Iterable[Value], warps: int) -> int:
    bits = sum(
        math.prod(value.shape) * (ELEMENTS[value.dtype].bits if value.dtype in ELEMENTS else ADDRESS_BITS)
        for value in values
    )
    return bits // (32 * 32 * warps)
