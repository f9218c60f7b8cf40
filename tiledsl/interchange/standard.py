"""Which operations and types of the IR are MLIR's own.

An operation claims the name of a standard one where MLIR's rules and meaning for that hold, by the reference of the
dialects arith and scf; where xDSL asks for more (scalars in comparisons, selections and most conversions), what it asks
for holds too. Integers of arith have no sign of their own, so those of unsigned types stay ours, as do operands that
broadcast. All that has no standard name is called as it is, with `tile.` in front where its dialect is one of MLIR's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tiledsl.dialects import arith, scf
from tiledsl.ir.core import Operation
from tiledsl.ir.types import ELEMENTS, BufferType, TensorType, Type

# Dialects of MLIR whose names ours share.
SHARED = ("arith", "scf", "tensor")
OURS = "tile."

ELEMENT_NAMES = {
    "bool": "i1",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"ui{bits}" for bits in (8, 16, 32, 64)},
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2",
    "float8_e4m3fnuz": "f8E4M3FNUZ", "float8_e5m2fnuz": "f8E5M2FNUZ",
}  # fmt: skip
ELEMENTS_NAMED = {name: dtype for dtype, name in ELEMENT_NAMES.items()}
FLOATS = ("float16", "bfloat16", "float32", "float64")  # whose arithmetic is that of arith


def kind_of(dtype: str) -> str:
    """What arith tells apart: "int" (signed, by us), "bool", "float" (16 bits and more), or "" for all others."""
    if dtype in FLOATS:
        return "float"
    kind = ELEMENTS[dtype].kind if dtype in ELEMENTS else ""
    return kind if kind in ("int", "bool") else ""


class Standard(NamedTuple):
    """A standard operation: what ours is called, and the kinds of the first operand's elements."""

    ours: str
    kinds: tuple[str, ...]
    attributes: Mapping[str, Any] = {}


_INT, _FLOAT, _BITS = ("int",), ("float",), ("int", "bool")
BINARY = {
    "arith.addi": Standard("arith.add", _INT), "arith.addf": Standard("arith.add", _FLOAT),
    "arith.subi": Standard("arith.sub", _INT), "arith.subf": Standard("arith.sub", _FLOAT),
    "arith.muli": Standard("arith.mul", _INT), "arith.mulf": Standard("arith.mul", _FLOAT),
    "arith.divf": Standard("arith.div", _FLOAT), "arith.floordivsi": Standard("arith.floordiv", _INT),
    "arith.divsi": Standard("arith.truncdiv", _INT), "arith.remsi": Standard("arith.truncmod", _INT),
    "arith.maxsi": Standard("arith.max", _INT), "arith.maxnumf": Standard("arith.max", _FLOAT),
    "arith.minsi": Standard("arith.min", _INT), "arith.minnumf": Standard("arith.min", _FLOAT),
    "arith.andi": Standard("arith.and", _BITS), "arith.ori": Standard("arith.or", _BITS),
    "arith.xori": Standard("arith.xor", _BITS),
    "arith.shli": Standard("arith.shl", _INT), "arith.shrsi": Standard("arith.shr", _INT),
    "arith.negf": Standard("arith.neg", _FLOAT),
}  # fmt: skip
# A comparison: its predicate, by the numbers that MLIR gives them. Of i1, whose true is -1 there, only two.
PREDICATES = {
    ("arith.cmpi", "int"): {0: "eq", 1: "ne", 2: "slt", 3: "sle", 4: "sgt", 5: "sge"},
    ("arith.cmpi", "bool"): {0: "eq", 1: "ne"},
    ("arith.cmpf", "float"): {1: "oeq", 2: "ogt", 3: "oge", 4: "olt", 5: "ole", 13: "une"},
}
# A conversion: kinds of source and result, and how their widths compare (-1: the result is narrower; None: any).
CASTS = {
    "arith.extsi": ("int", "int", 1), "arith.trunci": ("int", "int", -1), "arith.extui": ("bool", "int", None),
    "arith.extf": ("float", "float", 1), "arith.truncf": ("float", "float", -1),
    "arith.sitofp": ("int", "float", None), "arith.uitofp": ("bool", "float", None),
    "arith.fptosi": ("float", "int", None),
}  # fmt: skip
SAME_NAME = ("arith.constant", "arith.select", "arith.bitcast", "scf.for", "scf.if", "scf.while")
TERMINATORS = ("scf.yield", "scf.condition")
# What MLIR's tools add to these: promises about values, which nothing here needs, so they may be left out.
PROMISES = ("fastmath", "overflowFlags", "isExact", "nonNeg")

