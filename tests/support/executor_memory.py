"""The meaning of tile and triton operations, for the executor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.support.executor import (
    DTYPES,
    Env,
    ExecutorError,
    Pointer,
    Step,
    _Executor,
    _fields,
    _scalar,
    meaning,
    poison,
    value_meaning,
)
from tests.support.executor_values import _combiner, cast, dot_arrays, reduce_array, scan_array
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import BufferType

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
        env[out] = array.reshape(-1).view(DTYPES[out.type.dtype]).reshape(shape)

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


def spread(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """np.broadcast_to, which takes longer than most programs' operations where there is nothing to do."""
    return value if isinstance(value, np.ndarray) and value.shape == shape else np.broadcast_to(value, shape)


def read_elements(array: np.ndarray, indices: Sequence[Any], active: Any, other: Any, shape: tuple[int, ...]) -> Any:
    """Elements at indices where active, `other` elsewhere."""
    if not shape:
        return array[tuple(indices)] if active else array.dtype.type(other)
    if array.size == 0:
        return np.full(shape, other, array.dtype)
    safe = tuple(spread(np.where(active, index, 0), shape) for index in indices)
    return np.where(active, array[safe], array.dtype.type(other))


def write_elements(array: np.ndarray, indices: Sequence[Any], active: Any, value: Any, shape: tuple[int, ...]) -> None:
    """Elements at indices replaced where active; the last of several writes to one place stays."""
    if not shape:
        if active:
            array[tuple(indices)] = value
        return
    active = spread(active, shape)
    places = tuple(spread(index, shape)[active] for index in indices)
    array[places] = spread(value, shape)[active]


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
    if not shape:
        if not active:
            return array.dtype.type(0)
        place = tuple(int(index) for index in places)
        before = array[place]
        array[place] = _ATOMICS[kind](before, value)
        return before
    places = [spread(index, shape) for index in places]
    active, value = spread(active, shape), spread(value, shape)
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
            if isinstance(given.type, BufferType) and arg.dtype.startswith("*"):
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
