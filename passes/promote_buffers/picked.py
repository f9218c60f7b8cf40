"""Which reads in loops take a part of an on-chip tile at the cost of the whole tile."""

from __future__ import annotations

from math import prod

from tiledsl.analysis.dependence import ancestors, depends_on
from tiledsl.analysis.strided_access import digits
from tiledsl.dialects import scf, tile
from tiledsl.ir.core import Operation, Value

# Smaller tiles are a few registers of each thread: a mask and a sum of these cost no more than other ways to a part.
_LARGE = 1024


def picked_in_loop(load: tile.LoadOp) -> str | None:
    """What to say of a read, by an index that a loop changes, that masks and sums all of a large tile; else None."""
    if not load.out.uses:
        return None
    size = prod(tile.buffer_type(load.buffer).static_shape)
    picks = _picks(load)
    around = (op for op in ancestors(load) if isinstance(op, (scf.ForOp, scf.WhileOp)))
    loop = next((op for op in around if any(depends_on(index, _changed(op)) for index in picks)), None)
    if size < _LARGE or loop is None:
        return None
    name = load.buffer.name or "an on-chip tile"
    where = f" (line {load.loc.line})" if load.loc else ""
    which = f"the loop in line {loop.loc.line}" if loop.loc else "a loop"
    return (
        f"{name}{where} is read in part in {which}: each step masks and sums all of its {size} elements for"
        f" {prod(load.out.shape)}; reduce or scan the whole tile, or read that part from global memory"
    )


def _picks(load: tile.LoadOp) -> list[Value]:
    """The indices, or their digits, that pick one of several positions."""
    picks: list[Value] = []
    for index, dim in zip(load.indices, tile.buffer_type(load.buffer).static_shape, strict=True):
        if prod(index.shape) == 1:
            picks += [index] if dim > 1 else []
        else:
            walks = (part.walk for part in digits(index, dim) or ())
            picks += [walk for walk in walks if walk is not None and prod(walk.shape) == 1]
    return picks


def _changed(loop: Operation) -> set[Value]:
    return {arg for region in loop.regions for arg in region.args}
