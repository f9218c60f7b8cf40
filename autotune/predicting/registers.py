"""Registers and spills of a thread, guessed from a program's tiles before it is compiled."""

from __future__ import annotations

from tiledsl.analysis.hardware import MAX_REGISTERS
from tiledsl.autotuner.predicting.prune import accumulator_registers
from tiledsl.autotuner.predicting.work_types import Work
from tiledsl.ir.types import ELEMENTS
from tiledsl.runtime.target import Target

# What compiled GEMMs, attentions and softmaxes had besides their tiles, with pointers (Triton 3.6, sm_90).
_REGISTERS = 16
_REGISTERS_OF_LOADS = 12  # more, for the addresses of operands loaded ahead
_LEAST_SPILLS = 512  # bytes of a thread, once its tiles do not fit: it was 72 to 1032


def guessed_registers(work: Work, target: Target) -> int:
    """Registers that a thread would like to have; more than MAX_REGISTERS if its tiles do not fit."""
    return _of_tiles(work, target) + _REGISTERS + (_REGISTERS_OF_LOADS if work.dots else 0)


def guessed_spills(work: Work, target: Target) -> int:
    """Bytes that a thread spills if its tiles leave no room. Addresses of loads can be computed again instead."""
    missing = _of_tiles(work, target) + _REGISTERS - MAX_REGISTERS
    return max(_LEAST_SPILLS, 4 * missing) if missing > 0 else 0


def _of_tiles(work: Work, target: Target) -> int:
    threads = work.warps(target) * target.warp_size * int(work.options.get("num_ctas") or 1)
    live = work.live_bytes / 4 / threads
    sums = {dot.accumulator: accumulator_registers(dot, threads) for dot in work.dots}
    if isinstance(target.arch, int) and 100 <= target.arch < 120:  # sums lie in tensor memory until the epilogue
        live = max(live - sum(sums.values()), max(sums.values(), default=0) / 2)
    exchanged = 0.0  # a computed operand whose rows are divided stands in its old layout and, whole, in its new one
    for dot in work.dots:
        groups = groups_along_row(dot.m, work, target)
        if dot.is_computed and groups > 1:
            own = dot.m * dot.k * ELEMENTS[dot.dtype].bits / 32 / threads
            exchanged = max(exchanged, own * (2 * groups - 1))
    return round(live + exchanged)


def groups_along_row(rows: int, work: Work, target: Target) -> int:
    """Groups of four warps among which the columns of a product are divided. A group takes 64 rows, as wgmma does; only
    those that find no rows left share some."""
    return max(1, work.warps(target) // 4 // max(1, rows // 64))
