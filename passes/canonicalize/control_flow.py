"""Canonicalization patterns for scf: branches and loops whose outcome is known at compile time."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.analysis.dependence import ancestors
from tiledsl.analysis.loops import products_in, trip_count
from tiledsl.dialects import arith
from tiledsl.dialects.arith import Number, constant_of
from tiledsl.dialects.scf import ConditionOp, ForOp, IfOp, WhileOp
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Pattern, Rewriter, pattern
from tiledsl.passes.dce import drop_dead_iter_args, remove_iter_args


def _inline(op: Operation, region: Region, values: list[Value], rw: Rewriter) -> None:
    """Replace `op` by the body of a region; `values` take the place of the region's arguments."""
    for arg, value in zip(region.args, values, strict=True):
        _replace(arg, value, rw)
    terminator = region.terminator
    results = list(terminator.values if isinstance(terminator, ConditionOp) else terminator.operands)
    for inner in region:
        if inner is terminator:
            inner.erase()
        else:
            inner.move_before(op)
            rw.changed(inner)
    rw.replace(op, results)


@pattern(IfOp)
def take_known_branch(op: IfOp, rw: Rewriter) -> bool:
    # if true { A } else { B }  ==>  A
    known = constant_of(op.condition)
    if known is None:
        return False
    _inline(op, op.then if known else op.orelse, [], rw)
    return True


@pattern(IfOp)
def simplify_if_results(op: IfOp, rw: Rewriter) -> bool:
    # results that are unused, or the same outside value from both sides, go; without other work an if is a select
    then, orelse = op.then.terminator, op.orelse.terminator
    drop = []
    empty = op.then.first is then and op.orelse.first is orelse
    for index, value in enumerate(op.results):
        a, b = then.operands[index], orelse.operands[index]
        if not value.uses:
            drop.append(index)
        elif a is b or empty:
            rw.before = op
            chosen = a if a is b else rw.insert(arith.SelectOp(op.condition, a, b)).result
            _replace(value, chosen, rw)
            drop.append(index)
    if not drop:
        return False
    for terminator in (then, orelse):
        _requeue([terminator.operands[index] for index in drop], rw)
        terminator.set_field("values", _without(terminator.operands, drop))
    op.results = _without(op.results, drop)
    return True


@pattern(IfOp)
def invert_empty_then(op: IfOp, rw: Rewriter) -> bool:
    # if c {} else { A }  ==>  if not c { A } else {};    if not c { A } else { B }  ==>  if c { B } else { A }
    inner = op.condition.op
    if isinstance(inner, arith.NotOp) and op.orelse.first is not op.orelse.last:
        condition = inner.source
    elif op.then.first is op.then.last and not op.results:
        condition = rw.insert(arith.NotOp(op.condition)).result
    else:
        return False
    op.set_operands([condition])
    op.regions.reverse()
    return True


@pattern(ForOp)
def remove_decided_loop(op: ForOp, rw: Rewriter) -> bool:
    # a loop that never runs gives its initial values; one that runs once is its body, unless it is for select-emitter
    count = trip_count(op)
    if count == 0:
        rw.replace(op, op.inits)
    elif count == 1 and not (op.num_stages and products_in(op) > 1):
        _inline(op, op.body, [op.lower, *op.inits], rw)
    else:
        return False
    return True


@pattern(ForOp)
def drop_unchanging_iter_args(op: ForOp, rw: Rewriter) -> bool:
    # a value that every iteration hands on as it was is the initial one
    terminator = op.body.terminator
    unchanging = []
    for index, (init, arg) in enumerate(zip(op.inits, op.iter_args, strict=True)):
        if terminator.operands[index] in (arg, init):
            unchanging.append(index)
            _replace(arg, init, rw)
            _replace(op.results[index], init, rw)
    if unchanging:
        remove_iter_args(op, unchanging)
    return bool(unchanging)


