"""Elementwise operations on scalars and tensors.

Operands have one element type; scalars go with tensors, tensors of one rank broadcast their dimensions of 1. Integers
wrap, signed ones too. `floordiv` and `floormod` round towards minus infinity, `ceildiv` towards plus infinity,
`truncdiv` and `truncmod` towards zero (C, Triton). Undefined are quotients and remainders by zero, of the least number
by -1, and shifts by less than 0 or by the width and more, but for constant amounts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from tiledsl.ir.core import Operation, Value
from tiledsl.ir.fields import attr, operand, operands, result
from tiledsl.ir.types import ELEMENTS, BufferType, ScalarType, TensorType, Type, broadcast_shapes, is_float, with_shape
from tiledsl.math_functions import MATH_FUNCTIONS, names

Number = bool | int | float


class ConstantOp(Operation):
    """A number; for a tensor type, the same in every element.

    Example: `%c = arith.constant {value = 0.5} : tensor<128x64xfloat32>`
    """

    name = "arith.constant"
    value = attr[Any](object)
    out = result(ScalarType, TensorType)

    def verify(self) -> None:
        kind = ELEMENTS[self.out.dtype].kind
        if kind == "float" and type(self.value) is not float:
            raise ValueError(f"{self.value!r} is not a float")
        if kind in ("int", "uint") and (type(self.value) is not int or wrap(self.value, self.out.dtype) != self.value):
            raise ValueError(f"{self.value!r} does not fit in {self.out.dtype}")
        if kind == "bool" and type(self.value) is not bool:
            raise ValueError(f"{self.value!r} is not a bool")


def constant_of(value: Value) -> Number | None:
    """The number that a value always has, or None."""
    op = value.op
    return op.attributes["value"] if type(op) is ConstantOp else None


def wrap(number: int, dtype: str) -> int:
    """An integer as `dtype` stores it."""
    bits = ELEMENTS[dtype].bits
    number &= (1 << bits) - 1
    return number - (1 << bits) if ELEMENTS[dtype].kind == "int" and number >> (bits - 1) else number


def as_constant(number: Number, dtype: str) -> Number:
    """A Python number as a constant of `dtype`."""
    info = ELEMENTS[dtype]
    if info.kind == "float":
        return float(number)
    if info.kind == "bool":
        return bool(number)
    return number if type(number) is int and info.low <= number <= info.high else wrap(int(number), dtype)


_type = operator.attrgetter("type")


@lru_cache(maxsize=4096)
def _elementwise(dtype: str, *types: ScalarType | TensorType) -> tuple[Type]:
    """The result's type of an operation on operands of these types."""
    shape = broadcast_shapes(*[each.shape for each in types])
    assert shape is not None, f"shapes {[each.shape for each in types]} do not broadcast"
    return (with_shape(shape, dtype),)


class Elementwise(Operation):
    """Base: the result has the broadcast shape and the first operand's element type."""

    def result_dtype(self) -> str:
        return self.operands[0].type.dtype

    def infer(self) -> Sequence[Type]:
        return _elementwise(self.result_dtype(), *map(_type, self.operands))

    def verify(self) -> None:
        result = self.results[0].type
        types = [value.type for value in self.operands]
        if any(type(each) is BufferType for each in types):
            raise ValueError("an operand is a buffer")
        if any(each.shape != result.shape for each in types):
            shape = broadcast_shapes(*[each.shape for each in types])
            if shape is None:
                raise ValueError(f"shapes {[each.shape for each in types]} do not broadcast")
            if result.shape != shape:
                raise ValueError(f"the result is {result}, but the operands' shape is {shape}")
        if result.dtype != self.result_dtype():
            raise ValueError(f"the result is {result} instead of {self.result_dtype()}")

    def like_result(self, value: Value) -> Sequence[Value] | None:
        """`value` as a fold result, where its type is the result's."""
        return [value] if value.type == self.results[0].type else None


