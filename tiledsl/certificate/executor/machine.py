"""Programs, regions, memory and the registry of what operations mean."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tiledsl.certificate.algebra import Algebra, ExecutorError, Unsupported
from tiledsl.certificate.executor.parts import is_everywhere, part_at
from tiledsl.dialects.tile import FuncOp
from tiledsl.formulas import value_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.fields import operands
from tiledsl.ir.types import BufferType

Env = dict[Value, Any]
Step = Callable[[Env], None]
Block = Callable[[Env], list[Any]]
Point = tuple[int, ...]


class Memory:
    """An allocation as pointers see it: elements in a line, from the first; holes of a strided array are invalid."""

    def __init__(self, array: np.ndarray) -> None:
        size = array.itemsize
        if any(step % size or step < 0 for step in array.strides):
            raise ExecutorError(f"an argument has strides {array.strides}")
        steps = [step // size for step in array.strides]
        last = sum((dim - 1) * step for dim, step in zip(array.shape, steps, strict=True)) if array.size else -1
        raw = array if array.dtype.kind == "c" else array.view(f"u{size}")  # as_strided knows no float8_e5m2
        self.flat = np.lib.stride_tricks.as_strided(raw, (last + 1,), (size,)).view(array.dtype)
        self.valid = np.zeros(last + 1, bool)
        if array.size:
            np.lib.stride_tricks.as_strided(self.valid, array.shape, steps)[...] = True
        self.is_whole = bool(self.valid.all())

    def part(self, offset: Any, mask: Any, shape: Point, is_written: bool = False) -> np.ndarray | None:
        """The elements at offsets as `part_at` gives them; None if a mask or a hole leaves some out, too."""
        return part_at(self.flat, [offset], shape, is_written) if self.is_whole and is_everywhere(mask) else None

    def reached(self, offset: Any, mask: Any, shape: Point) -> tuple[np.ndarray, np.ndarray]:
        """Which lanes of an access are active, and the offset of each. ExecutorError for one outside of the memory."""
        offset, active = np.broadcast_to(offset, shape), np.broadcast_to(True if mask is None else mask, shape)
        inside = (offset >= 0) & (offset < len(self.valid))
        if inside.any():
            inside = inside & self.valid[np.where(inside, offset, 0)]
        if (bad := active & ~inside).any():
            first = np.atleast_1d(offset[bad])[0]
            raise ExecutorError(f"element {first} of an allocation of {len(self.valid)} is accessed")
        return active, offset

    def read(self, offset: Any, mask: Any, other: Any, shape: Point) -> np.ndarray:
        """Elements at offsets; `other` where the mask says so. ExecutorError as `reached`."""
        found = self.part(offset, mask, shape)
        if found is not None:
            return found.copy()
        active, offset = self.reached(offset, mask, shape)
        made = np.array(np.broadcast_to(other, shape), self.flat.dtype)
        made[active] = self.flat[offset[active]]
        return made

    def write(self, offset: Any, mask: Any, value: Any, shape: Point) -> None:
        """Elements at offsets replaced, but where a mask says not; the last of several stays. ExecutorError as
        `reached`."""
        found = self.part(offset, mask, shape, is_written=True)
        if found is not None:
            found[...] = value
            return
        active, offset = self.reached(offset, mask, shape)
        self.flat[offset[active]] = np.broadcast_to(value, shape)[active]


class Pointer:
    """A scalar or tensor of pointers into one allocation; `offset` counts elements from its first."""

    def __init__(self, memory: Memory, offset: Any) -> None:
        self.memory, self.offset = memory, offset

    def map(self, function: Callable[[Any], Any]) -> Pointer:
        return Pointer(self.memory, function(self.offset))


def run(
    func: Operation,
    arguments: Sequence[Any],
    *,
    algebra: Algebra | None = None,
    uninitialised: str = "nan",
    reverse_grid: bool = False,
    limit: int = 100_000,
    printed: list[tuple[str, list[Any]]] | None = None,
    lanes: bool = False,
) -> list[np.ndarray]:
    """Run a `tile.func` and return its outputs.

    `arguments` has an array or number for each parameter (not for the symbols); arrays are written in place, and None
    for an array is allocated, if its sizes are known. On-chip memory starts as NaN or garbage, or as zeros with
    `uninitialised="zero"` (promotion may put zeros there). `reverse_grid` runs program instances from the last to the
    first; `limit` bounds the iterations of one loop, and the blocks; what `tile.print` prints is appended to `printed`.
    `lanes`: all iterations of a T.Parallel go through its body together, statement by statement.
    """
    assert uninitialised in ("nan", "zero")
    executor = Executor(algebra or Algebra())
    executor.zero, executor.reverse_grid, executor.limit = uninitialised == "zero", reverse_grid, limit
    executor.printed, executor.in_lanes = printed, lanes
    return executor.run(func, arguments)


# What each operation means, by its name: a function (operation, executor) -> step.
MEANINGS: dict[str, Callable[[Operation, Executor], Step]] = {}


def meaning(*names: str) -> Callable[[Any], Any]:
    """Register a function (operation, executor) -> step, which runs the operation in an environment."""

    def register(make: Any) -> Any:
        for name in names:
            MEANINGS[name] = make
        return make

    return register


def result_meaning(*names: str) -> Callable[[Any], Any]:
    """Register a function (operation, executor) -> (environment -> result value)."""

    def register(make: Any) -> Any:
        def step_maker(op: Operation, executor: Executor) -> Step:
            result, out = make(op, executor), op.results[0]

            def step(env: Env) -> None:
                env[out] = result(env)

            return step

        meaning(*names)(step_maker)
        return make

    return register


def value_meaning(*names: str) -> Callable[[Any], Any]:
    """Register a function (operation, algebra) -> (operand values -> result value)."""

    def register(make: Any) -> Any:
        def step_maker(op: Operation, executor: Executor) -> Step:
            compute, operands, out = make(op, executor.algebra), op.operands, op.results[0]
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


class Executor:
    """Runs programs in an algebra. `op` is the operation at which the last run failed or stands."""

    zero = reverse_grid = in_lanes = False
    limit = 100_000
    printed: list[tuple[str, list[Any]]] | None = None
    filler: int | None = None  # what is read outside of on-chip memory, where nothing is written; None: an error
    strayed: ExecutorError | None = None  # what that error would have been
    lanes: Any = None  # inside of a T.Parallel: which of its iterations are active; True for all
    extents: Point = ()  # and how many there are
    private: frozenset[Value] = frozenset()  # where they are threads: the buffers of which each has its own
    lines: Sequence[np.ndarray] = ()  # and the indices of the threads
    of_block: frozenset[Operation] = frozenset()  # the parallels in them in which nothing differs from thread to thread

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.dims: dict[str, int] = {}
        self.program_id: Point = ()
        self.grid_sizes: Point = ()
        self.part = self.turn = 0  # which part of a block's rows, and which of a program's work items
        self.turns = 1
        self.memories: dict[int, tuple[np.ndarray, Memory]] = {}
        self.role: Any = None  # which role of a block runs, where warps have roles
        self.roles: Any = None  # and all of them
        self.copies: list[Any] = []  # that the block has started, and no arrival has spoken of
        self.wrap: Callable[[Operation, Step], Step] | None = None  # what is put around the steps of a block's roles
        self.said: set[str] = set()  # the messages of prints and assertions that were reached

    def run(self, func: Operation, arguments: Sequence[Any]) -> list[np.ndarray]:
        """See `run` of this module."""
        if not isinstance(func, FuncOp):
            raise ExecutorError(f"{func.name} is not a tile.func")
        with np.errstate(all="ignore"):
            return self.program(func, list(arguments))

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
                given = arguments[number]
                known = isinstance(given, np.generic) and given.dtype == self.algebra.dtype(value.dtype)
                env[value] = given if known else self.algebra.constant(given, value.dtype)
        for source, name in zip(func.symbol_sources, func.symbols, strict=False):
            parameter, _, axis = str(source).rpartition(".")
            found = re.fullmatch(r"(\d+)([+-]\d+)?(?://(\d+))?", axis)  # an axis, plus a constant, over a factor
            if parameter in func.parameters and found:
                size = arguments[func.parameters.index(parameter)].shape[int(found[1])]
                size = (size + int(found[2] or 0)) // int(found[3] or 1)
                if self.dims.setdefault(str(name), size) != size:
                    raise ExecutorError(f"{name} is {self.dims[str(name)]}, but {source} is {size}")
        for name, formula in func.formulas:
            if name not in self.dims:
                scalars = {each: int(x) for each, x in zip(func.parameters, arguments) if np.ndim(x) == 0}
                size = value_of(formula, {**scalars, **self.dims})
                if size is not None:
                    self.dims[name] = size
        for name, value in zip(func.symbols, func.body.args[len(func.parameters) :], strict=True):
            if name not in self.dims:
                raise ExecutorError(f"no argument tells the size {name}")
            env[value] = self.algebra.constant(self.dims[name], value.dtype)
        self.block(func.body)(env)
        return [arguments[position] for position in func.outputs]

    def _bind(self, name: str, type: BufferType, array: Any) -> None:
        expected_dtype = self.algebra.dtype(type.dtype)
        if not isinstance(array, np.ndarray) or array.dtype != expected_dtype or array.ndim != len(type.shape):
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
        number = self.algebra.constant(0, type.dtype) if clear else self.algebra.poison(type.dtype)
        return np.full(shape, number, self.algebra.dtype(type.dtype))

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
            elif op.name in MEANINGS:
                step = MEANINGS[op.name](op, self)
                steps.append((op, step if self.wrap is None else self.wrap(op, step)))
            else:
                raise Unsupported(f"the executor does not know {op.name}")

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

    def grid(self, sizes: Sequence[Any]) -> list[Point]:
        if math.prod(map(int, sizes)) > self.limit:
            raise Unsupported(f"a grid of {' x '.join(map(str, sizes))} blocks, too many to execute")
        points = itertools.product(*(range(int(size)) for size in reversed(sizes)))
        ordered = [tuple(reversed(point)) for point in points]
        return ordered[::-1] if self.reverse_grid else ordered


def index_lines(extents: Sequence[int]) -> list[np.ndarray]:
    """The indices along each of some axes, each as an array that goes with those of the others."""
    rank = len(extents)
    return [
        np.arange(extent, dtype=np.int32).reshape([-1 if axis == at else 1 for at in range(rank)])
        for axis, extent in enumerate(extents)
    ]


def fields_of(op: Operation) -> dict[str, Any]:
    """The operands by field: a list for a variadic field, a value or None for others."""
    found: dict[str, Any] = {}
    for field in op.operand_fields:
        values = field.values(op)
        found[field.name] = values if isinstance(field, operands) else values[0] if values else None
    return found
