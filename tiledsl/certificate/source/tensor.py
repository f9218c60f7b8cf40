"""Values in emitted kernels: tensors and scalars of Triton's types, with its rules for operands of different types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tiledsl.certificate.algebra import COMPARE, Algebra, ExecutorError, scalar
from tiledsl.certificate.executor.machine import Memory
from tiledsl.ir.types import ELEMENTS, is_float


class Tensor:
    """A block of elements, or a scalar. For the dtype "*float16", `array` has offsets into `memory`, in elements."""

    __array_ufunc__ = None

    def __init__(self, algebra: Algebra, array: Any, dtype: str, memory: Memory | None = None) -> None:
        self.algebra, self.array, self.element, self.memory = algebra, scalar(array), dtype, memory

    def __repr__(self) -> str:
        return f"<{self.element}{list(self.shape)}>"

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.array)

    @property
    def dtype(self) -> DType:
        return DType(self.element)

    def like(self, array: Any) -> Tensor:
        return Tensor(self.algebra, array, self.element, self.memory)

    def to(self, dtype: DType, bitcast: bool = False) -> Tensor:
        if self.element == dtype.name:
            return self
        if bitcast:
            return Tensor(self.algebra, self.algebra.bitcast(self.element, dtype.name)(self.array), dtype.name)
        if dtype.name == "bool" and self.element != "bool":
            zero = self.algebra.constant(0, self.element)
            return Tensor(self.algebra, self.algebra.compare("ne", self.element)(self.array, zero), "bool")
        return Tensor(self.algebra, self.algebra.cast(self.element, dtype.name)(self.array), dtype.name)

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        return self.like(np.broadcast_to(self.array, tuple(shape)))

    def __getitem__(self, places: Any) -> Tensor:
        places = places if isinstance(places, tuple) else (places,)
        if any(place is not None and place != slice(None) for place in places):
            raise ExecutorError(f"a subscript {places}")
        array = self.array if isinstance(self.array, np.ndarray) else np.broadcast_to(self.array, ())
        return self.like(array[places])

    def __bool__(self) -> bool:
        if self.shape:
            raise ExecutorError("a block decides where to go")
        return bool(self.array)

    def __index__(self) -> int:
        if self.shape or is_float(self.element):
            raise ExecutorError(f"{self!r} is taken for an integer")
        return int(self.array)

    def __add__(self, other: Any) -> Tensor:
        if self.memory is not None:
            offset = lift(self.algebra, other)
            if is_float(offset.element) or offset.memory is not None:
                raise ExecutorError(f"a pointer is moved by {offset!r}")
            return Tensor(self.algebra, self.array + offset.array.astype(np.int64), self.element, self.memory)
        if isinstance(other, Tensor) and other.memory is not None:
            return other + self
        return operate("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return self + other if self.memory is not None else operate("add", other, self)

    def __neg__(self) -> Tensor:
        return self.like(self.algebra.negate(self.element)(self.array))

    def __invert__(self) -> Tensor:
        if is_float(self.element):
            raise ExecutorError(f"~ of {self!r}")
        return self.like(np.invert(self.array))

    __hash__ = None  # type: ignore[assignment]


def _operator(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return lambda self, other: operate(name, self, other), lambda self, other: operate(name, other, self)


for _name, _method in {
    "sub": "sub", "mul": "mul", "div": "truediv", "truncdiv": "floordiv", "truncmod": "mod", "and": "and", "or": "or",
    "xor": "xor", "shl": "lshift", "shr": "rshift",
}.items():  # fmt: skip
    _forward, _backward = _operator(_name)
    setattr(Tensor, f"__{_method}__", _forward)
    setattr(Tensor, f"__r{_method}__", _backward)
for _name in COMPARE:
    setattr(Tensor, f"__{_name}__", _operator(_name)[0])


class DType:
    """An element type, as `tl.float16` names it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DType) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def lift(algebra: Algebra, value: Any, beside: str | None = None) -> Tensor:
    """A Python number as a scalar: of the type beside it, if that is of its kind or a wider one."""
    if isinstance(value, Tensor):
        return value
    kinds = {"bool": 0, "int": 1, "uint": 1, "float": 2}
    if isinstance(value, bool):
        dtype, kind = "bool", 0
    elif isinstance(value, int):
        kind = 1
        fits = [name for name in ("int32", "uint32", "int64", "uint64") if _holds(name, value)]
        if not fits:
            raise ExecutorError(f"no integer type holds {value}")
        dtype = fits[0]
    elif isinstance(value, float):
        dtype, kind = "float32", 2
    else:
        raise ExecutorError(f"{value!r} is no operand")
    if beside is not None and not beside.startswith("*") and kinds[ELEMENTS[beside].kind] >= kind:
        if kind == 1 and not is_float(beside) and not _holds(beside, value):
            raise ExecutorError(f"{value} does not fit in {beside}")
        dtype = beside
    return Tensor(algebra, algebra.constant(value, dtype), dtype)


