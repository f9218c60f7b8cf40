"""The rules of a schedule for Gluon: what follows them neither hangs nor overwrites anything, for any number of turns.

Producer and consumers of a launch form a marked graph: a turn of a loop loads each ring once, waits for it once and
releases it once, a consumer some turns later. Such a graph is live if and only if each of its cycles holds a token
(Commoner et al. 1971, Marked directed graphs); a ring's tokens are its places. First and last turns leave out whole
instances of these events, so that what holds for the steady loop holds for any number of turns, none included.
"""

from __future__ import annotations

from itertools import dropwhile
from typing import TypeAlias

from tiledsl.analysis.dependence import read_by
from tiledsl.analysis.gluon.alternation import why_not
from tiledsl.analysis.gluon.schedule import (
    AT_ONCE,
    PAIR,
    Loop,
    Ring,
    Schedule,
    block,
    have_same_turns,
    is_only_added_to,
    is_scheduled,
    is_stored,
    other_readers,
    schedule_of,
)
from tiledsl.analysis.gluon.slices import only_for_loads
from tiledsl.analysis.gluon.tile_loops import is_addition
from tiledsl.analysis.gluon.words import described, may_come_in_fours
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import gluon, scf, tensor, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.location import UNKNOWN

_Kind: TypeAlias = tuple[tuple[int, ...], str]  # of a tile: its box, and its type or how it is loaded and its type

RULES = {
    "turns": "a loop that runs has a turn",
    "order": "what is read has been computed, and not yet computed anew",
    "rings": "each tile has a place, and a product that frees it",
    "tokens": "a ring has a place more than are taken when the next tile is awaited",
    "in flight": "what the next turn awaits is issued in each turn, and read by nothing else",
    "results": "a result that takes an operand's place finds one",
    "alternate": "groups that take turns in turn have sums of their own, and know when first products are done",
    "fours": "what is computed from a product knows the order of its columns",
}


def checked(launch: triton.LaunchOp) -> Schedule:
    """The schedule of a launch. Raises TileError with the rule that it breaks, if it breaks one."""
    _check_fields(launch)
    _check_rings(launch)
    schedule = Schedule(launch)
    _check_results(launch, schedule)
    _check_fours(launch, schedule)
    _check_stages(schedule)
    _check_alternate(launch, schedule)
    for loop in schedule.loops:
        _check_readers(loop, schedule)
        _check_order(loop, schedule)
        _check_in_flight(loop, schedule)
        _check_tokens(loop, schedule)
    ranges = Ranges.around(launch)
    for number, loop in enumerate(schedule.loops):
        if loop.runs and not ranges.below(loop.op.lower, loop.op.upper):
            what = f"value {number} of runs says that {_loop(loop.op)} has a turn, and it may have none"
            raise broken("turns", schedule.op, what, "false")
    return schedule


def broken(rule: str, op: Operation, what: str, instead: str = "") -> TileError:
    """The error for an operation that breaks a rule. instead: what may be written."""
    notes = [f"the rule {rule!r} of schedules: {RULES[rule]}", *([f"write {instead}"] if instead else [])]
    place = f"\n{repr(op).splitlines()[0]}" if op.loc is UNKNOWN else ""
    return TileError(f"{op.name}: {what}{place}", op.loc, notes)


def _loop(op: scf.ForOp) -> str:
    return "a loop" if op.loc is UNKNOWN else f"the loop of line {op.loc.line}"


def _loops(launch: triton.LaunchOp) -> list[scf.ForOp]:
    return [op for op in launch.body.walk() if isinstance(op, scf.ForOp) and is_scheduled(op)]


def _check_fields(launch: triton.LaunchOp) -> None:
    op, loops = schedule_of(launch), _loops(launch)
    if len(op.runs) != len(loops):
        raise broken("turns", op, f"runs has {len(op.runs)} values, and there are {len(loops)} loops with tiles")
    if op.in_turns and not have_same_turns(launch):
        raise broken("turns", op, "there are no consumers that have the same turns", "in_turns = false")
    for loop, numbers in zip(loops, op.in_flight, strict=False):
        for number in numbers:
            if not 0 <= number < len(loop.yielded) or not isinstance(loop.yielded[number].op, tensor.DotOp):
                raise broken("in flight", op, f"value {number} of those that {_loop(loop)} carries is no product")
    if len({loop.num_stages for loop in loops}) > 1:
        raise broken("rings", op, f"loops that share rings are {[loop.num_stages for loop in loops]} deep", "one depth")


