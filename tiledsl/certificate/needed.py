"""When what a load gives makes a difference: not where a condition leaves it out, or what it is stored to is no
element."""

from __future__ import annotations

from tiledsl.certificate import terms
from tiledsl.certificate.accesses import Accesses
from tiledsl.certificate.terms import FALSE, TRUE, Term, both, compare, either
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Effect, Operation, Region, Value


def needed(program: Accesses, op: Operation) -> Term:
    """A condition that holds wherever the result of an operation of an elaborated program is of use."""
    return _of(program, op.result, op.parent)


def _of(program: Accesses, value: Value, region: Region | None) -> Term:
    if value.shape:
        return TRUE
    return either(*(both(_reached(program, user, region), _by(program, value, user)) for user in value.uses))


def _reached(program: Accesses, user: Operation, region: Region | None) -> Term:
    """When an operation is done, as far as the branches between it and a region say."""
    conditions = []
    while (inside := user.parent) is not None and inside is not region:
        around = inside.parent
        if not isinstance(around, scf.IfOp):
            return TRUE
        condition = program.element(around.condition, ())
        conditions.append(condition if inside is around.then else terms.invert(condition))
        user = around
    return both(*conditions)


def _by(program: Accesses, value: Value, user: Operation) -> Term:
    """When an operation makes use of one of its operands."""
    if isinstance(user, arith.SelectOp) and value is not user.condition:
        condition = program.element(user.condition, ())
        sides = [(user.on_true, condition), (user.on_false, terms.invert(condition))]
        chosen = either(*(when for side, when in sides if side is value))
        return both(chosen, _of(program, user.result, user.parent))
    if isinstance(user, (arith.AndOp, arith.OrOp)) and user.out.dtype == "bool":
        other = program.element(user.rhs if value is user.lhs else user.lhs, ())
        open_ = other if isinstance(user, arith.AndOp) else terms.invert(other)
        return both(open_, _of(program, user.result, user.parent))
    if isinstance(user, (tile.StoreOp, tile.AtomicOp)) and not user.guarded and not tile.is_on_chip(user.buffer):
        if value in user.indices or any(index.shape for index in user.indices):
            return TRUE
        type = tile.buffer_type(user.buffer)
        pairs = [(program.element(index, ()), program.extent(dim)) for index, dim in zip(user.indices, type.shape)]
        return both(*(part for at, size in pairs for part in (compare("ge", at, FALSE), compare("lt", at, size))))
    if user.effects is Effect.NONE and not user.regions and len(user.results) == 1:
        return _of(program, user.result, user.parent)
    return TRUE
