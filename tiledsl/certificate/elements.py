"""Elements of integer and bool values as terms: a rule for each operation. Part of accesses.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from tiledsl.certificate import terms
from tiledsl.certificate.terms import FALSE, Term, Variable, add, both, compare, constant, multiply
from tiledsl.dialects import arith, gluon, tensor, tile, triton
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import ELEMENTS, is_float

if TYPE_CHECKING:
    from tiledsl.certificate.accesses import Accesses

Position = tuple[Term, ...]
_INTEGER_FUNCTIONS = ("abs", "clamp")


def projected(value: Value, position: Position) -> Position:
    """The position in an operand that broadcasts to the shape of the position."""
    shape = value.shape
    if not shape:
        return ()
    return tuple(FALSE if size == 1 else at for size, at in zip(shape, position))


def source_position(op: tensor.BroadcastOp | tensor.ReshapeOp | tensor.TransposeOp, position: Position) -> Position:
    if isinstance(op, tensor.BroadcastOp):
        return projected(op.source, position)
    if isinstance(op, tensor.TransposeOp):
        source: list[Term] = [FALSE] * len(position)
        for at, axis in zip(position, op.permutation):
            source[axis] = at
        return tuple(source)
    return _reshaped(position, op.out.shape, op.source.shape)


def _reshaped(position: Position, shape: Sequence[int], wanted: Sequence[int]) -> Position:
    """The position in another shape of the element that is at this one, in row-major order."""
    if [size for size in shape if size != 1] == [size for size in wanted if size != 1]:
        left = iter([at for at, size in zip(position, shape) if size != 1])
        return tuple(FALSE if size == 1 else next(left) for size in wanted)
    flat = FALSE
    for at, size in zip(position, shape):
        flat = add(multiply(flat, constant(size)), at)
    found = []
    for axis, size in enumerate(wanted):
        inner = prod(wanted[axis + 1 :])
        at = terms.floor_divide(flat, constant(inner))
        found.append(terms.floor_modulo(at, constant(size)) if axis else at)
    return tuple(found)


def described(op: Operation) -> str:
    if isinstance(op, (tile.LoadOp, tile.AtomicOp)):
        return f"what {op.buffer.name or 'a buffer'} holds"
    if isinstance(op, (triton.LoadOp, triton.AtomicOp)):
        pointer = op.pointer
        while pointer.op is not None and pointer.op.operands:
            pointer = pointer.op.operands[0]
        return f"what {pointer.name or 'a tensor'} holds"
    if isinstance(op, arith.CmpOp):
        return "a comparison of numbers that are not integers"
    return f"the result of {op.name}"


_Rule = Callable[["Accesses", Operation, Position], Term]


def _binary(compute: Callable[[Term, Term], Term]) -> _Rule:
    def rule(program: Accesses, op: Operation, position: Position) -> Term:
        made = compute(*program.operands(op, position))
        return terms.wrap(made, op.results[0].dtype) if program.in_kernel(op) else made

    return rule


def _bit(kind: str) -> _Rule:
    def rule(program: Accesses, op: Operation, position: Position) -> Term:
        a, b = program.operands(op, position)
        if op.results[0].dtype == "bool":
            if kind == "xor":
                return terms.invert(compare("eq", a, b))
            return both(a, b) if kind == "and" else terms.either(a, b)
        return terms.wrap(terms.bitwise(kind, a, b), op.results[0].dtype)

    return rule


def _shift(left: bool) -> _Rule:
    def rule(program: Accesses, op: Operation, position: Position) -> Term:
        a, b = program.operands(op, position)
        bits = ELEMENTS[op.results[0].dtype].bits
        most = 63 if not program.in_kernel(op) else bits - 1
        info = ELEMENTS[op.results[0].dtype]
        made: Term = Variable("a shift by more than a type has bits", "unknown", int(info.low), int(info.high), op.loc)
        for amount in range(min(most, b.hi), max(0, b.lo) - 1, -1):
            power = constant(1 << amount)
            shifted = multiply(a, power) if left else terms.floor_divide(a, power)
            shifted = terms.wrap(shifted, op.results[0].dtype) if program.in_kernel(op) else shifted
            made = terms.select(compare("eq", b, constant(amount)), shifted, made)
        return made

    return rule


def _compared(program: Accesses, op: Operation, position: Position) -> Term:
    assert isinstance(op, arith.CmpOp)
    if is_float(op.lhs.dtype):
        return program.opaque(op.out, op.loc, described(op))(position)
    return compare(op.predicate, *program.operands(op, position))


def _cast(program: Accesses, op: Operation, position: Position) -> Term:
    assert isinstance(op, (arith.CastOp, arith.BitcastOp))
    if is_float(op.source.dtype):
        return program.opaque(op.out, op.loc, "a number cast to an integer")(position)
    (value,) = program.operands(op, position)
    if op.out.dtype == "bool":
        return compare("ne", value, FALSE)
    return terms.wrap(value, op.out.dtype) if program.in_kernel(op) else value


def _function(program: Accesses, op: Operation, position: Position) -> Term:
    assert isinstance(op, arith.MathOp)
    if op.function not in _INTEGER_FUNCTIONS or is_float(op.operands[0].dtype):
        return program.opaque(op.out, op.loc, f"the result of {op.function}")(position)
    value, *others = program.operands(op, position)
    made = terms.minimum(terms.maximum(value, others[0]), others[1]) if others else terms.maximum(
        value, terms.negate(value)
    )  # fmt: skip
    return terms.wrap(made, op.out.dtype)


def _not(program: Accesses, op: Operation, position: Position) -> Term:
    (value,) = program.operands(op, position)
    if op.results[0].dtype == "bool":
        return terms.invert(value)
    return terms.wrap(terms.subtract(constant(-1), value), op.results[0].dtype)


def _moved(program: Accesses, op: Operation, position: Position) -> Term:
    assert isinstance(op, tensor.SHAPES)
    return program.element(op.source, source_position(op, position))


def _within_source(program: Accesses, op: Operation, position: Position) -> Term:
    """What is chosen among elements, or summed from them: only the interval is known."""
    source = op.operands[0]
    lanes = program.lanes(source.shape, op.loc)
    one = program.element(source, tuple(lanes))
    lo, hi = one.lo, one.hi
    if isinstance(op, (tensor.ReduceOp, tensor.ScanOp)) and op.kind not in ("max", "min"):
        count = source.shape[op.axis]
        lo, hi = (min(lo, lo * count), max(hi, hi * count)) if op.kind == "sum" else (-(2**63), 2**64)
    info = ELEMENTS[op.results[0].dtype]
    if lo < info.low or hi > info.high:
        lo, hi = int(info.low), int(info.high)
    return Variable(f"the result of {op.name}", "unknown", lo, hi, op.loc)


RULES: dict[type[Operation], _Rule] = {
    arith.ConstantOp: lambda program, op, position: constant(op.attributes["value"]),
    tensor.IotaOp: lambda program, op, position: position[op.attributes["axis"]],
    triton.ProgramIdOp: lambda program, op, position: program.blocks[op.attributes["axis"]],
    triton.NumProgramsOp: lambda program, op, position: Variable("blocks", "size", 1, 2**31 - 1, op.loc),
    triton.MultiprocessorsOp: lambda program, op, position: Variable("multiprocessors", "size", 1, 1024, op.loc),
    gluon.WarpGroupIdOp: lambda program, op, position: Variable("part", "block", 0, op.attributes["parts"] - 1, op.loc),
    gluon.WorkItemOp: lambda program, op, position: program.item(op),  # type: ignore[arg-type]
    arith.AddOp: _binary(add),
    arith.SubOp: _binary(terms.subtract),
    arith.MulOp: _binary(multiply),
    arith.FloorDivOp: _binary(terms.floor_divide),
    arith.CeilDivOp: _binary(lambda a, b: terms.negate(terms.floor_divide(terms.negate(a), b))),
    arith.FloorModOp: _binary(terms.floor_modulo),
    arith.TruncDivOp: _binary(terms.truncated_divide),
    arith.TruncModOp: _binary(terms.truncated_modulo),
    arith.MinOp: _binary(terms.minimum),
    arith.MaxOp: _binary(terms.maximum),
    arith.NegOp: _binary(terms.negate),  # type: ignore[arg-type]
    arith.AndOp: _bit("and"),
    arith.OrOp: _bit("or"),
    arith.XorOp: _bit("xor"),
    arith.ShlOp: _shift(True),
    arith.ShrOp: _shift(False),
    arith.NotOp: _not,
    arith.CmpOp: _compared,
    arith.SelectOp: lambda program, op, position: terms.select(*program.operands(op, position)),
    arith.CastOp: _cast,
    arith.BitcastOp: _cast,
    arith.MathOp: _function,
    tensor.BroadcastOp: _moved,
    tensor.ReshapeOp: _moved,
    tensor.TransposeOp: _moved,
    tensor.GatherOp: _within_source,
    tensor.ReduceOp: _within_source,
    tensor.ScanOp: _within_source,
}  # fmt: skip
