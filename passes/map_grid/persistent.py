"""Persistent kernels: as many programs as run concurrently, each taking one block after the other. Part of map-grid."""

from __future__ import annotations

import logging
import math
from typing import Any

from tiledsl.analysis.hardware import MEASURED_ARCH
from tiledsl.analysis.product_loops import product_loops, tensor_bytes
from tiledsl.analysis.shared_memory import Needs
from tiledsl.dialects import arith, scf, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32

_log = logging.getLogger("tiledsl")


def may_persist(kernel: tile.KernelOp) -> bool:
    """Whether no block can wait for another one, which might come later in the same program."""
    waiting: list[scf.WhileOp | tile.AtomicOp] = of_kinds(kernel.walk(), scf.WhileOp, tile.AtomicOp)
    for op in waiting:
        if isinstance(op, scf.WhileOp) or op.semantics != "relaxed":
            remark = f"the grid is not persistent, because a block may wait for another one (line {op.loc.line})"
            kernel.add_remark(remark)
            _log.info("%s: %s", kernel.sym_name, remark)
            return False
    return True


def may_flatten(kernel: tile.KernelOp, target: Any) -> bool:
    """Whether shared memory suffices to store one block while the next is loaded."""
    if target is None or target.kind != "cuda" or target.arch < MEASURED_ARCH:
        return True
    needs = Needs.of(kernel)
    if not needs.loop or needs.flattened <= target.max_shared_bytes:
        return True
    remark = (
        "the persistent grid's loops are not flattened, because the tiles of a block that is stored and of one that is"
        f" loaded need {needs.flattened} bytes of shared memory; {target} has {target.max_shared_bytes}"
    )
    kernel.add_remark(remark)
    _log.info("%s: %s", kernel.sym_name, remark)
    return False


def gains_by_persistence(kernel: tile.KernelOp, target: Any) -> bool:
    """Whether a kernel is one that is faster persistent and flattened, as measured on an H200.

    That is: one pipelined loop of one product with block loads, whose sums fill so many registers that a multiprocessor
    holds one block at a time anyway; more blocks than multiprocessors; and shared memory for the loop's tiles and the
    result's together, as one block is stored while the next is loaded. `python -m benchmarks --only gemm` tries both.
    With several products a flattened loop is slower: 192 x 192 sums as four took 713 us instead of 526.
    """
    if target is None or target.arch != MEASURED_ARCH or kernel.option("num_ctas"):
        return False
    match [(loop, loop.dots) for loop in product_loops(kernel)]:
        case [(loop, [dot])] if kernel.nests()[1:] == [loop.op]:
            pass
        case _:
            return False
    if constant_of(loop.op.lower) is None or constant_of(loop.op.upper) is None:
        return False
    if 2 * tensor_bytes(dot.accumulator) < 4 * target.registers_per_sm:
        return False
    if of_kinds(loop.op.body, tile.LoadOp):
        return False
    if of_kinds(kernel.walk(), tile.AtomicOp):
        return False
    if Needs.of(kernel).flattened > target.max_shared_bytes:
        return False
    blocks = [constant_of(extent) for extent in kernel.grid]
    return None not in blocks and math.prod(blocks) > target.sm_count  # type: ignore[arg-type]


def make_persistent(kernel: tile.KernelOp, per_multiprocessor: int, flatten: bool) -> None:
    """Wrap the body of a kernel with a grid of one dimension in a loop over its blocks.

    Before:  tile.kernel [%blocks] (%block) { ... }
    After:   tile.kernel [%programs] (%program) {
               scf.for %program, %blocks, %programs (%block) { ... }
             }
    """
    (blocks,) = kernel.grid
    host = Builder.at(kernel)
    programs = host.insert(triton.MultiprocessorsOp(names=["multiprocessors"])).out
    if per_multiprocessor != 1:
        programs = host.insert(arith.MulOp(programs, host.constant(per_multiprocessor, INT32))).result
    programs = host.insert(arith.MinOp(programs, blocks)).result
    programs.name = "programs"
    kernel.set_field("grid", [programs])
    (block,) = kernel.body.args
    body = Region()
    loop_index = body.add_arg(INT32)
    loop_index.name = block.name or "block"
    block.replace_with(loop_index)
    ended = isinstance(kernel.body.last, scf.YieldOp)
    for op in list(kernel.body):
        op.detach()
        body.insert(op)
    if not ended:
        body.insert(scf.YieldOp([]))
    program = block
    program.name = "program"
    at = Builder(kernel.body, None, kernel.loc)
    at.insert(scf.ForOp(program, _inside(at, blocks), programs, [], flatten=flatten, regions=[body]))
    if ended:
        at.insert(scf.YieldOp([]))


def _inside(at: Builder, value: Value) -> Value:
    """A host value in the kernel; a constant is created again there."""
    number = constant_of(value)
    return value if number is None else at.constant(number, INT32)
