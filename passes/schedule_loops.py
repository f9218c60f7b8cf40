"""The order in which the loops of a kernel for Gluon are written, and which loops Triton makes one of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import chain, count, takewhile

from tiledsl.analysis.dependence import handed_on, operands_of, reached, read_by, stripped
from tiledsl.analysis.gluon.alternation import sums_of_groups
from tiledsl.analysis.gluon.checks import broken
from tiledsl.analysis.gluon.plan import CONSUMER_REGISTERS, fits_registers
from tiledsl.analysis.gluon.schedule import (
    AT_ONCE,
    PAIR,
    block,
    ending_in,
    have_same_turns,
    in_words,
    is_only_added_to,
    is_stored,
    prepared,
)
from tiledsl.analysis.gluon.slices import dependents, needed_for
from tiledsl.analysis.gluon.tile_loops import ITEM, TileLoop, dependent_on, live_registers, read_for, tile_loops
from tiledsl.analysis.gluon.words import described, may_come_in_fours
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, gluon, scf, tensor, triton
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, is_float

MOST_IN_FLIGHT = 4  # products, at the end of a turn


@dataclass(frozen=True)
class ScheduleLoops(Pass):
    """Bring the loops of launches for Gluon into the order of their text, and divide them into clusters.

    In launches for Triton, keep loops apart that it fails to flatten into one. In all, name the carried values that
    Triton would take for unchanging.

    Before:  %out = scf.for ... { %k = triton.load_block ...; %v = triton.load_block ...; %s = tensor.dot %q, %kt, %zero
                                  (update); %acc2 = arith.mul %acc, %f; %out = tensor.dot %p, %v, %acc2; yield }
    After:   gluon.schedule {runs = (true)}
             %out = scf.for ... { gluon.cluster; %k = triton.load_block ... {ring = "k"}; %s = tensor.dot
                                  gluon.cluster {slot = 2}; (update)
                                  gluon.cluster {slot = 3}; %acc2 = arith.mul %acc, %f
                                  gluon.cluster {stage = 1, slot = 1}; %v = triton.load_block ... {ring = "v"}
                                  %out = tensor.dot %p, %v, %acc2; yield }

    Where one group of warps runs a loop, two turns are taken at a time if registers suffice and a turn's first products
    need nothing of others: those of the second turn run while the first one's are used.

    Where two groups take turns in turn, the same order is that of each, and the schedule says which sums are whose.

    Where consumers have rows of their own, products that wait for others of their turn are held back until those of the
    next turn are on their way, if the turn needs nothing of them. All other products are issued in order, each as soon
    as what it needs is there. Tiles that the same products read share a ring, and loops that follow each other share
    rings.

    skew:      hold products back where it is legal; without, each turn issues all of its own products.
    in_flight: the most products that a turn leaves to be awaited in the next one.
    fours:     have tiles that operands of 8 bits are computed from come so that lanes exchange nothing, where all can;
               sums along their columns are in the same order then.
    turns:     have consumers take turns at issuing products, where these are held back and make operands of 8 bits.
    pairs:     take two turns at a time where that is legal and one group of warps runs one loop of products.

    Needs:   select-emitter, lower-to-triton. Runs last: the emitter writes what it finds, in this order.
    """

    name = "schedule-loops"
    skew: bool = True
    in_flight: int = MOST_IN_FLIGHT
    fours: bool = True
    turns: bool = False
    pairs: bool = True

    def allowances(self, program: Program) -> frozenset[str]:
        launches = [op for op in of_kinds(program.root.nests(), triton.LaunchOp) if targets_gluon(op)]
        in_fours = [op for launch in launches if self.fours for op in may_come_in_fours(launch)]
        added = any(op.kind == "sum" and is_float(op.out.dtype) for op in of_kinds(in_fours, tensor.ReduceOp))
        return frozenset({"reassociation"} if added else ())

    def run(self, program: Program) -> None:
        if self.in_flight < 0:
            raise TileError(f"schedule-loops.in_flight is {self.in_flight}; it must be a number of products")
        for launch in [op for op in program.root.nests() if isinstance(op, triton.LaunchOp)]:
            loops: list[scf.ForOp | scf.WhileOp] = of_kinds(launch.nests(), scf.ForOp, scf.WhileOp)
            for loop in loops:
                loop.set_attribute("alike", _alike(loop))
            if not targets_gluon(launch):
                _keep_apart(launch)
                continue
            if isinstance(launch.body.first, gluon.ScheduleOp):
                continue  # IR that has been through this pass
            launch.body.insert(self._schedule(launch), launch.body.first)

    def _schedule(self, launch: triton.LaunchOp) -> gluon.ScheduleOp:
        found = tile_loops(launch.body)
        loops = [loop.op for loop in found.loops]
        groups = next((op.parts for op in launch.body if isinstance(op, gluon.WarpGroupIdOp)), 0)
        late = [loop.late if groups and self.skew else () for loop in found.loops]
        in_pairs = self.pairs and not groups and launch.groups == len(loops) == 1
        alternate = launch.groups > 1 and loops[0].unroll == PAIR
        at_once = not all(_rescaled_late(loop) for loop, held in zip(found.loops, late) if held)
        for loop, held in zip(found.loops, late):
            if held:
                _hold_back(loop, at_once)
            else:
                _in_order(loop, self.skew and not alternate)
                if alternate or in_pairs and _fit_two_turns(loop, launch.warps):
                    _in_pairs(loop)
        if any(late):
            _move_before(launch.body, loops)
        _name_results(launch.body)
        _name_rings(launch)
        for op in may_come_in_fours(launch) if self.fours else ():
            op.set_attribute("in_fours", True)
            if isinstance(op, triton.LoadBlockOp):
                described(op, launch).set_attribute("in_fours", True)
        in_flight = tuple(
            _in_flight(loop, launch.warps, self.in_flight) if _may_leave_some(loop) else () for loop in loops
        )
        ranges = Ranges.around(launch)
        waiting = [product for products in late for product in products]
        return gluon.ScheduleOp(
            runs=tuple(ranges.below(loop.lower, loop.upper) for loop in loops),
            in_flight=in_flight if any(in_flight) else (),
            query_in_registers=bool(waiting) and all(fits_registers(loop, groups) for loop in found.loops),
            in_turns=self.turns and any(map(in_words, waiting)) and have_same_turns(launch),
            alternate=sums_of_groups(found.loops[0]) if alternate else (),
            packed=groups > 2 and any(ELEMENTS[product.a.dtype].bits == 16 for product in waiting),
        )


def _alike(loop: scf.ForOp | scf.WhileOp) -> tuple[tuple[int, ...], ...]:
    """Groups of carried values that Triton would take for unchanging. It reads a body once with what the variables hold
    before the loop; a variable that then holds the same is not carried, also where it got that from another one that
    began with the same value. Constants and iotas are written for each variable."""
    iter_args, yielded = loop.iter_args, loop.yielded
    groups: dict[Value, list[int]] = {}
    for number, value in enumerate(loop.inits):
        value = stripped(value, arith.BitcastOp)  # Triton has one type for some pairs of types, and then drops it
        if not isinstance(value.op, (arith.ConstantOp, tensor.IotaOp)):
            groups.setdefault(value, []).append(number)
    return tuple(
        tuple(group)
        for group in groups.values()
        if any(_may_hold(yielded[one], {iter_args[other] for other in group if other != one}) for one in group)
    )


def _may_hold(value: Value, others: Set[Value]) -> bool:
    """Whether a value may be one of `others`, handed on by nothing but branches and loops."""
    return any(source in others for source in reached([value], handed_on))


def _keep_apart(launch: triton.LaunchOp) -> None:
    """Take `flatten` from loops that Triton fails to make one of."""
    for loop in launch.nests():
        if (
            isinstance(loop, scf.ForOp)
            and loop.flatten
            and (not _has_work_to_overlap(loop) or _branches_behind_loop(loop))
        ):
            loop.set_attribute("flatten", False)


def _has_work_to_overlap(op: scf.ForOp) -> bool:
    """Whether a loop inside does more than compute. Up to 3.6, Triton fails to fuse a loop with one that does not, and
    nothing would be gained by it."""
    return any(isinstance(loop, scf.ForOp) and not loop.is_pure for loop in op.nests()[1:])


def _branches_behind_loop(op: scf.ForOp) -> bool:
    """Whether a branch follows an inner loop. Triton 3.6 moves the branch into the one loop, and may give it results
    there of which one of its sides yields none."""
    has_loop = False
    for inner in op.body:
        if has_loop and isinstance(inner, scf.IfOp):
            return True
        has_loop = has_loop or any(isinstance(nested, scf.ForOp) for nested in inner.nests())
    return False


def _rescaled_late(loop: TileLoop) -> bool:
    """Whether late sums are only multiplied by factors that the turn computes, so that this may wait for the next."""
    between = loop.summed
    factors = [op.factor.op for op in between if isinstance(op, gluon.RescaleOp)]
    ready = (op is not None and op.parent is loop.op.body and op not in between for op in factors)
    return len(factors) == len(between) == len(loop.late) and all(ready)


def _hold_back(loop: TileLoop, at_once: bool) -> None:
    """Products that wait for the next turn, behind those that this one begins with."""
    late, between = loop.late, loop.summed
    early = [each for each in loop.products if each not in late]
    first = needed_for(value for each in early for value in each.operands) | {*early}
    tiles = {block(each.b) for each in late} | {each.b.op for each in late}
    held = [op for op in loop.op.body if op in late or op in tiles and op not in first]
    body = [op for op in loop.op.body if not op.is_terminator and op not in between and op not in held]
    begin, update = [op for op in body if op in first], [op for op in body if op not in first]
    rescaling = (0, 3) if at_once else (1, 1)
    _divide(loop.op, [(0, 0, begin), (0, 2, update), (*rescaling, between), (1, 1, held)])


def _in_order(loop: TileLoop, skew: bool) -> None:
    """Each product is issued as soon as what it needs is there: first its left operand, which may be on its way to
    shared memory while what it is added to is computed. What no product waits for comes while the last one runs; what
    also waits for memory, behind the last one. Products that need none of the turn's others come first; of those that
    several loaded tiles alone give, one is issued a turn ahead."""
    body, ahead = loop.op.body, loop.of_tiles
    left = [op for op in body if not op.is_terminator]
    placed: list[Operation] = []

    def place(ops: Set[Operation | None]) -> None:
        placed.extend(op for op in left if op in ops)
        left[:] = [op for op in left if op not in ops]

    products = loop.issued
    needed = {value.op for product in products for value in reached(product.operands, read_for)}
    for load in [op for op in left if op in needed and isinstance(op, triton.LoadOp) and not op.out.shape]:
        before = {value.op for value in reached(load.operands, read_for)}
        if before.isdisjoint(products):  # it is there when a product needs it
            place({*before, load})
    for product in products:
        place({value.op for value in reached([product.a], read_for)})
        place({value.op for value in reached(product.operands, read_for)} | {product})
    loads = [op for op in left if op.effects & Effect.READ]
    place(needed_for(value for op in loads for value in op.operands) | {*loads})
    read = {value for op in placed for value in read_by(op)}
    flying = [product.out for product in products if product.out not in read]
    waiting = dependent_on([*flying, *(value for op in loads for value in op.results)], body)
    place({op for op in left if op not in waiting})
    ops = [*placed, *left]
    if skew and len(ahead) > 1 and loop.op.num_stages != 1 and not _is_used_last(ahead[0], ops):
        _one_ahead(loop.op, ahead[0], ops)
        return
    early = needed_for(value for op in loads for value in op.operands) | {*loads}
    first = [op for op in placed if op in early and loop.op.unroll == AT_ONCE]
    _divide(loop.op, [(0, 0, first), (0, 0, [op for op in placed if op not in first]), (0, 0, left)])


def _fit_two_turns(loop: TileLoop, warps: int) -> bool:
    """Whether registers hold the first products of a second turn, which need nothing that a turn hands on."""
    early = [product for product in loop.products if product not in loop.late]
    needed = needed_for(value for product in early for value in product.operands) | {*early}
    free = not any(value in loop.op.iter_args for op in needed for value in op.operands)
    writes = any(op.effects & Effect.WRITE for op in loop.op.body.walk())
    if not early or not loop.late or not free or writes or loop.op.num_stages < PAIR:
        return False
    columns = sum(product.out.shape[1] for product in early if product.out not in [op.accumulator for op in early])
    beside = early[0].out.shape[0] * columns // (32 * warps)
    return live_registers(loop, warps, everywhere=True) + beside <= CONSUMER_REGISTERS[warps // 4] * 7 // 8


def _in_pairs(loop: TileLoop) -> None:
    """The first products of a turn, and what they need, in a cluster that the second of two turns begins with."""
    early = [product for product in loop.products if product not in loop.late]
    first = needed_for(value for product in early for value in product.operands) | {*early}
    ops = [op for op in loop.op.body if not op.is_terminator and not isinstance(op, gluon.ClusterOp)]
    for op in of_kinds(loop.op.body, gluon.ClusterOp):
        op.erase()
    _divide(loop.op, [(0, 0, [op for op in ops if op in first]), (0, 0, [op for op in ops if op not in first])])
    loop.op.set_attribute("unroll", PAIR)


def _is_used_last(first: tensor.DotOp, ops: Sequence[Operation]) -> bool:
    """Whether something behind the last product reads what is computed of a product, or of a sum with it, in whose
    registers the next turn's would be on its way."""

    def computed(value: Value) -> list[Value]:
        users = (user for user in value.uses if not isinstance(user, tensor.DotOp) or user.accumulator is value)
        return [out for user in users for out in user.results]

    held = {*reached([first.out], computed)}
    behind = takewhile(lambda op: not isinstance(op, tensor.DotOp), reversed(ops))
    return any(value in held for op in behind for value in read_by(op))


