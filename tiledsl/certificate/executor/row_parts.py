"""What the operations mean that prepare a kernel for Gluon: parts and work items."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.certificate.algebra import Algebra, scalar
from tiledsl.certificate.executor.machine import Env, Executor, Step, meaning, result_meaning, value_meaning
from tiledsl.ir.core import Operation


@result_meaning("gluon.warp_group_id")
def _part(_: Operation, executor: Executor) -> Any:
    return lambda _: np.int32(executor.part)


def _take(executor: Executor, items: int) -> int:
    """The program's next item of so many. All of them are done, one in each run of the body."""
    program, programs = executor.program_id[0], executor.grid_sizes[0]
    executor.turns = len(range(program, items, programs))
    return program + executor.turn * programs


@result_meaning("gluon.work_item_id")
def _item(op: Operation, executor: Executor) -> Any:
    return lambda env: np.int32(_take(executor, int(env[op.operands[0]])))


@meaning("gluon.longest_first")
def _balanced(op: Operation, executor: Executor) -> Step:
    def step(env: Env) -> None:
        extent, others = (int(env[value]) for value in op.operands)
        rest, index = divmod(_take(executor, extent * others), extent)
        env[op.results[0]], env[op.results[1]] = np.int32(index), np.int32(rest)

    return step


@meaning("gluon.schedule", "gluon.cluster")
def _order(op: Operation, executor: Executor) -> Step:
    return lambda env: None  # in what order the text does the same


@value_meaning("gluon.rescale")
def _rescale(op: Operation, algebra: Algebra) -> Any:
    multiply = algebra.binary("mul", op.results[0].dtype)
    return lambda acc, factor: scalar(multiply(acc, np.reshape(factor, (-1, 1))))
