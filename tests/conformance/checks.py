"""Comparisons for scripts that only print how far their results are from their references."""

from __future__ import annotations

from typing import Any

# Sum of squares of the difference over the sum of squares: bfloat16 has 8 bits, and errors of a chunk add up.
_LARGEST = 1e-4


def close(name: str, actual: Any, expected: Any, *_: Any, **__: Any) -> None:
    """AssertionError unless the tensors are finite where they should be, and equal but for rounding."""
    got, want = actual.double().cpu(), expected.double().cpu()
    assert got.shape == want.shape, f"{name}: shapes {tuple(got.shape)} and {tuple(want.shape)}"
    finite = got.isfinite()
    assert bool((finite == want.isfinite()).all()), f"{name}: {int((finite != want.isfinite()).sum())} elements are finite in one only"
    difference = float((got - want)[finite].square().sum() / want[finite].square().sum().clamp_min(1e-30))
    assert difference < _LARGEST, f"{name}: relative squared difference {difference:.2g}"
    print(f"{name}: relative squared difference {difference:.2g}")


def ratio(actual: Any, expected: Any) -> float:
    """The root of the relative squared difference; AssertionError if it is more than rounding."""
    close("the result", actual, expected)
    got, want = actual.double(), expected.double()
    return float((got - want).square().sum().sqrt() / want.square().sum().sqrt().clamp_min(1e-30))


def poison() -> None:
    """Fill what `torch.empty` returns with NaN, so that what neither side writes compares equal."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True


def bench(function: Any, *arguments: Any, warmup: int = 20, rep: int = 10, **keywords: Any) -> float:
    """In place of a script's own timing loop: one call. Timings are not what is looked at here."""
    function(*arguments, **keywords)
    return 1.0
