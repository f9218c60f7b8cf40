"""Tiles of which columns or rows are picked: those that are always taken in the same parts become a tile for each.

A program that divides products by hand takes `s[:, :256]` and `s[:, 256:]`. Of a tile that is a value, a part would
have to be picked among all of its elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.dependence import depends_on
from tiledsl.analysis.linear import LinearForm
from tiledsl.dialects import arith, scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, BufferType

Part = tuple[int, int]  # the first column (or row), and the one after the last


def divide_tiles(kernel: tile.KernelOp) -> None:
    """Make tiles of the parts of shared tiles, but for parts that products take one after the other along K."""
    for region in [each for op in kernel.nests() for each in op.regions]:
        _merge_copies(region)
        _settle_clears(region)
    for op in of_kinds(kernel.walk(), tile.AllocOp):
        _separate(op)
    merge_products(kernel)
    for axis in (1, 0):
        for op in of_kinds(kernel.walk(), tile.AllocOp):
            type = tile.buffer_type(op.out)
            if type.scope == "shared" and len(type.static_shape) == 2 and (parts := _parts(op.out, axis)) is not None:
                _divide(op, parts, axis)


def multiplies_parts(product: tile.GemmOp) -> bool:
    """Whether both operands are parts of on-chip tiles along K."""
    axes = (0 if product.trans_a else 1, 1 if product.trans_b else 0)
    return all(
        any(
            isinstance(copy, tile.CopyOp)
            and copy.target is operand
            and len(copy.shape) == 2
            and tile.is_on_chip(copy.source)
            and tile.buffer_type(copy.source).static_shape[copy.source_axes[axis]] > copy.shape[axis]
            for copy in operand.uses
        )
        for operand, axis in zip((product.a, product.b), axes, strict=True)
    )


def takes_parts(loop: scf.ForOp) -> bool:
    """Whether a loop's index says which part of a tile becomes an operand of a product."""
    return any(
        tile.is_on_chip(op.source)
        and any(isinstance(user, tile.GemmOp) for user in op.target.uses)
        and any(depends_on(offset, [loop.index]) for offset in op.source_offsets[-2:])
        for op in of_kinds(loop.body.walk(), tile.CopyOp)
    )


def _side(op: tile.CopyOp, buffer: Value) -> tuple[str, list[Value], tuple[int, ...]] | None:
    """Which side of a copy a buffer is, with its offsets and axes; None if it is both."""
    if op.source is op.target:
        return None
    if op.source is buffer:
        return "source", op.source_offsets, op.source_axes
    return "target", op.target_offsets, op.target_axes


def _taken(user: Operation, buffer: Value, axis: int) -> Part | None:
    """The columns (axis 1) or rows (axis 0) that an access takes; None if that is not known."""
    width = tile.buffer_type(buffer).static_shape[axis]
    if isinstance(user, tile.CopyOp) and (side := _side(user, buffer)) is not None:
        _, offsets, axes = side
        first = constant_of(offsets[axis]) if offsets else 0
        if first is None or axis not in axes:
            return None
        return int(first), int(first) + int(user.shape[axes.index(axis)])
    if isinstance(user, tile.StoreOp):
        loop = _loop_of(user, axis)
        if loop is not None and loop.extents[loop.body.args.index(user.indices[axis])] == width:
            return 0, width
    return None


def _loop_of(store: tile.StoreOp, axis: int) -> tile.ParallelOp | None:
    """The T.Parallel whose index is the column (or row) that is written, and which does no more."""
    owner = store.indices[axis].owner
    loop = owner.parent if isinstance(owner, Region) else None
    if not isinstance(loop, tile.ParallelOp):
        return None
    writes = [
        op
        for op in loop.body.walk()
        if not op.is_pure and not isinstance(op, tile.LoadOp) and not op.is_terminator and not op.regions
    ]
    return loop if writes == [store] else None


def _parts(buffer: Value, axis: int) -> list[Part] | None:
    """The parts of a tile, where each access takes one of them, or writes all."""
    width = tile.buffer_type(buffer).static_shape[axis]
    taken: set[Part] = set()
    for user in buffer.uses:
        found = _taken(user, buffer, axis)
        if found is None:
            return None
        if found != (0, width) or isinstance(user, tile.CopyOp) and user.source is buffer:
            taken.add(found)
    parts = sorted(taken)
    ends = [0, *(last for _, last in parts)]
    if len(parts) < 2 or any(first != end for (first, _), end in zip(parts, ends, strict=False)) or ends[-1] != width:
        return None
    return parts


