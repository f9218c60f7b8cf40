"""The reference meaning of the IR, in NumPy: a program can be run at any level, without the passes below it.

`run(func, arguments)` runs the host region and every kernel over its whole grid, one program instance after another.
Rounding is that of one operation at a time: products and sums of a dot, reduction or scan are formed in float64 and
rounded once to their element type, so that their order does not matter; functions of `arith.math` likewise.

What programs may not do raises ExecutorError: a guarded or on-chip access out of bounds, a pointer access outside of
its allocation, a false assertion or assumption, gather indices out of range, a value used where it is not visible.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tiledsl.dialects.tile import FuncOp
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import ELEMENTS, BufferType, is_pointer

Env = dict[Value, Any]
Step = Callable[[Env], None]
Block = Callable[[Env], list[Any]]

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name) if name.startswith(("bfloat", "float8")) else name) for name in ELEMENTS
}


class ExecutorError(Exception):
    """The program did something that has no meaning. `op` is the operation, once known."""

    op: Operation | None = None

    def __str__(self) -> str:
        return super().__str__() + (f"\nin {self.op!r}" if self.op is not None else "")


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy type of an element type; ml_dtypes has those that NumPy lacks."""
    return DTYPES[dtype]


def poison(dtype: str) -> Any:
    """What uninitialised memory holds: NaN, True, or bytes of 0x5a."""
    if ELEMENTS[dtype].kind == "float":
        return DTYPES[dtype].type(math.nan)
    if dtype == "bool":
        return np.True_
    return np.frombuffer(b"\x5a" * DTYPES[dtype].itemsize, DTYPES[dtype])[0]


