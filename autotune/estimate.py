"""A roofline estimate of a kernel's time, for machines that cannot measure it. It ranks; it is no forecast.

    time = waves * max(operations of a block / a block's share of the peak, bytes of a block / its share of bandwidth)

A wave is as many blocks as the GPU holds at once (multiprocessors x occupancy, from the compiled kernel's resources). A
block's operations are those of its matrix products, its bytes what it copies from and to global memory, most of which
hits the second-level cache. Loops count with their trips where those are constant, else once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.text import parse_op
from tiledsl.ir.types import ELEMENTS
from tiledsl.runtime.kernel import Kernel
from tiledsl.runtime.target import Target

# Dense 16-bit tensor-core peak in TFLOP/s and DRAM bandwidth in TB/s, from the data sheets of A100, L40S, H200, B200.
_PEAKS = {80: (312, 2.0), 89: (362, 0.86), 90: (989, 4.8), 100: (2250, 8.0)}
_CACHE_OVER_DRAM = 2.0  # what the second-level cache delivers, against DRAM; about 2 on A100 and H100
_FULL_RATE_WARPS = 4  # warps a multiprocessor needs to keep its four tensor cores busy
_SPILL_PENALTY = 2.0


@dataclass
class BlockWork:
    """What one block of a launch does, and how many blocks there are."""

    blocks: int = 1
    operations: float = 0.0
    bytes: float = 0.0
    warps: int = 4


def estimate(kernel: Kernel, target: Target, occupancy: int | None = None, spills: int | None = None) -> float:
    """Milliseconds on the target, the interpreter standing for cuda:90. Launches of a program add up."""
    arch = target.arch if isinstance(target.arch, int) else 90
    tera, bandwidth = _PEAKS[max((known for known in _PEAKS if known <= arch), default=80)]
    sm_count = target.sm_count
    seconds = 0.0
    for work in block_work(kernel):
        resident = occupancy or 2
        per_wave = sm_count * resident
        waves = max(1, math.ceil(work.blocks / per_wave))
        sharing = min(resident, max(1, math.ceil(work.blocks / sm_count)))
        rate = min(1.0, sharing * work.warps / _FULL_RATE_WARPS)
        compute = work.operations * sharing / (tera * 1e12 / sm_count * rate)
        memory = work.bytes * sharing / (bandwidth * 1e12 * _CACHE_OVER_DRAM / sm_count)
        seconds += waves * max(compute, memory)
    return seconds * 1e3 * (_SPILL_PENALTY if spills else 1.0)


def block_work(kernel: Kernel) -> list[BlockWork]:
    """The work of each launch, read from the program before lowering."""
    root = parse_op(kernel.ir())
    result = []
    for op in root.walk():
        if isinstance(op, tile.KernelOp):
            grid = [constant_of(value) for value in op.grid]
            work = BlockWork(math.prod(int(each) for each in grid if each is not None), warps=max(1, op.threads // 32))
            _add(op.body, 1.0, work)
            result.append(work)
    return result


def _add(ops: Iterable[Operation], times: float, work: BlockWork) -> None:
    for op in ops:
        if isinstance(op, tile.GemmOp):
            m, n = _shape(op.c)[-2:]
            k = _shape(op.a)[-2 if op.trans_a else -1]
            work.operations += times * 2 * m * n * k
        elif isinstance(op, tile.CopyOp):
            touched = [side for side in (op.source, op.target) if tile.buffer_type(side).scope == "global"]
            work.bytes += times * sum(math.prod(op.shape) * ELEMENTS[side.dtype].bits / 8 for side in touched)
        elif (
            isinstance(op, (tile.LoadOp, tile.StoreOp, tile.AtomicOp)) and tile.buffer_type(op.buffer).scope == "global"
        ):
            work.bytes += times * ELEMENTS[op.buffer.dtype].bits / 8
        inner = times
        if isinstance(op, scf.ForOp):
            inner *= _trips(op)
        elif isinstance(op, tile.ParallelOp):
            inner *= math.prod(op.extents)
        for region in op.regions:
            _add(region, inner, work)


def _shape(value: Value) -> tuple[Any, ...]:
    return value.shape


def _trips(op: scf.ForOp) -> float:
    lower, upper, step = (constant_of(each) for each in (op.lower, op.upper, op.step))
    if lower is None or upper is None or not step:
        return 1.0
    return max(0, math.ceil((upper - lower) / step))
