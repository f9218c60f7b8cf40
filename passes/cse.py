"""Common subexpression elimination."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.same_values import Written
from tiledsl.dialects import tile, triton
from tiledsl.dialects.arith import BinaryOp
from tiledsl.ir.core import Operation, Region
from tiledsl.ir.pass_manager import Pass, Program

Key = tuple[object, ...]  # hashable

# A kernel computes everything itself: using the host's values would turn its constants into parameters.
_ISOLATED = (tile.KernelOp, triton.LaunchOp)


def operation_key(op: Operation) -> Key:
    """A key that is equal for operations without regions that compute the same values."""
    operands, signature = op.operands, op._signature or op.signature
    if len(operands) == 2 and id(operands[0]) > id(operands[1]) and isinstance(op, BinaryOp) and op.commutes:
        return (signature, operands[1], operands[0])
    return (signature, *operands)


def _merge(region: Region, computed: dict[Key, Operation], loads: bool) -> None:
    """computed: the operations seen so far, by key; those of a region are forgotten after it."""
    loaded: dict[Key, Operation] = {}
    for op in region:
        if op.regions:
            seen = {} if isinstance(op, _ISOLATED) else computed
            before = len(computed)
            for inner in op.regions:
                _merge(inner, seen, loads)
                while len(computed) > before:
                    computed.popitem()
        if not op.has_effects:
            _replace(op, computed.setdefault(operation_key(op), op))
        elif loads and isinstance(op, (tile.LoadOp, triton.LoadOp)):
            _replace(op, loaded.setdefault(operation_key(op), op))
        else:
            _forget(loaded, op)


def _replace(op: Operation, twin: Operation) -> None:
    if twin is op:
        return
    for old, new in zip(op.results, twin.results):
        old.replace_with(new)
    op.erase()


def _forget(loaded: dict[Key, Operation], op: Operation) -> None:
    """Drop the loads that the effects of `op` may change."""
    written = Written(op)
    for key, load in list(loaded.items()):
        if load.operands[0] in written:
            del loaded[key]


@dataclass(frozen=True)
class Cse(Pass):
    """Compute equal pure operations once, where the first dominates the second.

    With `loads`, equal loads in one region are merged too, unless an operation between them may write what they read.

    Before:  %a = arith.add %x, %y : int32          After:  %a = arith.add %x, %y : int32
             %b = arith.add %y, %x : int32                  (%a for %b)
    Needs:   nothing. Kernels share nothing with the host or with each other.
    """

    name = "cse"
    loads: bool = True

    def run(self, program: Program) -> None:
        for region in program.root.regions:
            _merge(region, {}, self.loads)