@pattern(ForOp)
def drop_unused_iter_args(op: ForOp, rw: Rewriter) -> bool:
    # a value carried only for itself goes
    before = list(op.yielded)
    if not drop_dead_iter_args(op):
        return False
    _requeue(before, rw)
    return True


@pattern(ConditionOp)
def remove_while_that_never_runs(op: ConditionOp, rw: Rewriter) -> bool:
    # while false { A }  ==>  what comes before the condition, once; also where it is false for the initial values
    loop = op.parent_op
    assert isinstance(loop, WhileOp), "a condition ends what a while loop tests"
    known = constant_of(op.condition)
    if known is None:
        initial = dict(zip(loop.before.args, map(constant_of, loop.inits), strict=True))
        known = _folded(op.condition, loop.before, initial)
    if known is not False:
        return False
    _inline(loop, loop.before, loop.inits, rw)
    return True


def _folded(value: Value, region: Region, constants: dict[Value, Number | None]) -> Number | None:
    """The constant that a value computed in a region is, with these constants for others."""
    if value not in constants:
        op = value.op
        constants[value] = constant_of(value)
        if constants[value] is None and op is not None and op.parent is region and not op.has_effects:
            numbers = [_folded(each, region, constants) for each in op.operands]
            if None not in numbers:
                constants[value] = _fold_of_constants(op, numbers)
    return constants[value]


def _fold_of_constants(op: Operation, numbers: Sequence[Number | None]) -> Number | None:
    """What an operation of one result folds to, for constant operands."""
    made = [arith.ConstantOp(value=each, result_types=[value.type]) for each, value in zip(numbers, op.operands)]
    twin = op.clone({value: constant.out for value, constant in zip(op.operands, made)})
    folded = twin.fold()
    twin.erase()
    (value,) = folded or (None,)
    return constant_of(value) if isinstance(value, Value) else value


@pattern(WhileOp)
def drop_unchanging_while(op: WhileOp, rw: Rewriter) -> bool:
    # the same for while: a carried value that comes back as it was is the initial one
    condition, following = op.before.terminator, op.after.terminator
    assert isinstance(condition, ConditionOp)
    for index, (init, arg) in enumerate(zip(op.inits, op.before.args, strict=True)):
        back = following.operands[index]
        handed = [inner for inner, value in zip(op.after.args, condition.values, strict=True) if value is arg]
        if back is init or back in handed:
            _replace(arg, init, rw)
            following.set_field("values", _without(following.operands, [index]))
            op.set_field("inits", _without(op.inits, [index]))
            op.before.set_args(_without(op.before.args, [index]))
            return True
    for index, value in enumerate(condition.values):
        inner = op.after.args[index]
        outside = not isinstance(value.owner, Region) and not _is_inside(value, op)
        outside = outside or (isinstance(value.owner, Region) and value.owner is not op.before)
        if outside:
            _replace(inner, value, rw)
            _replace(op.results[index], value, rw)
        if not inner.uses and not op.results[index].uses:
            _requeue([value], rw)
            condition.set_field("values", _without(condition.values, [index]))
            op.after.set_args(_without(op.after.args, [index]))
            op.results = _without(op.results, [index])
            return True
    return False


def _is_inside(value: Value, op: Operation) -> bool:
    """Whether the operation that defines `value` is nested in `op`."""
    return value.op is op or (value.op is not None and op in ancestors(value.op))


def _replace(old: Value, new: Value, rw: Rewriter) -> None:
    for user in old.uses:
        rw.changed(user)
    old.replace_with(new)


def _requeue(values: list[Value], rw: Rewriter) -> None:
    for value in values:
        if value.op is not None:
            rw.changed(value.op)


def _without(values: list[Value], positions: list[int]) -> list[Value]:
    return [value for index, value in enumerate(values) if index not in positions]


CONTROL_FLOW_PATTERNS: list[Pattern] = [
    take_known_branch, simplify_if_results, invert_empty_then, remove_decided_loop, drop_unchanging_iter_args,
    drop_unused_iter_args, remove_while_that_never_runs, drop_unchanging_while,
]  # fmt: skip
