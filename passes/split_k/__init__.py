"""Sums along K in parts: split-K within each block, or stream-K across all blocks. Additions have a fixed order."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.dialects import arith, scf, tensor, thread, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.passes.split_k.partial_sums import (
    NotSplit,
    add_partials,
    allocate_partials,
    clone_for_sums,
    erase_after,
    load_partial,
    store_partial,
)
from tiledsl.passes.split_k.stream_k import stream

_log = logging.getLogger("tiledsl")


@dataclass(frozen=True)
class SplitK(Pass):
    """Compute sums over K in parts, in several blocks or programs, and add the parts in a second kernel.

    With `splits` > 1, the sum of each block is computed in that many parts, each in a block of its own:

    Before:  tile.kernel [%gx, %gy] (%bx, %by) { %sum = scf.for ... { ... tensor.dot ... }; epilogue of %sum }
    After:   %parts = tile.alloc : buffer<8192*128*float32, global>
             tile.kernel [%gx, %gy, %four] (%bx, %by, %part) { %sum = scf.for ... ; tile.store %sum, %parts[...] }
             tile.kernel [%gx, %gy] (%bx, %by) { %sum = scf.for ... { tile.load %parts[...] ... }; epilogue of %sum }

    This pays off if a grid has fewer blocks than the device has multiprocessors and K is long. With `streams` > 0
    (stream-K), that many programs share the iterations of all blocks evenly, so that a block may begin in one program
    and end in another; only such blocks go through the workspace (stream_k.py has an example). This pays off if the
    last of few waves of blocks leaves many multiprocessors idle. A negative number means that many programs on each of
    the target's multiprocessors; 0 means no stream-K.

    The order of additions is fixed, so results are the same in every run. A kernel is split if its grid is static and
    has one or two dimensions, and if it has one loop, which only adds products to one tile that starts as zeros. Others
    are left alone, with a remark.
    Needs:   guard-accesses. Runs before split-tiles, for its loop adds to one tile, select-access and map-grid.
    """

    name = "split-k"
    splits: int = 1
    streams: int = 0

    def allowances(self, program: Program) -> frozenset[str]:
        return frozenset({"reassociation"} if self.splits > 1 or self.streams else ())

    def run(self, program: Program) -> None:
        if self.splits < 1:
            raise TileError(f"split-k.splits is {self.splits}; it must be a positive number")
        if self.splits > 1 and self.streams:
            raise TileError(f"split-k.splits is {self.splits} and split-k.streams {self.streams}; set one of them")
        if self.splits == 1 and not self.streams:
            return
        programs = self.streams
        if programs < 0:
            if program.target is None:
                raise TileError(
                    f"split-k.streams is {self.streams}, programs on each multiprocessor, and no target is given"
                )
            programs *= -program.target.sm_count
        for kernel in tile.kernels(program.root):
            if not any(isinstance(op, tensor.DotOp) for op in kernel.walk()) and not targets_gluon(kernel):
                continue
            try:
                if targets_gluon(kernel):
                    raise NotSplit('it is written in Gluon; select-emitter.backend="triton" leaves it to Triton')
                work = work_of(kernel)
                if programs:
                    stream(kernel, work.loop, math.prod(work.grid), work.trips, programs)
                else:
                    _split(kernel, work, self.splits)
            except NotSplit as reason:
                remark = f"the loop along K is not split, because {reason}"
                kernel.add_remark(remark)
                _log.info("%s: %s", kernel.sym_name, remark)


@dataclass(frozen=True)
class Work:
    """The loop to divide, its iterations, and the extents of the grid."""

    loop: scf.ForOp
    trips: int
    grid: list[int]


def work_of(kernel: tile.KernelOp, several: bool = False) -> Work:
    """What a kernel has to divide. several: of up to three dimensions, and into several sums, while each iteration may
    add to other memory, too. Raises NotSplit."""
    extents = [constant_of(extent) for extent in kernel.grid]
    if len(extents) > (3 if several else 2) or None in extents:
        raise NotSplit(f"its grid is not static, of one{', two or three' if several else ' or two'} dimensions")
    ops = list(kernel.walk())
    loops = [op for op in ops if isinstance(op, (scf.ForOp, scf.WhileOp))]
    if not loops:
        raise NotSplit("the kernel has no loop")
    loop, *others = loops
    if others or not isinstance(loop, scf.ForOp) or loop.parent is not kernel.body:
        raise NotSplit("the kernel has other loops")
    other = [op for op in ops if isinstance(op, (tile.AtomicOp, tile.PrintOp, tile.AssertOp, thread.BarrierOp))]
    if not all(several and op.parent is loop.body and _only_adds_to_memory(op, ops) for op in other):
        raise NotSplit("the kernel has atomics, prints or assertions")
    if any(isinstance(op, tile.StoreOp) for op in loop.body.walk()) or _stores_before(loop):
        raise NotSplit("something is stored before the sum is complete")
    if len(loop.results) != 1 and not several or not all(map(_only_adds, loop.iter_args)):
        raise NotSplit(f"the loop does more than to add to {'tiles' if several else 'one tile'}")
    if any(constant_of(init) != 0 for init in loop.inits):
        raise NotSplit("the sum does not begin as zeros")
    trips = constant_of(loop.upper)
    if constant_of(loop.lower) != 0 or constant_of(loop.step) != 1 or trips is None:
        raise NotSplit("the number of its iterations is known only at run time")
    return Work(loop, int(trips), [int(extent) for extent in extents if extent is not None])


def _stores_before(loop: scf.ForOp) -> bool:
    assert loop.parent is not None
    ahead = loop.parent.ops[: loop.parent.index(loop)]
    return any(isinstance(each, tile.StoreOp) for op in ahead for each in op.walk())


def _only_adds_to_memory(op: Operation, ops: Sequence[Operation]) -> bool:
    """Whether an operation only adds to a buffer that none of the others has to do with."""
    if not isinstance(op, tile.AtomicOp) or (op.kind, op.semantics) != ("add", "relaxed"):
        return False
    return not op.is_used and not any(op.buffer in other.operands for other in ops if other is not op)


def _only_adds(total: Value) -> bool:
    """Whether a carried value is used for nothing but that products, or sums, are added to it."""
    if not total.shape:
        return False
    while True:
        users = list(total.uses)
        if len(users) != 1:
            return False
        (user,) = users
        if isinstance(user, scf.YieldOp):
            return True
        adds = isinstance(user, arith.AddOp) and user.lhs is not user.rhs
        multiplies = isinstance(user, tensor.DotOp) and user.accumulator is total and total.uses[user] == 1
        if not (adds or multiplies):
            return False
        total = user.result


def _split(kernel: tile.KernelOp, work: Work, splits: int) -> None:
    splits = min(splits, work.trips)
    if splits < 2:
        raise NotSplit("it has less than two iterations")
    sums = work.loop.result
    partials = allocate_partials(kernel, sums, splits * math.prod(work.grid))
    mapping: dict[Value, Value] = {}
    second = clone_for_sums(kernel, mapping)
    _add_partials(second, work.grid, mapping[sums], partials, splits)
    _store_partial(kernel, work, partials, splits)


def _store_partial(kernel: tile.KernelOp, work: Work, partials: Value, splits: int) -> None:
    """Make the kernel compute a part, chosen by one more block index, and store it."""
    loop, trips = work.loop, work.trips
    erase_after(loop)
    block = _block(Builder.at(loop), kernel, work.grid)
    kernel.set_field("grid", [*kernel.grid, Builder.at(kernel).constant(splits, INT32)])
    while len(kernel.grid) < 3:  # the part is the last dimension of three, as panels are made of the first two
        kernel.set_field("grid", [kernel.grid[0], Builder.at(kernel).constant(1, INT32), *kernel.grid[1:]])
        kernel.body.set_args([kernel.body.args[0], Value(INT32, kernel.body, "by")])
    part = kernel.body.add_arg(INT32, "part")
    at = Builder.at(loop)
    each = -(-trips // splits)
    first = at.insert(arith.MulOp(part, at.constant(each, INT32), names=["first_step"])).result
    end = at.insert(arith.AddOp(first, at.constant(each, INT32))).result
    if trips % splits:
        end = at.insert(arith.MinOp(end, at.constant(trips, INT32))).result
    end.name = "end_step"
    loop.set_field("lower", [first])
    loop.set_field("upper", [end])
    after = Builder(kernel.body, loop.next, loop.loc)
    store_partial(after, loop.result, partials, _number(after, part, block, math.prod(work.grid)))


def _add_partials(kernel: tile.KernelOp, grid: list[int], sums: Value, partials: Value, splits: int) -> None:
    """Make the kernel take its sums from the parts."""
    loop = sums.op
    assert isinstance(loop, scf.ForOp)
    at = Builder.at(loop)
    block = _block(at, kernel, grid)
    bounds = at.constant(0, INT32), at.constant(splits, INT32)

    def load(inside: Builder, part: Value) -> list[Value]:
        return [load_partial(inside, sums, partials, _number(inside, part, block, math.prod(grid)))]

    add_partials(loop, loop.inits, bounds, load, unroll=1)


def _block(at: Builder, kernel: tile.KernelOp, grid: list[int]) -> Value:
    """The number of a block: the blocks of a row lie one after the other."""
    block, *rows = kernel.body.args
    for row in rows:
        first = at.insert(arith.MulOp(row, at.constant(grid[0], INT32))).result
        block = at.insert(arith.AddOp(first, block)).result
    return block


def _number(at: Builder, part: Value, block: Value, blocks: int) -> Value:
    """The tile of the workspace that a part of a block's sum has."""
    before = at.insert(arith.MulOp(part, at.constant(blocks, INT32))).result
    return at.insert(arith.AddOp(before, block)).result
