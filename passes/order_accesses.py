"""Barriers where threads of a block read what others of it wrote to global memory, or write what others read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.block_access import NoBlock, root_buffer, start_and_walk
from tiledsl.analysis.linear import LinearForm
from tiledsl.analysis.same_values import same_place
from tiledsl.dialects import scf, thread, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BufferType, TensorType


@dataclass(frozen=True)
class OrderAccesses(Pass):
    """Have a block's accesses to a tensor in global memory take effect in the order of the program.

    Before:  %x = tile.load %A[%last_minus_i]
             tile.store %x, %A[%i]
    After:   %x = tile.load %A[%last_minus_i]
             thread.barrier
             tile.store %x, %A[%i]

    Each thread does its own accesses in order, but does not wait for the others of its block. So a barrier stands
    before an access of which an earlier one may have touched the same elements through other threads, if either of them
    writes; on the way round a loop too. None is needed to write where the elements were read at the same indices: what
    is written there is computed behind that. Nor do parts of a tile that lie apart need one, atomic operations among
    themselves, or iterations that only write, each at places of its own. Different parameters count as different
    memory, as everywhere. Before an atomic operation that releases, all threads wait for whatever several of them
    accessed: one of them does it, for the block. Gluon's kernels write only at their end.
    """

    name = "order-accesses"

    def run(self, program: Program) -> None:
        for kernel in tile.kernels(program.root):
            if not targets_gluon(kernel):
                _Order().region(kernel.body, {})


@dataclass(frozen=True)
class _Access:
    op: Operation
    buffer: Value
    loops: frozenset[Operation] = frozenset()  # those of which it belongs to an earlier iteration

    @property
    def memory(self) -> Value:
        return root_buffer(self.buffer)

    @property
    def reads(self) -> bool:
        return Effect.READ in self.op.effects

    @property
    def writes(self) -> bool:
        return Effect.WRITE in self.op.effects


_Walk = tuple[LinearForm, int]
_Accesses = dict[_Access, None]  # since the last barrier, in order


class _Order:
    """Walks a kernel as a block runs it, with the accesses since the last barrier."""

    def region(self, region: Region, before: _Accesses) -> _Accesses:
        """Put barriers into a region; the accesses behind it that are not ordered yet."""
        pending = dict(before)
        for op in list(region):
            if isinstance(op, thread.BarrierOp):
                pending = {}
            elif isinstance(op, (scf.ForOp, scf.WhileOp)):
                pending = self.loop(op, pending)
            elif op.regions:
                pending = _union([self.region(each, pending) for each in op.regions])
            else:
                for access in _accesses(op):
                    if any(_is_unordered(earlier, access) for earlier in pending):
                        Builder.at(op).insert(thread.BarrierOp(loc=op.loc))
                        pending = {}
                    pending[access] = None
        return pending

    def loop(self, op: Operation, before: _Accesses) -> _Accesses:
        once = before
        for region in op.regions:
            once = self.region(region, once)
        inside = set(op.walk())
        again: _Accesses = {
            _Access(each.op, each.buffer, each.loops | {op} if each.op in inside else each.loops): None for each in once
        }
        for region in op.regions:
            again = self.region(region, again)
        return _union([before, once, again])


def _accesses(op: Operation) -> Iterable[_Access]:
    """What an operation without regions does with global memory."""
    if not op.effects & (Effect.READ | Effect.WRITE):
        return ()
    return [_Access(op, value) for value in op.operands if isinstance(value.type, BufferType)]


def _union(states: Iterable[_Accesses]) -> _Accesses:
    return {access: None for state in states for access in state}


def _is_unordered(earlier: _Access, later: _Access) -> bool:
    """Whether a barrier must stand between two accesses."""
    if _releases(later.op) and not _is_of_one_thread(earlier.op):
        return True
    if earlier.memory is not later.memory or not (earlier.writes or later.writes):
        return False
    if isinstance(earlier.op, tile.AtomicOp) and isinstance(later.op, tile.AtomicOp):
        return False
    if not earlier.loops and _are_apart(earlier, later):
        return False
    if later.reads:  # what was written, or, as an atomic operation, before it writes itself
        return True
    moves = _moves(earlier, later)
    if earlier.writes and moves:
        return _meet(earlier, later)
    return moves or not _is_same_place(earlier.op, later.op)


def _releases(op: Operation) -> bool:
    return isinstance(op, tile.AtomicOp) and op.semantics in ("release", "acq_rel")


def _is_of_one_thread(op: Operation) -> bool:
    """Whether it accesses a single element, as the same thread of the block always does."""
    return not any(isinstance(value.type, TensorType) for value in (*op.operands, *op.results))


def _is_same_place(one: Operation, other: Operation) -> bool:
    """Whether each thread accesses the same elements in both."""
    pointers = (tile.LoadOp, tile.StoreOp)
    return isinstance(one, pointers) and isinstance(other, pointers) and same_place(one, other)


def _are_apart(earlier: _Access, later: _Access) -> bool:
    """Whether two accesses, in one iteration of all loops, are known to have no element in common."""
    for a, b in _walks_of_both(earlier, later):
        if a is not None and b is not None:
            between = b[0].plus(a[0], -1)
            if between.is_constant and (between.constant > a[1] or -between.constant > b[1]):
                return True
    return False


def _meet(earlier: _Access, later: _Access) -> bool:
    """Whether two accesses in different iterations of a loop are known to have elements in common."""
    walks = _walks_of_both(earlier, later)
    return any(isinstance(loop, scf.ForOp) and _meet_in(loop, walks) for loop in earlier.loops)


def _meet_in(loop: scf.ForOp, walks: Sequence[tuple[_Walk | None, _Walk | None]]) -> bool:
    """Whether the places in all dimensions meet after some of a loop's iterations, while other loops stand still."""
    step, inside = constant_of(loop.step), set(loop.walk())
    first, last = 1.0, math.inf  # after how many iterations
    for a, b in walks:
        if a is None or b is None or step is None:
            return False
        between = b[0].plus(a[0], -1)
        if not between.is_constant or any(value.op in inside for factors in b[0].terms for value in factors):
            return False
        reached, moves = (-b[1] - between.constant, a[1] - between.constant), b[0].coefficient(loop.index) * step
        if moves:
            begin, end = sorted(each / moves for each in reached)
            first, last = max(first, math.ceil(begin)), min(last, math.floor(end))
        elif not reached[0] <= 0 <= reached[1]:
            return False
    return first <= last < math.inf


