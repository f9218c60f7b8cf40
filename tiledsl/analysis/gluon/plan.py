"""Shared memory, registers and tiles in flight of a Gluon kernel, and when Gluon is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.analysis.gluon.ordered_loops import WARPS, OrderedLoops, live_registers
from tiledsl.analysis.gluon.schedule import ROWS_OF_WARPS, divided, instruction_columns
from tiledsl.analysis.gluon.softmax_loops import EXTENTS, NotRecognised, SoftmaxLoops, check_extent
from tiledsl.analysis.gluon.tiled_products import BYTES, TiledProduct
from tiledsl.analysis.loops import trip_count
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.dialects import gluon, tile
from tiledsl.ir.types import ELEMENTS

BARRIER_BYTES = 1024  # more than all barriers and alignment take
CONSUMER_REGISTERS = {1: 240, 2: 240, 3: 160}  # a thread, by the number of consumers
PRODUCER_REGISTERS = 24
ENTRY_REGISTERS = {1: 240, 2: 168, 3: 128}  # a thread, before they are shared out anew: no instruction may need more
BESIDE_SUMS = 26  # what ptxas wants beside the sums of one matrix instruction


# What is slower in Gluon, or has not been measured, on an H200: see drawback.
LEAST_CONSUMERS = 2
LEAST_EXTENT, MOST_EXTENT = 64, 128
WIDE = 128  # columns of an accumulator that are worth to be multiplied late, or not at all
MEASURED_TILE, MEASURED_DEPTH, LEAST_STAGES = (128, 128), 128, 4  # of block-scaled products


@dataclass(frozen=True)
class Plan:
    """How attention uses shared memory and registers.

    Tiles of K and of V in flight; whether Q's fragments stay in registers; and the results that are stored from Q's
    place in shared memory, if there is not enough for a place of their own.
    """

    stages: int
    query_in_registers: bool
    in_query: tile.StoreBlockOp | None = None


def make_plan(
    loops: SoftmaxLoops, warp_groups: int, stages: int, shared_bytes: int, stored: Sequence[tile.StoreBlockOp]
) -> Plan:
    """The plan; `stages` 0 means what the loops ask for. Raises NotRecognised if shared memory or registers do not
    suffice."""
    size = ELEMENTS[loops.query.out.dtype].bits // 8
    for extent in (loops.columns, loops.depth, loops.width):
        check_extent(extent, EXTENTS, loops.query)
    rows = warp_groups * ROWS_OF_WARPS
    queries = rows * loops.depth * size
    once = queries + sum(rows * loops.width * ELEMENTS[op.value.dtype].bits // 8 for op in stored)
    stage_bytes = loops.columns * (loops.depth + loops.width) * size
    possible = (shared_bytes - BARRIER_BYTES - once) // stage_bytes
    box, dtype = gluon.box(loops.query), loops.query.out.dtype
    like_query = [op for op in stored if gluon.box(op) == box and op.value.dtype == dtype]
    in_query = like_query[0] if like_query and possible < 2 else None
    if in_query:
        once -= queries
        possible = (shared_bytes - BARRIER_BYTES - once) // stage_bytes
    requested = stages or max(2, *(loop.op.num_stages for loop in loops.loops))
    if possible < 2:
        raise NotRecognised(
            f"two stages need {once + 2 * stage_bytes} bytes of shared memory of {shared_bytes}", loops.query
        )
    in_registers = query_in_registers(loops.columns, loops.depth, loops.width, warp_groups)
    return Plan(min(requested, possible), in_registers, in_query)


def query_in_registers(columns: int, depth: int, width: int, warp_groups: int) -> bool:
    """Whether Q's fragments fit beside scores, accumulator and weights, with a tenth of the registers to spare."""
    limit = CONSUMER_REGISTERS[warp_groups] * 9 // 10
    tiles = columns // 2 + width // 2 + columns // 4
    if tiles > limit:
        raise NotRecognised(f"tiles of {columns} and {width} columns need {tiles} registers a thread of {limit}")
    return tiles + depth // 4 <= limit and warp_groups < 3


