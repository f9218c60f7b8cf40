"""Index arithmetic as sums of products, and bounds of index values.

Integers wrap, and a mask compares the wrapped index. So a sum of int32 is taken apart only if what it is apart, in
unbounded integers, is the index wherever that is not negative, as every index that is accessed is: by its bounds, or
because what may be large is a position. Positions are sums and products of block indices, loop indices, places in a
tile and dynamic sizes, with factors of at most 2**16: the language has them stay inside of int32. What is loaded or
handed to a kernel as a number is none, nor is what a hash makes of an index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tiledsl.analysis.ranges import Ranges, dtype_interval, origin, owner_of
from tiledsl.dialects import arith, gluon, scf, tensor, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Value

Factors = tuple[Value, ...]
INDEX_DTYPES = ("int32", "int64")  # of indices; pointers are as wide as the second
MAX_TERMS = 8  # a product of sums is multiplied out only while it stays this small
LARGEST_FACTOR = 2**16  # that a position is multiplied with: a tile size or a row stride; what is larger is a hash


@dataclass
class LinearForm:
    """The sum over `terms` of coefficient * product of values; the empty product is the constant term."""

    terms: dict[Factors, int] = field(default_factory=dict)

    def add(self, factors: Factors, coefficient: int) -> None:
        total = self.terms.get(factors, 0) + coefficient
        if total:
            self.terms[factors] = total
        else:
            self.terms.pop(factors, None)

    def plus(self, other: LinearForm, factor: int = 1) -> LinearForm:
        out = LinearForm(dict(self.terms))
        for factors, coefficient in other.terms.items():
            out.add(factors, coefficient * factor)
        return out

    def times(self, other: LinearForm) -> LinearForm:
        out = LinearForm()
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                out.add(left + right, a * b)
        return out

    def split(self) -> tuple[LinearForm, LinearForm]:
        """The scalar terms, and the terms with a tensor among their factors."""
        scalar, tensors = LinearForm(), LinearForm()
        for factors, coefficient in self.terms.items():
            (tensors if any(each.shape for each in factors) else scalar).terms[factors] = coefficient
        return scalar, tensors


def constant_form(number: int) -> LinearForm:
    return LinearForm({(): number} if number else {})


def linear_form(value: Value, through_names: bool = False, ranges: Ranges | None = None) -> LinearForm:
    """An index value as a sum, looking through additions, multiplications, negation, broadcasts and widening casts.

    The sum is that of unbounded integers, and is the value wherever that is not negative. A scalar that has a name in
    the user's program stays a term, so that the name appears in the source; with `through_names` it is looked through
    as well. `ranges` may know more of the values.
    """
    number = constant_of(value)
    if number is not None:
        return constant_form(int(number))
    whole = LinearForm({(value,): 1})
    if value.name and not value.shape and not through_names:
        return whole
    ranges = Ranges() if ranges is None else ranges
    op = value.op
    if isinstance(op, tensor.BroadcastOp):
        return linear_form(op.source, through_names, ranges)
    if isinstance(op, arith.CastOp) and (op.source.dtype, value.dtype) == INDEX_DTYPES:
        made = linear_form(op.source, through_names, ranges)
        return made if _wrapped(made, op.source.dtype, ranges) == "nothing" else whole
    if isinstance(op, (arith.AddOp, arith.SubOp, arith.MulOp)):
        lhs, rhs = (linear_form(each, through_names, ranges) for each in op.operands)
        if not isinstance(op, arith.MulOp):
            made = lhs.plus(rhs, 1 if isinstance(op, arith.AddOp) else -1)
        elif len(lhs.terms) * len(rhs.terms) <= MAX_TERMS and (
            _is_constant(lhs) or _is_constant(rhs) or _is_mixed(lhs, rhs)
        ):
            made = lhs.times(rhs)
        else:
            return whole
    elif isinstance(op, arith.NegOp):
        made = LinearForm().plus(linear_form(op.source, through_names, ranges), -1)
    else:
        return whole
    # Sums of int64 wrap as pointers do.
    return made if value.dtype == INDEX_DTYPES[1] or _wrapped(made, value.dtype, ranges) != "any" else whole


def _wrapped(form: LinearForm, dtype: str, ranges: Ranges) -> str:
    """What a signed type makes of a sum that it does not hold: there is "nothing" such, it is "negative", or "any"
    number."""
    low, high = map(int, dtype_interval(dtype))
    ends: list[Bounds] = []
    for factors, coefficient in form.terms.items():
        each: Bounds = (coefficient, coefficient)
        for value in factors:
            each = _hull(int(a * b) for a in each for b in ranges.of(value))
        ends.append(each)
    least, most = sum(end[0] for end in ends), sum(end[1] for end in ends)
    if least < low or most > high:
        placed = [each for each, (factors, factor) in zip(ends, form.terms.items()) if _is_placed(factors, factor)]
        first, last = sum(end[0] for end in placed), sum(end[1] for end in placed)
        least, most = least - first + max(first, low), most - last + min(last, high)
    if least < low:
        return "any"
    return "nothing" if most <= high else "negative" if most <= 2 * high + 1 else "any"


def _is_placed(factors: Factors, coefficient: int) -> bool:
    return bool(factors) and abs(coefficient) <= LARGEST_FACTOR and all(map(is_position, factors))


_OF_POSITIONS = (
    arith.AddOp, arith.SubOp, arith.MulOp, arith.FloorDivOp, arith.FloorModOp, arith.TruncDivOp, arith.TruncModOp,
    arith.MinOp, arith.MaxOp, arith.NegOp, arith.CastOp, tensor.BroadcastOp, tensor.ReshapeOp, tensor.TransposeOp,
    arith.ShrOp, arith.AndOp,  # what legalize-arith makes of quotients and remainders
)  # fmt: skip
_PLACES = (
    arith.ConstantOp, tensor.IotaOp, triton.ProgramIdOp, triton.MultiprocessorsOp, gluon.WarpGroupIdOp,
    gluon.WorkItemOp, gluon.LongestFirstOp,
)  # fmt: skip


def is_position(value: Value) -> bool:
    """Whether an integer is computed from block and loop indices, places in tiles, sizes and small factors alone."""
    pending, seen = [value], set[Value]()
    while pending:
        each = origin(pending.pop())
        if each in seen:
            continue
        seen.add(each)
        op, around = each.op, owner_of(each)
        if isinstance(around, scf.ForOp) and each is around.index:
            pending.append(around.lower)
        elif isinstance(op, arith.SelectOp):
            pending += op.operands[1:]
        elif isinstance(op, _OF_POSITIONS):
            factor = constant_of(op.operands[-1]) if isinstance(op, arith.MulOp) else None
            if factor is not None and abs(factor) > LARGEST_FACTOR:
                return False
            pending += op.operands
        elif isinstance(around, tile.FuncOp):
            if each in around.body.args[: len(around.parameters)]:
                return False
        elif not isinstance(op, _PLACES) and not isinstance(around, (tile.KernelOp, tile.ParallelOp)):
            return False
    return True


def _is_constant(form: LinearForm) -> bool:
    return all(not factors for factors in form.terms)


def _is_mixed(lhs: LinearForm, rhs: LinearForm) -> bool:
    """One side is a scalar and the other has both a scalar and a tensor part, which multiplying out separates."""
    for one, other in ((lhs, rhs), (rhs, lhs)):
        if not one.split()[1].terms and all(part.terms for part in other.split()):
            return True
    return False


Bounds = tuple[int, int]


def form_bounds(form: LinearForm, ranges: Ranges | None = None) -> Bounds | None:
    """The least and the greatest value of a sum, or None if a term has no known bounds."""
    ranges = Ranges() if ranges is None else ranges
    low = high = 0
    for factors, coefficient in form.terms.items():
        ends: Bounds = (coefficient, coefficient)
        for value in factors:
            inner = bounds(value, ranges)
            if inner is None:
                return None
            ends = _hull(a * b for a in ends for b in inner)
        low, high = low + ends[0], high + ends[1]
    return low, high


def bounds(value: Value, ranges: Ranges | None = None) -> Bounds | None:
    """The least and the greatest value of an integer value, as far as its operations show; else None."""
    found = (Ranges() if ranges is None else ranges).of(value)
    return None if found == dtype_interval(value.dtype) else (int(found.lo), int(found.hi))


def _hull(numbers: Iterable[int]) -> Bounds:
    each = list(numbers)
    return min(each), max(each)
