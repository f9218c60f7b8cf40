"""What a serial loop does to each buffer: whether its iterations need one another, or only add to the same elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.dependence import ancestors, depends_on
from tiledsl.analysis.linear import LinearForm
from tiledsl.analysis.loops import indices_of
from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value

Access = tile.LoadOp | tile.StoreOp | tile.AtomicOp


def iterations(loop: scf.ForOp) -> range | None:
    """The indices of a plain serial loop with constant bounds that runs more than once."""
    found = indices_of(loop)
    if loop.inits or loop.num_stages or loop.flatten or found is None or len(found) < 2:
        return None
    return found


def has_independent_lanes(loop: scf.ForOp) -> bool:
    """Whether a loop of T.vectorized is one of T.Parallel, too."""
    accesses = accesses_in(loop, tile.AtomicOp, tile.AllocOp, tile.AssertOp, tile.AssumeOp)
    if accesses is None:
        return False
    defined = defined_in(loop)
    in_parallel = any(isinstance(around, tile.ParallelOp) and not around.lockstep for around in ancestors(loop))
    for buffer, ops in accesses.items():
        writes = [op for op in ops if not isinstance(op, tile.LoadOp)]
        if not writes or buffer in defined:
            continue
        scope = tile.buffer_type(buffer).scope
        if has_views(buffer) or in_parallel and scope == "local":  # which each point of that has for itself
            return False
        atomics = [op for op in ops if isinstance(op, tile.AtomicOp)]
        if atomics:
            kinds = {op.kind for op in atomics}  # of one kind they commute
            if len(atomics) < len(ops) or len(kinds) > 1 or "cas" in kinds or any(op.out.uses for op in atomics):
                return False
            continue
        once = len(ops) == 1 and all(op.parent in (loop.body, *_branches(loop.body)) for op in writes)
        moves = any(depends_on(index, {loop.index}) for op in writes for index in op.indices)
        if not (once and moves and scope != "global" or tells_apart(ops, loop.index, defined)):
            return False
    return True


def accesses_in(loop: scf.ForOp, *allowed: type[Operation]) -> dict[Value, list[Access]] | None:
    """The accesses of each buffer in a loop that has no more than these, branches, loops with bounds that stay the
    same, `allowed`, and what has no effects; else None."""
    defined = defined_in(loop)
    accesses: dict[Value, list[Access]] = {}
    for op in loop.body.walk():
        if isinstance(op, (tile.LoadOp, tile.StoreOp)) or isinstance(op, allowed) and isinstance(op, tile.AtomicOp):
            accesses.setdefault(op.buffer, []).append(op)
        elif isinstance(op, scf.ForOp):
            if op.inits or op.num_stages or any(each in defined and constant_of(each) is None for each in op.operands):
                return None
        elif not (isinstance(op, (scf.IfOp, scf.YieldOp, tile.ParallelOp, *allowed)) or op.is_pure):
            return None
    return accesses


def defined_in(loop: scf.ForOp) -> set[Value]:
    """The values that a loop's body makes, each iteration its own."""
    return {value for op in loop.body.walk() for value in _made_by(op)} | {*loop.body.args}


def _branches(region: Region) -> Iterator[Region]:
    """The regions of branches in a region."""
    for op in region.nested:
        if isinstance(op, scf.IfOp):
            for inner in op.regions:
                yield inner
                yield from _branches(inner)


def _made_by(op: Operation) -> Iterable[Value]:
    return (*op.results, *(arg for region in op.regions for arg in region.args))


def has_views(buffer: Value) -> bool:
    """Whether a buffer's elements have other names."""
    return isinstance(buffer.op, tile.ViewOp) or any(isinstance(user, tile.ViewOp) for user in buffer.uses)


def tells_apart(ops: list[Access], index: Value, defined: set[Value]) -> bool:
    """Whether all accesses have one index in common that differs from iteration to iteration."""
    first, *others = ([linear_form(each, through_names=True) for each in op.indices] for op in ops)
    return any(
        moves_with(form, index, defined) and all(forms[axis].terms == form.terms for forms in others)
        for axis, form in enumerate(first)
    )


def moves_with(form: LinearForm, index: Value, defined: set[Value]) -> bool:
    rest = [value for factors in form.terms if factors != (index,) for value in factors]
    return (index,) in form.terms and not any(value in defined for value in rest)


def picks(ops: list[Access], index: Value) -> bool:
    forms = (linear_form(each, through_names=True) for op in ops for each in op.indices)
    return any(index in factors for form in forms for factors in form.terms)


def most_points(region: Region, around: int) -> int:
    """The most points that a T.Parallel in a region has, with those inside of it, for so many around it."""
    points = [around]
    for op in region:
        outer = around * math.prod(op.extents) if isinstance(op, tile.ParallelOp) else around
        points += [most_points(inner, outer) for inner in op.regions]
    return max(points)