def _check_rings(launch: triton.LaunchOp) -> None:
    """Rings hold alike tiles in all loops, which only products read. Tiles for all turns are there before them."""
    loops = _loops(launch)
    known: dict[str, tuple[bool, list[_Kind]]] = {}
    for region in (launch.body, *(loop.body for loop in loops)):
        rings: dict[str, list[gluon.TileLoad]] = {}
        for op in region:
            if gluon.loads_tile(op):
                rings.setdefault(op.ring, []).append(op)
                if not op.out.uses:
                    raise broken("rings", op, "nothing reads the tile")
        for name, tiles in rings.items():
            kind = [(gluon.box(load), f"{'gathered ' * gluon.gathers(load)}{load.out.dtype}") for load in tiles]
            is_inside, other = known.setdefault(name, (region is not launch.body, kind))
            if not name:
                raise broken("rings", tiles[0], "the tile has no ring", 'ring = "NAME"')
            if is_inside != (region is not launch.body) or other != kind:
                raise broken("rings", tiles[0], f"ring {name!r} holds {_tiles(other)} elsewhere, not {_tiles(kind)}")
    for op in launch.body.walk():
        if isinstance(op, tensor.DotOp) and block(op.b) is None:
            raise broken("rings", op, "its right operand is no tile of a ring", 'ring = "NAME" of its load')
    places = {each for loop in loops for each in (loop.body, launch.body)}
    behind = set(dropwhile(lambda op: not any(each in loops for each in op.walk()), launch.body))
    for load in launch.body.walk():
        if gluon.loads_tile(load):
            if load.parent not in places:
                raise broken("rings", load, "the tile is loaded inside of a branch, or of a loop without products")
            if load in behind:
                raise broken("rings", load, "a tile for all turns is loaded behind a loop", "it before the loops")


def _check_alternate(launch: triton.LaunchOp, schedule: Schedule) -> None:
    """Two groups take the turns of the only loop in turn; what they know at its end they knew before its first turn."""
    op, loops = schedule.op, [loop.op for loop in schedule.loops]
    if bool(op.alternate) != (launch.groups > 1 and any(loop.unroll == PAIR for loop in loops)):
        unrolled = ", ".join(str(loop.unroll) for loop in loops)
        what = f"groups alternate where there are 2 and loops have unroll = {PAIR}: {launch.groups} groups, {unrolled}"
        raise broken("alternate", op, what, "the sums of each group, or unroll = 1")
    if op.alternate:
        if len(loops) > 1 or not schedule.kept:
            raise broken("alternate", op, "groups alternate in one loop, before which tiles are loaded for both")
        wrong = why_not(loops[0], op.alternate)
        if wrong is not None:
            raise broken("alternate", wrong[1], wrong[0])


def _tiles(kind: list[_Kind]) -> str:
    return " and ".join(f"{'x'.join(map(str, box))} {dtype}" for box, dtype in kind)


def _check_fours(launch: triton.LaunchOp, schedule: Schedule) -> None:
    """The tiles whose rows can come in fours do, or none, and all that has the same columns and descriptors know."""
    possible = may_come_in_fours(launch)
    blocks = of_kinds(schedule.loads, triton.LoadBlockOp)
    asked = any(load.in_fours for load in blocks)
    for load in blocks:
        if load.in_fours != (asked and load in possible):
            can = "can" if load in possible else "cannot"
            raise broken("fours", load, f"a tile's rows come in fours, and these {can}")
        if load.in_fours != described(load, launch).in_fours:
            raise broken("fours", load, "its descriptor sees another order of rows", "in_fours = true for both")
    ops: list[tensor.IotaOp | tensor.ReduceOp] = of_kinds(launch.body.walk(), tensor.IotaOp, tensor.ReduceOp)
    for op in ops:
        come = asked and op in possible
        if op.in_fours != come:
            raise broken("fours", op, f"its columns {'' if come else 'do not '}come in fours", f"in_fours = {come}")


