"""The order in which the loops of a kernel for Gluon are written, and which loops Triton makes one of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import chain, count

from tiledsl.analysis.dependence import handed_on, reached, stripped
from tiledsl.analysis.gluon.ordered_loops import ITEM, OrderedLoop, block, is_ordered, is_stored, ordered_loops
from tiledsl.analysis.gluon.plan import query_in_registers
from tiledsl.analysis.gluon.slices import dependents, needed_for
from tiledsl.analysis.gluon.softmax_loops import SoftmaxLoops, find_softmax_loops
from tiledsl.analysis.gluon.tiled_products import TiledProduct, find_tiled_product, is_softmax
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, gluon, scf, tensor, triton
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS


@dataclass(frozen=True)
class ScheduleLoops(Pass):
    """Bring the loops of launches for Gluon into the order of their text, and divide them into clusters.

    In launches for Triton, keep loops apart that it fails to flatten into one. In all, name the carried values that
    Triton would take for unchanging.

    Before:  %out = scf.for ... { %k = triton.load_block ...; %v = triton.load_block ...; %s = tensor.dot %q, %kt, %zero
                                  (update); %acc2 = arith.mul %acc, %f; %out = tensor.dot %p, %v, %acc2; yield }
    After:   gluon.schedule {form = "skewed", runs = (true)}
             %out = scf.for ... { gluon.cluster; %k = triton.load_block ... {ring = "keys"}; %s = tensor.dot; (update)
                                  gluon.cluster; %acc2 = arith.mul %acc, %f
                                  gluon.cluster {stage = 1}; %v = triton.load_block ... {ring = "values"}
                                  %out = tensor.dot %p, %v, %acc2; yield }

    The forms are those that select-emitter has prepared, and gluon.schedule explains. What a loop of one product needs
    no product for is computed beside it only if it is loaded: else it would wait for loads before the product.

    Needs:   select-emitter, lower-to-triton. Runs last: the emitter writes what it finds, in this order.
    """

    name = "schedule-loops"

    def run(self, program: Program) -> None:
        for launch in [op for op in program.root.nests() if isinstance(op, triton.LaunchOp)]:
            loops: list[scf.ForOp | scf.WhileOp] = of_kinds(launch.nests(), scf.ForOp, scf.WhileOp)
            for loop in loops:
                loop.set_attribute("alike", _alike(loop))
            if not targets_gluon(launch):
                _keep_apart(launch)
                continue
            if isinstance(launch.body.first, gluon.ScheduleOp):
                continue  # IR that has been through this pass
            schedule = _schedule(launch)
            _name_results(launch.body)
            _name_rings(launch)
            launch.body.insert(schedule, launch.body.first)


def _schedule(launch: triton.LaunchOp) -> gluon.ScheduleOp:
    if is_ordered(launch.body):
        return _schedule_ordered(launch)
    return _schedule_softmax(launch) if is_softmax(launch.body) else _schedule_product(launch)


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


def _schedule_softmax(launch: triton.LaunchOp) -> gluon.ScheduleOp:
    loops = find_softmax_loops(launch.body)
    runs = _certain_turns(launch, [loop.op for loop in loops.loops])
    late = _rescales_late(loops)
    _move_before(loops.loops[0].op, loops.before)
    for loop in loops.loops:
        first_needed = needed_for([*loop.keys.starts, loop.scores.a])
        ahead = [op for op in loop.update if op in first_needed]
        rest = [op for op in loop.update if op not in first_needed]
        transposed = loop.scores.b.op
        assert transposed is not None
        scores = [*ahead, loop.keys, transposed, loop.scores]
        clusters = [(0, 0, scores), (0, 2, rest), (int(late), 3 - 2 * late, loop.rescale), (1, 1, [loop.values, loop.product])]
        _divide(loop.op, clusters)
    warp_groups = _warp_groups(launch)
    return gluon.ScheduleOp(
        runs=runs,
        query_in_registers=query_in_registers(loops.columns, loops.depth, loops.width, warp_groups),
        packed=warp_groups > 2 and ELEMENTS[loops.loops[0].product.a.dtype].bits == 16,
    )


def _rescales_late(softmax: SoftmaxLoops) -> bool:
    """Whether accumulators are multiplied, by what their loops compute, and need not be until the next product."""
    factors = [op.factor for loop in softmax.loops for op in loop.rescale if isinstance(op, gluon.RescaleOp)]
    if not len(factors) == len(softmax.loops) == sum(len(loop.rescale) for loop in softmax.loops):
        return False
    return all(factor.op in loop.update for loop, factor in zip(softmax.loops, factors))


def _schedule_product(launch: triton.LaunchOp) -> gluon.ScheduleOp:
    product = find_tiled_product(launch.body)
    runs = _certain_turns(launch, [product.op])
    _move_before(product.op, product.before)
    _divide(product.op, [(0, 0, ops) for ops in _with_product(product)])
    in_flight = () if product.acc_position is None else ((product.acc_position,),)
    return gluon.ScheduleOp(runs=runs, in_flight=in_flight)


def _schedule_ordered(launch: triton.LaunchOp) -> gluon.ScheduleOp:
    """Each product is issued as soon as what it needs is there: first its left operand, which may be on its way to
    shared memory while what it is added to is computed. What no product waits for comes while the last one runs."""
    found = ordered_loops(launch.body)
    for loop in found.loops:
        end = loop.op.body.terminator
        left = [op for op in loop.op.body if not op.is_terminator]
        for product in loop.products:
            for values in ([product.a], product.operands):
                needed = {value.op for value in reached(values, _read_for)}
                for op in [op for op in left if op in needed]:
                    op.move_before(end)
                    left.remove(op)
            product.move_before(end)
            left.remove(product)
        for op in left:
            op.move_before(end)
    warps = dict(launch.options)["num_warps"]
    return gluon.ScheduleOp(
        runs=_certain_turns(launch, [loop.op for loop in found.loops]),
        in_flight=tuple(_in_flight(loop, warps) for loop in found.loops),
    )


def _in_flight(loop: OrderedLoop, warps: int) -> tuple[int, ...]:
    """The carried values that are a turn's last products and that the next turn needs only behind a product of its own.

    What a product reads from registers would have to be carried too.
    """
    body, yielded = list(loop.op.body), loop.op.yielded
    numbers: list[int] = []
    for product in reversed(loop.products):
        in_registers = block(product.a) is None and not is_stored(product, warps)
        if in_registers or dict(product.out.uses) != {loop.op.body.terminator: 1}:
            break
        number = yielded.index(product.out)
        argument = loop.op.iter_args[number]
        readers = (at for at, op in enumerate(body) if any(argument in each.operands for each in op.walk()))
        reader = next(readers, len(body))
        ahead = any(isinstance(op, tensor.DotOp) for op in body[:reader])
        if not ahead or isinstance(body[reader], tensor.DotOp) or reader > body.index(product):
            break
        numbers.insert(0, number)
    return tuple(numbers)


def _read_for(value: Value) -> list[Value]:
    """The values that the operation that gives one reads, inside of branches too."""
    return [] if value.op is None else [operand for op in value.op.walk() for operand in op.operands]


def _with_product(product: TiledProduct) -> tuple[list[Operation], list[Operation]]:
    """What is issued with the product, in order, and what uses it."""
    loads = [op for op in product.beside if op.effects & Effect.READ]
    early = needed_for(value for op in (product.left, product.right, *loads) for value in op.operands) | set(loads)
    beside = [op for op in product.beside if op in early]
    update = [*(op for op in product.beside if op not in early), *product.update]
    first_needed = needed_for([*product.left.starts, *product.right.starts])
    transposed = [product.product.b.op] if isinstance(product.product.b.op, tensor.TransposeOp) else []
    ahead = [op for op in beside if op in first_needed]
    rest = [op for op in beside if op not in first_needed]
    return [*ahead, product.left, product.right, *transposed, product.product, *rest], update


def _certain_turns(launch: triton.LaunchOp, loops: Iterable[scf.ForOp]) -> tuple[bool, ...]:
    ranges = Ranges.around(launch)
    return tuple(ranges.below(loop.lower, loop.upper) for loop in loops)


def _warp_groups(launch: triton.LaunchOp) -> int:
    return next(op.parts for op in launch.body if isinstance(op, gluon.WarpGroupIdOp))


def _name_results(body: Region) -> None:
    for op in body:
        if isinstance(op, triton.StoreBlockOp) and not op.ring:
            op.set_attribute("ring", "results")


def _name_rings(launch: triton.LaunchOp) -> None:
    """Tiles that the same products read first and last share a ring, and so do those of later loops that are alike."""
    group = [op for op in launch.body if isinstance(op, gluon.WarpGroupIdOp)]
    loads = of_kinds(launch.body.walk(), triton.LoadBlockOp)
    by_group = dependents(group, needed_for(value for load in loads for value in load.starts))
    for load in loads:
        if load.parent is launch.body:
            own = any(value.op in by_group for value in load.starts)
            load.set_attribute("ring", ITEM if own or not group else f"{ITEM}_of_all")
    known: dict[str, list[object]] = {}
    for loop in [op for op in launch.nests() if isinstance(op, scf.ForOp)]:
        products = [op for cluster in gluon.clusters(loop.body) for op in cluster.ops if isinstance(op, tensor.DotOp)]
        rings: dict[tuple[object, object], list[triton.LoadBlockOp]] = {}
        for load in (op for op in loop.body if isinstance(op, triton.LoadBlockOp)):
            readers = [op for op in products if load in (block(op.a), block(op.b))]
            rings.setdefault((readers[0], readers[-1]), []).append(load)
        free = dict(known)
        for tiles in rings.values():
            kind: list[object] = [(load.descriptor, gluon.box(load)) for load in tiles]
            wanted = tiles[0].out.name or "tile"
            numbered = chain([wanted], (f"{wanted}_{number}" for number in count(1)))
            new = next(each for each in numbered if each not in known)
            name = next((each for each in free if free[each] == kind), new)
            free.pop(name, None)
            known[name] = kind
            for load in tiles:
                load.set_attribute("ring", name)


def _move_before(loop: scf.ForOp, ops: Iterable[Operation]) -> None:
    for op in ops:
        op.move_before(loop)


def _divide(loop: scf.ForOp, clusters: Iterable[tuple[int, int, Sequence[Operation]]]) -> None:
    end = loop.body.terminator
    for stage, slot, ops in clusters:
        if ops:
            Builder.at(end).insert(gluon.ClusterOp(stage=stage, slot=slot))
        for op in ops:
            op.move_before(end)
