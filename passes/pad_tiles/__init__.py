"""Padding of tiles to powers of two, which Triton requires."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from tiledsl.analysis.hardware import MAX_ELEMENTS
from tiledsl.analysis.padding import Padding
from tiledsl.dialects import arith, tensor, tile
from tiledsl.dialects.arith import Number
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, ScalarType, TensorType, broadcast_shapes, is_float
from tiledsl.passes.pad_tiles.reshape import keeps_order, reshape_by_gather
from tiledsl.passes.tile_values import both, converted

LEAST_DOT = 16  # inner dimension, of 16-bit elements; min_dot_size in triton/backends/nvidia/compiler.py. AMD's is 1


class _Padder:
    """Pads the tiles of one kernel. `sizes` holds the padded sizes that are not simply the next power of two."""

    def __init__(self, kernel: tile.KernelOp, min_dot: int) -> None:
        self.kernel, self.body = kernel, kernel.body
        self.sizes: dict[int, int] = {}
        self.shapes: dict[Value, tuple[int, ...]] = {}  # before padding
        self.padding = Padding()
        self.inside: dict[tuple[int, int, int], Value] = {}
        self.last: Operation | None = None  # the last operation put at the start of the kernel
        for op in of_kinds(kernel.body.walk(), tensor.DotOp):
            self._grow(op, min_dot)

    def padded(self, size: int) -> int:
        return self.sizes.get(size, 1 << (size - 1).bit_length())

    def _grow(self, op: tensor.DotOp, min_dot: int) -> None:
        """Make the inner dimension as large as Triton's dot needs it: 16, or 32 for 8-bit elements."""
        inner = op.a.shape[1]
        bytes_long = any(not is_float(value.dtype) or ELEMENTS[value.dtype].bits == 8 for value in (op.a, op.b))
        least = min_dot * (2 if bytes_long else 1)  # wider integers are multiplied as parts of 8 bits
        if self.padded(inner) >= least:
            return
        if inner > 1:
            self.sizes[inner] = least
            return
        # A dimension of 1 is one that broadcasts, so it cannot grow; but then the product is elementwise.
        builder = Builder.at(op)
        dtype = self._product_dtype(op)
        a, b = (
            builder.insert(arith.CastOp(value, result_types=[TensorType(value.shape, dtype)])).result
            for value in (op.a, op.b)
        )
        product = converted(builder, builder.insert(arith.MulOp(a, b)).result, op.out.dtype)
        op.out.replace_with(builder.insert(arith.AddOp(op.accumulator, product)).result)
        op.erase()

    @staticmethod
    def _product_dtype(op: tensor.DotOp) -> str:
        """An element type of the operands' kind that holds the product of two elements as well as the sum does."""
        if is_float(op.a.dtype) == is_float(op.out.dtype):
            return op.out.dtype
        return "float32" if is_float(op.a.dtype) else "int64"

    def run(self) -> None:
        ops = list(self.body.walk())
        values = [value for op in ops for value in op.results]
        values += [value for op in self.kernel.nests() for region in op.regions for value in region.args]
        first = {value.type: value for value in reversed(values)}  # of each type, of which there are few
        tensor_types = [type for type in first if isinstance(type, TensorType)]
        for type in tensor_types:
            self._check_size(first[type])
        if all(self.padded(size) == size for type in tensor_types for size in type.shape):
            return
        tensors = [value for value in values if isinstance(value.type, TensorType)]
        for value in tensors:
            self.shapes[value] = value.shape
        self._ask_first(ops)
        for value in tensors:
            value.set_type(TensorType(tuple(map(self.padded, value.shape)), value.dtype))
        for op in ops:
            self._operation(op)

    def _ask_first(self, ops: Iterable[Operation]) -> None:
        """Query the analysis while the shapes are still the original ones; it remembers its answers."""
        for op in ops:
            for value in (*op.operands, *op.results):
                for axis, _ in self._padded_axes(self.shapes.get(value, ())):
                    self.padding.of(value, axis)
        self.padding.close()

    def _check_size(self, value: Value) -> None:
        count = prod(map(self.padded, value.shape))
        if count > MAX_ELEMENTS:
            before = "x".join(map(str, value.shape))
            raise TileError(
                f"a tile of {before} elements takes {count} when padded to powers of two, and Triton allows "
                f"{MAX_ELEMENTS}: make the tile smaller",
                value.op.loc if value.op is not None else None,
            )

    def _padded_axes(self, shape: Sequence[int]) -> list[tuple[int, int]]:
        return [(axis, size) for axis, size in enumerate(shape) if self.padded(size) != size]

    def _operation(self, op: Operation) -> None:
        match op:
            case tile.LoadOp():
                self._mask(op, op.mask, self.shapes.get(op.out, ()))
            case tile.StoreOp() | tile.AtomicOp():
                shape = broadcast_shapes(*(self.shapes.get(value, ()) for value in op.operands))
                self._mask(op, op.mask, shape or ())
            case tensor.ReduceOp():
                op.set_operands([self._filled(op, op.source, [op.axis], _nothing(op))])
            case tensor.ScanOp() if op.reverse:
                filled = self._filled(op, op.source, [op.axis], tensor.neutral(op.kind, op.source.dtype))
                op.set_operands([filled])
            case tensor.DotOp():
                self._dot(op)
            case tensor.ScatterOp():
                op.set_field("places", [self._filled(op, op.places, [0], -1)])
            case tensor.SortOp():
                # What comes last: behind equal elements, since its place is, and behind NaN if that is last.
                is_last_nan = is_float(op.source.dtype) and not op.descending
                last = tensor.neutral("max" if op.descending else "min", op.source.dtype)
                op.set_operands([self._filled(op, op.source, [op.axis], float("nan") if is_last_nan else last)])
            case tensor.GatherOp():
                self._gather(op)
            case tensor.ReshapeOp():
                source, target = (self.shapes.get(value, ()) for value in (op.source, op.out))
                if not keeps_order(source, target, self.padded):
                    made = reshape_by_gather(op, source, target, self.padded)
                    self.shapes[made] = target
                    op.out.replace_with(made)
                    op.erase()
            case tile.AssertOp():
                axes = [axis for axis, _ in self._padded_axes(self.shapes.get(op.condition, ()))]
                op.set_operands([self._filled(op, op.condition, axes, True)])
            case _:
                pass

    def _inside(self, rank: int, axis: int, size: int) -> Value:
        """`iota < size` along one axis, computed once at the start of the kernel."""
        key = (rank, axis, size)
        if key not in self.inside:
            builder = Builder(self.body, self.body.first if self.last is None else self.last.next)
            shape = tuple(self.padded(size) if index == axis else 1 for index in range(rank))
            lane = builder.insert(tensor.IotaOp(axis=axis, result_types=[TensorType(shape, "int32")])).result
            limit = builder.constant(size, ScalarType("int32"))
            self.last = builder.insert(arith.CmpOp(lane, limit, predicate="lt", names=[f"in_{size}"]))
            self.inside[key] = self.last.result
        return self.inside[key]

    def _mask(self, op: Operation, mask: Value | None, shape: Sequence[int]) -> None:
        """Exclude the padding from an access."""
        condition = mask
        for axis, size in self._padded_axes(shape):
            if mask is not None and self.padding.of(mask, axis) is False:
                continue
            inside = self._inside(len(shape), axis, size)
            condition = both(Builder.at(op), condition, inside)
        if condition is not None:
            op.set_field("mask", [condition])

    def _filled(self, op: Operation, value: Value, axes: Sequence[int], number: Number) -> Value:
        """`value` with `number` in its padding along these axes."""
        shape = self.shapes.get(value, ())
        condition: Value | None = None
        builder = Builder.at(op)
        for axis, size in self._padded_axes(shape):
            if axis not in axes:
                continue
            held = self.padding.of(value, axis)
            if type(held) is type(number) and held == number:
                continue
            inside = self._inside(len(shape), axis, size)
            condition = both(builder, condition, inside)
        if condition is None:
            return value
        fill = builder.constant(number, ScalarType(value.dtype))
        return builder.insert(arith.SelectOp(condition, value, fill, names=[value.name])).result

    def _dot(self, op: tensor.DotOp) -> None:
        # Zero times garbage is not zero where the garbage is infinite or NaN, so both sides are made zero.
        zero = arith.as_constant(0, op.a.dtype)
        a = self._filled(op, op.a, [1], zero)
        b = self._filled(op, op.b, [0], arith.as_constant(0, op.b.dtype))
        op.set_operands([a, b, op.accumulator])

    def _gather(self, op: tensor.GatherOp) -> None:
        """Clamp the indices: those in the padding must be in bounds too."""
        axes = []
        for axis, _ in self._padded_axes(self.shapes.get(op.indices, ())):
            held = self.padding.of(op.indices, axis)
            if held is None or not 0 <= held < op.source.shape[op.axis]:
                axes.append(axis)
        op.set_operands([op.source, self._filled(op, op.indices, axes, 0)])


