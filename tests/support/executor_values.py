"""The meaning of arith, scf and tensor operations, for the executor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.executor import DTYPES, Env, ExecutorError, Pointer, Step, _Executor, _scalar, meaning, value_meaning
from tiledsl.ir.core import Operation
from tiledsl.ir.types import ELEMENTS

# arith


@meaning("arith.constant")
def _constant(op: Operation, _: _Executor) -> Step:
    out = op.results[0]
    number = DTYPES[out.dtype].type(op.attributes["value"])
    value = np.full(out.shape, number) if out.shape else number

    def step(env: Env) -> None:
        env[out] = value

    return step


def truncdiv(a: Any, b: Any) -> Any:
    """Integer division that rounds towards zero; 0 for a zero divisor."""
    quotient = np.floor_divide(a, b)
    up = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    return (quotient + up.astype(quotient.dtype)).astype(quotient.dtype)


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.add": np.add,
    "arith.sub": np.subtract,
    "arith.mul": np.multiply,
    "arith.div": np.divide,
    "arith.floordiv": np.floor_divide,
    "arith.floormod": np.remainder,
    "arith.truncdiv": truncdiv,
    "arith.truncmod": np.fmod,
    "arith.max": np.fmax,
    "arith.min": np.fmin,
    "arith.and": np.bitwise_and,
    "arith.or": np.bitwise_or,
    "arith.xor": np.bitwise_xor,
    "arith.shl": np.left_shift,
    "arith.shr": np.right_shift,
}


@value_meaning(*_BINARY)
def _binary(op: Operation) -> Any:
    return _BINARY[op.name]


_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


@value_meaning("arith.cmp")
def _cmp(op: Operation) -> Any:
    return _COMPARE[op.attributes["predicate"]]


@value_meaning("arith.select")
def _select(op: Operation) -> Any:
    def select(condition: Any, a: Any, b: Any) -> Any:
        if isinstance(a, Pointer):
            if a.memory is not b.memory:
                raise ExecutorError("a selection among pointers into two allocations")
            return Pointer(a.memory, _scalar(np.where(condition, a.offset, b.offset)))
        return _scalar(np.where(condition, a, b))

    return select


def cast(value: Any, dtype: str) -> Any:
    """Conversion by value: truncation to integers (saturating, NaN to 0), nearest even to floats, `!= 0` to bool."""
    to = DTYPES[dtype]
    array = np.asarray(value)
    if array.dtype == to:
        return value
    info = ELEMENTS[dtype]
    if info.kind == "bool":
        return _scalar(array != 0)
    if info.kind in ("int", "uint") and array.dtype.kind not in "iub":
        wide = np.trunc(np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
        limits = np.iinfo(to)
        high, low = wide >= float(limits.max) + (info.bits < 64), wide < limits.min
        made = np.where(high | low, 0, wide).astype(to)
        return _scalar(np.where(high, to.type(limits.max), np.where(low, to.type(limits.min), made)))
    return _scalar(array.astype(to))


@value_meaning("arith.cast")
def _cast(op: Operation) -> Any:
    dtype = op.results[0].dtype
    return lambda value: cast(value, dtype)


@value_meaning("arith.bitcast")
def _bitcast(op: Operation) -> Any:
    to = DTYPES[op.results[0].dtype]
    return lambda value: _scalar(np.ascontiguousarray(value).view(to).reshape(np.shape(value)))


@value_meaning("arith.neg")
def _neg(op: Operation) -> Any:
    return np.negative


@value_meaning("arith.not")
def _not(op: Operation) -> Any:
    return np.invert


def _round_half_away(x: Any) -> Any:
    whole = np.trunc(x)
    return np.copysign(whole + (np.abs(x - whole) >= 0.5) * np.sign(x), x)


_AS_IN_NUMPY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh "
    "floor ceil trunc rint abs isnan isinf isfinite fmod hypot copysign"
)
_FLOAT_MATH: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _AS_IN_NUMPY.split()},
    **{name: getattr(np, "arc" + name[1:]) for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "exp10": lambda x: np.power(10.0, x),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "erf": lambda x: np.vectorize(math.erf, otypes=[np.float64])(x),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "round": _round_half_away,
    "nearbyint": np.rint,
    "pow": np.power,
    "atan2": np.arctan2,
    "ldexp": lambda x, n: np.ldexp(x, np.asarray(n).astype(np.int32)),
    "fma": lambda a, b, c: a * b + c,
    "clamp": lambda x, low, high: np.fmin(np.fmax(x, low), high),
}  # fmt: skip


def _mulhi(a: Any, b: Any) -> Any:
    bits = np.asarray(a).dtype.itemsize * 8
    high = (np.asarray(a).astype(object) * np.asarray(b).astype(object)) >> bits
    return np.asarray(high).astype(np.asarray(a).dtype)


_INT_MATH: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "clamp": _FLOAT_MATH["clamp"],
    "pow": np.power,
    "mulhi": _mulhi,
    "popcount": lambda x: np.vectorize(lambda v: int(v).bit_count(), otypes=[np.int64])(_unsigned(x)),
    "clz": lambda x: np.vectorize(lambda v: _unsigned(x).dtype.itemsize * 8 - int(v).bit_length(), otypes=[np.int64])(
        _unsigned(x)
    ),
}


def _unsigned(x: Any) -> np.ndarray:
    array = np.asarray(x)
    return array.view(f"uint{array.dtype.itemsize * 8}")


@value_meaning("arith.math")
def _math(op: Operation) -> Any:
    name, dtype = op.attributes["function"], op.operands[0].dtype
    out = DTYPES[op.results[0].dtype]
    if ELEMENTS[dtype].kind != "float":
        if name not in _INT_MATH:
            raise ExecutorError(f"{name} of {dtype}")
        return lambda *values: _scalar(np.asarray(_INT_MATH[name](*values)).astype(out))
    function = _FLOAT_MATH.get(name)
    if name == "nextafter":
        return lambda x, y: np.nextafter(x, y)
    if function is None:
        raise ExecutorError(f"{name} of {dtype}")

    def compute(*values: Any) -> Any:
        wide = [np.asarray(value).astype(np.float64) for value in values]
        return _scalar(np.asarray(function(*wide)).astype(out))

    return compute


# scf


@meaning("scf.for")
def _for(op: Operation, executor: _Executor) -> Step:
    lower, upper, step_value, *inits = op.operands
    index, *carried = op.regions[0].args
    body, results = executor.block(op.regions[0]), op.results
    kind = DTYPES[lower.dtype].type

    def step(env: Env) -> None:
        if not env[step_value]:
            raise ExecutorError("the step of a loop is 0")
        values = [env[value] for value in inits]
        numbers = range(int(env[lower]), int(env[upper]), int(env[step_value]))
        if len(numbers) > executor.limit:
            raise ExecutorError(f"a loop of {len(numbers)} iterations")
        for number in numbers:
            env[index] = kind(number)
            env.update(zip(carried, values, strict=True))
            values = body(env)
        env.update(zip(results, values, strict=True))

    return step


@meaning("scf.if")
def _if(op: Operation, executor: _Executor) -> Step:
    then, orelse = map(executor.block, op.regions)
    condition, results = op.operands[0], op.results

    def step(env: Env) -> None:
        env.update(zip(results, (then if env[condition] else orelse)(env), strict=True))

    return step


@meaning("scf.while")
def _while(op: Operation, executor: _Executor) -> Step:
    before, after = map(executor.block, op.regions)
    before_args, after_args = op.regions[0].args, op.regions[1].args

    def step(env: Env) -> None:
        values = [env[value] for value in op.operands]
        for _ in range(executor.limit):
            env.update(zip(before_args, values, strict=True))
            go_on, *handed = before(env)
            if not go_on:
                env.update(zip(op.results, handed, strict=True))
                return
            env.update(zip(after_args, handed, strict=True))
            values = after(env)
        raise ExecutorError(f"a while loop still runs after {executor.limit} iterations")

    return step


# tensor


@value_meaning("tensor.iota")
def _iota(op: Operation) -> Any:
    out = op.results[0]
    value = np.arange(out.shape[op.attributes["axis"]]).astype(DTYPES[out.dtype]).reshape(out.shape)
    return lambda: value


def _shape_only(op: Operation, function: Callable[[Any], Any]) -> Any:
    return lambda value: value.map(function) if isinstance(value, Pointer) else function(value)


@value_meaning("tensor.broadcast")
def _broadcast(op: Operation) -> Any:
    return _shape_only(op, lambda value: np.broadcast_to(value, op.results[0].shape))


@value_meaning("tensor.reshape")
def _reshape(op: Operation) -> Any:
    return _shape_only(op, lambda value: _scalar(np.reshape(value, op.results[0].shape)))


@value_meaning("tensor.transpose")
def _transpose(op: Operation) -> Any:
    return _shape_only(op, lambda value: np.transpose(value, op.attributes["permutation"]))


def _combiner(kind: str, dtype: str, propagate_nan: bool = False) -> Any:
    """The NumPy function that combines two elements under a reduction of this kind."""
    if kind in ("max", "absmax"):
        return np.maximum if propagate_nan else np.fmax
    if kind == "min":
        return np.minimum if propagate_nan else np.fmin
    if kind in ("and", "or", "xor"):
        return getattr(np, f"bitwise_{kind}")
    return np.multiply if kind == "prod" else np.add


def reduce_array(value: np.ndarray, kind: str, axis: int, propagate_nan: bool = False) -> np.ndarray:
    """One axis reduced away, in the element type of `value`."""
    dtype = value.dtype
    wide = value if dtype.kind in "iub" else value.astype(np.float64)
    if kind.startswith("abs"):
        wide = np.abs(wide)
    if value.shape[axis] == 0:
        raise ExecutorError("a reduction of nothing")
    combine = _combiner(kind, "", propagate_nan)
    extra = {"dtype": wide.dtype} if combine in (np.add, np.multiply) else {}
    return np.asarray(combine.reduce(wide, axis=axis, **extra)).astype(dtype)


def scan_array(value: np.ndarray, kind: str, axis: int, reverse: bool) -> np.ndarray:
    """Inclusive prefixes along an axis, in the element type of `value`."""
    wide = value if value.dtype.kind in "iub" else value.astype(np.float64)
    wide = np.flip(wide, axis) if reverse else wide
    combine = _combiner(kind, "")
    extra = {"dtype": wide.dtype} if combine in (np.add, np.multiply) else {}
    made = combine.accumulate(wide, axis=axis, **extra)
    return (np.flip(made, axis) if reverse else made).astype(value.dtype)


def dot_arrays(a: np.ndarray, b: np.ndarray, c: np.ndarray | None, dtype: np.dtype[Any]) -> np.ndarray:
    """`c + a @ b`, exactly, rounded once to `dtype`; integers wrap."""
    wide = np.int64 if a.dtype.kind in "iub" else np.float64
    product = a.astype(wide) @ b.astype(wide)
    return (product if c is None else c.astype(wide) + product).astype(dtype)


@value_meaning("tensor.reduce")
def _reduce(op: Operation) -> Any:
    options = (op.attributes["kind"], op.attributes["axis"], op.attributes["propagate_nan"])
    return lambda value: _scalar(reduce_array(value, *options))


@value_meaning("tensor.scan")
def _scan(op: Operation) -> Any:
    return lambda value: scan_array(value, *(op.attributes[key] for key in ("kind", "axis", "reverse")))


@value_meaning("tensor.dot")
def _dot(op: Operation) -> Any:
    return lambda a, b, c: dot_arrays(a, b, c, c.dtype)


@value_meaning("tensor.gather")
def _gather(op: Operation) -> Any:
    axis = op.attributes["axis"]

    def gather(source: np.ndarray, indices: np.ndarray) -> np.ndarray:
        if ((indices < 0) | (indices >= source.shape[axis])).any():
            raise ExecutorError("a gather index lies outside of the source")
        return np.take_along_axis(source, indices, axis)

    return gather
