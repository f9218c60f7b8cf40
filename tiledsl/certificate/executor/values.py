"""The meaning of arith, scf and tensor operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl.analysis.gluon.words import order_in_fours
from tiledsl.certificate.algebra import BINARY, Algebra, ExecutorError, scalar
from tiledsl.certificate.executor.machine import Env, Executor, Pointer, Step, meaning, value_meaning
from tiledsl.dialects.tile import buffer_type
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.ir.types import ELEMENTS, BufferType

# arith


@meaning("arith.constant")
def _constant(op: Operation, executor: Executor) -> Step:
    out = op.results[0]
    number = executor.algebra.constant(op.attributes["value"], out.dtype)
    value = np.broadcast_to(number, out.shape) if out.shape else number

    def step(env: Env) -> None:
        env[out] = value

    return step


@value_meaning("arith.select")
def _select(op: Operation, _: Algebra) -> Any:
    def select(condition: Any, a: Any, b: Any) -> Any:
        if isinstance(a, Pointer):
            if a.memory is not b.memory:
                raise ExecutorError("a selection among pointers into two allocations")
            return Pointer(a.memory, scalar(np.where(condition, a.offset, b.offset)))
        return scalar(np.where(condition, a, b))

    return select


# scf


@meaning("scf.for")
def _for(op: Operation, executor: Executor) -> Step:
    lower, upper, step_value, *inits = op.operands
    index, *iter_args = op.regions[0].args
    body, results = executor.block(op.regions[0]), op.results
    kind = executor.algebra.dtype(lower.dtype).type

    def in_lanes(env: Env) -> None:
        """Iterations whose number differs from lane to lane: each stops where it has to."""
        values, outside = [env[value] for value in inits], executor.lanes
        number, end, stride = env[lower], env[upper], env[step_value]
        for _ in range(executor.limit):
            executor.lanes = outside & np.where(stride > 0, number < end, number > end)
            if not np.any(executor.lanes):
                break
            env[index] = number
            env.update(zip(iter_args, values, strict=True))
            values = [scalar(np.where(executor.lanes, new, old)) for new, old in zip(body(env), values, strict=True)]
            number = number + stride
        executor.lanes = outside
        env.update(zip(results, values, strict=True))

    def step(env: Env) -> None:
        if executor.lanes is not None and any(np.ndim(env[each]) for each in (lower, upper, step_value)):
            in_lanes(env)
            return
        if not env[step_value]:
            raise ExecutorError("the step of a loop is 0")
        values = [env[value] for value in inits]
        numbers = range(int(env[lower]), int(env[upper]), int(env[step_value]))
        if len(numbers) > executor.limit:
            raise ExecutorError(f"a loop of {len(numbers)} iterations")
        for number in numbers:
            env[index] = kind(number)
            env.update(zip(iter_args, values, strict=True))
            values = body(env)
        env.update(zip(results, values, strict=True))

    return step


@meaning("scf.if")
def _if(op: Operation, executor: Executor) -> Step:
    then, orelse = map(executor.block, op.regions)
    condition, results = op.operands[0], op.results

    def in_lanes(env: Env) -> None:
        holds, outside = env[condition], executor.lanes
        yielded = []
        for region, where, of in ((then, holds, op.regions[0]), (orelse, ~holds, op.regions[1])):
            executor.lanes = outside & where
            if executor.roles is not None and np.any(executor.lanes) and executor.roles.takes(executor, of):
                executor.roles.fork(executor, region, env)
            elif results or np.any(executor.lanes):
                yielded.append(region(env))
        executor.lanes = outside
        chosen = [scalar(np.where(holds, a, b)) for a, b in zip(*yielded, strict=True)] if results else []
        env.update(zip(results, chosen, strict=True))

    def step(env: Env) -> None:
        if executor.lanes is not None and np.ndim(env[condition]):
            in_lanes(env)
        else:
            env.update(zip(results, (then if env[condition] else orelse)(env), strict=True))

    return step


_LONG = 100  # iterations after which it is asked whether anything changes


def _state(op: Operation) -> list[Value] | None:
    """The buffers from outside that a loop writes, if they are the block's own; None if it writes what others read."""
    inside = [inner for inner in op.walk() if inner is not op]
    writes = [each for each in inside if Effect.WRITE in each.effects and each.attributes.get("kind") != "load"]
    buffers = [[value for value in each.operands if isinstance(value.type, BufferType)] for each in writes]
    written = dict.fromkeys(value for each in buffers for value in each)
    made = {value for each in inside for value in each.results}
    if not all(buffers) or any(buffer_type(value).scope == "global" or value in made for value in written):
        return None
    return list(written)


