"""One configuration's way through a tuning run."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel

Status = Literal[
    "new", "ok", "pruned", "compile_error", "compile_timeout", "out_of_resources", "launch_error", "crash", "hang",
    "mismatch", "nonfinite", "other_bits", "screened", "disproved",
]  # fmt: skip
_MEASURED = (
    "status", "message", "latency", "spread", "timing", "verified", "max_error", "mean_error", "mismatched_ratio",
    "output_bits", "doubts", "metrics",
)  # fmt: skip
OUTCOME = (*_MEASURED, "alone", "rounds", "noise")  # with what the final round adds
_SHARED = (*OUTCOME, "objective", "resources", "compile_seconds", "binary_hash", "bit_class")
NOT_TRIED = "not tried: "  # a trial that was left out by a budget or the search has a message that begins so
STATUSES: tuple[str, ...] = get_args(Status)


@dataclass
class Trial:
    """What became of one configuration.

    latency: milliseconds, measured or estimated as the result says; spread: the interquartile range of the samples;
    timing: how they were taken; rounds: of the final measurement, in which the best few are timed against each other,
    under lasting load where that lowers the GPU's clock; alone: the latency before that; noise: how much
    latencies over the fastest one's varied from round to round, as a share. by_rank: milliseconds on each rank of a
    group, of which the latency is the largest.
    max_error, mean_error: largest and mean absolute difference from the reference. resources: shared_bytes, registers,
    spills, occupancy of the compiled kernel. same_as: the index of the trial with identical source or an identical
    binary, whose outcome this one shares. verified: whether the outputs were compared. doubts: on which
    further inputs they are wrong, and how, by name; see measuring/again.py. bit_class, output_bits: with
    `numerics`, equal for trials that round alike as far as their programs and machine code say, and for those whose
    outputs had the same bits. metrics: the numbers of the option `metrics`, by name; objective: what is minimised,
    where that is not the latency. certificate: what verify=True found, as Certificate.data() has it; a trial of which a
    check fails is "disproved".
    """

    index: int
    config: dict[str, Any]
    status: Status = "new"
    message: str = ""
    latency: float | None = None
    spread: float | None = None
    timing: str = ""
    rounds: int = 0
    alone: float | None = None
    noise: float | None = None
    by_rank: list[float] | None = None
    verified: bool = False
    max_error: float | None = None
    mean_error: float | None = None
    mismatched_ratio: float | None = None
    resources: dict[str, Any] | None = None
    compile_seconds: float | None = None
    source_hash: str = ""
    binary_hash: str = ""
    doubts: dict[str, Any] | None = None
    bit_class: str = ""
    output_bits: str = ""
    metrics: dict[str, Any] | None = None
    objective: float | None = None
    certificate: dict[str, Any] | None = field(default=None, repr=False)
    same_as: int | None = None
    build: Callable[[], Kernel] | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def milliseconds(self) -> float:
        """The latency; infinite where there is none."""
        return math.inf if self.latency is None else self.latency

    @property
    def cost(self) -> float:
        """What is minimised: the objective where there is one, else milliseconds; infinite for what does not work."""
        return self.milliseconds if self.objective is None else self.objective

    @property
    def kernel(self) -> Kernel:
        """This configuration's kernel; raises what building it raised. What ended a fork is not built here."""
        assert self.build is not None, "a trial of a run can build its kernel"
        if self.status in ("crash", "compile_timeout") and not self.source_hash:
            raise TileError(f"{config_text(self.config)} is not built in this process: {self.message}")
        return self.build()

    @property
    def source(self) -> str:
        """The Triton source of this configuration."""
        return self.kernel.source

    def ir(self, after: str = "") -> str:
        """The IR of this configuration after a pass."""
        return self.kernel.ir(after)

    def share(self, other: Trial) -> None:
        """Take the outcome of a trial with the same source or binary."""
        self.update({name: getattr(other, name) for name in _SHARED})

    @property
    def asm(self) -> Mapping[str, Any]:
        """ttir, ttgir, llir, ptx, sass (or amdgcn) of this configuration, compiled now unless Triton's cache has it."""
        return self.kernel.asm

    def update(self, outcome: Mapping[str, Any]) -> None:
        """Take over these fields."""
        for name, value in outcome.items():
            setattr(self, name, value)

    def record(self, outcome: Mapping[str, Any]) -> None:
        """Take over what a benchmark process found."""
        self.update({name: outcome[name] for name in _MEASURED if name in outcome})
        if self.status not in ("new", "ok", "screened"):
            self.fail(self.status, self.message)

    def fail(self, status: Status, error: BaseException | str) -> None:
        """End the trial; the message is the error's text, with its type unless it is one of ours."""
        self.status, self.latency, self.spread, self.verified = status, None, None, False
        self.metrics = self.objective = None
        plain = isinstance(error, (str, TileError))
        self.message = str(error) if plain else f"{type(error).__name__}: {error}"


def own_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Trials that their holder may change."""
    return [replace(each, config=copy.deepcopy(each.config)) for each in trials]


def summary_of_failures(trials: Sequence[Trial]) -> list[str]:
    """A line for each status: how many, and the first one's configuration and message."""
    lines = []
    for status in STATUSES:
        failed = [trial for trial in trials if trial.status == status]
        if failed:
            first = failed[0].message.strip().replace("\n", "\n    ")
            lines.append(f"{status}: {len(failed)}; first, {config_text(failed[0].config)}:\n    {first}")
    return lines


def config_text(config: Mapping[str, Any]) -> str:
    """`block_M=64 block_N=128`."""
    return " ".join(f"{name}={value}" for name, value in config.items()) or "(no tunables)"


def value_text(value: Any) -> str:
    """A value of a configuration that JSON does not have, as text: its repr, unless that is an address."""
    text = repr(value)
    return str(value) if " at 0x" in text else text