def _walks_of_both(earlier: _Access, later: _Access) -> list[tuple[_Walk | None, _Walk | None]]:
    """By dimension, where both begin and how far they go; nothing of what has another name."""
    if earlier.buffer is not later.buffer:
        return []
    return list(zip(_walks(earlier.op), _walks(later.op), strict=True))


def _walks(op: Operation) -> Iterable[_Walk | None]:
    """Where an access begins in each dimension, and how far it goes from there; None where that is not known."""
    for dim, index in enumerate(_place(op)):
        if isinstance(op, (tile.LoadBlockOp, tile.StoreBlockOp)):
            block = op.out if isinstance(op, tile.LoadBlockOp) else op.value
            yield linear_form(index), dict(zip(op.axes, block.shape)).get(dim, 1) - 1
            continue
        try:
            start, iota = start_and_walk(index)
            yield start, 0 if iota is None else iota.extent - 1
        except NoBlock:
            yield None


def _moves(earlier: _Access, later: _Access) -> bool:
    """Whether the two belong to different iterations of a loop in which the place of one changes."""
    inside = {inner for loop in earlier.loops for inner in loop.walk()}
    regions = {region for op in inside for region in op.regions}
    places = [*_place(earlier.op), *_place(later.op)]
    return any(value.op in inside or value.owner in regions for value in places)


def _place(op: Operation) -> Sequence[Value]:
    return op.starts if isinstance(op, (tile.LoadBlockOp, tile.StoreBlockOp)) else op.indices  # type: ignore[attr-defined]
