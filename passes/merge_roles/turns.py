"""Last turns that a role does behind its loop go back into it, so that it has as many turns as those of other roles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiledsl.dialects import arith, scf
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.rewrite import Builder
from tiledsl.passes.merge_roles.order import Keys, resolved
from tiledsl.passes.merge_roles.roles import Threads, is_variable


def take_last_turns(region: Region, threads: Threads) -> bool:
    """`for i in range(u): ...; if u < n: last` becomes a loop of n turns, where another role has one: whether any did.

    n is u or u + 1, so that one turn at most does `last`; where it is not reached, the other role would hang.
    """
    keys = Keys(set())
    loops = [op for op in of_kinds(region.walk(), scf.ForOp) if threads.divides(op) and not op.inits]
    loops = [op for op in loops if constant_of(op.lower) == 0 and constant_of(op.step) == 1]
    done = False
    for loop in loops:
        found = _last_turn(loop, threads)
        if found is not None and (more := _turns_more(loop, found, loops, keys)):
            _take(loop, found, more[0])
            done = True
    return done


def _turns_more(loop: scf.ForOp, last: scf.IfOp, loops: Sequence[scf.ForOp], keys: Keys) -> list[Value]:
    """The numbers of turns of other loops that a loop has with a last turn behind it."""
    uppers = [other.upper for other in loops if keys.of(other.upper) != keys.of(loop.upper)]
    uppers = [each for each in uppers if _is_or_follows(each, loop.upper, keys)]
    return [each for each in uppers if _says(last.condition, loop.upper, each, keys)]


def _last_turn(loop: scf.ForOp, threads: Threads) -> scf.IfOp | None:
    """The branch behind a loop, in which the role waits or arrives, too."""
    for op in _behind(loop):
        if isinstance(op, scf.IfOp):
            only_then = op.orelse.first is op.orelse.last and not op.results
            return op if only_then and threads.divides(op) and not threads.depends(op.condition) else None
        if op.has_effects and not is_variable(op):
            return None
    return None


def _behind(op: Operation) -> Iterator[Operation]:
    while op.next is not None:
        op = op.next
        yield op


def _form(value: Value, keys: Keys) -> dict[object, int]:
    """A sum: the coefficient of each term by its key; that of 1 is the constant."""
    value = resolved(value)
    op, number = value.op, constant_of(value)
    if number is not None:
        return {1: int(number)}
    if isinstance(op, (arith.AddOp, arith.SubOp)):
        form, factor = _form(op.lhs, keys), 1 if isinstance(op, arith.AddOp) else -1
        for key, coefficient in _form(op.rhs, keys).items():
            form[key] = form.get(key, 0) + factor * coefficient
        return {key: coefficient for key, coefficient in form.items() if coefficient}
    return {keys.of(value): 1}


def _constant_difference(one: Value, other: Value, keys: Keys) -> int | None:
    form = _form(one, keys)
    for key, coefficient in _form(other, keys).items():
        form[key] = form.get(key, 0) - coefficient
    left = {key: coefficient for key, coefficient in form.items() if coefficient}
    return left.get(1, 0) if left.keys() <= {1} else None


def _is_or_follows(n: Value, u: Value, keys: Keys) -> bool:
    """Whether n is u or u + 1."""
    difference = _constant_difference(n, u, keys)
    if difference is not None:
        return difference in (0, 1)
    a, b = resolved(n).op, resolved(u).op
    if not isinstance(a, arith.FloorDivOp) or not isinstance(b, arith.FloorDivOp):
        return False
    by = constant_of(a.rhs)
    between = _constant_difference(a.lhs, b.lhs, keys)
    return isinstance(by, int) and by == constant_of(b.rhs) and between is not None and 0 <= between <= by


def _says(condition: Value, u: Value, n: Value, keys: Keys) -> bool:
    """Whether a condition holds only where there is a turn: u < n, or 0 < n where n is u + 1."""
    op = condition.op
    if not isinstance(op, arith.CmpOp) or op.predicate not in ("lt", "gt"):
        return False
    low, high = (op.lhs, op.rhs) if op.predicate == "lt" else (op.rhs, op.lhs)
    if _constant_difference(high, n, keys) != 0:
        return False
    return _constant_difference(low, u, keys) == 0 or constant_of(low) == 0 and _constant_difference(n, u, keys) == 1


def _take(loop: scf.ForOp, branch: scf.IfOp, n: Value) -> None:
    builder = Builder.at(loop)
    for op in list(_behind(loop)):
        if op is branch:
            break
        op.move_before(loop)
    upper = _copied(n, builder)
    own = loop.upper
    body = Region()
    for op in list(loop.body):
        if not op.is_terminator:
            body.insert(op.detach())
    scf.yielding(body)
    branch.detach()
    last = Region()
    last.insert(branch)
    scf.yielding(last)
    inner = Builder(loop.body, loop.body.first, loop.loc)
    goes_on = inner.insert(arith.CmpOp(loop.index, own, predicate="lt")).result
    inner.insert(scf.IfOp(goes_on, regions=[body, last], loc=loop.loc))
    loop.set_field("upper", [upper])


def _copied(value: Value, builder: Builder) -> Value:
    """A value computed anew, of variables and what is visible everywhere."""
    op = value.op
    if op is None or op.has_effects and not is_variable(op):
        return value
    mapping = {each: _copied(each, builder) for each in op.operands if not hasattr(each.type, "scope")}
    return builder.insert(op.clone(mapping)).results[op.results.index(value)]
