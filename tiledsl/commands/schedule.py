"""`tiledsl lower --emit schedule`: what the loops of each launch issue, in which order and on which unit, as a table.

It is read from the IR at the end of the pipeline: gluon.schedule, gluon.cluster and rings where a launch is written in
Gluon; elsewhere loops and their depths, for which Triton finds the order. Cycles are those of a multiprocessor for one
turn of one block, by the GPU's data sheet: a bound for each unit alone, no measurement.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tiledsl.analysis.gluon.alternation import told
from tiledsl.analysis.gluon.checks import checked
from tiledsl.analysis.gluon.plan import GATHER_WARPS
from tiledsl.analysis.gluon.schedule import PLACES, Schedule
from tiledsl.analysis.gluon.slices import only_for_loads
from tiledsl.analysis.hardware import CACHE_BYTES, FLOAT_LANES, SPECIAL_LANES
from tiledsl.autotuner.predicting.machines import Machine, machine_of
from tiledsl.autotuner.predicting.model import tensor_tera
from tiledsl.autotuner.predicting.work_types import Dot
from tiledsl.dialects import arith, gluon, scf, tensor, triton
from tiledsl.dialects.gluon import has_gluon, targets_gluon
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.ir.parser import parse_op
from tiledsl.ir.types import ELEMENTS, TensorType
from tiledsl.kernels.kernel import Kernel
from tiledsl.location import UNKNOWN
from tiledsl.math_functions import MATH_FUNCTIONS
from tiledsl.runtime.target import Target
from tiledsl.tables import aligned

UNITS = ("copies", "tensor cores", "arithmetic", "special")
_MOVES = (triton.LoadOp, triton.StoreOp, triton.LoadBlockOp, triton.StoreBlockOp, triton.AtomicOp)
_FREE = (arith.ConstantOp, tensor.ReshapeOp, tensor.BroadcastOp, tensor.TransposeOp, tensor.IotaOp, triton.AddPtrOp)


@dataclass
class Step:
    """What is issued together: one transfer, one product, or the operations between. stage: so many turns after the
    loop's own; lines: of the program; cycles: by unit."""

    what: str
    stage: int = 0
    lines: list[int] = field(default_factory=list)
    cycles: Counter[str] = field(default_factory=Counter)
    operations: int = 0  # of one that is no transfer and no product


def schedule_of(kernel: Kernel, target: Target) -> str:
    """The table of every launch of a kernel. TileError where the program cannot be lowered."""
    root = parse_op(kernel.ir("triton", locations=True))
    where = Target("cuda", 90) if target.kind == "interpret" else target
    launches = [op for op in root.walk() if isinstance(op, triton.LaunchOp)]
    lines: list[str] = []
    for launch in launches:
        lines += [*([""] if lines else []), *_Launch(launch, kernel.remarks, where).lines()]
    return "\n".join(lines)


def why_triton(kernel: Kernel) -> list[str]:
    """Why loops of a kernel are left to Triton's pipeliner, where its remarks do not say so; [] if none is."""
    launches = [op for op in parse_op(kernel.ir("triton")).walk() if isinstance(op, triton.LaunchOp)]
    said = [text for launch in launches for text in _reasons(launch, kernel.remarks, kernel.target)]
    return [text for text in dict.fromkeys(said) if text not in kernel.remarks]


def _reasons(launch: triton.LaunchOp, remarks: Sequence[str], target: Target) -> list[str]:
    if targets_gluon(launch) or not has_gluon(target):
        return []
    said = [each for each in remarks if "written in Triton, not in Gluon" in each]
    loops = [op for op in launch.walk() if isinstance(op, (scf.ForOp, scf.WhileOp))]
    if said or not loops:
        return said
    if any(isinstance(op, tensor.DotOp) for loop in loops for op in loop.walk()):
        how = 'with select-emitter.backend = "gluon"'
        return [f"{launch.sym_name}: loops of one product are scheduled for Gluon only {how}"]
    return [f"{launch.sym_name}: no loop has a product, so that there is nothing to schedule for Gluon"]


