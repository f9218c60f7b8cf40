"""Products of few rows whose left operand is transposed anyway, as the products of the transposes."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.hardware import ASYNCHRONOUS_ROWS, MEASURED_ARCH, WARPGROUP
from tiledsl.dialects import arith, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, TensorType
from tiledsl.passes.dce import erase_sources
from tiledsl.passes.specs import check_choice
from tiledsl.passes.tile_values import permuted

MODES = ("auto", "off")
_LOADS = (tile.LoadOp, tile.LoadBlockOp)


@dataclass(frozen=True)
class TransposeProducts(Pass):
    """Write a product of fewer than 64 rows as the transpose of that of its transposed operands.

    Before:  %s = tensor.transpose %ds;  %d = tensor.dot %s, %k, %zeros : tensor<32x128xfloat32>
    After:   %t = tensor.transpose %k;   %e = tensor.dot %t, %ds, %zeros : tensor<128x32xfloat32>
             %d = tensor.transpose %e

    Hopper's asynchronous products have 64 rows at least and 8 columns. One with fewer rows is made of the products of
    the generation before, which wait for both operands to come to registers. `mode` is "off" or "auto": on sm_90, with
    16-bit operands and 64 columns or more, if the left operand is the transpose of something computed, which goes
    through shared memory in any case, if the right one is loaded, and if what is added to is a constant. The queries'
    part of attention backward has this form: with blocks of 32 queries a kernel for windows went from 429 to 382 us on
    an H200 by this alone, one for causal attention from 2.71 to 2.62 ms (Triton 3.6, 128 columns).
    Needs:   pad-tiles: extents are final.
    """

    name = "transpose-products"
    mode: str = "auto"

    def run(self, program: Program) -> None:
        check_choice(self, "mode", MODES)
        target = program.target
        if self.mode == "off" or target is None or target.arch != MEASURED_ARCH:
            return
        for kernel in tile.kernels(program.root):
            if not targets_gluon(kernel) and kernel.threads >= WARPGROUP:
                for op in of_kinds(kernel.walk(), tensor.DotOp):
                    if _gains(op):
                        _transpose(op)


def _gains(op: tensor.DotOp) -> bool:
    (rows, columns), left = op.out.shape, op.a.op
    return (
        rows < ASYNCHRONOUS_ROWS <= columns
        and all(ELEMENTS[value.dtype].bits == 16 for value in (op.a, op.b))
        and isinstance(left, tensor.TransposeOp)
        and not isinstance(_source(left.source).op, _LOADS)
        and isinstance(_source(op.b).op, _LOADS)
        and constant_of(op.accumulator) is not None
    )


def _source(value: Value) -> Value:
    """What a tile is before it is cast, transposed or reshaped."""
    return stripped(value, arith.CastOp, tensor.TransposeOp, tensor.ReshapeOp)


def _transpose(op: tensor.DotOp) -> None:
    at = Builder.at(op)
    a, b, accumulator = (_flipped(at, value) for value in (op.b, op.a, op.accumulator))
    product = at.insert(tensor.DotOp(a, b, accumulator, precision=op.precision)).result
    operands = op.operands
    op.out.replace_with(_flipped(at, product))
    op.erase()
    erase_sources(operands)


def _flipped(at: Builder, value: Value) -> Value:
    if isinstance(value.op, tensor.TransposeOp):
        return value.op.source
    number = constant_of(value)
    if number is not None:
        return at.constant(number, TensorType(value.shape[::-1], value.dtype))
    return permuted(at, value, (1, 0))
