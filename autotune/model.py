"""A model of a kernel's time, to order configurations before they are measured and where nothing can be measured.

Roofline (Williams et al., 2009) for one wave of resident blocks, with what decides between tilings of one problem:

    iteration = max(tensor cores + vector units, second-level cache, DRAM, latency / pipeline depth)
    time      = waves * (iterations * iteration + prologue and epilogue) + launch

A wave is as many blocks as the GPU holds at once; the last one counts whole (tail quantisation). Bytes that the blocks
of a wave share come from DRAM once, which makes the order of blocks count. Peaks are data sheets', derated by what the
best kernels measured on an H200 reach; the model ranks, it is no forecast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.prune import accumulator_registers, is_asynchronous, shared_bytes
from tiledsl.autotuner.work import work_of
from tiledsl.autotuner.work_types import Dot, Work
from tiledsl.ir.types import ELEMENTS
from tiledsl.runtime.kernel import Kernel
from tiledsl.runtime.resources import Resources, occupancy_limit
from tiledsl.runtime.target import Target


@dataclass(frozen=True)
class Machine:
    """What the model knows of a GPU: dense 16-bit TFLOP/s, TB/s of DRAM and of the second-level cache, its MiB, GHz."""

    tera: float
    dram: float
    cache: float
    cache_mib: float
    ghz: float


# Data sheets of A100 SXM, L40S, H200, B200 and MI300X. Second-level cache: 64 bytes a cycle and multiprocessor (CUDA
# guide), of which 0.7 are reached.
_MACHINES = {80: Machine(312, 2.0, 6.8, 40, 1.41), 89: Machine(362, 0.86, 6.0, 96, 2.5),
             90: Machine(989, 4.8, 10.3, 50, 1.75), 100: Machine(2250, 8.0, 12.3, 126, 1.85)}  # fmt: skip
_MI300X = Machine(1307, 5.3, 17.0, 256, 2.1)
_REACHED = 0.8  # of the tensor cores' peak, by the best kernels under a power limit (cuBLAS on an H200: 757 of 989)
_DRAM_REACHED = 0.85  # a copy on an H200: 3.96 of 4.8 TB/s
_SYNCHRONOUS = 0.62  # mma.sync against wgmma on sm_90
_LATENCY = 0.8e-6  # seconds from a load's issue to its data, under load
_BLOCK_START = 1.5e-6  # seconds until a block's first load is on its way, and to drain its last store
_SYNC = 40e-9  # seconds of an iteration in which a block waits at barriers and counts
_LAUNCH_MS = 0.002


def predict(kernel: Kernel, target: Target, resources: Resources | Mapping[str, Any] | None = None) -> float:
    """Milliseconds of one call on the target (the interpreter stands for cuda:90). Launches of a program add up.

    `resources`: of the compiled kernel (or a trial's mapping), which give occupancy and spills; else they are guessed.
    """
    return predict_works(work_of(kernel), target, resources)


def predict_works(
    works: Sequence[Work], target: Target, resources: Resources | Mapping[str, Any] | None = None
) -> float:
    """As predict, for a program that was only read; see work.read."""
    if target.kind == "interpret":
        target = Target("cuda", 90)
    return sum(_launch_ms(work, target, resources) for work in works)


def flops(kernel: Kernel) -> float | None:
    """Floating-point operations of the program's matrix products, without padding; None if there are none, or their
    number depends on data or on dynamic sizes."""
    works = work_of(kernel)
    if not all(work.is_static for work in works):
        return None
    total = sum(work.blocks * dot.useful * dot.times for work in works for dot in work.dots)
    return total or None


def bytes_moved(kernel: Kernel) -> float | None:
    """Bytes that must cross DRAM: what each launch touches of each buffer, read once and written once. None if that
    depends on data or on dynamic sizes."""
    works = work_of(kernel)
    if not works or not all(work.is_static for work in works):
        return None
    total = 0.0
    for work in works:
        if any(each.scattered for each in work.traffic):
            return None
        total += sum(_compulsory(work).values())
    return total or None


def _compulsory(work: Work) -> dict[tuple[str, bool], float]:
    """Bytes of each buffer and direction that are touched at all."""
    touched: dict[tuple[str, bool], float] = {}
    for each in work.traffic:
        key = (each.buffer, each.is_store)
        along = math.prod((work.grid[axis] or 1) for axis in each.axes)
        touched[key] = min(touched.get(key, 0.0) + each.reach * along, each.size or math.inf)
    return touched


# One launch


def occupancy(work: Work, target: Target, resources: Resources | Mapping[str, Any] | None = None) -> int:
    """Blocks that a multiprocessor holds at once: the binary's, or what guessed registers and shared memory allow."""
    if resources is not None:
        limit = resources["occupancy_limit"] if isinstance(resources, Mapping) else resources.occupancy_limit
        return max(1, int(limit[0]))
    registers = min(255, guessed_registers(work, target), int(work.options.get("maxnreg") or 255))
    shared, _ = shared_bytes(work, target, likely=True)
    return max(1, occupancy_limit(target, work.warps(target), registers, min(shared, target.max_shared_bytes))[0])


def guessed_registers(work: Work, target: Target) -> int:
    """Registers of a thread: the accumulators, and what addresses and temporaries took in compiled GEMMs."""
    threads = work.warps(target) * target.warp_size
    if isinstance(target.arch, int) and 100 <= target.arch < 120:  # sums lie in tensor memory until the epilogue
        return 40 + max((accumulator_registers(dot, threads) for dot in work.dots), default=0) // 2
    tiles = {dot.accumulator: accumulator_registers(dot, threads) for dot in work.dots}
    return 40 + sum(tiles.values())


def _launch_ms(work: Work, target: Target, resources: Resources | Mapping[str, Any] | None) -> float:
    machine, sms = _machine(target), target.sm_count
    resident = occupancy(work, target, resources)
    per_wave = sms * resident
    waves = max(1, math.ceil(work.blocks / per_wave))
    sharing = min(resident, max(1, math.ceil(work.blocks / sms)))  # blocks on one multiprocessor
    trips = max((loop.trips for loop in work.loops), default=1.0) or 1.0
    depth = max((loop.stages for loop in work.loops), default=1)
    tensor = (
        sum(_dot_seconds(dot, work, target, machine) for dot in work.dots) * sharing / _filled(work, target, sharing)
    )
    vector = _vector_seconds(work, machine) * sharing
    busy_groups = sharing * work.warps(target) / 4
    compute = max(tensor, vector) + (0.5 if busy_groups >= 2 else 1.0) * min(tensor, vector) + trips * _SYNC
    traffic = sum(each.bytes for each in work.traffic)
    cache = traffic * sharing / (machine.cache * 1e12 / sms)
    running = min(work.blocks, per_wave)
    dram = _dram_bytes(work, per_wave, machine) / waves / (machine.dram * 1e12 * _DRAM_REACHED)
    dram /= min(1.0, running / sms * 1.3)  # too few multiprocessors cannot ask for the whole bandwidth
    if not (work.loops and work.dots):
        latency = _LATENCY + compute / sharing / 4
    elif depth > 1:
        latency = trips * _LATENCY / (depth - 1)
    else:  # nothing overlaps within a block, and loads pass through registers on their way to shared memory
        compute += 2 * traffic * sharing / (128 * machine.ghz * 1e9)
        latency = trips * _LATENCY + compute / sharing
    body = max(compute, cache, dram, latency)
    fill = min(depth, trips) * _LATENCY / 4 + _BLOCK_START / sharing
    seconds = waves * (body + fill)
    return seconds * 1e3 * _spill_factor(work, target, resources) + _LAUNCH_MS


def _machine(target: Target) -> Machine:
    if not isinstance(target.arch, int):
        return _MI300X
    return _MACHINES[max((known for known in _MACHINES if known <= target.arch), default=80)]


def _dot_seconds(dot: Dot, work: Work, target: Target, machine: Machine) -> float:
    """Of one multiprocessor for one block's products of a kind, with all its warps at work."""
    bits = ELEMENTS[dot.dtype].bits
    if dot.precision == "ieee" and bits == 32 or bits == 64:
        speed = 1 / 16
    else:
        speed = 16 / bits if bits != 8 or _machine(target) is not _MACHINES[80] else 1.0
    rate = machine.tera * 1e12 / target.sm_count * _REACHED * speed
    sums = accumulator_registers(dot, work.warps(target) * target.warp_size)
    rate *= 1 - 0.03 * max(0.0, math.log2(64 / sums))  # threads with little work each: as 8 warps at 64 x 64
    if isinstance(target.arch, int) and target.arch >= 90:
        if not is_asynchronous(dot, work, target):
            rate *= _SYNCHRONOUS
        else:  # wgmma reads A (64 rows) and B from shared memory at 128 bytes a cycle: narrow products wait for it
            cycles = 64 * dot.n * 16 * 2 / 4096
            needed = (64 + dot.n) * 16 * 2 / 128
            rate *= min(1.0, cycles / needed)
    return 2.0 * dot.m * dot.n * dot.k * dot.times / rate


def _filled(work: Work, target: Target, sharing: int) -> float:
    """How much of a multiprocessor's four tensor cores the resident warps keep busy; one warp each does not quite."""
    warps = sharing * work.warps(target)
    return min(1.0, warps / 4) * (0.9 if warps < 8 else 1.0)


def _vector_seconds(work: Work, machine: Machine) -> float:
    """128 float32 operations and 16 special functions a cycle on each multiprocessor (CUDA guide, throughputs)."""
    return (work.elementwise / 128 + work.special / 16) / (machine.ghz * 1e9)


def _spill_factor(work: Work, target: Target, resources: Resources | Mapping[str, Any] | None) -> float:
    if resources is None:
        over = guessed_registers(work, target) - 255
        return 1.0 if over <= 0 else 1.0 + over / 32
    spills = resources.get("spills") if isinstance(resources, Mapping) else resources.spills
    return 1.0 + min(spills or 0, 512) / 64


def _dram_bytes(work: Work, per_wave: int, machine: Machine) -> float:
    """Bytes from DRAM: each wave fetches what its blocks touch, once, unless everything stays in the cache."""
    compulsory = sum(_compulsory(work).values())
    if compulsory < 0.5 * machine.cache_mib * 2**20:
        return compulsory
    waves = max(1.0, work.blocks / per_wave)
    spans = _spans(work, min(per_wave, work.blocks))
    total = 0.0
    for each in work.traffic:
        distinct = math.prod(spans[axis] for axis in each.axes)
        total += each.bytes * distinct * waves
    return max(total, compulsory)


def _spans(work: Work, running: int) -> list[float]:
    """How many different indices along each grid dimension run at once: the first dimension counts up fastest, or
    `panel` rows of blocks are walked together."""
    sizes = [each or 1 for each in work.grid]
    if work.panel and len(sizes) > 1:
        rows = min(work.panel, sizes[1], running)
        across = min(sizes[0], max(1.0, running / rows))
        further = max(1.0, running / (rows * across))
        return [float(across), min(float(sizes[1]), rows * further), *(1.0 for _ in sizes[2:])]
    spans = []
    left = float(running)
    for size in sizes:
        spans.append(min(float(size), max(1.0, left)))
        left /= size
    return spans
