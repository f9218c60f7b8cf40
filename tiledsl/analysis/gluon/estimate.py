"""How long loops of tiles take on a multiprocessor of Hopper, in Gluon's schedules and in Triton's pipeline.

A turn takes as long as the unit with most work, or as a group of warps needs for its text, which it issues in order
(ResMII and RecMII of modulo scheduling: Rau, "Iterative modulo scheduling", 1994). Matrix instructions run one after
the other, beside the text in Gluon, and in Triton if nothing but a product reads what they add up; what reads a result
waits for it and for all before. Consumers, and blocks of Triton's on one multiprocessor, hide each other's waits; warps
of one such block wait for each other. Where two limits meet, a smooth maximum says that neither hides the other wholly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.analysis.gluon.plan import CONSUMER_REGISTERS
from tiledsl.analysis.gluon.schedule import LOADS, block, divided, is_stored
from tiledsl.analysis.gluon.tile_loops import TileLoop, TileLoops, is_computed_twice, live_registers
from tiledsl.analysis.loops import trip_count
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import ELEMENTS, TensorType
from tiledsl.math_functions import MATH_FUNCTIONS

# What a multiprocessor does in a cycle (CUDA guide, throughputs of compute capability 9.0; H100's data sheet), and has.
HALF_OPERATIONS = 4096  # of the tensor cores, on 16 bits
FLOAT_LANES = 128
SPECIAL_LANES = 16  # exponentials, logarithms, roots
CACHE_BYTES = 64  # from the second-level cache
REGISTERS, MOST_REGISTERS = 65536, 255  # of all threads, and of one
WARP = 32

_FREE = (arith.ConstantOp, tensor.ReshapeOp, tensor.BroadcastOp, tensor.TransposeOp, tensor.IotaOp, tensor.DotOp)
LEAST_GAIN = 1.03
_TURNS = 6  # after which each takes as long as the one before
_UNKNOWN_TRIPS = 6
_BESIDE_TILES = 44  # registers of a thread


@dataclass(frozen=True)
class Costs:
    """What no data sheet says: cycles, and fractions of what one says."""

    tensor: float = 0.85  # of the tensor cores' rate that lasts, by power
    alone: float = 0.6  # of the arithmetic units' rate, for one warp on each scheduler
    issue: float = 40  # of a product
    wait: float = 120  # from a product's end until its results are read
    turn: float = 40  # of a turn's barriers
    exchange: float = 150  # through shared memory
    fill: float = 1500  # until the first tile is there
    latency: float = 1200  # of a tile, until the next one can be asked for
    beside: float = 0.5  # the power of the number of blocks by which they hide each other's text
    sharpness: float = 2  # of the smooth maximum


COSTS = Costs()


def gain(
    found: TileLoops, groups: int, warps: int, stages: int, kernel: tile.KernelOp, target: Any, costs: Costs = COSTS
) -> float:
    """Triton's time for a kernel's loops over Gluon's, with rings of so many stages; 0 where tiles would be spilled.
    `groups`: consumers with rows of their own; 0: `warps` are one group."""
    limit = CONSUMER_REGISTERS[groups or 1] * 7 // 8
    if max(live_registers(loop, 4 * groups or warps, everywhere=True) for loop in found.loops) > limit:
        return 0.0
    beside = blocks_beside(found, kernel, target)
    ours = in_gluon(found, groups, warps, stages, costs)
    return in_triton(found, kernel.threads // WARP, beside, costs) / ours


def in_gluon(found: TileLoops, groups: int, warps: int, stages: int, costs: Costs = COSTS) -> float:
    """Cycles of a block's loops, for one block on a multiprocessor, while a producer loads ahead."""
    total = 0.0
    for loop in found.loops:
        order = _scheduled(loop, groups > 0)
        text = _text(loop, order, 1 / (groups or 1), 4 if groups else warps, costs, is_gluon=True)
        turn = _joined(_unit(loop, 1, costs), text, costs)
        ahead = stages - 1 - 0.5 * (groups > 0 and _is_held(loop))
        total += _trips(loop) * _joined(turn, costs.latency / ahead, costs)
    return total


def in_triton(found: TileLoops, warps: int, beside: int, costs: Costs = COSTS) -> float:
    """The same, for so many blocks beside each other on a multiprocessor."""
    total = 0.0
    for loop in found.loops:
        assert loop.op.parent is not None
        rows = min(each.out.shape[0] for each in loop.products)
        times = 16 * warps / rows if is_computed_twice(loop.op.parent, warps) else 1
        text = _text(loop, _body(loop), times, warps, costs, is_gluon=False)
        # A loop in another one begins anew in each turn of it; one of a single product goes on where a block ends.
        fills = len(loop.products) > 1 or isinstance(loop.op.parent_op, scf.ForOp)
        ahead = max(2, loop.op.num_stages) - 1
        turn = _joined(_unit(loop, times, costs), text / beside**costs.beside, costs)
        total += _trips(loop) * _joined(turn, costs.latency / (ahead * beside), costs)
        total += costs.fill / beside if fills else 0.0
    return total


