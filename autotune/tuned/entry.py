"""One entry of a tuned-config file: the best configuration for some arguments, and how that is known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tiledsl.autotuner.storage.journal import number

_NUMBERS = ("latency_ms", "reference_ms", "tflops", "gb_per_s")
KINDS = ("measured", "estimated", "unknown")


@dataclass(frozen=True)
class TunedEntry:
    """The best configuration for some arguments.

    arguments: of the call, without tunables and without those that are as the function's defaults. latency_ms and
    reference_ms: milliseconds of the kernel and of ref_prog; latency_kind: whether the former was "measured" or
    "estimated", or is "unknown": then it is infinite, and left out of files. tflops, gb_per_s: of the kernel, where the
    program says how much it computes and moves. gpu, sm_count: of the GPU that measured. source: a hash of the
    function. tuned_at: UTC, ISO 8601. versions: of software. bit_class:
    of a tuning with `numerics`, the class of its results' bits (bit_class.py). certificate: what
    verify=True found of the kernel, as Certificate.data() has it.
    """

    arguments: dict[str, Any]
    config: dict[str, Any]
    latency_ms: float
    latency_kind: str
    source: str
    tuned_at: str
    reference_ms: float | None = None
    tflops: float | None = None
    gb_per_s: float | None = None
    gpu: str = ""
    sm_count: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    bit_class: str = ""
    certificate: dict[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        return self.latency_kind == "measured"

    @property
    def identity(self) -> tuple[str, str]:
        """Equal for entries of which a file needs one: those for the same arguments and GPU."""
        return as_text(self.arguments), self.gpu

    @property
    def rates(self) -> list[tuple[float, str]]:
        """TFLOP/s and GB/s with their units, as far as they are known."""
        return [(rate, unit) for rate, unit in ((self.tflops, "TFLOP/s"), (self.gb_per_s, "GB/s")) if rate]

    def is_better_than(self, other: TunedEntry) -> bool:
        """Of two entries for the same arguments: measured before estimated, then the faster, then the newer one."""
        return _merit(self) < _merit(other) or (_merit(self) == _merit(other) and self.tuned_at > other.tuned_at)


def _merit(entry: TunedEntry) -> tuple[bool, float]:
    return not entry.measured, entry.latency_ms


def as_text(value: Any) -> str:
    """Equal for equal JSON values, whatever the order of names; 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """`M=16 N=1024`."""
    return " ".join(f"{name}={value}" for name, value in arguments.items()) or "(no arguments)"


def encode(entry: TunedEntry) -> dict[str, Any]:
    """The entry as JSON has it. What is not known is left out."""
    optional = {each.name for each in fields(TunedEntry) if each.name not in _REQUIRED}
    optional |= set() if math.isfinite(entry.latency_ms) else {"latency_ms"}
    empty: tuple[Any, ...] = (None, "", {}, math.inf)
    return {name: value for name, value in asdict(entry).items() if name not in optional or value not in empty}


_REQUIRED = ("arguments", "config", "latency_ms", "latency_kind", "source", "tuned_at")
# The order in a file: what is looked for first.
ORDER = (
    "arguments", "config", "latency_ms", "latency_kind", "reference_ms", "tflops", "gb_per_s", "gpu", "sm_count",
    "source", "tuned_at", "versions", "bit_class", "certificate",
)  # fmt: skip


def decode(data: Any) -> TunedEntry:
    """The entry of a JSON value. ValueError says what is wrong with it."""
    if not isinstance(data, dict):
        raise ValueError("it is no object")
    unknown_time = data.get("latency_kind") == "unknown"
    missing = [name for name in _REQUIRED if name not in data and not (unknown_time and name == "latency_ms")]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    unknown = [name for name in data if name not in ORDER]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no field of an entry")
    values = dict(data)
    for name in _NUMBERS:
        if name in data:
            values[name] = _positive(name, data[name])
    for name in ("arguments", "config", "versions", "certificate"):
        if not isinstance(values.get(name, {}), dict):
            raise ValueError(f"{name} is no object")
    for name in ("source", "tuned_at", "gpu", "bit_class"):
        if not isinstance(values.get(name, ""), str):
            raise ValueError(f"{name} is no text")
    if values["latency_kind"] == "unknown" and "latency_ms" not in data:
        values["latency_ms"] = math.inf
    if values.get("latency_ms") is None:
        raise ValueError("latency_ms is null")
    if values["latency_kind"] not in KINDS:
        raise ValueError(f"latency_kind is {str(values['latency_kind'])[:40]!r}; it is {' or '.join(KINDS)}")
    count = values.get("sm_count")
    if count is not None and (type(count) is not int or count < 1):
        raise ValueError(f"sm_count is {str(count)[:40]!r}")
    if not all(isinstance(each, str) for each in values.get("versions", {}).values()):
        raise ValueError("versions are texts")
    return TunedEntry(**values)


def _positive(name: str, value: Any) -> float | None:
    try:
        checked = number(value)
    except ValueError:
        checked = 0.0
    if checked is not None and checked <= 0:
        raise ValueError(f"{name} is {str(value)[:40]!r}; it is a number above 0")
    return checked


def order_of(entry: TunedEntry) -> tuple[Any, ...]:
    """The place of an entry in a file: by its arguments, numbers by size, then by GPU."""
    return (
        tuple((_kind(value), value if _kind(value) == 0 else as_text(value)) for value in entry.arguments.values()),
        tuple(entry.arguments),
        entry.gpu,
        entry.source,
    )


def _kind(value: Any) -> int:
    return 0 if is_number(value) else 1


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number, which true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
