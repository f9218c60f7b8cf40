"""Shared memory, registers and tiles in flight of a Gluon kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.analysis.gluon.schedule import block, divided, instruction_columns, prepared
from tiledsl.analysis.gluon.slices import only_for_loads
from tiledsl.analysis.gluon.tile_loops import (
    BYTES,
    HALVES,
    NotRecognised,
    TileLoop,
    TileLoops,
    dependent_on,
    live_registers,
)
from tiledsl.analysis.hardware import BARRIER_BYTES
from tiledsl.analysis.loops import trip_count
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.dialects import gluon, tile
from tiledsl.ir.core import Operation

CONSUMER_REGISTERS = {1: 240, 2: 240, 3: 160}  # a thread, by the number of consumers
PRODUCER_REGISTERS = 24
GATHER_WARPS = 4  # of a producer that copies rows; one warp takes the registers of so many, too
GATHER_REGISTERS = 32  # all that consumers leave
ENTRY_REGISTERS = {1: 240, 2: 168, 3: 128}  # a thread, before they are shared out anew: no instruction may need more
BESIDE_SUMS = 26  # what ptxas wants beside the sums of one matrix instruction


WIDE = 96  # columns of an accumulator that are worth to be multiplied late, or not at all
MADE_COLUMNS = (128, 256)  # of products whose left operands are made in registers
MADE_CONSUMERS = 2
# Of sums of decoding with latent attention, where two groups that take turns in turn, and rows that are gathered into
# rings, have been measured to be faster than other ways, on an H200.
LATENT_COLUMNS = 512
SCORES = 2  # tiles of scores in a turn of one stage, of which one is computed while the other is used


@dataclass(frozen=True)
class Plan:
    """How loops use shared memory: turns whose tiles are in flight, bytes that are left beside them, the least that
    they need, and the result that is stored from an operand's place, if there is not enough for a place of its own."""

    stages: int
    left: int
    least: int
    in_item: tile.StoreBlockOp | None = None


