"""lower-tile-ops: operations on whole buffers become reads, operations on tile values, and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiledsl import legality
from tiledsl.dialects import arith, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, BufferType, Shape, is_float, with_shape
from tiledsl.legality import dot_dtype
from tiledsl.passes.tile_values import broadcast, combined, converted, iota, permuted, reshaped, zero

Axes = tuple[int, ...]


@dataclass(frozen=True)
class LowerTileOps(Pass):
    """Express tile.copy, fill, gemm, reduce, scan and sort with tile values.

    Before:  tile.copy %A[%m, %k], %A_shared {...}    After:  %rows = arith.add %m, %iota0
             tile.gemm %A_shared, %B_shared, %acc             %columns = arith.add %k, %iota1
                                                              %a = tile.load %A[%rows, %columns]
                                                              tile.write %a, %A_shared
                                                              %d = tensor.dot %read_a, %read_b, %read_acc
                                                              tile.write %d, %acc
    Keeps:   the order of accesses, even where a value could be forwarded: promote-buffers does that.
    """

    name = "lower-tile-ops"

    def run(self, program: Program) -> None:
        builder = _TileBuilder(Region())
        for op in of_kinds(program.root.walk(), *_LOWERINGS):
            builder.move_before(op)
            _LOWERINGS[type(op)](op, builder)
            op.erase()


class _TileBuilder(Builder):
    """Inserts before the operation that is being lowered, and creates each index of a tile once in a region."""

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self._made: dict[tuple[object, ...], Value] = {}

    def move_before(self, op: Operation) -> None:
        assert op.parent is not None, f"{op.name} stands in no region"
        self.region, self.before, self.loc = op.parent, op, op.loc

    def index(self, offset: Value | None, rank: int, axis: int, extent: int, dtype: str) -> Value:
        """`offset` + 0, 1, ... `extent` - 1 along `axis` of a tile of this rank."""
        key = (self.region, offset, rank, axis, extent, dtype)
        index = self._made.get(key)
        if index is None:
            if offset is None:
                index = iota(self, rank, axis, extent, dtype)
            else:
                index = self.insert(arith.AddOp(offset, self.index(None, rank, axis, extent, dtype))).out
            self._made[key] = index
        return index


def _copy(op: tile.CopyOp, builder: _TileBuilder) -> None:
    shape, source_axes, target_axes = op.shape, op.source_axes, op.target_axes
    # Between global memory and a whole tile such as (1, n), and between two such tiles, the tile's own shape: no
    # reshape, for which Triton would move the elements between threads through shared memory.
    source, target = tile.buffer_type(op.source), tile.buffer_type(op.target)
    if source.scope == "global" and _is_whole(target, shape, target_axes):
        shape, target_axes, source_axes = _with_ones(target, shape, target_axes, source_axes)
    elif target.scope == "global" and _is_whole(source, shape, source_axes):
        shape, source_axes, target_axes = _with_ones(source, shape, source_axes, target_axes)
    elif source_axes == target_axes and source.shape == target.shape and _is_whole(target, shape, target_axes):
        shape, source_axes = target.static_shape, tuple(range(len(target.shape)))
        target_axes = source_axes
    value = _read_tile(builder, op.source, op.source_offsets, shape, source_axes, op.safe_value, op.eviction)
    value = converted(builder, value, op.target.dtype)
    _write_tile(builder, value, op.target, op.target_offsets, shape, target_axes, op.eviction)


def _with_ones(type: BufferType, shape: Shape, axes: Axes, others: Axes) -> tuple[Shape, Axes, Axes]:
    """The domain of a copy with all dimensions of the buffer; -1 for those without a counterpart on the other side."""
    if len(shape) == len(type.shape):
        return shape, axes, others
    other = dict(zip(axes, others, strict=True))
    dims = tuple(range(len(type.shape)))
    return type.static_shape, dims, tuple(other.get(dim, -1) for dim in dims)


def _fill(op: tile.FillOp, builder: _TileBuilder) -> None:
    shape = tile.buffer_type(op.target).static_shape
    _write_whole(builder, broadcast(builder, op.value, shape), op.target)


def _gemm(op: tile.GemmOp, builder: _TileBuilder) -> None:
    a = _matrix(builder, op.a, op.trans_a)
    b = _matrix(builder, op.b, op.trans_b)
    if is_float(a.dtype) and is_float(b.dtype) and not legality.FLOAT8.issuperset((a.dtype, b.dtype)):
        dtype = dot_dtype(a.dtype, b.dtype)
        a, b = converted(builder, a, dtype), converted(builder, b, dtype)
    shape = tile.buffer_type(op.c).static_shape
    if op.clear:
        accumulator = zero(builder, shape[-2:], op.c.dtype)
    else:
        accumulator = reshaped(builder, _read_whole(builder, op.c), shape[-2:])
    made = builder.insert(tensor.DotOp(a, b, accumulator, precision=op.precision, names=[op.c.name])).result
    _write_whole(builder, reshaped(builder, made, shape), op.c)


def _matrix(builder: _TileBuilder, buffer: Value, transposed: bool) -> Value:
    value = _read_whole(builder, buffer)
    value = reshaped(builder, value, value.shape[-2:])
    return permuted(builder, value, (1, 0)) if transposed else value


def _reduce(op: tile.ReduceOp, builder: _TileBuilder) -> None:
    source, dtype = _read_whole(builder, op.source), op.target.dtype
    # Accumulate in the wider of the two element types.
    if ELEMENTS[dtype].bits >= ELEMENTS[source.dtype].bits:
        source = converted(builder, source, dtype)
    name = op.target.name
    reduction: Value = builder.insert(
        tensor.ReduceOp(source, kind=op.kind, axis=op.axis, propagate_nan=op.propagate_nan, names=[name])
    ).result
    reduction = converted(builder, reshaped(builder, reduction, tile.buffer_type(op.target).static_shape), dtype)
    if not op.clear:
        old = _read_whole(builder, op.target)
        reduction = combined(builder, op.kind, old, reduction, propagate_nan=op.propagate_nan)
        reduction.name = name
    _write_whole(builder, reduction, op.target)


def _scan(op: tile.ScanOp, builder: _TileBuilder) -> None:
    source = converted(builder, _read_whole(builder, op.source), op.target.dtype)
    factors = None if op.factors is None else _read_whole(builder, op.factors)
    scan = tensor.ScanOp(source, factors, kind=op.kind, axis=op.axis, reverse=op.reverse, names=[op.target.name])
    _write_whole(builder, builder.insert(scan).result, op.target)


def _sort(op: tile.SortOp, builder: _TileBuilder) -> None:
    source = _read_whole(builder, op.source)
    keys = converted(builder, source, "int32") if source.dtype == "bool" else source
    made = builder.insert(
        tensor.SortOp(keys, axis=op.axis, descending=op.descending, names=[op.target.name, op.indices.name])
    )
    _write_whole(builder, converted(builder, made.results[0], source.dtype), op.target)
    _write_whole(builder, made.results[1], op.indices)


_LOWERINGS: dict[type[Operation], Callable[[Any, _TileBuilder], None]] = {
    tile.CopyOp: _copy,
    tile.FillOp: _fill,
    tile.GemmOp: _gemm,
    tile.ReduceOp: _reduce,
    tile.ScanOp: _scan,
    tile.SortOp: _sort,
}


def _read_whole(builder: _TileBuilder, buffer: Value) -> Value:
    return builder.insert(tile.ReadOp(buffer, names=[buffer.name])).out


def _write_whole(builder: _TileBuilder, value: Value, buffer: Value) -> None:
    type = tile.buffer_type(buffer)
    if type.scope == "global":
        _write_tile(builder, value, buffer, [], type.static_shape, tuple(range(len(type.shape))))
    else:
        _write(builder, reshaped(builder, value, type.static_shape), buffer)


def _write(builder: _TileBuilder, value: Value, buffer: Value) -> None:
    if not value.name or not value.uses:
        value.name = buffer.name
    builder.insert(tile.WriteOp(value, buffer))


def _read_tile(
    builder: _TileBuilder, buffer: Value, offsets: list[Value], shape: Shape, axes: Axes, safe: float, eviction: str
) -> Value:
    """The tile at `offsets`, in `shape`."""
    type = tile.buffer_type(buffer)
    if _is_whole(type, shape, axes):
        value: Value = builder.insert(tile.ReadOp(buffer, names=[buffer.name])).result
        order = sorted(axes)
        value = reshaped(builder, value, tuple(type.static_shape[axis] for axis in order))
        return permuted(builder, value, [order.index(axis) for axis in axes])
    indices = _indices(builder, type, offsets, shape, axes)
    other = None
    if safe and type.scope == "global":
        other = builder.constant(arith.as_constant(safe, type.dtype), with_shape((), type.dtype))
    hint = eviction if type.scope == "global" else ""
    value = builder.insert(tile.LoadOp(buffer, indices, None, other, eviction=hint, names=[buffer.name])).result
    return reshaped(builder, value, shape)


def _write_tile(
    builder: _TileBuilder, value: Value, buffer: Value, offsets: list[Value], shape: Shape, axes: Axes,
    eviction: str = "",
) -> None:  # fmt: skip
    """Put a value of `shape` at `offsets`."""
    type = tile.buffer_type(buffer)
    if _is_whole(type, shape, axes):
        order = sorted(axes)
        value = permuted(builder, value, [axes.index(axis) for axis in order])
        _write(builder, reshaped(builder, value, type.static_shape), buffer)
        return
    indices = _indices(builder, type, offsets, shape, axes)
    if not any(index.shape for index in indices):
        value = reshaped(builder, value, ())
    builder.insert(tile.StoreOp(value, buffer, indices, eviction=eviction if type.scope == "global" else ""))


def _is_whole(type: BufferType, shape: Shape, axes: Axes) -> bool:
    """Whether the tile is a whole on-chip buffer, up to the order of dimensions and dimensions of 1.

    Its offsets are 0 then, for on-chip buffers are not checked.
    """
    walked = dict(zip(axes, shape, strict=True))
    return type.scope != "global" and [walked.get(axis, 1) for axis in range(len(type.shape))] == [*type.shape]


def _indices(builder: _TileBuilder, type: BufferType, offsets: list[Value], shape: Shape, axes: Axes) -> list[Value]:
    """One index for each dimension: offset + iota along the tile's dimensions, the offset alone along the others."""
    indices: list[Value] = []
    for dim in range(len(type.shape)):
        offset = offsets[dim] if offsets else None
        if dim not in axes or shape[axes.index(dim)] == 1:
            indices.append(builder.constant(0, with_shape((), "int32")) if offset is None else offset)
            continue
        axis = axes.index(dim)
        dtype = "int32" if offset is None else offset.dtype
        start = None if offset is None or constant_of(offset) == 0 else offset
        indices.append(builder.index(start, len(shape), axis, shape[axis], dtype))
    return indices
