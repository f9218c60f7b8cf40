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
import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tiledsl.dialects.tile import FuncOp
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import ELEMENTS, BufferType

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
        raw = array.view(f"u{size}")  # as_strided knows no float8_e5m2
        self.flat = np.lib.stride_tricks.as_strided(raw, (last + 1,), (size,)).view(array.dtype)
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
        raise ExecutorError(f"{func.name} is not a tile.func")
    assert uninitialised in ("nan", "zero")
    meanings()
    with np.errstate(all="ignore"):
        return _Executor(uninitialised == "zero", reverse_grid, limit, printed).program(func, list(arguments))


_MEANINGS: dict[str, Callable[[Operation, _Executor], Step]] = {}


def meanings() -> dict[str, Callable[[Operation, _Executor], Step]]:
    """What each operation means, by its name: a function (operation, executor) -> step."""
    from tests.support import executor_blocks, executor_memory  # noqa: F401  (they register theirs)

    return _MEANINGS


def meaning(*names: str) -> Callable[[Any], Any]:
    """Register a function (operation, executor) -> step, which runs the operation in an environment."""

    def register(make: Any) -> Any:
        for name in names:
            _MEANINGS[name] = make
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
            found = re.fullmatch(r"(\d+)([+-]\d+)?(?://(\d+))?", axis)  # an axis, plus a constant, over a factor
            if parameter in func.parameters and found:
                size = arguments[func.parameters.index(parameter)].shape[int(found[1])]
                size = (size + int(found[2] or 0)) // int(found[3] or 1)
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

    def pointer(self, array: Any) -> Any:
        """A pointer to an array's first element; descriptors are passed on."""
        if not isinstance(array, np.ndarray):
            return array
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
            elif op.name in _MEANINGS:
                steps.append((op, _MEANINGS[op.name](op, self)))
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
