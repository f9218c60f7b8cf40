"""Rows that share a warp, in pieces that each thread combines before threads exchange anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tiledsl.analysis.hardware import VECTOR
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, BufferType, ScalarType, Shape, is_float, with_shape
from tiledsl.launch_options import warp_size
from tiledsl.passes.tile_values import iota

_TOGETHER = 8  # threads that load a line of the cache
_ADDING = ("sum", "abssum", "prod")
_KNOWN = (
    arith.Elementwise, arith.ConstantOp, tensor.IotaOp, tensor.ReshapeOp, tensor.BroadcastOp, tensor.ReduceOp,
    tile.LoadOp, tile.StoreOp, scf.ForOp, scf.WhileOp, scf.IfOp, scf.YieldOp, scf.ConditionOp,
)  # fmt: skip


@dataclass(frozen=True)
class FoldRows(Pass):
    """Divide rows into pieces, each as wide as a row's threads load at once, and combine the pieces first.

    Before:  %x = tile.load %X[%i, %j] : tensor<8x256xbfloat16>
             %s = tensor.reduce %x {kind = "sum", axis = 1}
    After:   %x = tile.load %X[%i, %j] : tensor<8x4x64xbfloat16>
             %p = tensor.reduce %x {kind = "sum", axis = 1}
             %s = tensor.reduce %p {kind = "sum", axis = 1}

    Triton lays threads along the contiguous dimension first, 16 bytes each: 32 of them along a row of 512 bytes, which
    combine its elements in five exchanges, and that for every row. The next dimension that gets threads is the first,
    so that of a tile of pieces a row has as many threads as it takes for all rows at once, and at least the 8 that load
    a line of the cache; each combines its own elements of all pieces. Kernels are folded whose reductions are all along
    rows of one shape, and which do nothing with tiles but compute, load, store and carry them; not those whose rows
    have no more threads than that anyway, nor those that load and store rows of elements of several widths: Triton lays
    these out differently, and exchanges pieces through shared memory. Sums of floats are added in another order then.
    Measured on an H200, cross-entropy of 8 rows of 256 in a warp: 12 exchanges instead of 80, 130 us instead of 142; of
    4 rows of 1024 for 128 threads 129 instead of 167; norms and softmax of such rows 0.97 to 1.04 of the speed before;
    rows of 128 from float32 to float8 330 us instead of 91.
    The interpreter has no threads, and keeps its rows.
    Needs:   promote-buffers. Runs behind what chooses the number of threads, and before lower-to-triton.
    """

    name = "fold-rows"
    enabled: bool = True

    def allowances(self, program: Program) -> frozenset[str]:
        return frozenset({"reassociation"} if self._rewrite(program.root.clone({}), program.target) else ())

    def run(self, program: Program) -> None:
        self._rewrite(program.root, program.target)

    def _rewrite(self, root: Operation, target: Any) -> bool:
        """Fold the rows of all kernels; return whether floats are added in another order now."""
        reordered = False
        has_warps = target is None or target.kind != "interpret"
        for kernel in tile.kernels(root) if self.enabled and has_warps else ():
            ops = list(kernel.walk())
            pieces = _pieces(kernel, ops, warp_size(target))
            if pieces is not None and all(_is_known(op, pieces) for op in ops):
                reordered |= any(op.kind in _ADDING and is_float(op.out.dtype) for op in of_kinds(ops, tensor.ReduceOp))
                _fold(ops, pieces)
        return reordered


def _pieces(kernel: tile.KernelOp, ops: Sequence[Operation], warp: int) -> Shape | None:
    """How many pieces a row is to have, and how wide they are."""
    reduced = {(op.source.shape, op.axis) for op in of_kinds(ops, tensor.ReduceOp) if len(op.source.shape) == 2}
    if len(reduced) != 1:
        return None
    (((rows, columns), axis),) = reduced
    tiles = [*(op.out for op in of_kinds(ops, tile.LoadOp)), *(op.value for op in of_kinds(ops, tile.StoreOp))]
    widths = {ELEMENTS[each.dtype].bits for each in tiles if each.shape == (rows, columns)}
    if len(widths) != 1 or rows == columns or axis == 0:
        return None
    (bits,) = widths
    threads = int(dict(kernel.options).get("num_warps", kernel.threads // warp)) * warp
    along = columns * bits // VECTOR  # threads, if a row had as many as it has vectors
    wanted = max(_TOGETHER, threads // rows)
    return (along // wanted, columns * wanted // along) if min(along, threads) > wanted else None


def _tiles(op: Operation) -> list[Value]:
    """The tiles that an operation reads or makes, arguments of its regions among them."""
    values = (*op.operands, *op.results, *(arg for region in op.regions for arg in region.args))
    return [value for value in values if not isinstance(value.type, BufferType) and value.shape]


def _is_known(op: Operation, pieces: Shape) -> bool:
    """Whether an operation does to tiles in pieces what it does to tiles of rows."""
    columns, tiles = prod(pieces), _tiles(op)
    if isinstance(op, tensor.ReshapeOp):
        before, after = ([size for size in each.shape if size > 1] for each in (op.source, op.out))
        if before != after or (op.source.shape[-1] == columns) != (op.out.shape[-1] == columns):
            return False
    ranks = all(len(each.shape) == 1 or len(each.shape) == 2 and each.shape[1] in (1, columns) for each in tiles)
    return ranks and (isinstance(op, _KNOWN) or not tiles)


def _folded(shape: Shape, pieces: Shape) -> Shape:
    if shape[-1:] == (prod(pieces),):
        return (*shape[:-1], *pieces)
    return (*shape, 1) if len(shape) == 2 else shape


def _fold(ops: Sequence[Operation], pieces: Shape) -> None:
    columns = prod(pieces)
    reductions = [op for op in of_kinds(ops, tensor.ReduceOp) if op.axis == len(op.source.shape) - 1]
    places = [op for op in of_kinds(ops, tensor.IotaOp) if op.out.shape[-1] == columns]
    for value in dict.fromkeys(value for op in ops for value in _tiles(op)):
        value.set_type(with_shape(_folded(value.shape, pieces), value.dtype))
    for op in reductions:
        part = tensor.ReduceOp(op.source, kind=op.kind, axis=op.axis, propagate_nan=op.propagate_nan)
        op.set_operands([Builder.at(op).insert(part).out])
    for index in places:
        here, rank, dtype = Builder.at(index), len(index.out.shape), index.out.dtype
        piece, place = (iota(here, rank, index.axis + axis, size, dtype) for axis, size in enumerate(pieces))
        first = here.insert(arith.MulOp(piece, here.constant(pieces[1], ScalarType(dtype)))).result
        index.out.replace_with(here.insert(arith.AddOp(first, place, names=[index.out.name])).result)
        index.erase()
