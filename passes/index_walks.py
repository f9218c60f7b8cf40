"""How an access to an on-chip buffer walks along each of its dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Value
from tiledsl.passes.tile_values import Shape


@dataclass(frozen=True)
class Index:
    """How one dimension of the buffer is addressed: by a scalar, by any tensor (general), or regularly.

    The regular walks go along one dimension of the result. identity: all of the buffer's dimension in order; slice:
    from an offset; strided: each so-many-th element; repeated: i // n; wrapped: i % n.
    """

    kind: str  # scalar, identity, slice, strided, repeated, wrapped or general
    value: Value
    axis: int = -1  # of the result, for walks
    extent: int = 1
    offset: Value | int = 0  # of a slice; of a strided walk
    step: int = 1  # of a strided walk; how often a repeated one stays


def classify(indices: Sequence[Value], shape: Shape, *, writes: bool = False) -> list[Index]:
    """The kinds of the indices into a buffer of this shape. Of two walks along one axis, the second is general."""
    made: list[Index] = []
    taken: set[int] = set()
    for index, dim in zip(indices, shape, strict=True):
        one = Index("scalar", index) if not index.shape else _walk(index, dim) or Index("general", index)
        if one.axis in taken or writes and one.kind in ("repeated", "wrapped"):
            one = Index("general", index)
        if one.axis >= 0:
            taken.add(one.axis)
        made.append(one)
    return made


def _walk(index: Value, dim: int) -> Index | None:
    """A regular walk along a dimension of this size."""
    op = index.op
    if isinstance(op, (arith.FloorDivOp, arith.FloorModOp)):
        inner, number = _affine(op.lhs), constant_of(op.rhs)
        if inner is None or number is None or inner[2:] != (1, 0):
            return None
        axis, extent = inner[:2]
        if isinstance(op, arith.FloorDivOp) and extent == dim * number:
            return Index("repeated", index, axis, extent, step=int(number))
        if isinstance(op, arith.FloorModOp) and number == dim and extent % dim == 0:
            return Index("wrapped", index, axis, extent)
        return None
    affine = _affine(index)
    if affine is None:
        return None
    axis, extent, step, offset = affine
    if step == 1:
        whole = extent == dim and isinstance(offset, int) and offset == 0
        return Index("identity" if whole else "slice", index, axis, extent, offset)
    if isinstance(offset, int) and 0 <= offset < step and extent * step == dim:
        return Index("strided", index, axis, extent, offset, step)
    return None


def covers_whole(indices: Sequence[Value], mask: Value | None, shape: Shape) -> bool:
    """Whether a store writes every element of the buffer."""
    return mask is None and all(
        index.kind == "identity" or (dim == 1 and prod(index.value.shape) == 1)
        for index, dim in zip(classify(indices, shape), shape, strict=True)
    )


def _affine(index: Value) -> tuple[int, int, int, Value | int] | None:
    """(axis, extent, step, offset) of offset + step * iota; an offset that is a value only with step 1."""
    op = index.op
    if isinstance(op, tensor.IotaOp):
        return op.axis, op.extent, 1, 0
    if isinstance(op, arith.CastOp):
        inner = _affine(op.source)
        return inner if inner is not None and isinstance(inner[3], int) else None
    if not isinstance(op, (arith.AddOp, arith.SubOp, arith.MulOp)):
        return None
    lhs, rhs = op.lhs, op.rhs
    if op.commutes and (not lhs.shape or constant_of(lhs) is not None):
        lhs, rhs = rhs, lhs
    number, inner = constant_of(rhs), _affine(lhs)
    if inner is None:
        return None
    axis, extent, step, offset = inner
    if number is None:
        plain = isinstance(op, arith.AddOp) and not rhs.shape and step == 1 and isinstance(offset, int) and offset == 0
        return (axis, extent, 1, rhs) if plain else None
    if not isinstance(offset, int):
        return None
    amount = int(number)
    if isinstance(op, arith.MulOp):
        return axis, extent, step * amount, offset * amount
    return axis, extent, step, offset + amount if isinstance(op, arith.AddOp) else offset - amount