def blocks_beside(found: TileLoops, kernel: tile.KernelOp, target: Any) -> int:
    """Blocks of Triton's that a multiprocessor has at one time: as many as fit, and as there are."""
    live = max(live_registers(loop, kernel.threads // WARP, everywhere=True) for loop in found.loops)
    registers = min(MOST_REGISTERS, live + _BESIDE_TILES)
    kept = sum(tensor_bytes(load.out) for load in found.kept)
    staged = max(
        max(2, loop.op.num_stages) * sum(map(tensor_bytes, (load.out for load in loop.loads))) for loop in found.loops
    )
    fit = min(REGISTERS // (registers * kernel.threads), target.max_shared_bytes // (kept + staged))
    grid = [constant_of(extent) for extent in kernel.grid]
    if None not in grid:
        fit = min(fit, -(-math.prod(map(int, grid)) // target.multiprocessors))  # type: ignore[arg-type]
    return max(1, int(fit))


def of_product(op: tensor.DotOp) -> float:
    """Cycles of the tensor cores."""
    (m, k), n = op.a.shape, op.out.shape[1]
    return 2.0 * m * n * k / (HALF_OPERATIONS * 16 / ELEMENTS[op.a.dtype].bits)


def of_arithmetic(op: Operation) -> float:
    """Cycles of the arithmetic units, or of those for special functions."""
    tiles = [value for value in (*op.results, *op.operands) if isinstance(value.type, TensorType)]
    if not tiles or isinstance(op, (*_FREE, *LOADS)) or op.is_terminator:
        return 0.0
    lanes = max(math.prod(value.shape) for value in tiles)
    special = isinstance(op, arith.MathOp) and not MATH_FUNCTIONS[op.function].is_cheap
    return lanes / (SPECIAL_LANES if special else FLOAT_LANES)


def _is_held(loop: TileLoop) -> bool:
    """Whether a tile is held for a turn more, for products that wait for the next turn."""
    late = {block(each.b) for each in loop.late}
    return any(block(each.b) in late for each in loop.products if each not in loop.late)


def _trips(loop: TileLoop) -> float:
    trips = trip_count(loop.op)
    return _UNKNOWN_TRIPS if trips is None else max(1, trips)


def _unit(loop: TileLoop, times: float, costs: Costs) -> float:
    """Of a turn, of the unit that has most to do."""
    tensor_cores = times * sum(map(of_product, loop.products)) / costs.tensor
    arithmetic = times * sum(map(of_arithmetic, loop.op.body.walk()))
    return max(tensor_cores, arithmetic, sum(tensor_bytes(load.out) for load in loop.loads) / CACHE_BYTES)


def _joined(one: float, other: float, costs: Costs) -> float:
    less, more = sorted((one, other))
    return more * (1 + (less / more) ** costs.sharpness) ** (1 / costs.sharpness) if more else 0.0


def _text(loop: TileLoop, order: Sequence[Operation], share: float, warps: int, costs: Costs, is_gluon: bool) -> float:
    """Of a turn of a group of warps that computes a `share` of a block, in this order."""
    rate = min(1.0, costs.alone * warps / 4)
    ends: dict[Value, float] = {}  # of products
    carried = dict(zip(loop.op.iter_args, loop.op.yielded))
    stays = {value for arg, value in carried.items() if all(isinstance(user, tensor.DotOp) for user in arg.uses)}
    stays |= {each.accumulator for each in loop.products}
    now, free, turns = 0.0, 0.0, []
    for _ in range(_TURNS):
        for op in order:
            read = [value for each in op.walk() for value in each.operands if value in ends]
            if isinstance(op, tensor.DotOp):
                read = [value for value in read if value is not op.accumulator]
                now += costs.issue + (costs.exchange if is_gluon and is_stored(op, warps) else 0.0)
            elif isinstance(op, tensor.ReduceOp) and is_gluon and divided(op.source.shape, warps)[1] > 1:
                now += costs.exchange
            now = max([now, *(ends[value] + costs.wait for value in read)])
            if isinstance(op, tensor.DotOp):
                free = max(free, now) + share * of_product(op)
                ends[op.out] = free
                now = now if is_gluon or op.out in stays else free + costs.wait
            else:
                now += share * sum(map(of_arithmetic, op.walk())) / rate
        now = max([now, *(ends[each.out] for each in loop.products if each.out not in stays)]) + costs.turn
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
    last = 1 + max((number for number, op in enumerate(rest) if isinstance(op, tensor.DotOp)), default=-1)
    return [*first[1:], *rest[:last], first[0], *rest[last:]]


def _body(loop: TileLoop) -> list[Operation]:
    return [op for op in loop.op.body if not op.is_terminator and not isinstance(op, LOADS)]
