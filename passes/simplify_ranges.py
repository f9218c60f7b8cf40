"""Comparisons, minima, maxima, quotients and remainders that integer ranges decide."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.affine import form_interval
from tiledsl.analysis.linear import LinearForm, Reader
from tiledsl.analysis.ranges import EVERYTHING, Interval, Ranges
from tiledsl.dialects import arith, scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Patterns, Rewriter, pattern
from tiledsl.ir.types import is_float
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize


@dataclass
class _Sums(Reader):
    """Reads sums of unbounded integers: those that are proven not to wrap."""

    ranges: Ranges

    def holds(self, value: Value, form: LinearForm) -> bool:
        return isinstance(value.op, (arith.AddOp, arith.SubOp, arith.MulOp)) and self.ranges.never_wraps(value.op)


def _difference(ranges: Ranges, lhs: Value, rhs: Value) -> Interval | None:
    """The interval of lhs - rhs, where the two have terms in common."""
    if not any(isinstance(each.op, arith.BinaryOp) for each in (lhs, rhs)):
        return None
    forms = [_Sums(ranges).read(each) for each in (lhs, rhs)]
    a, b = forms
    assert a is not None and b is not None
    if not {factors for factors in a.terms if factors} & b.terms.keys():
        return None
    return form_interval(a.plus(b, -1), ranges, EVERYTHING, lambda factors, coefficient: False)


def decide(ranges: Ranges, predicate: str, lhs: Value, rhs: Value) -> bool | None:
    """Whether an integer comparison always or never holds; None if that is not known."""
    if is_float(lhs.dtype):
        return None
    if predicate in ("gt", "le"):
        less = decide(ranges, "lt", rhs, lhs)
        return less if predicate == "gt" or less is None else not less
    a, b = ranges.of(lhs), ranges.of(rhs)
    if predicate in ("eq", "ne"):
        if ranges.below(lhs, rhs) or ranges.below(rhs, lhs):
            return predicate == "ne"
        return (predicate == "eq") if a.lo == a.hi == b.lo == b.hi else None
    less = None
    if ranges.below(lhs, rhs):
        less = True
    elif a.lo >= b.hi or ranges.below(rhs, lhs) or (constant_of(rhs) == 0 and ranges.is_nonnegative(lhs)):
        less = False
    elif (gap := _difference(ranges, lhs, rhs)) is not None and (gap.hi < 0 or gap.lo >= 0):
        less = gap.hi < 0
    return less if predicate == "lt" or less is None else not less


def _is_assumed(op: Operation) -> bool:
    return any(_assumes(user) for value in op.results for user in value.uses)


def _assumes(op: Operation) -> bool:
    return isinstance(op, tile.AssumeOp) or (isinstance(op, arith.AndOp) and _is_assumed(op))


@pattern(arith.CmpOp)
def decide_comparison(op: arith.CmpOp, rw: Rewriter) -> bool:
    # k * 64 + iota(64) < 4096 with k < 64  ==>  true
    ranges: Ranges = rw.analysis
    outcome = decide(ranges, op.predicate, op.lhs, op.rhs)
    if outcome is None:
        return False
    if not _is_assumed(op):
        rw.replace(op, [rw.constant(outcome, op.out.type)])
        return True
    # An assumption proves itself: it must stay, or later passes could not use it.
    users = [user for user in op.out.uses if not _assumes(user)]
    if users:
        constant = rw.constant(outcome, op.out.type)
        for user in users:
            user.set_operands([constant if value is op.out else value for value in user.operands])
            rw.changed(user)
    return bool(users)


def extremum(ranges: Ranges, op: arith.MinOp | arith.MaxOp) -> Value | None:
    """The operand that a minimum or maximum of integers always is; None if that is not known."""
    less = decide(ranges, "lt", op.lhs, op.rhs)
    if less is None:
        more = decide(ranges, "lt", op.rhs, op.lhs)
        less = None if more is None else not more
    return None if less is None else op.lhs if less == isinstance(op, arith.MinOp) else op.rhs


@pattern(arith.MinOp, arith.MaxOp)
def decide_extremum(op: arith.MinOp | arith.MaxOp, rw: Rewriter) -> bool:
    # min(x, 8) with x < 8  ==>  x
    chosen = extremum(rw.analysis, op)
    return chosen is not None and _replace(op, chosen, rw)


@pattern(arith.FloorDivOp, arith.TruncDivOp, arith.FloorModOp, arith.TruncModOp)
def decide_division(op: arith.BinaryOp, rw: Rewriter) -> bool:
    # x // 8 and x % 8 with 0 <= x < 8  ==>  0 and x
    ranges: Ranges = rw.analysis
    if ranges.of(op.lhs).lo < 0 or not ranges.below(op.lhs, op.rhs):
        return False
    if isinstance(op, (arith.FloorModOp, arith.TruncModOp)):
        return _replace(op, op.lhs, rw)
    rw.replace(op, [rw.constant(0, op.out.type)])
    return True


@pattern(arith.FloorDivOp, arith.TruncDivOp, arith.FloorModOp, arith.TruncModOp)
def divide_multiple(op: arith.BinaryOp, rw: Rewriter) -> bool:
    # (x * 24 + y) // 8 with 0 <= y < 8  ==>  x * 3;    (x * 24 + y) % 8  ==>  y % 8
    ranges: Ranges = rw.analysis
    divisor = constant_of(op.rhs)
    if type(divisor) is not int or divisor <= 0:
        return False
    truncates = isinstance(op, (arith.TruncDivOp, arith.TruncModOp))
    if truncates and ranges.of(op.lhs).lo < 0:
        return False
    product, addend = op.lhs, None
    sum = product.op
    if isinstance(sum, arith.AddOp):
        if not ranges.never_wraps(sum):
            return False
        product, addend = (sum.lhs, sum.rhs) if isinstance(sum.lhs.op, arith.MulOp) else (sum.rhs, sum.lhs)
    times = product.op
    factor = constant_of(times.rhs) if isinstance(times, arith.MulOp) else None
    if not isinstance(times, arith.MulOp) or type(factor) is not int or factor % divisor:
        return False
    if not ranges.never_wraps(times) or (truncates and (addend is not None and ranges.of(addend).lo < 0)):
        return False
    if isinstance(op, (arith.FloorModOp, arith.TruncModOp)):
        if addend is None:
            rw.replace(op, [rw.constant(0, op.out.type)])
            return True
        if addend.type != op.out.type:
            return False
        rw.replace(op, [rw.insert(type(op)(addend, op.rhs)).result])
        return True
    # With y >= 8 the bounds of a loop could show that it runs once: LLVM then unrolls it behind Triton's back, and
    # ptxas serialises its wgmma (seen in the diagonal loop of causal attention with 128 x 128 tiles).
    if addend is not None and (ranges.of(addend).lo < 0 or ranges.of(addend).hi >= divisor):
        return False
    if product.type != op.out.type:
        return False
    scale = rw.constant(factor // divisor, op.rhs.type)
    rw.replace(op, [rw.insert(arith.MulOp(times.lhs, scale)).result])
    return True


@pattern(scf.ForOp)
def drop_loop_that_never_runs(op: scf.ForOp, rw: Rewriter) -> bool:
    # for i in range(a, b) with b <= a  ==>  nothing
    ranges: Ranges = rw.analysis
    if ranges.of(op.step).lo <= 0 or ranges.of(op.upper).hi > ranges.of(op.lower).lo:
        return False
    rw.replace(op, op.inits)
    return True


def _replace(op: Operation, value: Value, rw: Rewriter) -> bool:
    number = constant_of(value)
    if value.type == op.result.type:
        rw.replace(op, [value])
    elif number is not None:
        rw.replace(op, [rw.constant(number, op.result.type)])
    else:
        return False
    return True


# The patterns look for the ranges in `rw.analysis`.
RANGE_PATTERNS = Patterns(
    [
        decide_comparison,
        decide_extremum,
        decide_division,
        divide_multiple,
        drop_loop_that_never_runs,
        *CANONICAL_PATTERNS.every,
    ]
)


@dataclass(frozen=True)
class SimplifyRanges(Pass):
    """Fold what integer ranges decide, together with canonicalize's patterns.

    Before:  %ok = arith.cmp %rows, %m {predicate = "lt"} : tensor<128x1xbool>      After:  true, if rows < m always
    Needs:   nothing; most effective after promote-buffers. See analysis/ranges.py for what is known.
    """

    name = "simplify-ranges"

    def run(self, program: Program) -> None:
        canonicalize(program.root, RANGE_PATTERNS, Ranges(program.root))
