"""Versions of a tile, picked by its first index: those that take turns become one, others a tile each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.types import BufferType
from tiledsl.passes.merge_roles.accesses import covers, overlap
from tiledsl.passes.merge_roles.simulate import Event


def versions(kernel: tile.KernelOp, events: Sequence[Event]) -> dict[Value, bool]:
    """The tiles that have several versions, and whether these take turns in an order of accesses."""
    return {buffer: _take_turns(buffer, events) for buffer in _tiles(kernel) if _has_versions(buffer)}


def drop_versions(versions: Mapping[Value, bool]) -> None:
    """Make one tile of versions that take turns in the kernel."""
    for buffer, take_turns in versions.items():
        count = tile.buffer_type(buffer).static_shape[0]
        if take_turns and all(map(_is_unconditional, buffer.uses)):
            for user in list(buffer.uses):
                for loop in ancestors(user):
                    if isinstance(loop, scf.ForOp):
                        loop.set_attribute("num_stages", max(loop.num_stages, count))
                        break
            _replace(buffer, [_version(buffer)] * count)
        elif all(constant_of(index) is not None for user in buffer.uses for index in _versions_of(user, buffer)):
            _replace(buffer, [_version(buffer) for _ in range(count)])


def _tiles(kernel: tile.KernelOp) -> list[Value]:
    return [op.out for op in of_kinds(kernel.walk(), tile.AllocOp) if tile.buffer_type(op.out).scope == "shared"]


def _has_versions(buffer: Value) -> bool:
    shape = tile.buffer_type(buffer).static_shape
    return len(shape) >= 2 and shape[0] > 1 and all(_picks_one(user, buffer) for user in buffer.uses)


def _picks_one(user: Operation, buffer: Value) -> bool:
    """Whether an access is to one version."""
    if isinstance(user, tile.CopyOp):
        return all(offsets and 0 not in axes for each, offsets, axes in _sides(user) if each is buffer)
    return isinstance(user, (tile.LoadOp, tile.StoreOp)) and bool(user.indices) and not user.indices[0].shape


def _sides(op: tile.CopyOp) -> list[tuple[Value, list[Value], tuple[int, ...]]]:
    return [(op.source, op.source_offsets, op.source_axes), (op.target, op.target_offsets, op.target_axes)]


def _versions_of(user: Operation, buffer: Value) -> list[Value]:
    if isinstance(user, tile.CopyOp):
        return [offsets[0] for each, offsets, _ in _sides(user) if each is buffer]
    assert isinstance(user, (tile.LoadOp, tile.StoreOp)), "only they pick a version"
    return [user.indices[0]]


def _take_turns(buffer: Value, events: Sequence[Event]) -> bool:
    """Whether each read finds what was written last, of whatever version, whole."""
    mine = [each for each in events if each.buffer is buffer]
    if not mine or any(high - low != 1 for each in mine for low, high in each.box[:1]):
        return False
    for number, read in enumerate(mine):
        if read.writes:
            continue
        for write in reversed(mine[:number]):
            if write.writes and overlap(write.box[1:], read.box[1:]):
                if write.box[0] != read.box[0] or not covers(write.box[1:], read.box[1:]):
                    return False
                break
        else:
            return False
    return True


def _is_unconditional(user: Operation) -> bool:
    """Whether an access, if it writes elements, writes all of them: under no condition, by a T.Parallel over them."""
    if not isinstance(user, tile.StoreOp):
        return True
    (around, *_) = ancestors(user)
    indices = [each for each in user.indices[1:] if constant_of(each) is None]
    return isinstance(around, tile.ParallelOp) and not around.lockstep and indices == list(around.body.args)


def _version(buffer: Value) -> Value:
    """A tile of one version."""
    old = buffer.op
    assert old is not None and old.parent is not None, "a tile is allocated"
    type = tile.buffer_type(buffer)
    made = tile.AllocOp(result_types=[BufferType(type.static_shape[1:], type.dtype, type.scope)], loc=old.loc)
    made.result.name = buffer.name
    old.parent.insert(made, old)
    return made.result


def _replace(buffer: Value, versions: Sequence[Value]) -> None:
    for user in list(buffer.uses):
        if isinstance(user, tile.CopyOp):
            fields = {"source": user.source, "target": user.target}
            for (each, offsets, axes), side in zip(_sides(user), fields, strict=True):
                if each is buffer:
                    fields[side] = versions[int(constant_of(offsets[0]) or 0)]
                    user.set_field(f"{side}_offsets", offsets[1:])
                    user.set_attribute(f"{side}_axes", tuple(axis - 1 for axis in axes))
            for side, value in fields.items():
                user.set_field(side, [value])
        else:
            assert isinstance(user, (tile.LoadOp, tile.StoreOp)), "only they pick a version"
            user.set_field("buffer", [versions[int(constant_of(user.indices[0]) or 0)]])
            user.set_field("indices", user.indices[1:])
    assert buffer.op is not None
    buffer.op.erase()
