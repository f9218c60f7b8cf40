"""Stores of a T.Parallel that combine an element with a value, as in r[i] = r[i] + x[i, j], where iterations share it.

They become updates (tile.atomic), as a reducer's are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.dependence import ancestors, depends_on, stripped
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.analysis.same_values import same_place
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import is_float, is_integer
from tiledsl.passes.tile_values import converted
from tiledsl.passes.vectorize_parallel.writes import not_told, race, tell_apart

_KINDS: dict[type[arith.BinaryOp], str] = {
    arith.AddOp: "add", arith.SubOp: "add", arith.MaxOp: "max", arith.MinOp: "min", arith.AndOp: "and",
    arith.OrOp: "or", arith.XorOp: "xor",
}  # fmt: skip

IsOwn = Callable[[tile.LoadOp, tile.StoreOp], bool]


@dataclass(frozen=True)
class Update:
    """A store of what an element and `terms` are, combined; the terms with True are subtracted."""

    store: tile.StoreOp
    kind: str
    terms: list[tuple[Value, bool]]

    @property
    def allowances(self) -> set[str]:
        """What another order changes of the bits."""
        return {"reassociation"} if self.kind == "add" and is_float(self.store.buffer.dtype) else set()


def shared_updates(variance: Variance) -> list[Update]:
    """The stores of a T.Parallel to on-chip elements that several iterations may combine with values of their own.

    Threads that change one element race instead, and have none. TileError for a store that changes an element in
    another way once for each of several iterations.
    """
    if variance.parallel.lockstep:
        return []
    accesses: dict[Value, list[Operation]] = {}
    for op in variance.parallel.body.walk():
        for value in {*op.operands}:
            if tile.is_on_chip(value) and value not in variance.private and value not in variance.allocated:
                accesses.setdefault(value, []).append(op)
    shared_by_points: list[Update] = []
    for ops in accesses.values():
        stores = [op for op in ops if isinstance(op, tile.StoreOp)]
        shared = [op for op in stores if not tell_apart(*_multiples(op, variance))]
        loads = [op for op in ops if isinstance(op, tile.LoadOp)]
        if not shared or not loads:
            continue
        updates = _updates_in(variance.parallel, ops, variance)
        shared_by_points += updates
        updated = {each.store for each in updates}
        for store in shared:
            if store not in updated:
                _check_once(store, loads, stores, variance)
    return shared_by_points


def _updates_in(parallel: tile.ParallelOp, ops: Sequence[Operation], variance: Variance) -> list[Update]:
    """The stores of a T.Parallel's iterations, or of those of a T.Parallel in it, that are all that these do with the
    buffer: what stands before and behind such a nested one is done before and after it."""
    updates = updates_alone(ops)
    if updates is not None:
        return updates
    made: list[Update] = []
    for inner in of_kinds(parallel.body.walk(), tile.ParallelOp):
        own = [op for op in ops if inner in ancestors(op)]
        if own and next(each for each in ancestors(inner) if isinstance(each, tile.ParallelOp)) is parallel:
            made += [each for each in _updates_in(inner, own, variance) if _is_shared_in(inner, each.store, variance)]
    return made


def _is_shared_in(parallel: tile.ParallelOp, store: tile.StoreOp, variance: Variance) -> bool:
    """Whether iterations of a nested T.Parallel share a store's element, and none of those around it do."""
    left = not_told(*_multiples(store, variance)).keys()
    outside = [each for each in _around(parallel, variance.parallel) if each in variance.dims]
    around = {dim for each in outside for dim in variance.dims[each]}
    return bool(left) and not left & around


def updates_alone(ops: Sequence[Operation]) -> list[Update] | None:
    """The stores that update elements of a buffer, if its accesses are no more than these, with what they read, and
    atomics without a result, all of one kind; else None."""
    own = set[Operation]()
    loads = [op for op in ops if isinstance(op, tile.LoadOp)]
    made = [update_of(op, own) for op in ops if isinstance(op, tile.StoreOp) and _is_used_once(op.value)]
    updates = [each for each in made if each is not None]
    atomics = [op for op in ops if isinstance(op, tile.AtomicOp) and not op.out.uses]
    kinds = {*(each.kind for each in updates), *(each.kind for each in atomics)}
    alone = len(ops) == len(updates) + len(atomics) + len(loads) and own.issuperset(loads)
    alone = alone and all(_is_used_once(op.out) for op in loads)
    return updates if alone and len(kinds) == 1 else None


def _is_used_once(value: Value) -> bool:
    return list(value.uses.values()) == [1]