def _divide(op: tile.AllocOp, parts: Sequence[Part], axis: int) -> None:
    buffer, type = op.out, tile.buffer_type(op.out)
    made: dict[Part, Value] = {}
    for first, last in parts:
        shape = tuple(last - first if at == axis else size for at, size in enumerate(type.static_shape))
        new = tile.AllocOp(result_types=[BufferType(shape, type.dtype, type.scope)], loc=op.loc, names=[buffer.name])
        assert op.parent is not None, "a tile is allocated in a kernel"
        op.parent.insert(new, op)
        made[first, last] = new.result
    for user in list(buffer.uses):
        taken = _taken(user, buffer, axis)
        assert taken is not None, "_parts has looked"
        if taken in made:
            _take(user, buffer, made[taken], axis)
        else:
            _write_parts(user, buffer, made, axis)
    op.erase()


def _take(user: Operation, buffer: Value, part: Value, axis: int) -> None:
    """Let a copy be of a part as a whole."""
    assert isinstance(user, tile.CopyOp), "only copies take parts"
    side = _side(user, buffer)
    assert side is not None, "it is on one side"
    name, offsets, _ = side
    if offsets:
        zero = Builder.at(user).constant(0, offsets[axis].type)
        user.set_field(f"{name}_offsets", [zero if at == axis else each for at, each in enumerate(offsets)])
    user.set_field(name, [part])


def _write_parts(user: Operation, buffer: Value, parts: dict[Part, Value], axis: int) -> None:
    """One copy, or loop, for each part."""
    if isinstance(user, tile.CopyOp):
        for (first, last), part in parts.items():
            copy = user.clone({buffer: part})
            assert isinstance(copy, tile.CopyOp)
            builder = Builder.at(user)
            along = user.target_axes.index(axis)
            shape = tuple(last - first if number == along else size for number, size in enumerate(user.shape))
            where = user.source_axes[along]
            offsets = user.source_offsets or [builder.constant(0, INT32) for _ in tile.buffer_type(user.source).shape]
            start = builder.constant(first, offsets[where].type)
            moved = builder.insert(arith.AddOp(offsets[where], start)).result if first else offsets[where]
            builder.insert(copy)
            copy.set_field(
                "source_offsets", [moved if number == where else each for number, each in enumerate(offsets)]
            )
            copy.set_attribute("shape", shape)
        user.erase()
        return
    assert isinstance(user, tile.StoreOp), "only copies and stores write a tile"
    loop = _loop_of(user, axis)
    assert loop is not None, "_taken has looked"
    number = loop.body.args.index(user.indices[axis])
    for (first, last), part in parts.items():
        copy = loop.clone({buffer: part})
        assert isinstance(copy, tile.ParallelOp)
        Builder.at(loop).insert(copy)
        copy.set_attribute(
            "extents", tuple(last - first if at == number else size for at, size in enumerate(copy.extents))
        )
        column = copy.body.args[number]
        if first:
            builder = Builder(copy.body, copy.body.first, loop.loc)
            users = list(column.uses)
            moved = builder.insert(arith.AddOp(column, builder.constant(first, INT32))).result
            for each in users:
                each.set_operands([moved if value is column else value for value in each.operands])
            for store in of_kinds(copy.body.walk(), tile.StoreOp):
                store.set_field("indices", [column if at == axis else each for at, each in enumerate(store.indices)])
    loop.erase()


# Copies


def _merge_copies(region: Region) -> None:
    """Make one copy of those of neighbouring parts between the same buffers."""
    for first in region:
        if not isinstance(first, tile.CopyOp) or first.parent is None:
            continue
        target = first.target
        if not tile.is_on_chip(target) or first.source is target:
            continue
        other = first.next
        while other is not None:
            following = other.next
            if isinstance(other, tile.CopyOp) and (axis := _next_to(first, other)) is not None:
                shape = list(first.shape)
                shape[axis] += other.shape[axis]
                first.set_attribute("shape", tuple(shape))
                other.erase()
            elif not _leaves_alone(other, first):
                break
            other = following