def _one_ahead(loop: scf.ForOp, first: tensor.DotOp, ops: Sequence[Operation]) -> None:
    """Issue the next turn's first product behind this one's last, so that it runs while that is used.

    What both parts of a turn compute of the index, each has for itself.
    """
    needed = {value.op for value in reached(first.operands, read_for)} | {first}
    ahead, late = [op for op in ops if op in needed], [op for op in ops if op not in needed]
    copied = {op for op in ahead if op is not first and not gluon.loads_tile(op)}
    read = [value for op in late for value in read_by(op)]
    again = {value.op for value in reached(read, lambda value: operands_of(value) if value.op in copied else [])}
    own: dict[Value, Value] = {}
    for op in [op for op in ahead if op in copied & again]:
        loop.body.insert(op.clone(own), late[0])
    for each in [each for op in late for each in op.walk()]:
        each.set_operands([own.get(value, value) for value in each.operands])
    late = [*(value.op for value in own.values() if value.op is not None), *late]
    end = 1 + max(number for number, op in enumerate(late) if isinstance(op, tensor.DotOp))
    _divide(loop, [(0, 1, ahead), (1, 0, late[:end]), (1, 2, late[end:])])


def _may_leave_some(loop: scf.ForOp) -> bool:
    """Whether the next turn may await a product: none has waited for it, and a tile may come before one is released."""
    in_one_stage = not any(cluster.stage for cluster in of_kinds(loop.body, gluon.ClusterOp))
    return in_one_stage and loop.unroll != PAIR and loop.num_stages != 1


