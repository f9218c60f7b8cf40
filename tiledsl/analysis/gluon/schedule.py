"""What IR that schedule-loops has been through says of a launch for Gluon: loops, clusters, rings, and who has what.

The emitter writes it, and `tiledsl lower --emit schedule` prints it: nothing here looks at what a loop is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, TypeVar

from tiledsl.analysis.dependence import read_by
from tiledsl.analysis.gluon.slices import dependents, needed_for, only_for_loads
from tiledsl.dialects import arith, gluon, scf, tensor, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import ELEMENTS, is_float

ROWS_OF_WARPS = 64  # of the matrix instructions of four warps
MOST_COLUMNS = 256  # of an instruction
AT_ONCE = 4  # turns of products from zero: ptxas keeps none of these in flight from one turn of a text to the next
PLACES = 2  # of a tile that groups of warps exchange: who stores the next one has read the one before
PAIR = 2  # turns of which the second one's first products run while the first one's are used
Span: TypeAlias = tuple[float, float]  # of a tile in a turn: when it is computed, and when it is read for the last time
ALWAYS = (0, math.inf)
_LOADED = (tile.LoadBlockOp, triton.LoadBlockOp, tile.LoadOp)


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop that loads tiles or multiplies them; `clusters` in the order of a turn of the steady loop."""

    op: scf.ForOp
    runs: bool
    in_flight: tuple[int, ...]
    clusters: tuple[gluon.Cluster, ...]

    @property
    def is_skewed(self) -> bool:
        """Whether something waits for the next turn."""
        return any(cluster.stage for cluster in self.clusters)

    @property
    def stage(self) -> dict[Operation, int]:
        return {op: cluster.stage for cluster in self.clusters for op in cluster.ops}

    @property
    def index_late(self) -> bool:
        """Whether something that waits for the next turn reads the index of its own."""
        late = (op for cluster in self.clusters if cluster.stage for op in cluster.ops)
        users = {each for op in late for each in op.walk() if not gluon.loads_tile(each)}
        users -= only_for_loads(op for cluster in self.clusters for op in cluster.ops)
        return any(self.op.index in op.operands for op in users)

    @property
    def products(self) -> list[tensor.DotOp]:
        """In the order in which they are issued."""
        return [op for cluster in self.clusters for op in cluster.ops if isinstance(op, tensor.DotOp)]

    @property
    def at_once(self) -> int:
        """How many turns are taken at a time."""
        return max(1, int(self.op.unroll))

    @property
    def first_products(self) -> int:
        """The number of the first cluster that issues products."""
        return next(n for n, each in enumerate(self.clusters) if any(isinstance(op, tensor.DotOp) for op in each.ops))

    def steps(self, clusters: int, turns: int) -> list[tuple[int, int]]:
        """Numbers of clusters and of turns that are taken at a time, in order: what comes before a turn's products,
        what uses those of the turn before the last, its products."""
        at = self.first_products

        def when(step: tuple[int, int]) -> tuple[int, int]:
            number, turn = step
            return (turn, 0) if number < at else (turn, 2) if number == at else (turn + 2, 1)

        order = [(number, turn) for number in range(clusters) for turn in range(turns)]
        return sorted(order, key=when)

    @property
    def held(self) -> list[Value]:
        """What a turn computes and the next one reads beside its own."""
        stage = self.stage
        late = [op for op in stage if stage[op]]
        read = dict.fromkeys(value for op in late for value in read_by(op))
        return [value for value in read if value.op in stage and not stage[value.op] and constant_of(value) is None]


@dataclass(frozen=True, eq=False)
class Ring:
    """Places for tiles that arrive together: so many of them, with a barrier for "full" and one for "empty" each.

    `readers`: for each loop, and for each stage of its clusters, the last product there that reads one of the tiles.
    `by_consumer`: whether each consumer has barriers of its own, since all the tiles are its own.
    """

    tiles: tuple[gluon.TileLoad, ...]
    depth: int
    readers: Mapping[Loop, Mapping[int, tensor.DotOp]]
    by_consumer: bool

    @property
    def gathered(self) -> list[gluon.Gather]:
        """Those of the tiles whose rows threads of the producer copy."""
        return [load for load in self.tiles if gluon.gathers(load)]


