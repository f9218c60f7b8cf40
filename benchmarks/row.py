"""What is measured: a row is one problem, and has candidates that solve it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Tensors = Sequence[Any]
Call = Callable[[], Any]

# What a candidate is, in the order of the report's columns.
KINDS = {
    "tiledsl": "tiledsl, tuned by its autotuner",
    "library": "cuBLAS, cuDNN, CUB or torch.compile",
    "triton": "Triton by hand, tuned by triton.autotune",
    "tilelang": "TileLang",
    "generated": "tiledsl, tuned over the space that it proposes",
    "copy": "a copy of as many bytes",
    "bf16": "cuBLAS in bfloat16, same shape",
}
# Yardsticks: what they compute is not the row's result, so it is not compared.
YARDSTICKS = ("copy", "bf16")
MEMORY_FAMILIES = ("softmax", "layer norm", "rms norm", "elementwise")
REDUCED_FAMILIES = (
    "softmax", "softmax backward", "rms norm", "rms norm backward", "layer norm", "layer norm backward",
    "cross-entropy", "cross-entropy backward",
)  # fmt: skip
MOVED_FAMILIES = ("quantisation", "rope", "swiglu", "swiglu backward", "mhc post", "permutation")


class Unavailable(Exception):
    """Why a candidate has no time here: not installed, or it does not take the row."""


@dataclass(frozen=True)
class Context:
    """How candidates are prepared. device: "cuda", or "cpu" where tiledsl and Triton interpret.

    tune: search the space; without, its first configuration is taken. quick: a few of the configurations only.
    seconds: after which tiledsl's tuner begins no further configuration, and compilations of TileLang are given up.
    generated: tiledsl searches what tiledsl.spaces.for_program proposes, not the row's own list.
    """

    device: str = "cuda"
    tune: bool = True
    quick: bool = False
    seconds: float | None = None
    generated: bool = False

    def some(self, configs: Sequence[Any]) -> list[Any]:
        """The configurations to try: all, the first three, or the first."""
        return list(configs[: 1 if not self.tune else 3 if self.quick else len(configs)])


@dataclass(frozen=True)
class Ready:
    """A candidate that can run.

    bind: takes the row's inputs and outputs and returns a call without arguments, which writes into the outputs and
    returns None, or returns tensors of its own. own_outputs: it does the latter. graph: it may be captured in a CUDA
    graph. config: what was chosen; tuning_seconds: how long choosing took, compilation included; rivals: what it was
    chosen from in the end, and what failed.
    """

    bind: Callable[[Tensors, Tensors], Call]
    config: Mapping[str, Any] = field(default_factory=dict)
    tuning_seconds: float | None = None
    rivals: Sequence[Mapping[str, Any]] = ()
    own_outputs: bool = False
    graph: bool = True
    note: str = ""


@dataclass(frozen=True)
class Candidate:
    """One way to solve a row. prepare raises Unavailable, with the reason, where it cannot."""

    kind: str
    name: str
    prepare: Callable[[Context, Row, Tensors], Ready]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a candidate is one of {', '.join(KINDS)}, not {self.kind!r}")


@dataclass(frozen=True)
class Row:
    """One problem.

    inputs: makes the inputs on a device. reference: right outputs for the inputs, computed in float32 or float64.
    outputs: (shape, dtype) of each output; a candidate gives the first `required` ones at least. operations: floating
    point operations; bytes_moved: what must be read and written, each byte once. unit: which ceiling of the GPU's
    matrix units bounds it ("fp16", "fp8"). error: the largest ||out - reference|| / ||reference||. tags: what targets
    select by. quick: part of a quick run.
    """

    family: str
    case: str
    inputs: Callable[[str], list[Any]]
    reference: Callable[..., list[Any]]
    outputs: tuple[tuple[tuple[int, ...], Any], ...]
    candidates: tuple[Candidate, ...]
    operations: float
    bytes_moved: float
    unit: str = "fp16"
    required: int = 1
    error: float = 1e-2
    tags: frozenset[str] = frozenset()
    quick: bool = False

    @property
    def name(self) -> str:
        """Family and case: what --only is compared with and results are kept by."""
        return f"{self.family}: {self.case}"

    def empty_outputs(self, device: str) -> list[Any]:
        """Fresh outputs, not written yet."""
        import torch

        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.outputs]
