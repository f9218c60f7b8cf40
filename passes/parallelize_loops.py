"""Serial loops that are over rows of on-chip tiles, or vectorized, become parallel where no iteration needs another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.dependence import ancestors, depends_on
from tiledsl.analysis.linear import LinearForm
from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import AddOp, CastOp, MulOp, constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32

Access = tile.LoadOp | tile.StoreOp | tile.AtomicOp


@dataclass(frozen=True)
class ParallelizeLoops(Pass):
    """Make serial loops over rows of on-chip tiles, and T.vectorized, parallel, where no iteration needs another.

    A row of a tile in registers that is picked by a loop's index costs as much as the whole tile: it is masked, and
    summed over the other rows. So `for i in T.serial(4): for j in T.Parallel(256): s[i, j] = ...` costs four times of
    what `for i, j in T.Parallel(4, 256)` does.

    Before:  scf.for %c0, %c4, %c1 (%i: int32) {           After:  tile.parallel {extents = (4,)} (%i: int32) {
               tile.parallel {extents = (256,)} (%j) {               tile.parallel {extents = (256,)} (%j) {
                 %x = tile.load %s[%i, %j]                             %x = tile.load %s[%i, %j]
                 tile.store %x, %t[%i, %j] } }                         tile.store %x, %t[%i, %j] } }
    Needs:   constant bounds, nothing carried, no more than loads, stores, branches and what has no effects; each buffer
             that is written, on chip or not, is read and written at places that one index tells apart: the loop's, or
             the same sum of it and of what stays the same; where a tensor in global memory is written, there is no
             other one, for they may overlap. Only loops whose index picks elements of tiles on the chip
             that are as large as what becomes parallel, and those of T.vectorized, which stay serial where lanes
             collide. Of the latter, places may coincide in a tile that is only written, by one store, and in what is
             only updated by atomics: the last iteration's value stays, and updates have no order.
    """

    name = "parallelize-loops"
    enabled: bool = True

    def run(self, program: Program) -> None:
        if not self.enabled:
            return
        for op in reversed(program.root.nests()):  # what is parallel inside of a loop, the loop may be parallel around
            if not isinstance(op, scf.ForOp) or (points := _points(op)) is None:
                continue
            if _has_independent_lanes(op) if op.vectorized else _has_independent_rows(op, len(points)):
                _parallelize(op, points)


def _points(loop: scf.ForOp) -> range | None:
    """The indices of a plain serial loop with constant bounds that runs more than once."""
    lower, upper, step = (constant_of(value) for value in (loop.lower, loop.upper, loop.step))
    if loop.inits or loop.num_stages or loop.flatten or lower is None or upper is None or not step:
        return None
    points = range(int(lower), int(upper), int(step))
    return points if len(points) > 1 else None


def _has_independent_rows(loop: scf.ForOp, count: int) -> bool:
    accesses = _accesses(loop)
    if accesses is None:
        return False
    inside = _made_inside(loop)
    stored = [buffer for buffer, ops in accesses.items() if any(isinstance(op, tile.StoreOp) for op in ops)]
    if not stored or any(_has_views(buffer) or tile.buffer_type(buffer).scope == "local" for buffer in stored):
        return False
    if not all(_tells_apart(accesses[buffer], loop.index, inside) for buffer in stored):
        return False
    in_memory = [buffer for buffer in accesses if tile.buffer_type(buffer).scope == "global"]
    if len(in_memory) > 1 and any(buffer in stored for buffer in in_memory):
        return False  # they may overlap
    on_chip = [
        math.prod(tile.buffer_type(buffer).static_shape)
        for buffer, ops in accesses.items()
        if tile.buffer_type(buffer).scope in ("shared", "fragment") and _picks(ops, loop.index)
    ]
    return max(on_chip, default=0) >= count * _most_points(loop.body)


def _has_independent_lanes(loop: scf.ForOp) -> bool:
    """Whether a loop of T.vectorized is one of T.Parallel, too."""
    accesses = _accesses(loop, tile.AtomicOp, tile.AllocOp, tile.AssertOp, tile.AssumeOp)
    if accesses is None:
        return False
    inside = _made_inside(loop)
    in_parallel = any(isinstance(around, tile.ParallelOp) and not around.lockstep for around in ancestors(loop))
    for buffer, ops in accesses.items():
        writes = [op for op in ops if not isinstance(op, tile.LoadOp)]
        if not writes or buffer in inside:
            continue
        scope = tile.buffer_type(buffer).scope
        if _has_views(buffer) or in_parallel and scope == "local":  # which each point of that has for itself
            return False
        atomics = [op for op in ops if isinstance(op, tile.AtomicOp)]
        if atomics:
            commute = len({op.kind for op in atomics}) == 1 and atomics[0].kind != "cas"
            if len(atomics) < len(ops) or not commute or any(op.out.uses for op in atomics):
                return False
            continue
        once = len(ops) == 1 and writes[0].parent in (loop.body, *_branches(loop.body))
        moves = any(depends_on(index, {loop.index}) for index in writes[0].indices)
        if not (once and moves and scope != "global" or _tells_apart(ops, loop.index, inside)):
            return False
    return True


def _accesses(loop: scf.ForOp, *others: type[Operation]) -> dict[Value, list[Access]] | None:
    """The accesses of each buffer in a loop that has no more than these, branches, loops with bounds that stay the
    same, `others`, and what has no effects; else None."""
    inside = _made_inside(loop)
    accesses: dict[Value, list[Access]] = {}
    for op in loop.body.walk():
        if isinstance(op, (tile.LoadOp, tile.StoreOp)) or isinstance(op, others) and isinstance(op, tile.AtomicOp):
            accesses.setdefault(op.buffer, []).append(op)
        elif isinstance(op, scf.ForOp):
            if op.inits or op.num_stages or any(each in inside and constant_of(each) is None for each in op.operands):
                return None
        elif not (isinstance(op, (scf.IfOp, scf.YieldOp, tile.ParallelOp, *others)) or (op.is_pure and not op.regions)):
            return None
    return accesses


def _made_inside(loop: scf.ForOp) -> set[Value]:
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


def _has_views(buffer: Value) -> bool:
    """Whether a buffer's elements have other names."""
    return isinstance(buffer.op, tile.ViewOp) or any(isinstance(user, tile.ViewOp) for user in buffer.uses)


