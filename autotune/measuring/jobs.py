"""The requests that a benchmark process receives, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiledsl.autotuner.verifying.tolerance import Tolerance


@dataclass(frozen=True)
class Job:
    """A configuration as text: its Triton source, what to call in it, and what that takes.

    params: name, dtype, shape (a name for a dynamic size), strides and is_output of each parameter. timed: whether to
    time the kernel, or only to check it. share: of the time that the policy gives to timing. checked: it was found
    right before, and is timed again. bits: whether to find what its outputs' bits are; of_rows: only those of the first
    rows, see verifying/bits.py.
    """

    index: int
    name: str
    source: str
    entry: str
    into: str
    params: list[dict[str, Any]]
    outputs: list[int]
    config: dict[str, Any]
    interpret: bool
    timed: bool
    share: float = 1.0
    checked: bool = False
    bits: bool = False
    of_rows: dict[str, Any] | None = None

    @staticmethod
    def of(index: int, kernel: Any, timed: bool, share: float = 1.0, checked: bool = False, bits: bool = False) -> Job:
        """The job for a tiledsl.Kernel."""
        params = [
            {"name": p.name, "dtype": p.dtype, "shape": list(p.shape), "strides": p.strides, "is_output": p.is_output}
            for p in kernel.params
        ]
        plain = (bool, int, float, str, type(None))
        config = {name: v if isinstance(v, plain) else repr(v) for name, v in (kernel.config or {}).items()}
        module, interpret = kernel.module, kernel.target.kind == "interpret"
        return Job(
            index, kernel.name, kernel.source, module.entry, module.into, params, list(kernel.outputs), config,
            interpret, timed, share, checked, bits,
        )  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """How configurations are checked and timed; see TuneOptions. timer: `module:function` in place of the clock.
    settle: milliseconds at most for finding out what ties with the fastest; None for what `rep` suggests.
    wait_for_clock: seconds. metrics: by name, functions or `module:function`; by_latency: whether the fastest wins, so
    that slower ones need not be timed in full."""

    warmup: float
    rep: float
    tolerance: Tolerance
    keep_outputs: bool
    early_stop_factor: float | None
    timer: str | None
    cache_dir: str
    backend: str | None = None
    settle: float | None = None
    wait_for_clock: float = 0.0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    by_latency: bool = True

    @staticmethod
    def from_message(message: Mapping[str, Any]) -> Policy:
        return Policy(**{**message, "tolerance": Tolerance(**message["tolerance"])})