def make_plan(
    found: TileLoops,
    groups: int,
    warps: int,
    stages: int,
    shared_bytes: int,
    stored: Sequence[tile.StoreBlockOp] = (),
    places: int = 1,
) -> Plan:
    """The plan for consumers, so many groups of so many warps each, which store boxes through places of their own;
    `stages` 0 means what the loops ask for, at least 2; `places`: of each computed operand. One group of all warps has
    one stage, if there is no room for two. Raises NotRecognised if shared memory or registers do not suffice."""
    place = found.loops[0].op
    kept = {load: tensor_bytes(load.out) for load in found.kept}
    results = {op: tensor_bytes(op.value) for op in stored}
    stage_bytes = sum(tensor_bytes(load.out) for load in {*found.places(are_late=warps == 4).values()})

    def needed(depth: int) -> int:
        operands = {*found.buffers(warps, depth).values()}
        once = BARRIER_BYTES + sum(kept.values()) + places * sum(map(tensor_bytes, operands))
        return once + sum(results.values()) + depth * stage_bytes

    fewest, least = 2, needed(2)
    in_item = None
    if least > shared_bytes:
        boxes = [(gluon.box(load), load.out.dtype) for load in kept]
        in_item = next((op for op in results if (gluon.box(op), op.value.dtype) in boxes), None)
        if in_item is not None:
            least -= results[in_item]
    if least > shared_bytes and warps > 4 and places == 1:
        fewest, least = 1, needed(1)
    if least > shared_bytes:
        what = "two stages need" if fewest == 2 else "a stage needs"
        raise NotRecognised(f"{what} {least} bytes of shared memory of {shared_bytes}", place)
    _check_registers(found, groups, warps)
    requested = max(2, stages or max(loop.op.num_stages for loop in found.loops))
    chosen = min(requested, fewest + (shared_bytes - least) // stage_bytes)
    return Plan(chosen, shared_bytes - least - (chosen - fewest) * stage_bytes, least, in_item)


def _check_registers(found: TileLoops, groups: int, warps: int) -> None:
    limit = CONSUMER_REGISTERS[groups] * 7 // 8
    for loop in found.loops:
        needed = live_registers(loop, groups * warps, warps > 4)
        if needed > limit:
            raise NotRecognised(f"tiles need {needed} registers a thread of {limit}", loop.op)
    for product in found.products:
        shape = (product.out.shape[0] // groups, product.out.shape[1])
        columns = instruction_columns(shape, warps)
        if shape[0] != 16 * divided(shape, warps)[0]:  # ptxas then waits for each instruction by itself
            raise NotRecognised(f"{shape[0]} rows are more than those of an instruction of {warps} warps", product)
        if columns // 2 + BESIDE_SUMS > ENTRY_REGISTERS[groups]:
            raise NotRecognised(f"an instruction of {columns} columns does not fit {groups} consumers", product)


def fits_registers(loop: TileLoop, groups: int) -> bool:
    """Whether the fragments of left operands that all turns read fit beside the tiles of a turn, with a sixth of the
    registers to spare: the sum, and what is computed from the first product. Beside several sums ptxas spills some."""
    columns = loop.products[0].out.shape[1]
    sums = [product.out.shape[1] for product in loop.late if product.out in loop.op.yielded]
    kept = dict.fromkeys(block(product.a) for product in loop.products)
    depth = sum(load.out.shape[1] for load in kept if load is not None and load not in loop.loads)
    tiles = columns // 2 + sum(sums) // 2 + columns // 4
    return tiles + depth // 4 <= CONSUMER_REGISTERS[groups] * 5 // 6 and groups < 3 and len(sums) == 1


def products_in_flight(loop: TileLoop, groups: int) -> int:
    """2 if a consumer can issue a product from zero before it uses the previous one, else 1."""
    product = loop.first_from_zero
    if product is None:
        return 1
    arguments = set(loop.op.iter_args)
    beside = loads_beside(loop)
    free = not any(value in arguments for op in beside for value in op.operands)
    computed = {value for op in beside for value in op.results}
    free &= not any(value in computed for value in loop.op.yielded)
    fits = 3 * (product.out.shape[1] // 2) <= CONSUMER_REGISTERS[groups] * 9 // 10
    trips = trip_count(loop.op)
    return 2 if free and fits and trips is not None and trips > 1 else 1


def loads_beside(loop: TileLoop) -> list[Operation]:
    """The operations of a loop that need none of its products, and that are not for its tiles alone."""
    moved = {*loop.loads, *loop.products, *(product.b.op for product in loop.products)}
    moved |= only_for_loads(loop.op.body.walk())
    dependent = dependent_on([product.out for product in loop.products], loop.op.body)
    return [op for op in loop.op.body if op not in moved and op not in dependent and not op.is_terminator]


def rescaling(found: TileLoops, groups: int, fast_math: bool) -> str:
    """When loops should rescale their sums, as measured on an H200: "each" step at once, "late" or "lazy".

    In a loop of float8 that may have one turn alone, as of causal attention, ptxas runs products one by one if sums are
    rescaled lazily (its note C7513)."""
    lazy = "lazy" if fast_math else "each"
    first = found.loops[0]
    width = sum(product.out.shape[1] for product in first.late)
    if groups and width >= WIDE:
        serial = first.late[0].a.dtype in BYTES and trip_count(first.op) is None
        return "lazy" if fast_math and not serial else "late"
    return lazy if groups in (0, 3) else "each"


def unmeasured(found: TileLoops, groups: int, stages: int) -> str:
    """Why loops of one stage, or whose products' operands are made in registers or gathered, are not known to be faster
    in Gluon on an H200."""
    gathering = [loop for loop in found.loops if any(map(gluon.gathers, loop.loads))]
    if any(groups or sum(each.out.shape[1] for each in loop.late) != LATENT_COLUMNS for loop in gathering):
        return f"loops of gathered rows are known to be faster where one group adds up {LATENT_COLUMNS} columns"
    if stages == 1 and any(len(loop.of_tiles) < SCORES for loop in found.loops):
        return f"loops of one stage are known to be faster if a turn begins with {SCORES} products of tiles"
    if not prepared(found.products):
        return ""
    shapes = {product.out.shape for product in found.products}
    measured = groups == MADE_CONSUMERS and all(columns in MADE_COLUMNS for _, columns in shapes)
    if measured and all(product.a.dtype in HALVES for product in found.products):
        return ""
    return "operands made in registers are known to be faster with 128 rows and 128 or 256 columns of 16 bits"
