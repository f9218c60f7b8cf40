"""How blocks of global memory are accessed: through pointers, or by the tensor memory accelerator (TMA)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from tiledsl.analysis.block_access import Access, Block, NoBlock, block_of, root_buffer
from tiledsl.analysis.hardware import BARRIER_BYTES, WARPGROUP
from tiledsl.analysis.loop_memory import rewritten_buffers
from tiledsl.analysis.product_loops import Operand, is_read_both_ways, product_loops, tensor_bytes
from tiledsl.analysis.shared_memory import bytes_beside
from tiledsl.dialects import tensor, tile
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, with_shape
from tiledsl.passes.dce import erase_sources
from tiledsl.passes.index_arithmetic import materialize
from tiledsl.passes.specs import check_choice
from tiledsl.passes.unused_options import changed, remark_unused

MODES = ("auto", "pointer", "tma")
TMA_ARCH = 90

_log = logging.getLogger("tiledsl")


@dataclass(frozen=True)
class SelectAccess(Pass):
    """Turn loads and stores of rectangular blocks into single operations, which the TMA executes.

    Before:  %x = tile.load %A[%rows, %columns] mask=%inside {guarded = true} : tensor<128x64xfloat16>
    After:   %x = tile.load_block %A[%row, %column] {axes = (0, 1)} : tensor<128x64xfloat16>

    `mode` is "pointer" (nothing changes), "tma" (every block for which it is possible), or "auto": on sm_90 and later,
    the operands of pipelined loops that load tiles and multiply them, if all operands of a loop qualify, and the values
    that such a kernel computes from the loop's sums and stores. Unchanged sums go through pointers: Triton 3.6 would
    copy them to shared memory beside the operands. Where a loop multiplies what it has computed, as attention does,
    pointers are as fast; where an iteration adds up products, as with 96 = 64 + 32 elements to sum over, they are
    faster: each product would wait for blocks of its own (1480 us instead of 1709, benchmarks/split_tiles.py).
    `operands` sets the mode of single buffers: "A=tma,C=pointer". An access that does not qualify, or for which shared
    memory does not suffice, stays as it is; the kernel's remarks say why.
    Needs:   guard-accesses: the hardware's bounds checks replace its masks.
    """

    name = "select-access"
    mode: str = "auto"
    operands: str = ""

    def run(self, program: Program) -> None:
        check_choice(self, "mode", MODES)
        modes = _modes(self.operands)
        func = program.root
        assert isinstance(func, tile.FuncOp), func.name
        kernels = [op for op in func.body if isinstance(op, tile.KernelOp)]
        prepared = [kernel for kernel in kernels if targets_gluon(kernel)]
        for kernel in prepared:
            remark_unused(kernel, changed(self, "mode", "operands"))
        if prepared:
            return  # Triton's descriptors beside Gluon's failed on an H200: the others use pointers
        selections = [_Selection(func, kernel, program.target) for kernel in kernels]
        for name in modes:
            buffers = {_name(op.buffer) for each in selections for op in each.accesses}
            if name not in buffers:
                raise TileError(
                    f"select-access.operands names {name!r}, which no kernel loads or stores as a whole tile",
                    func.loc,
                    [f"there are {', '.join(sorted(buffers)) or 'none'}"],
                )
        for each in selections:
            each.run(self.mode, modes)


def _modes(operands: str) -> dict[str, str]:
    modes: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in operands.split(","))):
        name, _, mode = (word.strip() for word in part.partition("="))
        if mode not in MODES:
            raise TileError(f"select-access.operands: {part!r} is not name=mode with a mode of {', '.join(MODES)}")
        if name in modes:
            raise TileError(f"select-access.operands names {name!r} twice: {name}={modes[name]} and {name}={mode}")
        modes[name] = mode
    return modes


def _has_tma(target: Any) -> bool:
    return target is not None and target.kind == "cuda" and target.arch >= TMA_ARCH


def _name(buffer: Value) -> str:
    return root_buffer(buffer).name


class _Selection:
    """The accesses of one kernel, and the remarks about them."""

    def __init__(self, func: tile.FuncOp, kernel: tile.KernelOp, target: Any) -> None:
        self.func, self.kernel, self.target = func, kernel, target
        accesses: list[Access | tile.AtomicOp] = of_kinds(kernel.walk(), tile.LoadOp, tile.StoreOp, tile.AtomicOp)
        accesses = [op for op in accesses if tile.buffer_type(op.buffer).scope == "global"]
        self.accesses = [op for op in accesses if not isinstance(op, tile.AtomicOp)]
        self.both = _read_and_written(accesses)
        self.remarks = dict.fromkeys(kernel.remarks)

    def run(self, mode: str, modes: dict[str, str]) -> None:
        wanted = {op: modes.get(_name(op.buffer), mode) for op in self.accesses}
        blocks = self.chosen() if "auto" in wanted.values() and _has_tma(self.target) else {}
        blocks = {op: block for op, block in blocks.items() if wanted[op] == "auto"}
        for op in self.accesses:
            block = self.block(op) if wanted[op] == "tma" else blocks.get(op)
            if block is not None:
                _replace(op, block)
        self.kernel.set_attribute("remarks", tuple(self.remarks))

    def chosen(self) -> dict[Access, Block]:
        """The accesses that "auto" turns into blocks."""
        chosen_blocks: dict[Access, Block] = {}
        inside: set[Operation] = set()
        for loop in product_loops(self.kernel):
            if self.kernel.threads < WARPGROUP or loop.op.num_stages < 2 or not loop.is_asynchronous:
                continue
            if rewritten_buffers(loop.op):  # pipeline-loops will take its depth away
                continue
            loads = [load for load in loop.loads if isinstance(load, tile.LoadOp)]
            if loop.adds_products:
                for load in loads:
                    self.remark(load, "an iteration adds up products, of which each would wait for its blocks")
                continue
            blocks = [self.block(load) for load in loads]
            failed = next((load for load, block in zip(loads, blocks) if block is None), None)
            if failed is not None:
                for load, block in zip(loads, blocks):
                    if block is not None:
                        self.remark(load, f"{_name(failed.buffer)} is, which it is multiplied with")
                continue
            pairs: dict[Access, Block] = {load: block for load, block in zip(loads, blocks) if block is not None}
            if all(_is_readable(operand, pairs) for operand in loop.operands):
                chosen_blocks |= pairs
                inside.update(loop.op.body.walk())
        for op in self.accesses if chosen_blocks else ():
            is_tile = sum(size > 1 for size in tile.access_shape(op) or ()) > 1
            if isinstance(op, tile.StoreOp) and op not in inside and is_tile:
                if bytes_beside(op.value):  # it leaves room for fewer blocks, which is slower
                    self.remark(op, "a copy of what a loop leaves takes shared memory beside the loop's operands")
                    continue
                block = self.block(op)
                if block is not None:
                    chosen_blocks[op] = block
        return chosen_blocks

    def block(self, op: Access) -> Block | None:
        """The block that an access moves; None, with a remark, if there is none."""
        try:
            if not (_has_tma(self.target) or self.target is None or self.target.kind == "interpret"):
                raise NoBlock(f"{self.target} has no tensor memory accelerator")
            if root_buffer(op.buffer) in self.both:
                raise NoBlock("the kernel both reads and writes it, and the two ways are not ordered")
            if op.cache:
                raise NoBlock("it has a cache hint")
            if isinstance(op, tile.LoadOp) and is_read_both_ways(op):
                raise NoBlock("large products read it, and something else does, too")
            access = block_of(op, self.func)
            if isinstance(op, tile.StoreOp):
                _check_columns(op, access)
                if self.target is not None:
                    self.check_room(op)
            return access
        except NoBlock as reason:
            self.remark(op, str(reason))
            return None

    def check_room(self, op: tile.StoreOp) -> None:
        """Raise NoBlock if the copy of a stored tile does not fit in shared memory."""
        copy, operands = tensor_bytes(op.value), bytes_beside(op.value)
        barriers = BARRIER_BYTES if operands else 0
        if copy + operands + barriers > self.target.max_shared_bytes:
            beside = f" beside {operands} bytes of the loop's operands" if operands else ""
            raise NoBlock(
                f"a copy of its tile, {copy} bytes, does not fit in shared memory{beside}; {self.target} has"
                f" {self.target.max_shared_bytes}"
            )

    def remark(self, op: Access, reason: str) -> None:
        remark = f"{_name(op.buffer)} (line {op.loc.line}) is accessed through pointers, because {reason}"
        if remark not in self.remarks:
            self.remarks[remark] = None
            _log.info("%s: %s", self.func.sym_name, remark)


def _check_columns(op: tile.StoreOp, block: Block) -> None:
    """Raise NoBlock for a block that is wider than the tensor: such a store ended in an illegal instruction on an H200,
    why is not known."""
    *_, extent = tile.buffer_type(op.buffer).shape
    width = next((size for axis, size in zip(block.axes, block.shape) if axis == len(block.starts) - 1), 1)
    if isinstance(extent, int) and width > extent:
        raise NoBlock(f"its blocks are {width} elements wide, and its rows {extent}")


def _is_readable(operand: Operand, blocks: dict[Access, Block]) -> bool:
    """Whether tensor cores can read the operand from shared memory in the layout in which the hardware writes it.

    That is so for 16-bit elements in any order, and for narrower ones if the summed elements are contiguous.
    """
    assert isinstance(operand.load, tile.LoadOp)
    block = blocks[operand.load]
    last = len(tile.buffer_type(operand.load.buffer).shape) - 1
    return ELEMENTS[operand.load.out.dtype].bits == 16 or block.axes[operand.summed] == last


def _read_and_written(accesses: list[Access | tile.AtomicOp]) -> set[Value]:
    """Buffers that a kernel reads and writes. Accesses by TMA are not ordered with accesses through pointers."""
    read = {root_buffer(op.buffer) for op in accesses if not isinstance(op, tile.StoreOp)}
    written = {root_buffer(op.buffer) for op in accesses if not isinstance(op, tile.LoadOp)}
    return read & written


def _replace(op: Access, block: Block) -> None:
    at, operands = Builder.at(op), op.operands
    starts = [materialize(at, start) for start in block.starts]
    if isinstance(op, tile.LoadOp):
        new = at.insert(tile.LoadBlockOp(op.buffer, starts, axes=block.axes, result_types=[op.out.type]))
        new.out.name = op.out.name
        op.out.replace_with(new.out)
    else:
        value = op.value
        if value.shape != block.shape:
            value = at.insert(tensor.BroadcastOp(value, result_types=[with_shape(block.shape, value.dtype)])).result
        at.insert(tile.StoreBlockOp(value, op.buffer, starts, axes=block.axes))
    op.erase()
    erase_sources(operands)