@meaning("scf.while")
def _while(op: Operation, executor: Executor) -> Step:
    before, after = map(executor.block, op.regions)
    before_args, after_args = op.regions[0].args, op.regions[1].args
    state = _state(op)

    def in_lanes(env: Env) -> None:
        values, outside = [env[value] for value in op.operands], executor.lanes
        results: list[Any] | None = None
        for _ in range(executor.limit):
            env.update(zip(before_args, values, strict=True))
            going = executor.lanes
            go_on, *handed = before(env)
            old = handed if results is None else results
            results = [scalar(np.where(going, new, was)) for new, was in zip(handed, old, strict=True)]
            executor.lanes = going & go_on
            if not np.any(executor.lanes):
                executor.lanes = outside
                env.update(zip(op.results, results, strict=True))
                return
            env.update(zip(after_args, handed, strict=True))
            values = [scalar(np.where(executor.lanes, new, was)) for new, was in zip(after(env), values, strict=True)]
        raise ExecutorError(f"a while loop still runs after {executor.limit} iterations")

    def step(env: Env) -> None:
        if executor.lanes is not None:
            in_lanes(env)
            return
        values, seen = [env[value] for value in op.operands], None
        for number in range(executor.limit):
            env.update(zip(before_args, values, strict=True))
            go_on, *handed = before(env)
            if not go_on:
                env.update(zip(op.results, handed, strict=True))
                return
            env.update(zip(after_args, handed, strict=True))
            values = after(env)
            if state is not None and number in (_LONG, _LONG + 1):
                found = [np.copy(each) for each in (*values, *(env[buffer] for buffer in state))]
                if seen is not None and all(map(np.array_equal, seen, found)):
                    raise ExecutorError("a while loop waits for what no program before does")
                seen = found
        raise ExecutorError(f"a while loop still runs after {executor.limit} iterations")

    return step


# tensor


@value_meaning("tensor.iota")
def _iota(op: Operation, algebra: Algebra) -> Any:
    out = op.results[0]
    count = np.arange(out.shape[op.attributes["axis"]], dtype=np.int64)
    value = np.asarray(algebra.cast("int64", out.dtype)(count)).reshape(out.shape)
    return lambda: value


