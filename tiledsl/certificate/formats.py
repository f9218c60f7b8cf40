"""The numbers that float types can hold: rounding to them, and their bits, in NumPy, whatever the type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tiledsl.dialects.arith import FLOAT_FORMATS
from tiledsl.ir.types import ELEMENTS


def rounded(value: Any, dtype: str) -> Any:
    """Float64 numbers rounded to the nearest of an element type, ties to even."""
    if dtype == "float64":
        return value
    if dtype in ("float32", "float16"):
        return np.asarray(value, dtype).astype(np.float64)
    bits, lowest = FLOAT_FORMATS[dtype]
    step = np.ldexp(1.0, np.maximum(np.frexp(value)[1] - 1, lowest) - bits + 1)
    nearest = np.rint(value / step) * step
    beyond = np.abs(nearest) > ELEMENTS[dtype].high
    if dtype.endswith("fnuz"):  # 0 + -0 is 0
        nearest = nearest + 0.0
    infinite = not dtype.startswith("float8") or dtype == "float8_e5m2"
    return np.where(beyond, np.copysign(math.inf, value) if infinite else math.nan, nearest)


def _float8_values(dtype: str) -> Any:
    """The numbers of the 256 bit patterns."""
    bits, lowest = FLOAT_FORMATS[dtype]
    numbers = []
    for pattern in range(256):
        field, fraction = (pattern & 127) >> (bits - 1), pattern & ((1 << (bits - 1)) - 1)
        number = math.ldexp(fraction + (bool(field) << (bits - 1)), max(field, 1) - 1 + lowest - bits + 1)
        if dtype == "float8_e4m3fn" and pattern & 127 == 127:
            number = math.nan
        elif dtype == "float8_e5m2" and field == 31:
            number = math.nan if fraction else math.inf
        if dtype.endswith("fnuz") and pattern == 128:
            number = math.nan
        numbers.append(-number if pattern >> 7 else number)
    return np.array(numbers)


def encoded(value: Any, dtype: str) -> Any:
    """The bits of numbers in an element type, as unsigned integers."""
    value = np.asarray(rounded(value, dtype), np.float64)
    if dtype in ("float16", "float32", "float64"):
        return np.ascontiguousarray(value.astype(dtype)).view(f"u{ELEMENTS[dtype].bits // 8}").reshape(value.shape)
    if dtype == "bfloat16":
        wide = np.ascontiguousarray(value.astype(np.float32)).view(np.uint32).reshape(value.shape)
        return (wide >> np.uint32(16)).astype(np.uint16)
    positive = _float8_values(dtype)[:128]
    positive = positive[np.isfinite(positive)]
    pattern = np.searchsorted(positive, np.abs(value)).astype(np.uint8)
    if dtype.endswith("fnuz"):
        pattern = pattern | (value < 0).astype(np.uint8) << np.uint8(7)
        return np.where(np.isnan(value), 0x80, pattern).astype(np.uint8)
    pattern = np.where(np.isinf(value), 0x7C, np.where(np.isnan(value), 0x7F, pattern)).astype(np.uint8)
    return pattern | (np.signbit(value).astype(np.uint8) << np.uint8(7))


def decoded(bits: Any, dtype: str) -> Any:
    """The numbers that unsigned integers are the bits of."""
    bits = np.asarray(bits)
    if dtype in ("float16", "float32", "float64"):
        return np.ascontiguousarray(bits).view(dtype).reshape(bits.shape).astype(np.float64)
    if dtype == "bfloat16":
        wide = np.ascontiguousarray(bits.astype(np.uint32) << np.uint32(16))
        return wide.view(np.float32).reshape(bits.shape).astype(np.float64)
    return _float8_values(dtype)[bits]