def _in_flight(loop: scf.ForOp, warps: int, most: int) -> tuple[int, ...]:
    """The carried values that are a turn's last products and that the next turn needs only behind a product of its own,
    or all if products are only added to them. What a product reads from registers would have to be carried too."""
    body, yielded, products = list(loop.body), loop.yielded, of_kinds(loop.body, tensor.DotOp)
    chains = {number: ending_in(value) for number, value in enumerate(yielded)}
    sums = [n for n, chain in chains.items() if chain and is_only_added_to(loop.iter_args[n], chain[-1])]
    sums.sort(key=lambda number: products.index(chains[number][0]))
    last = [chains[number][0] for number in sums]
    added = [product for number in sums for product in chains[number]]
    if {*added} == {*products} and {*last} == {*products[-len(last) :]}:
        held = all(block(product.a) is not None for product in products)
        return tuple(sums[len(sums) - min(most, len(sums)) :]) if held else ()
    numbers: list[int] = []
    for product in list(reversed(products))[:most]:
        in_registers = block(product.a) is None and not is_stored(product, warps)
        if in_registers or dict(product.out.uses) != {loop.body.terminator: 1}:
            break
        number = yielded.index(product.out)
        argument = loop.iter_args[number]
        readers = (at for at, op in enumerate(body) if any(argument in each.operands for each in op.walk()))
        reader = next(readers, len(body))
        ahead = any(isinstance(op, tensor.DotOp) for op in body[:reader])
        if not ahead or isinstance(body[reader], tensor.DotOp) or reader > body.index(product):
            break
        numbers.insert(0, number)
    return tuple(numbers)


