"""Element types as users name them: `T.float16`, 'float16', torch.float16 and numpy.float16 are the same."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from tiledsl.errors import TileError, meant
from tiledsl.ir.types import ELEMENTS, ElementInfo
from tiledsl.language.refused import refusal

ALIASES = {
    "float": "float32", "half": "float16", "double": "float64", "int": "int32", "long": "int64", "short": "int16",
    "char": "int8", "uint": "uint32", "boolean": "bool", "float8_e4m3": "float8_e4m3fn", "e4m3_float8": "float8_e4m3fn",
    "e5m2_float8": "float8_e5m2", "tfloat32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16",
    "fp32": "float32", "fp64": "float64", "int1": "bool",
}  # fmt: skip


class DType(str):
    """An element type: a string with its name, callable as a cast of a scalar or number (`T.float32(x)`).

    `bits` and `itemsize` (bytes) are its width, `is_float()` its kind, `as_torch()` torch's type. Raises TileError for
    a name that is none, and for several values.

    `name` is the same as a plain string, which the types of the IR have: to compare a DType takes much longer.

    Example:
        # X = [1.75, -2.5]
        for i in T.Parallel(2):
            Y[i] = T.int32(X[i])
        # Y = [1, -2]
    """

    __slots__ = ("info", "name")
    info: ElementInfo
    name: str

    def __new__(cls, dtype: Any) -> DType:
        found = DTYPES.get(dtype) if type(dtype) is str else None
        return canonical(dtype) if found is None else found

    @property
    def bits(self) -> int:
        return self.info.bits

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return self.info.bits // 8

    bytes = itemsize

    def as_torch(self) -> Any:
        """The torch.dtype; of float4_e2m1fn that of the bytes, which have two elements each."""
        import torch

        return torch.uint8 if self is FLOAT4 else getattr(torch, str(self))

    def is_float(self) -> bool:
        return self.info.kind == "float"

    def __call__(self, *values: Any) -> Any:
        """The value converted to this type: an expression in a kernel, a number outside.

        Without a value a new variable: in a kernel one to assign to, outside a dynamic dimension.
        """
        if len(values) > 1:
            raise TileError(f"T.{self!s} takes one value; Triton has no vectors of {len(values)} elements")
        if _calls is None:
            importlib.import_module("tiledsl.language.names")
        assert _calls is not None
        return _calls(self, *values)

    def __reduce__(self) -> tuple[Any, ...]:
        return (of_elements, (str(self),))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, ALIASES.get(other, other))
        text = str(other)
        return text.startswith("torch.") and str.__eq__(self, text[6:])

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __repr__(self) -> str:
        return f"T.{self!s}"


def _table() -> dict[str, DType]:
    table = {name: str.__new__(DType, name) for name in ELEMENTS}
    for name, dtype in table.items():
        dtype.name, dtype.info = name, ELEMENTS[name]
    return table


DTYPES = _table()
FLOAT4 = str.__new__(DType, "float4_e2m1fn")  # which tensors and tiles have, but no value: language/float4.py
FLOAT4.name, FLOAT4.info = "float4_e2m1fn", ElementInfo("float", 4, -6.0, 6.0)
_calls: Callable[..., Any] | None = None


def on_call(function: Callable[..., Any]) -> None:
    """What calling an element type does, with the type and the value, if there is one: the expressions that it makes
    are built on element types."""
    global _calls
    _calls = function


def of_elements(dtype: Any) -> DType:
    """The element type of a tensor or tile: `canonical`'s, or float4_e2m1fn. Raises TileError."""
    return FLOAT4 if is_float4_e2m1fn(dtype) else canonical(dtype)


def canonical(dtype: Any) -> DType:
    """The element type that a name, DType, torch.dtype, numpy dtype or Python type stands for. Raises TileError.

    Example:
        assert T.type_annotation(torch.float16) is T.type_annotation("half") is T.float16
    """
    if isinstance(dtype, DType) and dtype is not FLOAT4:
        return dtype
    if type(dtype) is str and dtype in DTYPES:
        return DTYPES[dtype]
    if isinstance(dtype, str):
        name = dtype
    elif dtype in (float, int, bool):
        name = {float: "float32", int: "int32", bool: "bool"}[dtype]
    else:
        name = getattr(dtype, "name", None) or str(dtype)
    name = name.removeprefix("torch.")
    name = ALIASES.get(name, name)
    if name in DTYPES:
        return DTYPES[name]
    if name == FLOAT4.name:
        raise TileError(f"{name} is a type of tensors and tiles; a value of it is a float16")
    if dtype is None:
        raise TileError("an element type is None; was a tunable left None?")
    why = refusal(name) if re.fullmatch(r"(t|b)?float\d.*|u?int\d.*|boolx\d+", name) else ""
    if why:
        raise TileError(f"{name}: {why}", code="element-type")
    raise TileError(f"{dtype!r} is not an element type; {meant(name, DTYPES)}", code="element-type")


def _named(dtype: Any) -> str:
    return ALIASES.get(str(dtype), str(dtype)).removeprefix("torch.")


def is_float4_e2m1fn(dtype: Any) -> bool:
    """Whether `dtype`, an element type as a string or a type of T or torch, is float4_e2m1fn. No TileError.

    Example:
        assert T.is_float4_e2m1fn("float4_e2m1fn") and not T.is_float4_e2m1fn("float8_e5m2")
    """
    return _named(dtype) in ("float4_e2m1fn", "float4_e2m1fn_x2")


def is_float4_e2m1_unpacked(dtype: Any) -> bool:
    """Whether `dtype`, an element type as a string or a type of T, is float4 in a byte of its own. No TileError.

    Example:
        assert T.is_float4_e2m1_unpacked("float4_e2m1_unpacked") and not T.is_float4_e2m1_unpacked("float4_e2m1fn")
    """
    return _named(dtype) == "float4_e2m1_unpacked"


def is_float4(dtype: Any) -> bool:
    """Whether `dtype`, an element type as a string or a type of T or torch, is a float of 4 bits. No TileError.

    Example:
        assert T.is_float4("float4_e2m1fn") and not T.is_float4("float8_e5m2")
    """
    return is_float4_e2m1fn(dtype) or is_float4_e2m1_unpacked(dtype)


def is_f8f6f4_family(dtype: Any) -> bool:
    """Whether `dtype`, an element type as a string or a type of T or torch, is a float of 8, 6 or 4 bits.

    Example:
        assert T.is_f8f6f4_family("float8_e5m2") and not T.is_f8f6f4_family("float16")
    """
    return _named(dtype).startswith(("float8_e4m3", "float8_e5m2", "float6_", "float4_"))
