"""What shared memory and registers a Gluon kernel needs, and so how many tiles are in flight. No pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.ir.types import ELEMENTS
from tiledsl.passes.softmax_loops import ROWS_OF_CONSUMER, NotRecognised, SoftmaxLoops

BARRIER_BYTES = 1024  # more than all barriers and alignment take
CONSUMER_REGISTERS = {1: 240, 2: 240, 3: 160}  # a thread, by the number of consumers
PRODUCER_REGISTERS = 24


# What is slower in Gluon, or has not been measured, on an H200: see drawback.
LEAST_CONSUMERS = 2
LEAST_EXTENT = 64


@dataclass(frozen=True)
class Plan:
    """Tiles of K and of V in flight, and whether Q's fragments stay in registers."""

    stages: int
    query_in_registers: bool


def make_plan(found: SoftmaxLoops, parts: int, stages: int, shared_bytes: int, stored: Sequence[str]) -> Plan:
    """`stages` 0: as the loops ask. Raises NotRecognised where shared memory or registers do not suffice."""
    size = ELEMENTS[found.query.out.dtype].bits // 8
    for extent in (found.columns, found.depth, found.width):
        if extent & (extent - 1) or not 16 <= extent <= 256:
            raise NotRecognised(f"a tile's extent {extent} is no power of two from 16 to 256", found.query)
    rows = parts * ROWS_OF_CONSUMER
    once = rows * found.depth * size + sum(rows * found.width * ELEMENTS[dtype].bits // 8 for dtype in stored)
    each = found.columns * (found.depth + found.width) * size
    possible = (shared_bytes - BARRIER_BYTES - once) // each
    wanted = stages or max(2, *(loop.op.num_stages for loop in found.loops))
    if possible < 2:
        raise NotRecognised(f"two stages need {once + 2 * each} bytes of shared memory of {shared_bytes}", found.query)
    return Plan(min(wanted, possible), query_in_registers(found.columns, found.depth, found.width, parts, found.query))


def query_in_registers(columns: int, depth: int, width: int, parts: int, query: object) -> bool:
    """Whether Q's fragments fit beside scores, accumulator and weights, with a tenth left for the rest."""
    limit = CONSUMER_REGISTERS[parts] * 9 // 10
    tiles = columns // 2 + width // 2 + columns // 4
    if tiles > limit:
        raise NotRecognised(f"tiles of {columns} and {width} columns need {tiles} registers a thread of {limit}")
    return tiles + depth // 4 <= limit and parts < 3


def drawback(found: SoftmaxLoops, parts: int) -> str:
    """Why Triton is to write these loops although Gluon could; empty where Gluon is the faster.

    One consumer has nobody to compute row-wise updates behind whose products, and with tiles of fewer than 64 keys or
    columns, barriers weigh more than products.
    """
    if parts < LEAST_CONSUMERS:
        return f"blocks of {found.rows} rows leave one consumer alone; two or three, of 64 rows each, are faster"
    small = min(found.columns, found.depth, found.width)
    return f"a tile's extent {small} is less than {LEAST_EXTENT}" if small < LEAST_EXTENT else ""
