"""Integer range analysis.

Intervals follow the operations (bounds of loops, grids and dtypes). `below` adds what intervals cannot express: that an
index stays below a bound known only as a value, as in a grid of M blocks over a dimension M.

Integers of every width wrap, signed ones too, as arith says: where an operation may wrap, its result is any value of
its type, and no order is concluded from it. So what is claimed holds for every value that a program can compute.
Undefined, and left out of every claim, is what hardware leaves undefined: division by zero, the least number divided by
-1, shifts by less than 0 or by the width and more, a loop's index that leaves its type, false assumptions. The one
place where arithmetic is taken not to overflow without proof is a tile's position (affine.py).
tests/tiledsl/analysis/test_all_values.py holds every rule against all values of 4-bit types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import NamedTuple

from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import arith, gluon, scf, tensor, tile, triton
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.types import ELEMENTS, BufferType


class Interval(NamedTuple):
    """All integers from `lo` to `hi`. For floats it is -inf to inf, which says nothing."""

    lo: float | int
    hi: float | int


EVERYTHING = Interval(-math.inf, math.inf)


@cache
def dtype_interval(dtype: str) -> Interval:
    """Every value of an element type; EVERYTHING for floats and pointers."""
    info = ELEMENTS.get(dtype)
    return EVERYTHING if info is None or info.kind == "float" else Interval(int(info.low), int(info.high))


class Ranges:
    """Intervals of the values nested in one operation, computed on demand and cached.

    They hold for as long as the value exists, so they stay valid while a pass replaces operations. Without an
    operation, neither dynamic sizes nor assumptions are known. `known` are values whose intervals are said.
    """

    def __init__(self, root: Operation | None = None, known: Mapping[Value, Interval] | None = None) -> None:
        self._known: dict[Value, Interval] = dict(known or {})
        self._below: dict[tuple[Value, Value], bool] = {}
        if isinstance(root, tile.FuncOp):
            self._known.update(_sizes(root))
        self._root = root

    @classmethod
    def around(cls, op: Operation) -> Ranges:
        """The ranges of the whole program around an operation, in which dynamic sizes are known not to be negative."""
        return cls([op, *ancestors(op)][-1])

    def of(self, value: Value) -> Interval:
        """The interval of an integer or bool; of every element, for a tensor."""
        intervals = self._known
        interval = intervals.get(value)
        if interval is not None:
            return interval
        number = arith.constant_of(value)
        if type(number) is int:
            interval = intervals[value] = Interval(number, number)
            return interval
        pending = [(value, self._inputs(value))]
        while pending:
            current, inputs = pending[-1]
            waits = False
            for operand in inputs:
                if operand not in intervals:
                    number = arith.constant_of(operand)
                    if type(number) is int:
                        intervals[operand] = Interval(number, number)
                    else:
                        pending.append((operand, self._inputs(operand)))
                        waits = True
            if not waits:
                pending.pop()
                if current not in intervals:
                    interval = self._compute(current, list(map(intervals.__getitem__, inputs)))
                    intervals[current] = self._narrow(current, interval) if self._assumed else interval
        return intervals[value]

    def is_nonnegative(self, value: Value) -> bool:
        """Whether the value is proven to be at least 0."""
        if self.of(value).lo >= 0:
            return True
        op = value.op
        if isinstance(op, tensor.SHAPES):
            return self.is_nonnegative(op.source)
        return isinstance(op, arith.SubOp) and self._is_ordered(op)

    def never_wraps(self, op: arith.AddOp | arith.SubOp | arith.MulOp) -> bool:
        """Whether the result is proven to be that of unbounded integers, for every element."""
        everything = dtype_interval(op.out.dtype)
        found = _RULES[type(op)](op, self.of(op.lhs), self.of(op.rhs))
        if found is not None and everything.lo <= found.lo and found.hi <= everything.hi:
            return True
        return isinstance(op, arith.SubOp) and self._is_ordered(op)

    def _is_ordered(self, op: arith.SubOp) -> bool:
        """Whether 0 <= rhs <= lhs: n - k where k <= n, and (n - 1) - k where k < n."""
        if self.of(op.rhs).lo < 0:
            return False
        start = op.lhs.op
        if isinstance(start, arith.SubOp) and arith.constant_of(start.rhs) == 1 and self.below(op.rhs, start.lhs):
            return True
        return self._at_most(op.rhs, op.lhs)

    def below(self, value: Value, bound: Value) -> bool:
        """Whether `value < bound` is proven, for every element."""
        if self.of(value).hi < self.of(bound).lo:
            return True
        key = (value, bound)
        if key not in self._below:
            self._below[key] = False
            self._below[key] = self._is_below(value, bound)
        return self._below[key]

    def _is_below(self, value: Value, bound: Value) -> bool:
        op = value.op
        bound = origin(bound)
        blocks = _grid_size(value)
        if blocks is not None:
            return self._at_most(blocks, bound)
        if op is None:
            around = owner_of(value)
            if isinstance(around, scf.ForOp) and value is around.index and self.of(around.step).lo > 0:
                return self._at_most(around.upper, bound)
            return False
        if isinstance(op, (tensor.ReshapeOp, tensor.TransposeOp)):
            return not bound.shape and self.below(op.source, bound)  # a tensor has other elements at these places
        if isinstance(op, tensor.BroadcastOp):
            return self.below(op.source, bound)
        if isinstance(op, arith.CastOp):
            return _widens(op) and self.below(op.source, bound)
        if isinstance(op, arith.MinOp):
            return self.below(op.lhs, bound) or self.below(op.rhs, bound)
        if isinstance(op, arith.MaxOp):
            return self.below(op.lhs, bound) and self.below(op.rhs, bound)
        if isinstance(op, arith.SelectOp):
            return self.below(op.on_true, bound) and self.below(op.on_false, bound)
        if isinstance(op, (arith.FloorModOp, arith.TruncModOp)):
            return (origin(op.rhs) is bound and self.of(bound).lo >= 0) or (
                self.of(op.lhs).lo >= 0 and self.below(op.lhs, bound)
            )
        if isinstance(op, (arith.FloorDivOp, arith.TruncDivOp)):
            return self.of(op.lhs).lo >= 0 and self.below(op.lhs, bound)  # no divisor makes it larger
        if isinstance(op, arith.SubOp) and self.never_wraps(op):
            least = self.of(op.rhs).lo
            return (least >= 1 and self._at_most(op.lhs, bound)) or (least >= 0 and self.below(op.lhs, bound))
        if isinstance(op, arith.AddOp) and self.never_wraps(op):
            most = self.of(op.rhs).hi
            return (most <= -1 and self._at_most(op.lhs, bound)) or (most <= 0 and self.below(op.lhs, bound))
        return False

    def _at_most(self, value: Value, bound: Value) -> bool:
        value, bound = origin(value), origin(bound)
        if value is bound or self.of(value).hi <= self.of(bound).lo:
            return True
        op = value.op
        if isinstance(op, arith.MinOp):
            return self._at_most(op.lhs, bound) or self._at_most(op.rhs, bound)
        if isinstance(op, arith.MaxOp):
            return self._at_most(op.lhs, bound) and self._at_most(op.rhs, bound)
        return self.below(value, bound)

    # Intervals

    def _inputs(self, value: Value) -> list[Value]:
        """The values whose intervals must be known before that of `value`."""
        if dtype_interval(value.dtype) is EVERYTHING:
            return []
        op = value.op
        if isinstance(op, arith.BinaryOp):
            return op.operands
        if op is None or isinstance(op, triton.ProgramIdOp):
            blocks = _grid_size(value)
            if blocks is not None:
                return [blocks]
        if op is None:
            around = owner_of(value)
            if isinstance(around, triton.LaunchOp):
                outside = origin(value)
                return [] if outside is value else [outside]
            if isinstance(around, scf.ForOp):
                if value is around.index:
                    return [around.lower, around.upper, around.step]
                position = around.body.args.index(value) - 1
                return [around.inits[position]] if self._is_invariant(around, position) else []
            return []
        if isinstance(op, scf.IfOp):
            position = op.results.index(value)
            return [region.terminator.operands[position] for region in op.regions]
        if isinstance(op, scf.ForOp):
            return [op.body.args[1 + op.results.index(value)]]
        if isinstance(op, (tile.LoadOp, tile.AtomicOp, scf.WhileOp, arith.ConstantOp, tensor.IotaOp)):
            return []
        return [each for each in op.operands if not isinstance(each.type, BufferType)]

    def _is_invariant(self, loop: scf.ForOp, position: int) -> bool:
        handed_on = loop.yielded[position : position + 1]  # none, while promote-buffers adds it
        return handed_on in ([loop.body.args[1 + position]], [loop.inits[position]])

    def _compute(self, value: Value, inputs: list[Interval]) -> Interval:
        everything = dtype_interval(value.type.dtype)
        if everything is EVERYTHING:
            return everything
        op = value.op
        rule = _RULES.get(type(op))  # type: ignore[arg-type]
        if rule is not None:
            found = rule(op, *inputs)
            return everything if found is None or found.lo < everything.lo or found.hi > everything.hi else found
        if op is None:
            around = owner_of(value)
            if isinstance(around, tile.KernelOp):
                return _places(*(each.hi for each in inputs))
            if isinstance(around, scf.ForOp) and value is around.index:
                return _loop_index(inputs[0], inputs[1], inputs[2], everything)
            if isinstance(around, tile.ParallelOp):
                return _places(around.extents[around.body.args.index(value)])
            return next(iter(inputs), everything)
        if isinstance(op, triton.ProgramIdOp):
            return _places(*(each.hi for each in inputs)) if inputs else everything
        if isinstance(op, (scf.IfOp, scf.ForOp)):
            return Interval(min(each.lo for each in inputs), max(each.hi for each in inputs))
        return everything

    # Assumptions

    @cached_property
    def _assumed(self) -> dict[Value, Interval]:
        assumed: dict[Value, Interval] = {}
        for op in _assumptions(self._root) if self._root is not None else ():
            for value, predicate, number in _facts(op.condition):
                old = assumed.get(value, EVERYTHING)
                low = number if predicate in ("ge", "eq") else number + 1 if predicate == "gt" else old.lo
                high = number if predicate in ("le", "eq") else number - 1 if predicate == "lt" else old.hi
                assumed[value] = Interval(max(old.lo, low), min(old.hi, high))
        return assumed

    def _narrow(self, value: Value, found: Interval) -> Interval:
        promised = self._assumed.get(value)
        if promised is None:
            return found
        narrow = Interval(max(found.lo, promised.lo), min(found.hi, promised.hi))
        return narrow if narrow.lo <= narrow.hi else found


def _sizes(func: tile.FuncOp) -> dict[Value, Interval]:
    """Dynamic sizes are at least 0; one without which every grid is empty is at least 1, or nothing runs."""
    symbols = func.body.args[len(func.parameters) :]
    sizes = {symbol: Interval(0, dtype_interval(symbol.dtype).hi) for symbol in symbols}
    grids = [op.grid for op in func.body if isinstance(op, (tile.KernelOp, triton.LaunchOp))] if sizes else []
    found = dict(sizes)
    for symbol, interval in sizes.items():
        without = Ranges(known={**sizes, symbol: Interval(0, 0)})
        if all(any(without.of(extent).hi <= 0 for extent in grid) for grid in grids):
            found[symbol] = interval._replace(lo=1)
    return found


def _assumptions(op: Operation) -> list[tile.AssumeOp]:
    """The assumptions that always hold: those of a program and of its kernels outside of loops and branches."""
    assumptions: list[tile.AssumeOp] = []
    if isinstance(op, (tile.KernelOp, tile.FuncOp, triton.LaunchOp)):
        for region in op.regions:
            assumptions += of_kinds(region, tile.AssumeOp)
            for inner in region.nested:
                assumptions += _assumptions(inner)
    return assumptions


def _facts(condition: Value) -> Iterator[tuple[Value, str, int]]:
    op = condition.op
    if isinstance(op, arith.AndOp):
        yield from _facts(op.lhs)
        yield from _facts(op.rhs)
    elif isinstance(op, arith.CmpOp):
        left, right = arith.constant_of(op.lhs), arith.constant_of(op.rhs)
        if type(right) is int:
            yield op.lhs, op.predicate, right
        elif type(left) is int:
            yield op.rhs, arith.MIRRORED[op.predicate], left


def origin(value: Value) -> Value:
    """The same number without widening casts, and outside of the launch whose argument it is."""
    while True:
        op = value.op
        around = owner_of(value) if op is None else None
        if isinstance(op, arith.CastOp) and _widens(op):
            value = op.source
        elif isinstance(around, triton.LaunchOp):
            position = around.body.args.index(value)
            if position >= len(around.arguments):
                return value  # lower-to-triton has not yet said what it stands for
            value = around.arguments[position]
        else:
            return value


def owner_of(value: Value) -> Operation | None:
    """The operation that owns the region of which `value` is an argument."""
    return value.owner.parent if isinstance(value.owner, Region) else None


def _grid_size(value: Value) -> Value | None:
    """The extent of the grid along the dimension whose block index `value` is."""
    op = value.op
    if op is None:
        around = owner_of(value)
        return around.grid[around.body.args.index(value)] if isinstance(around, tile.KernelOp) else None
    if isinstance(op, triton.ProgramIdOp):
        launch = next((around for around in ancestors(op) if isinstance(around, triton.LaunchOp)), None)
        if launch is not None and op.axis < len(launch.grid):
            return launch.grid[op.axis]
    return None


def _widens(op: arith.CastOp) -> bool:
    source, target = dtype_interval(op.source.dtype), dtype_interval(op.out.dtype)
    return target is not EVERYTHING and target.lo <= source.lo and source.hi <= target.hi


def _places(*extents: float) -> Interval:
    """The numbers from 0 to below any of these; where there are none, nothing runs."""
    return Interval(0, max(1, *extents) - 1)


def _loop_index(lower: Interval, upper: Interval, step: Interval, everything: Interval) -> Interval:
    """The interval of the index in the body, where at least one iteration runs."""
    if step.lo > 0:
        return Interval(lower.lo, max(lower.lo, upper.hi - 1))
    if step.hi < 0:
        return Interval(min(lower.hi, upper.lo + 1), lower.hi)
    return everything


def _corners(a: Interval, b: Interval, operation: type[arith.BinaryOp]) -> Interval:
    values = [operation.compute(x, y) for x in a for y in b]
    return Interval(min(values), max(values))


def _reduction(op: tensor.ReduceOp, source: Interval) -> Interval | None:
    if op.kind in ("max", "min"):
        return source
    if op.kind == "sum":
        count = op.source.shape[op.axis]
        return Interval(source.lo * count, source.hi * count)
    return None


def _divisor(b: Interval) -> Interval:
    """Without an end that is 0: what is divided by 0 is undefined."""
    return Interval(b.lo or 1, b.hi) if b.hi > 0 else Interval(b.lo, b.hi or -1) if b.lo < 0 else b


def _remainder(a: Interval, b: Interval, floor: bool) -> Interval | None:
    b = _divisor(b)
    if b.lo <= 0:
        return None
    if a.lo >= 0 or floor:
        if a.lo >= 0 and a.hi < b.lo:
            return a
        return Interval(0, min(b.hi - 1, a.hi) if a.lo >= 0 else b.hi - 1)
    return Interval(max(a.lo, 1 - b.hi), max(0, min(a.hi, b.hi - 1)))


def _division(op: arith.BinaryOp, a: Interval, b: Interval) -> Interval | None:
    b = _divisor(b)
    return _corners(a, b, type(op)) if b.lo > 0 or b.hi < 0 else None


def _masked(op: arith.AndOp, a: Interval, b: Interval) -> Interval | None:
    limits = [each.hi for each in (a, b) if each.lo >= 0]  # a non-negative operand masks the sign away
    return Interval(0, min(limits)) if limits else None


def _joined(op: arith.OrOp | arith.XorOp, a: Interval, b: Interval) -> Interval | None:
    if a.lo < 0 or b.lo < 0:
        return None
    all_ones = (1 << int(max(a.hi, b.hi)).bit_length()) - 1
    return Interval(max(a.lo, b.lo) if isinstance(op, arith.OrOp) else 0, all_ones)


def _shifted(op: arith.BinaryOp, a: Interval, b: Interval) -> Interval | None:
    return _corners(a, b, type(op)) if b.lo >= 0 and b.hi < 64 else None


def _function(op: arith.MathOp, a: Interval, *others: Interval) -> Interval | None:
    if op.function == "abs":
        return Interval(max(0, a.lo, -a.hi), max(abs(a.lo), abs(a.hi)))
    if op.function == "clamp":
        low, high = others
        return Interval(min(max(a.lo, low.lo), high.lo), min(max(a.hi, low.hi), high.hi))
    return None


def _same(op: Operation, a: Interval) -> Interval:
    return a


# The interval of a result if nothing wraps, from those of the operands; None where nothing is known.
_RULES: dict[type[Operation], Callable[..., Interval | None]] = {
    arith.ConstantOp: lambda op: Interval(int(op.value), int(op.value)),
    tensor.IotaOp: lambda op: Interval(0, op.extent - 1),
    gluon.WarpGroupIdOp: lambda op: Interval(0, op.parts - 1),
    gluon.WorkItemOp: lambda op, items: _places(items.hi),
    gluon.LongestFirstOp: lambda op, extent, others: _places(extent.hi, others.hi),
    arith.AddOp: lambda op, a, b: Interval(a.lo + b.lo, a.hi + b.hi),
    arith.SubOp: lambda op, a, b: Interval(a.lo - b.hi, a.hi - b.lo),
    arith.MulOp: lambda op, a, b: _corners(a, b, arith.MulOp),
    arith.FloorDivOp: _division,
    arith.TruncDivOp: _division,
    arith.CeilDivOp: _division,
    arith.FloorModOp: lambda op, a, b: _remainder(a, b, True),
    arith.TruncModOp: lambda op, a, b: _remainder(a, b, False),
    arith.MinOp: lambda op, a, b: Interval(min(a.lo, b.lo), min(a.hi, b.hi)),
    arith.MaxOp: lambda op, a, b: Interval(max(a.lo, b.lo), max(a.hi, b.hi)),
    arith.SelectOp: lambda op, condition, a, b: Interval(min(a.lo, b.lo), max(a.hi, b.hi)),
    arith.NegOp: lambda op, a: Interval(-a.hi, -a.lo),
    arith.AndOp: _masked,
    arith.OrOp: _joined,
    arith.XorOp: _joined,
    arith.ShlOp: _shifted,
    arith.ShrOp: _shifted,
    arith.CastOp: lambda op, a: a if op.out.dtype != "bool" and a is not EVERYTHING else None,
    arith.MathOp: _function,
    tensor.BroadcastOp: _same,
    tensor.ReshapeOp: _same,
    tensor.TransposeOp: _same,
    tensor.GatherOp: lambda op, a, indices: a,
    tensor.ReduceOp: lambda op, a: _reduction(op, a),
    tensor.ScanOp: lambda op, a, *factors: a if op.kind in ("max", "min") else None,
}
