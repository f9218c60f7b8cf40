"""Copies and fills in a serial loop as loops over elements, which may become parallel together with what is around."""

from __future__ import annotations

from tiledsl.analysis.affine import linear_form
from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import AddOp
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.passes.tile_values import converted


def with_elements(loop: scf.ForOp) -> scf.ForOp | None:
    """The same loop, before it, with a T.Parallel for each copy and fill; None if it has none, or if the loop's index
    picks nothing from a tile on the chip."""
    ops = list(loop.body.walk())
    copies = [op for op in ops if isinstance(op, (tile.CopyOp, tile.FillOp))]
    if not copies or not any(_picks(op, loop.index) for op in ops) or not all(map(_is_plain, copies)):
        return None
    known = (tile.LoadOp, tile.StoreOp, tile.CopyOp, tile.FillOp, tile.ParallelOp, scf.IfOp, scf.ForOp, scf.YieldOp)
    if not all(isinstance(op, known) or op.is_pure for op in ops):
        return None
    clone = loop.clone({})
    assert isinstance(clone, scf.ForOp), "a loop"
    Builder.at(loop).insert(clone)
    for op in list(clone.body.walk()):
        if isinstance(op, tile.CopyOp):
            _copy(op)
        elif isinstance(op, tile.FillOp):
            _fill(op)
    return clone


def _is_plain(op: tile.CopyOp | tile.FillOp) -> bool:
    """Whether a loop over elements does the same."""
    if isinstance(op, tile.FillOp):
        return tile.is_on_chip(op.target)
    return op.source is not op.target and not op.safe_value and any(map(tile.is_on_chip, (op.source, op.target)))


def _picks(op: Operation, index: Value) -> bool:
    """Whether an operation reads or writes a part of a tile on the chip that a loop's index chooses."""
    places: list[tuple[Value, list[Value]]] = []
    if isinstance(op, (tile.LoadOp, tile.StoreOp)):
        places = [(op.buffer, list(op.indices))]
    elif isinstance(op, tile.CopyOp):
        places = [(op.source, list(op.source_offsets)), (op.target, list(op.target_offsets))]
    forms = (linear_form(each, through_names=True) for buffer, at in places if tile.is_on_chip(buffer) for each in at)
    return any(index in factors for form in forms for factors in form.terms)


def _points(op: Operation, shape: tuple[int, ...]) -> Builder:
    """The inside of a T.Parallel over a shape, in place of an operation."""
    region = Region([INT32 for _ in shape])
    Builder.at(op).insert(tile.ParallelOp(extents=shape, regions=[region]))
    return Builder(region, loc=op.loc)


def _copy(op: tile.CopyOp) -> None:
    inner = _points(op, op.shape)
    value = inner.insert(tile.LoadOp(op.source, _place(inner, op.source, op.source_offsets, op.source_axes))).result
    value = converted(inner, value, op.target.dtype)
    inner.insert(tile.StoreOp(value, op.target, _place(inner, op.target, op.target_offsets, op.target_axes)))
    op.erase()


def _place(inner: Builder, buffer: Value, offsets: list[Value], axes: tuple[int, ...]) -> list[Value]:
    points = dict(zip(axes, inner.region.args, strict=True))
    place: list[Value] = []
    for axis in range(len(tile.buffer_type(buffer).shape)):
        point, offset = points.get(axis), offsets[axis] if offsets else None
        if offset is None:
            place.append(inner.constant(0, INT32) if point is None else point)
        elif point is None:
            place.append(offset)
        else:
            place.append(inner.insert(AddOp(offset, converted(inner, point, offset.dtype))).out)
    return place


def _fill(op: tile.FillOp) -> None:
    inner = _points(op, tile.buffer_type(op.target).static_shape)
    inner.insert(tile.StoreOp(op.value, op.target, list(inner.region.args)))
    op.erase()