def product_stages(
    product: TiledProduct, warp_groups: int, stages: int, shared_bytes: int, stored: Sequence[tile.StoreBlockOp]
) -> int:
    """Pairs of tiles in flight, at least 2: one is released when the next is in use.

    `stages` 0 means what the loop asks for. Raises NotRecognised if shared memory or registers do not suffice.
    """
    size = ELEMENTS[product.left.out.dtype].bits // 8
    check_extent(product.columns, EXTENTS, product.product)
    check_extent(product.depth, EXTENTS if size > 1 else EXTENTS[1:], product.product)  # 32 bytes at least
    limit = CONSUMER_REGISTERS[warp_groups] * 9 // 10
    sums = product.columns // 2 * (2 if product.acc_position is None else 1)
    if sums > limit:
        raise NotRecognised(
            f"sums of {product.columns} columns need {sums} registers a thread of {limit}", product.product
        )
    if product.columns // 2 + BESIDE_SUMS > ENTRY_REGISTERS[warp_groups]:
        raise NotRecognised(
            f"an instruction of {product.columns} columns does not fit {warp_groups} consumers", product.product
        )
    rows = warp_groups * ROWS_OF_WARPS
    once = sum(rows * product.columns * ELEMENTS[op.value.dtype].bits // 8 for op in stored)
    each = (rows + product.columns) * product.depth * size
    possible = (shared_bytes - BARRIER_BYTES - once) // each
    if possible < 2:
        needed = once + 2 * each
        raise NotRecognised(f"two stages need {needed} bytes of shared memory of {shared_bytes}", product.product)
    return min(max(2, stages or product.op.num_stages), possible)


@dataclass(frozen=True)
class OrderedPlan:
    """How loops of products in order use shared memory: turns whose tiles are in flight, bytes that are left beside
    them, and the least that they need."""

    stages: int
    left: int
    least: int


def ordered_plan(ordered: OrderedLoops, warps: int, stages: int, shared_bytes: int) -> OrderedPlan:
    """The plan; `stages` 0 means what the loops ask for, at least 2. Raises NotRecognised if shared memory or registers
    do not suffice."""
    warp_groups = WARPS[warps]
    limit = CONSUMER_REGISTERS[warp_groups] * 9 // 10
    for loop in ordered.loops:
        needed = live_registers(loop, warps)
        if needed > limit:
            raise NotRecognised(f"tiles need {needed} registers a thread of {limit}", loop.op)
    for product in ordered.products:
        rows, columns = product.out.shape[0], instruction_columns(product.out.shape, warps)
        if rows != 16 * divided(product.out.shape, warps)[0]:  # ptxas then waits for each instruction by itself
            raise NotRecognised(f"{rows} rows are more than those of an instruction of {warps} warps", product)
        if columns // 2 + BESIDE_SUMS > ENTRY_REGISTERS[warp_groups]:
            raise NotRecognised(f"an instruction of {columns} columns does not fit {warps} warps", product)
    once = BARRIER_BYTES + sum(
        map(tensor_bytes, [*(load.out for load in ordered.kept), *{*ordered.buffers(warps).values()}])
    )
    stage_bytes = sum(tensor_bytes(load.out) for load in {*ordered.rings.values()})
    possible, least = (shared_bytes - once) // stage_bytes, once + 2 * stage_bytes
    if possible < 2:
        raise NotRecognised(f"two stages need {least} bytes of shared memory of {shared_bytes}", ordered.loops[0].op)
    requested = max(2, stages or max(loop.op.num_stages for loop in ordered.loops))
    chosen = min(requested, possible)
    return OrderedPlan(chosen, shared_bytes - once - chosen * stage_bytes, least)


def ordered_drawback(plan: OrderedPlan, shared_bytes: int) -> str:
    """Why Triton should write loops whose columns could be divided; empty if Gluon is faster, as measured on an H200.

    Where a multiprocessor has room for two blocks, one computes while the other waits.
    """
    if 2 * plan.least <= shared_bytes:
        return f"of blocks of {plan.least} bytes several run on a multiprocessor"
    return ""


def products_in_flight(product: TiledProduct, warp_groups: int) -> int:
    """2 if a consumer can issue a product from zero before it uses the previous one, else 1."""
    arguments = set(product.op.iter_args)
    free = not any(value in arguments for op in product.beside for value in op.operands)
    computed = {value for op in product.beside for value in op.results}
    free &= not any(value in computed for value in product.op.yielded)
    fits = 3 * (product.columns // 2) <= CONSUMER_REGISTERS[warp_groups] * 9 // 10
    return 2 if product.acc_position is None and free and fits and (trip_count(product.op) or 0) > 1 else 1


def product_drawback(product: TiledProduct, warp_groups: int, stages: int) -> str:
    """Why Triton should write this loop although Gluon could; empty if Gluon is faster, as measured on an H200."""
    if product.acc_position is not None or product.left.out.dtype not in BYTES:
        return "of products, only those of float8 that start from zero in each step are known to be faster"
    if (product.rows, product.columns) != MEASURED_TILE or product.depth != MEASURED_DEPTH:
        tile = f"{product.rows} x {product.columns} x {product.depth}"
        return f"tiles of {tile} are not known to be faster, those of 128 x 128 x 128 are"
    if stages < LEAST_STAGES:  # two are in use
        return f"{stages} stages are not known to be faster, {LEAST_STAGES} are"
    if products_in_flight(product, warp_groups) == 1:
        return "a second product cannot be issued before the first is used"
    return ""


def rescaling(found: SoftmaxLoops, warp_groups: int, fast_math: bool) -> str:
    """When loops should rescale their sums, as measured on an H200: "each" step at once, "late" or "lazy"."""
    if found.width == WIDE:
        return "lazy" if fast_math else "late"
    return "lazy" if warp_groups == 3 and fast_math else "each"


def drawback(loops: SoftmaxLoops, warp_groups: int) -> str:
    """Why Triton should write these loops although Gluon could; empty if Gluon is faster.

    With one consumer, nothing hides its row-wise updates. With fewer than 64 keys or columns, barriers cost more than
    products; more than 128 leave room for only 64 keys, and have not been measured.
    """
    if warp_groups < LEAST_CONSUMERS:
        return f"blocks of {loops.rows} rows leave one consumer alone; two or three, of 64 rows each, are faster"
    for extent in (loops.columns, loops.depth, loops.width):
        if not LEAST_EXTENT <= extent <= MOST_EXTENT:
            return f"a tile's extent {extent} is not from {LEAST_EXTENT} to {MOST_EXTENT}"
    return ""