class BinaryOp(Elementwise):
    """Base of the two-operand operations of one element type."""

    lhs = operand(ScalarType, TensorType)
    rhs = operand(ScalarType, TensorType)
    out = result(ScalarType, TensorType)
    commutes: ClassVar[bool] = False
    domain: ClassVar[tuple[str, ...]] = ("int", "uint", "float")
    compute: ClassVar[Callable[..., Any]]  # the operation on two Python numbers

    def infer(self) -> Sequence[Type]:
        type = self.operands[0].type
        return (type,) if self.operands[1].type is type else super().infer()

    def verify(self) -> None:
        super().verify()
        lhs, rhs = self.operands[0].type.dtype, self.operands[1].type.dtype
        if lhs != rhs:
            raise ValueError(f"the operands are {lhs} and {rhs}")
        if lhs not in ELEMENTS or ELEMENTS[lhs].kind not in self.domain:
            raise ValueError(f"not defined for {lhs}")

    def fold(self) -> Sequence[Value | Number] | None:
        lhs, rhs = self.operands
        a, b = constant_of(lhs), constant_of(rhs)
        if a is None and b is None and lhs is not rhs:
            return None
        dtype = lhs.type.dtype
        if a is not None and b is not None and (not is_float(dtype) or dtype in ("float32", "float64")):
            try:
                number = self.compute(rounded(a, dtype), rounded(b, dtype))
            except (ZeroDivisionError, OverflowError, ValueError):
                # A division of integers by 0: any number will do, and Triton would divide in Python.
                return None if is_float(dtype) else [0]
            return [rounded(as_constant(number, self.out.dtype), self.out.dtype)]
        return self.simplify(a, b)

    def simplify(self, a: Number | None, b: Number | None) -> Sequence[Value | Number] | None:
        """Identities with one constant operand, or one value as both."""
        return None


# Bits of the significand and the exponent of the least normal number.
FLOAT_FORMATS = {
    "float16": (11, -14), "bfloat16": (8, -126), "float32": (24, -126), "float8_e4m3fn": (4, -6),
    "float8_e5m2": (3, -14), "float8_e4m3fnuz": (4, -7), "float8_e5m2fnuz": (3, -15),
}  # fmt: skip


def rounded(number: Number, dtype: str) -> Number:
    """A number as `dtype` holds it: floats rounded to the nearest, ties to even."""
    if dtype not in FLOAT_FORMATS or not number or number != number:
        return 0.0 if dtype.endswith("fnuz") and number == 0 else number  # they have no -0
    nearest = float(number)
    if math.isfinite(nearest):
        bits, lowest = FLOAT_FORMATS[dtype]
        step = math.ldexp(1.0, max(math.frexp(nearest)[1] - 1, lowest) - bits + 1)
        nearest = math.copysign(round(abs(nearest) / step) * step, nearest)
    if abs(nearest) > ELEMENTS[dtype].high:
        return math.nan if dtype.startswith("float8") and dtype != "float8_e5m2" else math.copysign(math.inf, number)
    return 0.0 if dtype.endswith("fnuz") and nearest == 0 else nearest


class AddOp(BinaryOp):
    """Example: `%c = arith.add %a, %b : int32`"""

    name = "arith.add"
    commutes = True
    compute = operator.add

    def simplify(self, a: Number | None, b: Number | None) -> Sequence[Value | Number] | None:
        if is_float(self.out.dtype):
            return None
        return self.like_result(self.lhs) if b == 0 else self.like_result(self.rhs) if a == 0 else None


class SubOp(BinaryOp):
    """Example: `%c = arith.sub %a, %b : int32`"""

    name = "arith.sub"
    compute = operator.sub

    def simplify(self, a: Number | None, b: Number | None) -> Sequence[Value | Number] | None:
        if is_float(self.out.dtype):
            return None
        if self.lhs is self.rhs:
            return [0]
        return self.like_result(self.lhs) if b == 0 else None


class MulOp(BinaryOp):
    """Example: `%c = arith.mul %a, %b : float32`"""

    name = "arith.mul"
    commutes = True
    compute = operator.mul

    def simplify(self, a: Number | None, b: Number | None) -> Sequence[Value | Number] | None:
        if b == 1:
            return self.like_result(self.lhs)
        if a == 1:
            return self.like_result(self.rhs)
        return [0] if not is_float(self.out.dtype) and (a == 0 or b == 0) else None


class DivOp(BinaryOp):
    """Division of floats. Example: `%c = arith.div %a, %b : float32`"""

    name = "arith.div"
    domain = ("float",)

    @staticmethod
    def compute(a: Any, b: Any) -> Any:
        if b == 0:  # as IEEE 754 has it
            return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
        return a / b

    def simplify(self, a: Number | None, b: Number | None) -> Sequence[Value | Number] | None:
        return self.like_result(self.lhs) if b == 1 else None


