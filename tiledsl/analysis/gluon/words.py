"""Tiles whose rows lie in shared memory so that what is computed from products with them can be an operand of 8 bits.

A lane has of a product's columns, side by side, some pairs, and wants fours of the operand that it computes from them.
If the right operand's rows lie in another order, row 4g + 2a + b of n at a n/2 + 2g + b, then two pairs of a lane, n/2
columns apart, are the four that it wants: no lane has to exchange any. All that is computed of such a product for each
column is then in that order, too: sums of rows add in it, and indices of columns are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeAlias

from tiledsl.analysis.affine import divisor
from tiledsl.analysis.gluon.schedule import block, in_words, is_stored
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, gluon, scf, tensor, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Region, Value
from tiledsl.ir.types import ELEMENTS

FOUR = 4  # elements of a word
MOST_BYTES = 128  # of a row, which is swizzled as a whole
_BY_ELEMENT = (arith.Elementwise, tensor.BroadcastOp)
InFours: TypeAlias = triton.LoadBlockOp | tensor.IotaOp | tensor.ReduceOp


def in_fours(extents: tuple[int, ...]) -> tuple[int, ...]:
    """A box or a buffer, seen so that its rows come in the order of words: all before them is one dimension."""
    *outer, rows, columns = extents
    return (*([prod(outer)] if outer else []), 2, rows // FOUR, 2, columns)


def order_in_fours(count: int) -> list[int]:
    """Which of so many rows or columns lie at each place."""
    return [FOUR * four + 2 * half + one for half in (0, 1) for four in range(count // FOUR) for one in (0, 1)]


def strides_in_fours(extents: tuple[int, ...]) -> tuple[int, ...]:
    """The distances of elements of a contiguous buffer, seen so."""
    *outer, rows, columns = extents
    return (*([rows * columns] if outer else []), 2 * columns, FOUR * columns, columns, 1)


def differs_by_column(value: Value) -> bool:
    """Whether each column is computed from a product's column of its own, for all that a compiler can know."""
    op = value.op
    if isinstance(op, scf.IfOp):
        number = op.results.index(value)
        return all(differs_by_column(region.terminator.operands[number]) for region in op.regions)
    if isinstance(op, arith.SelectOp) and _may_be_known(op.operands[0]):
        return False
    if isinstance(op, arith.Elementwise):
        return any(map(differs_by_column, op.operands))
    return isinstance(op, tensor.DotOp)


def _may_be_known(value: Value) -> bool:
    """Whether nothing that a launch gives is in a value: no block's index, no argument and nothing that is loaded."""
    if isinstance(value.owner, Region):
        return not isinstance(value.owner.parent, triton.LaunchOp)
    of_launch = isinstance(value.owner, (gluon.WorkItemOp, gluon.LongestFirstOp))
    return not of_launch and all(map(_may_be_known, value.owner.operands))


class NotInFours(Exception):
    """Something sees the order of columns."""


def may_come_in_fours(launch: triton.LaunchOp) -> list[InFours]:
    """The tiles whose rows may lie in the order of words, the indices along columns of products with them and what
    reduces these columns; none if not all that operands of 8 bits are computed from can."""
    products = [op for op in launch.body.walk() if isinstance(op, tensor.DotOp)]
    operands = [each.a for each in products if in_words(each) and block(each.a) is None]
    if any(is_stored(each, launch.warps) for each in products if each.a in operands):
        return []
    try:
        found = _Columns(operands)
        for load in found.loads:
            _check(load, launch, Ranges.around(launch), found.loads)
    except NotInFours:
        return []
    return [*found.loads, *found.indices, *found.reductions]


class _Columns:
    """All that has a value for each column of products that `operands` are computed from. Raises NotInFours."""

    def __init__(self, operands: list[Value]) -> None:
        self.operands = operands
        self.loads: set[triton.LoadBlockOp] = set()
        self.indices: set[tensor.IotaOp] = set()
        self.reductions: set[tensor.ReduceOp] = set()
        left = [source for value in operands for source in self._sources(value)]
        seen: set[Value] = set()
        while left:
            value = left.pop()
            if value not in seen and len(value.shape) == 2 and value.shape[1] > 1 and constant_of(value) is None:
                seen.add(value)
                left += [*self._sources(value), *self._users(value)]

    def _sources(self, value: Value) -> list[Value]:
        op = value.op
        if isinstance(op, _BY_ELEMENT):
            return list(op.operands)
        if isinstance(op, scf.IfOp):
            number = op.results.index(value)
            return [region.terminator.operands[number] for region in op.regions]
        if isinstance(op, tensor.IotaOp) and op.axis == 1:
            self.indices.add(op)
            return []
        load = block(op.b) if isinstance(op, tensor.DotOp) else None
        if not isinstance(op, tensor.DotOp) or not isinstance(load, triton.LoadBlockOp):
            raise NotInFours
        self.loads.add(load)
        turned = [user for user in load.out.uses if isinstance(user, tensor.TransposeOp)]
        readers = [each for user in turned for each in user.out.uses]
        if len(turned) < len(load.out.uses) or not all(isinstance(each, tensor.DotOp) for each in readers):
            raise NotInFours
        return [op.accumulator, *(each.results[0] for each in readers)]

    def _users(self, value: Value) -> Iterator[Value]:
        for user in value.uses:
            if isinstance(user, scf.YieldOp) and isinstance(user.parent_op, scf.IfOp):
                yield user.parent_op.results[user.operands.index(value)]
            elif isinstance(user, _BY_ELEMENT) and user.results[0] not in self.operands:
                yield user.results[0]
            elif isinstance(user, tensor.DotOp) and user.accumulator is value:
                yield user.out
            elif isinstance(user, tensor.ReduceOp) and user.axis == 1:
                self.reductions.add(user)
            elif not isinstance(user, _BY_ELEMENT):
                raise NotInFours


def _check(load: triton.LoadBlockOp, launch: triton.LaunchOp, ranges: Ranges, loads: set[triton.LoadBlockOp]) -> None:
    """Raises NotInFours if a tile's rows cannot be loaded in that order."""
    sizes = [size for size in tile.buffer_type(described(load, launch).buffer).shape if isinstance(size, int)]
    *outer, start, _ = load.starts
    inner = [ranges.of(index) for index in outer[1:]]  # what lies outside of the first dimension is outside of all
    if (
        len(sizes) < len(load.starts)
        or any(found.lo < 0 or found.hi >= size for found, size in zip(inner, sizes[1:]))
        or load.axes != (len(outer), len(outer) + 1)
        or sizes[-2] % FOUR
        or divisor(start) % FOUR
        or load.out.shape[1] * ELEMENTS[load.out.dtype].bits > 8 * MOST_BYTES
        or load.parent is launch.body
        or not loads.issuperset(load.descriptor.uses)
    ):
        raise NotInFours


def described(load: triton.LoadBlockOp, launch: triton.LaunchOp) -> triton.DescriptorOp:
    """The host's descriptor that a tile is loaded through."""
    op = launch.arguments[launch.body.args.index(load.descriptor)].op
    assert isinstance(op, triton.DescriptorOp)
    return op
