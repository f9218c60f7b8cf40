"""Buffers that each iteration of a serial loop fills anew before it reads them: each gets one of its own."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.parallel_locals import is_in_parallel
from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, BufferType
from tiledsl.passes.parallelize_loops.independent import Access
from tiledsl.passes.parallelize_loops.totals import is_of_points, number_of, points_of, precedes


@dataclass(frozen=True)
class Temporary:
    """A store of all of a buffer, and the reads behind it."""

    store: tile.StoreOp
    reads: list[tile.LoadOp]


def temporary_of(ops: list[Access], loop: scf.ForOp) -> Temporary | None:
    """What a loop that stands in no T.Parallel does to a buffer, if that is to fill and then to read it."""
    stores = [op for op in ops if not isinstance(op, tile.LoadOp)]
    store = stores.pop() if len(stores) == 1 else None
    if not isinstance(store, tile.StoreOp) or store.mask is not None or constant_of(loop.step) != 1:
        return None
    args, type = points_of(store, loop), tile.buffer_type(store.buffer)
    if args is None or store.indices != [*args] or type.scope == "global" or is_of_points(store.buffer):
        return None
    if type.static_shape != tuple(args.values()):
        return None
    if is_in_parallel(loop):
        return None
    reads = [op for op in ops if isinstance(op, tile.LoadOp)]
    return None if any(precedes(op, store) for op in reads) else Temporary(store, reads)


def expand(temporary: Temporary, loop: scf.ForOp, points: range) -> None:
    """Give the buffer a row for each iteration; after the loop it is the last one, if anything reads it there."""
    store, buffer = temporary.store, temporary.store.buffer
    type, builder = tile.buffer_type(buffer), Builder.at(loop)
    wide = BufferType((len(points), *type.static_shape), type.dtype, "fragment")
    rows = builder.insert(tile.AllocOp(result_types=[wide], names=[buffer.name])).out
    for read in temporary.reads:
        here = Builder.at(read)
        place = [number_of(here, loop.index, points.start), *read.indices]
        read.out.replace_with(
            here.insert(tile.LoadOp(rows, place, read.mask, read.other, names=[read.out.name])).result
        )
        read.erase()
    args = list(store.indices)
    here = Builder.at(store)
    here.insert(tile.StoreOp(store.value, rows, [number_of(here, loop.index, points.start), *args]))
    store.erase()
    if not buffer.uses:
        return
    assert loop.parent is not None, "a loop stands in a kernel"
    behind = Builder(loop.parent, loop.next, loop.loc)
    last_row = behind.constant(len(points) - 1, INT32)
    place = args
    if args:
        region = Region([INT32 for _ in args], [arg.name for arg in args])
        behind.insert(tile.ParallelOp(extents=type.static_shape, regions=[region]))
        behind, place = Builder(region, loc=loop.loc), list[Value](region.args)
    value = behind.insert(tile.LoadOp(rows, [last_row, *place], None, None)).result
    behind.insert(tile.StoreOp(value, buffer, place))
