"""Construction of tile values. Operations that would change nothing for their operands are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from tiledsl.analysis.affine import bounds
from tiledsl.analysis.digit_axes import digit_axes
from tiledsl.analysis.linear import Factors, LinearForm
from tiledsl.dialects import arith, tensor
from tiledsl.ir.core import Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, INT32, Shape, TensorType, is_float, with_shape
from tiledsl.passes.index_arithmetic import materialize

# What combines two elements, by the kind of a reduction or of an atomic; of bools, what that is of 0 and 1.
COMBINING: dict[str, type[arith.BinaryOp]] = {
    "add": arith.AddOp, "sum": arith.AddOp, "abssum": arith.AddOp, "prod": arith.MulOp, "max": arith.MaxOp,
    "absmax": arith.MaxOp, "min": arith.MinOp, "and": arith.AndOp, "or": arith.OrOp, "xor": arith.XorOp,
}  # fmt: skip
# A write at computed places compares each element of the buffer with each index: at most so many comparisons.
SCATTER_LIMIT = 1 << 18
_OF_BOOLS: dict[type[arith.BinaryOp], type[arith.BinaryOp]] = {arith.AddOp: arith.OrOp, arith.MulOp: arith.AndOp}


def combine(kind: str, dtype: str) -> type[arith.BinaryOp]:
    """The operation that combines two elements in a reduction or an atomic of this kind."""
    found = COMBINING[kind]
    return _OF_BOOLS.get(found, found) if dtype == "bool" else found


def combined(builder: Builder, kind: str, lhs: Value, rhs: Value, *, propagate_nan: bool = False) -> Value:
    """What a reduction of this kind makes of two elements, or of what it makes of two parts."""
    made = builder.insert(combine(kind, lhs.dtype)(lhs, rhs)).result
    if propagate_nan and is_float(lhs.dtype) and kind in ("max", "min", "absmax"):
        for each in (lhs, rhs):
            made = selected(builder, compared(builder, each, "ne", each), each, made)
    return made


def zero(builder: Builder, shape: Shape, dtype: str) -> Value:
    """0 in every element."""
    return builder.constant(arith.as_constant(0, dtype), with_shape(shape, dtype))


def iota(builder: Builder, rank: int, axis: int, extent: int, dtype: str = "int32") -> Value:
    """0, 1, ... `extent` - 1 along `axis` of a tensor of that rank, 1 in the other dimensions."""
    shape = (1,) * axis + (extent,) + (1,) * (rank - axis - 1)
    return builder.insert(tensor.IotaOp(axis=axis, result_types=[TensorType(shape, dtype)])).result


def numbered(builder: Builder, extent: int, dtype: str = "int32") -> Value:
    """0, 1, ... `extent` - 1 as a tensor of one dimension."""
    return builder.insert(tensor.IotaOp(axis=0, result_types=[TensorType((extent,), dtype)])).result


def reshaped(builder: Builder, value: Value, shape: Shape) -> Value:
    """The same elements in row-major order in another shape."""
    if value.shape == shape:
        return value
    number = arith.constant_of(value)
    if number is not None:
        return builder.constant(number, with_shape(shape, value.dtype))
    made = tensor.ReshapeOp(value, result_types=[with_shape(shape, value.dtype)], names=[value.name])
    return builder.insert(made).result


def permuted(builder: Builder, value: Value, permutation: Sequence[int]) -> Value:
    """Dimension i of the result is dimension permutation[i] of `value`."""
    if list(permutation) == list(range(len(permutation))):
        return value
    shape = tuple(value.shape[axis] for axis in permutation)
    # Where only dimensions of 1 move, the elements stay in order.
    if [axis for axis in permutation if value.shape[axis] != 1] == [
        axis for axis, size in enumerate(value.shape) if size != 1
    ]:
        return reshaped(builder, value, shape)
    return builder.insert(
        tensor.TransposeOp(value, permutation=tuple(permutation), names=[f"{value.name}_t" if value.name else ""])
    ).result


def broadcast(builder: Builder, value: Value, shape: Shape) -> Value:
    """A scalar, or a tensor of the same rank, in a larger shape."""
    if value.shape == shape:
        return value
    type = TensorType(shape, value.dtype)
    number = arith.constant_of(value)
    if number is not None:
        return builder.constant(number, type)
    return builder.insert(tensor.BroadcastOp(value, result_types=[type], names=[value.name])).result


def converted(builder: Builder, value: Value, dtype: str) -> Value:
    """The value in another element type."""
    if value.dtype == dtype:
        return value
    number = arith.constant_of(value)
    if number is not None and number == 0:
        return zero(builder, value.shape, dtype)
    made = arith.CastOp(value, result_types=[with_shape(value.shape, dtype)], names=[value.name])
    return builder.insert(made).result


def compared(builder: Builder, lhs: Value, predicate: str, rhs: Value) -> Value:
    return builder.insert(arith.CmpOp(lhs, rhs, predicate=predicate)).result


def is_inside(index: Value, size: int) -> bool:
    """Whether an index is known to lie in a dimension of this size."""
    ends = bounds(index)
    return ends is not None and ends[0] >= 0 and ends[1] < size


def inside_of(builder: Builder, indices: Sequence[Value], sizes: Shape, mask: Value | None) -> Value | None:
    """The mask, and that each index lies in its dimension, where that is not known."""
    for index, size in zip(indices, sizes, strict=True):
        if not is_inside(index, size):
            first, end = (builder.constant(number, with_shape((), index.dtype)) for number in (0, size))
            mask = both(builder, mask, compared(builder, index, "ge", first))
            mask = both(builder, mask, compared(builder, index, "lt", end))
    return mask


def row_major(builder: Builder, indices: Sequence[Value], sizes: Shape) -> Value:
    """The position, an int32, of an element among all of a tile's."""
    position, *others = (converted(builder, index, "int32") for index in indices)
    for index, size in zip(others, sizes[1:], strict=True):
        above = builder.insert(arith.MulOp(position, builder.constant(size, INT32))).result
        position = builder.insert(arith.AddOp(above, index)).result
    return position


