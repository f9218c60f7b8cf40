"""Groups of four warps that take the turns of a loop in turn, each with half of the columns of its sums. Part of
select-emitter.

While one group computes what comes of its turn's first products, the other's products run. A group tells the other what
it needs of a turn through shared memory (analysis/gluon/alternation.py).
"""

from __future__ import annotations

from tiledsl.analysis.gluon.alternation import alternation, sums_of_groups, why_not
from tiledsl.analysis.gluon.plan import LATENT_COLUMNS
from tiledsl.analysis.gluon.schedule import PAIR
from tiledsl.analysis.gluon.tile_loops import NotRecognised, TileLoops, tile_loops
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.ir.core import Region, Value
from tiledsl.passes.gluon.groups_apart import WARPS


def halved_sums(body: Region) -> list[Value]:
    """The sums of which each group has half of the columns."""
    return [product.out for loop in tile_loops(body).loops for product in loop.late]


def is_wide(body: Region) -> bool:
    """Whether sums are as wide as those of which turns in turn have been measured to be faster than all others."""
    return {value.shape[1] for value in halved_sums(body)} == {LATENT_COLUMNS}


def alternate_turns(found: TileLoops, warps: int, left: int) -> int:
    """Have two groups take the turns of the only loop; what is left of so many bytes of shared memory beside the rows
    that they tell each other. Raises NotRecognised where they cannot."""
    *others, loop = found.loops
    if warps != WARPS:
        raise NotRecognised(f"groups take turns in blocks of {32 * WARPS} threads, not {32 * warps}", loop.op)
    if others or not found.kept:
        raise NotRecognised("groups take turns in one loop, before which tiles are loaded", loop.op)
    if loop.op.num_stages < PAIR:
        raise NotRecognised(f"groups that take turns need tiles of {PAIR} turns in shared memory", loop.op)
    sums = sums_of_groups(loop)
    wrong = why_not(loop.op, sums)
    if wrong is not None:
        raise NotRecognised(*wrong)
    told = [op.out for op in alternation(loop.op, sums).told]
    left -= sum(map(tensor_bytes, told))
    if left < 0:
        raise NotRecognised(f"what groups tell each other needs {-left} bytes more of shared memory", loop.op)
    loop.op.set_attribute("unroll", PAIR)
    return left
