"""Arithmetic for the executor, as NumPy does it: what elements are, and what operations on them give.

An algebra is a parameter of the executor and of the machines that run emitted source. This one computes with NumPy's
own element types: integers wrap, floats round after each operation, but that dots, reductions, scans and functions are
formed in float64 and rounded once, so that their order does not matter. `exact.ExactAlgebra` has fingerprints for
floats. Methods return functions of arrays or scalars, so that what depends on types alone is decided once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl.ir.types import ELEMENTS, is_float
from tiledsl.math_functions import MATH_FUNCTIONS

Function = Callable[..., Any]


class ExecutorError(Exception):
    """The program did something that has no meaning. `op` is the operation, once known."""

    op: Any = None

    def __str__(self) -> str:
        return super().__str__() + (f"\nin {self.op!r}" if self.op is not None else "")


class Unsupported(ExecutorError):
    """The executor, or a stand-in, does not know what the program does."""


def scalar(value: Any) -> Any:
    """A NumPy scalar for an array of rank 0."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def truncdiv(a: Any, b: Any) -> Any:
    """Integer division that rounds towards zero; 0 for a zero divisor."""
    quotient = np.floor_divide(a, b)
    up = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    return (quotient + up.astype(quotient.dtype)).astype(quotient.dtype)


BINARY: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "ceildiv": lambda a, b: np.floor_divide(a, b) + (np.remainder(a, b) != 0),
    "floormod": np.remainder,
    "truncdiv": truncdiv,
    "truncmod": np.fmod,
    "max": np.fmax,
    "min": np.fmin,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
}
COMPARE: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def combiner(kind: str, propagate_nan: bool = False) -> Any:
    """The NumPy function that combines two elements under a reduction of this kind."""
    if kind in ("max", "absmax"):
        return np.maximum if propagate_nan else np.fmax
    if kind == "min":
        return np.minimum if propagate_nan else np.fmin
    if kind in ("and", "or", "xor"):
        return getattr(np, f"bitwise_{kind}")
    return np.multiply if kind == "prod" else np.add


Arrays = tuple[Any, ...]


def prefixes(combine: Callable[[Arrays, Arrays], Arrays], given: Arrays, axis: int) -> Arrays:
    """Inclusive prefixes of arrays together along an axis. After k steps, each is of the 2**k before it."""
    rows = tuple(np.moveaxis(each, axis, 0) for each in given)
    far = 1
    while far < len(rows[0]):
        first, last = (tuple(each[part] for each in rows) for part in (slice(-far), slice(far, None)))
        made = combine(first, last)
        rows = tuple(np.concatenate([each[:far], new]) for each, new in zip(rows, made, strict=True))
        far *= 2
    return tuple(np.moveaxis(each, 0, axis) for each in rows)


