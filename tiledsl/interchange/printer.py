"""Writes the generic form of MLIR."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tiledsl.dialects import arith
from tiledsl.interchange.standard import OURS, generic_name, kind_of, predicate_number, quoted, standard_name, type_text
from tiledsl.ir.fields import attr, operand
from tiledsl.ir.printer import Names, same_attribute
from tiledsl.ir.types import TensorType
from tiledsl.location import UNKNOWN

if TYPE_CHECKING:
    from tiledsl.ir.core import Operation, Value

_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}
_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}


class _AsciiNames(Names):
    """Names of MLIR: other characters, and a digit at the beginning, become `$` with their number and a dot."""

    def __missing__(self, value: Value) -> str:
        name = super().__missing__(value)[1:]
        if not re.fullmatch(r"[0-9]+", name):
            name = re.sub(r"^[0-9]|[^A-Za-z0-9_]", lambda found: f"${ord(found[0]):x}.", name)
        self[value] = "%" + name
        return self[value]


def print_generic(op: Operation, *, locations: bool = False) -> str:
    """The program in MLIR's generic form, which `tiledsl opt`, `tiledsl.resume` and other MLIR tools read."""
    return "\n".join(_lines(op, _AsciiNames(), "", locations))


def _lines(op: Operation, names: Names, indent: str, locations: bool) -> Iterator[str]:
    name = generic_name(op)
    results = ", ".join(names[value] for value in op.results)
    args = ", ".join(names[value] for value in op.operands)
    properties, attributes = _attributes(op)
    text = f'{indent}{results + " = " if results else ""}"{name}"({args})'
    text += f" <{{{', '.join(properties)}}}>" if properties else ""
    ins, outs = (", ".join(type_text(value.type) for value in values) for values in (op.operands, op.results))
    tail = (f" {{{', '.join(attributes)}}}" if attributes else "") + f" : ({ins}) -> ({outs})"
    loc = op.loc
    if locations and loc is not UNKNOWN:
        file = quoted(loc.file)
        tail += f" loc(fused[{file}:{loc.line}:{loc.column}, {file}:{loc.end_line}:{loc.end_column}])"
    for number, region in enumerate(op.regions):
        yield indent + "}, {" if number else text + " ({"
        block = ", ".join(f"{names[arg]} : {type_text(arg.type)}" for arg in region.args)
        if block:
            yield f"{indent}^bb0({block}):"
        for inner in region:
            yield from _lines(inner, names, indent + "  ", locations)
    yield (indent + "})" if op.regions else text) + tail


def _attributes(op: Operation) -> tuple[list[str], list[str]]:
    """The properties that a standard operation has, and all other attributes; without those that have their default."""
    standard = standard_name(op)
    left = {
        key: value
        for key, value in op.attributes.items()
        if not same_attribute(op.defaults.get(key, attr.REQUIRED), value)
    }
    if standard is None:
        shown = [f"{key} = {attribute_text(value)}" for key, value in left.items()]
        if sum(type(field) is not operand for field in op.operand_fields) > 1:
            shown.append(f"operandSegmentSizes = array<i32: {', '.join(map(str, op.segments))}>")
        return [], shown
    properties = []
    if isinstance(op, arith.ConstantOp):
        properties.append(f"value = {_constant(op, op.value)}")
        if arith.rounded(op.value, op.out.dtype) == op.value or op.value != op.value:
            del left["value"]  # else another tool would round the number, and the IR keeps it as written
    elif isinstance(op, arith.CmpOp):
        number = predicate_number(standard, kind_of(op.lhs.dtype), left.pop("predicate"))
        properties.append(f"predicate = {number} : i64")
    return properties, [f"{OURS}{key} = {attribute_text(value)}" for key, value in left.items()]


def _constant(op: arith.ConstantOp, value: Any) -> str:
    type, dtype = op.out.type, op.out.dtype
    if isinstance(value, float):
        number = _float(value, dtype)
    else:
        number = str(value).lower()
    if isinstance(type, TensorType):
        if number.startswith("0x"):  # as bytes, in which all tools agree: xDSL takes the number for a value
            number = f'"0x{bytes.fromhex(number[2:])[::-1].hex().upper()}"'
        return f"dense<{number}> : {type_text(type)}"
    return number if dtype == "bool" else f"{number} : {type_text(type)}"


def _float(value: float, dtype: str) -> str:
    """A float with a point; infinities and NaN as the bits of their type."""
    if math.isfinite(value):
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))
    bits = _INFINITY if math.isinf(value) else _NAN
    sign = int(value < 0) << struct.calcsize({"float16": "e", "bfloat16": "e", "float32": "f"}.get(dtype, "d")) * 8 - 1
    return f"0x{bits[dtype] | sign:X}"


def attribute_text(value: Any) -> str:
    """An attribute of ours: i64 (or wider), f64, strings, arrays; `unit` is None."""
    if value is None:
        return "unit"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(attribute_text, value)) + "]"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        width = 64
        while not -(1 << width - 1) <= value < 1 << width - 1:
            width *= 2
        return f"{value} : i{width}"
    if isinstance(value, float):
        return f"{_float(value, 'float64')} : f64"
    raise TypeError(f"{value!r} cannot be an attribute")