def _next_to(one: tile.CopyOp, other: tile.CopyOp) -> int | None:
    """The axis of a copy along which another one goes on."""
    if one.source is not other.source or one.target is not other.target or one.eviction != other.eviction:
        return None
    if (one.source_axes, one.target_axes) != (other.source_axes, other.target_axes):
        return None
    moved: list[list[int]] = []
    for buffer, a, b in (
        (one.source, one.source_offsets, other.source_offsets),
        (one.target, one.target_offsets, other.target_offsets),
    ):
        zeros = [LinearForm()] * len(tile.buffer_type(buffer).shape)
        forms = [[linear_form(offset, through_names=True) for offset in each] or zeros for each in (a, b)]
        steps = [last.plus(first, -1) for first, last in zip(*forms, strict=True)]
        if not all(step.is_constant for step in steps):
            return None
        moved.append([step.constant for step in steps])
    for axis, size in enumerate(one.shape):
        wanted = [[0] * len(each) for each in moved]
        for each, axes in zip(wanted, (one.source_axes, one.target_axes), strict=True):
            each[axes[axis]] = size
        rest = [size for number, size in enumerate(one.shape) if number != axis]
        if moved == wanted and rest == [size for number, size in enumerate(other.shape) if number != axis]:
            return axis
    return None


def _leaves_alone(op: Operation, copy: tile.CopyOp) -> bool:
    """Whether a copy may be done before an operation of what comes next to it in its target."""
    for inner in op.walk():
        if isinstance(inner, tile.CopyOp) and inner.target is not copy.target and inner.source is copy.target:
            if _reaches_beyond(inner, copy):
                return False
        elif copy.target in inner.operands:
            return False
        writes = [
            value for value in inner.operands if isinstance(value.type, BufferType) and not tile.is_on_chip(value)
        ]
        if (
            Effect.WRITE in inner.effects
            and writes
            and not (isinstance(inner, tile.CopyOp) and tile.is_on_chip(inner.target))
        ):
            return False
    return True


def _reaches_beyond(reader: tile.CopyOp, copy: tile.CopyOp) -> bool:
    """Whether a copy reads of another one's target more than that has filled."""
    shape = tile.buffer_type(copy.target).static_shape
    boxes = []
    for offsets, axes, sizes in (
        (reader.source_offsets, reader.source_axes, reader.shape),
        (copy.target_offsets, copy.target_axes, copy.shape),
    ):
        known = [constant_of(each) for each in offsets] if offsets else [0] * len(shape)
        starts = [int(each) for each in known if each is not None]
        if len(starts) < len(shape):
            return True
        extents = [1] * len(shape)
        for axis, size in zip(axes, sizes, strict=True):
            extents[axis] = size
        boxes.append([(start, start + size) for start, size in zip(starts, extents, strict=True)])
    return any(a < c or b > d for (a, b), (c, d) in zip(*boxes, strict=True))


# Products


def _settle_clears(region: Region) -> None:
    """Clear an accumulator by its product where zeros are stored in front of it, and drop a store of what is there."""
    zeros: dict[Value, Operation] = {}  # the tile that was cleared last, and where
    for op in list(region):
        if (store := _only_store(op)) is not None:
            value = store.value.op
            if isinstance(value, tile.LoadOp) and (value.buffer, value.indices) == (store.buffer, store.indices):
                op.erase()
                continue
            zeros = {store.buffer: op} if constant_of(store.value) == 0 else {}
        elif isinstance(op, tile.GemmOp):
            if op.c in zeros and op.c not in (op.a, op.b):
                op.set_attribute("clear", True)
                zeros[op.c].erase()
            zeros = {}
        elif not (op.is_pure or isinstance(op, tile.CopyOp) and zeros.keys().isdisjoint(op.operands)):
            zeros = {}


def _only_store(loop: Operation) -> tile.StoreOp | None:
    """The store to each element of a tile that is all that a T.Parallel does."""
    if not isinstance(loop, tile.ParallelOp):
        return None
    store = next(iter(of_kinds(loop.body, tile.StoreOp)), None)
    if store is None or store.mask is not None or store.indices != list(loop.body.args):
        return None
    if tile.buffer_type(store.buffer).shape != tuple(loop.extents):
        return None
    others = [op for op in loop.body if op is not store and not op.is_terminator]
    return store if all(op.is_pure or isinstance(op, tile.LoadOp) for op in others) else None


def _separate(alloc: tile.AllocOp) -> None:
    """A tile for each copy of a part of a tile into one, for products that follow in one region."""
    buffer, region = alloc.out, next((use.parent for use in alloc.out.uses), None)
    if region is None or any(use.parent is not region for use in buffer.uses):
        return
    now: Value | None = None
    made: list[tuple[Operation, Value]] = []
    for op in region:
        if buffer not in op.operands:
            continue
        if isinstance(op, tile.CopyOp) and op.target is buffer and op.source is not buffer:
            if tuple(op.shape) != tile.buffer_type(buffer).static_shape or not tile.is_on_chip(op.source):
                return
            now = tile.AllocOp(result_types=[buffer.type], loc=alloc.loc, names=[buffer.name]).result
        elif not isinstance(op, tile.GemmOp) or op.c is buffer:
            return
        if now is None:
            return
        made.append((op, now))
    for op, value in made:
        assert value.op is not None and alloc.parent is not None
        if value.op.parent is None:
            alloc.parent.insert(value.op, alloc)
        op.set_operands([value if each is buffer else each for each in op.operands])
    alloc.erase()


