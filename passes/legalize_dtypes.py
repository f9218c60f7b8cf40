"""Patterns of legalize-arith for element types in which Triton does not compute: compute wider, then round."""

from __future__ import annotations

import math

from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import CastOp, MathOp
from tiledsl.ir.core import Value
from tiledsl.ir.rewrite import Builder, Pattern, Rewriter, pattern
from tiledsl.ir.types import ELEMENTS, is_float, is_integer, with_shape

_SMALL = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
# In these Triton itself goes to float32, and gives float32 back.
_WIDENED = (arith.DivOp,)
_WIDENED_BFLOAT16 = (arith.DivOp, arith.MinOp, arith.MaxOp)
_MOVES = (arith.ConstantOp, arith.CastOp, arith.BitcastOp, arith.SelectOp)


def cast(builder: Builder, value: Value, dtype: str) -> Value:
    """`value` as another element type; the value itself if it already has that type."""
    if value.dtype == dtype:
        return value
    return builder.insert(CastOp(value, result_types=[with_shape(value.shape, dtype)])).result


def _is_fp8(dtype: str) -> bool:
    return dtype.startswith("float8")


def _needs_float32(op: arith.Elementwise, interpreted: bool) -> bool:
    dtype = op.operands[0].dtype
    if dtype not in _SMALL or isinstance(op, _MOVES):
        return False
    if _is_fp8(dtype) or (interpreted and dtype == "bfloat16"):
        return True
    if isinstance(op, MathOp):
        function: str = op.function
        return function != "abs"
    return isinstance(op, _WIDENED_BFLOAT16 if dtype == "bfloat16" else _WIDENED)


def _dot_dtype(a: str, b: str, interpreted: bool) -> str:
    """The element type to which both operands of a dot are converted."""
    if interpreted and any(_is_fp8(each) or each == "bfloat16" for each in (a, b)):
        return "float64" if "float64" in (a, b) else "float32"
    if a == b or not (is_float(a) and is_float(b)):
        return a
    if _is_fp8(a) and _is_fp8(b):
        return "float16"  # which holds all values of both formats
    if "float64" in (a, b):
        return "float64"
    if "float32" in (a, b) or {a, b} == {"float16", "bfloat16"}:
        return "float32"
    return b if _is_fp8(a) else a


def dtype_patterns(interpreted: bool) -> list[Pattern]:
    """The patterns; if `interpreted`, bfloat16 is computed in float32 throughout."""

    @pattern(arith.Elementwise)
    def compute_in_float32(op: arith.Elementwise, rw: Rewriter) -> bool:
        # exp(x : float16)  ==>  cast(exp(cast(x : float32)) : float16)
        if not _needs_float32(op, interpreted):
            return False
        small = op.result.dtype
        wide = [cast(rw, value, "float32") if value.dtype in _SMALL else value for value in op.operands]
        shape = op.result.shape
        out = with_shape(shape, "float32" if small in _SMALL else small)
        groups = [wide] if isinstance(op, MathOp) else wide
        made = rw.insert(type(op)(*groups, result_types=[out], **op.attributes))
        rw.replace(op, [cast(rw, made.result, small)])
        return True

    @pattern(tensor.ReduceOp, tensor.ScanOp)
    def reduce_in_32_bits(op: tensor.ReduceOp | tensor.ScanOp, rw: Rewriter) -> bool:
        # reduce sum(float16)  ==>  cast(reduce sum(cast(x : float32)) : float16): Triton gives 32 bits back
        dtype = op.source.dtype
        if dtype == "bool" or ELEMENTS[dtype].bits >= 32 or op.kind in ("and", "or", "xor", "abssum", "absmax"):
            return False
        wide = "float32" if is_float(dtype) else "int32" if ELEMENTS[dtype].kind == "int" else "uint32"
        made = rw.insert(type(op)(cast(rw, op.source, wide), **op.attributes))
        rw.replace(op, [cast(rw, made.result, dtype)])
        return True

    @pattern(CastOp)
    def cast_by_float32(op: CastOp, rw: Rewriter) -> bool:
        # int32 -> float8  ==>  int32 -> float32 -> float8, and likewise back and for float64
        source, target = op.source.dtype, op.out.dtype
        far = (is_integer(source), is_integer(target), "float64" in (source, target), "bool" in (source, target))
        if not (_is_fp8(source) or _is_fp8(target)) or not (any(far) or (_is_fp8(source) and _is_fp8(target))):
            return False
        if source == target:
            return False
        rw.replace(op, [cast(rw, cast(rw, op.source, "float32"), target)])
        return True

    @pattern(arith.ConstantOp)
    def keep_infinity(op: arith.ConstantOp, rw: Rewriter) -> bool:
        # inf : float8_e5m2  ==>  bitcast(124 : uint8): Triton makes it from a float32, and that conversion saturates
        if op.out.dtype != "float8_e5m2" or not math.isinf(op.value):
            return False
        bits = rw.constant(0x7C if op.value > 0 else 0xFC, with_shape(op.out.shape, "uint8"))
        rw.replace(op, [rw.insert(arith.BitcastOp(bits, result_types=[op.out.type])).result])
        return True

    @pattern(tensor.DotOp)
    def give_dot_one_dtype(op: tensor.DotOp, rw: Rewriter) -> bool:
        # dot(float16, bfloat16)  ==>  dot of float32;    an accumulator that tl.dot does not have is added afterwards
        dtype = _dot_dtype(op.a.dtype, op.b.dtype, interpreted)
        narrow = op.a.dtype not in ("float32", "float64")
        precision = "ieee" if dtype == "float32" and narrow and op.precision == "default" else op.precision
        if op.a.dtype != dtype or op.b.dtype != dtype:
            a, b = cast(rw, op.a, dtype), cast(rw, op.b, dtype)
            rw.replace(op, [rw.insert(tensor.DotOp(a, b, op.accumulator, precision=precision)).out])
            return True
        accumulates = _accumulator_dtype(dtype, op.out.dtype)
        if op.out.dtype == accumulates:
            return False
        if is_float(accumulates) and is_float(op.out.dtype):
            start = cast(rw, op.accumulator, accumulates)
            made = rw.insert(tensor.DotOp(op.a, op.b, start, precision=op.precision)).out
            rw.replace(op, [cast(rw, made, op.out.dtype)])
            return True
        zero = rw.constant(0 if is_integer(accumulates) else 0.0, with_shape(op.out.shape, accumulates))
        made = rw.insert(tensor.DotOp(op.a, op.b, zero, precision=op.precision)).out
        total = rw.insert(arith.AddOp(op.accumulator, cast(rw, made, op.out.dtype))).result
        rw.replace(op, [total])
        return True

    return [compute_in_float32, reduce_in_32_bits, cast_by_float32, keep_infinity, give_dot_one_dtype]


def _accumulator_dtype(dtype: str, wanted: str) -> str:
    """The element type, as close to `wanted` as there is, in which tl.dot accumulates operands of `dtype`."""
    if is_integer(dtype):
        return "int32"
    if dtype == "float64":
        return "float64"
    return "float16" if dtype == "float16" and wanted == "float16" else "float32"
