"""Running totals of serial loops, such as cumulative sums and linear recurrences: what each iteration adds, and the
factor of what was before, become tiles that are scanned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.dependence import ancestors, operands_of, reached
from tiledsl.analysis.same_values import same_place
from tiledsl.dialects import arith, scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, INT32, BufferType, is_float
from tiledsl.passes.parallelize_loops.independent import Access, moves_with
from tiledsl.passes.tile_values import combine, compared, selected
from tiledsl.passes.vectorize_parallel.updates import IsOwn, Update, term_of, update_of

# Of these 0 is no divisor; a term may be computed for the row before the first one, too.
Terms = list[tuple[Value, bool]]
_SCANS = {"add": "sum", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Total:
    """A store that combines what the iteration before has left, in the same element or in the row before, with terms.

    factor: by which that is multiplied first, in a linear recurrence. early: the loads of that in front of the store,
    its own one included. reads: the loads, behind the store, of what it has stored.
    """

    update: Update
    factor: Value | None
    early: list[tile.LoadOp]
    reads: list[tile.LoadOp]
    moves: bool  # from row to row

    @property
    def store(self) -> tile.StoreOp:
        return self.update.store

    @property
    def allowances(self) -> set[str]:
        """What a scan changes of the bits."""
        if self.factor is not None:
            return {"recurrence"}
        return self.update.allowances

    @property
    def has_begin(self) -> bool:
        """Whether what there was before the loop is among what is scanned."""
        return self.moves or self.factor is not None

    @property
    def inputs(self) -> list[Value]:
        """What each iteration takes beside what the one before has left."""
        return [*(value for value, _ in self.update.terms), *([] if self.factor is None else [self.factor])]


def total_of(
    ops: list[Access],
    loop: scf.ForOp,
    defined: set[Value],
    written: Mapping[Value, Sequence[Operation]],
    fast_math: bool,
) -> Total | None:
    """The running total that all accesses of a buffer are; None if they do something else. A linear recurrence is one
    with `fast_math`, of floats.

    written: the buffers that the loop writes, with the stores of those of which each iteration has elements of its own.
    A term is computed from elements that are not written before, neither by its own iteration.
    """
    stores = [op for op in ops if not isinstance(op, tile.LoadOp)]
    store = stores.pop() if len(stores) == 1 else None
    if not isinstance(store, tile.StoreOp) or store.mask is not None or ELEMENTS[store.buffer.dtype].bits < 32:
        return None
    if constant_of(loop.step) != 1:
        return None
    args = points_of(store, loop)
    if args is None:
        return None
    for op in ancestors(loop):
        args |= extents_of(op) if isinstance(op, tile.ParallelOp) else {}
    if tile.buffer_type(store.buffer).scope == "global" or is_of_points(store.buffer):
        return None
    for moves, is_before in ((False, same_place), (True, _one_before(loop))):
        own_loads = set[Operation]()
        update, factor = update_of(store, own_loads, is_before), None
        if update is None and fast_math and is_float(store.buffer.dtype):
            factor, terms = _recurrence_of(store.value, store, own_loads, is_before) or (None, [])
            update = Update(store, "add", terms) if terms else None
        if update is None or update.kind not in _SCANS or not _is_place(store, loop, defined, args, moves):
            continue
        (before,) = own_loads
        assert isinstance(before, tile.LoadOp), "what an update begins with"
        loads = [op for op in ops if isinstance(op, tile.LoadOp) and op is not before]
        early = [op for op in loads if precedes(op, store)]
        reads = [op for op in loads if op not in early]
        if moves:
            fit = sum(before.out.uses.values()) == 1 and all(same_place(op, store) for op in loads)
        else:
            fit = all(_is_read_of(op, store, args) for op in loads)
        stores_of: Mapping[Value, Sequence[Operation]] = {**written, store.buffer: [store] if moves else []}
        total = Total(update, factor, [] if moves else [before, *early], [] if moves else reads, moves)
        if fit and all(_is_of_rows(value, defined, stores_of) for value in total.inputs):
            return total
    return None


def _recurrence_of(
    value: Value, store: tile.StoreOp, own_loads: set[Operation], is_own: IsOwn
) -> tuple[Value, Terms] | None:
    """The factor of the store's own element in a value and what is added; its load goes to `own_loads`."""
    op = value.op
    if value is not store.value and list(value.uses.values()) != [1]:
        return None
    if isinstance(op, arith.MulOp):
        for mine, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if isinstance(mine.op, tile.LoadOp) and mine.op.mask is None and is_own(mine.op, store):
                own_loads.add(mine.op)
                return factor, []
    if isinstance(op, (arith.AddOp, arith.SubOp)):
        negative = isinstance(op, arith.SubOp)
        for mine, other in [(op.lhs, op.rhs)] if negative else [(op.lhs, op.rhs), (op.rhs, op.lhs)]:
            found = _recurrence_of(mine, store, own_loads, is_own)
            if found is not None:
                factor, terms = found
                return factor, [*terms, (other, negative)]
    return None


