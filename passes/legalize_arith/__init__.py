"""Arithmetic that Triton cannot express directly, in terms of what it can."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import BinaryOp, CastOp, MathOp, as_constant, constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder, Patterns, Rewriter, apply_patterns, pattern
from tiledsl.ir.types import ELEMENTS, ScalarType, is_float, with_shape
from tiledsl.legality import verdict
from tiledsl.math_functions import MATH_FUNCTIONS
from tiledsl.passes.legalize_arith.compare_and_swap import unmask_cas
from tiledsl.passes.legalize_arith.dtypes import cast, check_legal, dtype_patterns
from tiledsl.passes.legalize_arith.fields import FIELD_PATTERNS


def _scalar(builder: Builder, number: bool | int | float, like: Value) -> Value:
    return builder.constant(as_constant(number, like.dtype), ScalarType(like.dtype))


def _made(builder: Builder, op: type[Operation], *operands: Value | Sequence[Value], **attributes: Any) -> Value:
    return builder.insert(op(*operands, **attributes)).result


@pattern(arith.FloorDivOp, arith.FloorModOp)
def truncate_division(op: BinaryOp, rw: Rewriter) -> bool:
    # x // y  ==>  truncdiv(x, y) where neither is negative, else with a correction
    # by Triton's operators, which round towards zero
    ranges: Ranges = rw.analysis
    divides = isinstance(op, arith.FloorDivOp)
    make: type[BinaryOp] = arith.TruncDivOp if divides else arith.TruncModOp
    unsigned = ELEMENTS[op.out.dtype].kind == "uint"
    divisor = ranges.of(op.rhs)
    if unsigned or (divisor.lo >= 0 and ranges.is_nonnegative(op.lhs)):
        rw.replace(op, [_made(rw, make, op.lhs, op.rhs)])
        return True
    number = constant_of(op.rhs)
    if type(number) is int and number > 0 and number & (number - 1) == 0:
        # two's complement: shifting and masking round down
        amount = rw.constant(number.bit_length() - 1 if divides else number - 1, op.rhs.type)
        rw.replace(op, [_made(rw, arith.ShrOp if divides else arith.AndOp, op.lhs, amount)])
        return True
    remainder = _made(rw, arith.TruncModOp, op.lhs, op.rhs)
    zero = _scalar(rw, 0, op.lhs)
    wrong = _made(rw, arith.CmpOp, remainder, zero, predicate="lt")
    if divisor.lo < 0:
        # the remainder has the dividend's sign; it is wrong where that differs from the divisor's
        negative = _made(rw, arith.CmpOp, op.rhs, zero, predicate="lt")
        differs = _made(rw, arith.XorOp, wrong, negative)
        wrong = _made(rw, arith.AndOp, _made(rw, arith.CmpOp, remainder, zero, predicate="ne"), differs)
    if divides:
        quotient = _made(rw, arith.TruncDivOp, op.lhs, op.rhs)
        less = _made(rw, arith.SubOp, quotient, _scalar(rw, 1, quotient))
        result = _made(rw, arith.SelectOp, wrong, less, quotient)
    else:
        more = _made(rw, arith.AddOp, remainder, op.rhs)
        result = _made(rw, arith.SelectOp, wrong, more, remainder)
    rw.replace(op, [result])
    return True


@pattern(tensor.ReduceOp)
def take_absolute_values_first(op: tensor.ReduceOp, rw: Rewriter) -> bool:
    # reduce abssum(x)  ==>  reduce sum(abs(x))
    if op.kind not in ("abssum", "absmax"):
        return False
    source = op.source if op.source.dtype == "bool" else _made(rw, MathOp, [op.source], function="abs")
    kind = op.kind[3:]
    rw.replace(op, [_made(rw, tensor.ReduceOp, source, kind=kind, axis=op.axis, propagate_nan=op.propagate_nan)])
    return True


@pattern(tensor.ReduceOp, tensor.ScanOp)
def combine_bools_as_integers(op: tensor.ReduceOp | tensor.ScanOp, rw: Rewriter) -> bool:
    # reduce or(bool)  ==>  reduce max(int32) == 1, not != 0: see constant-of-two-layouts in runtime/hazards.py
    if op.source.dtype != "bool":
        return False
    kinds = {"and": "min", "or": "max", "sum": "max", "prod": "min"}
    kind = kinds.get(op.kind, op.kind)
    source = cast(rw, op.source, "int32")
    combined = _made(rw, type(op), source, **{**op.attributes, "kind": kind})
    rw.replace(op, [_made(rw, arith.CmpOp, combined, _scalar(rw, 1, combined), predicate="eq")])
    return True


@pattern(arith.MinOp, arith.MaxOp)
def extremum_of_bools(op: BinaryOp, rw: Rewriter) -> bool:
    # max(bool, bool)  ==>  or
    if op.out.dtype != "bool":
        return False
    rw.replace(op, [_made(rw, arith.OrOp if isinstance(op, arith.MaxOp) else arith.AndOp, op.lhs, op.rhs)])
    return True


@pattern(CastOp)
def cast_to_bool(op: CastOp, rw: Rewriter) -> bool:
    # cast x : bool  ==>  x != 0
    if op.out.dtype != "bool" or op.source.dtype == "bool":
        return False
    rw.replace(op, [_made(rw, arith.CmpOp, op.source, _scalar(rw, 0, op.source), predicate="ne")])
    return True


def _sigmoid(x: Value, rw: Rewriter) -> Value:
    grown = _made(rw, MathOp, [_made(rw, arith.NegOp, x)], function="exp")
    return _made(rw, arith.DivOp, _scalar(rw, 1, x), _made(rw, arith.AddOp, grown, _scalar(rw, 1, x)))


def _is_nan(x: Value, rw: Rewriter) -> Value:
    return _made(rw, arith.CmpOp, x, x, predicate="ne")


def _is_infinite(x: Value, rw: Rewriter) -> Value:
    size = _made(rw, MathOp, [x], function="abs")
    return _made(rw, arith.CmpOp, size, _scalar(rw, math.inf, x), predicate="eq")


def _is_finite(x: Value, rw: Rewriter) -> Value:
    size = _made(rw, MathOp, [x], function="abs")
    return _made(rw, arith.CmpOp, size, _scalar(rw, math.inf, x), predicate="lt")


_SPELT_OUT: dict[str, Callable[[Value, Rewriter], Value]] = {
    "sigmoid": _sigmoid, "isnan": _is_nan, "isinf": _is_infinite, "isfinite": _is_finite,
}  # fmt: skip


@pattern(MathOp)
def spell_out_function(op: MathOp, rw: Rewriter) -> bool:
    # sigmoid(x)  ==>  1 / (exp(-x) + 1), in float32 at least;    isnan(x)  ==>  x != x
    function = _SPELT_OUT.get(op.function)
    x, *others = op.arguments
    if op.function == "clamp":
        low, high = others
        rw.replace(op, [_made(rw, arith.MinOp, _made(rw, arith.MaxOp, x, low), high)])
    elif verdict(op.function, (x.dtype,)).rewrite == "identity":
        rw.replace(op, [x])
    elif function is not None and op.function != "sigmoid" and is_float(x.dtype):
        rw.replace(op, [function(x if x.dtype == "float64" else cast(rw, x, "float32"), rw)])
    elif function is not None and x.dtype in ("float32", "float64"):
        rw.replace(op, [function(x, rw)])
    else:
        return False
    return True


def _difference_of_scaled(op: MathOp) -> tuple[arith.MulOp, arith.MulOp] | None:
    """The products a * c and b * c of an exponential of their difference; None for others."""
    if MATH_FUNCTIONS[op.function].base is None:
        return None
    (exponent,) = op.arguments
    difference = exponent.op
    if not isinstance(difference, arith.SubOp):
        return None
    lhs, rhs = difference.lhs.op, difference.rhs.op
    if not (isinstance(lhs, arith.MulOp) and isinstance(rhs, arith.MulOp)) or lhs.lhs.type != rhs.lhs.type:
        return None
    number = constant_of(lhs.rhs)
    same = lhs.rhs is rhs.rhs or (number is not None and number == constant_of(rhs.rhs))
    return (lhs, rhs) if same else None


@pattern(MathOp)
def subtract_before_scaling(op: MathOp, rw: Rewriter) -> bool:
    # exp2(a * c - b * c)  ==>  exp2((a - b) * c)
    # Multiply and add are fused to fma(a, c, -(b * c)), where only b * c is rounded: of a = b = -1e30, the maximum of a
    # row that has seen nothing yet, that leaves 1e21 or so, whose exponential is infinite.
    found = _difference_of_scaled(op)
    if found is None:
        return False
    lhs, rhs = found
    scaled = _made(rw, arith.MulOp, _made(rw, arith.SubOp, lhs.lhs, rhs.lhs), lhs.rhs)
    if [scaled.type] != [each.type for each in op.arguments]:
        return False
    op.set_operands([scaled])
    return True


@pattern(arith.ShlOp, arith.ShrOp)
def shift_by_tensor(op: BinaryOp, rw: Rewriter) -> bool:
    # a shift by the width or more is undefined in hardware's way; constants that large give what wrapping gives
    number = constant_of(op.rhs)
    bits = ELEMENTS[op.out.dtype].bits
    if type(number) is not int or number < bits:
        return False
    if isinstance(op, arith.ShrOp) and ELEMENTS[op.out.dtype].kind == "int":
        op.set_operands([op.lhs, rw.constant(bits - 1, op.rhs.type)])
    else:
        rw.replace(op, [rw.constant(0, with_shape(op.out.shape, op.out.dtype))])
    return True


@lru_cache(maxsize=64)
def _patterns(kind: str, arch: int | str | None) -> Patterns:
    return Patterns(
        [
            truncate_division,
            take_absolute_values_first,
            combine_bools_as_integers,
            unmask_cas,
            extremum_of_bools,
            cast_to_bool,
            spell_out_function,
            subtract_before_scaling,
            shift_by_tensor,
            *(FIELD_PATTERNS if kind == "cuda" else ()),
            *dtype_patterns(kind, arch),
        ]
    )


@dataclass(frozen=True)
class LegalizeArith(Pass):
    """Rewrite arithmetic into operations that Triton has.

    Before:  %q = arith.floordiv %x, %y : int32     After:  %q = arith.truncdiv %x, %y : int32     if x >= 0 and y > 0
             %e = arith.math %h {function = "exp"}          %f = arith.cast %h : float32
                                                            %g = arith.math %f {function = "exp"} : float32
                                                            %e = arith.cast %g : float16
    Floor division becomes truncating division, with a correction unless ranges prove the signs. Reductions of absolute
    values and of bools, clamp, sigmoid and the like are spelt out. What Triton computes only in float32 gets casts
    (tiledsl.legality is the table); for the target "interpret", bfloat16 is computed in float32 throughout.
    Fields of bytes and of words of 16 bits, such as weights of four bits, become 16-bit floats by their bits on
    NVIDIA's GPUs: a logical operation and a subtraction for two, where conversions run on few units, one by one.
    exp2(a * c - b * c) becomes exp2((a - b) * c), which is 1 where a equals b even with fused multiply-add.
    Needs:   pad-tiles (masks and neutral elements have the original kinds). Keeps: results, except that what is
             computed in float32 is rounded once, at the end, and that arguments of exponentials differ in their last
             bits. Raises TileError for what a target has neither itself nor rewritten.
    """

    name = "legalize-arith"

    def run(self, program: Program) -> None:
        kind, arch = getattr(program.target, "kind", ""), getattr(program.target, "arch", None)
        for op in program.root.walk():
            check_legal(op, kind, arch)
        apply_patterns(program.root, _patterns(kind, arch), analysis=Ranges(program.root))

    def allowances(self, program: Program) -> frozenset[str]:
        exponentials = (op for op in program.root.walk() if isinstance(op, MathOp))
        return frozenset({"reassociation"} if any(map(_difference_of_scaled, exponentials)) else ())
