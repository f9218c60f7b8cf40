"""How far loops prefetch, and which data the caches should keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf, prod
from typing import Any

from tiledsl.analysis.dependence import ancestors, reached, stripped
from tiledsl.analysis.hardware import MAX_REGISTERS, MEASURED_ARCH, WARPGROUP
from tiledsl.analysis.held_tiles import held_at
from tiledsl.analysis.loop_memory import rewritten_buffers
from tiledsl.analysis.loops import trip_count
from tiledsl.analysis.product_loops import Load, is_read_both_ways, is_read_in_place, outlasts_iteration, tensor_bytes
from tiledsl.analysis.ranges import Ranges, owner_of
from tiledsl.dialects import scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.launch_options import MOST_STAGES
from tiledsl.passes.unused_options import changed, remark_unused

EVICTIONS = ("", "evict_first", "evict_last")
_DEEPENED, _DEEPEST, _OF_SOME = (1, 2), 3, 2
_FEW = 4  # iterations of which most wait for the first tile
_RESERVED = 1024  # bytes of shared memory that CUDA takes for each block
_REGISTERS = 48  # that a thread needs beside its elements of tiles


@dataclass(frozen=True)
class PipelineLoops(Pass):
    """Set the depth of pipelined loops, and the eviction policies of loads through pointers.

    Before:  %w = tile.load %W[%k, %columns]
    After:   %w = tile.load %W[%k, %columns] {eviction = "evict_first"}      (with streamed="evict_first")

    `stages` > 0 replaces the depth that T.Pipelined gives, in every loop that has one. Triton counts the tile that is
    computed with, TileLang's programs those that are loaded ahead: with `deepen`, on Hopper, loops of depth 2, and
    those of depth 1 or none with products, get one more, unless fewer blocks fit into the shared memory of a
    multiprocessor then than before, than the grid has for each, and than 2; 3, as far as their registers allow it,
    where products are asynchronous. These get a depth of 3 at once: a tile that such a product reads is free only when
    the next one waits, so that with 2 little is loaded meanwhile. Measured on an H200, depth 3 instead of 1 and 2:
    attention with blocks of 64 rows 2.91 to 2.14 ms (2 blocks on a multiprocessor instead of 3), heads of 192 421 to
    382 us; instead of none: linear attention 198 to 168 us, products of 64 x 128 tiles 550 to 312. Loops of no more
    than four iterations keep their blocks, and get one tile more, unless the grid leaves room, and never 3 where their
    number depends on the block (chunk scan of one to four iterations, 3 instead of 2: 944 to 1098, and 573 to 624 us;
    of two in all blocks, 151 to 140); loops of one get none, and inner loops of no more than they would load: of two in
    each of 64, loading ahead took 858 us instead of 765. Deeper loops are left alone, and those of no depth in kernels
    with num_stages from T.Kernel.
    With `unroll` > 1, innermost loops that have a depth, but neither products nor copies by hardware, are unrolled so
    many times and have no depth: their loads go to registers, those of several iterations together, and not through
    shared memory. `streamed` is the policy for tiles that are loaded only once in the whole grid (their place depends
    on all block indices and enclosing loops), `reused` the one for all others. Policies that the program gives are
    kept. By default nothing is set.
    A loop that loads what it writes to global memory gets the depth 1: to load ahead would give old values.
    A tile that an asynchronous product of a pipelined loop reads and from which something else is computed is loaded
    twice: Triton keeps a copy less of it than of one that is multiplied alone, and a later iteration's tile would
    overwrite it under a product that nothing in the loop waits for.
    Needs:   select-access (a policy keeps a load from becoming a block load). Runs before map-grid, which combines the
             block indices.
    """

    name = "pipeline-loops"
    stages: int = 0
    streamed: str = ""
    reused: str = ""
    unroll: int = 0
    deepen: bool = True

    def run(self, program: Program) -> None:
        for option in ("streamed", "reused"):
            if getattr(self, option) not in EVICTIONS:
                shown = " or ".join(map(repr, EVICTIONS))
                raise TileError(f"pipeline-loops.{option} is {getattr(self, option)!r}; it must be {shown}")
        if not 0 <= self.stages <= MOST_STAGES:
            allowed = f"a depth of at most {MOST_STAGES}, or 0 for the program's own"
            raise TileError(f"pipeline-loops.stages is {self.stages}; it must be {allowed}")
        if self.unroll < 0 or self.unroll == 1:
            raise TileError(f"pipeline-loops.unroll is {self.unroll}; it must be 2 or more iterations, or 0 for none")
        ranges = Ranges(program.root)
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
                    if self.deepen and not self.stages:
                        op.set_attribute("num_stages", _deepened(op, kernel, program.target, ranges))
                elif isinstance(op, tile.LoadOp) and op.out.shape and not (op.eviction or op.cache):
                    policy = self.streamed if _is_read_once(op, kernel) else self.reused
                    if policy:
                        op.set_attribute("eviction", policy)
            if getattr(program.target, "kind", "") == "cuda" and program.target.arch >= MEASURED_ARCH:
                hints: dict[str, Any] = dict(kernel.options)
                depth, threads = hints.get("num_stages") or 1, 32 * (hints.get("num_warps") or 0) or kernel.threads
                for loop in of_kinds(kernel.walk(), scf.ForOp):
                    if (loop.num_stages or depth) > 1 and threads >= WARPGROUP:
                        _load_apart(loop, kernel, program.target)


def _set_depth(loop: scf.ForOp, kernel: tile.KernelOp, stages: int) -> None:
    """Triton pipelines loops that ask for it, and by the launch's num_stages those with products."""
    if loop.num_stages and stages:
        loop.set_attribute("num_stages", stages)
    if loop.num_stages > 1 or (not loop.num_stages and of_kinds(loop.body.walk(), tensor.DotOp)):
        for buffer in rewritten_buffers(loop):
            if loop.num_stages:
                kernel.add_remark(f"{_named(loop)} is not pipelined, because it loads what it writes to {buffer.name}")
            loop.set_attribute("num_stages", 1)