class Schedule:
    """The schedule of a launch. `rings` by name; those that are loaded outside of the loops have no readers there.

    owner: for each load the one of an earlier loop whose places it has, or itself. own: the loads of which each
    consumer has a tile of its own. buffers: for each computed operand that passes through shared memory, since warps
    that share its rows hold other columns of it, the one whose place it has. prepared: what makes left operands in
    registers of tiles that are loaded `for_registers`. gathered: the loads whose rows threads of the producer copy.
    groups: of four warps that run apart. alternate: for each of two groups that take turns in turn, the numbers of its
    sums; then `warps` are those of a group.
    """

    def __init__(self, launch: triton.LaunchOp) -> None:
        self.op = schedule_of(launch)
        self.alternate = self.op.alternate
        self.warps, self.groups = (4, 1) if self.alternate else (launch.warps, launch.groups)
        self.group = next((op for op in launch.body if isinstance(op, gluon.WarpGroupIdOp)), None)
        self.parts = 1 if self.group is None else int(self.group.parts)
        found = [op for op in launch.body.walk() if isinstance(op, scf.ForOp) and is_scheduled(op)]
        runs, in_flight = dict(enumerate(self.op.runs)), dict(enumerate(self.op.in_flight))
        self.loops = [
            Loop(op, runs.get(n, False), in_flight.get(n, ()), tuple(gluon.clusters(op.body)))
            for n, op in enumerate(found)
        ]
        self.products = [product for loop in self.loops for product in loop.products]
        self.loads = [op for op in launch.body.walk() if gluon.loads_tile(op)]
        self.gathered = [load for load in self.loads if gluon.gathers(load)]
        self.prepared = prepared(self.products)
        self.for_registers = [load for load in self.loads if load in self.prepared]
        self.kept = [load for load in self.loads if not any(load.parent is loop.op.body for loop in self.loops)]
        by_group = dependents([] if self.group is None else [self.group], needed_for(self._places()))
        self.own = {load for load in self.loads if any(value.op in by_group for value in load.operands)}
        self.owner: dict[gluon.TileLoad, gluon.TileLoad] = {}
        self.rings: dict[str, Ring] = {}
        self._find_rings()
        self.buffers = operand_places([self._operands(loop) for loop in self.loops])

    def _operands(self, loop: Loop) -> dict[Value, Span]:
        """The computed operands of a loop that pass through shared memory, and when."""
        at: dict[Operation | None, int] = {
            op: n for n, op in enumerate(op for each in loop.clusters for op in each.ops)
        }
        read: dict[Value, int] = {}
        for product in (each for each in loop.products if is_stored(each, self.warps)):
            read[in_order(product.a)] = at[product]
        if loop.op.num_stages != 1:
            return dict.fromkeys(read, ALWAYS)
        return {value: (at[value.op], last) for value, last in read.items()}

    def _places(self) -> list[Value]:
        return [value for load in self.loads for value in load.operands]

    def _find_rings(self) -> None:
        tiles: dict[str, list[gluon.TileLoad]] = {}
        places = [
            (None, self.kept),
            *((loop, [op for op in self.loads if op.parent is loop.op.body]) for loop in self.loops),
        ]
        readers: dict[str, dict[Loop, dict[int, tensor.DotOp]]] = {}
        for loop, loads in places:
            for name in dict.fromkeys(load.ring for load in loads):
                mine = [load for load in loads if load.ring == name]
                owners = tiles.setdefault(name, mine)
                self.owner.update(zip(mine, owners, strict=True))
                by_loop = readers.setdefault(name, {})
                if loop is not None:
                    by_loop[loop] = {
                        loop.stage[product]: product
                        for product in loop.products
                        if any(block(value) in mine for value in (product.a, product.b))
                    }
        for name, owners in tiles.items():
            by_consumer = not readers[name] and all(load in self.own for load in owners)
            depth = max((loop.op.num_stages for loop in readers[name]), default=1)
            self.rings[name] = Ring(tuple(owners), depth, readers[name], by_consumer)

    def reads_registers(self, product: tensor.DotOp) -> bool:
        """Whether a product's left operand is in registers."""
        load = block(product.a)
        return not is_stored(product, self.warps) if load is None else self.in_registers(load)

    def in_registers(self, load: Operation) -> bool:
        """Whether a tile is read to registers once."""
        shapes = {each.out.shape for each in self.products if block(each.a) is load}
        return self.op.query_in_registers and load in self.kept and len(shapes) == 1

    def chains(self) -> list[list[Loop]]:
        """The loops; those between whose turns the pipeline does not run empty together. What one holds back, the first
        turn of the next does in its own words."""
        chains = [self.loops[:1]] if self.loops else []
        for one, following in pairwise(self.loops):
            alike = one.is_skewed and self._turns(one) == self._turns(following)
            alike &= not (one.index_late or following.index_late)
            if alike and hands_on(one.op, following.op):
                chains[-1].append(following)
            else:
                chains.append([following])
        return chains

    def _turns(self, loop: Loop) -> object:
        """What turns of two loops have in common, if one can go on where another stops."""
        products = [(loop.stage[each], each.out.type) for each in loop.products]
        rings = {name: sorted(ring.readers[loop]) for name, ring in self.rings.items() if loop in ring.readers}
        return products, [value.type for value in loop.held], rings


