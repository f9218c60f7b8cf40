"""What accesses to whole blocks mean, of buffers and through descriptors, and what hardware demands of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tiledsl.certificate.algebra import ExecutorError
from tiledsl.certificate.executor.machine import Env, Executor, Step, fields_of, meaning, result_meaning
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import ELEMENTS

MULTIPROCESSORS = 3


@dataclass(frozen=True)
class Descriptor:
    """A buffer's array with its dimensions in the order of the descriptor, and the shape of its blocks."""

    array: np.ndarray
    block: tuple[int, ...]


def block_places(
    array: np.ndarray, dtype: str, starts: Sequence[Any], sizes: Sequence[int], where: Sequence[int], rank: int
) -> tuple[Any, Any]:
    """The index arrays of a block whose size in dimension i lies along axis where[i] of `rank`, and what is inside."""
    size = ELEMENTS[dtype].bits // 8
    if int(starts[-1]) * size % 16:
        raise ExecutorError(f"a block begins at column {int(starts[-1])}, not a multiple of 16 bytes")
    steps = [step // array.itemsize for step in array.strides]
    if any(step * size % 16 for step in steps[:-1]) or steps[-1] != 1:
        raise ExecutorError(f"a block of an array with strides {steps} of {dtype}")
    indices, inside = [], np.True_
    for start, size, axis, extent in zip(starts, sizes, where, array.shape, strict=True):
        shape = [1] * rank
        if axis >= 0:
            shape[axis] = size
        index = (int(start) + np.arange(size)).reshape(shape)
        inside = inside & (index >= 0) & (index < extent)
        indices.append(np.clip(index, 0, max(extent - 1, 0)))
    return tuple(indices), inside


def store_block(
    array: np.ndarray,
    indices: Sequence[Any],
    inside: Any,
    value: np.ndarray,
    add: Callable[[Any, Any], Any] | None = None,
) -> None:
    """Store the elements of a block that are inside of the array, or what they are with those there by `add`."""
    inside = np.broadcast_to(inside, value.shape)
    places = tuple(np.broadcast_to(index, value.shape)[inside] for index in indices)
    array[places] = value[inside] if add is None else add(array[places], value[inside])


def _block(op: Operation, env: Env, tile: Value) -> tuple[np.ndarray, Any, Any]:
    """The array whose block an operation loads or stores as `tile`, and the block's places there."""
    fields = fields_of(op)
    if "buffer" in fields:
        array, axes = env[fields["buffer"]], op.attributes["axes"]
        where = [axes.index(dim) if dim in axes else -1 for dim in range(array.ndim)]
        sizes = [tile.shape[axis] if axis >= 0 else 1 for axis in where]
        starts = [env[start] for start in fields["starts"]]
        return array, *block_places(array, fields["buffer"].dtype, starts, sizes, where, len(tile.shape))
    descriptor = env[fields["descriptor"]]
    axes = op.attributes["axes"] or tuple(range(len(descriptor.block)))
    number = dict(zip(axes, op.attributes.get("pieces", ())))
    sizes = [size * number.get(dim, 1) for dim, size in enumerate(descriptor.block)]
    if tuple(sizes[axis] if axis >= 0 else 1 for axis in axes) != tile.shape or prod(sizes) != prod(tile.shape):
        raise ExecutorError(f"a block {descriptor.block} as {tile.type}")
    starts = [env[start] for start in fields["starts"]]
    where = [axes.index(dim) if dim in axes else -1 for dim in range(len(sizes))]
    array = descriptor.array
    return array, *block_places(array, tile.dtype, starts, sizes, where, len(tile.shape))


@result_meaning("tile.load_block", "triton.load_block")
def _load(op: Operation, executor: Executor) -> Any:
    out = op.results[0]
    zero = executor.algebra.constant(0, out.dtype)

    def loaded(env: Env) -> np.ndarray:
        array, indices, inside = _block(op, env, out)
        return np.broadcast_to(np.where(inside, array[indices], zero), out.shape).copy()

    return loaded


@meaning("tile.store_block", "triton.store_block")
def _store(op: Operation, executor: Executor) -> Step:
    given = fields_of(op)["value"]
    add = executor.algebra.atomic("add", given.dtype) if op.attributes.get("add") else None

    def step(env: Env) -> None:
        array, indices, inside = _block(op, env, given)
        value = env[given]
        if np.asarray(value).dtype != array.dtype:
            raise ExecutorError(f"{np.asarray(value).dtype} is stored to {array.dtype}")
        store_block(array, indices, inside, value, add)

    return step


@result_meaning("triton.descriptor")
def _descriptor(op: Operation, _: Executor) -> Any:
    dims, block = op.attributes["dims"], op.attributes["block"]
    return lambda env: Descriptor(env[op.operands[0]].transpose(dims), block)


@result_meaning("triton.multiprocessors")
def _multiprocessors(_: Operation, __: Executor) -> Any:
    return lambda _: np.int32(MULTIPROCESSORS)
