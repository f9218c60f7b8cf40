"""Loops of one thread that only update elements of its own, as sums of products of its arrays are made."""

from __future__ import annotations

from math import prod

from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import scf, tile
from tiledsl.ir.core import Operation
from tiledsl.passes.parallelize_loops.independent import accesses_in, defined_in, has_views, iterations, picks
from tiledsl.passes.parallelize_loops.reductions import only_updates
from tiledsl.passes.vectorize_parallel.updates import Update


def updates_of_thread(loop: scf.ForOp) -> list[Update] | None:
    """The updates of a thread's own elements that are all a serial loop does; None if it does more.

    Its index picks elements of a tile on the chip, with the arrays of all threads for one, that is as large as the loop
    has points, and of arrays that are used as a whole elsewhere, too: their elements would else have names.
    """
    points, threads, updates = iterations(loop), _threads(loop), _updates(loop)
    if not updates or points is None:
        return None
    accesses, sizes = accesses_in(loop), list[int]()
    assert threads is not None and accesses is not None, "updates are those of threads"
    for buffer, ops in accesses.items():
        type = tile.buffer_type(buffer)
        if type.scope == "global" or not picks(ops, loop.index):
            continue
        own = type.scope == "local"
        if own and not all(map(_is_of_whole, buffer.uses)):
            return None
        sizes.append(prod(type.static_shape) * (prod(threads.extents) if own else 1))
    return updates if any(size >= len(points) * prod(threads.extents) for size in sizes) else None


def _updates(loop: scf.ForOp) -> list[Update] | None:
    """The updates of the thread's elements that a loop without branches and loops consists of."""
    if _threads(loop) is None or any(op.regions for op in loop.body) or (accesses := accesses_in(loop)) is None:
        return None
    defined, updates = defined_in(loop), list[Update]()
    for buffer, ops in accesses.items():
        if all(isinstance(op, tile.LoadOp) for op in ops):
            continue
        found = only_updates(ops, loop, defined)
        if found is None or tile.buffer_type(buffer).scope != "local" or has_views(buffer):
            return None
        updates += found
    return updates


def _threads(loop: scf.ForOp) -> tile.ParallelOp | None:
    """The threads that a loop is code for; None in a T.Parallel, for one point of that or for the block."""
    match [op for op in ancestors(loop) if isinstance(op, tile.ParallelOp)]:
        case [tile.ParallelOp(lockstep=True) as threads]:
            return threads
    return None


def _is_of_whole(op: Operation) -> bool:
    """Whether an access of an array goes on to be one of the whole array."""
    if not isinstance(op, (tile.LoadOp, tile.StoreOp)):
        return isinstance(op, (tile.FillOp, tile.WriteOp))
    around = next((each for each in ancestors(op) if isinstance(each, (scf.ForOp, tile.ParallelOp))), None)
    if isinstance(around, scf.ForOp):
        return around.index in op.indices and (around.vectorized or bool(_updates(around)))
    return around is not None and not around.lockstep
