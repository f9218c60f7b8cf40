"""Loops whose turns two groups of warps take in turn, each with sums of its own: what a group computes in which turn.

A turn's first products, and what is computed of them, are one group's alone. Sums are divided: each group adds to its
own in all turns. Of the other's turns it is told the left operands of its products and what is reduced along rows; what
that gives for rows it computes itself, so that both know all rows that a loop carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tiledsl.analysis.dependence import reached, read_by
from tiledsl.analysis.gluon.schedule import ROWS_OF_WARPS, block, ending_in, in_order, other_readers
from tiledsl.analysis.gluon.tile_loops import TileLoop, dependent_on, read_for
from tiledsl.dialects import gluon, scf, tensor, triton
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.ir.types import ELEMENTS

GROUPS = 2
Sums = Sequence[Sequence[int]]  # for each group the numbers of the carried values that it adds to


def sums_of_groups(loop: TileLoop) -> tuple[tuple[int, ...], ...]:
    """Every second one of the sums whose products wait for others of their turn: of each that has been halved, a half
    for each group."""
    late = loop.late
    numbers = [n for n, value in enumerate(loop.op.yielded) if value.op in late]
    return tuple(tuple(numbers[group::GROUPS]) for group in range(GROUPS))


@dataclass(frozen=True)
class Alternation:
    """What two groups compute in the turns of a loop.

    first: the products that a turn begins with. summed: for each group what its sums go through. told: what the other
    group is told beside left operands, in order. heard: for each group what it computes in the other's turns.
    """

    first: tuple[tensor.DotOp, ...]
    summed: tuple[frozenset[Operation], ...]
    told: tuple[tensor.ReduceOp, ...]
    heard: tuple[frozenset[Operation], ...]

    @property
    def hosts(self) -> dict[Value, gluon.TileLoad]:
        """For left operands the tile of their turn whose place they can take: one like them, alone in its ring, which
        only first products read."""
        summed = [op for op in self.sums if isinstance(op, tensor.DotOp)]
        loop = summed[0].parent
        assert loop is not None
        late = {block(op.b) for op in summed}
        loads = [op for op in loop if gluon.loads_tile(op)]
        rings = [op.ring for op in loads]
        free = [op for op in loads if op not in late and rings.count(op.ring) == 1]
        operands = dict.fromkeys(op.a for op in loop if isinstance(op, tensor.DotOp) and op in self.sums)
        return {
            value: load
            for kind in {value.type for value in operands}
            for value, load in zip(
                (each for each in operands if each.type == kind), (each for each in free if each.out.type == kind)
            )
        }

    @property
    def sums(self) -> frozenset[Operation]:
        """What the sums of all groups go through."""
        return frozenset().union(*self.summed)


def alternation(loop: scf.ForOp, sums: Sums) -> Alternation:
    """What each group computes, if these are the numbers of its sums."""
    summed = [frozenset(dependent_on([loop.iter_args[n] for n in numbers], loop.body)) for numbers in sums]
    products = [op for op in loop.body if isinstance(op, tensor.DotOp)]
    first = tuple(op for op in products if not any(op in each for each in summed))
    of_first = dependent_on([op.out for op in first], loop.body)
    reductions = {op for op in of_first if isinstance(op, tensor.ReduceOp)}
    numbers = {n for each in sums for n in each}
    rows = [value for n, value in enumerate(loop.yielded) if n not in numbers]

    def before(value: Value) -> list[Value]:
        return [] if value.op in reductions or block(value) is not None else read_for(value)

    heard = []
    for each in summed:
        read = [value for op in each for value in op.operands if not (isinstance(op, tensor.DotOp) and value is op.a)]
        needed = {value.op for value in reached([*rows, *read], before)}
        heard.append(frozenset(op for op in loop.body if op in each or op in needed))
    told = tuple(op for op in loop.body if op in reductions and any(op in each for each in heard))
    return Alternation(first, tuple(summed), told, tuple(heard))


def told(loop: scf.ForOp, sums: Sums) -> list[Value]:
    """What groups tell each other through places of its own."""
    found = alternation(loop, sums)
    operands = [op.a for op in loop.body if isinstance(op, tensor.DotOp) and op in found.sums]
    return [value for value in dict.fromkeys([*operands, *(op.out for op in found.told)]) if value not in found.hosts]


def why_not(loop: scf.ForOp, sums: Sums) -> tuple[str, Operation] | None:
    """Why groups with these sums cannot take turns, and where; None if they can."""
    numbers = [n for each in sums for n in each]
    if len(sums) != GROUPS or not all(sums) or len({*numbers}) < len(numbers):
        return f"{GROUPS} groups that take turns need sums of their own, and have {[*map(list, sums)]}", loop
    wrong = next((n for n in numbers if n not in range(len(loop.yielded)) or not ending_in(loop.yielded[n])), None)
    if wrong is not None:
        return f"value {wrong} of those that the loop carries is no sum of products", loop
    return next(_reasons(loop, sums, alternation(loop, sums)), None)


def _reasons(loop: scf.ForOp, sums: Sums, found: Alternation) -> Iterator[tuple[str, Operation]]:
    if isinstance(loop.parent_op, scf.ForOp):
        yield "a loop whose turns groups take in turn stands in another", loop
    needed = reached((value for op in found.first for value in op.operands), read_for)
    if not found.first or any(value in loop.iter_args for value in needed):
        yield "a turn begins with no product that needs nothing of other turns", loop
    for op in loop.body:
        if op.effects & Effect.WRITE:
            yield "memory is written in a turn that one group alone computes", op
    for numbers, summed in zip(sums, found.summed, strict=True):
        others = (value for n, value in enumerate(loop.yielded) if n not in numbers)
        wrong = next((value.op for value in others if value.op in summed), None)
        if wrong is not None:
            yield "of a sum that one group alone has something else is computed", wrong
    yield from _products(loop, found)
    after = {op for product in found.first for op in (product, *dependent_on([product.out], loop.body))}
    for op in [op for op in loop.body if any(op in each for each in found.heard) and op not in found.sums]:
        tiles = [value for value in read_by(op) if value.op in after and len(value.shape) == 2 and value.shape[1] > 1]
        if op in found.first or tiles and op not in found.told:
            yield "it is computed of a tile that one group alone has, and both need it", op
    region = loop.parent
    assert region is not None
    first, second = (dependent_on([loop.results[n] for n in numbers], region) for numbers in sums)
    for op in first & second:
        yield "it is computed of the sums of both groups", op
    yield from _tiles(loop, found)


def _products(loop: scf.ForOp, found: Alternation) -> Iterator[tuple[str, Operation]]:
    """What is wrong with the products of sums."""
    of_first = [dependent_on([product.out], loop.body) for product in found.first]
    for op in loop.body:
        if isinstance(op, tensor.DotOp) and op in found.sums:
            if in_order(op.a) is not op.a or not all(op.a.op in each for each in of_first):
                yield "a product's left operand does not tell that the first products of its turn are done", op
            if op.out.shape[0] != ROWS_OF_WARPS or ELEMENTS[op.a.dtype].bits != 16:
                yield f"groups that take turns multiply {ROWS_OF_WARPS} rows of 16 bits", op


def _tiles(loop: scf.ForOp, found: Alternation) -> Iterator[tuple[str, Operation]]:
    """Tiles of a turn that the sums of both groups read, or that something else reads than products."""
    groups: dict[object, set[int]] = {}
    for load in [op for op in loop.body if gluon.loads_tile(op)]:
        place = load.ring or load if isinstance(load, (triton.LoadBlockOp, triton.LoadOp)) else load
        readers = [op for op in loop.body if isinstance(op, tensor.DotOp) and load in (block(op.a), block(op.b))]
        of_place = groups.setdefault(place, set())
        of_place |= {n for n, summed in enumerate(found.summed) for op in readers if op in summed}
        if len(of_place) > 1:
            yield "a tile is read for the sums of both groups, of which one would release it", load
        if other_readers(load):
            yield "a tile of a turn is read by something else than products", load
