"""Which values are computed from which, and what operations are nested in."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tiledsl.ir.core import Operation, Value


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