def _name_results(body: Region) -> None:
    for op in body.walk():
        if isinstance(op, triton.StoreBlockOp) and not op.ring:
            op.set_attribute("ring", "results")


def _name_rings(launch: triton.LaunchOp) -> None:
    """Tiles that the same products read first and last share a ring, and so do those of later loops that are alike, and
    read in the same stages. A row that no product reads shares the ring of a tile which is read longer. A tile that
    is read to registers has a ring of its own, which is free then."""
    group = [op for op in launch.body if isinstance(op, gluon.WarpGroupIdOp)]
    loads = [op for op in launch.body.walk() if gluon.loads_tile(op)]
    by_group = dependents(group, needed_for(value for load in loads for value in load.operands))
    for load in loads:
        if load.parent is launch.body:
            own = any(value.op in by_group for value in load.operands)
            load.set_attribute("ring", ITEM if own or not group else f"{ITEM}_of_all")
    known: dict[str, list[object]] = {}
    for loop in [op for op in launch.nests() if isinstance(op, scf.ForOp)]:
        turn = gluon.clusters(loop.body)
        products = [op for cluster in turn for op in cluster.ops if isinstance(op, tensor.DotOp)]
        made = prepared(products)
        rows: list[gluon.TileLoad] = []
        for_registers: list[list[gluon.TileLoad]] = []
        rings: dict[tuple[tensor.DotOp, tensor.DotOp], list[gluon.TileLoad]] = {}
        for load in (op for op in loop.body if gluon.loads_tile(op)):
            readers = [op for op in products if load in (block(op.a), block(op.b))]
            if readers:
                rings.setdefault((readers[0], readers[-1]), []).append(load)
            elif load in made:
                for_registers.append([load])
            else:
                rows.append(load)
        in_turn = (op for each in sorted(turn, key=lambda each: each.slot) for op in each.ops)
        order = {inner: n for n, op in enumerate(in_turn) for inner in op.walk()}
        for load in rows:
            last = max((order[user] for user in load.out.uses), default=0)
            keys = [key for key in rings if order[key[1]] > last]
            if not keys:
                what = "no product of the turn comes behind all that reads the tile, to free its place"
                raise broken("rings", load, what, "what reads it before the last product")
            rings[next((key for key in keys if order[key[0]] < order[load]), keys[0])].append(load)
        free = dict(known)
        stages = {op: cluster.stage for cluster in turn for op in cluster.ops}
        for tiles in (*for_registers, *rings.values()):
            read = {stages[op] for op in products if {block(op.a), block(op.b)} & {*tiles}}
            kind = [read, *(_kind(load) for load in tiles)]
            wanted = tiles[0].out.name or "tile"
            numbered = chain([wanted], (f"{wanted}_{number}" for number in count(1)))
            new = next(each for each in numbered if each not in known)
            name = next((each for each in free if free[each] == kind), new)
            free.pop(name, None)
            known[name] = kind
            for load in tiles:
                load.set_attribute("ring", name)


def _kind(load: gluon.TileLoad) -> object:
    """What loads have in common that may take the same places."""
    source = load.descriptor if isinstance(load, triton.LoadBlockOp) else "gathered"
    return source, gluon.box(load), load.out.dtype


def _move_before(body: Region, loops: Sequence[scf.ForOp]) -> None:
    """What stands between loops and needs none of them comes before the first, so that they follow each other."""
    needed = dependent_on([value for loop in loops for value in loop.results], body)
    first, last = (next(op for op in body if loop in op.nests()) for loop in (loops[0], loops[-1]))
    ops = list(body)
    for op in ops[ops.index(first) + 1 : ops.index(last)]:
        if op not in needed and op not in loops and not op.effects & ~Effect.READ:
            op.move_before(first)


def _divide(loop: scf.ForOp, clusters: Iterable[tuple[int, int, Sequence[Operation]]]) -> None:
    end = loop.body.terminator
    for stage, slot, ops in clusters:
        if ops:
            Builder.at(end).insert(gluon.ClusterOp(stage=stage, slot=slot))
        for op in ops:
            op.move_before(end)
