"""A register limit for attention, where slightly fewer registers let a second block run on a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.affine import INDEX_DTYPES
from tiledsl.analysis.hardware import MEASURED_ARCH
from tiledsl.analysis.product_loops import product_loops, tensor_bytes
from tiledsl.analysis.shared_memory import Needs
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.passes.specs import check_choice

MODES = ("auto", "off")
MEASURED_THREADS = 256
# Registers of a thread beside the sums of a loop's products, seen in 40 kernels of attention that Triton 3.6 compiled
# for sm_90: with as few it spills no more than 80 bytes, and without a limit it takes no less than the others.
_FEWEST, _USUAL = 28, 40
_CARRIED = 32  # registers of sums that go through the loop; with more, ptxas serialises all products (its note C7512)


@dataclass(frozen=True)
class LimitRegisters(Pass):
    """Limit the registers of a kernel where ptxas would otherwise take so many that only half of the blocks fit.

    Before:  tile.kernel [%blocks] (%block) { scf.for ... { two products of 128 x 128 and 128 x 64, 256 threads } }
    After:   tile.kernel [%blocks] (%block) {options = (("maxnreg", 128))} { ... }

    `mode` is "off" or "auto": on sm_90, kernels of 256 threads whose loops multiply what they compute, as attention
    does, if two blocks fit on a multiprocessor with the registers that the kernel needs at least, but not with those
    that it usually takes. Loops with integer arithmetic for each element, as for biases by distance or dropout hashes,
    are left alone: the limit makes them spill heavily. A limit from T.Kernel or `lower-to-triton.maxnreg` is kept.
    """

    name = "limit-registers"
    mode: str = "auto"

    def run(self, program: Program) -> None:
        check_choice(self, "mode", MODES)
        target = program.target
        if self.mode == "off" or target is None or target.arch != MEASURED_ARCH:
            return
        for kernel in tile.kernels(program.root):
            if targets_gluon(kernel) or kernel.threads != MEASURED_THREADS or kernel.option("maxnreg") is not None:
                continue
            in_loop, sums = _registers(kernel)
            two_blocks = target.registers_per_sm // (2 * kernel.threads)
            if in_loop > _CARRIED or not sums + _FEWEST <= two_blocks < sums + _USUAL:
                continue
            needs = Needs.of(kernel)
            if 2 * (needs.loop + needs.read) <= target.shared_bytes_per_sm:
                kernel.set_option("maxnreg", two_blocks)


def _registers(kernel: tile.KernelOp) -> tuple[int, int]:
    """32-bit registers of a thread for the tiles that a loop carries, and for the products of one iteration.

    Of the loops that multiply what they compute, this is the one that needs most.
    """
    plain = {each.op for each in product_loops(kernel)}
    per_loop = [(0, 0)]
    for loop in of_kinds(kernel.walk(), scf.ForOp):
        sums = [dot.out for dot in of_kinds(loop.body, tensor.DotOp)]
        if loop not in plain and not _computes_with_integers(loop):
            tiles = filter(_is_matrix, loop.results)
            in_loop, computed = (sum(map(tensor_bytes, each)) // (4 * kernel.threads) for each in (tiles, sums))
            per_loop.append((in_loop, computed))
    return max(per_loop, key=lambda each: each[1])


def _computes_with_integers(loop: scf.ForOp) -> bool:
    """Whether a loop has integer arithmetic for each element of a tile. Comparing rows with columns does not count."""
    return any(
        isinstance(op, arith.BinaryOp) and op.out.dtype in INDEX_DTYPES and _is_matrix(op.out)
        for op in loop.body.walk()
    )


def _is_matrix(value: Value) -> bool:
    return sum(size > 1 for size in value.shape) > 1
