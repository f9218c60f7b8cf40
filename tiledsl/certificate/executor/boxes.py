"""What the operations mean that prepare a kernel for Gluon: parts, work items and boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.certificate.algebra import Algebra, scalar
from tiledsl.certificate.executor.blocks import Descriptor
from tiledsl.certificate.executor.machine import Env, Executor, Step, fields_of, meaning, value_meaning
from tiledsl.ir.core import Operation


@meaning("gluon.part")
def _part(op: Operation, executor: Executor) -> Step:
    def step(env: Env) -> None:
        env[op.results[0]] = np.int32(executor.part)

    return step


def _take(executor: Executor, items: int) -> int:
    """The program's next item of so many. All of them are done, one in each run of the body."""
    program, programs = executor.program_id[0], executor.grid_sizes[0]
    executor.turns = len(range(program, items, programs))
    return program + executor.turn * programs


@meaning("gluon.item")
def _item(op: Operation, executor: Executor) -> Step:
    def step(env: Env) -> None:
        env[op.results[0]] = np.int32(_take(executor, int(env[op.operands[0]])))

    return step


@meaning("gluon.balanced")
def _balanced(op: Operation, executor: Executor) -> Step:
    def step(env: Env) -> None:
        extent, others = (int(env[value]) for value in op.operands)
        rest, index = divmod(_take(executor, extent * others), extent)
        env[op.results[0]], env[op.results[1]] = np.int32(index), np.int32(rest)

    return step


def _places(op: Operation, env: Env, shape: tuple[int, ...]) -> tuple[np.ndarray, Any, Any]:
    fields = fields_of(op)
    array = env[fields["buffer"]]
    array = array.array if isinstance(array, Descriptor) else array
    indices, inside = [], np.True_
    for dim, (start, extent) in enumerate(zip((env[each] for each in fields["offsets"]), array.shape, strict=True)):
        line = [1] * len(shape)
        size = 1
        if dim in op.attributes["axes"]:
            axis = op.attributes["axes"].index(dim)
            line[axis] = size = shape[axis]
        index = (int(start) + np.arange(size)).reshape(line)
        inside = inside & (index >= 0) & (index < extent)
        indices.append(np.broadcast_to(np.clip(index, 0, max(extent - 1, 0)), shape))
    return array, tuple(indices), np.broadcast_to(inside, shape)


@meaning("gluon.load_box")
def _load(op: Operation, executor: Executor) -> Step:
    out = op.results[0]
    zero = executor.algebra.constant(0, out.dtype)

    def step(env: Env) -> None:
        array, indices, inside = _places(op, env, out.shape)
        env[out] = np.where(inside, array[indices], zero)

    return step


@meaning("gluon.store_box")
def _store(op: Operation, _: Executor) -> Step:
    value = fields_of(op)["value"]

    def step(env: Env) -> None:
        array, indices, inside = _places(op, env, value.shape)
        array[tuple(index[inside] for index in indices)] = env[value][inside]

    return step


@value_meaning("gluon.rescale")
def _rescale(op: Operation, algebra: Algebra) -> Any:
    multiply = algebra.binary("mul", op.results[0].dtype)
    return lambda acc, factor: scalar(multiply(acc, np.reshape(factor, (-1, 1))))
