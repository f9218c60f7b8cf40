"""What the Gluon emitter needs beside the tile level: row parts, work items and rescaling.

A kernel whose option `emitter` is "gluon" is written for several consumers: each runs the whole body for its own part
of the block's rows, and `gluon.warp_group_id` says which one it is. One producer loads blocks for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

from tiledsl.dialects import tile, triton
from tiledsl.ir.core import Effect, Operation, Region
from tiledsl.ir.fields import attr, operand, result
from tiledsl.ir.types import INT32, ScalarType, TensorType

Gather: TypeAlias = tile.LoadOp | triton.LoadOp
TileLoad: TypeAlias = tile.LoadBlockOp | triton.LoadBlockOp | Gather
TileAccess: TypeAlias = TileLoad | tile.StoreBlockOp | triton.StoreBlockOp


class WarpGroupIdOp(Operation):
    """Which consumer this is, from 0 to parts - 1. Example: `%part = gluon.warp_group_id {parts = 2} : int32`"""

    name = "gluon.warp_group_id"
    parts = attr(int)
    out = result(ScalarType, like=INT32)


class WorkItemOp(Operation):
    """Which of `items` work items a program is at: it takes all whose number is its own modulo the number of programs.

    Example: `%item = gluon.work_item_id %items : int32`
    """

    name = "gluon.work_item_id"
    items = operand(ScalarType)
    out = result(ScalarType, like=INT32)


class LongestFirstOp(Operation):
    """A block of a grid of `extent` times `others` blocks, which takes the longer, the greater its `index` is.

    What follows in the body runs for each block that a program takes. First these are pairs of a long and a short one,
    which all take equally long. Where they do not go round, the blocks of the last of the `others` are taken one by
    one, the longest first, so that all programs end at about the same time.

    Example: `%bx, %rest = gluon.longest_first %extent, %others : int32, int32`
    """

    name = "gluon.longest_first"
    extent = operand(ScalarType)
    others = operand(ScalarType)
    index = result(ScalarType, like=INT32)
    rest = result(ScalarType, like=INT32)


class RescaleOp(Operation):
    """An accumulator times one factor for each row, which may wait for whatever comes before the next product.

    `skip`: a warp whose factors are all 1 leaves the multiplication out.

    Example: `%scaled = gluon.rescale %acc, %factor {skip = true} : tensor<64x128xfloat32>`
    """

    name = "gluon.rescale"
    accumulator = operand(TensorType)
    factor = operand(TensorType)
    skip = attr(bool, False)
    out = result(TensorType, like=accumulator)

    def verify(self) -> None:
        rows = self.accumulator.shape[0]
        if len(self.accumulator.shape) != 2 or self.factor.shape not in ((rows,), (rows, 1)):
            raise ValueError(f"{self.factor.type} for the rows of {self.accumulator.type}")
        if self.out.type != self.accumulator.type or self.factor.dtype != self.out.dtype:
            raise ValueError(f"{self.accumulator.type} times {self.factor.type} gives {self.out.type}")


class ScheduleOp(Operation):
    """How the loops of a launch for Gluon are written. schedule-loops puts it first in the body.

    In each loop that loads or multiplies tiles, gluon.cluster says what is issued when; a product is issued where it
    stands, and awaited where something reads it, or at the end of the turn.

    runs: for each of these loops, whether it certainly has a turn. in_flight: for each, the numbers of carried values
    that are products which the next turn awaits. query_in_registers: whether left operands that are loaded before the
    loops are read to registers once. packed: whether operands that are handed on to the next turn are, two elements in
    a register. in_turns: whether consumers issue the products of a loop that holds some back one after the other, so
    that one computes while the others' products run. alternate: for each of two groups of warps that take the turns of
    the loop in turn, the numbers of the carried values that it adds products to, in all turns.

    Example: `gluon.schedule {runs = (true, false), query_in_registers = true}`
    """

    name = "gluon.schedule"
    effects = Effect.ORDERED
    runs = attr(tuple)
    in_flight = attr(tuple, ())
    query_in_registers = attr(bool, False)
    packed = attr(bool, False)
    in_turns = attr(bool, False)
    alternate = attr(tuple, ())

    def verify(self) -> None:
        if {*map(type, self.runs)} - {bool}:
            raise ValueError(f"runs is {self.runs}, not a truth value for each loop")
        if self.in_flight and len(self.in_flight) != len(self.runs):
            raise ValueError(f"in_flight is {self.in_flight} for {len(self.runs)} loops")


class ClusterOp(Operation):
    """Begins a cluster: operations of a loop's body that are issued together, up to the next cluster or the end.

    `stage`: so many turns after the loop's own; `slot`: which place in a turn of the steady loop (as in Triton's
    pipelined loops). Clusters of one slot follow each other as in the text, which is in the order of dependences.

    Example: `gluon.cluster {stage = 1, slot = 1}`
    """

    name = "gluon.cluster"
    effects = Effect.ORDERED
    stage = attr(int, 0)
    slot = attr(int, 0)

    def verify(self) -> None:
        if self.stage not in (0, 1):
            raise ValueError(f"stage {self.stage}; a loop holds back operations for one turn at most")


@dataclass(frozen=True)
class Cluster:
    """The operations of a cluster."""

    stage: int
    slot: int
    ops: tuple[Operation, ...]


def clusters(body: Region) -> list[Cluster]:
    """The clusters of a loop's body in the order of a turn, without the terminator. A body without any is one."""
    found: list[tuple[int, int, list[Operation]]] = [(0, 0, [])]
    for op in body:
        if isinstance(op, ClusterOp):
            found.append((op.stage, op.slot, []))
        elif not op.is_terminator:
            found[-1][2].append(op)
    made = [Cluster(stage, slot, tuple(ops)) for stage, slot, ops in found if ops]
    return sorted(made, key=lambda cluster: cluster.slot)