def is_of_points(buffer: Value) -> bool:
    """Whether each point of a T.Parallel has a buffer for itself."""
    stores = [op for op in buffer.uses if isinstance(op, tile.StoreOp)]
    around = (each for op in stores for each in ancestors(op))
    return tile.buffer_type(buffer).scope == "local" and any(isinstance(each, tile.ParallelOp) for each in around)


def points_of(store: tile.StoreOp, loop: scf.ForOp) -> dict[Value, int] | None:
    """The indices of the T.Parallel around a store in a loop, outer ones first, with the extents of each; None where
    something else stands between."""
    extents: dict[Value, int] = {}
    for around in ancestors(store):
        if around is loop:
            return extents
        if not isinstance(around, tile.ParallelOp) or around.lockstep:
            return None
        extents = extents_of(around) | extents
    return None


def extents_of(parallel: tile.ParallelOp) -> dict[Value, int]:
    return dict(zip(parallel.body.args, map(int, parallel.extents), strict=True))


def _one_before(loop: scf.ForOp) -> IsOwn:
    """Whether a load is of what a store has written in the iteration before."""

    def is_before(load: tile.LoadOp, store: tile.StoreOp) -> bool:
        if load.buffer is not store.buffer:
            return False
        pairs = zip(load.indices, store.indices, strict=True)
        steps = 0
        for mine, theirs in (
            (linear_form(a, through_names=True), linear_form(b, through_names=True)) for a, b in pairs
        ):
            apart = theirs.plus(mine, -1)
            if not apart.is_constant:
                return False
            if apart.constant:
                steps += 1
                if apart.constant != 1 or theirs.coefficient(loop.index) != 1:
                    return False
        return steps == 1

    return is_before


def _is_place(store: tile.StoreOp, loop: scf.ForOp, defined: set[Value], args: Collection[Value], moves: bool) -> bool:
    """Whether a store's place has each point's index by itself, and the loop's just where it moves."""
    others = [index for index in store.indices if index not in args]
    if not {*args} <= {*store.indices} or len(others) + len(args) != len(store.indices):
        return False
    forms = [linear_form(index, through_names=True) for index in others]
    moving = [form for form in forms if form.coefficient(loop.index)]
    rest = [form for form in forms if form not in moving]
    still = all(value not in defined for form in rest for factors in form.terms for value in factors)
    return still and len(moving) == moves and all(moves_with(form, loop.index, defined) for form in moving)


def precedes(op: Operation, store: Operation) -> bool:
    """Whether an operation of the same loop may run before the store in some iteration."""
    around = {each.parent: each for each in (store, *ancestors(store))}
    found = next(each for each in (op, *ancestors(op)) if each.parent in around)
    return found.order < around[found.parent].order


def _is_read_of(load: tile.LoadOp, store: tile.StoreOp, args: Mapping[Value, int]) -> bool:
    """Whether a load is of an element that the store has written, in the same iteration."""
    for mine, theirs in zip(load.indices, store.indices, strict=True):
        if mine is theirs or constant_of(mine) is not None and constant_of(mine) == constant_of(theirs):
            continue
        if theirs not in args or (extent := extent_of(mine)) is None or extent > args[theirs]:
            return False
    return load.mask is None