class _Launch:
    def __init__(self, launch: triton.LaunchOp, remarks: Sequence[str], target: Target) -> None:
        self.launch, self.remarks, self.target = launch, remarks, target
        self.machine: Machine = machine_of(target)
        first = launch.body.first
        self.schedule = checked(launch) if isinstance(first, gluon.ScheduleOp) else None
        self.groups = 1 if self.schedule is None else self.schedule.parts  # each runs the body for its own rows
        self.produced = only_for_loads(launch.body.walk()) if self.schedule else set()
        self.warps = launch.warps

    def lines(self) -> Iterator[str]:
        language = "written in Triton, which orders the loops" if self.schedule is None else "Gluon"
        yield f"{self.launch.sym_name} for {self.target}: {language}"
        if self.schedule is None:
            yield from (f"  {each}" for each in _reasons(self.launch, self.remarks, self.target))
            yield f"roles   {self.warps} warps, which all do the same"
        else:
            rows = f", {self.groups} times {self.warps} warps with rows of their own" if self.groups > 1 else ""
            if self.launch.groups > 1:
                how = "take turns in turn" if self.schedule.alternate else "exchange tiles"
                rows = f", {self.launch.groups} times {self.warps // self.launch.groups} warps, which {how}"
            warps = f"{GATHER_WARPS} warps" if self.schedule.gathered else "1 warp"
            yield f"roles   a producer of {warps}, which loads; consumers{rows or f' of {self.warps} warps'}"
            yield from _titled("rings", self._rings(self.schedule))
        known: dict[Operation, bool] = {loop.op: loop.runs for loop in self.schedule.loops} if self.schedule else {}
        for loop in self.launch.walk():
            if isinstance(loop, (scf.ForOp, scf.WhileOp)):
                steps = self._steps(loop)
                if any(step.cycles for step in steps):
                    yield ""
                    yield from self._loop(loop, steps, known.get(loop))

    def _rings(self, schedule: Schedule) -> Iterator[list[str]]:
        """What a ring holds, its places, and what they take of shared memory."""
        total = 0.0
        stores = [op for op in self.launch.body.walk() if isinstance(op, triton.StoreBlockOp) and op.ring == "results"]
        tiles = [(load, ring.depth) for ring in schedule.rings.values() for load in ring.tiles]
        placed = [(load.out, depth, load in schedule.own) for load, depth in tiles]
        gathered = {load.out for load in schedule.gathered}
        for value, depth, each in [*placed, *((store.value, 1, True) for store in stores)]:  # others: operands' places
            places = depth * (self.groups if each else 1)
            total += places * _bytes(value)
            own = f", {'one' if depth == 1 else depth} for each consumer" if each and self.groups > 1 else ""
            yield self._places(value, places, own + (", gathered" if value in gathered else ""))
        for value in dict.fromkeys(schedule.buffers.values()):
            places = 1 if schedule.groups == 1 else PLACES
            total += places * _bytes(value)
            yield self._places(value, places, ", computed")
        for value in told(schedule.loops[0].op, schedule.alternate) if schedule.alternate else ():
            total += _bytes(value)
            yield self._places(value, 1, ", told")
        yield ["", "", f"{total / 1024:g} KiB"]

    def _places(self, value: Value, depth: int, what: str) -> list[str]:
        places = f"{depth} x {_shape(value)} {value.dtype}{what}"
        return [value.name or "", places, f"{depth * _bytes(value) / 1024:g} KiB"]

    def _loop(self, loop: scf.ForOp | scf.WhileOp, steps: Sequence[Step], runs: bool | None) -> Iterator[str]:
        facts = [f"{loop.num_stages} deep"] if isinstance(loop, scf.ForOp) and loop.num_stages > 1 else []
        facts += ["at least one turn"] if runs else []
        if runs is not None and isinstance(loop, scf.ForOp) and loop.unroll > 1:
            facts.append(f"{loop.unroll} turns at a time")
        yield f"loop {_place(loop)}" + (f": {', '.join(facts)}" if facts else "")
        total: Counter[str] = Counter()
        table = [["turn", "what", "line", *UNITS]]
        for step in steps:
            total += step.cycles
            table.append([f"+{step.stage}", step.what, _range(step.lines), *_cells(step.cycles)])
        table.append(["", "a turn, in cycles", "", *_cells(total)])
        yield from (f"  {line}" for line in aligned(table, "lllrrrr"))
        most = max(total, key=total.__getitem__)
        yield f"  bound by {most}: a turn of a block takes at least {total[most]:.0f} cycles of a multiprocessor"

    def _steps(self, loop: Operation) -> list[Step]:
        """The steps of a loop's turn, without those of loops inside, which have tables of their own."""
        steps: list[Step] = []
        for stage, op in _in_order(loop):
            if op is None:
                steps.append(Step("", stage))
                continue
            step = self._step(op)
            if step is None:
                continue
            step.stage = stage
            step.lines = [] if op.loc is UNKNOWN else [op.loc.line]
            last = steps[-1] if steps else None
            if step.operations and last is not None and (last.operations or not last.what):
                last.operations += 1
                last.lines += step.lines
                last.cycles += step.cycles
                last.what = f"{last.operations} operations" if last.operations > 1 else step.what
            elif last is not None and not last.what:
                steps[-1] = step
            else:
                steps.append(step)
        return [step for step in steps if step.what]

    def _step(self, op: Operation) -> Step | None:
        """An operation on tiles as a step; None for all others, and for what costs consumers nothing."""
        if isinstance(op, (scf.ForOp, scf.WhileOp)):
            return Step(f"the loop {_place(op)}")
        if op in self.produced:
            return None
        tiles = [value for value in (*op.results, *op.operands) if isinstance(value.type, TensorType)]
        if isinstance(op, _MOVES):
            return self._transfer(op, tiles)
        if not tiles or isinstance(op, _FREE) or op.effects & (Effect.TERMINATE | Effect.REGION):
            return None
        if isinstance(op, tensor.DotOp):
            return self._product(op)
        lanes = max(math.prod(value.shape) for value in tiles) * self.groups
        if isinstance(op, arith.MathOp) and not MATH_FUNCTIONS[op.function].is_cheap:
            return Step(op.function, operations=1, cycles=Counter({"special": lanes / SPECIAL_LANES}))
        return Step(op.name.partition(".")[2], operations=1, cycles=Counter({"arithmetic": lanes / FLOAT_LANES}))

    def _transfer(self, op: Operation, tiles: Sequence[Value]) -> Step | None:
        if not tiles:
            return None
        moved = op.results[0] if op.results else op.operands[0]
        if isinstance(op, triton.StoreOp):
            moved = op.value
        is_ours = bool(self.schedule) and gluon.loads_tile(op)
        times = 1 if is_ours else self.groups
        what = f"{op.name.partition('.')[2].partition('_')[0]} {moved.name or ''} {_shape(moved)}".replace("  ", " ")
        how = ", TMA" if isinstance(op, (triton.LoadBlockOp, triton.StoreBlockOp)) else ""
        how += (", rows" if gluon.gathers(op) else "") + ", by the producer" if is_ours else ""
        return Step(what + how, cycles=Counter({"copies": times * _bytes(moved) / CACHE_BYTES}))

    def _product(self, op: tensor.DotOp) -> Step:
        (m, k), n = op.a.shape, op.b.shape[1]
        tera = tensor_tera(Dot(m, n, k, op.a.dtype, 1.0, True, op.precision), self.target)
        per_cycle = tera * 1e3 / (self.machine.ghz * self.target.sm_count)
        what = f"product {op.out.name or ''} {m}x{n}x{k}".replace("  ", " ")
        return Step(what, cycles=Counter({"tensor cores": 2.0 * m * n * k * self.groups / per_cycle}))


