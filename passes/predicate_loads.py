"""Loads in branches of pipelined loops become loads under a mask, in front of the branch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tiledsl.analysis.hardware import MEASURED_ARCH
from tiledsl.analysis.loop_memory import rewritten_buffers
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.analysis.shared_memory import loads_ahead
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Effect, Operation, Region
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.passes.tile_values import both


@dataclass(frozen=True)
class PredicateLoads(Pass):
    """Move the tiles that a branch of a pipelined loop loads for its products in front of the branch, under a mask.

    Before:  scf.if %c {                             After:  %a = tile.load %A[%rows, %k] mask=%c {guarded = true}
               %a = tile.load %A[%rows, %k]                  scf.if %c {
               %r = tensor.dot %a, %b, %sum                    %r = tensor.dot %a, %b, %sum

    Triton loads ahead only what stands in the body of a loop itself. Nothing is read that was not read before: where
    the branch is not taken, all elements are masked. The products stay in the branch, which the whole block shares.
    What the indices are computed from moves too, unless it could fail (a division by what may be zero) or has regions
    of its own: then the load stays. A loop stays as it is if it has a loop inside or an operation with a fixed place (a
    barrier, a print), if it writes what it loads, or if shared memory does not hold the tiles of all stages. On sm_90
    loops that ask for no depth do so, too, where each multiprocessor has at most one block, and nothing else runs while
    it waits. Measured on an H200: gradients of sparse attention, one block, 31.5 to 19.3 us; block-sparse attention of
    4 and 32 blocks 4.30 to 4.05 and 4.55 to 4.30; but sparse attention of 32768 blocks of one warp 670 to 719, and 64
    blocks whose loops have one iteration 2.87 to 3.16.
    Needs:   guard-accesses: what proves an index in bounds may be the branch's condition, which is in the mask now.
             Runs before select-access: hardware that copies whole blocks knows no such mask.
    """

    name = "predicate-loads"
    enabled: bool = True

    def run(self, program: Program) -> None:
        if not self.enabled:
            return
        for kernel in tile.kernels(program.root):
            if not targets_gluon(kernel):
                for loop in of_kinds(kernel.nests(), scf.ForOp):
                    if (loop.num_stages > 1 or _gains(loop, kernel, program.target)) and _may_load_ahead(loop):
                        _predicate(loop, kernel, program.target)


def _gains(loop: scf.ForOp, kernel: tile.KernelOp, target: Any) -> bool:
    """Whether a loop whose program does not ask for it is to load ahead, as pipeline-loops may let it: where nothing
    else runs while it waits, each multiprocessor having one block, and where it has more than one iteration."""
    if getattr(target, "arch", None) != MEASURED_ARCH:
        return False
    blocks = [constant_of(extent) for extent in kernel.grid]
    loads = of_kinds(loop.body.walk(), tile.LoadOp)
    walked = [
        size
        for load in loads
        for index, size in zip(load.indices, tile.buffer_type(load.buffer).shape, strict=True)
        if index is loop.index
    ]
    alone = None not in blocks and prod(map(int, blocks)) <= target.multiprocessors  # type: ignore[arg-type]
    return alone and 1 not in walked


def _may_load_ahead(loop: scf.ForOp) -> bool:
    if of_kinds(loop.body.walk(), scf.ForOp, scf.WhileOp) or rewritten_buffers(loop):
        return False
    return not any(Effect.ORDERED in op.effects for op in loop.body.walk())


def _predicate(loop: scf.ForOp, kernel: tile.KernelOp, target: Any) -> None:
    branches = [op for op in loop.nests() if isinstance(op, scf.IfOp)]
    chosen = [load for op in branches for region in op.regions for load in _operands_of_products(region)]
    depth = max(loop.num_stages, 2)
    size = depth * sum(tensor_bytes(load.out) for load in [*chosen, *loads_ahead(loop)])
    if target is not None and target.kind != "interpret" and size > target.max_shared_bytes:
        if loop.num_stages < 2:
            return
        line = f"the loop in line {loop.loc.line}" if loop.loc else "a loop"
        remark = (
            f"{line} does not load ahead what its branches load: {size} bytes for {loop.num_stages} stages do not fit"
            f" in shared memory; {target} has {target.max_shared_bytes}"
        )
        kernel.add_remark(remark)
        return
    for op in reversed(branches):  # inner branches first: what leaves one may then leave the next
        for region, taken in zip(op.regions, (True, False), strict=True):
            inside = [each for each in chosen if each.parent is region]
            for load in sorted(inside, key=lambda each: each.order):
                _move(load, op, taken)


def _operands_of_products(region: Region) -> list[tile.LoadOp]:
    """The tiles that a branch loads and does not hand on, if it has products."""
    if not of_kinds(region.walk(), tensor.DotOp):
        return []
    loads: list[tile.LoadOp] = of_kinds(region, tile.LoadOp)
    return [op for op in loads if op.out.shape and region.terminator not in op.out.uses]


def _move(load: tile.LoadOp, branch: scf.IfOp, taken: bool) -> None:
    moving = sources_of(load)
    if moving is None:
        return
    at = Builder.at(branch)
    condition = branch.condition
    if not taken:
        condition = at.insert(arith.NotOp(condition)).out
    for op in moving:
        op.move_before(branch)
        if isinstance(op, tile.LoadOp):
            mask = both(Builder.at(op), op.mask, condition)
            assert mask is not None
            op.set_field("mask", [mask])


def sources_of(load: tile.LoadOp, first: Operation | None = None) -> list[Operation] | None:
    """The load and what it needs from its region, in order; None if some of it must not run elsewhere. `first`: only
    what does not stand in front of this operation."""
    region = load.parent
    assert region is not None
    sources: set[Operation] = set()
    pending: list[Operation] = [load]
    while pending:
        op = pending.pop()
        if op.parent is not region or op in sources or first is not None and op.order < first.order:
            continue
        if not is_movable(op):
            return None
        sources.add(op)
        pending += [value.op for value in op.operands if value.op is not None]
    return sorted(sources, key=lambda op: op.order)


def is_movable(op: Operation) -> bool:
    """Whether an operation may run where its operands are known, be its results needed there or not."""
    if isinstance(op, tile.LoadOp):
        return tile.buffer_type(op.buffer).scope == "global"
    if isinstance(op, arith.DIVISIONS):
        return constant_of(op.operands[1]) not in (None, 0, -1)
    return not op.has_effects
