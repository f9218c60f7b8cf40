"""How long loops of tiles take on a multiprocessor of Hopper, in Gluon's schedules and in Triton's pipeline.

A turn takes as long as the unit with most work, or as a group of warps needs for its text, which it issues in order
(ResMII and RecMII of modulo scheduling: Rau, "Iterative modulo scheduling", 1994). Matrix instructions run one after
the other, beside the text in Gluon, and in Triton if nothing but a product reads what they add up; else the text goes
on behind those that follow each other. What reads a result waits for it and for all before. Consumers, and blocks of
Triton's on one multiprocessor, hide each other's waits; warps of one such block wait for each other. Where two limits
meet, a smooth maximum says that neither hides the other wholly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.analysis.dependence import read_by
from tiledsl.analysis.gluon.plan import CONSUMER_REGISTERS
from tiledsl.analysis.gluon.schedule import block, divided, is_stored
from tiledsl.analysis.gluon.tile_loops import NotRecognised, TileLoop, TileLoops, is_computed_twice, live_registers
from tiledsl.analysis.hardware import CACHE_BYTES, FLOAT_LANES, MAX_REGISTERS, SPECIAL_LANES, WARP
from tiledsl.analysis.loops import trip_count
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.dialects import arith, gluon, tensor
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import ELEMENTS, TensorType
from tiledsl.math_functions import MATH_FUNCTIONS

# What a multiprocessor does in a cycle (CUDA guide, throughputs of compute capability 9.0; H100's data sheet), and has.
HALF_OPERATIONS = 4096  # of the tensor cores, on 16 bits

_FREE = (arith.ConstantOp, tensor.ReshapeOp, tensor.BroadcastOp, tensor.TransposeOp, tensor.IotaOp, tensor.DotOp)
LEAST_GAIN = 1.1
_TURNS = 6  # after which each takes as long as the one before
_UNKNOWN_TRIPS = 6
_BESIDE_TILES = 44  # registers of a thread


@dataclass(frozen=True)
class Costs:
    """What no data sheet says: cycles, and fractions of what one says."""

    tensor: float = 0.85  # of the tensor cores' rate that lasts, by power
    alone: float = 0.6  # of the arithmetic units' rate, for one warp on each scheduler
    issue: float = 40  # of a product
    wait: float = 60  # from a product's end until its results are read
    turn: float = 40  # of a turn's barriers
    exchange: float = 150  # through shared memory
    fill: float = 1500  # until the first tile is there
    latency: float = 900  # of a tile, until the next one can be asked for
    held: float = 0.7  # of a turn, for which a tile is held that products of the next turn read, too
    beside: float = 0.5  # the power of the number of blocks by which they hide each other's text
    spilled: float = 24  # bytes a cycle, of tiles that leave their registers in each turn and come back
    sharpness: float = 2  # of the smooth maximum


COSTS = Costs()


@dataclass(frozen=True)
class Launch:
    """What Triton would launch: warps of a block, and blocks; None if their number is not known."""

    warps: int
    blocks: int | None


def gain(
    found: TileLoops, groups: int, warps: int, stages: int, launch: Launch, target: Any, costs: Costs = COSTS
) -> float:
    """Triton's time for a kernel's loops over Gluon's, with rings of so many stages. `groups`: consumers with rows of
    their own; 0: `warps` are one group. Raises NotRecognised where tiles would be spilled."""
    live, limit = max(_live(loop, groups, warps) for loop in found.loops), CONSUMER_REGISTERS[groups or 1] * 7 // 8
    if live > limit:
        raise NotRecognised(f"tiles and what waits need {live} registers a thread of {limit}", found.products[0])
    each = math.inf if launch.blocks is None else -(-launch.blocks // target.multiprocessors)
    ours = in_gluon(found, groups, warps, stages, each, costs)
    return in_triton(found, launch.warps, blocks_beside(found, launch, target), costs) / ours


def _live(loop: TileLoop, groups: int, warps: int) -> int:
    """Registers of a thread for tiles, and for what waits for products of the next turn."""
    waiting = {each.a for each in loop.late} if groups else set()
    bytes_ = sum(tensor_bytes(value) for value in waiting if block(value) is None)
    return live_registers(loop, 4 * groups or warps, everywhere=True) + bytes_ // (4 * WARP * (4 * groups or warps))


def in_gluon(found: TileLoops, groups: int, warps: int, stages: int, blocks: float, costs: Costs = COSTS) -> float:
    """Cycles of a block's loops, one block at a time on a multiprocessor, which has so many of them: a producer loads
    ahead from block to block."""
    total = costs.fill / blocks if _fills(found) else 0.0
    for loop in found.loops:
        order = _scheduled(loop, groups > 0)
        text = _text(loop, order, 1 / (groups or 1), 4 if groups else warps, costs, is_gluon=True)
        turn = _joined(_unit(loop, 1, costs), text, costs)
        ahead = stages - 1 - costs.held * (groups > 0 and _is_held(loop))
        if stages == 1:  # nothing hides the way of the tile that is released last
            turn += costs.latency + _copies(loop) / len(loop.loads)
        else:
            turn = _joined(turn, _way(loop, costs) / ahead, costs)
        total += _trips(loop) * turn
    return total


def in_triton(found: TileLoops, warps: int, beside: int, costs: Costs = COSTS) -> float:
    """The same, for so many blocks beside each other on a multiprocessor, each of which waits for its first tiles."""
    total = costs.fill * len(found.loops) / beside if _fills(found) else 0.0
    for loop in found.loops:
        assert loop.op.parent is not None
        rows = min(each.out.shape[0] for each in loop.products)
        times = 16 * warps / rows if is_computed_twice(loop.op.parent, warps) else 1
        text = _text(loop, _body(loop), times, warps, costs, is_gluon=False) / beside**costs.beside
        turn = _joined(_unit(loop, times, costs), text, costs)
        live = live_registers(loop, warps, everywhere=True)
        if live > MAX_REGISTERS:
            turn += 2 * live * 4 * WARP * warps / costs.spilled
        ahead = max(2, loop.op.num_stages) - 1
        total += _trips(loop) * _joined(turn, _way(loop, costs) / (ahead * beside), costs)
    return total


def _fills(found: TileLoops) -> bool:
    """Whether loops wait for their first tiles; one of a single product goes on where a block ends, in Triton too."""
    return len(found.products) > 1


def blocks_beside(found: TileLoops, launch: Launch, target: Any) -> int:
    """Blocks of Triton's that a multiprocessor has at one time: as many as fit, and as there are."""
    live = max(live_registers(loop, launch.warps, everywhere=True) for loop in found.loops)
    registers = min(MAX_REGISTERS, live + _BESIDE_TILES)
    kept = sum(tensor_bytes(load.out) for load in found.kept)
    staged = max(
        max(2, loop.op.num_stages) * sum(map(tensor_bytes, (load.out for load in loop.loads))) for loop in found.loops
    )
    fit = min(target.registers_per_sm // (registers * WARP * launch.warps), target.max_shared_bytes // (kept + staged))
    if launch.blocks is not None:
        fit = min(fit, -(-launch.blocks // target.multiprocessors))
    return max(1, int(fit))


def of_product(op: tensor.DotOp) -> float:
    """Cycles of the tensor cores."""
    (m, k), n = op.a.shape, op.out.shape[1]
    return 2.0 * m * n * k / (HALF_OPERATIONS * 16 / ELEMENTS[op.a.dtype].bits)


def of_arithmetic(op: Operation) -> float:
    """Cycles of the arithmetic units, or of those for special functions."""
    tiles = [value for value in (*op.results, *op.operands) if isinstance(value.type, TensorType)]
    if not tiles or isinstance(op, _FREE) or gluon.loads_tile(op) or op.is_terminator or _is_fused(op):
        return 0.0
    lanes = max(math.prod(value.shape) for value in tiles)
    special = isinstance(op, arith.MathOp) and not MATH_FUNCTIONS[op.function].is_cheap
    return lanes / (SPECIAL_LANES if special else FLOAT_LANES)


def _is_fused(op: Operation) -> bool:
    """Whether a product of numbers is one instruction with the sums that it goes into."""
    users = list(op.out.uses) if isinstance(op, arith.MulOp) else []
    return bool(users) and all(isinstance(user, (arith.AddOp, arith.SubOp)) for user in users)


def _is_held(loop: TileLoop) -> bool:
    """Whether a tile is held for a turn more, for products that wait for the next turn."""
    late = {block(each.b) for each in loop.late}
    return any(block(each.b) in late for each in loop.products if each not in loop.late)


def _trips(loop: TileLoop) -> float:
    trips = trip_count(loop.op)
    return _UNKNOWN_TRIPS if trips is None else trips


def _copies(loop: TileLoop) -> float:
    return sum(tensor_bytes(load.out) for load in loop.loads) / CACHE_BYTES


def _way(loop: TileLoop, costs: Costs) -> float:
    """From a request for a turn's tiles until they are there."""
    return costs.latency + _copies(loop)


def _unit(loop: TileLoop, times: float, costs: Costs) -> float:
    """Of a turn, of the unit that has most to do."""
    tensor_cores = times * sum(map(of_product, loop.products)) / costs.tensor
    return max(tensor_cores, times * sum(map(of_arithmetic, loop.op.body.walk())), _copies(loop))


def _joined(one: float, other: float, costs: Costs) -> float:
    less, more = sorted((one, other))
    return more * math.pow(1 + math.pow(less / more, costs.sharpness), 1 / costs.sharpness)


def _text(loop: TileLoop, order: Sequence[Operation], share: float, warps: int, costs: Costs, is_gluon: bool) -> float:
    """Of a turn of a group of warps that computes a `share` of a block, in this order."""
    rate = min(1.0, costs.alone * warps / 4)
    ends: dict[Value, float] = {}  # of products
    carried = dict(zip(loop.op.iter_args, loop.op.yielded))
    stays = {value for arg, value in carried.items() if all(isinstance(user, tensor.DotOp) for user in arg.uses)}
    stays |= {each.accumulator for each in loop.products}
    now, free, due, turns = 0.0, 0.0, 0.0, []
    for _ in range(_TURNS):
        for op in order:
            read = [value for value in read_by(op) if value in ends]
            if isinstance(op, tensor.DotOp):
                read = [value for value in read if value is not op.accumulator]
                now += costs.issue + (costs.exchange if is_gluon and is_stored(op, warps) else 0.0)
            elif isinstance(op, tensor.ReduceOp) and is_gluon and divided(op.source.shape, warps)[1] > 1:
                now += costs.exchange
            now = max([now, *(ends[value] + costs.wait for value in read)])
            if isinstance(op, tensor.DotOp):
                free = max(free, now) + share * of_product(op)
                ends[op.out] = free
                due = due if is_gluon or op.out in stays else free + costs.wait
            elif cycles := share * sum(map(of_arithmetic, op.walk())):
                now = max(now, due) + cycles / rate
        now = max([now, due, *(ends[each.out] for each in loop.products if each.out not in stays)]) + costs.turn
        ends.update({arg: ends[value] for arg, value in carried.items() if value in ends})
        turns.append(now)
    return (turns[-1] - turns[1]) / (_TURNS - 2)


def _scheduled(loop: TileLoop, has_rows: bool) -> list[Operation]:
    """The operations of a turn in the order in which schedule-loops has them issued."""
    body, ahead, late = _body(loop), loop.of_tiles, loop.late if has_rows else ()
    first = [op for op in loop.products if op not in late] if late else list(ahead) if len(ahead) > 1 else []
    rest = [op for op in body if op not in late and op not in first]
    if late or len(first) < 2:
        return [*first, *(op for op in body if op in late), *rest]
    last = 1 + max(number for number, op in enumerate(rest) if isinstance(op, tensor.DotOp))
    return [*first[1:], *rest[:last], first[0], *rest[last:]]


def _body(loop: TileLoop) -> list[Operation]:
    return [op for op in loop.op.body if not op.is_terminator]