def _holds(dtype: str, value: int) -> bool:
    info = ELEMENTS[dtype]
    return info.kind != "bool" and int(info.low) <= value <= int(info.high)


def common(a: str, b: str, divides: bool = False) -> str:
    """The type in which Triton computes with operands of two types."""
    for wide in ("float64", "float32"):
        if wide in (a, b):
            return wide
    for half in ("float16", "bfloat16"):
        if half in (a, b):
            if divides:
                return "float32"
            if half == "bfloat16" or {a, b} != {"float16", "bfloat16"}:
                return half if half == "float16" or a == b or not (is_float(a) and is_float(b)) else "float32"
            return "float16"
    if is_float(a) and is_float(b):
        return a if a == b else "float16"
    if is_float(a) or is_float(b):
        return a if is_float(a) else b
    if a == b:
        return a
    kinds, bits = (ELEMENTS[a].kind, ELEMENTS[b].kind), (ELEMENTS[a].bits, ELEMENTS[b].bits)
    if "bool" in (a, b):
        return b if a == "bool" else a
    if kinds[0] == kinds[1]:
        return a if bits[0] > bits[1] else b
    if divides:
        raise ExecutorError(f"{a} is divided by {b}")
    unsigned, signed = (a, b) if kinds[0] == "uint" else (b, a)
    return unsigned if ELEMENTS[unsigned].bits >= ELEMENTS[signed].bits else signed


def operands(a: Any, b: Any, divides: bool = False) -> tuple[Tensor, Tensor]:
    """Two operands in the type in which Triton computes with them."""
    algebra = a.algebra if isinstance(a, Tensor) else b.algebra
    x = lift(algebra, a, b.element if isinstance(b, Tensor) else None)
    y = lift(algebra, b, a.element if isinstance(a, Tensor) else None)
    dtype = DType(common(x.element, y.element, divides))
    return x.to(dtype), y.to(dtype)


def operate(name: str, a: Any, b: Any) -> Tensor:
    """A binary operator."""
    x, y = operands(a, b, name in ("div", "truncdiv", "truncmod"))
    if name == "div" and not is_float(x.element):
        x, y = x.to(DType("float32")), y.to(DType("float32"))
    spread([x, y])
    if name in COMPARE:
        return Tensor(x.algebra, x.algebra.compare(name, x.element)(x.array, y.array), "bool")
    if is_float(x.element) and name in ("truncdiv", "truncmod", "and", "or", "xor", "shl", "shr"):
        raise ExecutorError(f"{name} of {x!r} and {y!r}")
    if x.element == "bool" and name not in ("and", "or", "xor"):
        raise ExecutorError(f"{name} of {x!r} and {y!r}")
    return x.like(x.algebra.binary(name, x.element)(x.array, y.array))


def spread(values: Sequence[Tensor]) -> tuple[int, ...]:
    """The common shape of what is taken element by element; ranks must be equal, but for scalars, which fit all."""
    shape = np.broadcast_shapes(*(each.shape for each in values))
    if any(each.shape and len(each.shape) != len(shape) for each in values):
        raise ExecutorError(f"operands of different ranks: {values}")
    return shape
