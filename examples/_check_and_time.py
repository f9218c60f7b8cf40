"""Compare a kernel's result with torch's, time both, and start an example as a script."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

import tiledsl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def largest_error(actual: torch.Tensor, expected: torch.Tensor, *, rtol: float, atol: float) -> float:
    """The largest absolute difference. AssertionError, with where it is, if one exceeds atol + rtol |expected|."""
    actual, expected = actual.float(), expected.float()
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    return float((actual - expected).abs().max())


def rms_error(actual: torch.Tensor, expected: torch.Tensor, *, rms: float, largest: float) -> float:
    """The largest difference over the root mean square of `expected`, for sums through several roundings.

    AssertionError if that exceeds `largest`, or if the differences' root mean square over that of `expected` exceeds
    `rms`: among millions of elements whose errors are random, some lie 20 times as far off as the others.
    """
    size = expected.double().square().mean().sqrt()
    errors = (actual.double() - expected.double()).abs() / size
    assert errors.square().mean().sqrt() <= rms, f"root mean square {errors.square().mean().sqrt():.3g}, allowed {rms}"
    assert errors.max() <= largest, f"largest {errors.max():.3g} at flat index {errors.argmax()}, allowed {largest}"
    return float(errors.max())


def print_speed(
    title: str,
    run: Callable[[], Any],
    reference: Callable[[], Any],
    *,
    operations: float = 0,
    bytes_moved: float = 0,
) -> None:
    """One line: time, TFLOP/s (from `operations`) or GB/s (from `bytes_moved`), and torch's time over ours.

    Without a GPU nothing is timed: the interpreter's speed says nothing about the kernel's.
    """
    if DEVICE == "cpu":
        print(f"{title}: matches torch; interpreted on the CPU, so not timed")
        return
    ours, theirs = tiledsl.do_bench(run), tiledsl.do_bench(reference)
    rate = f"{operations / ours * 1e-9:.0f} TFLOP/s" if operations else f"{bytes_moved / ours * 1e-6:.0f} GB/s"
    print(f"{title}: matches torch; {ours:.4f} ms, {rate}, {theirs / ours:.2f}x the speed of eager torch")


def backend(kernel: Any) -> str:
    """In which language a kernel is written: "Triton", or "Gluon" for attention on Hopper GPUs."""
    return "Gluon" if "@gluon.jit" in kernel.source else "Triton"


def run_script(main: Callable[..., Any], small: Mapping[str, Any]) -> None:
    """Call main with `name=value` arguments from the command line; without a GPU the rest comes from `small`.

    A value is an integer, or several between commas where main takes a tuple.
    """
    known = inspect.signature(main).parameters
    chosen = dict(small) if DEVICE == "cpu" else {}
    for argument in sys.argv[1:]:
        name, _, value = argument.partition("=")
        parts = value.split(",")
        many = name in known and isinstance(known[name].default, tuple)
        if name not in known or not all(part.isdecimal() for part in parts) or (len(parts) > 1 and not many):
            sys.exit(f"usage: {sys.argv[0]} [NAME=INTEGER ...], where NAME is one of {', '.join(known)}")
        chosen[name] = tuple(map(int, parts)) if many else int(value)
    main(**chosen)
