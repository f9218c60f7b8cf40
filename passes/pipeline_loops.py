"""How far loops prefetch, and which data the caches should keep."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from tiledsl.analysis.dependence import ancestors, reached
from tiledsl.analysis.loop_memory import rewritten_buffers
from tiledsl.analysis.ranges import owner_of
from tiledsl.dialects import scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.passes.unused_options import changed, remark_unused

EVICTIONS = ("", "evict_first", "evict_last")


@dataclass(frozen=True)
class PipelineLoops(Pass):
    """Set the depth of pipelined loops, and the eviction policies of loads through pointers.

    Before:  %w = tile.load %W[%k, %columns]
    After:   %w = tile.load %W[%k, %columns] {eviction = "evict_first"}      (with streamed="evict_first")

    `stages` > 0 replaces the depth that T.Pipelined gives, in every loop that has one. With `unroll` > 1, innermost
    loops that have a depth, but neither products nor copies by hardware, are unrolled so many times and have no depth:
    their loads go to registers, those of several iterations together, and not through shared memory. `streamed` is the
    policy for tiles that are loaded only once in the whole grid (their place depends on all block indices and enclosing
    loops), `reused` the one for all others. Policies that the program gives are kept. By default nothing is set.
    A loop that loads what it writes to global memory gets the depth 1: to load ahead would give old values.
    Needs:   select-access (a policy keeps a load from becoming a block load). Runs before map-grid, which combines the
             block indices.
    """

    name = "pipeline-loops"
    stages: int = 0
    streamed: str = ""
    reused: str = ""
    unroll: int = 0

    def run(self, program: Program) -> None:
        for option in ("streamed", "reused"):
            if getattr(self, option) not in EVICTIONS:
                shown = " or ".join(map(repr, EVICTIONS))
                raise TileError(f"pipeline-loops.{option} is {getattr(self, option)!r}; it must be {shown}")
        if self.stages < 0:
            raise TileError(f"pipeline-loops.stages is {self.stages}; it must be a depth, or 0 for the program's own")
        if self.unroll < 0 or self.unroll == 1:
            raise TileError(f"pipeline-loops.unroll is {self.unroll}; it must be 2 or more iterations, or 0 for none")
        for kernel in tile.kernels(program.root):
            if targets_gluon(kernel):
                remark_unused(kernel, changed(self, "stages", "streamed", "reused", "unroll"))
                continue
            for op in kernel.walk():
                if isinstance(op, scf.ForOp):
                    if self.unroll and op.num_stages > 1 and _needs_no_pipeline(op):
                        op.set_attribute("num_stages", 0)
                        op.set_attribute("unroll", self.unroll)
                    _set_depth(op, kernel, self.stages)
                elif isinstance(op, tile.LoadOp) and op.out.shape and not (op.eviction or op.cache):
                    policy = self.streamed if _is_read_once(op, kernel) else self.reused
                    if policy:
                        op.set_attribute("eviction", policy)


def _set_depth(loop: scf.ForOp, kernel: tile.KernelOp, stages: int) -> None:
    """Triton pipelines loops that ask for it, and by the launch's num_stages those with products."""
    if loop.num_stages and stages:
        loop.set_attribute("num_stages", stages)
    if loop.num_stages > 1 or (not loop.num_stages and of_kinds(loop.body.walk(), tensor.DotOp)):
        for buffer in rewritten_buffers(loop):
            name = f"the loop in line {loop.loc.line}" if loop.loc else "a loop"
            if loop.num_stages > 1:
                kernel.add_remark(f"{name} is not pipelined, because it loads what it writes to {buffer.name}")
            loop.set_attribute("num_stages", 1)


def _needs_no_pipeline(loop: scf.ForOp) -> bool:
    """Whether a loop loads nothing that products read from shared memory or that hardware copies there."""
    inside = [op for op in loop.walk() if op is not loop]
    return not of_kinds(inside, tensor.DotOp, tile.LoadBlockOp, scf.ForOp, scf.WhileOp)


def _is_read_once(op: tile.LoadOp, kernel: tile.KernelOp) -> bool:
    """Whether the load's place depends on every block index that varies, and on every enclosing loop."""
    varying = {index for index, extent in zip(kernel.body.args, kernel.grid) if constant_of(extent) != 1}
    inside = takewhile(lambda around: around is not kernel, ancestors(op))
    varying.update(around.index for around in inside if isinstance(around, scf.ForOp))
    return varying <= set(reached(op.indices, _sources))


def _sources(value: Value) -> list[Value]:
    """What a value is computed from, or, of an argument of a region, what the operation around it takes."""
    maker = value.op or owner_of(value)
    return [] if maker is None else list(maker.operands)
