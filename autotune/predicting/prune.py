"""Configurations that cannot work, or cannot be fast, found without compiling them, each with a reason to read.

`prune_reason` looks at the program before lowering; its estimate of shared memory is a lower bound on what Triton
allocates, so that nothing that compiles is pruned. `prune_compiled` looks at the exact numbers of a binary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiledsl.analysis.hardware import MAX_REGISTERS
from tiledsl.autotuner.predicting.work import work_of
from tiledsl.autotuner.predicting.work_types import Dot, Loop, Work
from tiledsl.ir.types import ELEMENTS
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.resources import Resources
from tiledsl.runtime.target import Target

TRITON_MAX_NUMEL = 1 << 20  # elements of a tensor: triton.language, TRITON_MAX_TENSOR_NUMEL
HEAVY_SPILLS = 512  # bytes a thread; above this, every GEMM and attention configuration measured so far was hopeless


def prune_reason(kernel: Kernel, target: Target) -> str | None:
    """Why this configuration need not be compiled for a target, or None."""
    return reason(work_of(kernel), target)


class SoftPruneReason(str):
    """A reason that makes a configuration slow, not impossible: what has no register is spilled."""


def reason(works: Sequence[Work], target: Target) -> str | None:
    """As prune_reason, for a program that was only read; see work.read."""
    for work in works:
        drawback = (
            _dtypes(work, target)
            or _threads(work, target)
            or _clusters(work, target)
            or _tiles(work)
            or _shared(work, target)
            or _registers(work, target)
        )
        if drawback is not None:
            return drawback
    return None


def needs_as_much(one: Sequence[Work], other: Sequence[Work], target: Target) -> bool:
    """Whether a configuration needs no less shared memory than another one: the same products on the same tiles by as
    many warps, and loops that run as far ahead or further."""
    if len(one) != len(other):
        return False
    for mine, given in zip(one, other):
        if mine.warps(target) != given.warps(target) or mine.dots != given.dots or len(mine.loops) != len(given.loops):
            return False
        for loop, least in zip(mine.loops, given.loops):
            if loop.staged != least.staged or loop.held != least.held or loop.stages < least.stages:
                return False
    return True


def is_at_least(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a configuration has the same number of warps as another one, and no number that is smaller: of programs
    that are not known, tiles and stages count for shared memory, and both grow with their numbers."""
    if one.keys() != other.keys() or one.get("num_warps") != other.get("num_warps"):
        return False
    return all(
        value >= other[name] if type(value) is int and type(other[name]) is int else value == other[name]
        for name, value in one.items()
    )