def _in_order(loop: Operation) -> Iterator[tuple[int, Operation | None]]:
    """The stages and operations of a loop's turn as it runs when it is under way, None where a cluster begins."""
    for region in loop.regions:
        for cluster in gluon.clusters(region):
            yield cluster.stage, None
            for op in cluster.ops:
                yield from ((cluster.stage, each) for each in _inside(op))


def _inside(op: Operation) -> Iterator[Operation]:
    """An operation, or those inside of a branch in its place."""
    if not op.regions or isinstance(op, (scf.ForOp, scf.WhileOp)):
        yield op
    else:
        yield from (each for region in op.regions for inner in region for each in _inside(inner))


def _bytes(value: Value) -> float:
    return math.prod(value.shape) * ELEMENTS[value.dtype].bits / 8


def _shape(value: Value) -> str:
    return "x".join(map(str, value.shape))


def _place(op: Operation) -> str:
    return "of the compiler" if op.loc is UNKNOWN else f"at {Path(op.loc.file or '').name}:{op.loc.line}"


def _range(lines: Sequence[int]) -> str:
    if not lines:
        return ""
    low, high = min(lines), max(lines)
    return str(low) if low == high else f"{low}-{high}"


def _cells(cycles: Counter[str]) -> Iterable[str]:
    return (f"{cycles[unit]:.0f}" if cycles[unit] else "" for unit in UNITS)


def _titled(title: str, rows: Iterable[list[str]]) -> Iterator[str]:
    """A table with a title before its first line."""
    for number, line in enumerate(aligned(list(rows), "llr")):
        yield f"{title if number == 0 else '':8}{line}"
