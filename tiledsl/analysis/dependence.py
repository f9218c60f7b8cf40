"""Which values are computed from which."""

from __future__ import annotations

from collections.abc import Collection

from tiledsl.ir.core import Value


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