class _DivisionOp(BinaryOp):
    domain = ("int", "uint")

    def simplify(self, a: Number | None, b: Number | None) -> Sequence[Value | Number] | None:
        if b == 1:
            return self.like_result(self.lhs)
        return [0] if a == 0 and b is not None and b != 0 else None


class _RemainderOp(BinaryOp):
    domain = ("int", "uint")

    def simplify(self, a: Number | None, b: Number | None) -> Sequence[Value | Number] | None:
        return [0] if b == 1 or (a == 0 and b is not None and b != 0) else None


class FloorDivOp(_DivisionOp):
    """Rounds towards minus infinity. Example: `%c = arith.floordiv %a, %b : int32`"""

    name = "arith.floordiv"
    compute = operator.floordiv


class CeilDivOp(_DivisionOp):
    """Rounds towards plus infinity; of the host. Example: `%c = arith.ceildiv %a, %b : int32`"""

    name = "arith.ceildiv"

    @staticmethod
    def compute(a: Any, b: Any) -> Any:
        return -(-a // b)


class FloorModOp(_RemainderOp):
    """Has the sign of the divisor. Example: `%c = arith.floormod %a, %b : int32`"""

    name = "arith.floormod"
    compute = operator.mod


class TruncDivOp(_DivisionOp):
    """Rounds towards zero. Example: `%c = arith.truncdiv %a, %b : int32`"""

    name = "arith.truncdiv"

    @staticmethod
    def compute(a: Any, b: Any) -> Any:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


class TruncModOp(_RemainderOp):
    """Has the sign of the dividend. Example: `%c = arith.truncmod %a, %b : int32`"""

    name = "arith.truncmod"

    @staticmethod
    def compute(a: Any, b: Any) -> Any:
        return abs(a) % abs(b) * (1 if a >= 0 else -1)


DIVISIONS = (FloorDivOp, CeilDivOp, FloorModOp, TruncDivOp, TruncModOp)  # of integers, which fail for a divisor of 0


class _ExtremumOp(BinaryOp):
    commutes = True
    domain = ("int", "uint", "float", "bool")

    def simplify(self, a: Number | None, b: Number | None) -> Sequence[Value | Number] | None:
        return self.like_result(self.lhs) if self.lhs is self.rhs else None


class MaxOp(_ExtremumOp):
    """A NaN operand is dropped, as fmax does. Example: `%c = arith.max %a, %b : float32`"""

    name = "arith.max"

    @staticmethod
    def compute(a: Any, b: Any) -> Any:
        return b if a != a else a if b != b else max(a, b)


class MinOp(_ExtremumOp):
    """A NaN operand is dropped, as fmin does. Example: `%c = arith.min %a, %b : float32`"""

    name = "arith.min"

    @staticmethod
    def compute(a: Any, b: Any) -> Any:
        return b if a != a else a if b != b else min(a, b)


class _BitOp(BinaryOp):
    domain = ("int", "uint", "bool")


class AndOp(_BitOp):
    """Bitwise; on bool, logical. Example: `%c = arith.and %a, %b : bool`"""

    name = "arith.and"
    commutes = True
    compute = operator.and_

    def simplify(self, a: Number | None, b: Number | None) -> Sequence[Value | Number] | None:
        if self.lhs is self.rhs:
            return self.like_result(self.lhs)
        if self.out.dtype == "bool":
            if a is False or b is False:
                return [False]
            return self.like_result(self.rhs) if a is True else self.like_result(self.lhs) if b is True else None
        return [0] if a == 0 or b == 0 else None


class OrOp(_BitOp):
    """Bitwise; on bool, logical. Example: `%c = arith.or %a, %b : bool`"""

    name = "arith.or"
    commutes = True
    compute = operator.or_

    def simplify(self, a: Number | None, b: Number | None) -> Sequence[Value | Number] | None:
        if self.lhs is self.rhs:
            return self.like_result(self.lhs)
        if self.out.dtype == "bool" and (a is True or b is True):
            return [True]
        zero_a, zero_b = a is not None and a == 0, b is not None and b == 0
        return self.like_result(self.rhs) if zero_a else self.like_result(self.lhs) if zero_b else None


class XorOp(_BitOp):
    """Bitwise; on bool, logical. Example: `%c = arith.xor %a, %b : int32`"""

    name = "arith.xor"
    commutes = True
    compute = operator.xor


class ShlOp(BinaryOp):
    """Example: `%c = arith.shl %a, %b : int32`"""

    name = "arith.shl"
    domain = ("int", "uint")

    @staticmethod
    def compute(a: Any, b: Any) -> Any:
        return a << b if 0 <= b < 64 else 0


class ShrOp(BinaryOp):
    """Arithmetic for signed, logical for unsigned. Example: `%c = arith.shr %a, %b : int32`"""

    name = "arith.shr"
    domain = ("int", "uint")

    @staticmethod
    def compute(a: Any, b: Any) -> Any:
        return a >> (b if 0 <= b < 64 else 64)


PREDICATES: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}  # for operands that change places
INVERTED = {"eq": "ne", "ne": "eq", "lt": "ge", "gt": "le", "le": "gt", "ge": "lt"}  # what holds where one does not