_BINARY_NAMES = {(row.ours, kind): name for name, row in BINARY.items() for kind in row.kinds}
STANDARD = {*BINARY, *CASTS, "arith.cmpi", "arith.cmpf", *SAME_NAME, *TERMINATORS}


def generic_name(op: Operation) -> str:
    """The name of an operation in the generic form."""
    own = standard_name(op)
    if own is not None:
        return own
    return OURS + op.name if op.name.partition(".")[0] in SHARED else op.name


def standard_name(op: Operation) -> str | None:
    """The name of the standard operation that this one is, if there is one."""
    if isinstance(op, (scf.YieldOp, scf.ConditionOp)):  # may stand in standard loops and branches only
        above = op.parent_op
        return op.name if above is not None and standard_name(above) is not None else None
    if isinstance(op, (scf.IfOp, scf.WhileOp)):
        return op.name
    if isinstance(op, scf.ForOp):
        step = arith.constant_of(op.step)  # which is positive there
        same = {value.type for value in (op.lower, op.upper, op.step, op.index)} == {op.index.type}
        return op.name if same and kind_of(op.index.dtype) == "int" and step is not None and step > 0 else None
    if isinstance(op, arith.ConstantOp):
        return op.name if _is_standard_constant(op) else None
    if not isinstance(op, arith.Elementwise) or any(value.shape != op.results[0].shape for value in op.operands):
        return None
    kind, scalar = kind_of(op.operands[0].dtype), not op.results[0].shape
    if isinstance(op, arith.SelectOp):
        return op.name if scalar else None
    if isinstance(op, arith.CmpOp):
        name = "arith.cmpf" if kind == "float" else "arith.cmpi"
        return name if scalar and predicate_number(name, kind, op.predicate) is not None else None
    if isinstance(op, arith.CastOp):
        conversion = cast_name(op.source.dtype, op.out.dtype)
        return conversion if scalar or conversion in ("arith.extf", "arith.truncf") else None
    if isinstance(op, arith.BitcastOp):
        return op.name if "" not in (kind, kind_of(op.out.dtype)) and "bool" not in (kind, op.out.dtype) else None
    if isinstance(op, (arith.ShlOp, arith.ShrOp)):  # ours have a meaning for known distances of the width and more
        distance = arith.constant_of(op.rhs)
        if distance is not None and not 0 <= distance < ELEMENTS[op.out.dtype].bits:
            return None
    return _BINARY_NAMES.get((op.name, kind))


def _is_standard_constant(op: arith.ConstantOp) -> bool:
    dtype, value = op.out.dtype, op.value
    kind = kind_of(dtype)
    if kind != "float" or not math.isfinite(value):
        return kind != ""
    return math.isfinite(arith.rounded(value, dtype))  # else no float of that type is near the number


def cast_name(source: str, out: str) -> str | None:
    """The standard conversion from an element type to another, if there is one."""
    widths = [1 if dtype == "bool" else ELEMENTS[dtype].bits if dtype in ELEMENTS else 0 for dtype in (source, out)]
    order = (widths[1] > widths[0]) - (widths[1] < widths[0])
    kinds = kind_of(source), kind_of(out)
    found = (name for name, (a, b, wanted) in CASTS.items() if (a, b) == kinds and wanted in (None, order))
    return next(found, None)


def predicate_number(name: str, kind: str, predicate: str) -> int | None:
    """MLIR's number of a predicate of ours: of ordered comparisons, but for "not equal"."""
    found = PREDICATES.get((name, kind), {})
    return next((number for number, theirs in found.items() if theirs[-2:] == predicate), None)


def type_text(type: Type) -> str:
    """A type as MLIR writes it. Buffers and pointers are opaque types of the dialect tile, with our text."""
    if isinstance(type, BufferType):
        return opaque(str(type))
    element = ELEMENT_NAMES.get(type.dtype) or opaque(type.dtype)
    return f"tensor<{'x'.join([*map(str, type.shape), element])}>" if isinstance(type, TensorType) else element


def opaque(text: str) -> str:
    return f"!{OURS}t<{quoted(text)}>"


def quoted(text: str) -> str:
    """A string of MLIR: bytes outside of printable ASCII as two hexadecimal digits."""
    encoded = text.encode("utf-8", "surrogatepass")
    plain = (chr(byte) if 31 < byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in encoded)
    return '"' + "".join(plain) + '"'
