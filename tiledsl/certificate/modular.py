"""Arithmetic modulo p = 2**61 - 1 on uint64 arrays, and pseudo-random functions with values there.

All residues are below p, but that one symbol in 2**61 may be p itself. Below p, x - p wraps around, so that the
smaller of x and x - p is the residue of both; and p - x is x with its 61 bits inverted. A polynomial identity that does
not hold survives one random point with a probability of its degree over p (Schwartz 1980, Zippel 1979).
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

P = (1 << 61) - 1
_P = np.uint64(P)
_ZERO = np.uint64(0)


def _u(number: int) -> Any:
    return np.uint64(number)


_2, _3, _30, _31, _61 = map(_u, (2, 3, 30, 31, 61))
_LOW30, _LOW31 = _u((1 << 30) - 1), _u((1 << 31) - 1)


def reduced(x: Any) -> Any:
    """Any uint64 modulo p."""
    x = (x & _P) + (x >> _61)
    return np.minimum(x, x - _P)


def add(a: Any, b: Any) -> Any:
    made = a + b
    return np.minimum(made, made - _P)


def negative(a: Any) -> Any:
    made = a ^ _P
    return np.minimum(made, made - _P)


def multiply(a: Any, b: Any) -> Any:
    # With a = a1 2**31 + a0 and b alike: 2**62 is 2, and what is multiplied by 2**31 wraps around at bit 30.
    a1, a0, b1, b0 = a >> _31, a & _LOW31, b >> _31, b & _LOW31
    middle = a1 * b0 + a0 * b1
    total = ((a1 * b1) << _u(1)) + (middle >> _30) + ((middle & _LOW30) << _31) + a0 * b0
    return reduced(total)


def shifted(a: Any, places: Any) -> Any:
    """a * 2**places for residues a: a rotation of 61 bits, since 2**61 is 1. `places` may be negative, or an array."""
    left = np.remainder(places, 61).astype(np.uint64) if isinstance(places, np.ndarray) else _u(places % 61)
    return ((a << left) & _P) | (a >> (_61 - left))


def inverse(a: Any) -> Any:
    """The reciprocals; 0 of 0. a**(p - 2), by Fermat."""
    # p - 2 is 59 ones, a zero and a one in binary: the run of ones is made by doubling its length.
    ones, length = a, 1
    for bit in bin(59)[3:]:
        long = ones
        for _ in range(length):
            long = multiply(long, long)
        ones, length = multiply(long, ones), length * 2
        if bit == "1":
            ones, length = multiply(multiply(ones, ones), a), length + 1
    twice = multiply(ones, ones)
    return multiply(multiply(twice, twice), a)


def of_numbers(x: Any) -> Any:
    """The residues of finite float64 numbers, which are fractions with a power of two below."""
    mantissa, exponent = np.frexp(x)
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.uint64)
    made = shifted(whole, np.asarray(exponent - 53, np.int64))
    return np.where(np.asarray(x) < 0, negative(made), made)


_MIX1, _MIX2, _STEP = _u(0xBF58476D1CE4E5B9), _u(0x94D049BB133111EB), _u(0x9E3779B97F4A7C15)


def _scramble(x: Any) -> Any:
    # The finaliser of splitmix64 (Steele, Lea and Flood 2014).
    x = (x ^ (x >> _30)) * _MIX1
    x = (x ^ (x >> _u(27))) * _MIX2
    return x ^ (x >> _31)


_TAGS: dict[str, Any] = {}


def tag(name: str) -> Any:
    """A number for a name, the same in every process."""
    if name not in _TAGS:
        data = name.encode()
        _TAGS[name] = _u(zlib.crc32(data) << 32 | zlib.adler32(data) ^ 0x5BD1E995)
    return _TAGS[name]


def symbol(name: str, *arguments: Any) -> Any:
    """A pseudo-random function of a name and residues, in their order."""
    made = tag(name)
    for each in arguments[:-1]:
        made = made ^ each
        made = (made ^ (made >> _30)) * _MIX1
    return _scramble((made ^ arguments[-1]) + _STEP) >> _3


_LIMB = 21
_CHUNK = 512  # three products of 42 bits each, so many of them, are exact in float64


def dot(a: Any, b: Any) -> Any:
    """a @ b, for residues of shapes (M, K) and (K, N)."""
    rows, columns = a.shape[0], b.shape[1]
    total = np.zeros((rows, columns), np.uint64)
    low = _u((1 << _LIMB) - 1)
    for start in range(0, a.shape[1], _CHUNK):
        left, right = a[:, start : start + _CHUNK], b[start : start + _CHUNK]
        limbs = [_u(_LIMB * i) for i in range(3)]
        lefts = np.concatenate([((left >> at) & low).astype(np.float64) for at in limbs])
        rights = np.concatenate([((right >> at) & low).astype(np.float64) for at in limbs], axis=1)
        parts = (lefts @ rights).reshape(3, rows, 3, columns)
        made = [sum(parts[i, :, place - i] for i in range(3) if 0 <= place - i < 3) for place in range(5)]
        first, second, third, fourth, fifth = (np.asarray(each).astype(np.uint64) for each in made)
        # 2**63, by which the fourth counts, is 4, and what the fifth counts by is 4 times what the second does.
        total = total + first + (fourth << _2) + shifted(second + (fifth << _2), _LIMB) + shifted(third, 2 * _LIMB)
        total = reduced(total)
    return total


def chosen_sums(x: Any, chosen: Any) -> Any:
    """x @ chosen, for residues of shape (M, K) and truth values of shape (K, N); (M, 1) where all columns are alike."""
    if (chosen == chosen[:, :1]).all():
        return sums(x * chosen[:, 0], 1)[:, None]
    weights = chosen.astype(np.float64)  # sums of 2**22 halves are exact
    low, high = (((x & _LOW31).astype(np.float64) @ weights), ((x >> _31).astype(np.float64) @ weights))
    return add(reduced(low.astype(np.uint64)), shifted(reduced(high.astype(np.uint64)), 31))


def sums(x: Any, axis: int) -> Any:
    """Sums along an axis."""
    # The halves of 31 and 30 bits are summed apart: 2**32 of them fit.
    low, high = (x & _LOW31).sum(axis, dtype=np.uint64), (x >> _31).sum(axis, dtype=np.uint64)
    return add(reduced(low), shifted(reduced(high), 31))


def prefix_sums(x: Any, axis: int) -> Any:
    low, high = np.cumsum(x & _LOW31, axis, dtype=np.uint64), np.cumsum(x >> _31, axis, dtype=np.uint64)
    return add(reduced(low), shifted(reduced(high), 31))
