"""parallelize-loops: serial loops over elements of on-chip tiles become operations on whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import AddOp, CastOp, MulOp
from tiledsl.ir.core import Region, Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.passes.parallelize_loops.independent import (
    Access,
    accesses_in,
    has_independent_lanes,
    has_views,
    iterations,
    made_inside,
    most_points,
    picks,
    tells_apart,
)
from tiledsl.passes.parallelize_loops.reductions import isolated, make_fragments, updates_of
from tiledsl.passes.vectorize_parallel.updates import Update


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

    With `reductions`, a buffer on the chip may also be one that all iterations only update, at the same places, as in
    `s[j] += x[i, j]` or `s[j] = T.max(s[j], x[i, j])`: updates of a T.Parallel become a reduction. Sums of floats are
    then added in another order (vectorize-parallel); those of fewer than 32 bits, rounded at each step, stay loops.
    """

    name = "parallelize-loops"
    enabled: bool = True
    reductions: bool = True

    def run(self, program: Program) -> None:
        if not self.enabled:
            return
        for op in reversed(program.root.nests()):  # what is parallel inside of a loop, the loop may be parallel around
            if not isinstance(op, scf.ForOp) or (points := iterations(op)) is None:
                continue
            if op.vectorized:
                if has_independent_lanes(op):
                    _parallelize(op, points)
                continue
            found = _Rows.of(op, len(points), self.reductions)
            if found is not None and isolated(op, found.updates):
                make_fragments(found.updates)
                _parallelize(op, points, found.largest)


@dataclass(frozen=True)
class _Rows:
    """What is known of a loop over rows that can be parallel, and gains by it.

    updates: what each iteration combines with the same elements. largest: the accesses of the largest tile that the
    loop's index picks elements of.
    """

    updates: list[Update]
    largest: list[Access]

    @classmethod
    def of(cls, loop: scf.ForOp, count: int, reductions: bool) -> _Rows | None:
        accesses = accesses_in(loop)
        if accesses is None:
            return None
        inside = made_inside(loop)
        stored = [buffer for buffer, ops in accesses.items() if any(isinstance(op, tile.StoreOp) for op in ops)]
        updates: list[Update] = []
        for buffer in stored:
            apart = tile.buffer_type(buffer).scope != "local" and tells_apart(accesses[buffer], loop.index, inside)
            made = [] if apart else updates_of(accesses[buffer], loop, inside) if reductions else None
            if made is None or has_views(buffer):
                return None
            updates += made
        in_memory = [buffer for buffer in accesses if tile.buffer_type(buffer).scope == "global"]
        if not stored or len(in_memory) > 1 and any(buffer in stored for buffer in in_memory):
            return None  # they may overlap
        on_chip = {
            prod(tile.buffer_type(buffer).static_shape): ops
            for buffer, ops in accesses.items()
            if tile.buffer_type(buffer).scope in ("shared", "fragment") and picks(ops, loop.index)
        }
        around = (op.extents for op in ancestors(loop) if isinstance(op, tile.ParallelOp))
        points = count * most_points(loop.body) * (prod(map(prod, around)) if updates else 1)
        most = max(on_chip, default=0)
        return cls(updates, on_chip[most]) if most >= points else None


def _parallelize(loop: scf.ForOp, points: range, largest: Sequence[Access] = ()) -> None:
    inner = next((op for op in loop.body if isinstance(op, tile.ParallelOp)), None)
    order = None if inner is None else _order(loop, inner, largest)
    if inner is None or order is None:
        body = Region([INT32], [loop.index.name])
        extents: tuple[int, ...] = (len(points),)
        mapping = {loop.index: _index(Builder(body, loc=loop.loc), loop, points, body.args[0])}
    else:
        size = dict(zip(inner.body.args, inner.extents, strict=True)) | {loop.index: len(points)}
        extents = tuple(size[arg] for arg in order)
        body = Region([INT32 for _ in order], [arg.name for arg in order])
        mapping = dict(zip(order, body.args, strict=True))
        mapping[loop.index] = _index(Builder(body, loc=loop.loc), loop, points, mapping[loop.index])
    builder = Builder(body, loc=loop.loc)
    for op in loop.body:
        for each in inner.body if inner is op and order is not None else [op]:
            if not each.is_terminator:
                builder.insert(each.clone(mapping))
    Builder.at(loop).insert(tile.ParallelOp(extents=extents, regions=[body], loc=loop.loc))
    loop.erase()


def _index(builder: Builder, loop: scf.ForOp, points: range, number: Value) -> Value:
    """The loop's index in iteration `number`."""
    if points.step != 1:
        number = builder.insert(MulOp(number, builder.constant(points.step, INT32))).result
    if points.start != 0:
        number = builder.insert(AddOp(number, builder.constant(points.start, INT32))).result
    if loop.index.type != INT32:
        number = builder.insert(CastOp(number, result_types=[loop.index.type])).result
    return number


def _order(loop: scf.ForOp, inner: tile.ParallelOp, largest: Sequence[Access]) -> list[Value] | None:
    """The indices of a loop and of the only T.Parallel in it in the order of a tile's dimensions, so that no tile is
    transposed; None if the loop's is first, or if a tile does not tell."""
    alone = all(op is inner or op.is_terminator or op.is_pure and not op.regions for op in loop.body)
    if not alone or inner.lockstep or not largest:
        return None
    places: dict[Value, tuple[int, int]] = {}
    for axis, index in enumerate(largest[0].indices):
        for factors, coefficient in linear_form(index, through_names=True).terms.items():
            if len(factors) == 1:
                places[factors[0]] = axis, -abs(coefficient)
    indices = [loop.index, *inner.body.args]
    if not places.keys() >= {*indices}:
        return None
    order = sorted(indices, key=lambda index: places[index])
    return None if order[0] is loop.index else order
