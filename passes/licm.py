"""Loop-invariant code motion."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, scf, tile, triton
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.pass_manager import Pass, Program

_OBSERVED = Effect.WRITE | Effect.ORDERED


def _hoist_from(loop: scf.ForOp | scf.WhileOp, ranges: Ranges, loads: bool) -> None:
    inside = {value for region in loop.regions for value in _defined(region)}
    for region in loop.regions:
        for op in region:
            if not inside.isdisjoint(op.operands) or op.regions:
                continue
            if op.is_pure:
                # Dividing by zero is undefined: an operation that would not have run must not run now.
                movable = _cannot_fail(op, ranges) or _runs_at_least_once(loop, ranges)
            else:
                movable = loads and isinstance(op, (tile.LoadOp, triton.LoadOp))
                movable = movable and _runs_at_least_once(loop, ranges) and _is_unobserved(loop)
            if movable:
                op.move_before(loop)
                inside.difference_update(op.results)


def _defined(region: Region) -> list[Value]:
    return [*region.args, *(value for op in region for value in op.results)]


def _runs_at_least_once(loop: scf.ForOp | scf.WhileOp, ranges: Ranges) -> bool:
    if isinstance(loop, scf.WhileOp):
        return False
    step = ranges.of(loop.step)
    if step.lo > 0:
        return ranges.below(loop.lower, loop.upper)
    return step.hi < 0 and ranges.below(loop.upper, loop.lower)


def _is_unobserved(loop: Operation) -> bool:
    """Whether nothing in the loop writes or has a fixed place among effects."""
    return not any(op.effects & _OBSERVED for region in loop.regions for op in region.walk())


def _cannot_fail(op: Operation, ranges: Ranges) -> bool:
    if not isinstance(op, arith.DIVISIONS):
        return True
    divisor = ranges.of(op.operands[1])
    return divisor.lo > 0 or divisor.hi < -1


@dataclass(frozen=True)
class Licm(Pass):
    """Move pure operations out of loops when their operands are defined outside.

    Integer divisions move only if the divisor is not zero or the loop runs at least once. With `loads`, loads move too,
    out of loops that run at least once and write nothing.

    Before:  scf.for ... { %a = arith.mul %x, %y ... }     After:  %a = arith.mul %x, %y
                                                                   scf.for ... { ... }
    Needs:   nothing. Keeps: the order of effects; conditional work stays conditional.
    """

    name = "licm"
    loads: bool = True

    def run(self, program: Program) -> None:
        ranges = Ranges(program.root)
        loops = [op for op in program.root.nests() if isinstance(op, (scf.ForOp, scf.WhileOp))]
        for loop in reversed(loops):  # inner loops first: what leaves one may then leave the next
            _hoist_from(loop, ranges, self.loads)
