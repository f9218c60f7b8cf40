"""Index arithmetic as sums of products, and bounds of index values.

Integers wrap, and a mask compares the wrapped index. So a sum of int32 is taken apart only if what it is apart, in
unbounded integers, is the index wherever that is not negative, as every index that is accessed is: by its bounds, or
because what may be large is a position. Positions are sums and products of block indices, loop indices, places in a
tile and dynamic sizes, with factors of at most 2**16: the language has them stay inside of int32. What is loaded or
handed to a kernel as a number is none, nor is what a hash makes of an index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tiledsl.analysis.dependence import reached
from tiledsl.analysis.linear import Factors, LinearForm, Reader
from tiledsl.analysis.ranges import EVERYTHING, Interval, Ranges, dtype_interval, origin, owner_of
from tiledsl.dialects import arith, gluon, scf, tensor, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import is_float

INDEX_DTYPES = ("int32", "int64")  # of indices; pointers are as wide as the second
MAX_TERMS = 8  # a product of sums is multiplied out only while it stays this small
LARGEST_FACTOR = 2**16  # that a position is multiplied with: a tile size or a row stride; what is larger is a hash


def linear_form(value: Value, through_names: bool = False, ranges: Ranges | None = None) -> LinearForm:
    """An index value as a sum, looking through additions, multiplications, negation, broadcasts and widening casts.

    The sum is that of unbounded integers, and is the value wherever that is not negative. A scalar that has a name in
    the user's program stays a term, so that the name appears in the source; with `through_names` it is looked through
    as well. `ranges` may know more of the values.
    """
    form = _IndexReader(through_names, Ranges() if ranges is None else ranges).read(value)
    assert form is not None
    return form


@dataclass
class _IndexReader(Reader):
    through_names: bool
    ranges: Ranges

    def stops(self, value: Value) -> bool:
        return bool(value.name) and not value.shape and not self.through_names

    def looks_through(self, op: Operation) -> bool:
        return isinstance(op, tensor.BroadcastOp) or widens_index(op)

    def product(self, lhs: LinearForm, rhs: LinearForm) -> LinearForm | None:
        if len(lhs.terms) * len(rhs.terms) > MAX_TERMS:
            return None
        return lhs.times(rhs) if lhs.is_constant or rhs.is_constant or _is_mixed(lhs, rhs) else None

    def holds(self, value: Value, form: LinearForm) -> bool:
        op = value.op
        if isinstance(op, arith.CastOp):
            return _wrapped(form, op.source.dtype, self.ranges) == "nothing"
        if isinstance(op, tensor.BroadcastOp) or value.dtype == INDEX_DTYPES[1]:  # sums of int64 wrap as pointers do
            return True
        return _wrapped(form, value.dtype, self.ranges) != "any"


def widens_index(op: Operation) -> bool:
    """Whether an operation casts an index to the wider of the two types that indices have."""
    return isinstance(op, arith.CastOp) and (op.source.dtype, op.out.dtype) == INDEX_DTYPES


def _wrapped(form: LinearForm, dtype: str, ranges: Ranges) -> str:
    """What a signed type makes of a sum that it does not hold: there is "nothing" such, it is "negative", or "any"
    number."""
    low, high = map(int, dtype_interval(dtype))
    least, most = form_interval(form, ranges, Interval(low, high), _is_placed)
    if least < low:
        return "any"
    return "nothing" if most <= high else "negative" if most <= 2 * high + 1 else "any"


def _is_placed(factors: Factors, coefficient: int) -> bool:
    return bool(factors) and abs(coefficient) <= LARGEST_FACTOR and all(map(is_position, factors))


_OF_POSITIONS = (
    arith.AddOp, arith.SubOp, arith.MulOp, arith.FloorDivOp, arith.CeilDivOp, arith.FloorModOp, arith.TruncDivOp,
    arith.TruncModOp, arith.MinOp, arith.MaxOp, arith.NegOp, arith.CastOp, tensor.BroadcastOp, tensor.ReshapeOp,
    tensor.TransposeOp, arith.ShrOp, arith.AndOp,  # what legalize-arith makes of quotients and remainders
)  # fmt: skip
_PLACES = (
    arith.ConstantOp, tensor.IotaOp, triton.ProgramIdOp, triton.MultiprocessorsOp, gluon.WarpGroupIdOp,
    gluon.WorkItemOp, gluon.LongestFirstOp,
)  # fmt: skip


_INDEXED = (tile.KernelOp, tile.ParallelOp)


def is_position(value: Value) -> bool:
    """Whether an integer is computed from block and loop indices, places in tiles, sizes and small factors alone."""
    return all(map(_may_be_of_position, reached([origin(value)], _parts_of_position)))


def _parts_of_position(value: Value) -> list[Value]:
    op, around = value.op, owner_of(value)
    parts: list[Value] = []
    if isinstance(around, scf.ForOp) and value is around.index:
        parts = [around.lower]
    elif isinstance(op, arith.SelectOp):
        parts = op.operands[1:]
    elif isinstance(op, _OF_POSITIONS):
        parts = op.operands
    return [origin(each) for each in parts]


def _may_be_of_position(value: Value) -> bool:
    """Whether an integer is a part of a position, if its own parts are."""
    op, around = value.op, owner_of(value)
    if isinstance(op, arith.MulOp):
        return not any(abs(factor or 0) > LARGEST_FACTOR for factor in map(constant_of, op.operands))
    if isinstance(around, tile.FuncOp):
        return value not in around.body.args[: len(around.parameters)]
    is_index = isinstance(around, scf.ForOp) and value is around.index
    return is_index or isinstance(op, (*_OF_POSITIONS, arith.SelectOp, *_PLACES)) or isinstance(around, _INDEXED)


def divisor(value: Value) -> int:
    """A number that divides an integer; 0 for the constant 0. If the integer may wrap, only its powers of two do."""
    number, op = constant_of(value), value.op
    if number is not None:
        return abs(int(number))
    if isinstance(op, arith.MulOp):
        return divisor(op.lhs) * divisor(op.rhs)
    if isinstance(op, (arith.AddOp, arith.SubOp, arith.MinOp, arith.MaxOp)):
        return math.gcd(divisor(op.lhs), divisor(op.rhs))
    if isinstance(op, arith.SelectOp):
        return math.gcd(divisor(op.on_true), divisor(op.on_false))
    if isinstance(op, arith.CastOp) and not is_float(op.source.dtype):
        return divisor(op.source)
    loop = owner_of(value)
    if isinstance(loop, scf.ForOp) and value is loop.index:
        return math.gcd(divisor(loop.lower), divisor(loop.step))
    return 1


def _is_mixed(lhs: LinearForm, rhs: LinearForm) -> bool:
    """One side is a scalar and the other has both a scalar and a tensor part, which multiplying out separates."""
    for one, other in ((lhs, rhs), (rhs, lhs)):
        if not one.split()[1].terms and all(part.terms for part in other.split()):
            return True
    return False


def form_interval(
    form: LinearForm, ranges: Ranges, limits: Interval, is_placed: Callable[[Factors, int], bool]
) -> Interval:
    """The least and the greatest value of a sum, whose terms that are placed stay together within the limits."""
    ends: list[tuple[Factors, int, Interval]] = [((), 1, Interval(0, form.slack))]
    for factors, coefficient in form.terms.items():
        interval = Interval(coefficient, coefficient)
        for value in factors:
            interval = _hull(a * b for a in interval for b in ranges.of(value))
        ends.append((factors, coefficient, interval))
    whole = _total(ends)
    if limits.lo <= whole.lo and whole.hi <= limits.hi:
        return whole
    placed = _total(each for each in ends if is_placed(*each[:2]))
    low, high = whole.lo - placed.lo, whole.hi - placed.hi
    return Interval(low + max(limits.lo, placed.lo), high + min(limits.hi, placed.hi))


def _total(ends: Iterable[tuple[Factors, int, Interval]]) -> Interval:
    each = [interval for _, _, interval in ends]
    return Interval(sum(one.lo for one in each), sum(one.hi for one in each))


Bounds = tuple[int, int]


def form_bounds(form: LinearForm, ranges: Ranges | None = None) -> Bounds | None:
    """The least and the greatest value of a sum, or None if a term has no known bounds."""
    ranges = Ranges() if ranges is None else ranges
    if any(bounds(value, ranges) is None for factors in form.terms for value in factors):
        return None
    low, high = form_interval(form, ranges, EVERYTHING, _is_placed)
    return int(low), int(high)


def bounds(value: Value, ranges: Ranges | None = None) -> Bounds | None:
    """The least and the greatest value of an integer value, as far as its operations show; else None."""
    found = (Ranges() if ranges is None else ranges).of(value)
    return None if found == dtype_interval(value.dtype) else (int(found.lo), int(found.hi))


def _hull(numbers: Iterable[float | int]) -> Interval:
    each = list(numbers)
    return Interval(min(each), max(each))
