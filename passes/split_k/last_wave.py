"""The last wave of a grid, which leaves multiprocessors idle, cut along K."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from tiledsl.analysis.gluon.tile_loops import NotRecognised, check_rows
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.passes.divide_rows import divide_rows
from tiledsl.passes.index_arithmetic import IndexArithmetic
from tiledsl.passes.map_grid import fold_grid, swizzle_of
from tiledsl.passes.split_k import work_of
from tiledsl.passes.split_k.partial_sums import (
    NotSplit,
    add_partials,
    allocate_partials,
    clone_for_sums,
    erase_after,
    load_partial,
    store_partial,
)

_log = logging.getLogger("tiledsl")
_MOST_PARTS = 8  # of a block: each is written and read
_ROWS = 8  # that a program adds up and finishes: a block's sums as a whole would keep few multiprocessors busy for long


@dataclass(frozen=True)
class SplitLastWave(Pass):
    """Compute the sums of the blocks that are left of a grid's whole waves in parts, and add these in a third kernel.

    Before:  tile.kernel [%gx, %gy] (%bx, %by) { %sum = scf.for ... { ... tensor.dot ... }; epilogue of %sum }
    After:   %parts = tile.alloc : buffer<8192*256*float32, global>
             tile.kernel [%whole_waves] (%block) { %sum = scf.for ...; epilogue of %sum }
             tile.kernel [%left * %eight] (%program) { %sum = scf.for (an eighth) ... ; tile.store %sum, %parts[...] }
             tile.kernel [%left * %pieces] (%program) { %sum = scf.for ... { tile.load %parts[...] ... }; epilogue }

    This pays off where a few large blocks are left for a wave of their own: of 5120 x 5120 there are 800 of 128 x 256,
    six waves of 132 and 8 blocks. The order of additions is fixed. What can be split is what split-k splits, also where
    the loop has several sums, and adds to other memory in each iteration, as gradients of attention do; other kernels
    are left alone, with a remark.

    programs: how many blocks run at once; a negative number means that many on each of the target's multiprocessors; 0
    never splits.

    Needs:   promote-buffers. Runs before select-emitter, which then writes both kernels of products alike.
    """

    name = "split-last-wave"
    programs: int = 0

    def allowances(self, program: Program) -> frozenset[str]:
        return frozenset({"reassociation"} if self.programs else ())

    def run(self, program: Program) -> None:
        if not self.programs:
            return
        programs = self.programs
        if programs < 0:
            if program.target is None:
                raise TileError(
                    f"{self.name}.programs is {programs}, programs on each multiprocessor, and no target is given"
                )
            programs *= -program.target.sm_count
        for kernel in tile.kernels(program.root):
            if not any(isinstance(op, tensor.DotOp) for op in kernel.walk()):
                continue
            try:
                _split(kernel, programs)
            except NotSplit as reason:
                remark = f"the last wave of blocks is not split, because {reason}"
                kernel.add_remark(remark)
                _log.info("%s: %s", kernel.sym_name, remark)


def _split(kernel: tile.KernelOp, programs: int) -> None:
    work = work_of(kernel, several=True)
    blocks = math.prod(work.grid)
    left = blocks % programs
    if not left:
        raise NotSplit(f"its {blocks} blocks fill waves of {programs}")
    parts = min(programs // left, work.trips, _MOST_PARTS)
    if left == blocks or parts < 2:
        raise NotSplit(f"waves of {programs} leave {left} of its {blocks} blocks")
    whole = blocks - left
    if len(kernel.grid) > 1:
        fold_grid(kernel, swizzle_of(kernel), fold_z=True)
    kernel.set_option("swizzle", None)
    partials = [allocate_partials(kernel, each, left * parts) for each in work.loop.results]
    mapping: dict[Value, Value] = {}
    sums = clone_for_sums(kernel, mapping)
    added = mapping[work.loop.results[0]].op
    assert isinstance(added, scf.ForOp)
    copies: dict[Value, Value] = {}
    in_parts = clone_for_sums(kernel, copies)
    in_parts.set_attribute("sym_name", sums.sym_name.removesuffix("_sum") + "_parts")
    summed = copies[work.loop.results[0]].op
    assert isinstance(summed, scf.ForOp)
    kernel.set_field("grid", [Builder.at(kernel).constant(whole, INT32)])
    _compute_parts(in_parts, summed, partials, whole, left, parts, work.trips)
    _add_parts(sums, added, partials, whole, left, parts)


def _compute_parts(
    kernel: tile.KernelOp, loop: scf.ForOp, partials: list[Value], whole: int, left: int, parts: int, trips: int
) -> None:
    """Make a kernel compute parts of the blocks behind the `whole` waves, part by part of all of them."""
    erase_after(loop)
    at = _behind(kernel, whole, left * parts, left)
    (program,) = kernel.body.args
    part = at.apply(arith.TruncDivOp, program, at.constant(left), "part")
    each = -(-trips // parts)
    first = at.apply(arith.MulOp, part, at.constant(each), "first_step")
    end = at.apply(arith.AddOp, first, at.constant(each))
    if trips % parts:
        end = at.apply(arith.MinOp, end, at.constant(trips))
    end.name = "end_step"
    loop.set_field("lower", [first])
    loop.set_field("upper", [end])
    behind = Builder(kernel.body, loop.next, loop.loc)
    for sums, workspace in zip(loop.results, partials, strict=True):
        store_partial(behind, sums, workspace, program)


def _add_parts(
    kernel: tile.KernelOp, loop: scf.ForOp, partials: list[Value], whole: int, left: int, parts: int
) -> None:
    """Make a kernel take the sums of the blocks behind the `whole` waves from their parts."""
    at = _behind(kernel, whole, left, left)
    (block,) = kernel.body.args
    sums = loop.results

    def load(inside: Builder, part: Value) -> list[Value]:
        steps = IndexArithmetic(inside)
        before = steps.apply(arith.MulOp, part, steps.constant(left))
        number = steps.apply(arith.AddOp, before, block)
        return [load_partial(inside, each, workspace, number) for each, workspace in zip(sums, partials, strict=True)]

    add_partials(loop, loop.inits, (at.constant(0), at.constant(parts)), load, unroll=1)
    _divide(kernel, [each.shape for each in sums], left)


def _divide(kernel: tile.KernelOp, shapes: list[tuple[int, ...]], blocks: int) -> None:
    """Have several programs finish a few rows of a block each, where rows have nothing to do with each other."""
    rows, *others = {shape[0] for shape in shapes}
    pieces, rest = divmod(rows, _ROWS)
    try:
        check_rows(kernel.body, shapes, set())
    except NotRecognised:
        return
    if others or rest or pieces < 2:
        return
    kernel.set_field("grid", [Builder.at(kernel).constant(blocks * pieces, INT32)])
    (block,) = kernel.body.args
    program = Value(INT32, kernel.body, "program")
    kernel.body.set_args([program])
    at = IndexArithmetic(Builder(kernel.body, kernel.body.first, kernel.loc))
    size = at.constant(pieces)
    block.replace_with(at.apply(arith.TruncDivOp, program, size, "left"))
    piece = at.apply(arith.TruncModOp, program, size, "piece")
    divide_rows(kernel, at.apply(arith.MulOp, piece, at.constant(_ROWS), "first_row"), rows, _ROWS)


def _behind(kernel: tile.KernelOp, whole: int, programs: int, left: int) -> IndexArithmetic:
    """Give a kernel of one dimension so many programs, for the `left` blocks that come after the `whole` waves."""
    kernel.set_field("grid", [Builder.at(kernel).constant(programs, INT32)])
    (block,) = kernel.body.args
    program = Value(INT32, kernel.body, "program")
    kernel.body.set_args([program])
    at = IndexArithmetic(Builder(kernel.body, kernel.body.first, kernel.loc))
    within = program if programs == left else at.apply(arith.TruncModOp, program, at.constant(left))
    block.replace_with(at.apply(arith.AddOp, within, at.constant(whole), block.name or "block"))
    return at
