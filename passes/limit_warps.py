"""Fewer warps for reductions, where further ones would only exchange sums through shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2, prod

from tiledsl.analysis.dependence import operands_of, reached
from tiledsl.analysis.hardware import VECTOR
from tiledsl.analysis.held_tiles import held_at
from tiledsl.dialects import scf, tensor, tile
from tiledsl.ir.core import Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.types import ELEMENTS
from tiledsl.passes.specs import check_choice

MODES = ("auto", "off")
_HELD = 128  # elements of tiles that a thread may hold at once
_OTHERS = (tensor.DotOp, tensor.ScanOp, tensor.SortOp, tensor.ScatterOp, tensor.HistogramOp, tensor.GatherOp)


@dataclass(frozen=True)
class LimitWarps(Pass):
    """Take warps from a kernel that reduces, as far as they share rows.

    Before:  tile.kernel [%blocks] {threads = 256} { %x = tile.load : tensor<32x128xfloat16>; reduce along axis 0 }
    After:   tile.kernel [%blocks] {threads = 256, options = (("num_warps", 1))} { ... }

    Triton lays the threads of a warp, and then the warps, along the contiguous dimension of what is loaded, 16 bytes a
    thread. Those for which that dimension has no elements left lie along the others: a reduction along these goes
    through shared memory, in which the sums of one row's threads lie in one bank. `mode` is "off" or "auto": on CUDA,
    kernels of reductions alone, without products and scans, get as many warps as the reduced tiles have for, and as
    what a reduction or a loop holds at once needs, with about 128 elements for a thread, and 256 that are loaded as
    bytes. Measured on an H200 with Triton 3.6: sums of columns of 32 x 128 and 64 x 128 tiles take 0.27 and 0.47 of the
    time, a row's sum of squares of 1024 elements with 256 threads 0.81; of 64, 128 and 256 x 128 float8, with half the
    warps of float16, 0.78, 0.85 and 0.81 in 512 blocks.
    Kernels with num_warps from T.Kernel are left alone, and `lower-to-triton.num_warps` comes later; so are kernels
    that load no more than an element for each thread, as code for one thread does.
    """

    name = "limit-warps"
    mode: str = "auto"

    def run(self, program: Program) -> None:
        check_choice(self, "mode", MODES)
        target = program.target
        if self.mode == "off" or target is None or target.kind != "cuda":
            return
        for kernel in tile.kernels(program.root):
            useful = _useful_threads(kernel)
            if useful is not None and kernel.option("num_warps") is None:
                warps = 1 << round(log2(max(useful / target.warp_size, 1)))
                if warps * target.warp_size < kernel.threads:
                    kernel.set_option("num_warps", warps)


def _useful_threads(kernel: tile.KernelOp) -> int | None:
    """How many threads have elements of their own of what a kernel reduces; None where that does not say it."""
    ops = list(kernel.walk())
    reductions = of_kinds(ops, tensor.ReduceOp)
    if not reductions or any(isinstance(op, _OTHERS) for op in ops):
        return None
    loads: list[tile.LoadOp | tile.LoadBlockOp] = of_kinds(ops, tile.LoadOp, tile.LoadBlockOp)
    if all(prod(load.out.shape) <= kernel.threads for load in loads):
        return None  # perhaps code for one thread, each with its element
    loops: list[scf.ForOp | scf.WhileOp] = of_kinds(ops, scf.ForOp, scf.WhileOp)
    at_once = (sum(map(_elements, held_at(each))) for each in reductions)
    held = max([*at_once, *map(_held_in, loops)])
    return max(held // _HELD, *map(_along, reductions))


def _elements(tile: Value) -> int:
    """The elements of a tile; half of them, if it is computed from bytes, of which a register holds four."""
    return prod(tile.shape) // (2 if min(_loaded_bits(tile), default=32) <= 8 else 1)


def _held_in(loop: scf.ForOp | scf.WhileOp) -> int:
    """The elements of the tiles that a loop carries, and loads in an iteration."""
    loads: list[tile.LoadOp | tile.LoadBlockOp] = of_kinds(loop.regions[-1], tile.LoadOp, tile.LoadBlockOp)
    return sum(map(_elements, [*loop.iter_args, *(load.out for load in loads)]))


def _along(op: tensor.ReduceOp) -> int:
    """The threads that lie along what a reduction keeps; all that its tile has for, if it reduces the contiguous
    dimension itself."""
    shape = op.source.shape
    kept = prod(shape[op.axis + 1 :])
    bits = min(_loaded_bits(op.source), default=ELEMENTS[op.source.dtype].bits)
    return (kept if kept > 1 else prod(shape)) * bits // VECTOR


def _loaded_bits(value: Value) -> Iterator[int]:
    """The bits of the elements that a tile is computed from, of tiles of its shape."""
    for source in reached([value], lambda each: [one for one in operands_of(each) if one.shape == value.shape]):
        if isinstance(source.op, (tile.LoadOp, tile.LoadBlockOp)):
            yield ELEMENTS[source.dtype].bits