def _load_apart(loop: scf.ForOp, kernel: tile.KernelOp, target: Any) -> None:
    """What is computed from a tile that a product may still read in the next iteration gets a load of its own, which
    differs in how it is cached by name only (".ca" is what loads without a hint do), so that Triton keeps both. The
    loop gets the depth at which shared memory has room for that."""
    loads = of_kinds(loop.body, tile.LoadOp)
    for load in loads:
        for transpose in of_kinds(load.out.uses, tensor.TransposeOp):
            _split_uses(transpose)
    apart = [load for load in loads if is_read_both_ways(load) and outlasts_iteration(load, loop)]
    if apart and loop.num_stages:
        ahead: list[tile.LoadOp | tile.LoadBlockOp] = of_kinds(loop.body, tile.LoadOp, tile.LoadBlockOp)
        multiplied = [load for load in ahead if any(map(is_read_in_place, load.out.uses))]  # a copy for each stage
        computed = _bytes(load.out for load in ahead if load not in multiplied or load in apart)
        fits = (target.max_shared_bytes + computed) // (_bytes(load.out for load in multiplied) + computed)
        if fits < loop.num_stages:
            kernel.add_remark(f"{_named(loop)} loads fewer tiles ahead, for some of them are loaded twice")
            loop.set_attribute("num_stages", max(1, fits))
    for load in apart if loop.num_stages != 1 else ():
        mapping: dict[Value, Value] = {}
        other = load.clone(mapping)
        other.set_attribute("cache", "" if load.cache else ".ca")
        Builder.at(load).insert(other)
        for user in list(load.out.uses):
            if not is_read_in_place(user):
                user.set_operands([mapping.get(each, each) for each in user.operands])


def _split_uses(transpose: tensor.TransposeOp) -> None:
    """Give the large products that take a transposed tile one of their own, if something else takes it, too."""
    in_place = [user for user in transpose.out.uses if is_read_in_place(user)]
    if in_place and len(in_place) < len(transpose.out.uses):
        mapping: dict[Value, Value] = {}
        other = transpose.clone(mapping)
        Builder.at(transpose).insert(other)
        for user in in_place:
            user.set_operands([mapping.get(each, each) for each in user.operands])


def _is_inside(loop: scf.ForOp) -> bool:
    around = takewhile(lambda each: not isinstance(each, tile.KernelOp), ancestors(loop))
    return bool(of_kinds(around, scf.ForOp, scf.WhileOp))