def saturated(value: Any, dtype: str, to: np.dtype[Any]) -> Any:
    """Floats as integers: truncated, NaN as 0, and what is too large as the largest."""
    info = ELEMENTS[dtype]
    wide = np.trunc(np.nan_to_num(np.asarray(value, np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    limits = np.iinfo(to)
    high, low = wide >= float(limits.max) + (info.bits < 64), wide < limits.min
    made = np.where(high | low, 0, wide).astype(to)
    return scalar(np.where(high, to.type(limits.max), np.where(low, to.type(limits.min), made)))


class Algebra:
    """Elements as NumPy has them."""

    dtypes: dict[str, np.dtype[Any]] = {
        name: np.dtype(name) for name in ELEMENTS if not name.startswith(("bfloat", "float8"))
    }

    def dtype(self, dtype: str) -> np.dtype[Any]:
        """How arrays hold an element type. Raises ExecutorError for one that NumPy lacks."""
        try:
            return self.dtypes[dtype]
        except KeyError:
            raise Unsupported(f"elements of {dtype} are not known here") from None

    def constant(self, number: Any, dtype: str) -> Any:
        """A number, rounded to the element type."""
        return self.dtype(dtype).type(number)

    def poison(self, dtype: str) -> Any:
        """What uninitialised memory holds: NaN, True, or bytes of 0x5a."""
        if is_float(dtype):
            return self.constant(math.nan, dtype)
        if dtype == "bool":
            return np.True_
        return np.frombuffer(b"\x5a" * self.dtype(dtype).itemsize, self.dtype(dtype))[0]

    def view(self, array: np.ndarray, source: str, target: str) -> np.ndarray:
        """A contiguous array in a line, seen as another element type."""
        return array if source == target else array.view(self.dtype(target))

    def binary(self, name: str, dtype: str) -> Function:
        return BINARY[name]

    def compare(self, predicate: str, dtype: str) -> Function:
        return COMPARE[predicate]

    def negate(self, dtype: str) -> Function:
        return np.negative

    def cast(self, source: str, target: str) -> Function:
        """Conversion by value: truncation to integers (saturating), nearest even to floats, `!= 0` to bool."""
        if source == target:
            return lambda value: value
        to = self.dtype(target)
        if target == "bool":
            return lambda value: scalar(np.asarray(value) != 0)
        if is_float(source) and not is_float(target):
            return lambda value: saturated(value, target, to)
        return lambda value: scalar(np.asarray(value).astype(to))

    def bitcast(self, source: str, target: str) -> Function:
        to = self.dtype(target)
        return lambda value: scalar(np.ascontiguousarray(value).view(to).reshape(np.shape(value)))

    def math(self, name: str, dtype: str, target: str) -> Function:
        out = self.dtype(target)
        record = MATH_FUNCTIONS[name]
        on_integers = record.takes in ("bits", "wide ints")
        if record.takes != "numbers" and on_integers == is_float(dtype):
            raise ExecutorError(f"{name} of {dtype}")
        function = record.on_arrays
        if not is_float(dtype) or record.takes == "wide floats" and name != "ldexp":
            return lambda *values: scalar(np.asarray(function(*values)).astype(out))

        def compute(*values: Any) -> Any:
            wide = [np.asarray(value).astype(np.float64) for value in values]
            return scalar(np.asarray(function(*wide)).astype(out))

        return compute

    def combine(self, kind: str, dtype: str, propagate_nan: bool = False) -> Function:
        """Two elements under a reduction of this kind."""
        return combiner(kind, propagate_nan)  # type: ignore[no-any-return]

    def atomic(self, kind: str, dtype: str) -> Function:
        """What an atomic operation leaves of an old and a given element."""
        return combiner(kind)  # type: ignore[no-any-return]

    def reduce(self, kind: str, axis: int, dtype: str, propagate_nan: bool = False) -> Function:
        """One axis reduced away, in the element type of the argument."""
        combine = combiner(kind, propagate_nan)

        def compute(value: np.ndarray) -> Any:
            wide = value if value.dtype.kind in "iub" else value.astype(np.float64)
            if kind.startswith("abs"):
                wide = np.abs(wide)
            if value.shape[axis] == 0:
                raise ExecutorError("a reduction of nothing")
            extra: dict[str, Any] = {"dtype": wide.dtype} if combine in (np.add, np.multiply) else {}
            if combine is np.add and wide.dtype.kind == "f":
                extra["initial"] = -0.0  # NumPy begins with 0.0, which loses the sign of a sum of zeros
            return scalar(np.asarray(combine.reduce(wide, axis=axis, **extra)).astype(value.dtype))

        return compute

    def scan(self, kind: str, axis: int, reverse: bool, dtype: str) -> Function:
        """Inclusive prefixes along an axis, in the element type of the argument."""
        combine = combiner(kind)

        def compute(value: np.ndarray) -> Any:
            wide = value if value.dtype.kind in "iub" else value.astype(np.float64)
            wide = np.flip(wide, axis) if reverse else wide
            extra = {"dtype": wide.dtype} if combine in (np.add, np.multiply) else {}
            made = combine.accumulate(wide, axis=axis, **extra)
            return (np.flip(made, axis) if reverse else made).astype(value.dtype)

        return compute

    def recurrence(self, axis: int, dtype: str) -> Function:
        """`y[i] = factors[i] * y[i - 1] + values[i]` along an axis, of two arrays, in log2(n) steps (Hillis, Steele:
        Data parallel algorithms, CACM 29(12), 1986)."""
        multiply, add = self.binary("mul", dtype), self.binary("add", dtype)

        def combine(before: Arrays, here: Arrays) -> Arrays:
            return multiply(before[0], here[0]), add(multiply(here[0], before[1]), here[1])

        return lambda values, factors: prefixes(combine, (factors, values), axis)[1]

    def dot(self, a: str, b: str, dtype: str, precision: str = "default") -> Function:
        """`c + a @ b`, exactly, rounded once to `dtype`; c may be None. Integers wrap."""
        out = self.dtype(dtype)

        def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray | None) -> Any:
            wide = np.int64 if a.dtype.kind in "iub" else np.float64
            product = a.astype(wide) @ b.astype(wide)
            return (product if c is None else c.astype(wide) + product).astype(out)

        return compute
