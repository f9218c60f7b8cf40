"""Block loads and stores as copies through descriptors that the host creates. Part of lower-to-triton."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiledsl.analysis.gluon.support import swizzle
from tiledsl.dialects import gluon, tensor, tile, triton
from tiledsl.ir.core import Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import with_shape

Shape = tuple[int, ...]


def lower_blocks(ops: Iterable[tile.LoadBlockOp | tile.StoreBlockOp], host: Builder, for_gluon: bool) -> None:
    """Replace block accesses; `host` inserts the descriptors before the launch, one for each buffer and block shape.

    A descriptor may order the buffer's dimensions differently: those in which the block has one element come first,
    since Triton drops dimensions only at the front. Gluon drops them anywhere, and is told how blocks are swizzled.
    """
    descriptors: dict[tuple[Value, Shape, Shape], Value] = {}
    for op in ops:
        if for_gluon:
            _lower_for_gluon(op, descriptors, host)
            continue
        rank = len(tile.buffer_type(op.buffer).shape)
        shape = op.out.shape if isinstance(op, tile.LoadBlockOp) else op.value.shape
        sizes = dict(zip(op.axes, shape))
        order = tuple(sorted(range(rank), key=lambda dim: (dim in sizes, dim)))
        block = tuple(sizes.get(dim, 1) for dim in order)
        key = (op.buffer, block, order)
        if key not in descriptors:
            descriptors[key] = host.insert(
                triton.DescriptorOp(op.buffer, block=block, dims=order, names=[f"{op.buffer.name or 'data'}_block"])
            ).out
        starts = [op.starts[dim] for dim in order]
        walked = [axis for axis in op.axes if axis >= 0]
        # Where the tile's dimensions stand among the block's, and where the block's stand among the tile's.
        inward = tuple(sorted(walked).index(axis) for axis in walked)
        outward = tuple(walked.index(axis) for axis in sorted(walked))
        at = Builder.at(op)
        if isinstance(op, tile.LoadBlockOp):
            type = with_shape(block, op.out.dtype)
            value = at.insert(triton.LoadBlockOp(descriptors[key], starts, result_types=[type])).out
            value.name = op.out.name
            value = _transposed(at, value, tuple(sizes[axis] for axis in sorted(walked)), inward)
            op.out.replace_with(_reshaped(at, value, shape))
        else:
            value = _transposed(at, op.value, tuple(sizes[axis] for axis in walked), outward)
            at.insert(triton.StoreBlockOp(_reshaped(at, value, block), descriptors[key], starts))
        op.erase()


def _lower_for_gluon(
    op: tile.LoadBlockOp | tile.StoreBlockOp, descriptors: dict[tuple[Value, Shape, Shape], Value], host: Builder
) -> None:
    buffer, extents = op.buffer, gluon.box(op)
    order = tuple(range(len(extents)))
    key = (buffer, extents, order)
    if key not in descriptors:
        size, name = swizzle(extents, buffer.dtype), f"{buffer.name or 'data'}_tiles"
        descriptors[key] = host.insert(
            triton.DescriptorOp(buffer, block=extents, dims=order, swizzle=size, names=[name])
        ).out
    at = Builder.at(op)
    if isinstance(op, tile.LoadBlockOp):
        new = triton.LoadBlockOp(descriptors[key], op.starts, axes=op.axes, ring=op.ring, result_types=[op.out.type])
        at.insert(new).out.name = op.out.name
        op.out.replace_with(new.out)
    else:
        at.insert(
            triton.StoreBlockOp(
                op.value,
                descriptors[key],
                op.starts,
                axes=op.axes,
                ring=op.ring,
                add=op.add,
                pieces=op.pieces,
                places=op.places,
            )
        )
    op.erase()


def _transposed(at: Builder, value: Value, shape: Shape, permutation: Sequence[int]) -> Value:
    """The value reshaped to `shape`, then with its dimensions permuted."""
    if list(permutation) == sorted(permutation):
        return value
    flat = _reshaped(at, value, shape)
    made = at.insert(tensor.TransposeOp(flat, permutation=tuple(permutation))).result
    made.name = value.name
    return made


def _reshaped(at: Builder, value: Value, shape: Shape) -> Value:
    if value.shape == shape:
        return value
    made = at.insert(tensor.ReshapeOp(value, result_types=[with_shape(shape, value.dtype)])).result
    made.name = value.name
    return made
