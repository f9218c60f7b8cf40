"""Patterns of legalize-arith for element types on which Triton lacks an operation: what tiledsl.legality calls for.

`question` says which entry of that table an operation is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tiledsl import legality
from tiledsl.dialects import arith, tensor, tile
from tiledsl.dialects.arith import BinaryOp, CastOp, CmpOp, MathOp
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder, Pattern, Rewriter, pattern
from tiledsl.ir.types import ELEMENTS, is_float, is_integer, with_shape
from tiledsl.legality import Verdict
from tiledsl.passes.tile_values import bitcast

Question = tuple[str, tuple[str, ...]]


def cast(builder: Builder, value: Value, dtype: str) -> Value:
    """`value` as another element type; the value itself if it already has that type."""
    if value.dtype == dtype:
        return value
    return builder.insert(CastOp(value, result_types=[with_shape(value.shape, dtype)])).result


def _atomic(op: tile.AtomicOp) -> Question | None:
    if tile.buffer_type(op.buffer).scope != "global":
        return None
    dtype = op.value.dtype
    if op.kind in ("exchange", "store") and op.out.shape and ELEMENTS[dtype].bits >= 32:  # in every order
        return f"atomic.{op.kind}.tile", (dtype,)
    return f"atomic.{op.kind}.{op.semantics}", (dtype,)


_QUESTIONS: dict[type[Operation], Callable[[Any], Question | None]] = {
    arith.CmpOp: lambda op: (f"cmp.{op.predicate}", (op.lhs.dtype,)),
    arith.MathOp: lambda op: (op.function, (op.operands[0].dtype,)),
    arith.CastOp: lambda op: ("cast", (op.source.dtype, op.out.dtype)),
    arith.BitcastOp: lambda op: ("bitcast", (op.source.dtype, op.out.dtype)),
    arith.NegOp: lambda op: ("neg", (op.out.dtype,)),
    arith.NotOp: lambda op: ("not", (op.out.dtype,)),
    tensor.ReduceOp: lambda op: (f"reduce.{op.kind}", (op.source.dtype,)),
    tensor.ScanOp: lambda op: (f"scan.{op.kind}", (op.source.dtype,)),
    tensor.DotOp: lambda op: ("dot", (op.a.dtype, op.b.dtype, op.out.dtype)),
    tile.AtomicOp: _atomic,
}


def question(op: Operation) -> Question | None:
    """The name and the element types of an operation in the table of legality; None if it moves elements alone."""
    ask = _QUESTIONS.get(type(op))
    if ask is not None:
        return ask(op)
    return (op.name.removeprefix("arith."), (op.lhs.dtype,)) if isinstance(op, BinaryOp) else None


def check_legal(op: Operation, kind: str, arch: int | str | None) -> None:
    """Raises TileError for an operation on element types for which the target has neither it nor a rewrite."""
    asked = question(op)
    if asked is None:
        return
    name, types = asked
    found = legality.verdict(name, types, kind, arch)
    if found.is_refused:
        raise TileError(f"{op.name} ({name}): {found.reason.format(*types)}", op.loc, found.notes(types))
    if found.rewrite == "promote":  # which the language does
        raise TileError(f"{op.name} ({name}) of {types[0]}: convert to {found.dtype or 'another type'} first", op.loc)


def dtype_patterns(kind: str, arch: int | str | None) -> list[Pattern]:
    """The patterns for a target; kind "interpret" has bfloat16 computed in float32 throughout."""
    interpreted = kind == "interpret"

    def ask(op: Operation) -> Verdict:
        asked = question(op)
        assert asked is not None
        return legality.verdict(*asked, kind, arch)

    @pattern(arith.BinaryOp, CmpOp, MathOp, arith.NegOp)
    def compute_wider(op: arith.Elementwise, rw: Rewriter) -> bool:
        # exp(x : float16)  ==>  cast(exp(cast(x : float32)) : float16)
        entry = ask(op)
        if entry.rewrite != "widen":
            return False
        narrow = op.operands[0].dtype
        wide = [cast(rw, value, entry.dtype) if value.dtype == narrow else value for value in op.operands]
        groups = [wide] if isinstance(op, MathOp) else wide
        made = rw.insert(type(op)(*groups, **op.attributes))
        rw.replace(op, [cast(rw, made.result, op.result.dtype)])
        return True

    @pattern(tensor.ReduceOp, tensor.ScanOp)
    def reduce_in_32_bits(op: tensor.ReduceOp | tensor.ScanOp, rw: Rewriter) -> bool:
        # reduce sum(float16)  ==>  cast(reduce sum(cast(x : float32)) : float16): Triton gives 32 bits back
        entry = ask(op)
        if entry.rewrite != "widen":
            return False
        made = rw.insert(type(op)(cast(rw, op.source, entry.dtype), **op.attributes))
        rw.replace(op, [cast(rw, made.result, op.source.dtype)])
        return True

    @pattern(CastOp)
    def cast_by_steps(op: CastOp, rw: Rewriter) -> bool:
        # int32 -> float8  ==>  int32 -> float32 -> float8, and likewise back and for float64
        entry = ask(op)
        if entry.rewrite != "by steps" or op.source.dtype == op.out.dtype:
            return False
        wide = _rounded_to_odd(rw, op.source) if op.source.dtype == "float64" else cast(rw, op.source, entry.dtype)
        rw.replace(op, [cast(rw, wide, op.out.dtype)])
        return True

    @pattern(arith.ConstantOp)
    def keep_infinity(op: arith.ConstantOp, rw: Rewriter) -> bool:
        # inf : float8_e5m2  ==>  bitcast(124 : uint8): Triton makes it from a float32, and that conversion saturates
        if op.out.dtype != "float8_e5m2" or not math.isinf(op.value):
            return False
        bits = rw.constant(0x7C if op.value == math.inf else 0xFC, with_shape(op.out.shape, "uint8"))
        rw.replace(op, [rw.insert(arith.BitcastOp(bits, result_types=[op.out.type])).result])
        return True

    @pattern(MathOp)
    def compute_on_bits(op: MathOp, rw: Rewriter) -> bool:
        # clz(x : int16)  ==>  cast(clz(cast(bitcast(x : uint16) : int32)) - 16 : int16)
        entry = ask(op)
        if entry.rewrite != "bits":
            return False
        (x,) = op.arguments
        dtype, missing = x.dtype, ELEMENTS[entry.dtype].bits - ELEMENTS[x.dtype].bits
        bits = cast(rw, bitcast(rw, x, f"uint{ELEMENTS[dtype].bits}"), entry.dtype)
        made = rw.insert(MathOp([bits], function=op.function)).result
        if op.function == "clz" and missing:
            made = rw.insert(arith.SubOp(made, rw.constant(missing, made.type))).result
        rw.replace(op, [cast(rw, made, dtype)])
        return True

    @pattern(MathOp)
    def spell_out_missing(op: MathOp, rw: Rewriter) -> bool:
        # exp10(x)  ==>  pow(10, x), where the target's library has no exp10
        write = _WHERE_MISSING.get(op.function)
        if write is None or ask(op).rewrite != "spell out":
            return False
        (x,) = op.arguments
        rw.replace(op, [write(rw, x)])
        return True

    @pattern(tensor.DotOp)
    def multiply_by_parts(op: tensor.DotOp, rw: Rewriter) -> bool:
        # dot(uint8, int8)  ==>  dot(a & 127, b) + (dot(a >> 7, b) << 7), of int8: what is left out wraps away
        if ask(op).rewrite != "parts":
            return False
        a, b = _parts(rw, op.a), _parts(rw, op.b)
        out, whole = op.out.dtype, _sum_dtype(op)
        # Where no integer holds the sum, its upper half counts apart, so that float64 does not round the parts.
        halves: list[Value | None] = [op.accumulator if whole == out else None, None]
        upper = 4 if not is_integer(out) and len(a) + len(b) > 8 else len(a) + len(b)
        for i, left in enumerate(a):
            for j, right in enumerate(b):
                half = int(i + j >= upper)
                total, shift = halves[half], _DIGIT * (i + j - half * upper)
                if shift >= ELEMENTS[whole].bits:
                    continue
                begins = total is not None and whole == "int32" and shift == 0
                start = total if begins else rw.constant(0, with_shape(op.out.shape, "int32"))
                made = cast(rw, rw.insert(tensor.DotOp(left, right, start)).out, whole)
                if shift:
                    made = rw.insert(arith.ShlOp(made, rw.constant(shift, made.type))).result
                halves[half] = made if total is None or begins else rw.insert(arith.AddOp(total, made)).result
        low, high = halves
        assert low is not None
        if high is not None:
            wide = cast(rw, high, "float64")
            scaled = rw.insert(arith.MulOp(wide, rw.constant(2.0 ** (_DIGIT * upper), wide.type))).result
            low = rw.insert(arith.AddOp(scaled, cast(rw, low, "float64"))).result
        if whole != out:
            low = rw.insert(arith.AddOp(op.accumulator, cast(rw, low, out))).result
        rw.replace(op, [low])
        return True

    @pattern(tensor.DotOp)
    def give_dot_one_dtype(op: tensor.DotOp, rw: Rewriter) -> bool:
        # dot(float16, bfloat16)  ==>  dot of float32;    an accumulator that tl.dot does not have is added afterwards
        entry = ask(op)
        if entry.is_native or entry.rewrite == "parts":
            return False
        dtype = entry.dtype and "int8" or _float_operands(op.a.dtype, op.b.dtype, interpreted)
        narrow = op.a.dtype not in ("float32", "float64")
        precision = "ieee" if dtype == "float32" and narrow and op.precision == "default" else op.precision
        if op.a.dtype != dtype or op.b.dtype != dtype:
            a, b = cast(rw, op.a, dtype), cast(rw, op.b, dtype)
            rw.replace(op, [rw.insert(tensor.DotOp(a, b, op.accumulator, precision=precision)).out])
            return True
        accumulates = entry.dtype or _accumulator_dtype(dtype, op.out.dtype)
        if op.out.dtype == accumulates:
            return False
        if is_float(accumulates) and is_float(op.out.dtype):
            start = cast(rw, op.accumulator, accumulates)
            made = rw.insert(tensor.DotOp(op.a, op.b, start, precision=op.precision)).out
            rw.replace(op, [cast(rw, made, op.out.dtype)])
            return True
        zero = rw.constant(0.0 if is_float(accumulates) else 0, with_shape(op.out.shape, accumulates))
        made = rw.insert(tensor.DotOp(op.a, op.b, zero, precision=op.precision)).out
        total = rw.insert(arith.AddOp(op.accumulator, cast(rw, made, op.out.dtype))).result
        rw.replace(op, [total])
        return True

    return [
        compute_wider, reduce_in_32_bits, cast_by_steps, keep_infinity, compute_on_bits, spell_out_missing,
        multiply_by_parts, give_dot_one_dtype,
    ]  # fmt: skip


def _float_operands(a: str, b: str, interpreted: bool) -> str:
    """The element type to which both operands of a product of floats are converted."""
    if interpreted and any(each in legality.FLOAT8 or each == "bfloat16" for each in (a, b)):
        return "float64" if "float64" in (a, b) else "float32"
    return legality.dot_dtype(a, b)


def _accumulator_dtype(dtype: str, wanted: str) -> str:
    """The element type, as close to `wanted` as there is, in which tl.dot accumulates floats of type `dtype`."""
    if dtype == "float64":
        return "float64"
    return "float16" if dtype == "float16" and wanted == "float16" else "float32"


def _sum_dtype(op: tensor.DotOp) -> str:
    """The element type in which products of parts are added up: the accumulator's if it is an integer, which wraps.

    Else one that holds the sum of up to 2**15 products, or each half of it.
    """
    if is_integer(op.out.dtype):
        return op.out.dtype
    bits = sum(1 if value.dtype == "bool" else ELEMENTS[value.dtype].bits for value in (op.a, op.b)) + 15
    return "int32" if bits < 32 else "int64"


_DIGIT = 7  # bits of a part of an integer, so that int8 holds it


def _parts(rw: Rewriter, value: Value) -> list[Value]:
    """int8 tiles whose sum, each weighted with 2**7 more than the one before, is `value`; the last has its sign."""
    info = ELEMENTS[value.dtype]
    if value.dtype in ("int8", "bool"):
        return [cast(rw, value, "int8")]
    parts = []
    for low in range(0, info.bits, _DIGIT):
        part = value
        if low:
            part = rw.insert(arith.ShrOp(part, rw.constant(low, part.type))).result
        if low + _DIGIT < info.bits:
            part = rw.insert(arith.AndOp(part, rw.constant((1 << _DIGIT) - 1, part.type))).result
        parts.append(cast(rw, part, "int8"))
    return parts


def _rounded_to_odd(rw: Rewriter, x: Value) -> Value:
    """A float64 as float32: itself where that is exact, else the one of both neighbours whose last bit is 1.

    Rounding the result again, to fewer bits, gives what rounding x at once would: Boldo and Melquiond, "Emulation of
    FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE Transactions on Computers 57(4).
    """
    near = cast(rw, x, "float32")
    back = cast(rw, near, "float64")
    bits = bitcast(rw, near, "int32")

    def size(value: Value) -> Value:
        return rw.insert(MathOp([value], function="abs")).result

    one = rw.constant(1, bits.type)
    larger = rw.insert(CmpOp(size(back), size(x), predicate="gt")).result
    below = rw.insert(arith.SelectOp(larger, rw.insert(arith.SubOp(bits, one)).result, bits)).result
    inexact = rw.insert(CmpOp(back, x, predicate="ne")).result
    odd = rw.insert(arith.SelectOp(inexact, rw.insert(arith.OrOp(below, one)).result, bits)).result
    return bitcast(rw, odd, "float32")


def _power_of_ten(rw: Rewriter, x: Value) -> Value:
    return rw.insert(MathOp([rw.constant(10.0, x.type), x], function="pow")).result


def _round_as_set(rw: Rewriter, x: Value) -> Value:
    return rw.insert(MathOp([x], function="nearbyint")).result


class _Bits:
    """Arithmetic on the bits of an integer."""

    def __init__(self, rw: Rewriter, x: Value) -> None:
        self.rw, self.dtype = rw, x.dtype
        self.width = ELEMENTS[x.dtype].bits
        self.x = bitcast(rw, x, f"uint{self.width}")

    def number(self, pattern: int) -> Value:
        """A byte's bits, repeated over the width."""
        return self.rw.constant(int.from_bytes(bytes([pattern]) * (self.width // 8), "little"), self.x.type)

    def made(self, op: type[BinaryOp], lhs: Value, rhs: Value | int) -> Value:
        rhs = rhs if isinstance(rhs, Value) else self.rw.constant(rhs, lhs.type)
        return self.rw.insert(op(lhs, rhs)).result

    def count(self) -> Value:
        """How many bits are set. Warren, "Hacker's Delight", 5-1."""
        pairs = self.made(arith.AndOp, self.made(arith.ShrOp, self.x, 1), self.number(0x55))
        x = self.made(arith.SubOp, self.x, pairs)
        low, high = self.made(arith.AndOp, x, self.number(0x33)), self.made(arith.ShrOp, x, 2)
        x = self.made(arith.AddOp, low, self.made(arith.AndOp, high, self.number(0x33)))
        x = self.made(arith.AndOp, self.made(arith.AddOp, x, self.made(arith.ShrOp, x, 4)), self.number(0x0F))
        x = self.made(arith.ShrOp, self.made(arith.MulOp, x, self.number(0x01)), self.width - 8)
        return bitcast(self.rw, x, self.dtype)

    def leading_zeros(self) -> Value:
        """The width less the bits set once each has spread to all below it. Warren, "Hacker's Delight", 5-3."""
        for power in range(self.width.bit_length() - 1):
            self.x = self.made(arith.OrOp, self.x, self.made(arith.ShrOp, self.x, 1 << power))
        self.x = self.rw.insert(arith.NotOp(self.x)).result
        return self.count()


_WHERE_MISSING: dict[str, Callable[[Rewriter, Value], Value]] = {
    "exp10": _power_of_ten,
    "rint": _round_as_set,
    "popcount": lambda rw, x: _Bits(rw, x).count(),
    "clz": lambda rw, x: _Bits(rw, x).leading_zeros(),
}
