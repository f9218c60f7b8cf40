"""What operations of roles read and write, as boxes of buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl.analysis.block_access import root_buffer
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import thread, tile
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.ir.types import BufferType

Box = tuple[tuple[int, int], ...]  # of each dimension the first index and the one after the last


def overlap(one: Box, other: Box) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True))


def covers(one: Box, other: Any) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(one, other, strict=True))


def accesses_of(op: Operation, *scopes: str) -> list[tuple[Value, Any, bool]]:
    """The accesses of an operation to buffers in `scopes`, or in any: which, where (a function of numbers and ranges),
    and whether it writes."""
    found: list[tuple[Value, Any, bool]] = []
    if isinstance(op, thread.InitBarriersOp | thread.ArriveOp | thread.WaitOp | thread.AsyncOp):
        return found
    if isinstance(op, tile.CopyOp):
        for buffer, offsets, axes, writes in (
            (op.source, op.source_offsets, op.source_axes, False),
            (op.target, op.target_offsets, op.target_axes, True),
        ):
            sizes = [1] * len(tile.buffer_type(buffer).shape)
            for axis, size in zip(axes, op.shape, strict=True):
                sizes[axis] = size
            found.append((buffer, _box(buffer, offsets, sizes), writes))
    elif isinstance(op, (tile.LoadOp, tile.StoreOp)):
        rank = len(op.indices)
        found.append((op.buffer, _box(op.buffer, op.indices, [1] * rank), isinstance(op, tile.StoreOp)))
    elif isinstance(op, tile.GemmOp):
        reads = [op.a, op.b] if op.clear else [op.a, op.b, op.c]
        found = [(each, _box(each, [], []), False) for each in reads] + [(op.c, _box(op.c, [], []), True)]
    elif isinstance(op, tile.ReduceOp):
        reads = [op.source] if op.clear else [op.source, op.target]
        found = [(each, _box(each, [], []), False) for each in reads] + [(op.target, _box(op.target, [], []), True)]
    elif not op.regions and not isinstance(op, (tile.AllocOp, tile.ViewOp)):
        buffers = [value for value in op.operands if isinstance(value.type, BufferType)]
        for effect, writes in ((Effect.READ, False), (Effect.WRITE, True)):
            if effect in op.effects:
                found += [(each, _box(each, [], []), writes) for each in buffers]
    return [
        (root_buffer(buffer), box if root_buffer(buffer) is buffer else _box(root_buffer(buffer), [], []), writes)
        for buffer, box, writes in found
        if not scopes or tile.buffer_type(buffer).scope in scopes
    ]


def _box(buffer: Value, offsets: Sequence[Value], sizes: Sequence[int]) -> Any:

    def box(number: Any, ranges: Ranges) -> Box:
        shape = tile.buffer_type(buffer).static_shape
        if not offsets:
            return tuple((0, size) for size in (sizes or shape))
        made = []
        for offset, size, dim in zip(offsets, sizes, shape, strict=True):
            at = number(offset)
            if at is not None:
                made.append((int(at), int(at) + size))
                continue
            low, high = ranges.of(offset)
            made.append((int(max(low, 0)), min(dim, int(min(high, dim)) + size)))
        return tuple(made)

    return box