def prune_compiled(
    resources: Resources | Mapping[str, Any], target: Target, max_spills: int | None = HEAVY_SPILLS
) -> str | None:
    """Why a compiled configuration need not be measured, or None. `max_spills`: bytes a thread; None: any number.

    `resources` are those of the kernel, or a trial's mapping of the same names.
    """
    get = resources.get if isinstance(resources, Mapping) else lambda name: getattr(resources, name)
    shared, registers, spills, warps = (get(name) for name in ("shared_bytes", "registers", "spills", "num_warps"))
    if shared is not None and shared > target.max_shared_bytes:
        return f"needs {shared} bytes of shared memory a block; {target} has {target.max_shared_bytes}"
    if registers is not None and warps is not None and target.kind == "cuda":
        needed = -(-registers // 8) * 8 * warps * target.warp_size  # given to warps in steps of 256, 8 a thread
        if needed > target.registers_per_sm:
            return (
                f"needs {registers} registers for each of {warps * target.warp_size} threads, {needed} in all;"
                f" a multiprocessor of {target} has {target.registers_per_sm}"
            )
    if spills is not None and max_spills is not None and spills > max_spills:
        return f"spills {spills} bytes of each thread's registers to memory; more than {max_spills} is hopeless"
    return None


def _dtypes(work: Work, target: Target) -> str | None:
    for dtype in sorted(work.dtypes):
        if not target.supports(dtype):
            return f"uses {dtype}, which {target} does not have"
    return None


def _threads(work: Work, target: Target) -> str | None:
    threads, limit = work.warps(target) * target.warp_size, target.max_threads_per_block
    return None if threads <= limit else f"needs {threads} threads a block; {target} has at most {limit}"


def _generation(target: Target) -> int:
    """The major number of CUDA's compute capability; 0 for others."""
    return target.arch // 10 if isinstance(target.arch, int) else 0


def _clusters(work: Work, target: Target) -> str | None:
    ctas = int(work.options.get("num_ctas") or 1)
    has_clusters = target.kind == "interpret" or 9 <= _generation(target) < 12
    return None if ctas == 1 or has_clusters else f"needs clusters of {ctas} blocks, which {target} does not have"


def _tiles(work: Work) -> str | None:
    if work.largest_tile <= TRITON_MAX_NUMEL:
        return None
    return f"{work.largest_name} has {work.largest_tile} elements (as a power of two); Triton allows {TRITON_MAX_NUMEL}"


# Shared memory


def _shared(work: Work, target: Target) -> str | None:
    needed, text = shared_bytes(work, target)
    available = target.max_shared_bytes
    if needed <= available:
        return None
    return f"needs at least {needed} bytes of shared memory a block ({text}); {target} has {available}"


def shared_bytes(work: Work, target: Target, likely: bool = False) -> tuple[int, str]:
    """Bytes that Triton allocates at the least (or likely), and how they come about, of the loop that needs most.

    A pipelined loop keeps `stages` copies of the operands of asynchronous products (wgmma on sm_90, tcgen05 on sm_100),
    and one less of others, which are read into registers first (and are not kept at all if they must be transposed for
    that). Operands loaded before the loop lie beside them.
    """
    ctas = int(work.options.get("num_ctas") or 1)
    if target.kind == "interpret" or ctas > 1:  # a cluster shares its operands
        return 0, ""
    best, text = 0, ""
    for loop in work.loops:
        held = sum(size for size, dot in loop.held.values() if likely or is_asynchronous(dot, work, target))
        parts = {
            name: size * _copies(loop, dot, work, target)
            for name, (size, dot) in loop.staged.items()
            if likely or name not in loop.turned or is_asynchronous(dot, work, target)
        }
        if loop.stages < 2:  # tiles of one product are there at once, those of two need not be
            parts = _of_largest_dot(loop, work, target, likely)
        if sum(parts.values()) + held > best:
            best = sum(parts.values()) + held
            shown = [f"{name} {size}" for name, size in parts.items()]
            if held:
                shown.append(f"{', '.join(loop.held)} {held}")
            text = " + ".join(shown) + (f"; {loop.stages} stages" if loop.stages > 1 else "")
    return best, text


def _copies(loop: Loop, dot: Dot, work: Work, target: Target) -> int:
    return loop.stages if is_asynchronous(dot, work, target) else max(1, loop.stages - 1)


def _of_largest_dot(loop: Loop, work: Work, target: Target, likely: bool) -> dict[str, int]:
    groups: dict[int, dict[str, int]] = {}
    for name, (size, dot) in loop.staged.items():
        if likely or is_asynchronous(dot, work, target):
            groups.setdefault(id(dot), {})[name] = size
    return max(groups.values(), key=lambda group: sum(group.values()), default={})


def is_asynchronous(dot: Dot, work: Work, target: Target) -> bool:
    """Whether Triton computes a product with wgmma or tcgen05, which read their operands from shared memory."""
    if not 9 <= _generation(target) < 12:
        return False
    if dot.m < 64 or dot.n < 8 or work.warps(target) < 4 or dot.dtype not in ELEMENTS or dot.precision == "ieee":
        return False
    bits = ELEMENTS[dot.dtype].bits
    if bits == 16:
        return True
    if bits > 32 or (bits == 8 and _generation(target) >= 10 and ELEMENTS[dot.dtype].kind != "float"):
        return False
    return dot.k_major


# Registers


def _registers(work: Work, target: Target) -> str | None:
    if target.kind == "interpret" or 10 <= _generation(target) < 12:  # tensor memory
        return None
    threads = work.warps(target) * target.warp_size * int(work.options.get("num_ctas") or 1)
    in_loops = [dot for dot in work.dots if dot.times > 1]  # sums that live through a loop
    largest = max(in_loops, key=lambda dot: dot.tile, default=None)
    available = min(MAX_REGISTERS, target.registers_per_sm // (work.warps(target) * target.warp_size))
    if largest is None or target.kind == "hip":  # CDNA keeps accumulators in registers of their own
        return None
    registers = accumulator_registers(largest, threads)
    allowed = int(work.options.get("maxnreg") or 0)
    if allowed and registers >= allowed:  # the sums alone; addresses and operands come on top
        return (
            f"the product's {largest.m} x {largest.n} accumulator needs {registers} registers of each of {threads}"
            f" threads, and maxnreg={allowed}"
        )
    if registers <= available:
        return None
    return SoftPruneReason(
        f"the product's {largest.m} x {largest.n} accumulator needs {registers} registers of each of {threads} threads;"
        f" {target} has {available}"
    )


def accumulator_registers(dot: Dot, threads: int) -> int:
    """32-bit registers of a thread for the sums of one product."""
    return -(-dot.tile // threads)
