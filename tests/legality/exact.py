"""What operations give on exact numbers, rounded once; and values of every element type that show wrong rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tiledsl import math_functions
from tiledsl.ir.types import ELEMENTS
from tiledsl.math_functions import MATH_FUNCTIONS

_FORMATS = {
    "float16": (11, -14), "bfloat16": (8, -126), "float8_e4m3fn": (4, -6), "float8_e5m2": (3, -14),
    "float8_e4m3fnuz": (4, -7), "float8_e5m2fnuz": (3, -15),
}  # fmt: skip


def tensor_of(values: np.ndarray, dtype: str) -> torch.Tensor:
    """Values that the element type holds exactly, as a tensor."""
    if dtype.startswith(("bfloat", "float8")):
        return torch.from_numpy(np.ascontiguousarray(values.astype(np.float32))).to(getattr(torch, dtype))
    return torch.from_numpy(np.ascontiguousarray(values.astype(dtype)))


def values_of(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's elements as float64, or as Python integers where they are integers."""
    if tensor.dtype.is_floating_point:
        return tensor.to(torch.float64).numpy()
    return tensor.numpy().astype(object)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Exact values as `dtype` holds them: integers wrap, floats round to nearest even, float8 saturates."""
    info = ELEMENTS[dtype]
    if info.kind == "bool":
        return np.array([bool(x) for x in values.flat]).reshape(values.shape).astype(object)
    if info.kind != "float":
        low, span = int(info.low), 1 << info.bits
        wrapped = [(int(x) - low) % span + low for x in values.flat]
        return np.array(wrapped, dtype=object).reshape(values.shape)
    floats = values.astype(np.float64)
    if dtype in ("float32", "float64"):
        with np.errstate(over="ignore"):
            return floats.astype(dtype).astype(np.float64)
    bits, lowest = _FORMATS[dtype]
    exponents = np.maximum(np.frexp(floats)[1] - 1, lowest) - bits + 1
    near = np.where(np.isfinite(floats), np.ldexp(np.rint(np.ldexp(floats, -exponents)), exponents), floats)
    if dtype.startswith("float8"):
        return np.clip(near, info.low, info.high)
    return np.where(np.abs(near) > info.high, np.copysign(np.inf, near), near)


def ulp(values: np.ndarray, dtype: str) -> np.ndarray:
    """The distance of neighbours of `dtype` around each value."""
    bits, lowest = {**_FORMATS, "float32": (24, -126), "float64": (53, -1022)}[dtype]
    finite = np.where(np.isfinite(values), values, 0.0)
    return np.ldexp(1.0, np.maximum(np.frexp(finite)[1] - 1, lowest) - bits + 1)


def some(dtype: str, count: int = 256, seed: int = 0) -> np.ndarray:
    """All values of an element type of 8 bits, NaN and infinity apart; of others the ends and `count` by chance."""
    rng, info = np.random.default_rng(seed), ELEMENTS[dtype]
    if info.kind == "bool":
        return np.array([False, True])
    if info.kind == "float":
        if info.bits == 8:
            every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(getattr(torch, dtype)).to(torch.float64)
            return every[torch.isfinite(every)].numpy()
        random = rng.standard_normal(count) * 2.0 ** rng.integers(-8, 9, count)
        return rounded(np.concatenate([[0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0], random]), dtype)
    low, high = int(info.low), int(info.high)
    if info.bits == 8:
        return np.arange(low, high + 1).astype(object)
    edges = [low, low + 1, high, high - 1, 0, 1, 2, 7, 127, 128, 255, 256, high // 2, high // 2 + 1]
    edges += [] if low == 0 else [-1, -2, -7, -128, -129]
    random = [int(x) >> int(s) for x, s in zip(
        rng.integers(low, high, count, dtype=dtype, endpoint=True), rng.integers(0, info.bits, count))]  # fmt: skip
    return np.array(edges + random, dtype=object)


def halves_of(dtype: str) -> np.ndarray:
    """float64 numbers in the middle between neighbours of a float type of 8 bits, and a little beside it."""
    values = np.unique(some(dtype))
    middles = (values[1:] + values[:-1]) / 2
    beside = [np.nextafter(middles, direction) for direction in (-np.inf, np.inf)]
    return np.concatenate([middles, *beside, values, values * (1 + 2.0**-50), [1e300, -1e300, 5e-324, 1e-40, 460.0]])


def _truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _whole(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    return lambda *arrays: np.array([function(*map(int, each)) for each in zip(*arrays)], dtype=object)


def _in_float64(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def one(*arrays: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(function(*(each.astype(np.float64) for each in arrays)))

    return one


_FUNCTIONS = {
    name: _in_float64(MATH_FUNCTIONS[name].on_arrays) for name in math_functions.names("floats", "rounding", "test")
}
ROUNDINGS = math_functions.names("rounding")
EXACT = {"fma", "copysign", "fmod", *math_functions.names("rounding", "test")}  # no function is approximated


def result(operation: str, dtype: str, *arrays: np.ndarray) -> np.ndarray:
    """An operation on exact values (float64, which holds sums and products of the narrow types, or integers)."""
    x, rest = arrays[0], arrays[1:]
    float_operands = ELEMENTS[dtype].kind == "float"
    if operation in _FUNCTIONS and not (operation in ROUNDINGS and not float_operands):
        return _FUNCTIONS[operation](*arrays)
    if operation in ROUNDINGS:
        return x
    y = rest[0] if rest else x
    bits = ELEMENTS[dtype].bits
    table: dict[str, Callable[[], Any]] = {
        "add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "neg": lambda: -x, "div": lambda: x / y,
        "floordiv": lambda: np.floor(rounded(x / y, dtype)) if float_operands else _whole(lambda a, b: a // b)(x, y),
        "floormod": lambda: np.fmod(x, y) if float_operands else _whole(lambda a, b: a % b)(x, y),
        "truncdiv": lambda: _whole(_truncated)(x, y),
        "truncmod": lambda: _whole(lambda a, b: a - _truncated(a, b) * b)(x, y),
        "shl": lambda: _whole(lambda a, b: a << b)(x, y), "shr": lambda: _whole(lambda a, b: a >> b)(x, y),
        "max": lambda: np.where(x >= y, x, y), "min": lambda: np.where(x <= y, x, y), "abs": lambda: np.abs(x),
        "clamp": lambda: np.where(x < y, y, np.where(x > rest[1], rest[1], x)),
        "popcount": lambda: _whole(lambda a: bin(a & (1 << bits) - 1).count("1"))(x),
        "clz": lambda: _whole(lambda a: bits - (a & (1 << bits) - 1).bit_length())(x),
        "cmp.eq": lambda: x == y, "cmp.ne": lambda: x != y, "cmp.lt": lambda: x < y, "cmp.le": lambda: x <= y,
        "cmp.gt": lambda: x > y, "cmp.ge": lambda: x >= y,
    }  # fmt: skip
    return np.asarray(table[operation]())
