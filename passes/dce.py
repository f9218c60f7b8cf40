"""Dead code elimination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiledsl.analysis.dependence import reached, read_by
from tiledsl.dialects.scf import ForOp
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.pass_manager import Pass, Program

_OBSERVED = ~(Effect.READ | Effect.ALLOCATE | Effect.REGION | Effect.TERMINATE)


def is_removable(op: Operation) -> bool:
    """Whether the operation may be removed once its results are unused: it has no observable effect and terminates."""
    if op.is_terminator or op.has_effects and op.effects & _OBSERVED:
        return False
    return not any(inner.effects & _OBSERVED for region in op.regions for inner in region.walk())


def drop_dead_iter_args(op: ForOp) -> bool:
    """Drop loop-carried values that reach neither a used result nor an effect; return whether there were any."""
    alive = {index for index, value in enumerate(op.results) if value.uses}
    if len(alive) == len(op.results):
        return False
    terminator = op.body.terminator
    start = [terminator.operands[index] for index in alive]
    for inner in op.body:
        if inner is not terminator and not is_removable(inner):
            start += read_by(inner)
    positions = {arg: index for index, arg in enumerate(op.iter_args)}

    def sources(value: Value) -> list[Value]:
        if value in positions:
            return [terminator.operands[positions[value]]]
        return read_by(value.op) if value.op is not None and value.op.parent is op.body else []

    alive.update(positions[value] for value in reached(start, sources) if value in positions)
    dead = [index for index in range(len(op.results)) if index not in alive]
    if not dead:
        return False
    remove_iter_args(op, dead)
    return True


def remove_iter_args(op: ForOp, positions: list[int]) -> None:
    """Remove loop-carried values. Their results must be unused, and their uses in the body must be dead."""
    terminator = op.body.terminator
    gone = set(positions)
    for index in positions:
        # What is left of the computation of a dead value sees the initial one, and is dead code.
        op.body.args[1 + index].replace_with(op.inits[index])
    terminator.set_field("values", [value for index, value in enumerate(terminator.operands) if index not in gone])
    op.set_field("inits", [value for index, value in enumerate(op.inits) if index not in gone])
    op.body.set_args([op.index, *(arg for index, arg in enumerate(op.iter_args) if index not in gone)])
    op.results = [value for index, value in enumerate(op.results) if index not in gone]


def erase_unused(region: Region, may_go: Callable[[Operation], bool]) -> None:
    """Erase the operations with unused results for which `may_go` holds, users before the operations they use."""
    for op in reversed(region):
        if not op.is_used and may_go(op):
            op.erase()
            continue
        if op.regions:
            if isinstance(op, ForOp):
                drop_dead_iter_args(op)
            for inner in op.regions:
                erase_unused(inner, may_go)


def erase_sources(values: Sequence[Value]) -> None:
    """Erase the pure operations that computed these values, and their operands, if nothing else uses them."""
    pending = list(values)
    while pending:
        op = pending.pop().op
        if op is not None and not op.is_used and op.is_pure:
            pending += op.operands
            op.erase()


@dataclass(frozen=True)
class Dce(Pass):
    """Remove operations without side effects whose results are unused: loads, allocations and loops too.

    Before:  %x = tile.load %A[%i] : int32     (%x is not used)     After:  nothing
    Needs:   nothing. Keeps: stores, atomics, prints, asserts, assumptions, while loops, launches.
    """

    name = "dce"

    def run(self, program: Program) -> None:
        for region in program.root.regions:
            erase_unused(region, is_removable)
