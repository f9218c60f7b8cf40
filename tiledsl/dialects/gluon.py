"""What the Gluon emitter needs beside the tile level: boxes of global memory that the TMA unit moves, and row parts.

A kernel whose option `emitter` is "gluon" is written for several consumers: each runs the whole body for its own part
of the block's rows, and `gluon.part` says which one it is. Its loads of boxes are done by one producer for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.ir.core import Effect, Operation
from tiledsl.ir.fields import attr, operand, operands, result
from tiledsl.ir.types import BufferType, ScalarType, TensorType, Type


class WarpGroupIdOp(Operation):
    """Which consumer this is, from 0 to parts - 1. Example: `%part = gluon.part {parts = 2} : int32`"""

    name = "gluon.part"
    parts = attr(int)
    out = result(ScalarType)

    def infer(self) -> Sequence[Type]:
        return [ScalarType("int32")]


class WorkItemOp(Operation):
    """Which of `items` work items a program is at: it takes all whose number is its own modulo the number of programs.

    Example: `%item = gluon.item %items : int32`
    """

    name = "gluon.item"
    items = operand(ScalarType)
    out = result(ScalarType)

    def infer(self) -> Sequence[Type]:
        return [ScalarType("int32")]


class LongestFirstOp(Operation):
    """A block of a grid of `extent` times `others` blocks, which takes the longer, the greater its `index` is.

    What follows in the body runs for each block that a program takes. First these are pairs of a long and a short one,
    which all take equally long. Where they do not go round, the blocks of the last of the `others` are taken one by
    one, the longest first, so that all programs end at about the same time.

    Example: `%bx, %rest = gluon.balanced %extent, %others : int32, int32`
    """

    name = "gluon.balanced"
    extent = operand(ScalarType)
    others = operand(ScalarType)
    index = result(ScalarType)
    rest = result(ScalarType)

    def infer(self) -> Sequence[Type]:
        return [ScalarType("int32"), ScalarType("int32")]


class LoadBoxOp(Operation):
    """A box of a global buffer from `offsets` on: dimension i of the result walks along dimension axes[i].

    What lies outside of the buffer reads 0. Offsets are int32, one for each dimension.

    Example: `%k = gluon.load_box %K[%b, %h, %row, %zero] {axes = (2, 3)} : tensor<128x64xfloat16>`
    """

    name = "gluon.load_box"
    effects = Effect.READ
    buffer = operand(BufferType, ScalarType)
    offsets = operands(ScalarType)
    axes = attr(tuple)
    out = result(TensorType)

    def verify(self) -> None:
        _fits(self.buffer.type, len(self.offsets), self.axes, self.out.type)


class StoreBoxOp(Operation):
    """Writes a box of a global buffer from `offsets` on; what lies outside of the buffer is not written.

    `in_query`: on its way it lies where the kernel's first operand was, which must be no longer needed.

    Example: `gluon.store_box %x, %O[%b, %h, %row, %zero] {axes = (2, 3)}`
    """

    name = "gluon.store_box"
    effects = Effect.WRITE
    value = operand(TensorType)
    buffer = operand(BufferType, ScalarType)
    offsets = operands(ScalarType)
    axes = attr(tuple)
    in_query = attr(bool, False)

    def verify(self) -> None:
        _fits(self.buffer.type, len(self.offsets), self.axes, self.value.type)


class RescaleOp(Operation):
    """An accumulator times one factor for each row, which may wait for whatever comes before the next product.

    `skip`: a warp whose factors are all 1 leaves the multiplication out.

    Example: `%scaled = gluon.rescale %acc, %factor {skip = true} : tensor<64x128xfloat32>`
    """

    name = "gluon.rescale"
    accumulator = operand(TensorType)
    factor = operand(TensorType)
    skip = attr(bool, False)
    out = result(TensorType)

    def infer(self) -> Sequence[Type]:
        return [self.accumulator.type]

    def verify(self) -> None:
        rows = self.accumulator.shape[0]
        if len(self.accumulator.shape) != 2 or self.factor.shape not in ((rows,), (rows, 1)):
            raise ValueError(f"{self.factor.type} for the rows of {self.accumulator.type}")
        if self.out.type != self.accumulator.type or self.factor.dtype != self.out.dtype:
            raise ValueError(f"{self.accumulator.type} times {self.factor.type} gives {self.out.type}")


def targets_gluon(op: Operation) -> bool:
    """Whether a kernel or a launch is to be written by the Gluon emitter: select-emitter has prepared it."""
    return dict(op.attributes.get("options", ())).get("emitter") == "gluon"


def box(op: LoadBoxOp | StoreBoxOp) -> tuple[int, ...]:
    """The extents of the box, one for each dimension of the buffer."""
    shape = op.out.shape if isinstance(op, LoadBoxOp) else op.value.shape
    extents = [1] * len(op.offsets)
    for axis, extent in zip(op.axes, shape, strict=True):
        extents[axis] = extent
    return tuple(extents)


def _fits(buffer: Type, rank: int, axes: tuple[int, ...], tile: Type) -> None:
    if len(axes) != len(tile.shape) or list(axes) != sorted(set(axes)) or not all(0 <= axis < rank for axis in axes):
        raise ValueError(f"axes {axes} for a box {tile} of {rank} dimensions")
    if isinstance(buffer, BufferType) and (len(buffer.shape) != rank or buffer.dtype != tile.dtype):
        raise ValueError(f"{rank} offsets and {tile} for {buffer}")