def same_bits(builder: Builder, lhs: Value, rhs: Value) -> Value:
    """Whether elements have the same bits: of floats, a NaN equals itself, and 0.0 is not -0.0."""
    if is_float(lhs.dtype):
        dtype = f"int{ELEMENTS[lhs.dtype].bits}"
        lhs, rhs = bitcast(builder, lhs, dtype), bitcast(builder, rhs, dtype)
    return compared(builder, lhs, "eq", rhs)


def selected(builder: Builder, condition: Value, on_true: Value, on_false: Value) -> Value:
    return builder.insert(arith.SelectOp(condition, on_true, on_false)).result


@overload
def both(builder: Builder, first: Value | None, second: Value) -> Value: ...


@overload
def both(builder: Builder, first: Value | None, second: Value | None) -> Value | None: ...


def both(builder: Builder, first: Value | None, second: Value | None) -> Value | None:
    """The conjunction of two masks; None is no condition."""
    if first is None or second is None or first is second:
        return first if second is None else second
    return builder.insert(arith.AndOp(first, second)).result


def reduced(builder: Builder, value: Value, kind: str, axis: int, *, keep: bool = False) -> Value:
    """The reduction along one axis, which disappears, or stays with size 1."""
    if value.shape[axis] == 1 and kind in ("sum", "max", "min", "or", "and"):
        made = value
    else:
        made = builder.insert(tensor.ReduceOp(value, kind=kind, axis=axis)).result
    shape = value.shape[:axis] + ((1,) if keep else ()) + value.shape[axis + 1 :]
    return reshaped(builder, made, shape)


def nothing(builder: Builder, dtype: str) -> Value:
    """What changes no sum: 0, and of floats that have it -0.0, for 0.0 would take the sign of a -0.0 away."""
    has_sign = is_float(dtype) and not dtype.endswith("fnuz")
    return builder.constant(-0.0 if has_sign else arith.as_constant(0, dtype), with_shape((), dtype))


def exact_sum(builder: Builder, value: Value, axis: int) -> Value:
    """The sum along an axis, kept as 1, where all elements but one at most are `nothing`: that one's bits."""
    if value.dtype == "bool":
        return reduced(builder, value, "or", axis, keep=True)
    wide = converted(builder, value, "float16") if value.dtype.startswith("float8") else value
    return converted(builder, reduced(builder, wide, "sum", axis, keep=True), value.dtype)


def bitcast(builder: Builder, value: Value, dtype: str) -> Value:
    """The same bits as another element type of the same width."""
    if value.dtype == dtype:
        return value
    return builder.insert(arith.BitcastOp(value, result_types=[with_shape(value.shape, dtype)])).result


@dataclass
class DigitAccess:
    """An access with an axis for each digit that quotients and remainders in its indices make of an axis."""

    indices: list[Value]
    sizes: list[tuple[int, ...]]  # of the digits of each axis of the indices

    def shape(self, shape: Shape) -> Shape:
        """The shape of a value of this access that had the shape `shape`."""
        made: list[int] = []
        for size, sizes in zip(shape, self.sizes, strict=bool(shape)):
            made += (size,) if len(sizes) == 1 else sizes if size > 1 else [1] * len(sizes)
        return tuple(made)

    def value(self, builder: Builder, value: Value) -> Value:
        return reshaped(builder, value, self.shape(value.shape))


def with_digit_axes(builder: Builder, indices: Sequence[Value]) -> DigitAccess | None:
    """The access at these indices with axes for digits; None where that is of no use: see digit_axes."""
    digits = digit_axes(indices)
    if digits is None:
        return None
    places: dict[Value, tuple[int, int]] = {}  # axis and extent of each digit
    for axis, sizes in enumerate(digits.sizes):
        for number, size in enumerate(sizes):
            places[digits.digits[axis, number]] = len(places), size

    def index(form: LinearForm, dtype: str) -> Value:
        terms: dict[Factors, int] = {}
        for factors, coefficient in form.terms.items():
            walked = (iota(builder, len(places), *places[each], dtype) if each in places else each for each in factors)
            terms[tuple(converted(builder, each, dtype) for each in walked)] = coefficient
        return materialize(builder, LinearForm(terms), dtype)

    made = [index(form, each.dtype) for form, each in zip(digits.forms, indices, strict=True)]
    return DigitAccess(made, digits.sizes)
