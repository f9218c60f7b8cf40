"""Patterns of legalize-arith for small integers in tiles that become 16-bit floats, such as weights of four bits.

A conversion from integers runs on few units of a GPU, one element at a time. A field of an integer beside the bits of a
power of two is a float already: that number plus the field. To make it takes one logical operation for two elements,
and to subtract the power of two, exactly, another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dialects import arith
from tiledsl.dialects.arith import CastOp, constant_of
from tiledsl.ir.core import Value
from tiledsl.ir.rewrite import Rewriter, pattern
from tiledsl.ir.types import ELEMENTS, TensorType
from tiledsl.passes.tile_values import bitcast

_PLACES = {"float16": (0x6400, 10), "bfloat16": (0x4300, 7)}  # the bits of 2 ** 10 and 2 ** 7, and the logarithms


@dataclass(frozen=True)
class _Field:
    """(source >> shift) & mask, which lies inside of the source's bits."""

    source: Value
    shift: int
    mask: int


def _field(value: Value) -> _Field | None:
    """What a tile of integers is a field of, if that is smaller than itself."""
    op, mask, shift = value.op, None, 0
    if isinstance(op, arith.AndOp):
        mask = constant_of(op.rhs)
        value = op.lhs
    if isinstance(value.op, arith.ShrOp):
        amount = constant_of(value.op.rhs)
        if type(amount) is not int:
            return None
        shift, value = amount, value.op.lhs
    while isinstance(value.op, CastOp) and ELEMENTS[value.op.source.dtype].kind == "uint":  # widened
        if ELEMENTS[value.op.source.dtype].bits > ELEMENTS[value.dtype].bits:
            return None
        value = value.op.source
    element = ELEMENTS[value.dtype]
    if element.bits not in (8, 16) or not 0 <= shift < element.bits:
        return None
    whole = (1 << (element.bits - shift)) - 1
    if mask is None and element.kind == "uint" and shift:
        mask = whole
    if type(mask) is not int or mask & ~whole or (mask + 1) & mask:
        return None
    return _Field(value, shift, mask)


@pattern(CastOp)
def convert_field(op: CastOp, rw: Rewriter) -> bool:
    # cast((w >> 4) & 15 : float16)  ==>  field(w) * 2 ** -4 - 2 ** 6, of field(w): bits (w & 240) | 0x6400
    place = _PLACES.get(op.out.dtype)
    if place is None or not isinstance(op.out.type, TensorType):
        return False
    found = _field(op.source)
    bits, room = place
    if found is None or found.mask.bit_length() > room:
        return False
    shift = next(each for each in (0, 8, found.shift) if 0 <= found.shift - each <= room - found.mask.bit_length())
    left = found.shift - shift  # stays: the field counts by 2 ** left
    source = bitcast(rw, found.source, f"uint{ELEMENTS[found.source.dtype].bits}")
    value = rw.insert(
        arith.FieldOp(source, shift=shift, mask=found.mask << left, bits=bits, result_types=[op.out.type])
    ).result
    if left:
        value = rw.insert(arith.MulOp(value, rw.constant(2.0**-left, value.type))).result
    rw.replace(op, [rw.insert(arith.SubOp(value, rw.constant(2.0 ** (room - left), value.type))).result])
    return True


@pattern(arith.SubOp, arith.AddOp)
def subtract_at_once(op: arith.BinaryOp, rw: Rewriter) -> bool:
    # field(w) * 2 ** -4 - 64 - 8  ==>  field(w) * 2 ** -4 - 72: integers below 2 ** 11, or 2 ** 8, are exact
    inner, number = op.lhs.op, constant_of(op.rhs)
    place = _PLACES.get(op.out.dtype)
    if place is None or number is None or not isinstance(inner, arith.SubOp) or not _is_field(inner.lhs):
        return False
    power, bias = constant_of(inner.rhs), number if isinstance(op, arith.SubOp) else -number
    if (
        power is None
        or not float(bias).is_integer()
        or not 0 < power + bias <= 2 ** (place[1] + 1)
        or abs(bias) > 2 ** place[1]
    ):
        return False
    rw.replace(op, [rw.insert(arith.SubOp(inner.lhs, rw.constant(float(power + bias), op.rhs.type))).result])
    return True


def _is_field(value: Value) -> bool:
    op = value.op
    if isinstance(op, arith.MulOp) and constant_of(op.rhs) is not None:
        op = op.lhs.op
    return isinstance(op, arith.FieldOp)


FIELD_PATTERNS = (convert_field, subtract_at_once)
