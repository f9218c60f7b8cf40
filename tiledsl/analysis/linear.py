"""Integers as sums of products, and how values are read as such sums: what all analyses of sums build on."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiledsl.dialects import arith
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value

Factors = tuple[Value, ...]


@dataclass
class LinearForm:
    """The sum over `terms` of coefficient * product of values, plus a number from 0 to `slack`, for each element
    another. The empty product is the constant term.
    """

    terms: dict[Factors, int] = field(default_factory=dict)
    slack: int = 0

    @property
    def constant(self) -> int:
        return self.terms.get((), 0)

    @property
    def is_constant(self) -> bool:
        return not self.slack and self.terms.keys() <= {()}

    def add(self, factors: Factors, coefficient: int) -> None:
        total = self.terms.get(factors, 0) + coefficient
        if total:
            self.terms[factors] = total
        else:
            self.terms.pop(factors, None)

    def plus(self, other: LinearForm, factor: int = 1) -> LinearForm:
        """self + factor * other."""
        out = LinearForm(dict(self.terms), self.slack + abs(factor) * other.slack)
        for factors, coefficient in other.terms.items():
            out.add(factors, coefficient * factor)
        if other.slack:
            out.add((), min(0, factor) * other.slack)
        return out

    def times(self, other: LinearForm) -> LinearForm:
        """The product. What has slack can be multiplied with a constant alone."""
        for form, number in ((self, other), (other, self)):
            if number.is_constant:
                return LinearForm().plus(form, number.constant)
        assert not self.slack and not other.slack
        out = LinearForm()
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                out.add(left + right, a * b)
        return out

    def coefficient(self, value: Value) -> int:
        """The number that a value is multiplied with where it is a term by itself."""
        return self.terms.get((value,), 0)

    def substituted(self, value: Value, form: LinearForm) -> LinearForm:
        """The sum with a form for a value that is a term by itself."""
        factor = self.coefficient(value)
        return self.plus(LinearForm({(value,): 1}), -factor).plus(form, factor)

    def split(self) -> tuple[LinearForm, LinearForm]:
        """The scalar terms, and the terms with a tensor among their factors."""
        scalar, tensors = LinearForm(), LinearForm()
        for factors, coefficient in self.terms.items():
            (tensors if any(each.shape for each in factors) else scalar).terms[factors] = coefficient
        return scalar, tensors


def constant_form(number: int) -> LinearForm:
    return LinearForm({(): number} if number else {})


def single_form(value: Value) -> LinearForm:
    """A value as the only term of a sum, or as the number that it is."""
    number = constant_of(value)
    return LinearForm({(value,): 1}) if number is None else constant_form(int(number))


class Reader:
    """Takes integers apart into sums. Integers wrap: the sums of this reader are the values modulo 2**bits.

    Other readers say where they stop, what they look through, and of which sums they need to know more than that.
    """

    def read(self, value: Value) -> LinearForm | None:
        """A value as a sum; None if nothing is known of it."""
        number = constant_of(value)
        if number is not None:
            return constant_form(int(number))
        if self.stops(value):
            return LinearForm({(value,): 1})
        op = value.op
        form = None if op is None else self._sum(op)
        return self.opaque(value) if form is None or not self.holds(value, form) else form

    def _sum(self, op: Operation) -> LinearForm | None:
        if isinstance(op, (arith.AddOp, arith.SubOp)):
            return self.plus(op.lhs, op.rhs, 1 if isinstance(op, arith.AddOp) else -1)
        if isinstance(op, arith.MulOp):
            lhs, rhs = self.read(op.lhs), self.read(op.rhs)
            return None if lhs is None or rhs is None else self.product(lhs, rhs)
        if isinstance(op, arith.NegOp):
            form = self.read(op.source)
            return None if form is None else LinearForm().plus(form, -1)
        return self.read(*op.operands) if self.looks_through(op) else None

    def plus(self, lhs: Value, rhs: Value, factor: int) -> LinearForm | None:
        """lhs + factor * rhs as a sum."""
        first, second = self.read(lhs), self.read(rhs)
        return None if first is None or second is None else first.plus(second, factor)

    def product(self, lhs: LinearForm, rhs: LinearForm) -> LinearForm | None:
        """A product as a sum; None for one that is not multiplied out."""
        return lhs.times(rhs) if lhs.is_constant or rhs.is_constant else None

    def stops(self, value: Value) -> bool:
        """Whether a value is a term, whatever it is computed from."""
        return False

    def looks_through(self, op: Operation) -> bool:
        """Whether the elements of a cast, broadcast or reshaped value are those of its source."""
        return False

    def holds(self, value: Value, form: LinearForm) -> bool:
        """Whether a value is a sum in the sense that is asked for."""
        return True

    def opaque(self, value: Value) -> LinearForm | None:
        """What a value is that is not taken apart."""
        return LinearForm({(value,): 1})
