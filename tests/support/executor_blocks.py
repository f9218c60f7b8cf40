"""What accesses to whole blocks mean, of buffers and through descriptors, and what hardware demands of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.executor import Env, ExecutorError, Step, _Executor, _fields, meaning
from tiledsl.ir.core import Operation

MULTIPROCESSORS = 3


@dataclass(frozen=True)
class Descriptor:
    """A buffer's array with its dimensions in the order of the descriptor, and the shape of its blocks."""

    array: np.ndarray
    block: tuple[int, ...]


def _places(array: np.ndarray, starts: list[Any], sizes: list[int], where: list[int], rank: int) -> tuple[Any, Any]:
    """The index arrays of a block whose size in dimension i lies along axis where[i] of `rank`, and what is inside."""
    if int(starts[-1]) * array.itemsize % 16:
        raise ExecutorError(f"a block begins at column {starts[-1]}, not a multiple of 16 bytes")
    if any(step % 16 for step in array.strides[:-1]) or array.strides[-1] != array.itemsize:
        raise ExecutorError(f"a block of an array with strides {array.strides}")
    indices, inside = [], np.True_
    for start, size, axis, extent in zip(starts, sizes, where, array.shape, strict=True):
        shape = [1] * rank
        if axis >= 0:
            shape[axis] = size
        index = (int(start) + np.arange(size)).reshape(shape)
        inside = inside & (index >= 0) & (index < extent)
        indices.append(np.clip(index, 0, max(extent - 1, 0)))
    return tuple(indices), inside


def _tile_places(op: Operation, env: Env, shape: tuple[int, ...]) -> tuple[Any, Any]:
    fields, axes = _fields(op), op.attributes["axes"]
    array = env[fields["buffer"]]
    where = [axes.index(dim) if dim in axes else -1 for dim in range(array.ndim)]
    sizes = [shape[axis] if axis >= 0 else 1 for axis in where]
    return _places(array, [env[start] for start in fields["starts"]], sizes, where, len(shape))


@meaning("tile.load_block")
def _load(op: Operation, _: _Executor) -> Step:
    out, buffer = op.results[0], _fields(op)["buffer"]

    def step(env: Env) -> None:
        indices, inside = _tile_places(op, env, out.shape)
        found = np.where(inside, env[buffer][indices], env[buffer].dtype.type(0))
        env[out] = np.broadcast_to(found, out.shape).copy()

    return step


@meaning("tile.store_block")
def _store(op: Operation, _: _Executor) -> Step:
    fields = _fields(op)
    shape = fields["value"].shape

    def step(env: Env) -> None:
        indices, inside = _tile_places(op, env, shape)
        _write(env[fields["buffer"]], indices, inside, env[fields["value"]])

    return step


def _write(array: np.ndarray, indices: Any, inside: Any, value: Any) -> None:
    if np.asarray(value).dtype != array.dtype:
        raise ExecutorError(f"{np.asarray(value).dtype} is stored to {array.dtype}")
    inside = np.broadcast_to(inside, np.shape(value))
    array[tuple(np.broadcast_to(index, np.shape(value))[inside] for index in indices)] = value[inside]


@meaning("triton.descriptor")
def _descriptor(op: Operation, _: _Executor) -> Step:
    buffer, dims, block = op.operands[0], op.attributes["dims"], op.attributes["block"]

    def step(env: Env) -> None:
        env[op.results[0]] = Descriptor(env[buffer].transpose(dims), block)

    return step


def _described(op: Operation, env: Env) -> tuple[np.ndarray, Any, Any]:
    fields = _fields(op)
    descriptor = env[fields["descriptor"]]
    rank = len(descriptor.block)
    starts = [env[start] for start in fields["starts"]]
    return (descriptor.array, *_places(descriptor.array, starts, list(descriptor.block), list(range(rank)), rank))


@meaning("triton.load_block")
def _load_described(op: Operation, _: _Executor) -> Step:
    out = op.results[0]

    def step(env: Env) -> None:
        array, indices, inside = _described(op, env)
        env[out] = np.where(inside, array[indices], array.dtype.type(0))
        if env[out].shape != out.shape:
            raise ExecutorError(f"a block {env[out].shape} as {out.type}")

    return step


@meaning("triton.store_block")
def _store_described(op: Operation, _: _Executor) -> Step:
    value = _fields(op)["value"]

    def step(env: Env) -> None:
        array, indices, inside = _described(op, env)
        _write(array, indices, inside, env[value])

    return step


@meaning("triton.multiprocessors")
def _multiprocessors(op: Operation, _: _Executor) -> Step:
    def step(env: Env) -> None:
        env[op.results[0]] = np.int32(MULTIPROCESSORS)

    return step
