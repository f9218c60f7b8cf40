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
    assert bool((finite == want.isfinite()).all()), f"{name}: not finite in {int((~finite).sum())} places"
    difference = float((got - want)[finite].square().sum() / want[finite].square().sum().clamp_min(1e-30))
    assert difference < _LARGEST, f"{name}: relative squared difference {difference:.2g}"
    print(f"{name}: relative squared difference {difference:.2g}")


def bench(function: Any, *arguments: Any, warmup: int = 20, rep: int = 10, **keywords: Any) -> float:
    """In place of a script's own timing loop: one call. Timings are not what is looked at here."""
    function(*arguments, **keywords)
    return 1.0