def extent_of(index: Value) -> int | None:
    """The extent of the T.Parallel that an index is of."""
    region = index.owner
    if not isinstance(region, Region) or not isinstance(region.parent, tile.ParallelOp):
        return None
    return extents_of(region.parent)[index]


def _is_of_rows(value: Value, inside: set[Value], written: Mapping[Value, Sequence[Operation]]) -> bool:
    """Whether a term can be computed before all stores of the loop: from indices, and from what is not written yet."""
    for each in reached([value], operands_of):
        op = each.op
        if each not in inside or op is None:
            continue
        if isinstance(op, tile.LoadOp):
            stores = written.get(op.buffer)
            if stores is not None and not (stores and all(precedes(op, store) for store in stores)):
                return False
        elif op.regions or isinstance(op, arith.DIVISIONS):
            return False
    return True


def scan_total(
    total: Total, loop: scf.ForOp, points: range, order: list[Value] | None
) -> tuple[scf.ForOp, range, list[Value]]:
    """Compute what a loop's iterations take before the loop, and scan it; the loop takes its totals from there.

    order: the loop's index and the points' in the order of the dimensions of the tile that is scanned, if that matters.
    The result is the loop that computes the terms, its indices, and an order of these and of its points. A total that
    moves from row to row has the row before the first one among its terms, and the loop goes over that one, too, if it
    does nothing else: whole tiles have no edges to mask.
    """
    store, kind, dtype = total.store, total.update.kind, total.store.buffer.dtype
    args = points_of(store, loop)
    assert args is not None, "a total's place is one of points"
    order = order if order is not None and {*order} == {loop.index, *args} else [loop.index, *args]
    walked = range(points.start - total.moves, points.stop)
    sizes = {**args, loop.index: len(walked)}
    shape = tuple(sizes[each] for each in order)
    builder = Builder.at(loop)
    type = BufferType(shape, dtype, "fragment")
    names = [f"{store.buffer.name}_terms", *([] if total.factor is None else [f"{store.buffer.name}_factors"])]
    terms, *factors = tiles = [builder.insert(tile.AllocOp(result_types=[type], names=[each])).out for each in names]
    terms_loop, indices = _terms_loop(total, loop, tiles, order, walked)
    scan = "linear" if factors else _SCANS[kind]
    builder.insert(tile.ScanOp(terms, terms, *factors, kind=scan, axis=order.index(loop.index)))

    def scanned(at: Builder, indices: list[Value], place: dict[Value, Value]) -> Value:
        """The total at a place, of what is scanned and of what it began with."""
        term = at.insert(tile.LoadOp(terms, [place[each] for each in order], None, None)).result
        if total.has_begin:
            return term
        begin = at.insert(tile.LoadOp(store.buffer, indices, None, None)).result
        return at.insert(combine(kind, dtype)(begin, term, names=[store.buffer.name])).out

    def running(op: Operation, indices: list[Value]) -> Value:
        """The total at a place behind the store, computed before an operation."""
        at = Builder.at(op)
        place = dict(zip(store.indices, indices, strict=True))
        return scanned(at, indices, place | {loop.index: number_of(at, loop.index, walked.start)})

    def until(op: Operation, indices: list[Value]) -> Value:
        """The total at a place in front of the store: of the iterations before this one."""
        at = Builder.at(op)
        number = number_of(at, loop.index, walked.start)
        zero, one = (at.constant(each, INT32) for each in (0, 1))
        row = at.insert(arith.MaxOp(at.insert(arith.SubOp(number, one)).out, zero)).out
        place = dict(zip(store.indices, indices, strict=True))
        sum = scanned(at, indices, place | {loop.index: row})
        begin = at.insert(tile.LoadOp(store.buffer, indices, None, None)).result
        return selected(at, compared(at, number, "gt", zero), sum, begin)

    for reads, what in ((total.reads, running), (total.early, until)):
        for read in reads:
            read.out.replace_with(what(read, list(read.indices)))
    value = store.value
    if total.moves or sum(value.uses.values()) > 1:
        assert value.op is not None, "a total is computed"
        value.replace_with(running(value.op, list(store.indices)))
    if not total.moves:
        assert loop.parent is not None, "a loop stands in a kernel"
        behind, mapping = Builder(loop.parent, loop.next, store.loc), dict[Value, Value]()
        if args:
            region = Region([INT32 for _ in args], [arg.name for arg in args])
            behind.insert(tile.ParallelOp(extents=tuple(args.values()), regions=[region]))
            mapping, behind = dict(zip(args, region.args, strict=True)), Builder(region, loc=store.loc)
        place = _copied(behind, list(store.indices), loop, mapping)
        mapping[loop.index] = behind.constant(len(points) - 1, INT32)
        behind.insert(tile.StoreOp(scanned(behind, place, mapping), store.buffer, place))
        store.erase()
    for op in reversed(list(loop.body.walk())):
        if not op.is_used and (op.is_pure or isinstance(op, tile.LoadOp)):
            op.erase()
    return terms_loop, walked, indices


