"""The element types of the tile language: what each holds, and how it rounds."""

from __future__ import annotations

import math
import struct
from typing import Any


class Discard(Exception):
    """The program has no defined meaning: it races, or reads or decides on what is undefined."""


class Dtype:
    """An element type. `kind` is b, i, u or f; floats have `digits` of significand and the exponent of the least
    normal number."""

    __slots__ = ("bits", "digits", "high", "kind", "least", "low", "name", "rank")

    def __init__(self, name: str, kind: str, bits: int, low: Any, high: Any, digits: int = 0, least: int = 0) -> None:
        self.name, self.kind, self.bits, self.low, self.high = name, kind, bits, low, high
        self.digits, self.least = digits, least
        self.rank = {"float64": 5, "float32": 4, "bfloat16": 3, "float16": 3}.get(name, 2 if kind == "f" else 0)

    def __call__(self, value: Any) -> Any:
        """`T.int32(x)`: a number converted."""
        from tests.fuzz.numbers import cast  # which builds on this module

        return cast(value, self)

    def __repr__(self) -> str:
        return self.name

    @property
    def itemsize(self) -> int:
        return self.bits // 8


def _dtypes() -> dict[str, Dtype]:
    made = {"bool": Dtype("bool", "b", 8, 0, 1)}
    for bits in (8, 16, 32, 64):
        made[f"int{bits}"] = Dtype(f"int{bits}", "i", bits, -(1 << bits - 1), (1 << bits - 1) - 1)
        made[f"uint{bits}"] = Dtype(f"uint{bits}", "u", bits, 0, (1 << bits) - 1)
    # Name, bits, largest finite number, digits, least exponent: IEEE 754, bfloat16, OCP 8-bit floating point formats.
    for name, bits, high, digits, least in (
        ("float16", 16, 65504.0, 11, -14), ("bfloat16", 16, 3.3895313892515355e38, 8, -126),
        ("float32", 32, 3.4028234663852886e38, 24, -126), ("float64", 64, 1.7976931348623157e308, 53, -1022),
        ("float8_e4m3fn", 8, 448.0, 4, -6), ("float8_e5m2", 8, 57344.0, 3, -14),
    ):  # fmt: skip
        made[name] = Dtype(name, "f", bits, -high, high, digits, least)
    return made


DTYPES = _dtypes()
ALIASES = {"float": "float32", "int": "int32", "uint": "uint32", "half": "float16", "double": "float64"}
BOOL, INT32, INT64, UINT64 = (DTYPES[name] for name in ("bool", "int32", "int64", "uint64"))
FLOAT16, FLOAT32, FLOAT64 = (DTYPES[name] for name in ("float16", "float32", "float64"))


def dtype_of(name: Any) -> Dtype:
    return name if isinstance(name, Dtype) else DTYPES[ALIASES.get(str(name), str(name))]


def wrap(value: int, dtype: Dtype) -> int:
    """An integer as `dtype` stores it."""
    if dtype.low <= value <= dtype.high:
        return value
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "i" and value >> (dtype.bits - 1) else value


def rounded(value: float, dtype: Dtype) -> float:
    """To the nearest number of a float type, ties to even; infinite beyond its range."""
    if dtype is FLOAT64 or not value or value - value != 0.0:
        return value
    if dtype is FLOAT32:
        try:
            return float(struct.unpack("f", struct.pack("f", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    exponent = max(math.frexp(value)[1] - 1, dtype.least)
    step = math.ldexp(1.0, exponent - dtype.digits + 1)
    nearest = round(value / step) * step
    return nearest if abs(nearest) <= dtype.high else math.copysign(math.inf, value)


def half_unit(value: float, dtype: Dtype) -> float:
    """Half a unit in the last place of a number of this size. Numbers below the least normal one may become 0."""
    least = math.ldexp(1.0, dtype.least)
    return max(abs(value) * math.ldexp(1.0, -dtype.digits), 0.0) + (least if 0 < abs(value) < least else 0.0)