def gathered(source: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    """The elements at indices along an axis. ExecutorError for an index outside."""
    if ((indices < 0) | (indices >= source.shape[axis])).any():
        raise ExecutorError("a gather index lies outside of the source")
    return np.take_along_axis(source, indices, axis)


def counted(values: np.ndarray, size: int) -> np.ndarray:
    """How often each number below `size` is among the values. ExecutorError for any other value."""
    if ((values < 0) | (values >= size)).any():
        raise ExecutorError("a histogram counts what lies outside of it")
    return np.bincount(values, minlength=size).astype(np.int32)


@meaning("tensor.sort")
def _sort(op: Operation, executor: Executor) -> Step:
    (source,), (out, indices) = op.operands, op.results
    compute = in_order(executor.algebra, source.dtype, op.attributes["axis"], op.attributes["descending"])

    def step(env: Env) -> None:
        env[out], env[indices] = compute(env[source])

    return step


def in_order(algebra: Algebra, dtype: str, axis: int, descending: bool) -> Callable[[Any], tuple[Any, Any]]:
    """The elements along an axis in order, and their places before.

    The place of an element is the number of those that come before it, by the algebra's own comparisons.
    """
    less, equal = algebra.compare("lt", dtype), algebra.compare("eq", dtype)

    def compute(value: Any) -> tuple[Any, Any]:
        given = np.moveaxis(np.asarray(value), axis, -1)
        one, other = given[..., :, None], given[..., None, :]
        if descending:
            one, other = other, one
        first = less(one, other)
        if ELEMENTS[dtype].kind == "float":
            first = first | (equal(one, one) & ~equal(other, other))
        places = np.arange(given.shape[-1])
        earlier = first | (~np.swapaxes(first, -1, -2) & (places[:, None] < places[None, :]))
        turned = np.argsort(earlier.sum(-2), -1, kind="stable")
        made = np.take_along_axis(given, turned, -1), turned.astype(np.int32)
        return np.moveaxis(made[0], -1, axis), np.moveaxis(made[1], -1, axis)

    return compute


def _moved(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What moves elements, of which pointers have their offsets."""
    return lambda value: value.map(function) if isinstance(value, Pointer) else function(value)


def _binary(op: Operation, algebra: Algebra) -> Any:
    return algebra.binary(op.name.removeprefix("arith."), op.operands[0].dtype)


def _math(op: Operation, algebra: Algebra) -> Any:
    return algebra.math(op.attributes["function"], op.operands[0].dtype, op.results[0].dtype)


def _reduce(op: Operation, algebra: Algebra) -> Any:
    kind, axis, propagate_nan = (op.attributes[key] for key in ("kind", "axis", "propagate_nan"))
    reduce = algebra.reduce(kind, axis, op.operands[0].dtype, propagate_nan)
    if not op.attributes["in_fours"]:
        return reduce
    order = order_in_fours(op.operands[0].shape[axis])
    return lambda value: reduce(value[:, order])


def _dot(op: Operation, algebra: Algebra) -> Any:
    a, b, c = op.operands
    return algebra.dot(a.dtype, b.dtype, c.dtype, op.attributes["precision"])


def _result_shape(op: Operation) -> tuple[int, ...]:
    return op.results[0].shape


# What operations are that an algebra has as they are, or that are one function of NumPy's: of operation and algebra.
def scan(op: Operation, dtype: str, algebra: Algebra) -> Callable[..., Any]:
    """Inclusive prefixes as a scan's attributes say, of values and, for a linear recurrence, factors."""
    kind, axis, reverse = (op.attributes[key] for key in ("kind", "axis", "reverse"))
    return algebra.recurrence(axis, dtype) if kind == "linear" else algebra.scan(kind, axis, reverse, dtype)


def field(algebra: Algebra, dtype: str, shift: int, mask: int, bits: int) -> Callable[..., Any]:
    """What arith.field does to arrays of integers."""
    cast = algebra.bitcast("uint16", dtype)
    return lambda value: cast(scalar((np.asarray(value).astype(np.uint16) >> shift) & mask | bits).astype(np.uint16))


def _field(op: Operation, algebra: Algebra) -> Callable[..., Any]:
    return field(algebra, op.results[0].dtype, *(op.attributes[name] for name in ("shift", "mask", "bits")))


_FUNCTIONS: dict[str, Callable[[Operation, Algebra], Callable[..., Any]]] = {
    **{f"arith.{name}": _binary for name in BINARY},
    "arith.cmp": lambda op, algebra: algebra.compare(op.attributes["predicate"], op.operands[0].dtype),
    "arith.cast": lambda op, algebra: algebra.cast(op.operands[0].dtype, op.results[0].dtype),
    "arith.bitcast": lambda op, algebra: algebra.bitcast(op.operands[0].dtype, op.results[0].dtype),
    "arith.field": _field,
    "arith.neg": lambda op, algebra: algebra.negate(op.operands[0].dtype),
    "arith.not": lambda op, algebra: np.invert,
    "arith.math": _math,
    "tensor.broadcast": lambda op, algebra: _moved(lambda value: np.broadcast_to(value, _result_shape(op))),
    "tensor.reshape": lambda op, algebra: _moved(lambda value: scalar(np.reshape(value, _result_shape(op)))),
    "tensor.transpose": lambda op, algebra: _moved(lambda value: np.transpose(value, op.attributes["permutation"])),
    "tensor.reduce": _reduce,
    "tensor.scan": lambda op, algebra: scan(op, op.operands[0].dtype, algebra),
    "tensor.dot": _dot,
    "tensor.gather": lambda op, algebra: lambda source, at: gathered(source, at, op.attributes["axis"]),
    "tensor.histogram": lambda op, algebra: lambda source, mask: counted(source[mask], _result_shape(op)[0]),
}  # fmt: skip
for _name, _make in _FUNCTIONS.items():
    value_meaning(_name)(_make)
