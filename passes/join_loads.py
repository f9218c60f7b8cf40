"""Tiles that both branches of an `if` load from one buffer are loaded once, from the place that the branch chooses."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.block_access import NoBlock, start_and_walk
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize
from tiledsl.passes.dce import erase_unused, is_removable
from tiledsl.passes.index_arithmetic import materialize
from tiledsl.passes.predicate_loads import sources_of


@dataclass(frozen=True)
class JoinLoads(Pass):
    """Load a tile once where both branches load one of the same buffer.

    Before:  %x = scf.if %c {                        After:  %start = arith.select %c, %0, %1
               %p = arith.add %0, %rows                      %p = arith.add %start, %rows
               %a = tile.load %A[%p, %columns]               %x = tile.load %A[%p, %columns]
               scf.yield [%a]
             } {
               %q = arith.add %1, %rows
               %b = tile.load %A[%q, %columns]
               scf.yield [%b]

    Triton loads ahead, and Gluon's producer loads, only what stands in the body of a loop itself. As many bytes are
    loaded as before, of one place or the other. Loads stay whose tiles are no blocks of neighbours, whose places need
    what is loaded or may fail to be computed, that have masks, or whose branches do more than load and compute.
    Needs:   promote-buffers. Runs before guard-accesses, which masks the new loads.
    """

    name = "join-loads"
    enabled: bool = True

    def run(self, program: Program) -> None:
        branches = of_kinds(program.root.walk(), scf.IfOp) if self.enabled else []
        joined = [_join(op, *pair) for op in reversed(branches) if _is_pure(op) for pair in _loads(op)]
        if any(joined):
            canonicalize(program.root, CANONICAL_PATTERNS)
            for kernel in tile.kernels(program.root):
                erase_unused(kernel.body, is_removable)


def _is_pure(branch: scf.IfOp) -> bool:
    """Whether a branch does nothing but load and compute."""
    return not any(op.effects & (Effect.WRITE | Effect.ORDERED) for op in branch.walk())


def _loads(branch: scf.IfOp) -> list[tuple[tile.LoadOp, tile.LoadOp, Value]]:
    """Pairs of loads of one buffer and what a branch gives of them."""
    sides = zip(branch.then.terminator.operands, branch.orelse.terminator.operands, branch.results, strict=True)
    pairs = [(one.op, other.op, out) for one, other, out in sides]
    return [
        (one, other, out)
        for one, other, out in pairs
        if isinstance(one, tile.LoadOp) and isinstance(other, tile.LoadOp) and one.buffer is other.buffer
    ]


def _join(branch: scf.IfOp, one: tile.LoadOp, other: tile.LoadOp, out: Value) -> bool:
    extra = {each for load in (one, other) for each in (load.mask, load.other)}
    if extra != {None} or one.attributes != other.attributes or not one.out.shape:
        return False
    moving: list[Operation] = []
    for load, region in ((one, branch.then), (other, branch.orelse)):
        sources = sources_of(load)
        if load.parent is not region or sources is None or any(isinstance(op, tile.LoadOp) for op in sources[:-1]):
            return False
        moving += sources[:-1]
    try:
        places = [(start_and_walk(a), start_and_walk(b)) for a, b in zip(one.indices, other.indices, strict=True)]
    except NoBlock:
        return False
    walks = [[walk and (walk.axis, walk.out.type) for _, walk in pair] for pair in places]
    if any(mine != others for mine, others in walks):
        return False
    for op in moving:
        op.move_before(branch)
    at = Builder.at(branch)
    indices = []
    for (first, walk), (second, _) in places:
        start = materialize(at, first)
        if first != second:
            start = at.insert(arith.SelectOp(branch.condition, start, materialize(at, second))).result
        indices.append(start if walk is None else at.insert(arith.AddOp(start, walk.out)).result)
    one.move_before(branch)
    one.set_field("indices", indices)
    out.replace_with(one.out)
    return True