class CmpOp(Elementwise):
    """A comparison; false where an operand is NaN, but for ne. Predicates: eq, ne, lt, le, gt, ge.

    Example: `%c = arith.cmp %a, %b {predicate = "lt"} : bool`
    """

    name = "arith.cmp"
    lhs = operand(ScalarType, TensorType)
    rhs = operand(ScalarType, TensorType)
    predicate = attr(str, known=PREDICATES)
    out = result(ScalarType, TensorType)

    def result_dtype(self) -> str:
        return "bool"

    def verify(self) -> None:
        super().verify()
        if self.lhs.dtype != self.rhs.dtype:
            raise ValueError(f"the operands are {self.lhs.dtype} and {self.rhs.dtype}")

    def fold(self) -> Sequence[Value | Number] | None:
        a, b = constant_of(self.lhs), constant_of(self.rhs)
        if a is not None and b is not None:
            return [PREDICATES[self.predicate](rounded(a, self.lhs.dtype), rounded(b, self.lhs.dtype))]
        if self.lhs is self.rhs and not is_float(self.lhs.dtype):
            return [self.predicate in ("eq", "le", "ge")]
        return None


class SelectOp(Elementwise):
    """`condition ? on_true : on_false`, each element. Both sides are evaluated.

    Example: `%x = arith.select %c, %a, %b : float32`
    """

    name = "arith.select"
    condition = operand(ScalarType, TensorType)
    on_true = operand(ScalarType, TensorType)
    on_false = operand(ScalarType, TensorType)
    out = result(ScalarType, TensorType)

    def result_dtype(self) -> str:
        return self.operands[1].dtype

    def verify(self) -> None:
        super().verify()
        if self.condition.dtype != "bool" or self.on_true.dtype != self.on_false.dtype:
            raise ValueError(f"is given {self.condition.dtype}, {self.on_true.dtype} and {self.on_false.dtype}")

    def fold(self) -> Sequence[Value | Number] | None:
        condition = constant_of(self.condition)
        if self.on_true is self.on_false:
            return self.like_result(self.on_true)
        if condition is None:
            a, b = constant_of(self.on_true), constant_of(self.on_false)
            same = a is not None and b is not None and repr(a) == repr(b)
            return [a] if same and a is not None else None
        chosen = self.on_true if condition else self.on_false
        number = constant_of(chosen)
        return self.like_result(chosen) or (None if number is None else [number])


class CastOp(Elementwise):
    """Conversion by value. To integers it truncates; to bool it is `!= 0`; floats round to nearest even.

    Example: `%y = arith.cast %x : float16`
    """

    name = "arith.cast"
    source = operand(ScalarType, TensorType)
    out = result(ScalarType, TensorType)

    def result_dtype(self) -> str:
        return self.out.dtype

    def fold(self) -> Sequence[Value | Number] | None:
        source, to = self.source.dtype, self.out.dtype
        if source == to:
            return self.like_result(self.source)
        number = constant_of(self.source)
        if number is not None:
            number = rounded(number, source)
            exact = is_float(to) and (number != number or number in (math.inf, -math.inf, 0, 1, -1, 2, 0.5))
            if exact and ELEMENTS[to].bits > 8:
                return [float(number)]
            info = ELEMENTS[to]  # a float outside of an integer type's range has no defined value there
            if to in ("float32", "float64") or to == "bool" and number == number:
                return [rounded(as_constant(number, to), to)]
            if not is_float(to) and (not is_float(source) or info.low <= number <= info.high):
                return [as_constant(number, to)]
        return None


