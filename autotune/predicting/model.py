"""A model of a kernel's time, to order configurations before they are measured and where nothing can be measured.

A multiprocessor works off its share of the blocks, so many at once as it holds: a round. For each block there is

    throughput  max(products, second-level cache) + the part of the arithmetic that does not overlap + barriers
    chain       what it takes alone: first loads, then products, arithmetic and exchanges between warps one after the
                other, or the loads of its loop if they are not far enough ahead

A block of each round pays its whole chain; how much of it the others beside it cover depends on how many they are
(Little's law). Against that stands the time of DRAM. Where two limits meet, a smooth maximum says that neither hides
the other wholly. Roofline after Williams et al., 2009; latency and occupancy after Volkov, "Understanding latency
hiding on GPUs", 2016. machines.py has the numbers. The model ranks, it is no forecast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tiledsl.analysis.hardware import CACHE_BYTES, FLOAT_LANES, MAX_REGISTERS, SPECIAL_LANES
from tiledsl.autotuner.predicting.machines import COSTS, LAUNCH_MS, SHARED_BYTES, SYNCHRONOUS, Costs, machine_of
from tiledsl.autotuner.predicting.prune import is_asynchronous, shared_bytes
from tiledsl.autotuner.predicting.registers import groups_along_row, guessed_registers, guessed_spills
from tiledsl.autotuner.predicting.traffic import compulsory_bytes, dram_bytes, moved_bytes
from tiledsl.autotuner.predicting.work import work_of
from tiledsl.autotuner.predicting.work_types import Dot, Reduction, Work
from tiledsl.ir.types import ELEMENTS
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.resources import Resources, occupancy_limit
from tiledsl.runtime.target import Target

_VECTOR_BYTES = 16  # that a thread loads at once


def predict(kernel: Kernel, target: Target, resources: Resources | Mapping[str, Any] | None = None) -> float:
    """Milliseconds of one call on the target (the interpreter stands for cuda:90). Launches of a program add up.

    `resources`: of the compiled kernel (or a trial's mapping), which give occupancy and spills; else they are guessed.
    """
    return predict_works(work_of(kernel), target, resources)


def predict_works(
    works: Sequence[Work],
    target: Target,
    resources: Resources | Mapping[str, Any] | None = None,
    costs: Costs = COSTS,
) -> float:
    """As predict, for a program that was only read; see work.read."""
    if target.kind == "interpret":
        target = Target("cuda", 90)
    return sum(_launch(work, target, resources, costs).milliseconds() for work in works)


def parts(work: Work, target: Target, resources: Resources | Mapping[str, Any] | None = None) -> dict[str, float]:
    """Milliseconds of what a launch does, were each alone: products ("tensor cores"), other arithmetic, DRAM, spilled
    registers, and "waiting", which is what a block's chain of loads and results adds to its work. They overlap."""
    launch = _launch(work, target, resources, COSTS)
    products, vector = launch.products(), launch.vector()
    waiting = launch.rounds * max(0.0, launch.chain(products, vector) - launch.throughput(products, vector))
    each = {"tensor cores": launch.blocks * products, "arithmetic": launch.blocks * vector, "DRAM": launch.dram(),
            "spills": launch.blocks * launch.spilling(), "waiting": waiting}  # fmt: skip
    return {name: seconds * 1e3 for name, seconds in each.items()}


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
        total += sum(compulsory_bytes(work).values())
    return total or None


def tensor_tera(dot: Dot, target: Target) -> float:
    """Peak TFLOP/s of the target's tensor cores for a product's element type."""
    bits, arch = ELEMENTS[dot.dtype].bits, target.arch
    if dot.precision == "ieee" and bits == 32 or bits == 64:
        speed = 1 / 16
    else:
        speed = 16 / bits if bits != 8 or not isinstance(arch, int) or arch >= 89 else 1.0
    return machine_of(target).tera * speed


def peak_tera(kernel: Kernel) -> float | None:
    """Peak TFLOP/s of the kernel's target for its products, weighted by their operations; None if it has none."""
    dots = [(work.blocks * dot.useful * dot.times, dot) for work in work_of(kernel) for dot in work.dots]
    seconds = sum(amount / tensor_tera(dot, kernel.target) for amount, dot in dots)
    return sum(amount for amount, _ in dots) / seconds if seconds else None


def occupancy(work: Work, target: Target, resources: Resources | Mapping[str, Any] | None = None) -> int:
    """Blocks that a multiprocessor holds at once: the binary's, or what guessed registers and shared memory allow."""
    if resources is not None and (limit := _known(resources, "occupancy_limit")):
        return max(1, int(limit[0]))
    registers = min(MAX_REGISTERS, guessed_registers(work, target), int(work.options.get("maxnreg") or MAX_REGISTERS))
    shared, _ = shared_bytes(work, target, likely=True)
    return max(1, occupancy_limit(target, work.warps(target), registers, min(shared, target.max_shared_bytes))[0])


def _known(resources: Resources | Mapping[str, Any], name: str) -> Any:
    """None where an older file of results does not have it."""
    return resources.get(name) if isinstance(resources, Mapping) else getattr(resources, name)


def _launch(work: Work, target: Target, resources: Resources | Mapping[str, Any] | None, costs: Costs) -> _Launch:
    """The launch as select-emitter writes it: by default in Gluon where products wait for each other, several
    consumers can share them, and that is faster."""
    written = _Launch(work, target, resources, costs)
    if work.emitter == "triton" or not work.consumers or (target.kind, target.arch) != ("cuda", 90):
        return written
    scheduled = _InGluon(work, target, resources, costs)
    may = work.is_chain and work.consumers > 1
    if work.emitter == "gluon" or may and scheduled.milliseconds() < written.milliseconds():
        return scheduled
    return written


class _Launch:
    """One launch on one target. Times are seconds, of a block on one multiprocessor where nothing else is said."""

    def __init__(
        self, work: Work, target: Target, resources: Resources | Mapping[str, Any] | None, costs: Costs
    ) -> None:
        self.work, self.target, self.costs = work, target, costs
        self.machine = machine_of(target)
        self.cycle = 1e-9 / self.machine.ghz
        self.warps = work.warps(target)
        self.spilled = guessed_spills(work, target) if resources is None else _known(resources, "spills") or 0
        resident = occupancy(work, target, resources)
        if work.persistent:
            resident = min(resident, work.persistent)
        self.blocks = max(1, math.ceil(work.blocks / target.sm_count))  # of the multiprocessor that has most
        self.resident = min(resident, self.blocks)
        self.rounds = math.ceil(self.blocks / self.resident)
        self.iterations = sum(loop.iterations for loop in work.loops)

    def milliseconds(self) -> float:
        """Of the launch."""
        products, vector = self.products(), self.vector()
        each, chain = self.throughput(products, vector), self.chain(products, vector)
        beside = (self.blocks - self.rounds) * each
        computing = self.rounds * each + self.joined(beside, self.rounds * max(0.0, chain - each))
        dram = self.dram()
        seconds = self.joined(computing, dram) + self.tail(computing, dram)
        return seconds * 1e3 + LAUNCH_MS

    def joined(self, one: float, other: float) -> float:
        """The smooth maximum of two times."""
        less, more = sorted((one, other))
        sharpness = self.costs.sharpness
        return more * (1 + (less / more) ** sharpness) ** (1 / sharpness) if more else 0.0

    def throughput(self, products: float, vector: float) -> float:
        """A block's part of the time, were there so many that everything is always busy."""
        busy = products / min(1.0, self.resident * self.warps / 4)  # one warp for each of the four tensor cores
        busy = max(busy, self.cache())
        hidden = self.costs.overlap * min(busy, vector)
        return busy + vector - hidden + self.spilling() + self.iterations * self.costs.barrier

    def cache(self) -> float:
        """What a block moves to and from the second-level cache."""
        moved = sum(moved_bytes(each, self.work) for each in self.work.traffic)
        return moved / (CACHE_BYTES * self.costs.cache) * self.cycle

    def chain(self, products: float, vector: float) -> float:
        """What a block takes alone, with whatever it waits for."""
        load = self.costs.load
        alone = products / min(1.0, self.warps / 4) + vector + self.spilling()
        alone += self.exchanges() * self.costs.exchange + self.iterations * self.costs.barrier
        ahead = sum(loop.iterations * load / (loop.stages - 1) for loop in self.work.loops if loop.stages > 1)
        waited = sum(loop.iterations * load for loop in self.work.loops if loop.stages <= 1)
        first = self.costs.start + load
        if self.work.persistent:  # the loads of the next block run ahead of this one's end
            first /= self.rounds
        return first + self.joined(alone, ahead) + waited

    def products(self) -> float:
        """By the tensor cores or by shared memory, whichever takes longer."""
        total = 0.0
        for dot in self.work.dots:
            tensor = self.tensor(dot) / self.costs.tensor
            total += max(tensor, self.operand_bytes(dot) / SHARED_BYTES * self.cycle)
        return total

    def tensor(self, dot: Dot) -> float:
        """Of the products of a kind, at the peak rate of the tensor cores."""
        arch = self.target.arch
        rate = tensor_tera(dot, self.target) * 1e12 / self.target.sm_count
        if isinstance(arch, int) and arch >= 90 and not is_asynchronous(dot, self.work, self.target):
            rate *= SYNCHRONOUS
        return 2.0 * dot.m * dot.n * dot.k * dot.times / rate

    def operand_bytes(self, dot: Dot) -> float:
        """Bytes that go through shared memory for a product: what is loaded into it, and what wgmma reads: for 64 rows
        the left operand's, unless it is in registers, and the right operand. Groups of warps that share rows divide the
        columns, and each reads those rows."""
        if not is_asynchronous(dot, self.work, self.target):
            return 0.0
        width = ELEMENTS[dot.dtype].bits / 8
        left = 0 if dot.is_computed else 64 * groups_along_row(dot.m, self.work, self.target)
        read = dot.m / 64 * (left + dot.n) * dot.k * width
        staged = [each for loop in self.work.loops for each in loop.staged.values()]
        written = sum(size for size, consumer in staged if consumer.number == dot.number)
        return (read + written) * dot.times

    def vector(self) -> float:
        """Of arithmetic outside products."""
        return (self.work.elementwise / FLOAT_LANES + self.work.special / SPECIAL_LANES) * self.cycle

    def exchanges(self) -> float:
        """How often the warps of a block wait for each other's parts of rows."""
        count = sum(each.times for each in self.work.reductions if self.warps_along(each) > 1)
        for dot in self.work.dots:
            if dot.is_computed and groups_along_row(dot.m, self.work, self.target) > 1:
                count += dot.times
        return count

    def warps_along(self, reduction: Reduction) -> int:
        """Warps that share a line: sums lie as products leave them; of other tiles a thread has as many neighbours as
        it loads at once, and the lanes of a warp follow each other."""
        if reduction.of_sums:
            return groups_along_row(reduction.lines, self.work, self.target)
        threads = self.warps * self.target.warp_size
        neighbours = min(_VECTOR_BYTES // 2, max(1, reduction.lines * reduction.length // threads))
        return min(self.warps, max(1, reduction.length // (neighbours * self.target.warp_size)))

    def spilling(self) -> float:
        """Storing what has no register and loading it again, in each iteration."""
        threads = self.warps * self.target.warp_size
        return 2 * self.spilled * threads * max(1.0, self.iterations) / self.costs.spill * self.cycle

    def dram(self) -> float:
        """Of all blocks' traffic."""
        held = self.resident * self.target.sm_count
        amount = dram_bytes(self.work, held, self.machine.cache_mib * 2**20)
        busy = max(1, min(self.work.blocks, held)) / self.target.sm_count  # a grid may be empty
        return amount / (self.machine.dram * 1e12 * self.costs.dram) / min(1.0, busy * 1.3)  # few cannot ask for all

    def tail(self, computing: float, dram: float) -> float:
        """At the end of the launch: the last round's loads and stores are on average half done when no new ones follow,
        or, where loops load ahead, all but the last ones; and a block with more iterations than others goes on
        alone."""
        drain = 0.5 * dram / self.rounds
        if any(1 < loop.stages < loop.iterations for loop in self.work.loops):
            drain = min(drain, self.costs.load)
        return drain + (self.work.longest - 1) * computing / self.rounds


class _InGluon(_Launch):
    """One launch in Gluon: one program on each multiprocessor, of a producer that loads and of consumers that hide each
    other's waits."""

    def __init__(
        self, work: Work, target: Target, resources: Resources | Mapping[str, Any] | None, costs: Costs
    ) -> None:
        super().__init__(work, target, resources, costs)
        self.resident, self.rounds = 1, self.blocks

    def throughput(self, products: float, vector: float) -> float:
        overlap = self.costs.scheduled if self.work.consumers > 1 and self.work.is_skewed else self.costs.overlap
        turn = self.costs.turn if self.work.is_chain else 0.0  # sums alone stay on their way
        busy = max(products, self.cache())
        return busy + vector - overlap * min(busy, vector) + self.spilling() + self.iterations * turn

    def chain(self, products: float, vector: float) -> float:
        return (self.costs.start + self.costs.load) / self.rounds + self.throughput(products, vector)
