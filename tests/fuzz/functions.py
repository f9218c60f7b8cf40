"""Functions of the tile language on numbers: exponentials and the like, tests of floats, and what is done with bits."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from tests.fuzz.dtypes import BOOL, FLOAT32, FLOAT64, Discard, Dtype, dtype_of, half_unit, wrap
from tests.fuzz.numbers import (
    Number,
    add,
    as_floats,
    cast,
    finished,
    is_number,
    mul,
    number,
)

# Functions. Units in the last place by which an implementation may be off, beside the rounding of the result: the CUDA
# C++ Programming Guide's table of intrinsic functions, with room for one more operation before or after.
UNITS = {
    "exp": 4.0, "exp2": 4.0, "exp10": 8.0, "expm1": 4.0, "log": 4.0, "log2": 4.0, "log10": 6.0, "log1p": 4.0,
    "sqrt": 4.0, "rsqrt": 4.0, "sin": 4.0, "cos": 4.0, "tan": 8.0, "asin": 8.0, "acos": 8.0, "atan": 6.0, "sinh": 8.0,
    "cosh": 8.0, "tanh": 8.0, "erf": 6.0, "sigmoid": 12.0, "asinh": 8.0, "acosh": 8.0, "atanh": 8.0,
}  # fmt: skip


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _log(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: (
        -math.inf if x == 0 else math.nan if x < 0 or x != x else math.inf if x == math.inf else function(x)
    )


def _inside(function: Callable[[float], float], low: float, high: float) -> Callable[[float], float]:
    return lambda x: function(x) if low <= x <= high else math.nan


_TRUE: dict[str, Callable[[float], float]] = {
    "exp": _exp,
    "exp2": lambda x: _exp(x * math.log(2.0)) if abs(x) > 1000 or x != int(x) else 2.0 ** int(x),
    "exp10": lambda x: _exp(x * math.log(10.0)),
    "expm1": lambda x: math.expm1(x) if x < 700 else _exp(x),
    "log": _log(math.log), "log2": _log(math.log2), "log10": _log(math.log10),
    "log1p": lambda x: _log(lambda y: math.log1p(x))(x + 1.0),
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "rsqrt": lambda x: math.nan if x < 0 or x != x else 0.0 if x == math.inf else 1.0 / math.sqrt(x),
    "sin": _inside(math.sin, -1e4, 1e4), "cos": _inside(math.cos, -1e4, 1e4), "tan": _inside(math.tan, -1e4, 1e4),
    "asin": _inside(math.asin, -1, 1), "acos": _inside(math.acos, -1, 1), "atan": math.atan,
    "sinh": _inside(math.sinh, -80, 80), "cosh": _inside(math.cosh, -80, 80), "tanh": math.tanh,
    "asinh": math.asinh, "acosh": lambda x: math.acosh(x) if x >= 1 else math.nan,
    "atanh": _inside(math.atanh, -0.99, 0.99), "erf": math.erf,
    "sigmoid": lambda x: 1.0 / (1.0 + _exp(-x)),
}  # fmt: skip


def function(name: str) -> Callable[[Any], Any]:
    """A function of one float, with a bound of its error; only tame arguments have a defined value."""
    true = _TRUE[name]

    def operation(x: Any) -> Any:
        x = number(x)
        if x.dtype.kind != "f":
            x = cast(x, FLOAT32)
        dtype, value = x.dtype, x.value
        if value is None:
            return Number(dtype, None)
        if value != value:
            return Number(dtype, math.nan)
        if name == "rsqrt" and value == 0.0:
            return Number(dtype, None)  # the sign of the zero
        if value - value != 0.0:
            if x.error or name in ("sin", "cos", "tan", "exp2", "exp10", "expm1", "log1p"):
                return Number(dtype, math.nan if name in ("sin", "cos", "tan") and not x.error else None)
            made = true(value) if name not in ("sinh", "cosh", "asinh", "acosh", "atanh") else None
            return Number(dtype, made)
        made = true(value)
        if made - made != 0.0:
            tame = not x.error and (name in ("log", "log2", "log10", "sqrt", "asin", "acos") or name == "rsqrt")
            return Number(dtype, made if tame else None)
        if abs(made) > FLOAT32.high / 4 or (dtype is not FLOAT64 and 0 < abs(made) < 1e-30):
            return Number(dtype, None)
        error = 0.0
        if x.error:  # by the function's own slope around the argument
            around = [true(value - x.error), true(value + x.error)]
            if any(each - each != 0.0 for each in around):
                return Number(dtype, None)
            error = 2.0 * max(abs(each - made) for each in around)
        if name in ("exp", "exp2", "exp10", "sigmoid"):  # computed as 2**(x * log2(e)): the product is rounded, too
            error += abs(made) * abs(value) * math.ldexp(4.0, -max(dtype.digits, 24))
        if name in ("sin", "cos", "tan", "log", "log2", "log10", "log1p", "atanh", "tanh", "expm1"):
            error += math.ldexp(4.0, -max(dtype.digits, 24))  # absolute near a zero of the function
        wide = dtype if dtype.digits >= 24 else FLOAT32
        return finished(made, dtype, error + UNITS[name] * 2.0 * half_unit(made, wide), False)

    return operation


def _class(test: Callable[[float], bool]) -> Callable[[Any], Any]:
    def operation(x: Any) -> Any:
        x = number(x)
        x = x if x.dtype.kind == "f" else cast(x, FLOAT32)
        return Number(BOOL, None if x.value is None else int(test(x.value)))

    return operation


isnan, isinf, isfinite = _class(math.isnan), _class(math.isinf), _class(math.isfinite)


def fma(a: Any, b: Any, c: Any) -> Number:
    (x, y, z), dtype = as_floats(a, b, c)
    product = mul(Number(FLOAT64, x.value, x.error), Number(FLOAT64, y.value, y.error))
    return cast(add(product, Number(FLOAT64, z.value, z.error)), dtype)


def copysign(a: Any, b: Any) -> Number:
    (x, y), dtype = as_floats(a, b)
    if x.value is None or x.value != x.value or y.value is None or y.value != y.value or abs(y.value) <= y.error:
        return Number(dtype, None)
    return Number(dtype, math.copysign(x.value, y.value), x.error)


def _bits(x: Any, count: Callable[[int, int], int]) -> Number:
    x = number(x)
    if x.dtype.kind == "f":
        raise Discard("bits of floats")
    if x.value is None:
        return Number(x.dtype, None)
    return Number(x.dtype, count(x.value & ((1 << x.dtype.bits) - 1), x.dtype.bits))


def popcount(x: Any) -> Number:
    return _bits(x, lambda value, bits: value.bit_count())


def clz(x: Any) -> Number:
    return _bits(x, lambda value, bits: bits - value.bit_length())


_FORMATS = {"float16": "e", "float32": "f", "float64": "d"}


def to_bits(x: Number) -> int | None:
    """The bits of a defined value that every implementation stores alike; None for a NaN or a zero of a float."""
    if x.dtype.kind != "f":
        return None if x.value is None else x.value & ((1 << x.dtype.bits) - 1)
    if x.value is None or x.error or x.value != x.value or x.value == 0.0 or x.dtype.name not in _FORMATS:
        return None
    return int.from_bytes(struct.pack("<" + _FORMATS[x.dtype.name], x.value), "little")


def from_bits(bits: int | None, dtype: Dtype) -> Number:
    if bits is None:
        return Number(dtype, None)
    if dtype.kind != "f":
        return Number(dtype, wrap(bits, dtype))
    if dtype.name not in _FORMATS:
        return Number(dtype, None)
    value = float(struct.unpack("<" + _FORMATS[dtype.name], bits.to_bytes(dtype.itemsize, "little"))[0])
    tiny = 0 < abs(value) < math.ldexp(1.0, dtype.least) or value != value
    return Number(dtype, None if tiny else value)


def reinterpret(x: Any, dtype: Any) -> Number:
    if not isinstance(x, Number) and not is_number(x):
        x, dtype = dtype, x
    x, dtype = number(x), dtype_of(dtype)
    if x.dtype.bits != dtype.bits:
        raise Discard("reinterpret between widths")
    if x.dtype is dtype:
        return x
    return from_bits(to_bits(x), dtype)
