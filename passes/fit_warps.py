"""As many warps for matrix products as their tiles have registers and rows for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.hardware import ASYNCHRONOUS_ROWS, MAX_REGISTERS, MEASURED_ARCH, WARPGROUP
from tiledsl.analysis.held_tiles import held_at
from tiledsl.analysis.product_loops import is_only_multiplied, tensor_bytes
from tiledsl.dialects import tensor, tile
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.passes.specs import check_choice

MODES = ("auto", "off")
_FEW = 168  # with which three blocks of four warps fit on a multiprocessor
_OTHERS = 48  # registers that a thread needs beside those of tiles


@dataclass(frozen=True)
class FitWarps(Pass):
    """Give kernels of products more warps, where tiles do not fit into the registers of fewer, or no more than four,
    where their products have 64 rows, which are enough for these.

    Before:  tile.kernel [%blocks] {threads = 32} { two products of 64x32 by 32x32, in a loop that loads all four }
    After:   tile.kernel [%blocks] {threads = 64} { ... }

    `mode` is "off" or "auto". On CUDA, fewer than four warps are doubled while the tiles that are there at a product
    need more registers than a thread can have. On sm_90, four warps multiply 64 rows; of more, several have the same
    rows, and exchange through shared memory what is reduced or multiplied along them: kernels whose products have 64
    rows get four, unless these would have too few registers. Measured on an H200, both with Triton 3.6: three
    kernels of gated attention written for one warp, which spill 1320 to 3496 bytes a thread, take 0.43, 0.42 and 0.26
    of the time with four; products of 64 x 64 and 64 x 128 tiles take 0.95 and 0.96 with four warps instead of eight,
    those of float8 with a reduction 0.82.
    Kernels with num_warps from T.Kernel are left alone, and `lower-to-triton.num_warps` comes later.
    Needs:   pad-tiles. Runs before select-access, which asks how many threads there are.
    """

    name = "fit-warps"
    mode: str = "auto"

    def run(self, program: Program) -> None:
        check_choice(self, "mode", MODES)
        target = program.target
        if self.mode == "off" or target is None or target.kind != "cuda":
            return
        for kernel in tile.kernels(program.root):
            if not targets_gluon(kernel) and (threads := fitting_threads(kernel, target.arch)) != kernel.threads:
                kernel.set_attribute("threads", threads)


def fitting_threads(kernel: tile.KernelOp, arch: int) -> int:
    """The threads that fit a kernel's products on a compute capability."""
    products: list[tensor.DotOp] = of_kinds(kernel.walk(), tensor.DotOp)
    threads = int(kernel.threads)
    if not products or threads == WARPGROUP or kernel.option("num_warps") is not None:
        return threads
    at_once, rows = list(map(_held_at, products)), max(dot.a.shape[0] for dot in products)
    needed, held = max(map(_words, map(_in_registers, at_once))), max(map(_words, at_once))
    while threads < WARPGROUP and needed > (MAX_REGISTERS - _OTHERS) * threads:
        threads = WARPGROUP if arch == MEASURED_ARCH and rows >= ASYNCHRONOUS_ROWS else threads * 2
    if arch == MEASURED_ARCH and threads > WARPGROUP and _are_four_warps_enough(products, kernel, held):
        threads = WARPGROUP
    return threads


def _held_at(dot: tensor.DotOp) -> set[Value]:
    """The tiles that are there at a product, and what it makes."""
    return {*(held_at(dot) - {dot.accumulator}), dot.out}


def _in_registers(tiles: Iterable[Value]) -> set[Value]:
    """Those of tiles that not only products read: what they alone read passes through shared memory, from which they
    take a part at a time."""
    return {each for each in {stripped(tile, tensor.TransposeOp) for tile in tiles} if not _is_only_multiplied(each)}


def _is_only_multiplied(value: Value) -> bool:
    return isinstance(value.op, (tile.LoadOp, tile.LoadBlockOp)) and all(map(is_only_multiplied, value.uses))


def _are_four_warps_enough(products: Sequence[tensor.DotOp], kernel: tile.KernelOp, held: int) -> bool:
    """Whether four warps have all rows of the products, and registers for what is there at one, and for any tile."""
    tiles = [_words([value]) for op in kernel.walk() for value in op.results if value.shape]
    needed = max(held, *tiles) // WARPGROUP + _OTHERS
    return all(dot.a.shape[0] == ASYNCHRONOUS_ROWS for dot in products) and needed <= _FEW


def _words(tiles: Iterable[Value]) -> int:
    """The 32-bit registers of all threads for tiles."""
    return sum(map(tensor_bytes, tiles)) // 4