def _tells_apart(ops: list[Access], index: Value, inside: set[Value]) -> bool:
    """Whether all accesses have one index in common that differs from iteration to iteration."""
    first, *others = ([linear_form(each, through_names=True) for each in op.indices] for op in ops)
    return any(
        _moves_with(form, index, inside) and all(forms[axis].terms == form.terms for forms in others)
        for axis, form in enumerate(first)
    )


def _moves_with(form: LinearForm, index: Value, inside: set[Value]) -> bool:
    rest = [value for factors in form.terms if factors != (index,) for value in factors]
    return (index,) in form.terms and not any(value in inside for value in rest)


def _picks(ops: list[Access], index: Value) -> bool:
    forms = (linear_form(each, through_names=True) for op in ops for each in op.indices)
    return any(index in factors for form in forms for factors in form.terms)


def _most_points(region: Region) -> int:
    """The most points that a T.Parallel in a region has, with those inside of it."""
    most = 1
    for op in region:
        inner = max(map(_most_points, op.regions), default=1)
        most = max(most, inner * math.prod(op.extents) if isinstance(op, tile.ParallelOp) else inner)
    return most


def _parallelize(loop: scf.ForOp, points: range) -> None:
    body = Region([INT32], [loop.index.name])
    inner = Builder(body, loc=loop.loc)
    index: Value = body.args[0]
    if points.step != 1:
        index = inner.insert(MulOp(index, inner.constant(points.step, INT32))).result
    if points.start != 0:
        index = inner.insert(AddOp(index, inner.constant(points.start, INT32))).result
    if loop.index.type != INT32:
        index = inner.insert(CastOp(index, result_types=[loop.index.type])).result
    mapping = {loop.index: index}
    for op in loop.body:
        if not op.is_terminator:
            inner.insert(op.clone(mapping))
    Builder.at(loop).insert(tile.ParallelOp(extents=(len(points),), regions=[body], loc=loop.loc))
    loop.erase()
