"""Scores are masked only in turns that need it, for kernels whose rows are divided among consumers. Part of
select-emitter."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tiledsl.analysis.affine import form_interval
from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.gluon.slices import needed_for
from tiledsl.analysis.linear import LinearForm, constant_form
from tiledsl.analysis.loop_masks import conditions_of
from tiledsl.analysis.ranges import EVERYTHING, Ranges, dtype_interval
from tiledsl.dialects import arith, scf, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ScalarType
from tiledsl.passes.index_arithmetic import materialize

_INT64 = ScalarType("int64")


def guard_masks(loop: scf.ForOp) -> None:
    """`select(mask, scores, -inf)` becomes `scores` in the first turns, if one comparison of positions makes the mask
    and shows that it holds for all of their elements: below the diagonal, or before the last keys.

    Masks of several comparisons are left alone: on an H200, packed sequences were 1 to 4% slower so.

    Before:  scf.for (%k) { ...                              After:  %full = ... number of such turns
               %ok = arith.cmp %columns, %row                        scf.for (%k) { ...
               %x = arith.select %ok, %scores, %low                    %needed = arith.cmp %k, %full {predicate = "ge"}
               ... }                                                   %x = scf.if %needed { %ok = ... } { %scores }
                                                                       ... }
    """
    ranges = Ranges.around(loop)
    if ranges.of(loop.index).lo < 0:
        return
    known = {each.comparison.out: each for each in conditions_of(loop, ranges)}
    for op in of_kinds(loop.body, arith.SelectOp):
        fills = [constant_of(stripped(side, tensor.BroadcastOp)) for side in (op.on_true, op.on_false)]
        condition = known.get(stripped(op.condition, tensor.BroadcastOp))
        if -math.inf not in fills or condition is None or len(op.out.shape) != 2:
            continue
        forms, scores = (condition.form, *condition.guards), op.on_true if condition.wanted else op.on_false
        ends = scores.type == op.out.type and condition.form.coefficient(loop.index) < 0
        if ends and all(_fits(form, ranges) and _leaves_some(form, loop, ranges) for form in forms):
            _guard(op, scores, loop, _turns(loop, forms))


def _fits(form: LinearForm, ranges: Ranges) -> bool:
    """Whether int64 holds all parts of a sum."""
    sizes = (
        abs(factor) * math.prod(max(map(abs, ranges.of(value))) for value in factors)
        for factors, factor in form.terms.items()
    )
    return sum(sizes) <= dtype_interval("int64").hi


def _leaves_some(form: LinearForm, loop: scf.ForOp, ranges: Ranges) -> bool:
    """Whether a sum may be at least 0 in the first turn, as far as ranges tell."""
    first = form.substituted(loop.index, LinearForm())
    return form_interval(LinearForm(first.terms), ranges, EVERYTHING, lambda *_: False).hi >= 0


def _turns(loop: scf.ForOp, forms: Iterable[LinearForm]) -> Value:
    """The index of the first turn in which one of the sums may be negative; none grows with the index."""
    at = Builder.at(loop)
    zero, most = at.constant(0, _INT64), int(dtype_interval(loop.index.dtype).hi)
    turns = at.constant(most, _INT64)
    for form in forms:
        step = -form.coefficient(loop.index)
        rest = form.substituted(loop.index, constant_form(-1))  # rounded up: a turn more
        total = materialize(at, LinearForm(rest.terms), "int64")
        if step:
            own = at.insert(arith.TruncDivOp(total, at.constant(step, _INT64))).result  # of less than 0: not above it
            turns = at.insert(arith.MinOp(turns, own)).result
        else:
            holds = at.insert(arith.CmpOp(total, zero, predicate="ge")).result
            turns = at.insert(arith.SelectOp(holds, turns, zero)).result
    return at.insert(arith.CastOp(turns, result_types=[loop.index.type], names=["full"])).result


def _guard(op: arith.SelectOp, scores: Value, loop: scf.ForOp, turns: Value) -> None:
    """Select only from this turn on."""
    at = Builder.at(op)
    then, orelse = Region(), Region()
    copies: dict[Value, Value] = {}
    needed = needed_for([op.condition])
    for each in [*(each for each in loop.body if each in needed and _is_tile(each)), op]:
        then.insert(each.clone(copies))
    then.insert(scf.YieldOp([copies[op.out]]))
    orelse.insert(scf.YieldOp([scores]))
    is_needed = at.insert(arith.CmpOp(loop.index, turns, predicate="ge")).result
    made = scf.IfOp(is_needed, regions=[then, orelse], result_types=[op.out.type], names=[op.out.name])
    op.out.replace_with(at.insert(made).result)
    op.erase()


def _is_tile(op: Operation) -> bool:
    return op.is_pure and all(value.shape for value in op.results)
