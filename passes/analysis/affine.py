"""Index arithmetic as sums of products, and bounds of index values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tiledsl.dialects import arith, gluon, scf, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.triton import LaunchOp, ProgramIdOp
from tiledsl.ir.core import Operation, Value

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
    number = constant_of(value)
    if number is not None:
        return int(number), int(number)
    op = value.op
    if op is None:
        return _argument_bounds(value)
    if isinstance(op, tensor.IotaOp):
        return 0, op.extent - 1
    if isinstance(op, gluon.PartOp):
        return 0, op.parts - 1
    if isinstance(op, ProgramIdOp):
        return _program_id_bounds(op)
    if isinstance(op, arith.CastOp) and value.dtype in ("int32", "int64") and op.source.dtype in ("int32", "bool"):
        return (0, 1) if op.source.dtype == "bool" else bounds(op.source)
    if isinstance(op, (tensor.BroadcastOp, tensor.ReshapeOp, tensor.TransposeOp)):
        return bounds(op.operands[0])
    if isinstance(op, arith.SelectOp):
        a, b = bounds(op.on_true), bounds(op.on_false)
        return None if a is None or b is None else _hull((*a, *b))
    if isinstance(op, arith.BinaryOp):
        return _binary_bounds(op)
    return None


def _binary_bounds(op: arith.BinaryOp) -> Bounds | None:
    b = bounds(op.rhs)
    if isinstance(op, (arith.FloorModOp, arith.TruncModOp)) and b is not None and b[0] == b[1] > 0:
        a = bounds(op.lhs)
        return (
            (0, b[0] - 1) if isinstance(op, arith.FloorModOp) or a is not None and a[0] >= 0 else (1 - b[0], b[0] - 1)
        )
    a = bounds(op.lhs)
    if a is None or b is None:
        return None
    if isinstance(op, arith.AddOp):
        return a[0] + b[0], a[1] + b[1]
    if isinstance(op, arith.SubOp):
        return a[0] - b[1], a[1] - b[0]
    if isinstance(op, arith.MulOp):
        return _hull(x * y for x in a for y in b)
    if isinstance(op, arith.MaxOp):
        return max(a[0], b[0]), max(a[1], b[1])
    if isinstance(op, arith.MinOp):
        return min(a[0], b[0]), min(a[1], b[1])
    if isinstance(op, (arith.FloorDivOp, arith.TruncDivOp)) and b[0] > 0:
        compute = type(op).compute
        return _hull(int(compute(x, y)) for x in a for y in b)
    return None


def _argument_bounds(value: Value) -> Bounds | None:
    """Bounds of loop indices whose ends are bounded."""
    region = value.owner
    assert not isinstance(region, Operation)
    loop = region.parent
    if not isinstance(loop, scf.ForOp) or value is not loop.index:
        return None
    lower, upper, step = bounds(loop.lower), bounds(loop.upper), constant_of(loop.step)
    if lower is None or upper is None or step is None:
        return None
    return (lower[0], max(lower[0], upper[1] - 1)) if step > 0 else (min(lower[1], upper[0] + 1), lower[1])


def _program_id_bounds(op: ProgramIdOp) -> Bounds | None:
    parent = op.parent_op
    while parent is not None and not isinstance(parent, LaunchOp):
        parent = parent.parent_op
    extent = constant_of(parent.grid[op.axis]) if parent is not None else None
    return None if extent is None else (0, max(0, int(extent) - 1))


def _hull(numbers: Iterable[int]) -> Bounds:
    each = list(numbers)
    return min(each), max(each)
