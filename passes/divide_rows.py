"""Giving a kernel's block some of its rows."""

from __future__ import annotations

from collections.abc import Set

from tiledsl.dialects import arith, tensor, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BufferType, TensorType


def divide_rows(
    kernel: tile.KernelOp, first: Value, all_rows: int, rows: int, undivided: Set[Operation] = frozenset()
) -> None:
    """Compute `rows` of a block's rows, those from `first` on, in every type and in everything that counts rows."""
    for op in list(kernel.walk()):
        if op in undivided:
            continue
        if isinstance(op, tensor.TransposeOp):  # on its way to memory
            op.out.set_type(TensorType((op.out.shape[0], op.source.shape[0]), op.out.dtype))
            continue
        for value in (*op.results, *(arg for region in op.regions for arg in region.args)):
            _narrow(value, all_rows, rows)
        if isinstance(op, tensor.IotaOp) and op.out.shape[0] == rows:
            moved = arith.AddOp(first, op.out)
            assert op.parent is not None
            op.parent.insert(moved, op.next)
            moved.loc = op.loc
            op.out.replace_with(moved.result)
            moved.set_operands([first, op.out])
        if isinstance(op, (tile.LoadBlockOp, tile.StoreBlockOp)):
            here = Builder.at(op)
            starts = list(op.starts)
            turned = isinstance(op, tile.StoreBlockOp) and isinstance(op.value.op, tensor.TransposeOp)
            axis = op.axes[1 if turned else 0]
            starts[axis] = here.insert(arith.AddOp(starts[axis], first)).result
            op.set_field("starts", starts)


def _narrow(value: Value, before: int, after: int) -> None:
    shape = value.shape if not isinstance(value.type, BufferType) else ()
    if shape and shape[0] == before:
        value.set_type(TensorType((after, *shape[1:]), value.dtype))