def schedule_of(launch: triton.LaunchOp) -> gluon.ScheduleOp:
    """What schedule-loops has put first in a launch."""
    first = launch.body.first
    assert isinstance(first, gluon.ScheduleOp), "schedule-loops has not been through this launch"
    return first


def have_same_turns(launch: triton.LaunchOp) -> bool:
    """Whether there are several consumers, and all loops have the same turns for each."""
    group = [op for op in launch.body if isinstance(op, gluon.WarpGroupIdOp) and op.parts > 1]
    loops = [op for op in launch.body.walk() if isinstance(op, scf.ForOp)]
    return bool(group) and needed_for(value for op in loops for value in op.operands[:2]).isdisjoint(group)


def is_scheduled(loop: scf.ForOp) -> bool:
    """Whether a loop's own body has tiles to load or to multiply."""
    return any(isinstance(op, tensor.DotOp) or gluon.loads_tile(op) for op in loop.body)


def hands_on(one: scf.ForOp, following: scf.ForOp) -> bool:
    """Whether a loop does nothing with its values but hand them to another one."""
    return following.inits == one.results and all(set(value.uses) == {following} for value in one.results)


def block(value: Value) -> gluon.TileLoad | None:
    """The load of a product's operand, transposed or not; None of what is computed."""
    op = in_order(value).op
    return op if gluon.loads_tile(op) else None


def other_readers(load: gluon.TileLoad | tile.LoadOp) -> list[Operation]:
    """What reads a tile otherwise than products do, which may have it transposed."""
    return [user for user in load.out.uses if not isinstance(user, (tensor.DotOp, tensor.TransposeOp))]


def ending_in(value: Value) -> list[tensor.DotOp]:
    """The products that are added up to a value, the last one first, of which nothing else reads a sum."""
    found: list[tensor.DotOp] = []
    while isinstance(value.op, tensor.DotOp) and len(value.uses) == 1:
        found.append(value.op)
        value = value.op.accumulator
    return found


def is_only_added_to(value: Value, product: tensor.DotOp) -> bool:
    """Whether a value is what a product is added to, and nothing else."""
    return product.accumulator is value and set(value.uses) == {product}


def prepared(products: Iterable[tensor.DotOp]) -> set[Operation]:
    """What makes left operands, element by element, of tiles that are loaded for these alone: the loads, and all that
    comes between. Such tiles have the operand's layout; those of 16 bits have none of the products' shapes, and those
    of 8 bits are computed bit by bit, four in a word."""
    products = list(products)
    tiles = {product.out.shape for product in products}
    found: set[Operation] = set()
    for product in products:
        found |= _preparation(product) if in_words(product) or product.a.shape not in tiles else set()
    return found


def _preparation(product: tensor.DotOp) -> set[Operation]:
    """The same for one product; nothing where something else goes into its left operand."""
    by_element = _is_bitwise if in_words(product) else _is_by_element
    found: set[Operation] = set()
    left = [product.a.op]
    while left:
        op = left.pop()
        if op is None or op.parent is not product.parent:
            return set()
        if op not in found:
            found.add(op)
            if isinstance(op, _LOADED):
                continue
            columns = [each for each in op.operands if len(each.shape) == 2 and each.shape[1] > 1]
            made = [each for each in columns if constant_of(each) is None]
            if not by_element(op) or {each.shape for each in made} - {product.a.shape}:
                return set()
            left += [each.op for each in made]
    return found if len(found) > 1 and any(isinstance(op, _LOADED) for op in found) else set()


