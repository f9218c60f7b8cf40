"""Types of IR values, and the table of element types.

An element type is its name: 'float16', 'int32', 'bool', ...; '*float16' is a pointer to float16, as Triton writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any, ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class ElementInfo:
    """The properties of an element type: `kind` is float, int, uint or bool; `bits` is its width in memory."""

    kind: str
    bits: int
    low: float
    high: float


# Largest finite values: IEEE 754 for 16 to 64 bits; OCP 8-bit floating point specification; CDNA3 instruction set guide
# for the fnuz formats, which have no infinity, no -0 and one NaN.
_LARGEST = {
    ("float16", 16): 65504.0, ("bfloat16", 16): 3.3895313892515355e38, ("float32", 32): 3.4028234663852886e38,
    ("float64", 64): 1.7976931348623157e308, ("float8_e4m3fn", 8): 448.0, ("float8_e5m2", 8): 57344.0,
    ("float8_e4m3fnuz", 8): 240.0, ("float8_e5m2fnuz", 8): 57344.0,
}  # fmt: skip
ELEMENTS = {
    "bool": ElementInfo("bool", 8, 0, 1),
    **{f"int{bits}": ElementInfo("int", bits, -(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": ElementInfo("uint", bits, 0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    **{name: ElementInfo("float", bits, -high, high) for (name, bits), high in _LARGEST.items()},
}


def is_float(dtype: str) -> bool:
    return dtype in ELEMENTS and ELEMENTS[dtype].kind == "float"


def is_integer(dtype: str) -> bool:
    """Signed or unsigned; bool is not an integer here."""
    return dtype in ELEMENTS and ELEMENTS[dtype].kind in ("int", "uint")


class _Unique(type):
    """Metaclass: equal types are one object, so that comparing and hashing them is cheap."""

    _made: ClassVar[dict[tuple[object, ...], Any]] = {}

    @cache  # noqa: B019  (types are for ever)
    def __call__(cls, *fields: Any, **named: Any) -> Any:
        fresh = super().__call__(*fields, **named)
        return cls._made.setdefault(fresh.__reduce__(), fresh)


class _Type(metaclass=_Unique):
    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:  # copies and pickles lead to the one object too
        return type(self), tuple(map(self.__getattribute__, self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class ScalarType(_Type):
    """One element: `int32`."""

    dtype: str
    shape: ClassVar[tuple[int, ...]] = ()

    def __str__(self) -> str:
        return self.dtype


@dataclass(frozen=True, slots=True, eq=False)
class TensorType(_Type):
    """A tile in SSA form: `tensor<128x64xfloat16>`. Dimensions of 1 broadcast."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"


Dim: TypeAlias = "int | str"
Shape: TypeAlias = tuple[int, ...]  # of what is on chip


@dataclass(frozen=True, slots=True, eq=False)
class BufferType(_Type):
    """Memory: `buffer<128*64*float16, shared>`.

    A dimension is an int or the name of a symbol of the program. `scope` is global, shared, fragment or local.
    `strides` (in elements, outermost first) is None for a contiguous row-major buffer.
    """

    shape: tuple[Dim, ...]
    dtype: str
    scope: str
    strides: tuple[Dim, ...] | None = None

    def __str__(self) -> str:
        dims = "*".join([*map(str, self.shape), self.dtype])
        strides = "" if self.strides is None else f", strides({', '.join(map(str, self.strides))})"
        return f"buffer<{dims}, {self.scope}{strides}>"

    @property
    def is_static(self) -> bool:
        return str not in map(type, self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape of a buffer whose dimensions are all known."""
        assert self.is_static, f"{self} has a dynamic dimension"
        return self.shape  # type: ignore[return-value]

    def numel(self) -> int | None:
        """The number of elements, or None where a dimension is dynamic."""
        return prod(self.static_shape) if self.is_static else None


Type: TypeAlias = ScalarType | TensorType | BufferType

INT32 = ScalarType("int32")
BOOL = ScalarType("bool")


@lru_cache(maxsize=4096)
def with_shape(shape: tuple[int, ...], dtype: str) -> ScalarType | TensorType:
    """A scalar for the empty shape, a tensor otherwise."""
    return TensorType(shape, dtype) if shape else ScalarType(dtype)


@lru_cache(maxsize=4096)
def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The common shape under the IR's rule, or None.

    Scalars go with everything; tensors must have one rank, and each dimension be equal or 1.
    """
    result: tuple[int, ...] = ()
    for shape in filter(None, shapes):
        result = result or shape
        if len(shape) != len(result) or any(a != b and a != 1 and b != 1 for a, b in zip(shape, result, strict=True)):
            return None
        result = tuple(b if a == 1 else a for a, b in zip(shape, result, strict=True))
    return result
