"""Which values are computed from which, and what operations are nested in."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tiledsl.dialects import scf
from tiledsl.ir.core import Operation, Region, Value


def depends_on(value: Value, sources: Collection[Value]) -> bool:
    """Whether a value is one of `sources`, or computed from one by operations, loops and branches not looked into."""
    seen: set[Value] = set()
    pending = [value]
    while pending:
        operand = pending.pop()
        if operand in sources:
            return True
        if operand not in seen and operand.op is not None:
            seen.add(operand)
            pending += operand.op.operands
    return False


def ancestors(op: Operation) -> Iterator[Operation]:
    """The operations that one is nested in, the innermost first."""
    parent = op.parent_op
    while parent is not None:
        yield parent
        parent = parent.parent_op


def handed_on(value: Value) -> list[Value]:
    """What a result of a branch or a loop, or a value that a loop carries, may be; nothing of other values."""
    owner, op = value.owner, value.op
    if isinstance(op, scf.IfOp):
        return [region.terminator.operands[op.results.index(value)] for region in op.regions]
    loop = owner.parent if isinstance(owner, Region) else owner
    if isinstance(loop, scf.ForOp) and value is not loop.index:
        number = (loop.carried if op is None else loop.results).index(value)
        return [loop.inits[number], loop.yielded[number]]
    if isinstance(loop, scf.WhileOp) and owner is loop.before:
        number = loop.carried.index(value)
        return [loop.inits[number], loop.yielded[number]]
    if isinstance(loop, scf.WhileOp):
        condition = loop.before.terminator
        assert isinstance(condition, scf.ConditionOp)
        return [condition.values[(loop.after.args if op is None else loop.results).index(value)]]
    return []