def targets_gluon(op: Operation) -> bool:
    """Whether a kernel or a launch is to be written by the Gluon emitter: select-emitter has prepared it."""
    return dict(op.attributes.get("options", ())).get("emitter") == "gluon"


def gathers(op: Operation | None) -> TypeGuard[Gather]:
    """Whether an operation loads a tile to a ring whose rows are no block: threads of the producer copy them."""
    return isinstance(op, (tile.LoadOp, triton.LoadOp)) and bool(op.ring)


def loads_tile(op: Operation | None) -> TypeGuard[TileLoad]:
    """Whether an operation loads a tile to a ring, as a block or row by row."""
    return isinstance(op, (tile.LoadBlockOp, triton.LoadBlockOp)) or gathers(op)


def piece(op: TileAccess) -> tuple[int, ...]:
    """The shape of the tile that an operation moves, or of each of its pieces."""
    if isinstance(op, (tile.LoadBlockOp, triton.LoadBlockOp, tile.LoadOp, triton.LoadOp)):
        return op.out.shape
    shape = op.value.shape
    return tuple(extent // number for extent, number in zip(shape, op.pieces, strict=True)) if op.pieces else shape


def box(op: TileAccess) -> tuple[int, ...]:
    """The extents of the block that an operation moves, or of a piece of it, one for each dimension that it has a start
    in; the shape of a tile that is gathered."""
    shape = piece(op)
    if isinstance(op, (tile.LoadOp, triton.LoadOp)):
        return shape
    extents = [1] * len(op.starts)
    for axis, extent in zip(op.axes or range(len(extents)), shape, strict=True):
        if axis >= 0:
            extents[axis] = extent
    return tuple(extents)


def has_gluon(target: Any) -> bool:
    """Whether Gluon is written for a target: for Hopper."""
    return getattr(target, "kind", None) == "cuda" and target.arch == 90
