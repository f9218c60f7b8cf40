"""The values in the padding of tiles, for pad-tiles.

Where a dimension of a tile is padded from n to the next power of two, the elements from n on are computed like all
others. Often they are all one known number: 0 after a masked load, and whatever follows from 0.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import Number, as_constant, constant_of
from tiledsl.ir.core import Value
from tiledsl.ir.types import ELEMENTS
from tiledsl.math_functions import MATH_FUNCTIONS

_EXACT = (0.0, 1.0, -1.0, math.inf, -math.inf)  # floats that are the same in every element type that has them


class Padding:
    """Answers for the tiles of one program, by the shapes that they had before padding."""

    def __init__(self) -> None:
        self._known: dict[tuple[Value, int], Number | None] = {}
        self._closed = False

    def close(self) -> None:
        """Answer only questions that were asked before: from now on, types are those of padded tiles."""
        self._closed = True

    def of(self, value: Value, axis: int) -> Number | None:
        """The number that every element beyond the end of `axis` holds; None if it is not one known number."""
        key = (value, axis)
        if key not in self._known:
            if self._closed:
                return None
            number = self._find(value, axis)
            if isinstance(number, float) and number not in _EXACT:
                number = None
            self._known[key] = number
        return self._known[key]

    def _find(self, value: Value, axis: int) -> Number | None:
        op = value.op
        if isinstance(op, arith.ConstantOp):
            number: Number = op.value
            return number
        if isinstance(op, tile.LoadOp):
            return as_constant(0, value.dtype) if op.other is None else constant_of(op.other)
        if isinstance(op, arith.Elementwise):
            return self._elementwise(op, axis)
        if isinstance(op, tensor.BroadcastOp):
            return self._lane(op.source, axis, op.out.shape[axis])
        if isinstance(op, tensor.TransposeOp):
            return self.of(op.source, op.permutation[axis])
        if isinstance(op, tensor.ReshapeOp):
            before = [index for index, size in enumerate(op.source.shape) if size != 1]
            after = [index for index, size in enumerate(op.out.shape) if size != 1]
            if [op.source.shape[index] for index in before] == [
                op.out.shape[index] for index in after
            ] and axis in after:
                return self.of(op.source, before[after.index(axis)])
        if isinstance(op, tensor.ReduceOp):
            return _combined(op.kind, self.of(op.source, axis + (axis >= op.axis)))
        if isinstance(op, tensor.ScanOp) and op.factors is None and axis != op.axis:
            return _combined(op.kind, self.of(op.source, axis))
        if isinstance(op, tensor.GatherOp) and axis != op.axis:
            return self.of(op.source, axis)
        if isinstance(op, scf.IfOp):
            position = op.results.index(value)
            a, b = (self.of(region.terminator.operands[position], axis) for region in op.regions)
            return a if _same(a, b) else None
        return None

    def _lane(self, value: Value, axis: int, size: int) -> Number | None:
        """What an operand contributes beyond the end of `axis`, along which the result has `size` elements."""
        number = constant_of(value)
        if number is not None or not value.shape or value.shape[axis] != size:
            return number
        return self.of(value, axis)

    def _elementwise(self, op: arith.Elementwise, axis: int) -> Number | None:
        size = op.result.shape[axis]
        lanes = [self._lane(value, axis, size) for value in op.operands]
        dtype = op.result.dtype
        exact = dtype in ELEMENTS and ELEMENTS[dtype].kind != "float"
        if isinstance(op, arith.CmpOp) and op.predicate == "lt" and isinstance(op.lhs.op, tensor.IotaOp):
            limit = constant_of(op.rhs)
            if limit is not None and op.lhs.op.axis == axis and limit <= op.lhs.op.extent:
                return False
        if isinstance(op, arith.SelectOp):
            condition, a, b = lanes
            return (a if condition else b) if condition is not None else a if _same(a, b) else None
        if isinstance(op, arith.AndOp) and any(lane is not None and not lane for lane in lanes):
            return as_constant(0, dtype)
        if isinstance(op, arith.OrOp) and any(lane is True for lane in lanes):
            return True
        if isinstance(op, arith.MulOp) and exact and any(lane == 0 for lane in lanes):
            return 0
        numbers = [lane for lane in lanes if lane is not None]
        if len(numbers) < len(lanes):
            return None
        return _computed(op, numbers, dtype)


def _computed(op: arith.Elementwise, numbers: Sequence[Number], dtype: str) -> Number | None:
    compute: Callable[..., Number]
    if isinstance(op, arith.DivOp) and numbers[1] == 0:
        return None  # an infinity of the zero's sign, which is not known
    if isinstance(op, arith.BinaryOp):
        compute = op.compute
    elif isinstance(op, arith.CmpOp):
        compute = arith.PREDICATES[op.predicate]
    elif isinstance(op, arith.NegOp):
        compute = operator.neg
    elif isinstance(op, arith.NotOp) and dtype == "bool":
        compute = operator.not_
    elif isinstance(op, arith.CastOp):
        compute = operator.pos
    elif isinstance(op, arith.MathOp) and len(numbers) == 1 and isinstance(numbers[0], float):
        return MATH_FUNCTIONS[op.function].exact_at.get(numbers[0])
    else:
        return None
    try:
        number = compute(*numbers)
        if isinstance(number, float) and number != number:
            return None
        if isinstance(number, float) and not math.isfinite(number) and dtype.startswith("float8"):
            return None
        return as_constant(number, dtype)
    except (ArithmeticError, ValueError):
        return None


def _combined(kind: str, number: Number | None) -> Number | None:
    """A reduction of equal elements."""
    if number is None or kind in ("max", "min", "and", "or"):
        return number
    return number if kind in ("sum", "abssum", "absmax", "xor") and number == 0 else None


def _same(a: Number | None, b: Number | None) -> bool:
    return type(a) is type(b) and a == b
