"""Tiles whose rows are no block: which of them threads of a producer can copy to shared memory, row by row."""

from __future__ import annotations

from math import prod

from tiledsl.analysis.affine import divisor
from tiledsl.analysis.block_access import ALIGNMENT, NoBlock, start_and_walk
from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.linear import LinearForm
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.types import ELEMENTS

GATHERED = "rows"  # the ring of such a load until schedule-loops names it


def has_whole_rows(load: tile.LoadOp, ranges: Ranges) -> bool:
    """Whether each row of a tile is a piece of the buffer's last dimension, in aligned pieces of 16 bytes, of which a
    mask leaves out all or nothing, which is 0 then."""
    buffer, shape = tile.buffer_type(load.buffer), load.out.shape
    last = buffer.shape[-1]
    wanted = ALIGNMENT * 8 // ELEMENTS[buffer.dtype].bits
    if len(shape) != 2 or buffer.scope != "global" or buffer.strides is not None or not isinstance(last, int):
        return False
    if last % wanted or shape[1] % wanted:
        return False
    if load.other is not None and repr(constant_of(load.other)) not in ("0", "0.0"):
        return False
    try:
        start, columns = start_and_walk(load.indices[-1])
    except NoBlock:
        return False
    if columns is None or columns.axis != 1 or not _is_aligned(start, wanted):
        return False
    place = ranges.of(load.indices[-1])
    if place.lo < 0 or place.hi >= last:
        return False
    others = [*load.indices[:-1], *([] if load.mask is None else [load.mask])]
    return all(stripped(each, tensor.BroadcastOp).shape in ((), (shape[0], 1)) for each in others)


def _is_aligned(start: LinearForm, wanted: int) -> bool:
    return not any(coefficient * prod(map(divisor, factors)) % wanted for factors, coefficient in start.terms.items())