def _nothing(op: tensor.ReduceOp) -> Number:
    """What the padding of a reduction's source is filled with; of a sum of one element the zero that hides the others,
    which keeps the sign of a zero."""
    number = tensor.neutral(op.kind, op.source.dtype)
    cast = op.source.op if isinstance(op.source.op, arith.CastOp) else None
    chosen = (op.source if cast is None else cast.source).op
    hidden = arith.constant_of(chosen.on_false) if isinstance(chosen, arith.SelectOp) else None
    return hidden if type(hidden) is type(number) and hidden == number else number


@dataclass(frozen=True)
class PadTiles(Pass):
    """Pad every dimension of every tile to the next power of two, and keep the padding out of results.

    Before:  %x = tile.load %A[%i] : tensor<5000xfloat32>   After:  %x = tile.load %A[%i] mask=%in_5000
             %m = tensor.reduce %x {kind = "max", axis = 0}         %y = arith.select %in_5000, %x, -inf
                                                                    %m = tensor.reduce %y {kind = "max", axis = 0}
    Accesses get masks. Reductions, reverse scans and the inner dimension of dots are filled with the neutral element,
    unless the padding is known to hold it (analysis/padding.py). Reshapes that would move padding become gathers.
    min_dot is the least inner dimension of a dot; it doubles for 8-bit operands (Triton 3.6 to 3.9: 16 on NVIDIA GPUs,
    for which less is refused; M and N may be 1).
    Needs:   promote-buffers, guard-accesses. Does nothing if all sizes are powers of two.
    """

    name = "pad-tiles"
    min_dot: int = 16

    def allowances(self, program: Program) -> frozenset[str]:
        # Of an inner dimension of 1, the product is rounded before it is added.
        single = (isinstance(op, tensor.DotOp) and op.a.shape[1] == 1 for op in program.root.walk())
        return frozenset({"contraction"} if any(single) else ())

    def run(self, program: Program) -> None:
        if self.min_dot < 1 or self.min_dot & (self.min_dot - 1):
            raise TileError(f"pad-tiles.min_dot is {self.min_dot}; it must be a power of two")
        if self.min_dot < LEAST_DOT and getattr(program.target, "kind", "") == "cuda":
            raise TileError(
                f"pad-tiles.min_dot is {self.min_dot}; it must be {LEAST_DOT} or more for {program.target}, where "
                "Triton has no products with a smaller inner dimension"
            )
        for kernel in tile.kernels(program.root):
            _Padder(kernel, self.min_dot).run()