def _is_by_element(op: Operation) -> bool:
    return isinstance(op, (arith.Elementwise, tensor.BroadcastOp))


def _is_bitwise(op: Operation) -> bool:
    """Whether an operation on integers gives the same low byte if it knows but the low bytes of its operands."""
    if isinstance(op, arith.ShrOp):
        return constant_of(op.rhs) in range(8) and _is_byte(op.lhs)
    if isinstance(op, arith.ShlOp):
        return constant_of(op.rhs) in range(8)
    if isinstance(op, (arith.AndOp, arith.OrOp, arith.XorOp)):
        return op.lhs.dtype != "bool"
    if isinstance(op, arith.CastOp):
        return (
            not is_float(op.source.dtype)
            and not is_float(op.out.dtype)
            and "bool" not in (op.source.dtype, op.out.dtype)
        )
    return isinstance(op, arith.BitcastOp)


def _is_byte(value: Value) -> bool:
    """Whether an integer is known to be from 0 to 255."""
    op = value.op
    if isinstance(op, arith.AndOp):
        return any(constant_of(each) in range(256) for each in op.operands)
    return value.dtype == "uint8" or isinstance(op, arith.CastOp) and op.source.dtype == "uint8"


def in_order(value: Value) -> Value:
    """What is transposed to be an operand, or the operand itself."""
    return value.op.source if isinstance(value.op, tensor.TransposeOp) else value


def divided(shape: tuple[int, ...], warps: int) -> tuple[int, int]:
    """How many of the warps the rows of a product are divided among, and how many its columns."""
    groups = warps // 4
    by_rows = math.gcd(shape[0] // ROWS_OF_WARPS, groups)
    return 4 * by_rows, groups // by_rows


def shared_axis(shape: tuple[int, ...], warps: int) -> int:
    """Which axis of a product two groups of four warps divide: its rows, or the columns of one that has too few."""
    return 0 if divided(shape, warps)[1] == 1 else 1


def share(shape: tuple[int, ...], axis: int, groups: int) -> tuple[int, ...]:
    """The shape of what one of several groups has of a tile."""
    return tuple(extent // groups if at == axis else extent for at, extent in enumerate(shape))


def is_stored(product: tensor.DotOp, warps: int) -> bool:
    """Whether a product's left operand is computed, and passes through shared memory."""
    is_transposed = in_order(product.a) is not product.a
    return block(product.a) is None and (is_transposed or divided(product.out.shape, warps)[1] > 1)


def in_words(product: tensor.DotOp) -> bool:
    """Whether a left operand that is in registers lies there in words, four elements in each."""
    return ELEMENTS[product.a.dtype].bits == 8


def instruction_columns(shape: tuple[int, ...], warps: int) -> int:
    """The columns of the matrix instructions of a product."""
    return min(MOST_COLUMNS, shape[1] // divided(shape, warps)[1])


_Thing = TypeVar("_Thing")


def shared(loops: Sequence[Mapping[_Thing, object]]) -> dict[_Thing, _Thing]:
    """For each thing the first one that is alike and has not been given to another one of the same loop."""
    found: dict[_Thing, _Thing] = {}
    owners: dict[_Thing, object] = {}
    for loop in loops:
        free = dict(owners)
        for thing, kind in loop.items():
            owner = next((each for each in free if free[each] == kind), thing)
            free.pop(owner, None)
            owners[owner], found[thing] = kind, owner
    return found


def operand_places(loops: Sequence[Mapping[Value, Span]]) -> dict[Value, Value]:
    """For each computed operand that passes through shared memory the one whose place it has: a tile like it of an
    earlier loop, or of its own one, if that is read for the last time before."""
    found: dict[Value, Value] = {}
    for loop in loops:
        until: dict[Value, float] = {}
        for value, (first, last) in loop.items():
            alike = (each for each in found.values() if each.type == value.type)
            free = (each for each in alike if each not in until or until[each] < first)
            owner = found[value] = next(free, value)
            until[owner] = last
    return found


def last_of(region: Region, loops: Iterable[Loop]) -> Operation | None:
    """The last operation of a region that is, or contains, one of the loops."""
    inside = {loop.op for loop in loops}
    return next((op for op in reversed(list(region)) if any(each in inside for each in op.walk())), None)
