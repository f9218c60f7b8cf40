"""The meaning of a T.Parallel whose points are the threads of a block, and of what threads exchange."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.analysis.parallel_variance import Variance
from tiledsl.certificate.algebra import ExecutorError, scalar
from tiledsl.certificate.executor.machine import Env, Executor, Step, index_lines, meaning
from tiledsl.certificate.executor.roles import Roles, has_roles, own_fragments, waiting_for_roles
from tiledsl.dialects.tile import ParallelOp, buffer_type
from tiledsl.ir.core import Operation
from tiledsl.ir.types import BufferType


def of_threads(op: Operation, executor: Executor) -> Step:
    """All threads do each operation of the body together; buffers that are each thread's own have an axis for them."""
    assert isinstance(op, ParallelOp), f"{op.name} has no threads"
    extents = tuple(op.extents)
    variance = Variance(op)
    private = [value for value in variance.private if variance.of(value) & variance.threads]
    outer = executor.private
    executor.private, executor.of_block = frozenset(private), variance.apart
    with_roles = has_roles(op.body)
    executor.wrap = waiting_for_roles(executor) if with_roles else None
    body = executor.block(op.body)
    executor.private, executor.of_block, executor.wrap = outer, frozenset(), None
    fragments = own_fragments(op.body) if with_roles else []
    lines = index_lines(extents)

    def step(env: Env) -> None:
        if executor.lanes is not None:
            raise ExecutorError("threads in a T.Parallel")
        for buffer in private:
            shape = extents + buffer_type(buffer).static_shape
            env[buffer] = executor.allocate(BufferType(shape, buffer.dtype, "local"))
        # An index along an axis of one thread is the same in all threads: it stays a number.
        env.update((arg, line if line.size > 1 else np.int32(0)) for arg, line in zip(op.body.args, lines, strict=True))
        executor.lanes, executor.extents, executor.lines = np.True_, extents, lines
        if not with_roles:
            body(env)
        else:
            executor.roles = Roles(fragments)
            try:
                body(env)
                executor.roles.drain(executor)
            finally:
                executor.roles.end()
                executor.roles = None
        executor.lanes = None

    return step


def _in_groups(value: Any, executor: Executor, group: int) -> np.ndarray:
    return np.broadcast_to(value, executor.extents).reshape(-1, group)


@meaning("thread.barrier")
def _barrier(_: Operation, __: Executor) -> Step:
    def step(_: Env) -> None:
        """Threads are in step anyway."""

    return step


@meaning("thread.shuffle")
def _shuffle(op: Operation, executor: Executor) -> Step:
    value, source = op.operands

    def step(env: Env) -> None:
        group = min(op.attributes["group"], int(np.prod(executor.extents)))
        if not np.ndim(env[value]):
            env[op.results[0]] = env[value]
            return
        places = np.clip(_in_groups(env[source], executor, group), 0, group - 1)
        found = np.take_along_axis(_in_groups(env[value], executor, group), places, 1)
        env[op.results[0]] = found.reshape(executor.extents)

    return step


@meaning("thread.reduce")
def _reduce(op: Operation, executor: Executor) -> Step:
    (value,), out, kind = op.operands, op.results[0], op.attributes["kind"]

    def step(env: Env) -> None:
        count = int(np.prod(executor.extents))
        group = min(op.attributes["group"], count)
        reduce = executor.algebra.reduce(kind, 1, value.dtype, False)
        if not np.ndim(env[value]):
            env[out] = scalar(np.asarray(reduce(np.full((1, group), env[value]))).reshape(()))
            return
        made = np.asarray(reduce(_in_groups(env[value], executor, group)))
        if group == count:
            env[out] = scalar(made.reshape(()))
        else:
            env[out] = np.repeat(made, group).reshape(executor.extents)

    return step
