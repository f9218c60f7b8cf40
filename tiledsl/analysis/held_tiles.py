"""The tiles that a kernel holds at once."""

from __future__ import annotations

from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import arith, tensor, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import TensorType

_MADE_ANYWHERE = (arith.ConstantOp, tensor.IotaOp)


def held_at(op: Operation) -> set[Value]:
    """The tiles that are there at an operation: it or what comes later, around it too, needs them. Constants and
    positions are made where they are needed."""
    held: set[Value] = set()
    for around in (op, *ancestors(op)):
        if isinstance(around, tile.KernelOp):
            break
        needed: set[Value] = set()
        made: set[Value] = set()
        sibling: Operation | None = around
        while sibling is not None:
            for inner in sibling.walk():
                needed.update(inner.operands)
                made.update(inner.results, *(region.args for region in inner.regions))
            sibling = sibling.next
        held |= needed - made
    return {each for each in held if isinstance(each.type, TensorType) and not isinstance(each.op, _MADE_ANYWHERE)}