def rows_of(total: Total, loop: scf.ForOp, points: range) -> range:
    """The rows that a loop goes over when its total is scanned; see scan_total."""
    if any(op is not total.store and Effect.WRITE in op.effects for op in loop.body.walk()):
        return points
    return range(points.start - 1, points.stop)


def number_of(builder: Builder, index: Value, start: int) -> Value:
    """The number of the iteration in which a loop has this index."""
    if index.type != INT32:
        index = builder.insert(arith.CastOp(index, result_types=[INT32])).result
    return builder.insert(arith.SubOp(index, builder.constant(start, INT32))).result if start else index


def _terms_loop(
    total: Total, loop: scf.ForOp, tiles: list[Value], order: list[Value], walked: range
) -> tuple[scf.ForOp, list[Value]]:
    """A loop before another one that computes the terms of a total and its factors alone, into tiles, and its indices
    in that order."""
    store = total.store
    region = Region([loop.index.type], [loop.index.name])
    (index,) = region.args
    mapping: dict[Value, Value] = {loop.index: index}
    body = Builder(region, loc=store.loc)
    for parallel in reversed(list(takewhile(lambda op: op is not loop, ancestors(store)))):
        assert isinstance(parallel, tile.ParallelOp), "a total's place is one of points"
        inner = Region([arg.type for arg in parallel.body.args], [arg.name for arg in parallel.body.args])
        mapping.update(zip(parallel.body.args, inner.args, strict=True))
        body.insert(tile.ParallelOp(regions=[inner], **parallel.attributes))
        body = Builder(inner, loc=store.loc)
    values = _copied(body, total.inputs, loop, mapping)
    update = Update(store, total.update.kind, [(new, sign) for new, (_, sign) in zip(values, total.update.terms)])
    scanned = [term_of(update, body), *values[len(update.terms) :]]
    if total.has_begin:
        place = _copied(body, list(store.indices), loop, mapping)
        begin = body.insert(tile.LoadOp(store.buffer, place, None, None)).result
        if not total.moves:
            begin = body.insert(arith.MulOp(scanned[1], begin)).out
            begin = body.insert(arith.AddOp(begin, scanned[0])).out
        is_first = compared(body, index, "eq", body.constant(walked.start, index.type))
        scanned[0] = selected(body, is_first, begin, scanned[0])
    indices = [mapping[each] for each in order]
    mapping[loop.index] = number_of(body, index, walked.start)
    for value, tile_ in zip(scanned, tiles, strict=True):
        body.insert(tile.StoreOp(value, tile_, [mapping[each] for each in order]))
    scf.yielding(region)
    outside = Builder.at(loop)
    bounds = [outside.constant(number, index.type) for number in (walked.start, walked.stop, 1)]
    return outside.insert(scf.ForOp(*bounds, [], regions=[region])), indices


def _copied(builder: Builder, values: list[Value], loop: scf.ForOp, mapping: dict[Value, Value]) -> list[Value]:
    """Values that are computed in a loop, computed again elsewhere."""
    ops = {each.op for each in reached(values, operands_of) if each.op is not None and each not in mapping}
    for op in sorted((op for op in ops if loop in ancestors(op)), key=_position):
        builder.insert(op.clone(mapping))
    return [mapping.get(value, value) for value in values]


def _position(op: Operation) -> list[float]:
    """Where an operation stands in the text."""
    return [each.order for each in reversed([op, *ancestors(op)])]
