"""Whole-tile operations on tensor values: no memory, no effects. Everything here is free of Triton's idioms."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.fields import attr, operand, optional, result
from tiledsl.ir.types import ELEMENTS, ScalarType, TensorType, Type, with_shape

# Reduction kinds and their neutral elements; None: the least or greatest value of the element type.
REDUCTIONS: dict[str, float | None] = {
    "sum": 0, "max": None, "min": None, "abssum": 0, "absmax": 0, "and": -1, "or": 0, "xor": 0, "prod": 1,
}  # fmt: skip


def neutral(kind: str, dtype: str) -> float | int | bool:
    """The element that does not change a reduction of this kind."""
    info = ELEMENTS[dtype]
    if kind in ("max", "min"):
        if info.kind == "float":
            low = float("-inf") if not dtype.startswith("float8") else info.low
            return low if kind == "max" else -low
        if info.kind == "bool":
            return kind == "min"
        return int(info.low if kind == "max" else info.high)
    number = REDUCTIONS[kind] or 0
    if info.kind == "float":
        return float(number)
    if info.kind == "bool":
        return bool(number)
    return int(info.high) if number == -1 and info.kind == "uint" else int(number)


class IotaOp(Operation):
    """0, 1, 2, ... along one dimension of the result; every other dimension is 1.

    in_fours: Gluon's text has them where the columns are that lie as triton.load_block says.

    Example: `%i = tensor.iota {axis = 0} : tensor<128x1xint32>`
    """

    name = "tensor.iota"
    axis = attr(int)
    in_fours = attr(bool, False)
    out = result(TensorType)

    def verify(self) -> None:
        if any(size != 1 for axis, size in enumerate(self.out.shape) if axis != self.axis):
            raise ValueError(f"{self.out.type} has more than one dimension beside {self.axis}")

    @property
    def extent(self) -> int:
        return self.results[0].type.shape[self.attributes["axis"]]  # type: ignore[no-any-return]


class BroadcastOp(Operation):
    """A scalar, or a tensor of the same rank with dimensions of 1, in the result's shape.

    Example: `%y = tensor.broadcast %x : tensor<128x64xfloat32>`
    """

    name = "tensor.broadcast"
    source = operand(ScalarType, TensorType)
    out = result(TensorType)

    def verify(self) -> None:
        shape = self.source.shape
        if shape and (
            len(shape) != len(self.out.shape)
            or any(a not in (1, b) for a, b in zip(shape, self.out.shape, strict=True))
        ):
            raise ValueError(f"{self.source.type} cannot become {self.out.type}")

    def fold(self) -> Sequence[Value | bool | int | float] | None:
        if self.source.type == self.out.type:
            return [self.source]
        number = constant_of(self.source)
        return None if number is None else [number]


class ReshapeOp(Operation):
    """The same elements in row-major order; also between a scalar and one-element tensors.

    Example: `%y = tensor.reshape %x : tensor<128x1x64xfloat32>`
    """

    name = "tensor.reshape"
    source = operand(ScalarType, TensorType)
    out = result(ScalarType, TensorType)

    def verify(self) -> None:
        if prod(self.source.shape) != prod(self.out.shape) or self.source.dtype != self.out.dtype:
            raise ValueError(f"{self.source.type} cannot become {self.out.type}")

    def fold(self) -> Sequence[Value | bool | int | float] | None:
        if self.source.type == self.out.type:
            return [self.source]
        inner = self.source.op
        if isinstance(inner, ReshapeOp):
            if inner.source.type == self.out.type:
                return [inner.source]
            self.set_operands([inner.source])
        number = constant_of(self.source)
        return None if number is None else [number]


class TransposeOp(Operation):
    """`out.shape[i] == source.shape[permutation[i]]`.

    Example: `%y = tensor.transpose %x {permutation = (1, 0)} : tensor<64x128xfloat16>`
    """

    name = "tensor.transpose"
    source = operand(TensorType)
    permutation = attr(tuple)
    out = result(TensorType)

    def infer(self) -> Sequence[Type]:
        shape = self.operands[0].shape
        return [TensorType(tuple(shape[axis] for axis in self.attributes["permutation"]), self.operands[0].dtype)]

    def verify(self) -> None:
        if sorted(self.permutation) != list(range(len(self.source.shape))):
            raise ValueError(f"{self.permutation} is not a permutation of {len(self.source.shape)} dimensions")
        if self.out.shape != tuple(self.source.shape[axis] for axis in self.permutation):
            raise ValueError(f"the result is {self.out.type}")

    def fold(self) -> Sequence[Value | bool | int | float] | None:
        if self.permutation == tuple(range(len(self.permutation))):
            return [self.source]
        number = constant_of(self.source)
        return None if number is None else [number]


SHAPES = (BroadcastOp, ReshapeOp, TransposeOp)  # in which elements have other places, and none is another one


class ReduceOp(Operation):
    """Combines the elements along one axis, which disappears. Kinds: REDUCTIONS.

    abssum and absmax take absolute values first. NaNs are dropped by max, min and absmax unless propagate_nan is set.
    relaid: Triton is to lay out the source anew (legalize-layouts). in_fours: the columns in the order of
    triton.load_block.

    Example: `%m = tensor.reduce %x {kind = "max", axis = 1} : tensor<128xfloat32>`
    """

    name = "tensor.reduce"
    source = operand(TensorType)
    kind = attr(str, known=REDUCTIONS)
    axis = attr(int)
    propagate_nan = attr(bool, False)
    relaid = attr(bool, False)
    in_fours = attr(bool, False)
    out = result(ScalarType, TensorType)

    def infer(self) -> Sequence[Type]:
        shape, axis = self.operands[0].shape, self.attributes["axis"]
        return [with_shape(shape[:axis] + shape[axis + 1 :], self.operands[0].dtype)]

    def verify(self) -> None:
        shape = self.source.shape
        if not 0 <= self.axis < len(shape) or self.out.shape != shape[: self.axis] + shape[self.axis + 1 :]:
            raise ValueError(f"{self.source.type} along axis {self.axis} does not give {self.out.type}")


class ScanOp(Operation):
    """Inclusive prefix sum, max, min or prod along one axis; from the end if `reverse`. relaid: as tensor.reduce's.

    Of kind "linear", element i is `factors[i] * element i - 1 + source[i]`, and the first one the source's.

    Example: `%y = tensor.scan %x {kind = "sum", axis = 0} : tensor<64x32xfloat32>`
    """

    name = "tensor.scan"
    source = operand(TensorType)
    factors = optional(TensorType)
    kind = attr(str, known=("sum", "max", "min", "prod", "linear"))
    axis = attr(int)
    reverse = attr(bool, False)
    relaid = attr(bool, False)
    out = result(TensorType, like=source)

    def verify(self) -> None:
        check_factors(self.kind, self.source, self.factors, self.reverse)


def check_factors(kind: str, source: Value, factors: Value | None, reverse: bool) -> None:
    """A linear recurrence has factors of the type of its source, other scans have none. ValueError if not."""
    is_linear = kind == "linear"
    if is_linear != (factors is not None) or factors is not None and factors.type != source.type:
        raise ValueError(f"{kind!r} of {source.type} with factors {factors if factors is None else factors.type}")
    if is_linear and reverse:
        raise ValueError("a linear recurrence in reverse")


class DotOp(Operation):
    """`accumulator + a @ b`, of shapes (M, N), (M, K) and (K, N), accumulated in the accumulator's element type.

    precision: "default" (16-bit and narrower inputs exactly; float32 inputs as tf32), "ieee" (float32 exactly) or
    "tf32".

    Example: `%d = tensor.dot %a, %b, %c : tensor<128x128xfloat32>`
    """

    name = "tensor.dot"
    a = operand(TensorType)
    b = operand(TensorType)
    accumulator = operand(TensorType)
    precision = attr(str, "default", ("default", "ieee", "tf32"))
    out = result(TensorType, like=accumulator)

    def verify(self) -> None:
        (m, k), (k2, n) = self.a.shape, self.b.shape
        if k != k2 or self.accumulator.shape != (m, n) or self.out.type != self.accumulator.type:
            raise ValueError(f"{self.a.type} @ {self.b.type} + {self.accumulator.type} gives {self.out.type}")


class GatherOp(Operation):
    """`out[..., i, ...] = source[..., indices[..., i, ...], ...]` along `axis`; the other dimensions are equal.

    Indices must lie inside the source.

    Example: `%y = tensor.gather %x, %i {axis = 1} : tensor<128x64xfloat32>`
    """

    name = "tensor.gather"
    source = operand(TensorType)
    indices = operand(TensorType)
    axis = attr(int)
    out = result(TensorType)

    def infer(self) -> Sequence[Type]:
        return [TensorType(self.operands[1].shape, self.operands[0].dtype)]

    def verify(self) -> None:
        source, indices = list(self.source.shape), list(self.indices.shape)
        if len(source) != len(indices) or not 0 <= self.axis < len(source):
            raise ValueError(f"{self.source.type} with indices {self.indices.type} along axis {self.axis}")
        del source[self.axis], indices[self.axis]
        if source != indices:
            raise ValueError(f"{self.source.type} and indices {self.indices.type} differ beside axis {self.axis}")


class HistogramOp(Operation):
    """How many of the masked elements of a one-dimensional tensor are 0, 1, 2, ...; each of these is less than the
    result's size.

    Example: `%h = tensor.histogram %x, %m : tensor<256xint32>`
    """

    name = "tensor.histogram"
    source = operand(TensorType)
    mask = operand(TensorType)
    out = result(TensorType)

    def verify(self) -> None:
        if len(self.source.shape) != 1 or self.source.dtype != "int32" or self.mask.shape != self.source.shape:
            raise ValueError(f"{self.source.type} with the mask {self.mask.type}; both have one dimension, and int32")
        if len(self.out.shape) != 1 or self.out.dtype != "int32":
            raise ValueError(f"the result is {self.out.type}")


class ScatterOp(Operation):
    """Combine each value with the element of `into` at its place, one value after the other.

    `out` is `into` after all of them, and `before` what each value met at its place. Values whose place lies outside
    take no part (`before` is then any number). Kinds: add, max, min, and, or, xor, and cas, which replaces an element
    that has the bits of `compare`. Sums of floats may associate in another way. A pure operation: lower-exchanges makes
    it of others.

    Example: `%y, %old = tensor.scatter %x, %v, %p {kind = "add"} : tensor<256xint32>, tensor<1024xint32>`
    """

    name = "tensor.scatter"
    into = operand(TensorType)
    values = operand(TensorType)
    places = operand(TensorType)
    compare = optional(TensorType)
    kind = attr(str, known=("add", "max", "min", "and", "or", "xor", "cas"))
    out = result(TensorType, like=into)
    before = result(TensorType, like=values)

    def verify(self) -> None:
        if self.kind in ("and", "or", "xor") and ELEMENTS[self.into.dtype].kind == "float":
            raise ValueError(f"{self.kind!r} of {self.into.dtype}")
        into, values, places = self.into, self.values, self.places
        if len(into.shape) != 1 or len(values.shape) != 1 or into.dtype != values.dtype:
            raise ValueError(f"{values.type} into {into.type}")
        if places.shape != values.shape or places.dtype != "int32":
            raise ValueError(f"places {places.type} for {values.type}")
        if (self.kind == "cas") != (self.compare is not None) or self.compare and self.compare.type != values.type:
            raise ValueError(f"{self.kind} with {'nothing' if self.compare is None else self.compare.type} to compare")

    def fold(self) -> Sequence[Value | bool | int | float] | None:
        place = constant_of(self.places)
        nowhere = place is not None and not 0 <= place < self.into.shape[0]
        return [self.into, self.values] if nowhere else None


class SortOp(Operation):
    """The elements along one axis in ascending (or descending) order, and where each of them was: `indices`, int32.

    Equal elements stay in order. NaN is greater than all numbers. lower-exchanges makes it of other operations.

    Example: `%y, %i = tensor.sort %x {axis = 0} : tensor<64x32xfloat32>, tensor<64x32xint32>`
    """

    name = "tensor.sort"
    source = operand(TensorType)
    axis = attr(int)
    descending = attr(bool, False)
    out = result(TensorType)
    indices = result(TensorType)

    def infer(self) -> Sequence[Type]:
        type = self.operands[0].type
        return [type, TensorType(self.operands[0].shape, "int32")]

    def verify(self) -> None:
        if not 0 <= self.axis < len(self.source.shape):
            raise ValueError(f"{self.source.type} has no axis {self.axis}")
        if self.out.type != self.source.type or self.indices.type != TensorType(self.source.shape, "int32"):
            raise ValueError(f"{self.source.type} gives {self.out.type} and {self.indices.type}")
