"""Indices with quotients and remainders by constants, as in s[i // 16, i % 16]: the axes that they take apart.

Such an index is a sum of the digits of the points' places, where the sizes of the digits are all that is to be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tiledsl.analysis.affine import Bounds, form_bounds, widens_index
from tiledsl.analysis.linear import LinearForm, Reader, constant_form
from tiledsl.analysis.ranges import Interval, Ranges, dtype_interval
from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import INT32

_QUOTIENTS = (arith.FloorDivOp, arith.TruncDivOp, arith.ShrOp)  # all the same of what is not negative
_REMAINDERS = (arith.FloorModOp, arith.TruncModOp, arith.AndOp)


@dataclass(frozen=True)
class DigitAxes:
    """`sizes` of the digits of each axis, the most significant first, and the indices as sums of digits and scalars.

    `digits` has the value that stands for a digit in the sums, by axis and number.
    """

    sizes: list[tuple[int, ...]]
    digits: dict[tuple[int, int], Value]
    forms: list[LinearForm]


def digit_axes(indices: Sequence[Value]) -> DigitAxes | None:
    """The axes of an access taken apart so that quotients and remainders in its indices are digits of them.

    None where no index has any, or where an index is no sum of digits and scalars.
    """
    shapes = [index.shape for index in indices if index.shape]
    if not shapes:
        return None
    extents = [max(sizes) for sizes in zip(*shapes, strict=True)]
    units = [[1] for _ in extents]
    while True:
        reader = _DigitReader(extents, units)
        forms = []
        for index in indices:
            form = reader.read(index)
            if form is None:
                break
            forms.append(form)
        if reader.finer is not None:
            axis, unit = reader.finer
            ends = [each for each in units[axis] if each < unit], [each for each in units[axis] if each > unit]
            above = min(ends[1], default=extents[axis])
            if unit % max(ends[0]) or above % unit:
                return None
            units[axis] = sorted([*units[axis], unit])
        elif len(forms) < len(indices) or not reader.divides:
            return None
        else:
            sizes = [tuple(reversed(_sizes(extent, each))) for extent, each in zip(extents, units, strict=True)]
            return DigitAxes(sizes, reader.digits, forms)


def _sizes(extent: int, units: list[int]) -> list[int]:
    """Of the digits with these units, the least significant first."""
    return [above // unit for unit, above in zip(units, [*units[1:], extent], strict=True)]


@dataclass
class _DigitReader(Reader):
    """Reads indices as sums of digits with the given units; `finer` is an axis and a unit that would help."""

    extents: list[int]
    units: list[list[int]]
    finer: tuple[int, int] | None = None
    divides: bool = False  # whether a quotient or a remainder that varies is a sum
    digits: dict[tuple[int, int], Value] = field(default_factory=dict)
    known: dict[Value, tuple[int, int, int]] = field(default_factory=dict)  # axis, unit and size of each digit
    places: Region = field(default_factory=Region)  # whose arguments stand for the digits

    def __post_init__(self) -> None:
        for axis, units in enumerate(self.units):
            sizes = _sizes(self.extents[axis], units)
            for number, (unit, size) in enumerate(zip(reversed(units), reversed(sizes), strict=True)):
                digit = self.digits[axis, number] = self.places.add_arg(INT32)
                self.known[digit] = axis, unit, size
        self.ranges = Ranges(known={digit: Interval(0, size - 1) for digit, (_, _, size) in self.known.items()})

    def _sum(self, op: Operation) -> LinearForm | None:
        if isinstance(op, tensor.IotaOp):
            walk = LinearForm()
            if op.extent > 1:
                for digit in self.digits.values():
                    axis, unit, _ = self.known[digit]
                    if axis == op.axis:
                        walk.add((digit,), unit)
            return walk
        if isinstance(op, (*_QUOTIENTS, *_REMAINDERS)):
            form, number = self.read(op.lhs), constant_of(op.rhs)
            divisor = None if number is None else int(number)
            if isinstance(op, arith.ShrOp) and divisor is not None:
                divisor = 1 << divisor if 0 <= divisor < 31 else None
            elif isinstance(op, arith.AndOp) and divisor is not None:
                divisor = divisor + 1 if not divisor & divisor + 1 else None
            divided = None if form is None or not divisor else self._divided(form, divisor, isinstance(op, _QUOTIENTS))
            self.divides |= bool(op.result.shape)
            return divided
        return super()._sum(op)

    def _divided(self, form: LinearForm, divisor: int, quotient: bool) -> LinearForm | None:
        """The quotient, or the remainder, of a sum of digits and scalars that is not negative."""
        ends = self._bounds(form)
        if divisor < 1 or ends is None or ends[0] < 0:
            return None
        whole, remainder = LinearForm(), constant_form(form.constant % divisor)
        whole.add((), form.constant // divisor)
        for factors, coefficient in form.terms.items():
            if factors and coefficient % divisor:
                remainder.add(factors, coefficient)
            elif factors:
                whole.add(factors, coefficient // divisor)
        ends = self._bounds(remainder)
        assert ends is not None
        if ends[0] >= 0 and ends[1] < divisor:
            return whole if quotient else remainder
        for factors, coefficient in remainder.terms.items():
            if factors and factors[0] in self.known and divisor % coefficient == 0:
                axis, unit, size = self.known[factors[0]]
                if size * abs(coefficient) > divisor:
                    self.finer = axis, unit * divisor // abs(coefficient)
        return None

    def _bounds(self, form: LinearForm) -> Bounds | None:
        """The least and the greatest value of a sum of digits, and of scalars with bounds; None for other sums."""
        return None if any(len(factors) > 1 for factors in form.terms) else form_bounds(form, self.ranges)

    def looks_through(self, op: Operation) -> bool:
        return isinstance(op, tensor.BroadcastOp) or widens_index(op)

    def holds(self, value: Value, form: LinearForm) -> bool:
        ends, limits = self._bounds(form), dtype_interval(value.dtype)
        return ends is None or limits.lo <= ends[0] and ends[1] <= limits.hi

    def opaque(self, value: Value) -> LinearForm | None:
        return None if value.shape else LinearForm({(value,): 1})
