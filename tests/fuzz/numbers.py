"""Numbers as the tile language has them: an element type, a value, and how far an implementation may be off.

A float result that every implementation must give bit by bit has the error 0. Any other has a bound from a running
error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 3.3): half a unit in the last place for each
rounding, twice where an implementation may keep more digits. A value of None is undefined: whatever decides on it, or
stores it where it is seen, discards the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from tests.fuzz.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    UINT64,
    Discard,
    Dtype,
    dtype_of,
    half_unit,
    rounded,
    wrap,
)


class Number:
    """A value of an element type: bool and integers as int, floats as float, None where it is undefined."""

    __slots__ = ("dtype", "error", "value")

    def __init__(self, dtype: Dtype, value: Any, error: float = 0.0) -> None:
        self.dtype, self.value, self.error = dtype, value, error

    def __repr__(self) -> str:
        return f"{self.dtype.name}({self.value}{f' +- {self.error}' if self.error else ''})"

    def defined(self, what: str) -> Any:
        """The value, on which something decides."""
        if self.value is None:
            raise Discard(f"{what} is undefined")
        if self.error:
            raise Discard(f"{what} depends on rounding")
        return self.value

    def __bool__(self) -> bool:
        return bool(self.defined("a condition"))

    def __index__(self) -> int:
        if self.dtype.kind == "f":
            raise Discard("a float used as an integer")
        return int(self.defined("an integer"))

    def astype(self, dtype: Any) -> Number:
        return cast(self, dtype_of(dtype))

    def __add__(self, other: Any) -> Number:
        return add(self, other)

    def __radd__(self, other: Any) -> Number:
        return add(other, self)

    def __sub__(self, other: Any) -> Number:
        return sub(self, other)

    def __rsub__(self, other: Any) -> Number:
        return sub(other, self)

    def __mul__(self, other: Any) -> Number:
        return mul(self, other)

    def __rmul__(self, other: Any) -> Number:
        return mul(other, self)

    def __truediv__(self, other: Any) -> Number:
        return divide(self, other)

    def __rtruediv__(self, other: Any) -> Number:
        return divide(other, self)

    def __floordiv__(self, other: Any) -> Number:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Any) -> Number:
        return floordiv(other, self)

    def __mod__(self, other: Any) -> Number:
        return floormod(self, other)

    def __rmod__(self, other: Any) -> Number:
        return floormod(other, self)

    def __pow__(self, other: Any) -> Number:
        return power(self, other)

    def __lshift__(self, other: Any) -> Number:
        return shl(self, other)

    def __rlshift__(self, other: Any) -> Number:
        return shl(other, self)

    def __rshift__(self, other: Any) -> Number:
        return shr(self, other)

    def __rrshift__(self, other: Any) -> Number:
        return shr(other, self)

    def __and__(self, other: Any) -> Number:
        return bit_and(self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Number:
        return bit_or(self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Number:
        return bit_xor(self, other)

    __rxor__ = __xor__

    def __neg__(self) -> Number:
        dtype = INT32 if self.dtype is BOOL else self.dtype
        if self.value is None:
            return Number(dtype, None)
        return Number(dtype, -self.value if dtype.kind == "f" else wrap(-self.value, dtype), self.error)

    def __pos__(self) -> Number:
        return self

    def __invert__(self) -> Number:
        if self.dtype is BOOL:
            return Number(BOOL, None if self.value is None else 1 - self.value)
        return Number(self.dtype, None if self.value is None else wrap(~self.value, self.dtype))

    def __abs__(self) -> Number:
        return absolute(self)

    def __lt__(self, other: Any) -> Number:
        return compare("lt", self, other)

    def __le__(self, other: Any) -> Number:
        return compare("le", self, other)

    def __gt__(self, other: Any) -> Number:
        return compare("gt", self, other)

    def __ge__(self, other: Any) -> Number:
        return compare("ge", self, other)

    def __eq__(self, other: object) -> Any:
        return compare("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return compare("ne", self, other)

    __hash__ = None  # type: ignore[assignment]


def is_number(x: Any) -> bool:
    return isinstance(x, (int, float))


def promote(a: Any, b: Any) -> Dtype:
    """The common type of two operands, of which one may be a Python number.

    A Python float is float32, and float64 beside a float64; a Python integer takes the other side's type, but has 32
    bits at least. The wider float wins, float over integer, the wider integer, unsigned where both are as wide;
    bfloat16 with float16 is float32.
    """
    if not isinstance(a, Number):
        a, b = b, a
    x = a.dtype
    if isinstance(b, Number):
        y = b.dtype
        if x is y:
            return x
        if x.kind == "f" or y.kind == "f":
            if x.rank == y.rank:
                return FLOAT32 if x.rank == 3 else FLOAT16
            return x if x.rank > y.rank else y
        if x is BOOL or y is BOOL:
            return y if x is BOOL else x
        if x.bits != y.bits:
            return x if x.bits > y.bits else y
        return x if x.kind == "u" else y
    if isinstance(b, float):
        return FLOAT64 if x is FLOAT64 else FLOAT32
    if x.kind == "f":
        return x if x.bits > 8 else FLOAT32
    if isinstance(b, bool):
        return x
    x = x if x.bits >= 32 else INT32
    if -(1 << 31) <= b < 1 << 31:
        return x
    for wide in (x, INT64, UINT64):
        if min(wide.low, -(1 << wide.bits - 1)) <= b <= max(wide.high, (1 << wide.bits) - 1):
            return wide
    raise Discard("an integer of more than 64 bits")


def plain(x: Any, dtype: Dtype) -> Number:
    """A Python number as `dtype`."""
    key = (x, type(x), dtype)
    made = _plain.get(key)
    if made is None:
        if dtype.kind == "f":
            made = Number(dtype, rounded(float(x), dtype))
        else:
            made = Number(dtype, int(bool(x)) if dtype is BOOL else wrap(int(x), dtype))
        if len(_plain) > 100_000:
            _plain.clear()
        _plain[key] = made
    return made


_plain: dict[Any, Number] = {}  # numbers never change


def number(x: Any) -> Number:
    """A value by itself: a Python integer is int32 where it fits."""
    if isinstance(x, Number):
        return x
    if isinstance(x, bool):
        return Number(BOOL, int(x))
    if isinstance(x, float):
        return Number(FLOAT32, rounded(x, FLOAT32))
    return Number(INT32 if INT32.low <= x <= INT32.high else INT64, x)


def cast(x: Any, dtype: Dtype) -> Number:
    """Conversion by value: towards zero to integers, to the nearest to floats, `!= 0` to bool."""
    if type(x) is not Number:
        return plain(x, dtype)
    source = x.dtype
    if source is dtype:
        return x
    value = x.value
    if value is None:
        return Number(dtype, None)
    if dtype.kind == "f":
        if source.kind != "f":
            return finished(float(value), dtype, 0.0, int(float(value)) == value)
        if value - value != 0.0 and dtype.bits == 8:  # float8_e4m3fn has no infinity, and conversions may saturate
            return Number(dtype, value if value != value else None)
        if abs(value) > dtype.high and value - value == 0.0:
            over = rounded(value, dtype)  # a float8 saturates; others round to infinity only from half a unit on
            if dtype.bits == 8 and not x.error:
                return Number(dtype, math.copysign(dtype.high, value))
            return Number(dtype, over if abs(over) <= dtype.high else None)
        return finished(value, dtype, x.error, True)
    if source.kind != "f":
        return Number(dtype, int(value != 0) if dtype is BOOL else wrap(value, dtype))
    if dtype is BOOL:
        return compare("ne", x, 0.0)
    if value - value != 0.0:
        return Number(dtype, None)  # no integer is meant by NaN or infinity
    low, high = math.trunc(value - x.error), math.trunc(value + x.error)
    return Number(dtype, low if low == high and dtype.low <= low <= dtype.high else None)


def finished(value: float, dtype: Dtype, error: float, exact: bool) -> Number:
    """A float result: `value` is the true one but for `error`, or not `exact`ly a double. Overflow is undefined."""
    if value - value != 0.0:
        return Number(dtype, value) if error == 0.0 else Number(dtype, None)
    nearest = rounded(value, dtype)
    if nearest - nearest != 0.0:
        return Number(dtype, None)
    if error == 0.0 and exact and nearest == value and (not value or abs(value) >= math.ldexp(1.0, dtype.least)):
        return Number(dtype, nearest)
    return Number(dtype, nearest, error + 2.0 * half_unit(abs(value) + error, dtype))


def _sum(a: float, b: float) -> tuple[float, bool]:
    """a + b and whether that is exact (Knuth's two-sum)."""
    total = a + b
    if total - total != 0.0:
        return total, True
    part = total - a
    return total, (a - (total - part)) + (b - part) == 0.0


def _product(a: float, b: float, dtype: Dtype) -> tuple[float, bool]:
    made = a * b
    if dtype is not FLOAT64 or made - made != 0.0 or not made:
        return made, True
    return made, Fraction(a) * Fraction(b) == Fraction(made)


def _operands(a: Any, b: Any, arithmetic: bool) -> tuple[Number, Number, Dtype]:
    if type(a) is type(b) is Number and a.dtype is b.dtype and a.dtype is not BOOL:
        return a, b, a.dtype
    dtype = promote(a, b)
    if arithmetic and dtype is BOOL:
        dtype = INT32
    return cast(a, dtype), cast(b, dtype), dtype


def _binary(on_integers: Callable[[int, int], int], on_floats: Callable[..., Number]) -> Callable[[Any, Any], Number]:
    def operation(a: Any, b: Any) -> Any:
        if not isinstance(a, Number) and not isinstance(b, Number):
            a = number(a)
        x, y, dtype = _operands(a, b, True)
        if x.value is None or y.value is None:
            return Number(dtype, None)
        if dtype.kind == "f":
            return on_floats(x, y, dtype)
        return Number(dtype, wrap(on_integers(x.value, y.value), dtype))

    return operation


def _add_floats(a: Number, b: Number, dtype: Dtype) -> Number:
    total, exact = _sum(a.value, b.value)
    return finished(total, dtype, a.error + b.error, exact)


def _sub_floats(a: Number, b: Number, dtype: Dtype) -> Number:
    total, exact = _sum(a.value, -b.value)
    return finished(total, dtype, a.error + b.error, exact)


def _mul_floats(a: Number, b: Number, dtype: Dtype) -> Number:
    made, exact = _product(a.value, b.value, dtype)
    error = abs(a.value) * b.error + abs(b.value) * a.error + a.error * b.error if a.error or b.error else 0.0
    return finished(made, dtype, error, exact) if error == error else Number(dtype, None)


add = _binary(lambda a, b: a + b, _add_floats)
sub = _binary(lambda a, b: a - b, _sub_floats)
mul = _binary(lambda a, b: a * b, _mul_floats)


def divide(a: Any, b: Any) -> Number:
    """a / b on floats. Compilers divide float32 with an error of two units, but by powers of two exactly."""
    x, y, dtype = _operands(a, b, True)
    if dtype.kind != "f":
        raise Discard("/ on integers")
    if x.value is None or y.value is None:
        return Number(dtype, None)
    if x.value != x.value or y.value != y.value:
        return Number(dtype, math.nan)
    if abs(y.value) <= y.error:
        # The sign of a zero is nobody's promise.
        return Number(dtype, math.nan if x.value == 0.0 and not x.error and not y.error else None)
    if x.value - x.value != 0.0 or y.value - y.value != 0.0:
        return Number(dtype, None if x.error or y.error else x.value / y.value)
    made = x.value / y.value
    error = (x.error + abs(made) * y.error) / (abs(y.value) - y.error)
    if math.frexp(y.value)[0] in (0.5, -0.5) and not y.error:
        return finished(made, dtype, error, True)
    return finished(made, dtype, error + 6.0 * half_unit(made, max(dtype, FLOAT32, key=lambda d: d.digits)), False)


def _division(kind: str) -> Callable[[Any, Any], Any]:
    def operation(a: Any, b: Any) -> Any:
        if is_number(a) and is_number(b):
            return a // b if kind == "floordiv" else a % b
        x, y, dtype = _operands(a, b, True)
        if dtype.kind == "f":
            if kind == "floordiv":
                return floor(divide(a, b))
            if kind == "floormod":
                return fmod(a, b)
            raise Discard(f"{kind} of floats")
        if x.value is None or not y.value:
            return Number(dtype, None)
        m, n = x.value, y.value
        if dtype.kind == "i" and m == dtype.low and n == -1:
            return Number(dtype, None)
        if kind == "floordiv":
            return Number(dtype, m // n)
        if kind == "floormod":
            return Number(dtype, m % n)
        quotient = abs(m) // abs(n) * (1 if (m < 0) == (n < 0) else -1)
        return Number(dtype, quotient if kind == "truncdiv" else m - quotient * n)

    return operation


floordiv, floormod, truncdiv, truncmod = map(_division, ("floordiv", "floormod", "truncdiv", "truncmod"))


def _bitwise(function: Callable[[int, int], int]) -> Callable[[Any, Any], Number]:
    def operation(a: Any, b: Any) -> Number:
        x, y, dtype = _operands(a, b, False)
        if dtype.kind == "f":
            raise Discard("bits of floats")
        if x.value is None or y.value is None:
            return Number(dtype, None)
        return Number(dtype, function(x.value, y.value))

    return operation


bit_and, bit_or, bit_xor = map(_bitwise, (lambda a, b: a & b, lambda a, b: a | b, lambda a, b: a ^ b))


def _shift(left: bool) -> Callable[[Any, Any], Number]:
    def operation(a: Any, b: Any) -> Number:
        x, y, dtype = _operands(a, b, True)
        if x.value is None or y.value is None or not 0 <= y.value < dtype.bits:
            return Number(dtype, None)
        return Number(dtype, wrap(x.value << y.value, dtype) if left else x.value >> y.value)

    return operation


shl, shr = _shift(True), _shift(False)

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip


def compare(predicate: str, a: Any, b: Any) -> Number:
    x, y, _ = _operands(a, b, False)
    if x.value is None or y.value is None:
        return Number(BOOL, None)
    error = x.error + y.error
    if error and not abs(x.value - y.value) > error:
        return Number(BOOL, None)
    return Number(BOOL, int(_COMPARISONS[predicate](x.value, y.value)))


def _extremum(better: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def operation(*values: Any) -> Any:
        if len(values) == 1 and isinstance(values[0], (tuple, list)):
            values = tuple(values[0])
        result = values[0]
        for value in values[1:]:
            result = two(result, value)
        return result

    def two(a: Any, b: Any) -> Any:
        if is_number(a) and is_number(b):
            return a if better(a, b) else b
        x, y, dtype = _operands(a, b, False)
        if x.value is None or y.value is None:
            return Number(dtype, None)
        if dtype.kind == "f":
            if x.value != x.value or y.value != y.value:  # a NaN is dropped
                return y if x.value != x.value else x
            chosen = x if better(x.value, y.value) else y
            if x.error or y.error:
                return Number(dtype, chosen.value, max(x.error, y.error))
            return chosen
        return x if better(x.value, y.value) else y

    return operation


maximum, minimum = _extremum(lambda a, b: a > b), _extremum(lambda a, b: a < b)


def clamp(x: Any, low: Any, high: Any) -> Any:
    return minimum(maximum(x, low), high)


def absolute(x: Any) -> Any:
    if is_number(x):
        return abs(x)
    if x.value is None or (x.dtype.kind == "i" and x.value == x.dtype.low):
        return Number(x.dtype, None)
    return Number(x.dtype, abs(x.value), x.error)


def select(condition: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true if condition else on_false`, in their common type."""
    if not isinstance(condition, Number):
        return on_true if condition else on_false
    a = on_true if isinstance(on_true, Number) or isinstance(on_false, Number) else _alone(on_true, on_false)
    _, _, dtype = _operands(a, on_false, False)
    if condition.value is None:
        return Number(dtype, None)
    return cast(on_true if truth(condition) else on_false, dtype)


def _alone(a: Any, b: Any) -> Number:
    """The first of two Python numbers as a value: float32 if one is a float, else int32."""
    return plain(a, FLOAT32 if isinstance(a, float) or isinstance(b, float) else INT32)


def as_bool(x: Any) -> Any:
    """A truth value: itself if bool, else `!= 0`."""
    if not isinstance(x, Number):
        return bool(x)
    return x if x.dtype is BOOL else compare("ne", x, 0)


def truth(x: Any) -> bool:
    return bool(as_bool(x))


def logical_and(*values: Any) -> Any:
    return _logical(values, 0)


def logical_or(*values: Any) -> Any:
    return _logical(values, 1)


def _logical(values: tuple[Any, ...], decisive: int) -> Any:
    """`and` (0 decides) or `or` (1 decides); Python values are decided at once."""
    if not any(isinstance(value, Number) for value in values):
        return next((value for value in values if bool(value) == bool(decisive)), values[-1])
    seen = [as_bool(value) for value in values]
    known = [int(each) if not isinstance(each, Number) else each.value for each in seen]
    # Both sides are computed: one that is undefined does not matter where another one decides.
    if decisive in known:
        return Number(BOOL, decisive)
    return Number(BOOL, None if None in known else 1 - decisive)


def logical_not(x: Any) -> Any:
    if not isinstance(x, Number):
        return not x
    made = as_bool(x)
    return Number(BOOL, None if made.value is None else 1 - made.value)


def power(a: Any, b: Any) -> Any:
    if is_number(a) and is_number(b):
        return a**b
    if isinstance(b, int) and 0 < b <= 8:
        made = a
        for _ in range(b - 1):
            made = mul(made, a)
        return made
    raise Discard("a power that is no product")


def _to_whole(name: str, whole: Callable[[float], float]) -> Callable[[Any], Any]:
    def operation(x: Any) -> Any:
        if is_number(x):
            return whole(x)
        if x.dtype.kind != "f":
            x = cast(x, FLOAT32)
        if x.value is None or x.value - x.value != 0.0:
            return x
        low, high = whole(x.value - x.error), whole(x.value + x.error)
        return Number(x.dtype, rounded(float(low), x.dtype) if low == high else None)

    return operation


def _half_away(x: float) -> float:
    return math.copysign(math.floor(abs(x) + 0.5), x) if abs(x) < 2**52 else x


floor, ceil, trunc = _to_whole("floor", math.floor), _to_whole("ceil", math.ceil), _to_whole("trunc", math.trunc)
rint, half_away = _to_whole("rint", round), _to_whole("round", _half_away)


def as_floats(*values: Any) -> tuple[list[Number], Dtype]:
    """Values as numbers of the float type that is common to them, and that type."""
    dtype = number(values[0]).dtype
    for value in values[1:]:
        if isinstance(values[0], Number) or isinstance(value, Number):
            dtype = promote(values[0], value)
    dtype = dtype if dtype.kind == "f" else FLOAT32
    return [cast(value, dtype) for value in values], dtype


def fmod(a: Any, b: Any) -> Number:
    (x, y), dtype = as_floats(a, b)
    if x.value is None or not y.value or x.error or y.error or x.value - x.value != 0 or y.value - y.value != 0:
        return Number(dtype, None)
    return Number(dtype, math.fmod(x.value, y.value))
