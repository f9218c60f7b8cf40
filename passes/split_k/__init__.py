"""Sums along K in parts: split-K within each block, or stream-K across all blocks. Additions have a fixed order."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from tiledsl.dialects import arith, scf, tensor, thread, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
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
                if programs:
                    stream(kernel, _loop_of(kernel), programs)
                else:
                    _split(kernel, _loop_of(kernel), self.splits)
            except NotSplit as reason:
                remark = f"the loop along K is not split, because {reason}"
                kernel.add_remark(remark)
                _log.info("%s: %s", kernel.sym_name, remark)


def _loop_of(kernel: tile.KernelOp) -> scf.ForOp:
    """The loop to divide. Raises NotSplit."""
    if len(kernel.grid) > 2 or any(constant_of(extent) is None for extent in kernel.grid):
        raise NotSplit("its grid is not static, of one or two dimensions")
    ops = list(kernel.walk())
    loops = [op for op in ops if isinstance(op, (scf.ForOp, scf.WhileOp))]
    if not loops:
        raise NotSplit("the kernel has no loop")
    loop = loops[0]
    if len(loops) != 1 or not isinstance(loop, scf.ForOp) or loop.parent is not kernel.body:
        raise NotSplit("the kernel has other loops")
    if any(isinstance(op, (tile.AtomicOp, tile.PrintOp, tile.AssertOp, thread.BarrierOp)) for op in ops):
        raise NotSplit("the kernel has atomics, prints or assertions")
    if any(isinstance(op, tile.StoreOp) for op in loop.body.walk()) or _stores_before(loop):
        raise NotSplit("something is stored before the sum is complete")
    if len(loop.results) != 1 or not _only_adds(loop):
        raise NotSplit("the loop does more than to add to one tile")
    if constant_of(loop.inits[0]) != 0:
        raise NotSplit("the sum does not begin as zeros")
    if constant_of(loop.lower) != 0 or constant_of(loop.step) != 1 or constant_of(loop.upper) is None:
        raise NotSplit("the number of its iterations is known only at run time")
    return loop


def _stores_before(loop: scf.ForOp) -> bool:
    assert loop.parent is not None
    ahead = loop.parent.ops[: loop.parent.index(loop)]
    return any(isinstance(each, tile.StoreOp) for op in ahead for each in op.walk())


def _only_adds(loop: scf.ForOp) -> bool:
    """Whether the carried value is used for nothing but that products, or sums, are added to it."""
    (total,) = loop.iter_args
    if not total.shape:
        return False
    while True:
        users = list(total.uses)
        if len(users) != 1:
            return False
        (user,) = users
        if user is loop.body.terminator:
            return True
        adds = isinstance(user, arith.AddOp) and user.lhs is not user.rhs
        multiplies = isinstance(user, tensor.DotOp) and user.accumulator is total and total.uses[user] == 1
        if not (adds or multiplies):
            return False
        total = user.result


def _split(kernel: tile.KernelOp, loop: scf.ForOp, splits: int) -> None:
    trips = int(constant_of(loop.upper) or 0)
    splits = min(splits, trips)
    if splits < 2:
        raise NotSplit("it has less than two iterations")
    partials = allocate_partials(kernel, loop.result, splits * _blocks(kernel))
    mapping: dict[Value, Value] = {}
    second = clone_for_sums(kernel, mapping)
    _add_partials(second, mapping[loop.result], partials, splits)
    _store_partial(kernel, loop, partials, trips, splits)


def _store_partial(kernel: tile.KernelOp, loop: scf.ForOp, partials: Value, trips: int, splits: int) -> None:
    """Make the kernel compute a part, chosen by one more block index, and store it."""
    erase_after(loop)
    block, blocks = _block(Builder.at(loop), kernel), _blocks(kernel)
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
    store_partial(after, loop.result, partials, _number(after, part, block, blocks))


def _add_partials(kernel: tile.KernelOp, sums: Value, partials: Value, splits: int) -> None:
    """Make the kernel take its sums from the parts."""
    loop = sums.op
    assert isinstance(loop, scf.ForOp)
    at = Builder.at(loop)
    block, blocks = _block(at, kernel), _blocks(kernel)
    bounds = at.constant(0, INT32), at.constant(splits, INT32)

    def load(inside: Builder, part: Value) -> Value:
        return load_partial(inside, sums, partials, _number(inside, part, block, blocks))

    add_partials(loop, loop.inits[0], bounds, load, unroll=1)


def _blocks(kernel: tile.KernelOp) -> int:
    return math.prod(int(constant_of(extent) or 0) for extent in kernel.grid)


def _block(at: Builder, kernel: tile.KernelOp) -> Value:
    """The number of a block: the blocks of a row lie one after the other."""
    block = kernel.body.args[0]
    if len(kernel.body.args) > 1:
        width = at.constant(int(constant_of(kernel.grid[0]) or 0), INT32)
        rows = at.insert(arith.MulOp(kernel.body.args[1], width)).result
        block = at.insert(arith.AddOp(rows, block)).result
    return block


def _number(at: Builder, part: Value, block: Value, blocks: int) -> Value:
    """The tile of the workspace that a part of a block's sum has."""
    before = at.insert(arith.MulOp(part, at.constant(blocks, INT32))).result
    return at.insert(arith.AddOp(before, block)).result