class BitcastOp(Elementwise):
    """The same bits as another element type of the same width. Example: `%y = arith.bitcast %x : int32`"""

    name = "arith.bitcast"
    source = operand(ScalarType, TensorType)
    out = result(ScalarType, TensorType)

    def result_dtype(self) -> str:
        return self.out.dtype

    def fold(self) -> Sequence[Value | Number] | None:
        return self.like_result(self.source) if self.source.dtype == self.out.dtype else None

    def verify(self) -> None:
        super().verify()
        if ELEMENTS[self.source.dtype].bits != ELEMENTS[self.out.dtype].bits:
            raise ValueError(f"{self.source.dtype} and {self.out.dtype} differ in width")


class FieldOp(Elementwise):
    """A field of an unsigned integer beside other bits: ((source >> shift) & mask) | bits, as a type of 16 bits.

    With the bits of 1024.0 (0x6400), a float16 is 1024 plus the field, if that has 10 bits at most: what a conversion
    of many small integers takes but one operation for each pair of them.

    Example: `%y = arith.field %w {shift = 8, mask = 15, bits = 25600} : float16`
    """

    name = "arith.field"
    source = operand(ScalarType, TensorType)
    shift = attr(int)
    mask = attr(int)
    bits = attr(int)
    out = result(ScalarType, TensorType)

    def result_dtype(self) -> str:
        return self.out.dtype

    def verify(self) -> None:
        super().verify()
        source, out = ELEMENTS[self.source.dtype], ELEMENTS[self.out.dtype]
        if source.kind != "uint" or source.bits not in (8, 16) or out.bits != 16:
            raise ValueError(f"a field of {self.source.dtype} as {self.out.dtype}")
        if self.mask & self.bits or not (self.shift >= 0 <= self.bits < 1 << 16):
            raise ValueError(f"bits {self.bits:#x} do not lie beside a field of mask {self.mask:#x}")
        if not 0 < self.mask << self.shift < 1 << source.bits:
            raise ValueError(f"{self.source.dtype} has no field of mask {self.mask:#x} from bit {self.shift} on")


class NegOp(Elementwise):
    """Example: `%y = arith.neg %x : float32`"""

    name = "arith.neg"
    source = operand(ScalarType, TensorType)
    out = result(ScalarType, TensorType)

    def fold(self) -> Sequence[Value | Number] | None:
        number = constant_of(self.source)
        return None if number is None else [as_constant(-number, self.out.dtype)]


class NotOp(Elementwise):
    """Bitwise complement; on bool, logical not. Example: `%y = arith.not %x : bool`"""

    name = "arith.not"
    source = operand(ScalarType, TensorType)
    out = result(ScalarType, TensorType)

    def fold(self) -> Sequence[Value | Number] | None:
        number = constant_of(self.source)
        if number is not None:
            return [not number if self.out.dtype == "bool" else as_constant(~int(number), self.out.dtype)]
        inner = self.source.op
        return self.like_result(inner.source) if isinstance(inner, NotOp) else None


_TESTS = frozenset(names("test"))


class MathOp(Elementwise):
    """A named function of math_functions.py, elementwise. isnan, isinf and isfinite give bool.

    `round` rounds halves away from zero, `rint` and `nearbyint` to even. clamp(x, low, high).

    Example: `%y = arith.math [%x] {function = "exp2"} : float32`
    """

    name = "arith.math"
    arguments = operands(ScalarType, TensorType)
    function = attr(str)
    out = result(ScalarType, TensorType)

    def result_dtype(self) -> str:
        return "bool" if self.attributes["function"] in _TESTS else self.operands[0].dtype

    def verify(self) -> None:
        super().verify()
        known = MATH_FUNCTIONS.get(self.function)
        if known is None or known.arity != len(self.operands):
            raise ValueError(f"no function {self.function!r} of {len(self.operands)} arguments")

    def fold(self) -> Sequence[Value | Number] | None:
        number = constant_of(self.operands[0])
        dtype = self.out.dtype
        if number is None or dtype not in ("float32", "float64") or len(self.operands) != 1:
            return None
        known = MATH_FUNCTIONS[self.function]
        if not known.folds or known.host is None:
            return None
        try:
            return [rounded(float(known.host(rounded(number, dtype))), dtype)]
        except (ValueError, OverflowError, ZeroDivisionError):
            return None