def merge_products(kernel: tile.KernelOp) -> None:
    """Make one product of those that add up neighbouring parts along K into one tile."""
    for region in [each for op in kernel.nests() for each in op.regions]:
        last: tile.GemmOp | None = None
        for op in list(region):
            if isinstance(op, tile.GemmOp):
                if last is not None and _joins(last, op):
                    _join(last, op)
                else:
                    last = op
            elif last is not None and not (op.is_pure or _fills_part(op, last)):
                last = None


def _part_of(buffer: Value) -> tile.CopyOp | None:
    """The copy that fills a tile which is only an operand of one product."""
    match [user for user in buffer.uses if isinstance(user, tile.CopyOp)]:
        case [tile.CopyOp(target=target) as copy] if target is buffer and len(buffer.uses) == 2:
            whole = tuple(copy.shape) == tile.buffer_type(buffer).static_shape
            return copy if whole and tile.is_on_chip(copy.source) else None
    return None


def _fills_part(op: Operation, last: tile.GemmOp) -> bool:
    """Whether it is a copy of a part for a product that may come next."""
    if not isinstance(op, tile.CopyOp) or _part_of(op.target) is not op:
        return False
    return op.target not in last.operands


def _joins(one: tile.GemmOp, other: tile.GemmOp) -> bool:
    if one.c is not other.c or other.clear or (one.trans_a, one.trans_b) != (other.trans_a, other.trans_b):
        return False
    if one.precision != other.precision or one.a is one.b or other.a is other.b:
        return False
    axes = (0 if one.trans_a else 1, 1 if one.trans_b else 0)
    return all(_follow(a, b, axis) for a, b, axis in zip((one.a, one.b), (other.a, other.b), axes, strict=True))


def _follow(one: Value, other: Value, axis: int) -> bool:
    first, second = _part_of(one), _part_of(other)
    if first is None or second is None or first.source is not second.source:
        return False
    if first.source_axes != (0, 1) or second.source_axes != (0, 1) or len(tile.buffer_type(first.source).shape) != 2:
        return False
    if not all(_is_along_k(user, first.source) for user in first.source.uses):
        return False
    wanted, start = ([constant_of(each) for each in copy.source_offsets] or [0, 0] for copy in (first, second))
    if None in (*wanted, *start):
        return False
    wanted[axis] += first.shape[axis]
    return start == wanted and first.shape[1 - axis] == second.shape[1 - axis]


def _is_along_k(user: Operation, buffer: Value) -> bool:
    """Whether an access is to a whole tile, or to a part of it that an operand of a product is along K."""
    if not isinstance(user, tile.CopyOp):
        return True
    side = _side(user, buffer)
    if side is None:
        return False
    sizes: dict[int, int] = dict(zip(side[2], user.shape, strict=True))
    shape = tile.buffer_type(buffer).static_shape
    if sizes == dict(enumerate(shape)):
        return True
    if _part_of(user.target) is not user:
        return False
    (product,) = [each for each in user.target.uses if each is not user]
    if not isinstance(product, tile.GemmOp):
        return False
    axis = (0 if product.trans_a else 1) if product.a is user.target else 1 if product.trans_b else 0
    return sizes[1 - axis] == shape[1 - axis]


def _join(one: tile.GemmOp, other: tile.GemmOp) -> None:
    """Widen the operands of the first product, in front of the second, by those of the second."""
    fields = {"a": 0 if one.trans_a else 1, "b": 1 if one.trans_b else 0}
    for name, axis in fields.items():
        old, more = getattr(one, name), getattr(other, name)
        copy, added = _part_of(old), _part_of(more)
        assert copy is not None and added is not None, "_joins has looked"
        shape = list(copy.shape)
        shape[axis] += added.shape[axis]
        type = tile.buffer_type(old)
        alloc = tile.AllocOp(
            result_types=[BufferType(tuple(shape), type.dtype, type.scope)], loc=one.loc, names=[old.name]
        )
        assert old.op is not None and old.op.parent is not None and more.op is not None
        old.op.parent.insert(alloc, old.op)
        one.set_field(name, [alloc.result])
        copy.set_field("target", [alloc.result])
        copy.set_attribute("shape", tuple(shape))
        old.op.erase()
        other.set_field(name, [alloc.result])
        added.erase()
        more.op.erase()
    other.erase()
