"""Time a configuration on the GPU. Tests replace these functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tiledsl.autotuner.inputs import copies
from tiledsl.autotuner.options import TuneOptions
from tiledsl.runtime.kernel import Kernel
from tiledsl.runtime.target import Target

_SCREENING_CALLS = 3


def can_measure(target: Target) -> bool:
    """Whether times taken here say anything about the target."""
    return target.kind != "interpret" and target.runs_here


def time_kernel(kernel: Kernel, inputs: Sequence[Any], options: TuneOptions, best: float | None) -> tuple[float, bool]:
    """Median milliseconds of a call, and whether it was stopped after a few calls for being hopeless against `best`.

    The kernel gets copies of the inputs: one that adds to them would change what the next one sees.
    """
    return time_call(kernel, copies(inputs), options, best)


def time_call(
    call: Callable[..., Any], inputs: Sequence[Any], options: TuneOptions, best: float | None = None
) -> tuple[float, bool]:
    """As time_kernel, for any function of the inputs."""
    from tiledsl.runtime.profiler import do_bench

    if options.early_stop and best is not None:
        quick = float(do_bench(lambda: call(*inputs), n_warmup=1, n_repeat=_SCREENING_CALLS, return_mode="min"))
        if quick > best * options.early_stop_factor:
            return quick, True
    return float(do_bench(lambda: call(*inputs), warmup=options.warmup, rep=options.rep, return_mode="median")), False
