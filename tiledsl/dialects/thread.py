"""What the threads of a block do with each other, in the body of a `tile.parallel` whose points are threads.

Such a parallel (`lockstep`) has one point for each thread, in row-major order: the last index is that of threadIdx.x.
Each operation is done by all threads before the next one. A group is a number of consecutive threads, such as the 32 of
a warp. `vectorize-parallel` turns these operations into gathers and reductions.
"""

from __future__ import annotations

from tiledsl.dialects.tensor import REDUCTIONS
from tiledsl.ir.core import Effect, Operation
from tiledsl.ir.fields import attr, operand, operands, region, result
from tiledsl.ir.types import BufferType, ScalarType


class BarrierOp(Operation):
    """Threads wait here for all others of the block: all must come here. Example: `thread.barrier`"""

    name = "thread.barrier"
    effects = Effect.ORDERED


class InitBarriersOp(Operation):
    """Makes barriers of a buffer's elements. `counts` are the arrivals that complete a phase of each.

    Example: `thread.init_barriers %full {counts = (128,)}`
    """

    name = "thread.init_barriers"
    effects = Effect.ORDERED
    barriers = operand(BufferType)
    counts = attr(tuple)

    def verify(self) -> None:
        if self.barriers.type != BufferType((len(self.counts),), "uint64", "shared"):
            raise ValueError(f"{len(self.counts)} barriers in {self.barriers.type}")
        if not all(type(each) is int and each >= 1 for each in self.counts):
            raise ValueError(f"{self.counts} are no numbers of arrivals")


class ArriveOp(Operation):
    """Each thread that comes arrives at a barrier; with `copies`, once those that it has started are over.

    Example: `thread.arrive %full, %i`
    """

    name = "thread.arrive"
    effects = Effect.ORDERED
    barriers = operand(BufferType)
    index = operand(ScalarType)
    copies = attr(bool, False)


class WaitOp(Operation):
    """Waits until the phase of a barrier that has this parity is over. Example: `thread.wait %full, %i, %parity`"""

    name = "thread.wait"
    effects = Effect.ORDERED
    barriers = operand(BufferType)
    index = operand(ScalarType)
    parity = operand(ScalarType)


class AsyncOp(Operation):
    """Copies that may still be under way after it: until the phase of the barrier that is under way is over.

    Without a barrier, until an arrival with `copies` says so. Example: `thread.async [%full], [%i] { ... }`
    """

    name = "thread.async"
    effects = Effect.REGION | Effect.ORDERED
    barriers = operands(BufferType)
    index = operands(ScalarType)
    body = region()

    def verify(self) -> None:
        if len(self.barriers) > 1 or len(self.index) != len(self.barriers):
            raise ValueError("it has one barrier, with its index, or none")


class ShuffleOp(Operation):
    """The value that thread `source` of the own group has; `source` counts from the group's first thread.

    Example: `%y = thread.shuffle %x, %lane {group = 32} : float32`
    """

    name = "thread.shuffle"
    value = operand(ScalarType)
    source = operand(ScalarType)
    group = attr(int)
    out = result(ScalarType, like=value)

    def verify(self) -> None:
        _check_group(self.group)
        if self.source.dtype != "int32" or self.out.type != self.value.type:
            raise ValueError(f"the {self.value.type} of thread {self.source.type} as {self.out.type}")


class ReduceOp(Operation):
    """The values of all threads of the own group, combined. Kinds: those of tensor.reduce.

    Example: `%y = thread.reduce %x {kind = "max", group = 32} : float32`
    """

    name = "thread.reduce"
    value = operand(ScalarType)
    kind = attr(str, known=REDUCTIONS)
    group = attr(int)
    out = result(ScalarType, like=value)

    def verify(self) -> None:
        _check_group(self.group)
        if self.out.type != self.value.type:
            raise ValueError(f"{self.value.type} reduced to {self.out.type}")


def _check_group(group: int) -> None:
    if group < 1:
        raise ValueError(f"a group of {group} threads")