def _check_stages(schedule: Schedule) -> None:
    """Loops that share a ring go through its places together in each stage."""
    for name, ring in schedule.rings.items():
        stages = {loop: sorted(by_stage) for loop, by_stage in ring.readers.items()}
        first = next(iter(stages.values()), [])
        other = next((loop for loop in stages if stages[loop] != first), None)
        if other is not None:
            what = f"it reads ring {name!r} in the stages {stages[other]}, and another loop in {first}"
            raise broken("rings", other.op, what, "the same stages, or another ring")


def _check_readers(loop: Loop, schedule: Schedule) -> None:
    """Products release a ring. What reads a tile otherwise does so before the last one, in the stage of the first."""
    at = {op: (c.stage, n, k) for n, c in enumerate(loop.clusters) for k, op in enumerate(c.ops)}
    for load in [op for op in at if gluon.loads_tile(op)]:
        mine = [each for each in at if gluon.loads_tile(each) and each.ring == load.ring]
        products = sorted(at[op] for op in loop.products if {block(op.a), block(op.b)} & {*mine})
        if load in schedule.for_registers:
            if len(mine) > 1:
                raise broken("rings", load, "a tile that is read to registers shares its ring")
            if at[load][0]:
                raise broken("rings", load, "a tile that is read to registers is read a turn late", "stage = 0")
            continue
        if not products:
            raise broken("rings", load, "no product reads a tile of the ring, so that it is never released")
        turned = [user for user in load.out.uses if isinstance(user, tensor.TransposeOp)]
        other = next((each for op in turned for each in op.out.uses if not isinstance(each, tensor.DotOp)), None)
        if other is not None:
            raise broken("rings", other, "it reads a tile that only products can read transposed")
        first, last = products[0], products[-1]
        if other_readers(load) and (at[load] > last or at[load][0] < first[0]):
            what = "something else reads the tile after the last product of its ring, or in a stage before the first's"
            raise broken("rings", load, what, "it before the last product, in the stage of the first")


def _check_results(launch: triton.LaunchOp, schedule: Schedule) -> None:
    free = [(gluon.box(load), load.out.dtype) for load in schedule.kept]
    for op in launch.body.walk():
        if isinstance(op, triton.StoreBlockOp) and op.ring != "results":
            kind = gluon.box(op), op.value.dtype
            if kind not in free:
                where = f"{_tiles([kind])} has no place among {_tiles(free) or 'none'} that are loaded once"
                raise broken("results", op, where, 'ring = "results"')
            free.remove(kind)


def _check_order(loop: Loop, schedule: Schedule) -> None:
    """Values cross from stage 0 to stage 1 of the next turn before the next turn's are computed."""
    at = {op: (c.stage, n, k) for n, c in enumerate(loop.clusters) for k, op in enumerate(c.ops)}
    yielded = dict(zip(loop.op.iter_args, loop.op.yielded, strict=True))
    handed_on: dict[Operation, Value] = {each: each.a for each in loop.products if not is_stored(each, schedule.warps)}
    produced = only_for_loads(loop.op.walk())  # by the producer, in the order of the text
    if loop.at_once > 1:
        _check_several(loop)
    late_effect = None
    for op, (stage, *place) in at.items():
        for value in () if op in produced or gluon.loads_tile(op) else read_by(op):
            made = value.op
            if made in at:
                made_stage, *made_place = at[made]
                if at[made] >= at[op]:
                    raise broken("order", op, f"it reads {_name(value)}, which a later cluster of the turn computes")
                crosses = made_stage < stage and handed_on.get(op) is not value
                if crosses and made_place < place and block(value) is None and constant_of(value) is None:
                    raise broken(
                        "order", op, f"it reads {_name(value)} a turn late, when the next turn has computed its own",
                        f"a slot for it before that of {made.name}",
                    )  # fmt: skip
            elif value in yielded and yielded[value] is not value:
                source = yielded[value].op
                made_stage, *made_place = at.get(source, (0,))  # type: ignore[arg-type]
                is_there = not stage and isinstance(source, tensor.DotOp) and made_place < place
                if made_stage != stage and not is_there:
                    raise broken("order", op, f"it reads {_name(value)}, which another stage of the turn computes")
        if op.effects & Effect.WRITE and not is_addition(op):
            if stage:
                raise broken("order", op, "what it writes would be written a turn late", "stage = 0")
            late_effect = late_effect or op
    written = [op for op in loop.op.body if op.effects & (Effect.READ | Effect.WRITE)]
    written = [op for op in written if not gluon.loads_tile(op) and not is_addition(op)]
    if late_effect is not None and sorted(written, key=lambda op: at[op][1:]) != written:
        raise broken("order", late_effect, "slots bring accesses of memory out of their order", "one slot for them")


