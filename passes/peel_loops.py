"""Loops whose masks matter only in their first or last iterations are divided there."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass

from tiledsl.analysis.affine import INDEX_DTYPES, is_position
from tiledsl.analysis.dependence import depends_on, reached, stripped
from tiledsl.analysis.hardware import MEASURED_ARCH
from tiledsl.analysis.linear import LinearForm, single_form
from tiledsl.analysis.loop_masks import conditions_of
from tiledsl.analysis.loops import trip_count
from tiledsl.analysis.ranges import Ranges, dtype_interval
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, ScalarType, broadcast_shapes
from tiledsl.location import Loc
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize
from tiledsl.passes.specs import check_choice
from tiledsl.passes.unused_options import changed, remark_unused

MODES = ("auto", "off", "causal", "all")
MEASURED_TILES = 4  # without a mask, between a window's start and its end: with 2 it was slower, with 6 faster
_OF_CONDITIONS = (arith.AndOp, arith.OrOp, arith.NotOp, tensor.BroadcastOp)
_INT64 = ScalarType("int64")
_log = logging.getLogger("tiledsl")


@dataclass(frozen=True)
class PeelLoops(Pass):
    """Divide a loop so that most of its iterations run without the masks that only the first or the last ones need.

    Before:  scf.for %c0, %end, %c1 (%k) {              After:  scf.for %c0, %split, %c1 (%k) {
               %ok = arith.cmp %columns, %n                       %a = tile.load %A[%row, %columns]
                     {predicate = "lt"}                           ... }
               %a = tile.load %A[%row, %columns] mask=%ok       scf.for %split, %end, %c1 (%k) { as before }
               ... }

    A condition qualifies if it compares sums of the loop index (with a constant factor), of values from outside the
    loop, and of values with a known range, such as positions in a tile. The loop is split where the condition starts or
    ceases to be the same for all elements: at the diagonal of causal attention, the start of a window, or a ragged last
    tile. `mode` is "off"; "causal" (loops with masks that compare rows with columns, or that select values up to a
    length which is loaded or handed to the kernel, and all masks of those loops); "all" (also loops whose masks only
    check tensor bounds); or "auto": on sm_90, "causal" for loops with matrix products, unless they have few iterations
    or a window is so narrow that few of them have no mask. Innermost and pipelined loops are divided, into three parts
    if both ends have masks. A first part that would be there for loaded offsets below 0 alone is left out: with such an
    offset, all iterations run with their masks. All parts keep their depth, so that the first loads of the last part
    are in flight together. Loops that share a bound are one loop that the program itself divided; they are left alone.
    The kernel's remarks say why a loop with such masks is left alone; with "all", why any loop is.
    Needs:   select-access: blocks that hardware copies have no masks. Kernels for Gluon are left alone.
    """

    name = "peel-loops"
    mode: str = "auto"

    def run(self, program: Program) -> None:
        check_choice(self, "mode", MODES)
        target = program.target
        is_measured = target is not None and target.arch == MEASURED_ARCH
        if self.mode == "off" or (self.mode == "auto" and not is_measured):
            return
        ranges = Ranges(program.root)
        peeled: set[Loc] = set()
        whole: list[tuple[tile.KernelOp, scf.ForOp, NotPeeled]] = []
        for kernel in tile.kernels(program.root):
            if targets_gluon(kernel):
                remark_unused(kernel, changed(self, "mode"))
                continue
            loops = [op for op in kernel.nests() if isinstance(op, scf.ForOp) and not op.unroll]
            for loop in [each for each in loops if self._is_wanted(each)]:
                try:
                    if _is_part(loop, loops):
                        raise NotPeeled("the program has divided it itself")
                    _peel(loop, ranges, MEASURED_TILES if self.mode == "auto" else 1)
                    peeled.add(loop.loc)
                except NotPeeled as failure:
                    whole.append((kernel, loop, failure))
        for kernel, loop, reason in whole:
            if loop.loc not in peeled:  # a loop that split-k made of one that is peeled is none of the program's
                _explain(kernel, loop, reason)
        if peeled:
            canonicalize(program.root, CANONICAL_PATTERNS)
            _simplify_masks(program)
            canonicalize(program.root, CANONICAL_PATTERNS)

    def _is_wanted(self, loop: scf.ForOp) -> bool:
        if not loop.num_stages and of_kinds(loop.body.walk(), scf.ForOp, scf.WhileOp):
            return False
        if self.mode == "all":
            return True
        inside = list(loop.body.walk())
        if self.mode == "auto" and (
            not of_kinds(inside, tensor.DotOp) or (trip_count(loop) or math.inf) < MEASURED_TILES
        ):
            return False
        comparisons: list[arith.CmpOp] = of_kinds(inside, arith.CmpOp)
        return any(_compares_rows_with_columns(op) or _ends_at_a_length(op, loop) for op in comparisons)


def _ends_at_a_length(op: arith.CmpOp, loop: scf.ForOp) -> bool:
    """Whether values are selected by a comparison of the loop's positions with what only the kernel's data say."""
    if op.lhs.dtype not in INDEX_DTYPES or not op.out.shape or all(map(is_position, op.operands)):
        return False
    users = reached([op.out], lambda value: [user.result for user in value.uses if isinstance(user, _OF_CONDITIONS)])
    selected = (isinstance(user, arith.SelectOp) and user.condition is each for each in users for user in each.uses)
    return any(selected) and depends_on(op.out, [loop.index])


def _compares_rows_with_columns(op: arith.CmpOp) -> bool:
    return op.lhs.dtype in INDEX_DTYPES and sum(size > 1 for size in op.out.shape) > 1


class NotPeeled(Exception):
    """Why a loop is left alone."""


def _explain(kernel: tile.KernelOp, loop: scf.ForOp, reason: NotPeeled) -> None:
    remark = f"the loop in line {loop.loc.line} is not peeled, because {reason}"
    kernel.add_remark(remark)
    _log.info("%s: %s", kernel.sym_name, remark)


def _is_part(loop: scf.ForOp, loops: Iterable[scf.ForOp]) -> bool:
    """Whether another loop begins where this one ends, or ends where this one begins."""
    others = [op for op in loops if op.parent is loop.parent]
    return any(_meet(loop, op) or _meet(op, loop) for op in others)


def _meet(first: scf.ForOp, second: scf.ForOp) -> bool:
    return first.upper is second.lower and constant_of(first.upper) is None


def _peel(loop: scf.ForOp, ranges: Ranges, least: int) -> None:
    """Divide a loop, if at least `least` iterations may have no mask."""
    step = constant_of(loop.step)
    if not isinstance(step, int) or step < 1:
        raise NotPeeled("its step is not a positive constant")
    conditions = list(conditions_of(loop, ranges))
    if not conditions:
        raise NotPeeled("no mask in it changes linearly with its index")
    needed = [(each, [_Count.of(form, loop, step) for form in (each.form, *each.guards)]) for each in conditions]
    dropped = [(each, own) for each, own in needed if all(one.leaves_some(loop, step, ranges) for one in own)]
    counts = [count for _, own in dropped for count in own]
    if not counts:
        raise NotPeeled("its masks are needed in every iteration")
    if _between(counts) < least:
        raise NotPeeled("a window leaves too few iterations without a mask")
    largest = max(count.largest(loop, ranges) for count in counts)
    if largest > dtype_interval("int64").hi:
        raise NotPeeled("the numbers that its masks compare may need more than 64 bits")
    type = INT32 if largest <= dtype_interval("int32").hi and loop.index.type == INT32 else _INT64
    spare = max(count.divisor for count in counts)
    extra = 1 if largest + spare <= dtype_interval(type.dtype).hi else 0
    offsets = [one for each, own in dropped if _is_offset(each.comparison) for one in own if not one.ends]
    others = [count for count in counts if count not in offsets]
    if not any(count.ends for count in others):  # nothing else would follow the iterations without masks
        offsets, others = [], counts
    _divide(loop, _tightest(others), _tightest(offsets), step, type, extra)
    for condition, _ in dropped:
        out = condition.comparison.out
        out.replace_with(Builder.at(condition.comparison).constant(condition.wanted, out.type))


@dataclass(frozen=True)
class _Count:
    """max(0, sum of `terms` + `number`) // `divisor` iterations, counted from the first.

    If `ends`, a condition holds for all elements in these iterations; otherwise in those that follow.
    """

    ends: bool
    terms: tuple[tuple[Value, int], ...]
    number: int
    divisor: int

    @staticmethod
    def of(form: LinearForm, loop: scf.ForOp, step: int) -> _Count:
        # The condition holds in iteration t where index * step * t + start >= 0.
        index = form.coefficient(loop.index)
        start = form.substituted(loop.index, single_form(loop.lower))
        divisor = abs(index or 1) * step  # a guard may not change: then it is far from 0 if it holds
        grows = index > 0
        sign = -1 if grows else 1
        terms = tuple((value, sign * factor) for factors, factor in start.terms.items() for value in factors)
        return _Count(not grows, terms, sign * start.constant + divisor - grows, divisor)

    def leaves_some(self, loop: scf.ForOp, step: int, ranges: Ranges) -> bool:
        """Whether the condition may hold in some iteration."""
        ends = [sorted(factor * end for end in ranges.of(value)) for value, factor in self.terms]
        least, most = ((self.number + sum(each[side] for each in ends)) // self.divisor for side in (0, 1))
        if self.ends:
            return most > 0
        return ranges.of(loop.lower).lo + step * least < ranges.of(loop.upper).hi

    def largest(self, loop: scf.ForOp, ranges: Ranges) -> float:
        """An upper bound of every number that the computation of the split goes through."""
        terms = sum(abs(factor) * max(map(abs, ranges.of(value))) for value, factor in (*self.terms, (loop.lower, 1)))
        return abs(self.number) + terms


def _tightest(counts: Iterable[_Count]) -> list[_Count]:
    """Of the counts that differ only in their number, those that leave the fewest iterations without a mask."""
    tightest: dict[object, _Count] = {}
    for each in counts:
        key = (each.ends, frozenset(each.terms), each.divisor)
        old = tightest.get(key)
        if old is None or (each.number < old.number) == each.ends:
            tightest[key] = each
    return list(tightest.values())


def _between(counts: list[_Count]) -> float:
    """The most iterations between those that need a mask of the loop's start and those that need one of its end."""
    most = math.inf
    for start, end in itertools.product(counts, counts):
        alike = start.divisor == end.divisor and dict(start.terms) == dict(end.terms)
        if end.ends and not start.ends and alike:
            most = min(most, -((start.number - end.number) // end.divisor))
    return most


def _is_offset(op: arith.CmpOp) -> bool:
    """Whether a comparison only asks if a place that is loaded from memory lies in its tensor at all."""
    return constant_of(op.rhs) is not None and not is_position(op.lhs)


def _divide(
    loop: scf.ForOp, counts: list[_Count], offsets: list[_Count], step: int, type: ScalarType, extra: int
) -> None:
    """Put a copy before the loop, after it, or both, and let each run a part of the iterations: the last one all, if
    there are iterations that one of `offsets` counts."""
    at = Builder.at(loop)
    lower, upper = _as(at, loop.lower, type), _as(at, loop.upper, type)

    def split(count: Value) -> Value:
        end = at.insert(arith.AddOp(lower, at.insert(arith.MulOp(count, at.constant(step, type))).result)).result
        return _as(at, at.insert(arith.MinOp(end, upper)).result, ScalarType(loop.lower.dtype))

    skipped = [_emit(at, each, type, extra) for each in counts if not each.ends]
    ending = [_emit(at, each, type, extra) for each in counts if each.ends]
    first = _combined(at, arith.MaxOp, skipped)
    last = _combined(at, arith.MinOp, ending)
    if first is not None and last is not None:
        last = at.insert(arith.MaxOp(first, last)).result
    for each in offsets:
        zero = at.constant(0, type)
        is_below = at.insert(arith.CmpOp(_emit(at, each, type, extra), zero, predicate="gt")).result
        assert last is not None
        last = at.insert(arith.SelectOp(is_below, zero if first is None else first, last)).result
    assert loop.parent is not None
    if first is not None:
        start = split(first)
        head = at.insert(loop.clone({}))
        assert isinstance(head, scf.ForOp)
        head.set_field("upper", [start])
        loop.set_field("lower", [start])
        loop.set_field("inits", head.results)
    if last is not None:
        rest_loop = loop.clone({})
        assert isinstance(rest_loop, scf.ForOp)
        end = split(last)
        for old, new in zip(loop.results, rest_loop.results, strict=True):
            old.replace_with(new)
        loop.parent.insert(rest_loop, loop.next)
        rest_loop.set_field("lower", [end])
        rest_loop.set_field("inits", loop.results)
        loop.set_field("upper", [end])


def _emit(at: Builder, count: _Count, type: ScalarType, extra: int) -> Value:
    """The count. With `extra` iterations that are counted and taken away again, simplify-ranges leaves the division as
    it is: where the bounds of the last loop show that it runs once, LLVM unrolls it behind Triton's back, and ptxas
    serialises its wgmma (its note C7515; seen with causal attention of square tiles)."""
    divisor, spare = at.constant(count.divisor, type), at.constant(extra * count.divisor, type)
    total = at.constant(count.number + extra * count.divisor, type)
    for value, factor in count.terms:
        term = at.insert(arith.MulOp(_as(at, value, type), at.constant(factor, type))).result
        total = at.insert(arith.AddOp(term, total)).result
    more = at.insert(arith.TruncDivOp(at.insert(arith.MaxOp(total, spare)).result, divisor)).result
    return at.insert(arith.SubOp(more, at.constant(extra, type))).result


def _combined(at: Builder, op_type: type[arith.BinaryOp], values: list[Value]) -> Value | None:
    result: Value | None = None
    for each in values:
        result = each if result is None else at.insert(op_type(result, each)).result
    return result


def _as(at: Builder, value: Value, type: ScalarType) -> Value:
    return value if value.type == type else at.insert(arith.CastOp(value, result_types=[type])).result


def _simplify_masks(program: Program) -> None:
    """Reduce masks to their conditions that may fail, each in its own shape; drop masks that always hold."""
    for op in program.root.walk():
        neutral = isinstance(op, arith.AndOp)
        if isinstance(op, (arith.AndOp, arith.OrOp)) and any(constant_of(each) is neutral for each in op.operands):
            other = op.rhs if constant_of(op.lhs) is neutral else op.lhs
            wide = Builder.at(op).insert(tensor.BroadcastOp(other, result_types=[op.out.type]))
            op.out.replace_with(wide.out)
        elif isinstance(op, (tile.LoadOp, tile.StoreOp, tile.AtomicOp)) and op.mask is not None:
            mask = stripped(op.mask, tensor.BroadcastOp)
            kept = [] if constant_of(mask) is True else [mask]
            others = [value.shape for value in (*op.indices, *([] if isinstance(op, tile.LoadOp) else [op.value]))]
            if broadcast_shapes(*others, *(each.shape for each in kept)) == broadcast_shapes(*others, op.mask.shape):
                op.set_field("mask", kept)
                if isinstance(op, tile.LoadOp) and not kept:
                    op.set_field("other", [])
