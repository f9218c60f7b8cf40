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
Part = tuple[slice, ...]


@dataclass(frozen=True)
class Descriptor:
    """A buffer's array with its dimensions in the order of the descriptor, and the shape of its blocks."""

    array: np.ndarray
    block: tuple[int, ...]


def block_part(
    array: np.ndarray, dtype: str, starts: Sequence[Any], sizes: Sequence[int], where: Sequence[int], rank: int
) -> tuple[np.ndarray, Part]:
    """The elements of a block that are inside of the array, and where they lie in the block. The block's size in
    dimension i lies along axis where[i] of `rank`."""
    size = ELEMENTS[dtype].bits // 8
    if int(starts[-1]) * size % 16:
        raise ExecutorError(f"a block begins at column {int(starts[-1])}, not a multiple of 16 bytes")
    steps = [step // array.itemsize for step in array.strides]
    if any(step * size % 16 for step in steps[:-1]) or steps[-1] != 1:
        raise ExecutorError(f"a block of an array with strides {steps} of {dtype}")
    chosen: list[slice] = []
    inside = [slice(0, 1)] * rank
    for given, length, axis, extent in zip(starts, sizes, where, array.shape, strict=True):
        start = int(given)
        first = min(max(start, 0), extent)
        end = max(min(start + length, extent), first)
        chosen.append(slice(first, end))
        if axis >= 0:
            inside[axis] = slice(first - start, end - start) if first < end else slice(0, 0)
        elif first == end:
            inside = [slice(0, 0)] * rank
            break
    if any(each.start == each.stop for each in inside):
        return np.empty((0,) * rank, array.dtype), (slice(0, 0),) * rank
    axes = [dim for _, dim in sorted((axis, dim) for dim, axis in enumerate(where) if axis >= 0)]
    others = [dim for dim, axis in enumerate(where) if axis < 0]
    part = array[tuple(chosen)].transpose([*others, *axes])[(0,) * len(others)]
    missing = tuple(axis for axis in range(rank) if axis not in where)
    return np.expand_dims(part, missing), tuple(inside)


def load_block(elements: np.ndarray, inside: Part, shape: Sequence[int], zero: Any) -> np.ndarray:
    """The elements of a block, 0 outside of the array."""
    if elements.shape == tuple(shape):
        return elements.copy()
    made = np.full(shape, zero, elements.dtype)
    made[inside] = elements
    return made


def store_block(
    elements: np.ndarray, inside: Part, value: np.ndarray, add: Callable[[Any, Any], Any] | None = None
) -> None:
    """Store those elements of a block that are inside of the array, or what they are with those there by `add`."""
    elements[...] = value[inside] if add is None else add(elements, value[inside])


def _block(op: Operation, env: Env, tile: Value) -> tuple[np.ndarray, Part]:
    """The block that an operation loads or stores as `tile`, as `block_part` gives it."""
    fields = fields_of(op)
    if "buffer" in fields:
        array, axes = env[fields["buffer"]], op.attributes["axes"]
        where = [axes.index(dim) if dim in axes else -1 for dim in range(array.ndim)]
        sizes = [tile.shape[axis] if axis >= 0 else 1 for axis in where]
        starts = [env[start] for start in fields["starts"]]
        return block_part(array, fields["buffer"].dtype, starts, sizes, where, len(tile.shape))
    descriptor = env[fields["descriptor"]]
    axes = op.attributes["axes"] or tuple(range(len(descriptor.block)))
    number = dict(zip(axes, op.attributes.get("pieces", ())))
    sizes = [size * number.get(dim, 1) for dim, size in enumerate(descriptor.block)]
    if tuple(sizes[axis] if axis >= 0 else 1 for axis in axes) != tile.shape or prod(sizes) != prod(tile.shape):
        raise ExecutorError(f"a block {descriptor.block} as {tile.type}")
    starts = [env[start] for start in fields["starts"]]
    where = [axes.index(dim) if dim in axes else -1 for dim in range(len(sizes))]
    return block_part(descriptor.array, tile.dtype, starts, sizes, where, len(tile.shape))


@result_meaning("tile.load_block", "triton.load_block")
def _load(op: Operation, executor: Executor) -> Any:
    out = op.results[0]
    zero = executor.algebra.constant(0, out.dtype)

    def loaded(env: Env) -> np.ndarray:
        return load_block(*_block(op, env, out), out.shape, zero)

    return loaded


@meaning("tile.store_block", "triton.store_block")
def _store(op: Operation, executor: Executor) -> Step:
    given = fields_of(op)["value"]
    add = executor.algebra.atomic("add", given.dtype) if op.attributes.get("add") else None

    def step(env: Env) -> None:
        elements, inside = _block(op, env, given)
        value = env[given]
        if np.asarray(value).dtype != elements.dtype:
            raise ExecutorError(f"{np.asarray(value).dtype} is stored to {elements.dtype}")
        store_block(elements, inside, value, add)

    return step


@result_meaning("triton.descriptor")
def _descriptor(op: Operation, _: Executor) -> Any:
    dims, block = op.attributes["dims"], op.attributes["block"]
    return lambda env: Descriptor(env[op.operands[0]].transpose(dims), block)


@result_meaning("triton.multiprocessors")
def _multiprocessors(_: Operation, __: Executor) -> Any:
    return lambda _: np.int32(MULTIPROCESSORS)