def _check_several(loop: Loop) -> None:
    """Of turns that are taken several at a time, one cluster has the first products, and what reads them comes in later
    ones, where of more than two turns there are no others. What comes before needs nothing of other turns."""
    if loop.is_skewed:
        what = "turns that are taken several at a time hold nothing back"
        raise broken("order", loop.op, what, "unroll = 1, or one stage")
    if loop.at_once not in (PAIR, AT_ONCE):
        raise broken("order", loop.op, f"{loop.at_once} turns are taken at a time", f"unroll = {PAIR}, or {AT_ONCE}")
    products, at = loop.products, loop.first_products
    first = [op for cluster in loop.clusters[: at + 1] for op in cluster.ops]
    carried = [argument for argument, value in zip(loop.op.iter_args, loop.op.yielded) if value.op in products]
    wrong: Operation | None
    if loop.at_once == PAIR:
        wrong = next((op for op in first if any(_is_late(value, op, loop) for value in read_by(op))), None)
    else:
        wrong = next((op for op in products if op not in loop.clusters[at].ops), None)
        wrong = wrong or next((op for op in first if any(value.op in products for value in read_by(op))), None)
        others = (op for op in first if op not in products and not set(carried).isdisjoint(read_by(op)))
        wrong = wrong or next(others, None)
    if wrong is not None:
        what = "of turns taken several at a time, products are one cluster, and what reads them is in later ones"
        raise broken("order", wrong, what, "unroll = 1, or the clusters so")


def _is_late(value: Value, op: Operation, loop: Loop) -> bool:
    """Whether a value is not there when turns before have not ended."""
    is_chained = isinstance(op, tensor.DotOp) and is_only_added_to(value, op)
    return value in loop.op.iter_args or value.op in loop.products and not is_chained


def _name(value: Value) -> str:
    return f"%{value.name}" if value.name else f"a value of {value.op.name if value.op else 'the loop'}"


def _check_in_flight(loop: Loop, schedule: Schedule) -> None:
    products = [loop.op.yielded[number].op for number in loop.in_flight]
    if products and products != loop.products[-len(products) :]:
        raise broken("in flight", loop.op, "products end in their order: only the last ones of a turn may be in flight")
    for product in products:
        assert isinstance(product, tensor.DotOp)
        if loop.is_skewed or loop.at_once > 1:
            what = "a loop of two stages, or of several turns at a time, awaits all its products"
            raise broken("in flight", product, what)
        if dict(product.out.uses) != {loop.op.body.terminator: 1}:
            raise broken("in flight", product, f"{_name(product.out)} is read in the turn that issues it")
        if block(product.a) is None and not is_stored(product, schedule.warps):
            raise broken(
                "in flight", product, f"its operand {_name(product.a)} is in registers that the next turn takes"
            )


def _check_tokens(loop: Loop, schedule: Schedule) -> None:
    """Each ring, against all that a turn waits for before it can release one of its tiles."""
    depth, turns = loop.op.num_stages, min(loop.at_once, 2)
    rings = [(name, ring, _turns_held(ring, loop)) for name, ring in schedule.rings.items() if loop in ring.readers]
    for number, (name, _, (_, last)) in enumerate(rings):
        for other_number, (other, _, (first, _)) in enumerate(rings):
            needed = turns + last - first
            if depth < needed - (other_number < number):
                held = f"a place of ring {name!r} is released {last} turns after its tile's own"
                waits = f"when a tile of ring {other!r} for the turn after has been awaited"
                raise broken("tokens", loop.op, f"{held}, {waits}; it is {depth} deep", f"num_stages = {needed}")


def _turns_held(ring: Ring, loop: Loop) -> tuple[int, int]:
    """How many turns after its own a tile is first awaited, and released at the end."""
    stages = ring.readers[loop]
    if not stages:  # read to registers
        return 0, 0
    flying = {loop.op.yielded[number].op for number in loop.in_flight}
    return min(stages), max(stages) + (stages[max(stages)] in flying)
