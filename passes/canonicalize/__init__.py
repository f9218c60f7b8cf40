"""Canonical forms: constant folding, constants on the right, one form for equal expressions, decided control flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiledsl.analysis.linear import Reader
from tiledsl.dialects import arith, tensor, tile, triton
from tiledsl.dialects.arith import (
    INVERTED,
    MIRRORED,
    AddOp,
    BinaryOp,
    CastOp,
    CmpOp,
    Number,
    SelectOp,
    SubOp,
    as_constant,
    constant_of,
    wrap,
)
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Patterns, Rewriter, apply_patterns, pattern
from tiledsl.ir.types import ELEMENTS, BufferType, ScalarType, TensorType, broadcast_shapes, is_float, is_integer
from tiledsl.passes.canonicalize.control_flow import CONTROL_FLOW_PATTERNS


@pattern(*(op for op in vars(arith).values() if isinstance(op, type) and issubclass(op, BinaryOp) and op.commutes))
def put_constant_right(op: BinaryOp, rw: Rewriter) -> bool:
    # 3 + x  ==>  x + 3
    lhs, rhs = op.operands
    if constant_of(lhs) is None or constant_of(rhs) is not None:
        return False
    op.set_operands([rhs, lhs])
    return True


@pattern(CmpOp)
def put_constant_right_of_comparison(op: CmpOp, rw: Rewriter) -> bool:
    # 3 < x  ==>  x > 3; a comparison of two numbers is folded
    lhs, rhs = op.operands
    if constant_of(lhs) is None:
        return False
    op.set_operands([rhs, lhs])
    op.set_attribute("predicate", MIRRORED[op.predicate])
    return True


def _integer(value: Value) -> int | None:
    number = constant_of(value)
    return number if type(number) is int else None


def _with_constant(rw: Rewriter, op: BinaryOp, make: type[BinaryOp], value: Value, number: int) -> None:
    """Replace `op` by `make(value, number)`, of the same type."""
    scalar = value.type == op.out.type
    constant = rw.constant(number, ScalarType(value.dtype) if scalar else op.out.type)
    rw.replace(op, [rw.insert(make(value, constant)).result])


@pattern(AddOp, SubOp)
def combine_added_constants(op: BinaryOp, rw: Rewriter) -> bool:
    # (x + 3) - 5  ==>  x - 2;    x + -2  ==>  x - 2
    number = _integer(op.rhs)
    dtype = op.out.dtype
    if number is None:
        return False
    total = -number if isinstance(op, SubOp) else number
    source = op.lhs
    inner = source.op
    if isinstance(inner, (AddOp, SubOp)) and (other := _integer(inner.rhs)) is not None:
        total += -other if isinstance(inner, SubOp) else other
        source = inner.lhs
    elif not ELEMENTS[dtype].low < number < 0:
        return False
    total = wrap(total, "int64" if ELEMENTS[dtype].kind == "uint" else dtype)
    if total == 0 and source.type == op.out.type:
        rw.replace(op, [source])
        return True
    low = ELEMENTS[dtype].low if ELEMENTS[dtype].kind == "int" else -ELEMENTS[dtype].high
    negative = low < total < 0
    _with_constant(rw, op, SubOp if negative else AddOp, source, wrap(abs(total) if negative else total, dtype))
    return True


@pattern(SubOp)
def subtract_from_constant_twice(op: SubOp, rw: Rewriter) -> bool:
    # 5 - (x + 3)  ==>  2 - x is left alone; 5 - (3 - x)  ==>  x + 2
    number, inner = _integer(op.lhs), op.rhs.op
    if number is None or not isinstance(inner, SubOp) or (other := _integer(inner.lhs)) is None:
        return False
    _with_constant(rw, op, AddOp, inner.rhs, wrap(number - other, op.out.dtype))
    return True


@dataclass
class _FewSums(Reader):
    """Reads no more than a few sums: what is computed in many steps is no difference that a program writes."""

    left: int = 32

    def stops(self, value: Value) -> bool:
        self.left -= 1
        return self.left < 0


@pattern(SubOp)
def cancel_terms(op: SubOp, rw: Rewriter) -> bool:
    # (x + y) - x  ==>  y;    (x + 8) * 4 - x * 4  ==>  32; integers wrap on both sides
    if not is_integer(op.out.dtype) or not isinstance(op.lhs.op, (AddOp, SubOp, arith.MulOp)):
        return False
    form = _FewSums().read(op.out)
    assert form is not None
    if form.is_constant:
        rw.replace(op, [rw.constant(wrap(form.constant, op.out.dtype), op.out.type)])
        return True
    match [*form.terms.items()]:
        case [((value,), 1)] if value.type == op.out.type:
            rw.replace(op, [value])
            return True
    return False


_REPEATED: dict[type[BinaryOp], Callable[[Any, Any], Number]] = {
    arith.MulOp: arith.MulOp.compute,
    arith.MinOp: arith.MinOp.compute,
    arith.MaxOp: arith.MaxOp.compute,
    arith.AndOp: arith.AndOp.compute,
    arith.OrOp: arith.OrOp.compute,
    arith.XorOp: arith.XorOp.compute,
}


@pattern(*_REPEATED)
def combine_repeated_constants(op: BinaryOp, rw: Rewriter) -> bool:
    # (x * 3) * 5  ==>  x * 15, on integers; min(min(x, 3), 5)  ==>  min(x, 3)
    lhs, rhs = op.operands
    inner = lhs.op
    if type(inner) is not type(op) or is_float(op.out.dtype):
        return False
    number, other = constant_of(rhs), constant_of(inner.rhs)
    if number is None or other is None:
        return False
    _with_constant(rw, op, type(op), inner.lhs, as_constant(_REPEATED[type(op)](other, number), op.out.dtype))  # type: ignore[arg-type]
    return True


@pattern(arith.FloorDivOp, arith.TruncDivOp)
def combine_divisions(op: BinaryOp, rw: Rewriter) -> bool:
    # (x // 3) // 5  ==>  x // 15, for positive divisors whose product fits
    number, inner = _integer(op.rhs), op.lhs.op
    if number is None or number <= 0 or not isinstance(inner, type(op)):
        return False
    other = _integer(inner.rhs)
    if other is None or other <= 0 or wrap(number * other, op.out.dtype) != number * other:
        return False
    _with_constant(rw, op, type(op), inner.lhs, number * other)
    return True


@pattern(arith.FloorModOp, arith.TruncModOp)
def drop_repeated_remainder(op: BinaryOp, rw: Rewriter) -> bool:
    # (x % 8) % 8  ==>  x % 8;    (x * 24) % 8  ==>  0, which wrapping cannot change for a power of two
    number, inner = _integer(op.rhs), op.lhs.op
    if number is None or number <= 0:
        return False
    if isinstance(inner, type(op)) and _integer(inner.rhs) == number and inner.out.type == op.out.type:
        rw.replace(op, [inner.out])
        return True
    factor = _integer(inner.rhs) if isinstance(inner, arith.MulOp) else None
    if factor is None or factor % number or number & (number - 1):
        return False
    rw.replace(op, [rw.constant(0, op.out.type)])
    return True


@pattern(AddOp, SubOp)
def add_negated(op: BinaryOp, rw: Rewriter) -> bool:
    # x + -y  ==>  x - y;    x - -y  ==>  x + y
    right = op.rhs.op
    if isinstance(right, arith.NegOp):
        difference: Operation = SubOp(op.lhs, right.source) if isinstance(op, AddOp) else AddOp(op.lhs, right.source)
    elif isinstance(op, AddOp) and isinstance(op.lhs.op, arith.NegOp):
        difference = SubOp(op.rhs, op.lhs.op.source)
    else:
        return False
    rw.replace(op, [rw.insert(difference).result])
    return True


@pattern(arith.NegOp)
def negate_twice(op: arith.NegOp, rw: Rewriter) -> bool:
    # -(-x)  ==>  x
    inner = op.source.op
    if not isinstance(inner, arith.NegOp):
        return False
    rw.replace(op, [inner.source])
    return True


@pattern(arith.NotOp)
def invert_comparison(op: arith.NotOp, rw: Rewriter) -> bool:
    # not (a < b)  ==>  a >= b, not for floats, where NaN makes both false; eq and ne are opposites there too
    inner = op.source.op
    if not isinstance(inner, CmpOp) or (is_float(inner.lhs.dtype) and inner.predicate not in ("eq", "ne")):
        return False
    rw.replace(op, [rw.insert(CmpOp(inner.lhs, inner.rhs, predicate=INVERTED[inner.predicate])).result])
    return True


@pattern(CmpOp)
def drop_comparison_of_bool(op: CmpOp, rw: Rewriter) -> bool:
    # (x != false)  ==>  x;    (x == false)  ==>  not x
    number = constant_of(op.rhs)
    if type(number) is not bool or op.predicate not in ("eq", "ne") or op.lhs.type != op.out.type:
        return False
    same = number == (op.predicate == "eq")
    rw.replace(op, [op.lhs if same else rw.insert(arith.NotOp(op.lhs)).result])
    return True


@pattern(SelectOp)
def simplify_select(op: SelectOp, rw: Rewriter) -> bool:
    # not c ? a : b  ==>  c ? b : a;    c ? true : x  ==>  c or x;    c ? x : false  ==>  c and x
    inner = op.condition.op
    if isinstance(inner, arith.NotOp):
        op.set_operands([inner.source, op.on_false, op.on_true])
        return True
    if op.out.dtype != "bool":
        return False
    if constant_of(op.on_true) is True:
        logical: Operation = arith.OrOp(op.condition, op.on_false)
    elif constant_of(op.on_false) is False:
        logical = arith.AndOp(op.condition, op.on_true)
    elif constant_of(op.on_true) is False and constant_of(op.on_false) is True:
        logical = arith.NotOp(op.condition)
    else:
        return False
    if logical.result.type != op.out.type:
        logical.erase()
        return False
    rw.replace(op, [rw.insert(logical).result])
    return True


@pattern(arith.AndOp, arith.OrOp)
def drop_repeated_condition(op: BinaryOp, rw: Rewriter) -> bool:
    # (a and b) and a  ==>  a and b
    for whole, part in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        if isinstance(whole.op, type(op)) and part in whole.op.operands and whole.type == op.out.type:
            rw.replace(op, [whole])
            return True
    return False


@pattern(CastOp)
def combine_casts(op: CastOp, rw: Rewriter) -> bool:
    # int32 -> int64 -> int32  ==>  nothing, and every other way back from a type that holds all values: no float's;
    # int32 -> int64 -> uint64  ==>  int32 -> uint64, and every other way over an integer that loses nothing more
    inner = op.source.op
    if not isinstance(inner, CastOp):
        return False
    source = inner.source
    small, large, to = ELEMENTS[source.dtype], ELEMENTS[inner.out.dtype], ELEMENTS[op.out.dtype]
    if small.kind == "float":
        lossless = large.kind == "float" and large.bits > small.bits
    elif small.kind == "bool":
        lossless = True
    else:
        lossless = large.kind != "float" and large.low <= small.low and small.high <= large.high
    if lossless and source.type == op.out.type:
        rw.replace(op, [source])
        return True
    integers = small.kind != "float" and large.kind in ("int", "uint")
    if not integers or not (lossless or to.kind in ("int", "uint") and to.bits <= large.bits):
        return False
    rw.replace(op, [rw.insert(CastOp(source, result_types=[op.out.type], names=[op.out.name])).result])
    return True


@pattern(arith.Elementwise)
def drop_needless_broadcast(op: arith.Elementwise, rw: Rewriter) -> bool:
    # broadcast(x) + y  ==>  x + y, where y alone gives the shape; splat constants become scalars likewise
    if not op.results[0].type.shape or len(op.operands) < 2:
        return False
    for position, value in enumerate(op.operands):
        source = _unbroadcast(value)
        if source is None:
            continue
        others = [each.shape for index, each in enumerate(op.operands) if index != position]
        if broadcast_shapes(source.shape if source is not value else (), *others) != op.result.shape:
            continue
        if source is value:  # a splat constant
            source = rw.constant(value.op.attributes["value"], ScalarType(value.dtype))  # type: ignore[union-attr]
        op.set_operands([source if index == position else each for index, each in enumerate(op.operands)])
        return True
    return False


def _unbroadcast(value: Value) -> Value | None:
    if isinstance(value.op, tensor.BroadcastOp):
        source: Value = value.op.source
        return source
    return value if isinstance(value.op, arith.ConstantOp) and value.shape else None


@pattern(tensor.BroadcastOp)
def broadcast_once(op: tensor.BroadcastOp, rw: Rewriter) -> bool:
    # broadcast(broadcast(x))  ==>  broadcast(x)
    inner = op.source.op
    if not isinstance(inner, tensor.BroadcastOp):
        return False
    op.set_operands([inner.source])
    return True


@pattern(tensor.ReshapeOp, tensor.TransposeOp)
def reshape_splat_or_iota(op: tensor.ReshapeOp | tensor.TransposeOp, rw: Rewriter) -> bool:
    # reshape(broadcast(scalar))  ==>  broadcast(scalar);    reshape(iota), transpose(iota)  ==>  iota of another axis
    inner = op.source.op
    type = op.result.type
    if isinstance(inner, tensor.BroadcastOp) and not inner.source.shape:
        scalar = inner.source
        rw.replace(op, [rw.insert(tensor.BroadcastOp(scalar, result_types=[type])).result if type.shape else scalar])
        return True
    if isinstance(inner, tensor.IotaOp) and isinstance(type, TensorType):
        match [axis for axis, size in enumerate(type.shape) if size != 1]:
            case [axis] if type.shape[axis] == inner.extent:
                rw.replace(op, [rw.insert(tensor.IotaOp(axis=axis, result_types=[type], names=[inner.out.name])).out])
                return True
    return False


@pattern(tensor.ReshapeOp)
def reshape_there_and_back(op: tensor.ReshapeOp, rw: Rewriter) -> bool:
    # reshape(reshape(x) + reshape(y))  ==>  x + y, where these have its shape
    inner = op.source.op
    if not isinstance(inner, BinaryOp) or len(op.source.uses) > 1 or inner.lhs.type != inner.rhs.type:
        return False
    sources = [each.op.source for each in inner.operands if isinstance(each.op, tensor.ReshapeOp)]
    if len(sources) < 2 or any(each.shape != op.out.shape for each in sources):
        return False
    made = type(inner)(*sources, result_types=[op.out.type], loc=inner.loc, names=[op.out.name], **inner.attributes)
    rw.replace(op, [rw.insert(made).result])
    return True


@pattern(tensor.TransposeOp)
def transpose_once(op: tensor.TransposeOp, rw: Rewriter) -> bool:
    # transpose(transpose(x))  ==>  transpose(x) by the combined permutation
    inner = op.source.op
    if not isinstance(inner, tensor.TransposeOp):
        return False
    combined = tuple(inner.permutation[axis] for axis in op.permutation)
    rw.replace(op, [rw.insert(tensor.TransposeOp(inner.source, permutation=combined)).result])
    return True


@pattern(tensor.IotaOp)
def fold_iota_of_one(op: tensor.IotaOp, rw: Rewriter) -> bool:
    # iota of one element  ==>  0
    if op.extent != 1:
        return False
    rw.replace(op, [rw.constant(0, op.out.type)])
    return True


@pattern(tile.AtomicOp, triton.AtomicOp)
def drop_known_mask(op: tile.AtomicOp | triton.AtomicOp, rw: Rewriter) -> bool:
    # atomic x mask=true  ==>  atomic x;    atomic x mask=false  ==>  nothing, and 0 for the old value
    known = None if op.mask is None else constant_of(op.mask)
    if known is None:
        return False
    if not known:
        rw.replace(op, [rw.constant(as_constant(0, op.out.dtype), op.out.type)])
        return True
    return _drop_mask(op)


@pattern(tile.LoadOp, tile.StoreOp)
def drop_true_mask(op: tile.LoadOp | tile.StoreOp, rw: Rewriter) -> bool:
    # load mask=true  ==>  load
    return op.mask is not None and constant_of(op.mask) is True and _drop_mask(op)


def _drop_mask(op: Any) -> bool:
    """Take the mask away, unless its shape is the access's."""
    shapes = [value.shape for value in op.operands if not isinstance(value.type, BufferType)]
    others = [value.shape for value in op.operands if value is not op.mask and not isinstance(value.type, BufferType)]
    if broadcast_shapes(*others) != broadcast_shapes(*shapes):
        return False
    op.set_field("mask", [])
    return True


