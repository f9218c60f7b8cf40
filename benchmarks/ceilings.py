"""What the device can do at most, measured in the same process: a copy, and matrix products through cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

from benchmarks.timing import REGIMES, Clock, Plan, measure, prepare

_SIDE = 8192
_BYTES = 1 << 30


def ceilings(clock: Clock, plan: Plan) -> dict[str, dict[str, float]]:
    """By regime: copy in bytes a second (read and written), and fp16 and (where there is) fp8 in operations a second,
    of products 8192 x 8192 x 8192 of random values. The median of the rounds.

    The copy is the quicker of torch's copy_, which asks the driver, and of a kernel that reads and writes as much.
    """
    source = torch.randint(0, 255, (_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    words, target_words = source.view(torch.int32), target.view(torch.int32)
    a, b = (torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)
    work: dict[str, tuple[float, Callable[[], Any]]] = {
        "copy": (2.0 * _BYTES, lambda: target.copy_(source)),
        "copy kernel": (2.0 * _BYTES, lambda: torch.bitwise_not(words, out=target_words)),
        "fp16": (2.0 * _SIDE**3, lambda: torch.mm(a, b.T, out=c)),
    }
    eight_bit = _float8(a, b)
    if eight_bit is not None:
        work["fp8"] = (2.0 * _SIDE**3, eight_bit)
    prepared = {name: prepare([call], clock, plan, True) for name, (_, call) in work.items()}
    times = measure(prepared, clock, plan)
    found = {
        regime: {name: amount / median(times[name][regime]) * 1e3 for name, (amount, _) in work.items()}
        for regime in REGIMES
    }
    for rates in found.values():
        rates["copy"] = max(rates["copy"], rates.pop("copy kernel"))
    return found


def _float8(a: Any, b: Any) -> Callable[[], Any] | None:
    try:
        x, y = (each.to(torch.float8_e4m3fn) for each in (a, b))
        one = torch.ones((), device="cuda")

        def call() -> Any:
            return torch._scaled_mm(x, y.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

        call()
        return call
    except Exception:  # a device without such units, or a torch without the call
        return None


def roofline(row: Mapping[str, Any], found: Mapping[str, Mapping[str, float]], regime: str) -> float | None:
    """Milliseconds below which no kernel for the row can come, by these ceilings; None if they are not known."""
    rates = found.get(regime, {})
    if "copy" not in rates:
        return None
    times = [row["bytes"] / rates["copy"]]
    if row["family"] in MATRIX_FAMILIES and rates.get(row["unit"]):
        times.append(row["operations"] / rates[row["unit"]])
    return max(times) * 1e3


MATRIX_FAMILIES = (
    "gemm", "fp8 gemm", "block-scaled fp8 gemm", "grouped gemm", "attention", "attention backward",
    "w4a16 gemm", "w4a8 gemm", "fp8 attention", "linear cross-entropy",
)  # fmt: skip
