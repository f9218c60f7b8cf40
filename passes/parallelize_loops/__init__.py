"""parallelize-loops: serial loops over elements of on-chip tiles become operations on whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import AddOp, CastOp, MulOp
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.passes.parallelize_loops.copies import with_elements
from tiledsl.passes.parallelize_loops.digits import merge_digits, sum_at_once
from tiledsl.passes.parallelize_loops.independent import (
    Access,
    accesses_in,
    defined_in,
    has_independent_lanes,
    has_views,
    iterations,
    most_points,
    picks,
    tells_apart,
)
from tiledsl.passes.parallelize_loops.of_threads import updates_of_thread
from tiledsl.passes.parallelize_loops.products import product_of
from tiledsl.passes.parallelize_loops.reductions import isolated, make_fragments, updates_of
from tiledsl.passes.parallelize_loops.temporaries import Temporary, expand, temporary_of
from tiledsl.passes.parallelize_loops.totals import Total, rows_of, scan_total, total_of
from tiledsl.passes.vectorize_parallel.updates import Update, apply_update


@dataclass(frozen=True)
class ParallelizeLoops(Pass):
    """Make serial loops over elements of on-chip tiles, and T.vectorized, parallel: reductions, scans and products.

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

    With `reductions`, iterations may also need the ones before them, in loops that say how by these forms alone:
    - `s[j] += x[i, j]`, `s[j] = T.max(s[j], x[i, j])`, ... at places that all iterations have: updates of a T.Parallel,
      which vectorize-parallel makes reductions of.
    - the same with reads of s[j] behind it, and `c[i, j] = c[i - 1, j] + x[i, j]`: the terms become a tile that is
      scanned, and what reads the totals a T.Parallel. With `fast_math`, so do `s[j] = a[i, j] * s[j] + b[i, j]` and
      `c[i] = a[i] * c[i - 1] + b[i]`: factors are multiplied with each other, and may overflow where no state does.
    - `c[i, j] += a[i, k] * b[k, j]` over k, for whole tiles, 16 rows, columns and steps at least: a T.gemm, where
      tensor cores compute what the loop does (16-bit floats added up in float32, int8 in int32) or nothing (float32).
    What such updates add to, only to be summed along an axis, holds these sums at once: `s[i, j] += x[i, k * 4 + j]`
    becomes `s[i, 0] += ...`. Two indices of a T.Parallel that are no more than digits of a number, as `k * 4 + j` is
    then, become one: x is summed along its own dimension, without a reshape.
    In code for one thread, updates of its own elements become a T.Parallel of tile.atomics, where they are all that a
    loop over its arrays, or over rows in shared memory, does.
    A buffer may also be one that each iteration fills before it reads it; it gets a row for each then. Copies and fills
    in such loops are loops over their elements.
    What else a T.Parallel around such a loop does gets T.Parallels of its own. Sums of floats are added in another
    order then; those of fewer than 32 bits, which are rounded at each step, stay loops.
    """

    name = "parallelize-loops"
    enabled: bool = True
    reductions: bool = True
    fast_math: bool = True

    def allowances(self, program: Program) -> frozenset[str]:
        return frozenset(self._rewrite(program.root.clone({})))

    def run(self, program: Program) -> None:
        self._rewrite(program.root)

    def _rewrite(self, root: Operation) -> set[str]:
        """Rewrite the loops of a program; return what differs in the bits of floats now, outside of T.Parallel."""
        differs = set[str]()
        # What is parallel inside of a loop, the loop may be parallel around.
        loops = [op for op in reversed(root.nests()) if isinstance(op, scf.ForOp)] if self.enabled else []
        for loop in loops:
            points = iterations(loop)
            if points is None:
                continue
            if loop.vectorized:
                if has_independent_lanes(loop):
                    _parallelize(loop, points)
                continue
            if self.reductions and (updates := updates_of_thread(loop)) is not None:
                for update in updates:
                    differs |= update.allowances
                    apply_update(update)
                _parallelize(loop, points)
                continue
            elements = with_elements(loop) if self.reductions else None
            found = self._made_parallel(elements or loop, points)
            if elements is not None:
                (elements if found is None else loop).erase()
            differs |= found or set()
        for op in of_kinds(root.nests(), tile.ParallelOp) if self.enabled and self.reductions else ():
            merge_digits(op)
        return differs

    def _made_parallel(self, loop: scf.ForOp, points: range) -> set[str] | None:
        """Rewrite a serial loop; what differs in the bits of floats now, or None if it stays as it is."""
        product = product_of(loop, len(points)) if self.reductions else None
        if product is not None and isolated(loop, points, [], True):
            differs = {"reassociation"} if product.reorders else set()
            product.insert_before(loop)
            loop.erase()
            return differs
        row_loop = _Rows.of(loop, len(points), self.reductions, self.fast_math)
        if row_loop is None or not isolated(loop, points, row_loop.updates, bool(row_loop.totals)):
            return None
        differs = {name for total in row_loop.totals for name in total.allowances}
        make_fragments(row_loop.updates)
        order = _order([loop.index, *_points_in(loop)], row_loop.largest)
        for temporary in row_loop.temporaries:
            expand(temporary, loop, points)
        for total in row_loop.totals:
            rows = rows_of(total, loop, points)
            _parallelize(*scan_total(total, loop, points, order))
            points = rows
        updated = {each.store.buffer: None for each in row_loop.updates}
        _parallelize(loop, points, order)
        return differs | ({"reassociation"} if sum_at_once(updated) else set())


@dataclass(frozen=True)
class _Rows:
    """What is known of a loop over rows that can be parallel, and gains by it.

    updates: what each iteration combines with the same elements. totals: what each leaves to the next one. temporaries:
    what each fills anew. largest: an access of the largest tile that the loop's index picks elements of.
    """

    updates: list[Update]
    totals: list[Total]
    temporaries: list[Temporary]
    largest: Access

    @classmethod
    def of(cls, loop: scf.ForOp, count: int, reductions: bool, fast_math: bool) -> _Rows | None:
        accesses = accesses_in(loop)
        if accesses is None:
            return None
        defined = defined_in(loop)
        stored = [buffer for buffer, ops in accesses.items() if any(isinstance(op, tile.StoreOp) for op in ops)]
        in_memory = [buffer for buffer in accesses if tile.buffer_type(buffer).scope == "global"]
        if any(map(has_views, stored)):
            return None
        if len(in_memory) > 1 and any(buffer in stored for buffer in in_memory):
            return None  # they may overlap
        updates: list[Update] = []
        totals: list[Total] = []
        temporaries: list[Temporary] = []
        apart = {
            buffer
            for buffer in stored
            if tile.buffer_type(buffer).scope != "local" and tells_apart(accesses[buffer], loop.index, defined)
        }
        written = {
            buffer: [op for op in accesses[buffer] if not isinstance(op, tile.LoadOp)] if buffer in apart else []
            for buffer in stored
        }
        for buffer in stored:
            ops = accesses[buffer]
            if buffer in apart:
                continue
            made = updates_of(ops, loop, defined) if reductions else None
            if made is not None:
                updates += made
            elif (total := total_of(ops, loop, defined, written, fast_math) if reductions else None) is not None:
                totals.append(total)
            elif (temporary := temporary_of(ops, loop) if reductions else None) is not None:
                temporaries.append(temporary)
            else:
                return None
        on_chip = {
            prod(tile.buffer_type(buffer).static_shape): next(op for op in ops if picks([op], loop.index))
            for buffer, ops in accesses.items()
            if tile.buffer_type(buffer).scope in ("shared", "fragment") and picks(ops, loop.index)
        }
        around = (op.extents for op in ancestors(loop) if isinstance(op, tile.ParallelOp))
        points = most_points(loop.body, count * prod(map(prod, around)) if updates or totals else count)
        most = max(on_chip, default=0)
        return cls(updates, totals, temporaries, on_chip[most]) if most >= points else None


def _parallelize(loop: scf.ForOp, points: range, order: Sequence[Value] | None = None) -> None:
    """Make a loop parallel, and one with the only T.Parallel in it if there is an order for all of their indices."""
    inner = next((op for op in loop.body if isinstance(op, tile.ParallelOp)), None)
    alone = all(op is inner or op.is_terminator or op.is_pure for op in loop.body)
    if order is None or inner is None or not alone or inner.lockstep or {*order} != {loop.index, *inner.body.args}:
        order, inner = [loop.index], None
    extents = dict(zip(inner.body.args, inner.extents, strict=True)) if inner is not None else {}
    extents[loop.index] = len(points)
    body = Region([INT32 for _ in order], [arg.name for arg in order])
    mapping = dict(zip(order, body.args, strict=True))
    builder = Builder(body, loc=loop.loc)
    mapping[loop.index] = _index(builder, loop, points, mapping[loop.index])
    for op in loop.body:
        for each in inner.body if inner is op else [op]:
            if not each.is_terminator:
                builder.insert(each.clone(mapping))
    made = tile.ParallelOp(extents=tuple(extents[each] for each in order), regions=[body], loc=loop.loc)
    Builder.at(loop).insert(made)
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


def _points_in(loop: scf.ForOp) -> list[Value]:
    """The indices of the first T.Parallel in a loop."""
    return next((op.body.args for op in loop.body if isinstance(op, tile.ParallelOp)), [])


def _order(indices: list[Value], access: Access) -> list[Value] | None:
    """Indices in the order of the dimensions of a tile that they walk, so that it is not transposed; None if the first
    one is the first there, too, or if the access does not tell."""
    places: dict[Value, tuple[int, int]] = {}
    for axis, index in enumerate(access.indices):
        for factors, coefficient in linear_form(index, through_names=True).terms.items():
            if len(factors) == 1:
                places[factors[0]] = axis, -abs(coefficient)
    if not places.keys() >= {*indices}:
        return None
    order = sorted(indices, key=lambda index: places[index])
    return None if order[0] is indices[0] else order
