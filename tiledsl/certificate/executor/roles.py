"""The meaning of roles that wait for each other by barriers: each runs for itself, as far as it is let through.

A branch that some threads of a block take, with barriers in it, is put off: what these threads do is run, in turns with
what others do, before the block does something together, and at its end. A copy that is started is done as late as it
may be: when the phase of its barrier is complete. `merge-roles`, which finds one order of all this, is not asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl.analysis.dependence import ancestors
from tiledsl.certificate.algebra import ExecutorError
from tiledsl.certificate.executor.machine import Env, Executor, Step, meaning
from tiledsl.dialects.tile import KernelOp, buffer_type
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.types import BufferType

_BARRIERS = ("thread.arrive", "thread.wait")
_WARP = 32
_SECONDS = 60.0  # for one turn of a role: it is stuck otherwise


class _Barrier:
    def __init__(self, count: int) -> None:
        self.count, self.arrived = count, 0
        self.copies: list[Callable[[], None]] = []  # that end with the phase under way

    @property
    def phase(self) -> int:
        return self.arrived // self.count


class _Role(threading.Thread):
    """What some threads do. It and the block take turns: only one of them runs."""

    def __init__(self, executor: Executor, fragments: dict[Value, np.ndarray]) -> None:
        super().__init__(daemon=True)
        self.executor, self.fragments = executor, fragments
        self.tasks: list[Callable[[], None]] = []
        self.copies: list[Callable[[], None]] = []
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.error: BaseException | None = None
        self.stands: Operation | None = None
        self.moved = self.over = False
        self.start()

    def run(self) -> None:
        with np.errstate(all="ignore"):
            self._serve()

    def _serve(self) -> None:
        while True:
            self.go.acquire()
            if self.over:
                return
            try:
                while self.tasks:
                    self.tasks[0]()
                    self.tasks.pop(0)
                    self.moved = True
            except BaseException as error:
                self.error = error
            self.back.release()

    def turn(self) -> bool:
        """Let it run until it waits or has nothing left; whether it came further."""
        executor, self.moved = self.executor, False
        kept = executor.lanes
        executor.role = self
        self.go.release()
        if not self.back.acquire(timeout=_SECONDS):
            raise ExecutorError("a role does not come back")
        executor.role, executor.lanes = None, kept
        if self.error is not None:
            raise self.error
        return self.moved

    def wait(self, op: Operation) -> None:
        """Called by the role itself: let the others run."""
        self.stands, lanes = op, self.executor.lanes
        self.back.release()
        self.go.acquire()
        if self.over:
            raise SystemExit
        self.executor.lanes, self.stands = lanes, None


class Roles:
    """The roles of a block."""

    def __init__(self, fragments: list[Value]) -> None:
        self.fragments = fragments
        self.roles: dict[bytes, _Role] = {}

    def fork(self, executor: Executor, region: Callable[[Env], Any], env: Env) -> None:
        lanes = np.broadcast_to(executor.lanes, executor.extents)
        role = self.roles.get(lanes.tobytes())
        if role is None:
            role = _Role(executor, {each: env[each].copy() for each in self.fragments})
            self.roles[lanes.tobytes()] = role
        own = {**env, **role.fragments}

        def task() -> None:
            executor.lanes = lanes
            region(own)

        role.tasks.append(task)

    def drain(self, executor: Executor) -> None:
        """Run all roles to the end of what they have to do."""
        if executor.role is not None:
            return
        while any(role.tasks for role in self.roles.values()):
            order = list(self.roles.values())
            if not any([role.turn() for role in (order[::-1] if executor.reverse_grid else order) if role.tasks]):  # noqa: C419
                failure = ExecutorError("the roles wait for each other, and none goes on")
                failure.op = next((role.stands for role in order if role.stands is not None), None)
                raise failure

    def end(self) -> None:
        for role in self.roles.values():
            role.over = True
            role.go.release()

    def takes(self, executor: Executor, region: Region) -> bool:
        """Whether what the active threads do in a branch is put off: whole warps come, and do not part at once."""
        if executor.role is not None or all(op.is_pure or op.name in ("scf.if", "scf.yield") for op in region):
            return False
        lanes = np.broadcast_to(executor.lanes, executor.extents).reshape(-1)
        warps = [lanes[first : first + _WARP] for first in range(0, lanes.size, _WARP)]
        return all(warp.all() or not warp.any() for warp in warps)


def has_roles(region: Region) -> bool:
    return any(inner.name in _BARRIERS for inner in region.walk())


def own_fragments(region: Region) -> list[Value]:
    """Fragments that are used in branches only: each role has its own."""
    inside = {inner for op in region.walk() if op.name == "scf.if" for inner in op.walk()}
    together = {value for op in region.walk() if op not in inside for value in op.operands}
    used = dict.fromkeys(value for op in inside for value in op.operands if isinstance(value.type, BufferType))
    return [value for value in used if buffer_type(value).scope == "fragment" and value not in together]


def waiting_for_roles(executor: Executor) -> Callable[[Operation, Step], Step]:
    """What the block does together comes after what its roles do before it."""

    def wrap(op: Operation, step: Step) -> Step:
        if op.regions or op.is_pure or op.effects in (Effect.ALLOCATE, Effect.TERMINATE):
            return step

        def after(env: Env) -> None:
            if executor.roles is not None:
                executor.roles.drain(executor)
            step(env)

        return after

    return wrap


@meaning("thread.init_barriers")
def _init(op: Operation, _: Executor) -> Step:
    (barriers,), counts = op.operands, op.attributes["counts"]

    def step(env: Env) -> None:
        env[barriers] = [_Barrier(count) for count in counts]

    return step


def _one(env: Env, barriers: Value, index: Value) -> _Barrier:
    found, number = env[barriers], int(env[index])
    if not isinstance(found, list) or not 0 <= number < len(found):
        raise ExecutorError(f"barrier {number} of {barriers.name or 'some'}, which does not exist")
    barrier: _Barrier = found[number]
    return barrier


@meaning("thread.arrive")
def _arrive(op: Operation, executor: Executor) -> Step:
    barriers, index = op.operands
    kernel = next(each for each in ancestors(op) if isinstance(each, KernelOp))

    def step(env: Env) -> None:
        barrier, role = _one(env, barriers, index), executor.role
        lanes = kernel.threads
        if executor.lanes is not None:
            lanes = int(np.count_nonzero(np.broadcast_to(executor.lanes, executor.extents)))
        if op.attributes["copies"]:
            started = executor.copies if role is None else role.copies
            barrier.copies += started
            started.clear()
        before = barrier.phase
        barrier.arrived += lanes
        if barrier.phase > before:
            copies, barrier.copies = barrier.copies, []
            for copy in copies:
                copy()

    return step


@meaning("thread.wait")
def _wait(op: Operation, executor: Executor) -> Step:
    barriers, index, parity = op.operands

    def step(env: Env) -> None:
        barrier, role = _one(env, barriers, index), executor.role
        while barrier.phase % 2 == int(env[parity]):
            if role is None:
                raise ExecutorError("the block waits for a phase that nobody completes")
            role.wait(op)
        if role is not None:
            role.moved = True

    return step


@meaning("thread.async")
def _async(op: Operation, executor: Executor) -> Step:
    body, operands = executor.block(op.regions[0]), op.operands

    def step(env: Env) -> None:
        own, lanes, role = dict(env), executor.lanes, executor.role

        def copy() -> None:
            kept, executor.lanes = executor.lanes, lanes
            body(own)
            executor.lanes = kept

        if operands:
            _one(env, *operands).copies.append(copy)
        elif role is None:
            executor.copies.append(copy)
        else:
            role.copies.append(copy)

    return step