class Memory:
    """An allocation as pointers see it: elements in a line, from the first; holes of a strided array are invalid."""

    def __init__(self, array: np.ndarray) -> None:
        size = array.itemsize
        if any(step % size or step < 0 for step in array.strides):
            raise ExecutorError(f"an argument has strides {array.strides}")
        steps = [step // size for step in array.strides]
        last = sum((dim - 1) * step for dim, step in zip(array.shape, steps, strict=True)) if array.size else -1
        self.flat = np.lib.stride_tricks.as_strided(array, (last + 1,), (size,))
        self.valid = np.zeros(last + 1, bool)
        if array.size:
            np.lib.stride_tricks.as_strided(self.valid, array.shape, steps)[...] = True


class Pointer:
    """A scalar or tensor of pointers into one allocation; `offset` counts elements from its first."""

    def __init__(self, memory: Memory, offset: Any) -> None:
        self.memory, self.offset = memory, offset

    def map(self, function: Callable[[Any], Any]) -> Pointer:
        return Pointer(self.memory, function(self.offset))

    def inside(self) -> np.ndarray:
        offset, valid = np.asarray(self.offset), self.memory.valid
        inside = (offset >= 0) & (offset < len(valid))
        if inside.any():
            inside = inside & valid[np.where(inside, offset, 0)]
        return inside


def run(
    func: Operation,
    arguments: Sequence[Any],
    *,
    uninitialised: str = "nan",
    reverse_grid: bool = False,
    limit: int = 100_000,
    printed: list[tuple[str, list[Any]]] | None = None,
) -> list[np.ndarray]:
    """Run a `tile.func` and return its outputs.

    `arguments` has an array or number for each parameter (not for the symbols); arrays are written in place, and None
    for an array is allocated, if its sizes are known. On-chip memory starts as NaN or garbage, or as zeros with
    `uninitialised="zero"` (promotion may put zeros there). `reverse_grid` runs program instances from the last to the
    first; `limit` bounds the iterations of one loop; what `tile.print` prints is appended to `printed`.
    """
    if not isinstance(func, FuncOp):
        raise ExecutorError(f"{func.name} is no tile.func")
    assert uninitialised in ("nan", "zero")
    with np.errstate(all="ignore"):
        return _Executor(uninitialised == "zero", reverse_grid, limit, printed).program(func, list(arguments))


MEANINGS: dict[str, Callable[[Operation, _Executor], Step]] = {}


def meaning(*names: str) -> Callable[[Any], Any]:
    """Register a function (operation, executor) -> step, which runs the operation in an environment."""

    def register(make: Any) -> Any:
        for name in names:
            MEANINGS[name] = make
        return make

    return register


def value_meaning(*names: str) -> Callable[[Any], Any]:
    """Register a function operation -> (operand values -> result value)."""

    def register(make: Any) -> Any:
        def step_maker(op: Operation, _: _Executor) -> Step:
            compute, operands, out = make(op), op.operands, op.results[0]
            if len(operands) == 2:
                lhs, rhs = operands

                def binary(env: Env) -> None:
                    env[out] = compute(env[lhs], env[rhs])

                return binary

            def step(env: Env) -> None:
                env[out] = compute(*[env[value] for value in operands])

            return step

        meaning(*names)(step_maker)
        return make

    return register


class _Executor:
    def __init__(self, zero: bool, reverse_grid: bool, limit: int, printed: list[Any] | None) -> None:
        self.zero, self.reverse_grid, self.limit = zero, reverse_grid, limit
        self.printed = printed
        self.dims: dict[str, int] = {}
        self.program_id: tuple[int, ...] = ()
        self.memories: dict[int, tuple[np.ndarray, Memory]] = {}

    def program(self, func: FuncOp, arguments: list[Any]) -> list[np.ndarray]:
        if len(arguments) != len(func.parameters):
            raise ExecutorError(f"{len(arguments)} arguments for the parameters {func.parameters}")
        env: Env = {}
        for name, value, given in zip(func.parameters, func.body.args, arguments, strict=False):
            if isinstance(value.type, BufferType) and given is not None:
                self._bind(name, value.type, given)
        for number, value in enumerate(func.body.args[: len(func.parameters)]):
            if isinstance(value.type, BufferType):
                if arguments[number] is None:
                    arguments[number] = self.allocate(value.type)
                env[value] = arguments[number]
            else:
                env[value] = DTYPES[value.dtype].type(arguments[number])
        for source, name in zip(func.symbol_sources, func.symbols, strict=False):
            parameter, _, axis = str(source).rpartition(".")
            if parameter in func.parameters and axis.isdigit():
                size = arguments[func.parameters.index(parameter)].shape[int(axis)]
                if self.dims.setdefault(str(name), size) != size:
                    raise ExecutorError(f"{name} is {self.dims[str(name)]}, but {source} is {size}")
        for name, value in zip(func.symbols, func.body.args[len(func.parameters) :], strict=True):
            if name not in self.dims:
                raise ExecutorError(f"no argument tells the size {name}")
            env[value] = DTYPES[value.dtype].type(self.dims[name])
        self.block(func.body)(env)
        return [arguments[position] for position in func.outputs]

    def _bind(self, name: str, type: BufferType, array: Any) -> None:
        if not isinstance(array, np.ndarray) or array.dtype != DTYPES[type.dtype] or array.ndim != len(type.shape):
            what = f"{array.dtype} array {array.shape}" if isinstance(array, np.ndarray) else repr(array)
            raise ExecutorError(f"{name} is {type}, but the argument is {what}")
        steps = [step // array.itemsize for step in array.strides]
        if type.strides is None and not array.flags.c_contiguous:
            raise ExecutorError(f"{name} is {type}, but the argument has strides {steps}")
        expected = (*zip(type.shape, array.shape, strict=True), *zip(type.strides or (), steps, strict=False))
        for dim, size in expected:
            if (self.dims.setdefault(dim, size) if isinstance(dim, str) else dim) != size:
                raise ExecutorError(f"{name} is {type}, but the argument is {array.shape} with strides {steps}")

    def allocate(self, type: BufferType) -> np.ndarray:
        try:
            shape = tuple(self.dims[dim] if isinstance(dim, str) else dim for dim in type.shape)
        except KeyError as error:
            raise ExecutorError(f"the size {error} of {type} is not known") from None
        clear = self.zero and type.scope != "global"
        return np.full(shape, 0 if clear else poison(type.dtype), DTYPES[type.dtype])

    def pointer(self, array: np.ndarray) -> Pointer:
        if id(array) not in self.memories:
            self.memories[id(array)] = (array, Memory(array))  # the array is kept so that its id stays its own
        return Pointer(self.memories[id(array)][1], np.int64(0))

    def block(self, region: Region) -> Block:
        """A region as a function that runs it and returns what its terminator hands on."""
        steps: list[tuple[Operation, Step]] = []
        handed: list[Value] = []
        for op in region:
            if op.name in ("scf.yield", "scf.condition"):
                handed = op.operands
            elif op.name in MEANINGS:
                steps.append((op, MEANINGS[op.name](op, self)))
            else:
                raise ExecutorError(f"the executor does not know {op.name}")

        def execute(env: Env) -> list[Any]:
            op: Operation | None = region.parent
            try:
                for op, step in steps:  # noqa: B007
                    step(env)
                op = region.last
                return [env[value] for value in handed]
            except ExecutorError as error:
                error.op = error.op or op
                raise
            except KeyError as error:
                failure = ExecutorError(f"{error.args[0]!r} has no value here")
                failure.op = op
                raise failure from error
            except (ValueError, IndexError, TypeError, AttributeError) as error:
                failure = ExecutorError(f"{type(error).__name__}: {error}")
                failure.op = op
                raise failure from error

        return execute

    def grid(self, sizes: Sequence[Any]) -> list[tuple[int, ...]]:
        points = itertools.product(*(range(int(size)) for size in reversed(sizes)))
        ordered = [tuple(reversed(point)) for point in points]
        return ordered[::-1] if self.reverse_grid else ordered


def _scalar(value: Any) -> Any:
    """A NumPy scalar for an array of rank 0."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _fields(op: Operation) -> dict[str, Any]:
    """The operands by field: a list for a variadic field, a value or None for others."""
    from tiledsl.ir.core import operands

    found: dict[str, Any] = {}
    for field in op.operand_fields:
        values = field.values(op)
        found[field.name] = values if isinstance(field, operands) else values[0] if values else None
    return found


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


# tile: memory


@meaning("tile.alloc")
def _alloc(op: Operation, executor: _Executor) -> Step:
    out = op.results[0]

    def step(env: Env) -> None:
        env[out] = executor.allocate(out.type)

    return step


@meaning("tile.view")
def _view(op: Operation, executor: _Executor) -> Step:
    source, out = op.operands[0], op.results[0]

    def step(env: Env) -> None:
        array = env[source]
        if not array.flags.c_contiguous:
            raise ExecutorError("a view of a strided buffer")
        shape = [executor.dims[dim] if isinstance(dim, str) else dim for dim in out.type.shape]
        env[out] = array.view(DTYPES[out.type.dtype]).reshape(shape)

    return step


def _inside(array: np.ndarray, indices: Sequence[Any]) -> Any:
    inside: Any = True
    for index, size in zip(indices, array.shape, strict=True):
        inside = inside & (index >= 0) & (index < size)
    return inside


def _element_inside(buffer: Value, array: np.ndarray, place: tuple[int, ...], guarded: bool) -> bool:
    """The same as `_active` for one element: parallel bodies run it often."""
    for index, size in zip(place, array.shape, strict=True):
        if not 0 <= index < size:
            return bool(_active(buffer, array, place, None, guarded))
    return True


def _active(buffer: Value, array: np.ndarray, indices: Sequence[Any], mask: Any, guarded: bool) -> Any:
    """Where an access takes place. Raises where one lies outside and nothing makes up for it."""
    inside = _inside(array, indices)
    must_fit = buffer.type.scope != "global" or guarded
    if must_fit and np.any(np.logical_not(inside) if mask is None else mask & np.logical_not(inside)):
        what = "a guarded access" if guarded else "an access"
        ranges = ", ".join(f"{np.min(index)}..{np.max(index)}" for index in indices)
        raise ExecutorError(f"{what} to {buffer!r} of shape {array.shape} lies outside: the indices are {ranges}")
    return inside if mask is None else mask & inside


def read_elements(array: np.ndarray, indices: Sequence[Any], active: Any, other: Any, shape: tuple[int, ...]) -> Any:
    """Elements at indices where active, `other` elsewhere."""
    if not shape:
        return array[tuple(indices)] if active else array.dtype.type(other)
    if array.size == 0:
        return np.full(shape, other, array.dtype)
    safe = tuple(np.broadcast_to(np.where(active, index, 0), shape) for index in indices)
    return np.where(active, array[safe], array.dtype.type(other))


def write_elements(array: np.ndarray, indices: Sequence[Any], active: Any, value: Any, shape: tuple[int, ...]) -> None:
    """Elements at indices replaced where active; the last of several writes to one place stays."""
    if not shape:
        if active:
            array[tuple(indices)] = value
        return
    active = np.broadcast_to(active, shape)
    places = tuple(np.broadcast_to(index, shape)[active] for index in indices)
    array[places] = np.broadcast_to(value, shape)[active]


@meaning("tile.load")
def _load(op: Operation, _: _Executor) -> Step:
    fields, out, guarded = _fields(op), op.results[0], op.attributes["guarded"]
    buffer, mask, other, indices = (fields[key] for key in ("buffer", "mask", "other", "indices"))
    zero = DTYPES[out.dtype].type(0)

    if not out.shape and mask is None:

        def element(env: Env) -> None:
            array, place = env[buffer], tuple([int(env[index]) for index in indices])
            if _element_inside(buffer, array, place, guarded):
                env[out] = array[place]
            else:
                env[out] = zero if other is None else env[other]

        return element

    def step(env: Env) -> None:
        array, places = env[buffer], [env[index] for index in indices]
        active = _active(buffer, array, places, None if mask is None else env[mask], guarded)
        env[out] = read_elements(array, places, active, zero if other is None else env[other], out.shape)

    return step


def _shape(*values: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(*(np.shape(value) for value in values if value is not None))


@meaning("tile.store")
def _store(op: Operation, _: _Executor) -> Step:
    fields, guarded = _fields(op), op.attributes["guarded"]
    value, buffer, mask, indices = (fields[key] for key in ("value", "buffer", "mask", "indices"))

    if mask is None and not value.shape and not any(index.shape for index in indices):

        def element(env: Env) -> None:
            array, place = env[buffer], tuple([int(env[index]) for index in indices])
            if _element_inside(buffer, array, place, guarded):
                array[place] = env[value]

        return element

    def step(env: Env) -> None:
        array, places = env[buffer], [env[index] for index in indices]
        where = None if mask is None else env[mask]
        active = _active(buffer, array, places, where, guarded)
        write_elements(array, places, active, env[value], _shape(*places, where, env[value]))

    return step


_ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "max": np.fmax, "min": np.fmin, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "exchange": lambda old, new: new, "store": lambda old, new: new, "load": lambda old, new: old,
}  # fmt: skip


def _atomically(array: np.ndarray, places: Sequence[Any], active: Any, value: Any, kind: str, shape: Any) -> Any:
    """One element after another; returns the old values, 0 where not active."""
    if kind not in _ATOMICS:
        raise ExecutorError(f"no atomic operation {kind!r}")
    places = [np.broadcast_to(index, shape) for index in places]
    active, value = np.broadcast_to(active, shape), np.broadcast_to(value, shape)
    old = np.zeros(shape, array.dtype)
    for point in np.ndindex(*shape):
        if active[point]:
            place = tuple(index[point] for index in places)
            old[point] = array[place]
            array[place] = _ATOMICS[kind](array[place], value[point])
    return _scalar(old)


@meaning("tile.atomic")
def _atomic(op: Operation, _: _Executor) -> Step:
    fields, guarded, kind = _fields(op), op.attributes["guarded"], op.attributes["kind"]
    value, buffer, mask, indices = (fields[key] for key in ("value", "buffer", "mask", "indices"))

    def step(env: Env) -> None:
        array, places = env[buffer], [env[index] for index in indices]
        where = None if mask is None else env[mask]
        active = _active(buffer, array, places, where, guarded)
        shape = _shape(*places, where, env[value])
        env[op.results[0]] = _atomically(array, places, active, env[value], kind, shape)

    return step


@meaning("tile.read")
def _read(op: Operation, _: _Executor) -> Step:
    buffer, out = op.operands[0], op.results[0]

    def step(env: Env) -> None:
        env[out] = _scalar(env[buffer].copy())

    return step


@meaning("tile.write", "tile.fill")
def _write(op: Operation, _: _Executor) -> Step:
    value, buffer = op.operands

    def step(env: Env) -> None:
        env[buffer][...] = env[value]

    return step


@meaning("tile.copy")
def _copy(op: Operation, _: _Executor) -> Step:
    fields, attributes = _fields(op), op.attributes
    shape = attributes["shape"]

    def places(env: Env, buffer: Value, offsets: list[Value], axes: tuple[int, ...]) -> list[Any]:
        rank = env[buffer].ndim
        indices: list[Any] = [np.int64(env[offset]) for offset in offsets] if offsets else [np.int64(0)] * rank
        for dimension, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            line = [1] * len(shape)
            line[dimension] = size
            indices[axis] = indices[axis] + np.arange(size).reshape(line)
        return indices

    def step(env: Env) -> None:
        source, target = fields["source"], fields["target"]
        at = places(env, source, fields["source_offsets"], attributes["source_axes"])
        active = _active(source, env[source], at, None, False)
        safe = cast(np.float64(attributes["safe_value"]), source.dtype)
        tile = read_elements(env[source], at, active, safe, shape)
        at = places(env, target, fields["target_offsets"], attributes["target_axes"])
        active = _active(target, env[target], at, None, False)
        write_elements(env[target], at, active, cast(tile, target.dtype), shape)

    return step


@meaning("tile.gemm")
def _gemm(op: Operation, _: _Executor) -> Step:
    attributes = op.attributes

    def step(env: Env) -> None:
        a, b, c = (env[value].reshape(env[value].shape[-2:]) for value in op.operands)
        a, b = a.T if attributes["trans_a"] else a, b.T if attributes["trans_b"] else b
        made = dot_arrays(a, b, None if attributes["clear"] else c, c.dtype)
        env[op.operands[2]][...] = made.reshape(env[op.operands[2]].shape)

    return step


@meaning("tile.reduce")
def _tile_reduce(op: Operation, _: _Executor) -> Step:
    source, target = op.operands
    kind, axis, clear, propagate_nan = (op.attributes[key] for key in ("kind", "axis", "clear", "propagate_nan"))

    def step(env: Env) -> None:
        old = env[target]
        made = reduce_array(cast(env[source], target.dtype), kind, axis, propagate_nan).reshape(old.shape)
        old[...] = made if clear else _combiner(kind, "", propagate_nan)(old, made)

    return step


@meaning("tile.scan")
def _tile_scan(op: Operation, _: _Executor) -> Step:
    source, target = op.operands

    def step(env: Env) -> None:
        value = cast(env[source], target.dtype)
        env[target][...] = scan_array(value, *(op.attributes[key] for key in ("kind", "axis", "reverse")))

    return step


# tile: structure


@meaning("tile.parallel")
def _parallel(op: Operation, executor: _Executor) -> Step:
    body, args = executor.block(op.regions[0]), op.regions[0].args
    ranges = [[np.int32(number) for number in range(extent)] for extent in op.attributes["extents"]]

    def step(env: Env) -> None:
        for point in itertools.product(*ranges):
            env.update(zip(args, point, strict=True))
            body(env)

    return step


@meaning("tile.kernel")
def _kernel(op: Operation, executor: _Executor) -> Step:
    body, args = executor.block(op.regions[0]), op.regions[0].args

    def step(env: Env) -> None:
        for point in executor.grid([env[size] for size in op.operands]):
            inner = dict(env)
            inner.update(zip(args, map(np.int32, point), strict=True))
            body(inner)

    return step


@meaning("tile.print")
def _print(op: Operation, executor: _Executor) -> Step:
    def step(env: Env) -> None:
        if executor.printed is not None:
            executor.printed.append((op.attributes["message"], [np.copy(env[value])[()] for value in op.operands]))

    return step


@meaning("tile.assert", "tile.assume")
def _assert(op: Operation, _: _Executor) -> Step:
    def step(env: Env) -> None:
        if not np.all(env[op.operands[0]]):
            raise ExecutorError(f"{op.name} does not hold: {op.attributes.get('message', '')}")

    return step


# triton


@meaning("triton.launch")
def _launch(op: Operation, executor: _Executor) -> Step:
    fields, args = _fields(op), op.regions[0].args
    body = executor.block(op.regions[0])

    def step(env: Env) -> None:
        inner: Env = {}
        for given, arg in zip(fields["arguments"], args, strict=True):
            value = env[given]
            if isinstance(given.type, BufferType) and is_pointer(arg.dtype):
                if arg.dtype[1:] != given.dtype:
                    raise ExecutorError(f"{given!r} is passed as {arg.type}")
                value = executor.pointer(value)
            elif given.type != arg.type:
                raise ExecutorError(f"{given!r} is passed as {arg.type}")
            inner[arg] = value
        outer = executor.program_id
        for point in executor.grid([env[size] for size in fields["grid"]]):
            executor.program_id = (*point, 0, 0)[:3]
            body(dict(inner))
        executor.program_id = outer

    return step


@meaning("triton.program_id")
def _program_id(op: Operation, executor: _Executor) -> Step:
    def step(env: Env) -> None:
        env[op.results[0]] = np.int32(executor.program_id[op.attributes["axis"]])

    return step


@value_meaning("triton.addptr")
def _addptr(op: Operation) -> Any:
    return lambda pointer, offset: pointer.map(lambda base: base + np.asarray(offset).astype(np.int64)[()])


def _pointer_active(pointer: Pointer, mask: Any, shape: tuple[int, ...]) -> Any:
    inside = pointer.inside()
    if np.any(~inside if mask is None else mask & ~inside):
        offset = np.broadcast_to(pointer.offset, shape)
        bad = np.broadcast_to(~inside if mask is None else mask & ~inside, shape)
        raise ExecutorError(
            f"element {np.atleast_1d(offset[bad])[0]} of an allocation of {len(pointer.memory.valid)} is accessed"
        )
    return np.broadcast_to(True if mask is None else mask, shape)


@meaning("triton.load")
def _pointer_load(op: Operation, _: _Executor) -> Step:
    fields, out = _fields(op), op.results[0]

    def step(env: Env) -> None:
        pointer, mask = env[fields["pointer"]], None if fields["mask"] is None else env[fields["mask"]]
        active = _pointer_active(pointer, mask, out.shape)
        other = poison(out.dtype) if fields["other"] is None else env[fields["other"]]
        made = np.array(np.broadcast_to(other, out.shape), DTYPES[out.dtype])
        made[active] = pointer.memory.flat[np.broadcast_to(pointer.offset, out.shape)[active]]
        env[out] = _scalar(made)

    return step


@meaning("triton.store", "triton.atomic")
def _pointer_store(op: Operation, _: _Executor) -> Step:
    fields = _fields(op)

    def step(env: Env) -> None:
        pointer, value = env[fields["pointer"]], env[fields["value"]]
        mask = None if fields["mask"] is None else env[fields["mask"]]
        shape = np.shape(pointer.offset)
        active = _pointer_active(pointer, mask, shape)
        if op.name == "triton.store":
            if np.asarray(value).dtype != pointer.memory.flat.dtype:
                raise ExecutorError(f"{np.asarray(value).dtype} is stored to {pointer.memory.flat.dtype}")
            write_elements(pointer.memory.flat, [pointer.offset], active, value, shape)
        else:
            kind = op.attributes["kind"]
            env[op.results[0]] = _atomically(pointer.memory.flat, [pointer.offset], active, value, kind, shape)

    return step