@pattern(tile.LoadOp, triton.LoadOp)
def drop_load_of_nothing(op: tile.LoadOp | triton.LoadOp, rw: Rewriter) -> bool:
    # load mask=false other=x  ==>  x
    known = None if op.mask is None else constant_of(op.mask)
    if known is None or known:
        return False
    other = op.other if op.other is not None else rw.constant(as_constant(0, op.out.dtype), op.out.type)
    if other.shape != op.out.shape:
        other = rw.insert(tensor.BroadcastOp(other, result_types=[op.out.type])).result
    rw.replace(op, [other])
    return True


CANONICAL_PATTERNS = Patterns(
    [
        put_constant_right,
        put_constant_right_of_comparison,
        combine_added_constants,
        subtract_from_constant_twice,
        cancel_terms,
        combine_repeated_constants,
        combine_divisions,
        drop_repeated_remainder,
        add_negated,
        negate_twice,
        invert_comparison,
        drop_comparison_of_bool,
        simplify_select,
        drop_repeated_condition,
        combine_casts,
        drop_needless_broadcast,
        broadcast_once,
        reshape_splat_or_iota,
        reshape_there_and_back,
        transpose_once,
        fold_iota_of_one,
        drop_known_mask,
        drop_true_mask,
        drop_load_of_nothing,
        *CONTROL_FLOW_PATTERNS,
    ]
)


def canonicalize(root: Operation, patterns: Patterns, analysis: Any = None) -> None:
    """Fold and rewrite to a fixpoint, and erase what becomes unused, loop-carried values included."""
    apply_patterns(root, patterns, fold=True, analysis=analysis)


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Fold constants, remove dead pure code, and give equal expressions one form.

    Before:  %a = arith.add %three, %x : int32      After:  %b = arith.sub %x, %two : int32
             %b = arith.sub %a, %five : int32
    Also removed are loops that run never or once, ifs with a known condition, and loop-carried values that do not
    change or are not used.
    Needs:   nothing. Keeps: integer results bit by bit, wrapping included; float results exactly.
    """

    name = "canonicalize"

    def run(self, program: Program) -> None:
        canonicalize(program.root, CANONICAL_PATTERNS)
