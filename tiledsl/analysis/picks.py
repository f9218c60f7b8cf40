"""One place of an axis, picked by a sum."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Value
from tiledsl.ir.types import ELEMENTS, is_integer


@dataclass(frozen=True)
class Pick:
    """A sum along an axis of which all elements but those at one place are 0."""

    reduction: tensor.ReduceOp
    tile: Value  # before a cast of what is picked
    place: Value  # along the axis, a scalar


def pick_of(reduction: tensor.ReduceOp) -> Pick | None:
    """sum(iota of the axis == place ? x : 0), where the place may be none of the axis."""
    cast = reduction.source.op
    selection = cast.source.op if isinstance(cast, arith.CastOp) else cast
    if reduction.kind not in ("sum", "or") or not isinstance(selection, arith.SelectOp):
        return None
    tile = selection.on_true
    if tile.shape != reduction.source.shape or constant_of(selection.on_false) not in (0, False):
        return None
    place = place_of(selection.condition, reduction.axis)
    return None if place is None else Pick(reduction, tile, place)


def place_of(condition: Value, axis: int) -> Value | None:
    """The scalar that iota of an axis is compared with: where on the axis a condition holds, and nowhere else."""
    hit = condition.op
    if not isinstance(hit, arith.CmpOp) or hit.predicate != "eq" or hit.rhs.shape:
        return None
    lane = hit.lhs.op.source.op if isinstance(hit.lhs.op, arith.CastOp) else hit.lhs.op
    if not isinstance(lane, tensor.IotaOp) or lane.axis != axis:
        return None
    if not is_integer(hit.lhs.dtype) or lane.extent >= 1 << ELEMENTS[hit.lhs.dtype].bits - 1:
        return None  # places that are alike, or an end that is no number of the type
    return hit.rhs
