"""Index arithmetic as sums of products, and bounds of index values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Value
from tiledsl.passes.analysis.ranges import Ranges, dtype_interval

Factors = tuple[Value, ...]
MAX_TERMS = 8  # a product of sums is multiplied out only while it stays this small


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


def linear_form(value: Value, through_names: bool = False) -> LinearForm:
    """An index value as a sum, looking through additions, multiplications, negation, broadcasts and widening casts.

    A scalar that has a name in the user's program stays a term, so that the name appears in the source; with
    `through_names` it is looked through as well.
    """
    number = constant_of(value)
    if number is not None:
        return constant_form(int(number))
    if value.name and not value.shape and not through_names:
        return LinearForm({(value,): 1})
    op = value.op
    if isinstance(op, arith.AddOp):
        return linear_form(op.lhs, through_names).plus(linear_form(op.rhs, through_names))
    if isinstance(op, arith.SubOp):
        return linear_form(op.lhs, through_names).plus(linear_form(op.rhs, through_names), -1)
    if isinstance(op, arith.NegOp):
        return LinearForm().plus(linear_form(op.source, through_names), -1)
    if isinstance(op, arith.MulOp):
        lhs, rhs = linear_form(op.lhs, through_names), linear_form(op.rhs, through_names)
        if len(lhs.terms) * len(rhs.terms) <= MAX_TERMS and (
            _is_constant(lhs) or _is_constant(rhs) or _is_mixed(lhs, rhs)
        ):
            return lhs.times(rhs)
    elif (
        isinstance(op, tensor.BroadcastOp)
        or isinstance(op, arith.CastOp)
        and (op.source.dtype, value.dtype) == ("int32", "int64")
    ):
        return linear_form(op.source, through_names)
    return LinearForm({(value,): 1})


def _is_constant(form: LinearForm) -> bool:
    return all(not factors for factors in form.terms)


def _is_mixed(lhs: LinearForm, rhs: LinearForm) -> bool:
    """One side is a scalar and the other has both a scalar and a tensor part, which multiplying out separates."""
    for one, other in ((lhs, rhs), (rhs, lhs)):
        if not one.split()[1].terms and all(part.terms for part in other.split()):
            return True
    return False


Bounds = tuple[int, int]


def form_bounds(form: LinearForm) -> Bounds | None:
    """The least and the greatest value of a sum, or None if a term has no known bounds."""
    low = high = 0
    for factors, coefficient in form.terms.items():
        ends: Bounds = (coefficient, coefficient)
        for value in factors:
            inner = bounds(value)
            if inner is None:
                return None
            ends = _hull(a * b for a in ends for b in inner)
        low, high = low + ends[0], high + ends[1]
    return low, high


def bounds(value: Value) -> Bounds | None:
    """The least and the greatest value of an integer value, as far as its operations show; else None."""
    found = Ranges().of(value)
    return None if found == dtype_interval(value.dtype) else (int(found.lo), int(found.hi))


def _hull(numbers: Iterable[int]) -> Bounds:
    each = list(numbers)
    return min(each), max(each)
