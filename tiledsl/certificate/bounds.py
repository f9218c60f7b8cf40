"""Bounds: every access stays inside of its tensor or tile, in every block, iteration and for every size.

Of global memory, what is looked at is the last IR, whose pointers, offsets and masks are what is emitted. First
intervals are asked, then the solver: about the distance from the tensor's first element or, where sizes are dynamic and
that is a product of unknowns, about the index along each dimension, as which the distance is read. Of on-chip memory it
is the program as it was written, whose tiles the passes make values of.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate

from tiledsl.certificate import terms
from tiledsl.certificate.access import Access
from tiledsl.certificate.accesses import Accesses
from tiledsl.certificate.check import Check
from tiledsl.certificate.needed import needed
from tiledsl.certificate.solver import Solver, shown
from tiledsl.certificate.terms import FALSE, Term, Variable, both, compare, constant, invert
from tiledsl.dialects import tile
from tiledsl.ir.core import Value
from tiledsl.ir.types import BufferType

_CLIPPED = "the copy unit leaves out what is outside of its descriptor, which the host makes from the tensor"
_VERBS = {"read": "load from", "write": "store to", "atomic": "atomic on"}


def check_bounds(func: tile.FuncOp, solver: Solver, guarded: bool = True) -> Iterator[Check]:
    """One check for each access to global memory of a lowered program.

    guarded: whether the compiler promised to mask what may lie outside. If not, an index that is read from memory makes
    the answer unknown; if so, a failure, for no value may lead outside.
    """
    program = Accesses(func)
    for access in program.all:
        subject = f"{_VERBS[access.mode]} {name_of(access.buffer)}"
        place = place_of(access)
        if access.clipped:
            yield Check("bounds", subject, "proved", _CLIPPED, place)
        elif access.type is None:
            yield Check("bounds", subject, "unknown", "it is not known into which tensor the pointer is", place)
        else:
            yield _checked(program, access, solver, subject, place, guarded)


def _checked(program: Accesses, access: Access, solver: Solver, subject: str, place: str, guarded: bool) -> Check:
    index, length = access.indices[0], access.extents[0]
    in_bounds = access.inside
    if in_bounds.number == 1:
        return Check("bounds", subject, "proved", "by intervals", place)
    out_of_bounds = [access.when, invert(in_bounds)]
    sizes = [each for each in terms.variables(out_of_bounds) if each.role == "size"]
    dynamic = bool(sizes) and not length.number
    if dynamic and _each_dimension(program, access, solver):
        return Check("bounds", subject, "proved", "by the solver, along each dimension", place)
    answer = solver.find([*terms.conjuncts(access.when), invert(in_bounds)], sizes)
    if answer.never:
        return Check("bounds", subject, "proved", "by the solver", place)
    if answer.values is None:
        return Check("bounds", subject, "unknown", answer.reason, place)
    involved = terms.variables([index, *out_of_bounds])
    unclear = next((each for each in involved if each.role == "unknown"), None)
    if unclear is not None:
        detail = f"the index depends on {unclear.name} (line {unclear.loc.line})"
        return Check("bounds", subject, "unknown", detail, place)
    data = next((each for each in terms.variables([index]) if each.role == "data"), None)
    if data is not None and not guarded:
        detail = f"nothing masks an index that depends on {data.name} (line {data.loc.line})"
        return Check("bounds", subject, "unknown", detail, place)
    at, size = value_of(index, answer.values), value_of(length, answer.values)
    detail = f"element {at} of {size}, where {shown(answer.values, [*access.own, *involved]) or 'it always happens'}"
    return Check("bounds", subject, "unknown" if answer.extreme else "failed", answer.extreme + detail, place)


def check_tile_bounds(func: tile.FuncOp, solver: Solver) -> Iterator[Check]:
    """One check for each on-chip buffer of an elaborated program of which elements are accessed by their indices.

    What a condition keeps from being used may be read anywhere, and atomics leave out what is outside of a tile.
    """
    program = Accesses(func)
    of_buffers: dict[Value, list[Access]] = {}
    for access in program.all:
        if tile.is_on_chip(access.buffer) and access.mode != "atomic":
            of_buffers.setdefault(access.buffer, []).append(access)
    for buffer, accesses in of_buffers.items():
        by_index = [each for each in accesses if isinstance(each.op, (tile.LoadOp, tile.StoreOp, tile.CopyOp))]
        if not by_index:
            continue
        subject = f"elements of {name_of(buffer)}"
        left = [found for each in by_index if (found := _outside_of_tile(program, each, solver, subject)) is not None]
        yield from left or [Check("bounds", subject, "proved", "each is in the tile", place_of(by_index[0]))]


def _outside_of_tile(program: Accesses, access: Access, solver: Solver, subject: str) -> Check | None:
    """What is wrong with an access to on-chip memory; None if it is inside."""
    inside = access.inside
    if inside.number == 1:
        return None
    question = [*terms.conjuncts(access.when), invert(inside)]
    if isinstance(access.op, tile.LoadOp):
        question += terms.conjuncts(needed(program, access.op))
    answer = solver.find(question)
    if answer.never:
        return None
    place = place_of(access)
    what = "is an element that the program does not say" if access.mode == "read" else "changes nothing"
    why = answer.reason or unclear_in(question)
    if why:
        return Check("bounds", subject, "unknown", f"{why}; outside of the tile, a {access.mode} {what}", place)
    at, sizes = (
        ", ".join(str(value_of(each, answer.known)) for each in part) for part in (access.indices, access.extents)
    )
    where = shown(answer.known, [*access.own, *terms.variables(question)])
    detail = f"[{at}] is outside of [{sizes}]" + (f", where {where}" if where else "")
    return Check("bounds", subject, "unknown" if answer.extreme else "failed", answer.extreme + detail, place)


def _each_dimension(program: Accesses, access: Access, solver: Solver) -> bool:
    """Whether the distance is a sum of strides times indices, of which each is inside of its dimension."""
    type = access.type
    assert isinstance(type, BufferType)
    extents = [program.extent(dim) for dim in type.shape]
    remainder = terms.polynomial(access.indices[0])
    conditions = []
    for stride, extent in zip(_strides(program, type), extents):
        factors = terms.polynomial(stride)
        if len(factors) != 1:
            return False
        (step, number), *_ = factors.items()
        index, remainder = _divided(remainder, step, number)
        term = terms.from_polynomial(index)
        conditions.append(both(compare("ge", term, FALSE), compare("lt", term, extent)))
    if remainder:
        return False
    when = list(terms.conjuncts(access.when))
    return all(each.number == 1 or solver.find([*when, invert(each)]).never for each in conditions)


def _divided(
    parts: dict[terms.Monomial, int], step: terms.Monomial, number: int
) -> tuple[dict[terms.Monomial, int], dict[terms.Monomial, int]]:
    """The sum of what a stride divides, over the stride, and the remainder."""
    index: dict[terms.Monomial, int] = {}
    remainder: dict[terms.Monomial, int] = {}
    for factors, amount in parts.items():
        quotient = list(factors)
        for each in step:
            if each not in quotient:
                break
            quotient.remove(each)
        else:
            if amount % number == 0:
                index[tuple(quotient)] = amount // number
                continue
        remainder[factors] = amount
    return index, remainder


def _strides(program: Accesses, type: BufferType) -> list[Term]:
    if type.strides is not None:
        return [program.extent(stride) for stride in type.strides]
    sizes = map(program.extent, reversed(type.shape[1:]))
    return [*accumulate(sizes, terms.multiply, initial=constant(1))][::-1] if type.shape else []


def value_of(term: Term, values: dict[Variable, int]) -> int:
    """A term's value where its variables have these."""
    (found,) = terms.substitute([term], {each: constant(number) for each, number in values.items()})
    return found.lo


def unclear_in(question: Sequence[Term]) -> str:
    """What a question depends on that the program does not say, as the reason for an open answer; "" if nothing."""
    unclear = next((each for each in terms.variables(question) if each.role in ("unknown", "data")), None)
    return "" if unclear is None else f"it depends on {unclear.name} (line {unclear.loc.line})"


def name_of(buffer: Value) -> str:
    """What people call a buffer."""
    while isinstance(buffer.op, tile.ViewOp):
        if buffer.name:
            return buffer.name
        buffer = buffer.op.source
    return buffer.name or ("a workspace" if isinstance(buffer.op, tile.AllocOp) else "a buffer")


def place_of(access: Access) -> str:
    """Where an access stands in the user's file, without the file's folder."""
    loc = access.op.loc
    return f"{os.path.basename(loc.file)}:{loc.line}:{loc.column}" if loc.line else ""
