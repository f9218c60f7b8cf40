"""What the model takes as given: data sheets of GPUs, and what was fitted to recordings."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.runtime.target import Target


@dataclass(frozen=True)
class Machine:
    """What data sheets say of a GPU: dense 16-bit TFLOP/s, TB/s of DRAM, MiB of the second-level cache, GHz."""

    name: str
    tera: float
    dram: float
    cache_mib: float
    ghz: float


_MACHINES = {80: Machine("A100 SXM", 312, 2.0, 40, 1.41), 89: Machine("L40S", 362, 0.86, 96, 2.5),
             90: Machine("H200", 989, 4.8, 50, 1.75), 100: Machine("B200", 2250, 8.0, 126, 1.85)}  # fmt: skip
_MI300X = Machine("MI300X", 1307, 5.3, 256, 2.1)


def machine_of(target: Target) -> Machine:
    """The GPU that stands for a target (the interpreter stands for cuda:90); the next older one for an architecture
    that is not known."""
    if target.kind == "interpret":
        return _MACHINES[90]
    if not isinstance(target.arch, int):
        return _MI300X
    return _MACHINES[max((known for known in _MACHINES if known <= target.arch), default=80)]


SHARED_BYTES = 128  # that a multiprocessor reads in a cycle (CUDA guide)
SYNCHRONOUS = 0.62  # mma.sync's rate on sm_90, of wgmma's

LAUNCH_MS = 0.002


@dataclass(frozen=True)
class Costs:
    """What no data sheet says. Fractions are of peaks, times are seconds.

    `dram` was measured for itself on an H200; the rest was fitted to recordings and rounded.
    benchmarks/results/README.md says what comes of it, and of fitting to other kernels than those predicted.
    """

    tensor: float = 0.85  # of the tensor cores' rate, at the clock of a GPU under load (cuBLAS: 0.77 in bursts)
    dram: float = 0.86  # of DRAM's bandwidth: what copies reach, 4.1 TB/s
    cache: float = 0.8  # of the second-level cache's bandwidth
    overlap: float = 0.5  # of the lesser of products and arithmetic that runs beside the greater
    scheduled: float = 0.9  # the same of two consumers or more in Gluon
    load: float = 0.9e-6  # from a load's issue to its data, under load
    start: float = 0.3e-6  # of a block until its first load is on its way, and to drain its last store
    barrier: float = 20e-9  # of an iteration of a loop, waiting for products to end and counting
    turn: float = 0.15e-6  # the same in Gluon, where products wait for each other
    exchange: float = 0.25e-6  # between the warps that share a row, through shared memory
    spill: float = 32.0  # bytes of spilled registers that a multiprocessor moves in a cycle
    sharpness: float = 4.0  # exponent of the smooth maximum


COSTS = Costs()
