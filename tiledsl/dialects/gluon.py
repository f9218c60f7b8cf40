"""What the Gluon emitter needs beside the tile level: row parts, work items and rescaling.

A kernel whose option `emitter` is "gluon" is written for several consumers: each runs the whole body for its own part
of the block's rows, and `gluon.warp_group_id` says which one it is. One producer loads blocks for all.
"""

from __future__ import annotations

from typing import TypeAlias

from tiledsl.dialects import tile, triton
from tiledsl.ir.core import Effect, Operation, Region
from tiledsl.ir.fields import attr, operand, result
from tiledsl.ir.types import INT32, ScalarType, TensorType

FORMS = ("skewed", "added", "fresh", "paired", "ordered")
BlockAccess: TypeAlias = tile.LoadBlockOp | tile.StoreBlockOp | triton.LoadBlockOp | triton.StoreBlockOp


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

    Forms: "skewed": row-wise updates between two products, of which the second waits for the next turn's first one;
    "added": products that are added to what the loop carries; "fresh": products from zero, each awaited before it is
    used; "paired": two of these in flight; "ordered": products of any kind, which one group of all warps issues one
    after another and awaits where their results are used. In all of them the body's operations stand in the order of
    their text, and in all but the last gluon.cluster divides them.

    runs: for each loop, whether it certainly has a turn. query_in_registers: whether the left operand of the first
    product is loaded to registers once. packed: whether the left operand of the second product is handed on to the next
    turn two elements in a register. in_flight: for each ordered loop, the numbers of carried values that are products
    which the next turn awaits.

    Example: `gluon.schedule {form = "skewed", runs = (true, false), query_in_registers = true}`
    """

    name = "gluon.schedule"
    effects = Effect.ORDERED
    form = attr(str, known=FORMS)
    runs = attr(tuple)
    query_in_registers = attr(bool, False)
    packed = attr(bool, False)
    in_flight = attr(tuple, ())

    def verify(self) -> None:
        if {*map(type, self.runs)} - {bool}:
            raise ValueError(f"runs is {self.runs}, not a truth value for each loop")
        if self.form != "skewed" and (self.query_in_registers or self.packed):
            raise ValueError(f"only a skewed loop keeps operands in registers, not one that is {self.form}")
        if len(self.in_flight) != (len(self.runs) if self.form == "ordered" else 0):
            raise ValueError(f"in_flight is {self.in_flight} for {len(self.runs)} loops that are {self.form}")


class ClusterOp(Operation):
    """Begins a cluster: operations of a loop's body that are issued together, up to the next cluster or the end.

    `stage`: so many turns after the loop's own (as in Triton's pipelined loops).

    Example: `gluon.cluster {stage = 1}`
    """

    name = "gluon.cluster"
    effects = Effect.ORDERED
    stage = attr(int, 0)

    def verify(self) -> None:
        if self.stage not in (0, 1):
            raise ValueError(f"stage {self.stage}; a loop holds back operations for one turn at most")


def clusters(body: Region) -> list[tuple[int, list[Operation]]]:
    """The stage and the operations of each cluster of a loop's body, without the terminator."""
    found: list[tuple[int, list[Operation]]] = []
    for op in body:
        if isinstance(op, ClusterOp):
            found.append((op.stage, []))
        elif found and not op.is_terminator:
            found[-1][1].append(op)
    return found


def targets_gluon(op: Operation) -> bool:
    """Whether a kernel or a launch is to be written by the Gluon emitter: select-emitter has prepared it."""
    return dict(op.attributes.get("options", ())).get("emitter") == "gluon"


def box(op: BlockAccess) -> tuple[int, ...]:
    """The extents of the block that an operation moves, one for each dimension that it has a start in."""
    shape = op.results[0].shape if op.results else op.operands[0].shape
    extents = [1] * len(op.starts)
    for axis, extent in zip(op.axes or range(len(extents)), shape, strict=True):
        if axis >= 0:
            extents[axis] = extent
    return tuple(extents)
