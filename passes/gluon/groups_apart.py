"""Groups of four warps that run apart: each has its rows or columns of every product. Part of select-emitter.

They exchange what products read of others' rows, computed operands, through shared memory with a barrier.
"""

from __future__ import annotations

from tiledsl.analysis.gluon.alternation import GROUPS
from tiledsl.analysis.gluon.schedule import block, other_readers, share, shared_axis
from tiledsl.analysis.gluon.tile_loops import NotRecognised, TileLoops
from tiledsl.dialects import arith, tensor, tile
from tiledsl.ir.core import Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.types import ELEMENTS, TensorType

WARPS = 4 * GROUPS
_SWIZZLED = 128  # bytes of a row that lie together in shared memory: a part of a tile has no less
_MOVED = (tensor.DotOp, tensor.TransposeOp, tile.StoreBlockOp, arith.ConstantOp, arith.CastOp)


def divide_among_groups(body: Region, found: TileLoops, warps: int) -> None:
    """Send boxes in pieces, one for each group. Raises NotRecognised where one group would need another's elements of
    more than products' operands."""
    first = found.products[0]
    if warps != WARPS:
        raise NotRecognised(f"groups of warps run apart in blocks of {32 * WARPS} threads, not {32 * warps}", first)
    for store in of_kinds(body.walk(), tile.StoreBlockOp):
        shape = store.value.shape
        own = share(shape, shared_axis(shape, warps), GROUPS)
        store.set_attribute("pieces", tuple(all_ // each for all_, each in zip(shape, own, strict=True)))
    by_columns = {shape for shape in found.tiles if shared_axis(shape, warps)}

    def is_part(value: Value) -> bool:
        return isinstance(value.type, TensorType) and value.shape in by_columns and block(value) is None

    for op in body.walk():
        if not isinstance(op, _MOVED) and any(map(is_part, (*op.results, *op.operands))):
            raise NotRecognised(
                "of a product whose columns are divided among groups of warps something is computed", op
            )
        others = other_readers(op) if isinstance(op, tile.LoadBlockOp) and op.out.shape[0] > 1 else []
        if others:
            raise NotRecognised("groups of warps that run apart read loaded tiles in products alone", others[0])
    for product in found.products:
        columns = product.out.shape[1] // GROUPS * ELEMENTS[product.b.dtype].bits // 8
        if product.out.shape in by_columns and columns < _SWIZZLED:
            raise NotRecognised(f"groups of warps would have {columns} bytes of a row, less than {_SWIZZLED}", product)
