"""Which conditions hold, element by element, wherever another one does."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiledsl.analysis.affine import INDEX_DTYPES, widens_index
from tiledsl.analysis.dependence import reached
from tiledsl.analysis.linear import LinearForm, Reader, constant_form
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value

DEPTH = 100  # of conditions in conditions that are looked into


class _ExactReader(Reader):
    """Sums of unbounded integers that are the values themselves: what may wrap stays a term."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges

    def looks_through(self, op: Operation) -> bool:
        return isinstance(op, tensor.BroadcastOp) or widens_index(op)

    def holds(self, value: Value, form: LinearForm) -> bool:
        op = value.op
        if isinstance(op, (arith.AddOp, arith.SubOp, arith.MulOp)):
            return self.ranges.never_wraps(op)
        return not isinstance(op, arith.NegOp)


@dataclass
class Known:
    """What holds of the elements of which `condition` does: sums that are not negative, and other conditions.

    Conditions are bools of shapes that broadcast to each other, compared where both have an element.
    """

    ranges: Ranges
    sums: list[LinearForm] = field(default_factory=list)
    others: set[tuple[Value, bool]] = field(default_factory=set)
    asked: dict[tuple[Value, bool], bool] = field(default_factory=dict)  # and what was answered

    @classmethod
    def of(cls, condition: Value, ranges: Ranges, truth: bool = True) -> Known:
        """What holds where `condition` is `truth`."""
        known = cls(ranges)
        known._add(condition, truth)
        return known

    @classmethod
    def of_distance(cls, low: Value, high: Value, least: int, ranges: Ranges) -> Known:
        """What holds where `high` is at least `low + least`."""
        known = cls(ranges)
        known.sums.append(known._difference(high, low).plus(constant_form(-least)))
        return known

    def _add(self, condition: Value, truth: bool) -> None:
        def parts(node: tuple[Value, bool]) -> list[tuple[Value, bool]]:
            op, truth = node[0].op, node[1]
            if isinstance(op, (arith.NotOp, tensor.BroadcastOp)):
                return [(op.source, truth is isinstance(op, tensor.BroadcastOp))]
            if isinstance(op, arith.AndOp if truth else arith.OrOp):
                return [(side, truth) for side in op.operands]
            return []

        for node in reached([(condition, truth)], parts):
            self.others.add(node)
            self.sums += self._sums(node[0].op, node[1]) or ()

    def is_nonnegative(self, index: Value) -> bool:
        """Whether an index is not less than 0 for all these elements. False if that is not known."""
        return self._is_not_negative(self._difference(index, 0))

    def is_below(self, index: Value, bound: Value | int) -> bool:
        """Whether an index is less than another one for all these elements. False if that is not known."""
        return self._is_not_negative(self._difference(bound, index).plus(constant_form(-1)))

    def implies(self, condition: Value, truth: bool = True, depth: int = 0) -> bool:
        """Whether `condition` is `truth` for all these elements. False if that is not known."""
        if (condition, truth) in self.others:
            return True
        if (condition, truth) not in self.asked:
            self.asked[condition, truth] = depth < DEPTH and self._implies(condition, truth, depth + 1)
        return self.asked[condition, truth]

    def _implies(self, condition: Value, truth: bool, depth: int) -> bool:
        op, number = condition.op, constant_of(condition)
        if number is not None:
            return bool(number) is truth
        if isinstance(op, (arith.NotOp, tensor.BroadcastOp)):
            return self.implies(op.source, truth is isinstance(op, tensor.BroadcastOp), depth)
        if isinstance(op, (arith.AndOp, arith.OrOp)):
            sides = (self.implies(side, truth, depth) for side in op.operands)
            return all(sides) if truth is isinstance(op, arith.AndOp) else any(sides)
        wanted = self._sums(op, truth)
        return bool(wanted) and all(map(self._is_not_negative, wanted or ()))

    def _is_not_negative(self, wanted: LinearForm) -> bool:
        return any(_least_difference(wanted, each) >= 0 for each in self.sums)

    def _sums(self, op: Operation | None, truth: bool) -> list[LinearForm] | None:
        """The sums that are not negative where a comparison of indices is `truth`, and nowhere else; None if it is no
        such comparison."""
        if not isinstance(op, arith.CmpOp) or op.lhs.dtype not in INDEX_DTYPES:
            return None
        less, more = self._difference(op.rhs, op.lhs), self._difference(op.lhs, op.rhs)
        match op.predicate if truth else arith.INVERTED[op.predicate]:
            case "eq":
                return [less, more]
            case "ne":
                return None
            case "lt" | "le" as predicate:
                return [less.plus(constant_form(-1)) if predicate == "lt" else less]
            case predicate:
                return [more.plus(constant_form(-1)) if predicate == "gt" else more]

    def _difference(self, lhs: Value | int, rhs: Value | int) -> LinearForm:
        reader = _ExactReader(self.ranges)
        forms = [constant_form(side) if isinstance(side, int) else reader.read(side) for side in (lhs, rhs)]
        assert forms[0] is not None and forms[1] is not None  # what is not a sum is a term
        return forms[0].plus(forms[1], -1)


def _least_difference(wanted: LinearForm, known: LinearForm) -> float:
    """wanted - known, where that is a number; else less than all numbers."""
    difference = wanted.plus(known, -1)
    return difference.constant if difference.is_constant else float("-inf")
