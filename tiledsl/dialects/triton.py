"""The last level before Triton source: launches of isolated kernels, program ids and pointer accesses.

Elementwise and tensor operations and structured control flow stay as they are and are emitted directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.dialects import tile
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.ir.fields import attr, operand, operands, optional, region, result
from tiledsl.ir.types import INT32, BufferType, ScalarType, TensorType, Type, broadcast_shapes, with_shape
from tiledsl.launch_options import LAUNCH_OPTIONS

OURS = ("emitter", "groups", "triggers", "awaits", "along")  # options of a launch that Triton is not told


class LaunchOp(Operation):
    """Launches a kernel over a grid. The body sees nothing but its arguments, one for each of `arguments`.

    Buffers among `arguments` are seen inside as pointers to their first element, results of `triton.descriptor` as
    descriptors, of which load_block and store_block know. `options` are (name, value) pairs for the launch: num_warps,
    num_stages, num_ctas, maxnreg, launch_pdl; and who writes the kernel: `emitter`, for Gluon with as many `groups` of
    num_warps, which run apart; `triggers`: the next kernel may begin; `awaits`: where it waits for the one before, if
    not at its start; `along`: what warps lie along. `remarks` are sentences for people. `unspecialized` are the numbers
    of arguments for whose values Triton need not compile anew.

    Example: `triton.launch [%gx], [%A, %n] {sym_name = "copy_kernel"} (%A_ptr: *float16, %size: int32) { ... }`
    """

    name = "triton.launch"
    effects = Effect.REGION | Effect.ORDERED
    grid = operands(ScalarType)
    arguments = operands()
    sym_name = attr(str)
    options = attr(tuple, ())
    remarks = attr(tuple, ())
    unspecialized = attr(tuple, ())
    body = region()

    @property
    def warps(self) -> int:
        """Of each program, in all groups; four, as in Triton, where the options say nothing."""
        return int(dict(self.options).get("num_warps", 4)) * self.groups

    @property
    def groups(self) -> int:
        """The groups of warps that run apart, and wait for each other only where they exchange tiles."""
        return int(dict(self.options).get("groups", 1))

    def verify(self) -> None:
        if len(self.body.args) != len(self.arguments):
            raise ValueError(f"{len(self.arguments)} arguments for {len(self.body.args)} parameters")
        tile.check_name(self.sym_name)
        tile.check_options(self.options)
        for name, _ in self.options:
            if name not in (*LAUNCH_OPTIONS, *OURS):
                raise ValueError(f"a launch has no option {name!r}")


class DescriptorOp(Operation):
    """On the host: what the tensor memory accelerator must know of a buffer, to move blocks of this shape.

    Dimension i of the descriptor is dimension dims[i] of the buffer; the last one is contiguous. With `swizzle`, blocks
    lie in shared memory in a layout that the kernel knows, as Gluon wants it: rows swizzled by so many bytes, and with
    `in_fours` in the order of load_block.

    Example: `%A_block = triton.descriptor %A {block = (128, 64), dims = (0, 1)} : buffer<300*512*float16, global>`
    """

    name = "triton.descriptor"
    buffer = operand(BufferType)
    block = attr(tuple)
    dims = attr(tuple)
    swizzle = attr(int, 0)
    in_fours = attr(bool, False)
    out = result(BufferType, like=buffer)

    def verify(self) -> None:
        assert isinstance(self.buffer.type, BufferType)
        rank = len(self.buffer.type.shape)
        if sorted(self.dims) != list(range(rank)) or len(self.block) != rank:
            raise ValueError(f"block {self.block} with dims {self.dims} of {self.buffer.type}")
        if {*map(type, self.block)} != {int}:
            raise ValueError(f"block {self.block} is not of numbers")


class MultiprocessorsOp(Operation):
    """On the host: how many multiprocessors the device has. Example: `%sms = triton.multiprocessors : int32`"""

    name = "triton.multiprocessors"
    out = result(ScalarType, like=INT32)


class ProgramIdOp(Operation):
    """The block's index along one grid dimension. Example: `%bx = triton.program_id {axis = 0} : int32`"""

    name = "triton.program_id"
    axis = attr(int)
    out = result(ScalarType, like=INT32)


class NumProgramsOp(Operation):
    """How many blocks lie along one grid dimension. Example: `%n = triton.num_programs {axis = 0} : int32`"""

    name = "triton.num_programs"
    axis = attr(int)
    out = result(ScalarType, like=INT32)


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
        if not self.pointer.dtype.startswith("*") or self.offset.dtype not in ("int32", "int64"):
            raise ValueError(f"{self.pointer.type} moved by {self.offset.type}")


