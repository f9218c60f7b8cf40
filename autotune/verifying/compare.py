"""How a tensor differs from a reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_CHUNK = 1 << 24  # elements compared at once: float64 copies of whole outputs would not fit beside them


@dataclass(frozen=True)
class TensorDifference:
    """How an output differs from a reference. `finite`: no NaN or infinity where the reference has a number.
    `unknown`: elements where the kernel has a number and the reference NaN. first, worst: places in the flattened
    output of the first element that is off and of the one that is most, or -1. beyond: elements that are off by more
    than the cap."""

    mismatched: int
    elements: int
    max_error: float
    mean_error: float
    finite: bool
    atol: float
    unknown: int
    first: int
    worst: int
    beyond: int

    @property
    def ratio(self) -> float:
        return self.mismatched / max(1, self.elements)


def difference(
    actual: Any, expected: Any, rtol: float, atol: float, cap: tuple[float, float] | None = None
) -> TensorDifference:
    """Elements where |actual - expected| > atol * rms(expected) + rtol * |expected|, in float64.

    Scaling atol by the reference's root mean square keeps one tolerance right for sums of ten and of ten thousand
    products, and for outputs far below 1. NaN equals NaN, an infinity itself. cap: rtol and atol of what counts as
    `beyond`; None: nothing does.
    """
    import torch

    scale = rms(expected) or 1.0
    scaled = atol * scale
    mismatched, largest, total, counted, finite_where_due, unknown = 0, 0.0, 0.0, 0, True, 0
    first = worst = -1
    beyond, start, most = 0, 0, -1.0
    for got, want, error in _compared(actual, expected):
        finite = error.isfinite()
        same = got.isinf() & (got == want) | got.isnan() & want.isnan()
        bad = ~(same | finite & (error <= scaled + rtol * want.abs()))
        wrong = torch.where(bad, torch.where(finite, error, math.inf), -1.0)
        error = torch.where(finite, error, 0)
        count = int(bad.sum())
        mismatched += count
        if error.numel():
            largest, total = max(largest, float(error.max())), total + float(error.sum())
            counted += int(finite.sum())
        if count:
            place = int(wrong.argmax())
            first = start + int(bad.to(torch.uint8).argmax()) if first < 0 else first
            if float(wrong[place]) > most:
                most, worst = float(wrong[place]), start + place
            if cap is not None:
                beyond += int((bad & ~(finite & (error <= cap[1] * scale + cap[0] * want.abs()))).sum())
        stray = bad & torch.isfinite(want) & ~torch.isfinite(got)
        finite_where_due = finite_where_due and not bool(stray.any())
        unknown += int((torch.isnan(want) & ~torch.isnan(got)).sum())
        start += got.numel()
    mean = total / max(1, counted)
    return TensorDifference(
        mismatched, expected.numel(), largest, mean, finite_where_due, scaled, unknown, first, worst, beyond
    )


def rms(expected: Any) -> float:
    """The root mean square of the finite elements; 0 if there are none."""
    import torch

    squares, numbers = 0.0, 0
    for (want,) in _chunks(expected):
        size = _wide(want, want.dtype.is_complex).abs()
        finite = torch.isfinite(size)
        squares += float(torch.where(finite, size, 0).square().sum())
        numbers += int(finite.sum())
    return math.sqrt(squares / numbers) if numbers else 0.0


def _compared(actual: Any, expected: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Elements of both, in float64 or complex128, and how far they are apart: whole numbers by their halves, for the
    last bits of 64 are none of float64."""
    is_complex = actual.dtype.is_complex or expected.dtype.is_complex
    is_whole = not any(each.dtype.is_floating_point or each.dtype.is_complex for each in (actual, expected))
    for pair in _chunks(actual, expected):
        got, want = (_wide(each, is_complex) for each in pair)
        if is_whole:
            (high, low), (wanted_high, wanted_low) = map(_halves, pair)
            yield got, want, ((high - wanted_high) * 2.0**32 + (low - wanted_low)).abs()
        else:
            yield got, want, (got - want).abs()


def _halves(whole: Any) -> tuple[Any, Any]:
    """The upper and the lower 32 bits of whole numbers, in float64."""
    import torch

    words = whole.view(torch.int64) if whole.dtype is torch.uint64 else whole.to(torch.int64)
    high = words >> 32
    return (high & 0xFFFFFFFF if whole.dtype is torch.uint64 else high).double(), (words & 0xFFFFFFFF).double()


def _wide(values: Any, is_complex: bool) -> Any:
    import torch

    return values.to(torch.complex128 if is_complex else torch.float64)


def _chunks(*values: Any) -> Iterator[tuple[Any, ...]]:
    device = values[-1].device
    flat = [value.detach().reshape(-1) for value in values]
    for start in range(0, flat[0].numel(), _CHUNK):
        yield tuple(each[start : start + _CHUNK].to(device) for each in flat)
