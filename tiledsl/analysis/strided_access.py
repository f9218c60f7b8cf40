"""How the indices of an access to an on-chip buffer move along its dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tiledsl.analysis.affine import INDEX_DTYPES, bounds, linear_form
from tiledsl.analysis.linear import LinearForm, Reader
from tiledsl.dialects import arith, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import Shape


class Index(NamedTuple):
    """How one dimension of the buffer is addressed: by a scalar, regularly, or by any tensor (general).

    A regular index moves along one dimension of the result. identity: the whole dimension in order; slice: from an
    offset; strided: every n-th element; repeated: i // n; wrapped: i % n.
    """

    kind: str  # scalar, identity, slice, strided, repeated, wrapped or general
    value: Value
    axis: int = -1  # of the result, for walks
    extent: int = 1
    offset: Value | int = 0  # of a slice; of a strided walk
    step: int = 1  # of a strided walk; how often a repeated one stays


def classify(indices: Sequence[Value], shape: Sequence[int], *, writes: bool = False) -> list[Index]:
    """The kinds of the indices into a buffer of this shape. Of two regular ones along one axis, the second is
    general."""
    classified: list[Index] = []
    taken: set[int] = set()
    for index, dim in zip(indices, shape, strict=True):
        one = Index("scalar", index) if not index.shape else _walk(index, dim) or Index("general", index)
        if one.axis in taken or writes and one.kind in ("repeated", "wrapped"):
            one = Index("general", index)
        if one.axis >= 0:
            taken.add(one.axis)
        classified.append(one)
    return classified


def _walk(index: Value, dim: int) -> Index | None:
    """A regular index into a dimension of this size; None for others."""
    op = index.op
    if isinstance(op, (arith.FloorDivOp, arith.FloorModOp)):
        inner, number = _affine(op.lhs), constant_of(op.rhs)
        if inner is None or number is None or inner[2:] != (1, 0):
            return None
        axis, extent = inner[:2]
        if isinstance(op, arith.FloorDivOp) and extent == dim * number:
            return Index("repeated", index, axis, extent, step=int(number))
        if isinstance(op, arith.FloorModOp) and number == dim and extent % dim == 0:
            return Index("wrapped", index, axis, extent)
        return None
    affine = _affine(index)
    if affine is None:
        return None
    axis, extent, step, offset = affine
    if step == 1:
        return Index("identity" if extent == dim and offset == 0 else "slice", index, axis, extent, offset)
    assert isinstance(offset, int)
    if 0 <= offset < step and extent * step == dim:
        return Index("strided", index, axis, extent, offset, step)
    return None


def backwards(index: Value) -> tuple[int, int, int, Value, int] | None:
    """(axis, extent, step, first, offset) of an index that is first - (offset + step * iota), with a positive step and
    a scalar `first`; None for others."""
    op = index.op
    if not isinstance(op, arith.SubOp) or op.lhs.shape:
        return None
    affine = _affine(op.rhs)
    if affine is None:
        return None
    axis, extent, step, offset = affine
    return (axis, extent, step, op.lhs, offset) if step >= 1 and isinstance(offset, int) else None


class SubIndex(NamedTuple):
    """One digit of an index in mixed radix: `offset` plus the value `walk`, which is in 0 .. extent - 1."""

    size: int
    walk: Value | None
    extent: int
    offset: int


def digits(index: Value, dim: int) -> list[SubIndex] | None:
    """The digits of an index such as i * 8 + j (most significant first), for a dimension of `dim` elements.

    The dimension can then be treated as several, each with an index of its own. None if the index is not a sum of this
    kind, or if a digit could carry into the next.
    """
    if not index.shape:
        return None
    terms: list[tuple[int, int, Value]] = []
    offset = 0
    for factors, coefficient in linear_form(index).terms.items():
        if not factors:
            offset = coefficient
            continue
        walk, *others = factors
        ends = bounds(walk) if not walk.shape or isinstance(walk.op, tensor.IotaOp) else None
        if others or ends is None or ends[0] < 0 or coefficient < 1:
            return None
        if ends[1] > 0:
            terms.append((coefficient, ends[1] + 1, walk))
    if len(terms) < 2 or offset < 0:
        return None
    sub_indices: list[SubIndex] = []
    unit = dim
    last: tuple[int, int, Value | None] = (1, 1, None)
    for step, extent, value in [*sorted(terms, key=lambda term: -term[0]), last]:
        size, rest = divmod(unit, step)
        start = offset // step
        if rest or start + extent > size:
            return None
        offset, unit = offset % step, step
        if size > 1:
            sub_indices.append(SubIndex(size, value, extent, start))
    return sub_indices


def in_order(indices: Sequence[Value], shape: Shape) -> bool:
    """Whether the whole buffer is addressed, each dimension along the axis of the same number."""
    rank = len(shape)
    for axis, index in enumerate(indices):
        op, extents = index.op, index.shape
        if not isinstance(op, tensor.IotaOp) or op.axis != axis or len(extents) != rank or extents[axis] != shape[axis]:
            return False
    return True


def replaces_all(op: Operation) -> bool:
    """Whether a write or store leaves nothing of what was in its buffer before."""
    if isinstance(op, tile.StoreOp):
        return covers_whole(op.indices, op.mask, tile.buffer_type(op.buffer).static_shape)
    return isinstance(op, tile.WriteOp)


def covers_whole(indices: Sequence[Value], mask: Value | None, shape: Shape) -> bool:
    """Whether a store writes every element of the buffer."""
    if mask is not None:
        return False
    if in_order(indices, shape):
        return True
    walked: list[Value] = []
    for index, dim in zip(indices, shape, strict=True):
        sub_indices = digits(index, dim)
        if sub_indices is None:
            (walk,) = classify([index], (dim,))
            if walk.kind == "identity":
                walked.append(index)
            elif dim != 1 or prod(index.shape) != 1:
                return False
            continue
        for part in sub_indices:
            if part.walk is None or not part.walk.shape or part.extent != part.size:
                return False
            walked.append(part.walk)
    # Two walks along one axis cover a diagonal.
    axes = [axis for walk in walked for axis, size in enumerate(walk.shape) if size > 1]
    return len(set(axes)) == len(axes)


class _WalkReader(Reader):
    """Sums of iotas and scalars, with constant factors.

    Indices are taken not to wrap, for what lies outside of a tile is undefined; of other types that must be proved.
    """

    def stops(self, value: Value) -> bool:
        return not value.shape or isinstance(value.op, tensor.IotaOp)

    def looks_through(self, op: Operation) -> bool:
        return isinstance(op, arith.CastOp)

    def holds(self, value: Value, form: LinearForm) -> bool:
        is_cast = isinstance(value.op, arith.CastOp)
        if (is_cast or value.dtype not in INDEX_DTYPES) and bounds(value) is None:
            return False
        return not is_cast or all(each.shape for factors in form.terms for each in factors)

    def opaque(self, value: Value) -> None:
        return None


_READER = _WalkReader()


def _affine(index: Value) -> tuple[int, int, int, Value | int] | None:
    """(axis, extent, step, offset) of offset + step * iota; the offset may be a value only if the step is 1."""
    form = _READER.read(index)
    if form is None:
        return None
    scalars, walks = form.split()
    if len(walks.terms) != 1 or len(scalars.terms) > 1:
        return None
    (((iota,), step),) = walks.terms.items()
    assert isinstance(iota.op, tensor.IotaOp)
    axis, extent, offset = iota.op.axis, iota.op.extent, [value for factors in scalars.terms for value in factors]
    if not offset:
        return axis, extent, step, form.constant
    (start,) = offset
    return (axis, extent, step, start) if step == 1 == scalars.coefficient(start) else None
