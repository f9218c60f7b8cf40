"""Arithmetic of `tilelang` and `tilelang.math`, on ints of the host and on sizes known only at the call."""

from __future__ import annotations

from typing import Any

from tiledsl.errors import TileError
from tiledsl.language.maths import ceildiv

__all__ = ["cdiv", "next_power_of_2"]


def cdiv(a: Any, b: Any) -> Any:
    """The least integer not below a / b; element by element for tensors and arrays."""
    if hasattr(a, "__floordiv__") and hasattr(a, "shape") and hasattr(a, "tolist"):
        return -(-a // b)
    return ceildiv(a, b)


def next_power_of_2(n: int) -> int:
    """The least power of two that is not below `n`, and at least 1."""
    if isinstance(n, bool) or not isinstance(n, int):
        raise TileError(f"next_power_of_2 needs an integer known when the program is built, not {n!r}")
    return 1 << max(0, n - 1).bit_length()
