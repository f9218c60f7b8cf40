"""Work items of a kernel for Gluon. Part of lower-to-triton."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tiledsl.analysis.dependence import depends_on
from tiledsl.dialects import arith, gluon, scf, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.passes.index_arithmetic import IndexArithmetic


def lower_gluon(launch: triton.LaunchOp, indices: Sequence[Value], persistent: bool) -> None:
    """Compute the block's indices from the work item.

    A persistent kernel has as many programs as the device has multiprocessors; each takes one block after the other,
    and the first index changes fastest, after those that what a loop loads does not depend on. Otherwise each program
    has one block. If loops get longer as an index grows, that index changes fastest, and blocks are distributed so that
    programs end together (gluon.longest_first). Without persistent programs, and if loops get shorter as an index
    grows, each program has one block, in panels of which the longest come first.
    """
    host, inside = (
        IndexArithmetic(Builder.at(launch)),
        IndexArithmetic(Builder(launch.body, launch.body.first, launch.loc)),
    )
    extents = list(launch.grid)
    several = [index for index, extent in zip(indices, extents, strict=True) if constant_of(extent) != 1]
    growing = next((index for index in several if _loops_grow_with(index, launch)), None)
    shrinking = next((index for index in several if _loops_grow_with(index, launch, -1)), None)
    if not persistent or shrinking is not None:
        uneven = shrinking if growing is None else growing
        if uneven is not None and len(several) > 1:
            places = _in_panels(launch, indices.index(uneven), host, inside)
        else:
            places = [inside.at.insert(triton.ProgramIdOp(axis=axis)).result for axis in range(len(indices))]
        for index, place, extent in zip(indices, places, extents, strict=True):
            place.name = index.name
            if index is growing:
                last = inside.apply(arith.SubOp, extent, inside.constant(1))
                place = inside.apply(arith.SubOp, last, place)
            index.replace_with(place)
        return
    processors = host.at.insert(triton.MultiprocessorsOp(names=["multiprocessors"])).out
    order = [axis for axis, index in enumerate(indices) if index is not growing]
    order.sort(key=lambda axis: _chooses_tiles(indices[axis], launch))
    others = _product(host, [extents[axis] for axis in order])
    if growing is None:
        blocks, remaining = others, inside.at.insert(gluon.WorkItemOp(others, names=["item"])).out
    else:
        extent = extents[indices.index(growing)]
        blocks = host.apply(arith.MulOp, extent, others)
        balanced = inside.at.insert(gluon.LongestFirstOp(extent, others, names=[growing.name, "rest"]))
        growing.replace_with(balanced.index)
        remaining = balanced.rest
    for axis, place in zip(order, _divided(inside, remaining, [extents[axis] for axis in order]), strict=True):
        indices[axis].replace_with(place)
    launch.set_field("grid", [host.at.insert(arith.MinOp(blocks, processors, names=["programs"])).result])


def _in_panels(launch: triton.LaunchOp, axis: int, host: IndexArithmetic, inside: IndexArithmetic) -> list[Value]:
    """A program for each block, and its indices: panels of as many blocks as run two times at once, each walked along
    the other indices first. What runs at a time shares tiles, and the last blocks that begin are among the shortest."""
    extent, others = launch.grid[axis], [size for number, size in enumerate(launch.grid) if number != axis]
    rows = _product(host, others)
    processors = host.at.insert(triton.MultiprocessorsOp(names=["multiprocessors"])).out
    twice = host.apply(arith.MulOp, processors, host.constant(2))
    at_least_one = host.apply(arith.MaxOp, extent, host.constant(1))
    height = host.apply(arith.MaxOp, host.apply(arith.FloorDivOp, twice, at_least_one), host.constant(1), "panel_rows")
    size = host.apply(arith.MulOp, height, extent, "panel_blocks")
    launch.set_field("grid", [host.apply(arith.MulOp, extent, rows, "blocks")])
    block = inside.at.insert(triton.ProgramIdOp(axis=0, names=["block"])).result
    first = inside.apply(arith.MulOp, inside.apply(arith.TruncDivOp, block, size, "panel"), height, "first_row")
    within = inside.apply(arith.TruncModOp, block, size, "within")
    height = inside.apply(arith.MinOp, inside.apply(arith.SubOp, rows, first), height, "height")
    row = inside.apply(arith.AddOp, first, inside.apply(arith.TruncModOp, within, height), "row")
    places = _divided(inside, row, others)
    places.insert(axis, inside.apply(arith.TruncDivOp, within, height))
    return places


def _divided(inside: IndexArithmetic, number: Value, extents: Sequence[Value]) -> list[Value]:
    """The indices that a number stands for, of which the first changes fastest."""
    places = []
    for extent in extents[:-1]:
        places.append(inside.apply(arith.TruncModOp, number, extent))
        number = inside.apply(arith.TruncDivOp, number, extent)
    return [*places, number][: len(extents)]


def _chooses_tiles(index: Value, launch: triton.LaunchOp) -> bool:
    """Whether loops load other tiles if an index changes. Programs that run at the same time shall load the same
    ones."""
    loads = [op for op in launch.body.walk() if gluon.loads_tile(op) and op.parent is not launch.body]
    return any(depends_on(value, [index]) for load in loads for value in load.operands)


def _product(at: IndexArithmetic, factors: Sequence[Value]) -> Value:
    made = at.constant(1)
    for factor in factors:
        made = at.apply(arith.MulOp, made, factor)
    return made


def _loops_grow_with(index: Value, launch: triton.LaunchOp, step: int = 1) -> bool:
    """Whether the iterations of the body's loops never decrease as an index of the block grows, or with a step of -1 as
    it becomes less, and increase somewhere."""
    loops = [op for op in launch.body if isinstance(op, scf.ForOp)]
    known: dict[Value, int | None] = {index: step}
    lower = [_direction(loop.lower, known) for loop in loops]
    upper = [_direction(loop.upper, known) for loop in loops]
    chained = all(following.lower is before.upper for before, following in pairwise(loops))
    if chained:  # what one loop has more, the next has less
        lower, upper = lower[:1], upper[-1:]
    if None in (*lower, *upper) or 1 in lower or -1 in upper:
        return False
    return 1 in upper or step < 0 and -1 in lower


def _direction(value: Value, directions: dict[Value, int | None]) -> int | None:
    """How a value moves with the `known` ones: 1 never down, -1 never up, 0 not at all, None unknown."""
    if value not in directions:
        op = value.op
        directions[value] = 0
        if op is not None and not op.regions:
            each = [_direction(operand, directions) for operand in op.operands]
            directions[value] = _combined(op, each) if any(one != 0 for one in each) else 0
    return directions[value]


def _combined(op: Operation, numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    match op, known:
        case arith.CastOp(), [a]:
            return a
        case arith.NegOp(), [a]:
            return -a
        case ((arith.AddOp() | arith.MaxOp() | arith.MinOp()), [a, b]):
            pass
        case arith.SubOp(), [a, b]:
            b = -b
        case ((arith.MulOp() | arith.FloorDivOp() | arith.TruncDivOp()), [a, b]):
            factor = constant_of(op.rhs)
            if factor is None and isinstance(op, arith.MulOp):
                factor, a, b = constant_of(op.lhs), b, a
            return None if factor is None or factor <= 0 or b else a
        case arith.ShrOp(), [a, b]:
            return None if b else a
        case _:
            return None
    return a or b if not (a and b) or a == b else None