def _named(loop: scf.ForOp) -> str:
    return f"the loop in line {loop.loc.line}" if loop.loc else "a loop"


def _deepened(loop: scf.ForOp, kernel: tile.KernelOp, target: Any, ranges: Ranges) -> int:
    """How many tiles a loop that Triton pipelines is to hold: its own depth, or more, where there is room."""
    ops = list(loop.body.walk())
    dots = of_kinds(ops, tensor.DotOp)
    loads: list[Load] = [op for op in ops if isinstance(op, (tile.LoadOp, tile.LoadBlockOp)) and op.out.shape]
    own = max(loop.num_stages, 1)
    if (
        getattr(target, "arch", None) != MEASURED_ARCH
        or (own not in _DEEPENED or (own == 1 and not dots))
        or (not loop.num_stages and (loop.unroll or kernel.option("num_stages")))
        or not any(load.parent is loop.body for load in loads)
        or (of_kinds(ops, scf.ForOp, scf.WhileOp) or rewritten_buffers(loop))
    ):
        return loop.num_stages
    apart = [load for load in loads if is_read_both_ways(load) and outlasts_iteration(load, loop)]  # loaded twice
    operands = {stripped(each, tensor.TransposeOp) for dot in dots for each in (dot.a, dot.b)}
    held = [each for each in operands if each.op not in ops and each.shape]
    made = {stripped(dot.b, tensor.TransposeOp) for dot in dots} - {load.out for load in loads} - {*held}
    asynchronous = any(dot.a.shape[0] >= 64 for dot in dots)

    def blocks(depth: int) -> int:
        tiles = depth - (not asynchronous)  # asynchronous products may still read a tile when the next one comes
        ahead = tiles * _bytes(load.out for load in loads) + (tiles - 1) * _bytes(load.out for load in apart)
        return int(target.shared_bytes_per_sm) // (_RESERVED + ahead + _bytes(held) + _bytes(made))

    wanted = [blocks(own), 2]
    if asynchronous:  # blocks that compute while others wait
        registers = min(MAX_REGISTERS, _REGISTERS + _held_registers(loop, dots, loads, kernel.threads))
        wanted[1] = min(3, target.registers_per_sm // (registers * kernel.threads))
    extents = [constant_of(extent) for extent in kernel.grid]
    if None not in extents:
        wanted.append(-(-prod(map(int, extents)) // target.multiprocessors))  # type: ignore[arg-type]
    trips, again = _most_iterations(loop, ranges), _is_inside(loop)  # an inner loop begins again and again
    deepest = _DEEPEST if asynchronous and (trips < inf or not again) else own + 1
    if asynchronous and trips <= _FEW and (again or min(wanted) > 1):
        deepest = _OF_SOME if trip_count(loop) is None else own + 1
    for depth in range(deepest, own, -1):
        useful = trips > depth if again else trips >= depth or depth == own + 1 and trips > 1
        if useful and blocks(depth) >= max(1, min(wanted)):
            return depth
    return loop.num_stages


def _most_iterations(loop: scf.ForOp, ranges: Ranges) -> float:
    """How many iterations a loop has; where that is not known, how many at most, if these are few."""
    trips = trip_count(loop)
    if trips is None and constant_of(loop.step) == 1:
        most = ranges.of(loop.upper).hi - ranges.of(loop.lower).lo
        trips = int(most) if most <= _FEW else None
    return inf if trips is None else trips


def _held_registers(loop: scf.ForOp, dots: Sequence[tensor.DotOp], loads: Sequence[Load], threads: int) -> int:
    """Registers of a thread for the tiles of a loop: those that it carries and its products make, or those that are
    there at one of its products, whichever is more."""
    multiplied = {load.out for load in loads if all(map(is_read_in_place, load.out.uses))}
    carried = {*loop.iter_args, *(dot.out for dot in dots if not _accumulates(dot, loop))}
    at_once = [{*held_at(dot), dot.out} - {dot.accumulator} - multiplied for dot in dots]
    return max(map(_bytes, [carried, *at_once])) // (4 * threads)


def _accumulates(dot: tensor.DotOp, loop: scf.ForOp) -> bool:
    """Whether a product is added to what the loop carries, whose registers it takes."""
    return dot.out in loop.yielded


def _bytes(tiles: Iterable[Value]) -> int:
    return sum(map(tensor_bytes, tiles))


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
