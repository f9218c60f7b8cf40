"""The last level before Triton source: launches of isolated kernels, program ids and pointer accesses.

Elementwise and tensor operations and structured control flow stay as they are and are emitted directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.ir.core import Effect, Operation, attr, operand, operands, optional, region, result
from tiledsl.ir.types import ScalarType, TensorType, Type, broadcast_shapes, is_pointer, with_shape


class LaunchOp(Operation):
    """Launches a kernel over a grid. The body sees nothing but its arguments, one for each of `arguments`.

    Buffers among `arguments` are seen inside as pointers to their first element. `options` are (name, value) pairs
    for the launch: num_warps, num_stages, num_ctas, maxnreg.

    Example: `triton.launch [%gx], [%A, %n] {sym_name = "copy_kernel"} (%A_ptr: *float16, %size: int32) { ... }`
    """

    name = "triton.launch"
    effects = Effect.REGION | Effect.ORDERED
    grid = operands(ScalarType)
    arguments = operands()
    sym_name = attr(str)
    options = attr(tuple, ())
    body = region()

    def verify(self) -> None:
        if len(self.body.args) != len(self.arguments):
            raise ValueError(f"{len(self.arguments)} arguments for {len(self.body.args)} parameters")


class ProgramIdOp(Operation):
    """The block's index along one grid dimension. Example: `%bx = triton.program_id {axis = 0} : int32`"""

    name = "triton.program_id"
    axis = attr(int)
    out = result(ScalarType)

    def infer(self) -> Sequence[Type]:
        return [ScalarType("int32")]


class AddPtrOp(Operation):
    """Moves pointers by so many elements. Example: `%p = triton.addptr %A, %offsets : tensor<128x64x*float16>`"""

    name = "triton.addptr"
    pointer = operand(ScalarType, TensorType)
    offset = operand(ScalarType, TensorType)
    out = result(ScalarType, TensorType)

    def infer(self) -> Sequence[Type]:
        shape = broadcast_shapes(self.operands[0].shape, self.operands[1].shape)
        assert shape is not None, "pointer and offset do not broadcast"
        return [with_shape(shape, self.operands[0].dtype)]

    def verify(self) -> None:
        if not is_pointer(self.pointer.dtype) or self.offset.dtype not in ("int32", "int64"):
            raise ValueError(f"{self.pointer.type} moved by {self.offset.type}")


class LoadOp(Operation):
    """`*pointer` where the mask holds, else `other` (undefined if absent).

    Example: `%x = triton.load %p mask=%m : int32`
    """

    name = "triton.load"
    effects = Effect.READ
    pointer = operand(ScalarType, TensorType)
    mask = optional(ScalarType, TensorType)
    other = optional(ScalarType, TensorType)
    cache = attr(str, "")
    eviction = attr(str, "")
    out = result(ScalarType, TensorType)

    def infer(self) -> Sequence[Type]:
        return [with_shape(self.operands[0].shape, self.operands[0].dtype[1:])]


class StoreOp(Operation):
    """`*pointer = value` where the mask holds. Example: `triton.store %p, %x mask=%m`"""

    name = "triton.store"
    effects = Effect.WRITE
    pointer = operand(ScalarType, TensorType)
    value = operand(ScalarType, TensorType)
    mask = optional(ScalarType, TensorType)
    cache = attr(str, "")
    eviction = attr(str, "")


class AtomicOp(Operation):
    """See tile.atomic. Example: `%old = triton.atomic %p, %x mask=%m {kind = "add"} : tensor<128xfloat32>`"""

    name = "triton.atomic"
    effects = Effect.READ | Effect.WRITE
    pointer = operand(ScalarType, TensorType)
    value = operand(ScalarType, TensorType)
    mask = optional(ScalarType, TensorType)
    kind = attr(str)
    semantics = attr(str, "relaxed")
    out = result(ScalarType, TensorType)

    def infer(self) -> Sequence[Type]:
        return [with_shape(self.operands[0].shape, self.operands[0].dtype[1:])]
