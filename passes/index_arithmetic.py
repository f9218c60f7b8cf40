"""Computing indices in the IR without operations that fold. Shared by the passes that map blocks to programs."""

from __future__ import annotations

from tiledsl.dialects import arith
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32


def insert_or_fold(at: Builder, op: Operation) -> Value:
    """What a new operation with one result folds to (then it is erased); else its result, after it was inserted."""
    folded = op.fold()
    if folded is None:
        return at.insert(op).result
    (value,) = folded
    type = op.result.type
    op.erase()
    return value if isinstance(value, Value) else at.constant(value, type)


class IndexArithmetic:
    """Inserts int32 arithmetic at a point; constants are folded."""

    def __init__(self, at: Builder) -> None:
        self.at = at

    def constant(self, number: int) -> Value:
        return self.at.constant(number, INT32)

    def apply(self, op_type: type[arith.BinaryOp], lhs: Value, rhs: Value, name: str = "") -> Value:
        """The result of `op_type(lhs, rhs)`, under this name where it is a new value."""
        op = op_type(lhs, rhs)
        op.result.name = name
        return insert_or_fold(self.at, op)
