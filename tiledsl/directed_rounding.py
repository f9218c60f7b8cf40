"""Sums, products, quotients and roots of NumPy arrays with a rounding of their own, each correctly rounded.

What libdevice's add_rz, fma_ru and their like compute, for the interpreter and the executor. The exact result is a
fraction; the two floats around it are found by steps from the nearest, and the mode picks one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

MODES = {"rn": "to the nearest, ties to even", "rz": "towards 0", "ru": "upwards", "rd": "downwards"}

# By how much the exact result of `numbers` is above a candidate, in sign.
_ABOVE: dict[str, Callable[..., Fraction]] = {
    "add": lambda c, x, y: x + y - c,
    "sub": lambda c, x, y: x - y - c,
    "mul": lambda c, x, y: x * y - c,
    "div": lambda c, x, y: x / y - c,
    "fma": lambda c, x, y, z: x * y + z - c,
    "rcp": lambda c, x: 1 / x - c,
    "sqrt": lambda c, x: Fraction(1) if c < 0 else x - c * c,
}


def _plain(np: Any, kind: str, numbers: tuple[Any, ...]) -> Any:
    """In NumPy's own rounding, which is to the nearest; fma with two roundings."""
    x, y, z = (*numbers, None, None)[:3]
    with np.errstate(all="ignore"):
        if kind == "fma":
            return x * y + z
        if kind in ("rcp", "sqrt"):
            return np.sqrt(x) if kind == "sqrt" else np.reciprocal(x)
        return {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[kind](x, y)


def _opposed(kind: str, numbers: tuple[Any, ...]) -> bool:
    """Whether the two terms of a sum have different signs: if it is 0, it is -0 where it is rounded downwards."""
    if kind == "fma":
        numbers = (numbers[0] * numbers[1], numbers[2])
    signs = [math.copysign(1, each) for each in numbers]
    return kind in ("add", "sub", "fma") and (signs[0] != signs[1]) != (kind == "sub")


def _one(np: Any, kind: str, mode: str, dtype: Any, *floats: Any) -> Any:
    numbers = tuple(map(dtype, floats))
    near = _plain(np, kind, numbers)
    is_pole = kind in ("div", "rcp") and numbers[-1] == 0
    if math.isnan(near) or is_pole or not all(map(math.isfinite, numbers)):
        return near
    given = [Fraction(float(each)) for each in numbers]

    def above(candidate: Any) -> Fraction:
        if math.isinf(candidate):
            return Fraction(-1 if candidate > 0 else 1)
        return _ABOVE[kind](Fraction(float(candidate)), *given)

    top, up, down = np.finfo(dtype).max, dtype(math.inf), dtype(-math.inf)
    if kind == "fma":  # two roundings may be far from one
        exact = _ABOVE[kind](Fraction(0), *given)
        near = dtype(float(exact)) if abs(exact) < 2 * Fraction(float(top)) else math.copysign(top, exact)
        near = near if exact else _plain(np, kind, numbers)
    low = dtype(np.clip(near, -top, top))
    while above(low) < 0:
        low = np.nextafter(low, down)
    while above(high := np.nextafter(low, up)) >= 0:
        low = high
    if above(low) == 0:
        return dtype(-0.0) if low == 0 and mode == "rd" and _opposed(kind, numbers) else dtype(low if low else near)
    if mode == "rz":
        return low if above(dtype(0)) > 0 else high
    return low if mode == "rd" else high


def rounded(kind: str, mode: str) -> Callable[..., Any]:
    """A function of NumPy and of arrays of float32 or float64: the operation in these, rounded by the mode."""

    def function(np: Any, *arrays: Any) -> Any:
        if mode == "rn":
            return _plain(np, kind, arrays)
        arrays = tuple(map(np.asarray, arrays))
        dtype = arrays[0].dtype
        each = np.vectorize(lambda *numbers: _one(np, kind, mode, dtype.type, *numbers), otypes=[dtype])
        with np.errstate(all="ignore"):
            return each(*arrays)

    return function