def apply_update(update: Update) -> None:
    """Replace the store by a tile.atomic; dce removes what it was computed with."""
    store = update.store
    builder = Builder.at(store)
    total = term_of(update, builder)
    builder.insert(tile.AtomicOp(total, store.buffer, store.indices, store.mask, kind=update.kind, loc=store.loc))
    store.erase()


def term_of(update: Update, builder: Builder) -> Value:
    """All terms of an update, combined, in the element type of its buffer."""
    total: Value | None = None
    for term, negative in update.terms:
        value = converted(builder, term, update.store.buffer.dtype)
        if negative:
            value = builder.insert(arith.NegOp(value)).result
        combine = next(each for each, kind in _KINDS.items() if kind == update.kind)
        total = value if total is None else builder.insert(combine(total, value)).out
    assert total is not None
    return total


def update_of(store: tile.StoreOp, own: set[Operation], is_own: IsOwn = same_place) -> Update | None:
    """The update that a store is; `own` receives the load of the element, which `is_own` tells. What is stored may be
    used for more, and so may be that load."""
    kind = _KINDS.get(type(stripped(store.value, arith.CastOp).op))  # type: ignore[arg-type]
    terms = None if kind is None else _terms(store.value, kind, store, own, is_own)
    return None if kind is None or not terms else Update(store, kind, terms)


def _terms(
    value: Value, kind: str, store: tile.StoreOp, own: set[Operation], is_own: IsOwn
) -> list[tuple[Value, bool]] | None:
    """What is combined with the store's own element to make a value, in order; None if that is something else."""
    op = value.op
    if isinstance(op, tile.LoadOp):
        if op.mask is not None or not is_own(op, store):
            return None
        own.add(op)
        return []
    if value is not store.value and not _is_used_once(value):
        return None
    if isinstance(op, arith.CastOp):
        pair = (op.source.dtype, value.dtype)
        exact = all(map(is_float, pair)) or all(map(is_integer, pair)) and kind not in ("max", "min")
        return _terms(op.source, kind, store, own, is_own) if exact else None
    if _KINDS.get(type(op)) != kind:  # type: ignore[arg-type]
        return None
    assert isinstance(op, arith.BinaryOp)
    pairs = [(op.lhs, op.rhs)] if isinstance(op, arith.SubOp) else [(op.lhs, op.rhs), (op.rhs, op.lhs)]
    for mine, other in pairs:
        terms = _terms(mine, kind, store, own, is_own)
        if terms is not None:
            return [*terms, (other, isinstance(op, arith.SubOp))]
    return None


def _multiples(store: tile.StoreOp, variance: Variance) -> tuple[list[dict[int, int] | None], dict[int, int]]:
    """Of each index the factors of the point's indices, by dimension (None if it is no sum of such), and the extents of
    the dimensions that the store's iterations go through."""
    dims: dict[Value, int] = {}
    for around in _around(store, variance.parallel):
        if isinstance(around, tile.ParallelOp):
            dims.update(zip(around.body.args, variance.dims[around], strict=True))
    forms: list[dict[int, int] | None] = []
    for index in store.indices:
        form: dict[int, int] | None = {}
        for factors, coefficient in linear_form(index, through_names=True).terms.items():
            if form is not None and len(factors) == 1 and factors[0] in dims:
                form[dims[factors[0]]] = form.get(dims[factors[0]], 0) + coefficient
            elif any(variance.of(each) for each in factors):
                form = None
        forms.append(form)
    return forms, {dim: variance.extents[dim] for dim in dims.values() if variance.extents[dim] > 1}


def _around(op: Operation, outermost: Operation) -> Iterator[Operation]:
    return takewhile(lambda around: around is not outermost.parent_op, ancestors(op))


def _check_once(store: tile.StoreOp, loads: list[tile.LoadOp], stores: list[tile.StoreOp], variance: Variance) -> None:
    """Refuse r[i] = r[i] * 2 where the T.Parallel has another dimension: each of its iterations would do so."""
    made = store.value.op
    if isinstance(made, tile.LoadOp) and same_place(made, store):
        return  # what r[i] = r[i] + 0 has become
    axes = [variance.of(value) for value in store.indices]
    around = list(_around(store, variance.parallel))
    missing = variance.active_at(store) & ~_union(axes)
    chosen = _union([variance.of(op.condition) for op in around if isinstance(op, scf.IfOp)])
    if not missing or missing & chosen or store.mask is not None:
        return
    order = {op: number for number, op in enumerate(variance.parallel.body.walk())}
    before = {load.out for load in loads if not any(order[each] < order[load] for each in stores)}
    if depends_on(store.value, before):
        raise race(store)


def _union(axes: list[int]) -> int:
    total = 0
    for each in axes:
        total |= each
    return total
