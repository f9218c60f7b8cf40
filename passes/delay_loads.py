"""Tiles that are loaded long before they are used are loaded behind the reductions in between."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.dialects import tensor, tile
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Effect, Operation, Region
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.passes.predicate_loads import is_movable

FEWEST = 32  # bytes of a thread that are worth the wait


@dataclass(frozen=True)
class DelayLoads(Pass):
    """Move loads of tiles behind the reductions that stand between them and their first use.

    Before:  %w = tile.load %weight[%columns]              After:  %m = tensor.reduce %x {kind = "sum", axis = 1}
             %m = tensor.reduce %x {kind = "sum", axis = 1}        %w = tile.load %weight[%columns]
             %y = arith.mul %z, %w                                 %y = arith.mul %z, %w

    Threads meet in a reduction, so that neither Triton nor ptxas moves a load across: a tile that is loaded in front of
    one is in registers while the reduction has its own, and fewer blocks fit on a multiprocessor. A load stays if
    something in between writes memory, is atomic or has a fixed place, if it gives less than 32 bytes to each thread,
    and in loops and kernels with products, whose loads are pipelined. Measured on an H200, layer norm: rows of 16384
    for 512 threads 212 to 137 us, of 8192 for 256 threads 139 to 131, of 4096 for 256 139 to 130; but of 4096 for 128
    130 to 133, and two of 8192 for 512 132 to 136, where as many blocks fit as before.
    Needs:   guard-accesses. Runs after advance-loads, and before order-accesses.
    """

    name = "delay-loads"
    enabled: bool = True

    def run(self, program: Program) -> None:
        if not self.enabled:
            return
        for kernel in tile.kernels(program.root):
            if not targets_gluon(kernel) and not of_kinds(kernel.walk(), tensor.DotOp):
                _delay(kernel.body, kernel.threads)


def _delay(region: Region, threads: int) -> None:
    loads = [op for op in of_kinds(region, tile.LoadOp) if tensor_bytes(op.out) >= FEWEST * threads and is_movable(op)]
    for load in reversed(loads):
        behind: Operation | None = None
        readers = {op for user in load.out.uses if (op := _standing_in(region, user)) is not None}
        for op in region.ops[region.index(load) :]:
            if op in readers or any(inner.effects & (Effect.ORDERED | Effect.WRITE) for inner in op.walk()):
                break
            if isinstance(op, (tensor.ReduceOp, tensor.ScanOp)):
                behind = op
        if behind is not None:
            load.move_before(region.ops[region.index(behind) + 1])


def _standing_in(region: Region, op: Operation | None) -> Operation | None:
    """The operation of the region that this one is, or is nested in."""
    while op is not None and op.parent is not region:
        op = op.parent.parent if op.parent is not None else None
    return op