class LoadOp(Operation):
    """`*pointer` where the mask holds, else `other` (undefined if absent).

    ring: where the loop keeps it in shared memory (hold-tiles); behind: what the ring's own load had so many turns ago;
    whole: nothing uses what the mask leaves out.

    Example: `%x = triton.load %p mask=%m : int32`
    """

    name = "triton.load"
    effects = Effect.READ
    pointer = operand(ScalarType, TensorType)
    mask = optional(ScalarType, TensorType)
    other = optional(ScalarType, TensorType)
    cache = attr(str, "", tile.CACHE_HINTS)
    eviction = attr(str, "", tile.EVICTION_HINTS)
    ring = attr(str, "")
    behind = attr(int, 0)
    whole = attr(bool, False)
    out = result(ScalarType, TensorType)

    def infer(self) -> Sequence[Type]:
        return [with_shape(self.operands[0].shape, self.operands[0].dtype[1:])]

    def verify(self) -> None:
        check_pointer(self.pointer)
        if self.out.shape != self.pointer.shape:
            raise ValueError(f"{self.out.type} through {self.pointer.type}")
        tile.check_elements(self.pointer.dtype[1:], self.mask, self.out, self.other)


def check_pointer(pointer: Value) -> None:
    """ValueError for what is no pointer."""
    if not pointer.dtype.startswith("*"):
        raise ValueError(f"{pointer.type} is no pointer")


class StoreOp(Operation):
    """`*pointer = value` where the mask holds. Example: `triton.store %p, %x mask=%m`"""

    name = "triton.store"
    effects = Effect.WRITE
    pointer = operand(ScalarType, TensorType)
    value = operand(ScalarType, TensorType)
    mask = optional(ScalarType, TensorType)
    cache = attr(str, "", tile.CACHE_HINTS)
    eviction = attr(str, "", tile.EVICTION_HINTS)

    def verify(self) -> None:
        check_pointer(self.pointer)
        tile.check_elements(self.pointer.dtype[1:], self.mask, self.value)


class LoadBlockOp(Operation):
    """A block through a descriptor from `starts`; what lies outside the buffer is 0.

    The result has the block's shape. With `axes`, for Gluon alone, its dimension i is the block's dimension axes[i],
    and the others, of size 1, are left out. `ring`: see tile.load_block. `in_fours`: of n rows in shared memory, row
    4g + 2a + b lies at a n/2 + 2g + b; the result is what it would be without (analysis/gluon/words.py).

    Example: `%x = triton.load_block %A[%m, %k] : tensor<128x64xfloat16>`
    """

    name = "triton.load_block"
    effects = Effect.READ
    descriptor = operand(ScalarType)
    starts = operands(ScalarType)
    axes = attr(tuple, ())
    ring = attr(str, "")
    in_fours = attr(bool, False)
    out = result(TensorType)

    def verify(self) -> None:
        _block(self.descriptor, self.starts, self.axes, self.out)


class StoreBlockOp(Operation):
    """Writes a block through a descriptor, or adds to it; what lies outside the buffer is dropped. See LoadBlockOp.

    Example: `triton.store_block %x, %C[%m, %n]`
    """

    name = "triton.store_block"
    effects = Effect.WRITE
    value = operand(TensorType)
    descriptor = operand(ScalarType)
    starts = operands(ScalarType)
    axes = attr(tuple, ())
    ring = attr(str, "")
    add = attr(bool, False)
    pieces = attr(tuple, ())
    places = attr(int, 1)

    def verify(self) -> None:
        _block(self.descriptor, self.starts, self.axes, self.value)


def _block(descriptor: Value, starts: Sequence[Value], axes: tuple[int, ...], block: Value) -> None:
    if descriptor.dtype != "*" + block.dtype or not axes and len(starts) != len(block.shape):
        raise ValueError(f"{len(starts)} starts for a block {block.type} through {descriptor.type}")
    walked = [axis for axis in axes if axis >= 0]
    if axes and (len(axes) != len(block.shape) or walked != sorted({*walked} & {*range(len(starts))})):
        raise ValueError(f"axes {axes} for a block {block.type} of {len(starts)} dimensions")


class AtomicOp(Operation):
    """See tile.atomic. Example: `%old = triton.atomic %p, %x mask=%m {kind = "add"} : tensor<128xfloat32>`"""

    name = "triton.atomic"
    effects = Effect.READ | Effect.WRITE
    pointer = operand(ScalarType, TensorType)
    value = operand(ScalarType, TensorType)
    mask = optional(ScalarType, TensorType)
    compare = optional(ScalarType, TensorType)
    kind = attr(str, known=tile.ATOMIC_KINDS)
    semantics = attr(str, "relaxed", tile.MEMORY_ORDERS)
    out = result(ScalarType, TensorType)

    def infer(self) -> Sequence[Type]:
        return [with_shape(self.operands[0].shape, self.operands[0].dtype[1:])]

    def verify(self) -> None:
        check_pointer(self.pointer)
        tile.check_elements(self.pointer.dtype[1:], self.mask, self.out, self.value)
        tile.check_compare(self.kind, self.compare, self.value)
