"""Tiles that are no power of two long, as sums of parts that are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import tensor, tile
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.types import TensorType
from tiledsl.location import UNKNOWN
from tiledsl.passes.canonicalize import canonicalize
from tiledsl.passes.simplify_ranges import RANGE_PATTERNS
from tiledsl.passes.specs import check_choice
from tiledsl.passes.split_tiles.dims import Dims, Kept
from tiledsl.passes.split_tiles.pieces import Pieces

MODES = ("auto", "off", "all")


@dataclass(frozen=True)
class SplitTiles(Pass):
    """Divide tiles whose dimensions are sums of two or three powers of two, such as 192 = 128 + 64.

    Before:  %v = tile.load %V[%rows, %i] : tensor<64x192xfloat16>         (%i = tensor.iota : tensor<1x192xint32>)
             %o = tensor.dot %p, %v, %acc : tensor<64x192xfloat32>
    After:   %v = tile.load %V[%rows, %i] : tensor<64x128xfloat16>
             %v_128 = tile.load %V[%rows, %j] : tensor<64x64xfloat16>      (%j = %i + 128)
             %o = tensor.dot %p, %v, %acc : tensor<64x128xfloat32>
             %o_128 = tensor.dot %p, %v_128, %acc_128 : tensor<64x64xfloat32>

    Dimensions are divided together where elements are combined one by one, in products, in accesses, and in what loops
    and branches carry. What a product sums over is added up part by part, the greatest first, and reductions along such
    a dimension are combined. It is done where products have these dimensions, or where parts of tiles are taken that
    are parts here too; where padding would add 1/8 at least; and where nothing goes along the dimension, as scans,
    sorts and gathers do: then all of these tiles are padded, and a remark says why. `mode` is "auto", "off", or "all":
    whatever can be divided, at any size.
    Needs:   promote-buffers, guard-accesses. Runs before pad-tiles, which pads what is left.
    """

    name = "split-tiles"
    mode: str = "auto"

    def allowances(self, program: Program) -> frozenset[str]:
        divided = [dims for dims, _ in self._divided(program)]
        return frozenset({"reassociation"} if any(dims.divides_sums for dims in divided) else ())

    def run(self, program: Program) -> None:
        check_choice(self, "mode", MODES)
        divided = self._divided(program)
        for dims, kernel in divided:
            for size, kept in dims.staying:
                kernel.add_remark(_remark(size, kept))
        _divide(program.root, [dims for dims, _ in divided], Ranges(program.root))

    def _divided(self, program: Program) -> list[tuple[Dims, tile.KernelOp]]:
        """The dimensions of the kernels that may have some to divide."""
        if self.mode == "off":
            return []
        every = self.mode == "all"
        kernels = [op for op in tile.kernels(program.root) if not targets_gluon(op) and _may_gain(op, every)]
        return [(Dims(kernel, every=every), kernel) for kernel in kernels]


def divide_columns(kernel: tile.KernelOp, halved: Iterable[Value] = ()) -> None:
    """Divide tiles of a kernel's products, but none of these products' rows; the columns of some into halves."""
    _divide(kernel, [Dims(kernel, whole_rows=True, halved=halved)], Ranges.around(kernel))


def sums_in_parts(kernel: tile.KernelOp, halved: Iterable[Value] = ()) -> bool:
    """Whether `divide_columns` would add up floats part by part."""
    return Dims(kernel, whole_rows=True, halved=halved).divides_sums


def _divide(root: Operation, found: Sequence[Dims], ranges: Ranges) -> None:
    divided = [dims for dims in found if dims.cuts]
    for dims in divided:
        Pieces(dims).run()
    if divided:
        canonicalize(root, RANGE_PATTERNS, ranges)


def _may_gain(kernel: tile.KernelOp, every: bool) -> bool:
    """Whether some product or gather, or with `every` any operation, has a dimension that is no power of two."""
    found = (op for op in kernel.body.walk() if every or type(op) in (tensor.DotOp, tensor.GatherOp))
    shapes = {value.shape for op in found for value in (*op.operands, *op.results) if type(value.type) is TensorType}
    return any(size & (size - 1) for shape in shapes for size in shape)


def _remark(size: int, kept: Kept) -> str:
    place = "" if kept.op.loc is UNKNOWN else f" ({os.path.basename(kept.op.loc.file)}:{kept.op.loc.line})"
    return f"tiles of {size} elements are padded to {1 << size.bit_length()}, not divided: {kept.reason}{place}"
