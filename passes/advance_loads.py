"""Small loads that wait behind reductions and loops for nothing are issued before them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from tiledsl.dialects import scf, tensor, tile
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.types import TensorType
from tiledsl.passes.predicate_loads import is_movable, sources_of

# What the threads of a block wait for each other in, or what takes long.
_WAITS = (
    tensor.ReduceOp, tensor.ScanOp, tensor.GatherOp, tensor.HistogramOp, scf.ForOp, scf.WhileOp,
)  # fmt: skip


@dataclass(frozen=True)
class AdvanceLoads(Pass):
    """Move loads of at most one element a thread in front of what does not compute their places.

    Before:  %m = tensor.reduce %x {kind = "max", axis = 1}    After:  %n = tile.load %targets[%rows]
             %n = tile.load %targets[%rows]                            %t = tile.load %X[%rows, %n]
             %t = tile.load %X[%rows, %n]                              %m = tensor.reduce %x {kind = "max", axis = 1}

    Threads meet in a reduction, so that neither Triton nor ptxas moves a load across: one behind it begins when all
    have come, and a block of short life waits for memory twice. What indices and masks are computed from moves too. A
    load stays behind what writes to global memory, which may be its own tensor under another name, and behind atomic
    operations, waits and what has a fixed place. Kernels with products are left alone: Triton lays what is added to a
    product's rows out as the product, so that each thread would hold many copies through the loop.
    Needs:   guard-accesses. Runs before order-accesses, which puts barriers between accesses as they stand.
    """

    name = "advance-loads"
    enabled: bool = True

    def run(self, program: Program) -> None:
        if not self.enabled:
            return
        for kernel in tile.kernels(program.root):
            if not targets_gluon(kernel) and not of_kinds(kernel.walk(), tensor.DotOp):
                for region in [region for op in kernel.nests() for region in op.regions]:
                    _advance(region, kernel.threads)


def _advance(region: Region, threads: int) -> None:
    waits: list[Operation] = []  # so far; times are their numbers
    known = defaultdict[Value, int](int)  # behind how many of them a value can be computed
    fixed = 0  # behind how many stands what no load passes
    for op in list(region):
        tiles = [value for value in op.results if isinstance(value.type, TensorType)]
        if is_movable(op) and not isinstance(op, _WAITS) and all(prod(value.shape) <= threads for value in tiles):
            first = max([fixed, *(known[value] for value in op.operands)])
            if isinstance(op, tile.LoadOp) and first < len(waits):
                moving = sources_of(op, waits[first])
                assert moving is not None, "each of these can move"
                for each in moving:
                    each.move_before(waits[first])
        else:
            if isinstance(op, _WAITS):
                waits.append(op)
            first = len(waits)
            if any(inner.effects & (Effect.ORDERED | Effect.WRITE) for inner in op.walk()):
                fixed = first
        known.update((value, first) for value in op.results)
