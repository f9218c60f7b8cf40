"""Reads of on-chip tiles beyond their extent: those that are proven to take place are refused."""

from __future__ import annotations

from collections.abc import Iterator, Set

from tiledsl.analysis.dependence import ancestors, reached
from tiledsl.dialects import arith, scf, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds

# The least and the greatest number that an index takes, and the variables of loops that it is made of.
Taken = tuple[int, int, Set[Value]]


def refuse_reads_outside(func: tile.FuncOp, of_tiles: Set[Operation | None] = frozenset()) -> None:
    """Raise TileError for the first read of an element of an on-chip tile that is certainly outside of the tile.

    Certain is what no condition keeps from being done, at an index that takes each number from its least to its
    greatest one. A read whose value a condition, a logical operation or the bounds of a tensor may leave unused stays,
    and so does each read of code for one thread, which may have returned.
    """
    for op in of_kinds(func.walk(), tile.LoadOp):
        if op in of_tiles or tile.buffer_type(op.buffer).scope == "global":
            continue
        for axis, (index, size) in enumerate(zip(op.indices, tile.buffer_type(op.buffer).static_shape, strict=True)):
            if index.op is not None and arith.constant_of(index) is not None:
                continue  # a number of the program's text is checked there
            taken = _taken(index)
            if taken is None or (taken[0] >= 0 and taken[1] < size) or taken[1] < 0 or not _is_certain(op):
                continue
            worst, inside = (taken[1], f"< {size}") if taken[1] >= size else (taken[0], ">= 0")
            name = op.buffer.name or "the tile"
            raise TileError(
                f"index {worst} is outside dimension {axis} of {name}, which has {size}: the index goes from "
                f"{taken[0]} to {taken[1]}",
                op.loc,
                notes=[f"guard the read, T.if_then_else(index {inside}, {name}[...], 0), or make the loop shorter"],
                code="index-outside",
            )


def _taken(index: Value) -> Taken | None:
    """What an index takes that is a sum of variables of loops, each once; None where that is not known."""
    op = index.op
    if op is None:
        return _of_loop(index)
    if isinstance(op, arith.ConstantOp):
        return (int(op.value), int(op.value), frozenset())
    if isinstance(op, arith.CastOp):
        return _taken(op.source) if op.out.dtype in ("int32", "int64") else None
    if not isinstance(op, (arith.AddOp, arith.SubOp, arith.MulOp)):
        return None
    left, right = _taken(op.lhs), _taken(op.rhs)
    if left is None or right is None or left[2] & right[2]:
        return None
    variables = left[2] | right[2]
    if isinstance(op, arith.AddOp):
        ends = left[0] + right[0], left[1] + right[1]
    elif isinstance(op, arith.SubOp):
        ends = left[0] - right[1], left[1] - right[0]
    elif left[2] and right[2]:
        return None
    else:
        corners = [a * b for a in left[:2] for b in right[:2]]
        ends = min(corners), max(corners)
    fits = ends[0] >= -(1 << 31) and ends[1] < 1 << 31
    return (*ends, variables) if fits else None


def _of_loop(variable: Value) -> Taken | None:
    loop = getattr(variable.owner, "parent", None)
    if isinstance(loop, tile.ParallelOp) and not loop.lockstep:
        return 0, loop.extents[loop.body.args.index(variable)] - 1, frozenset([variable])
    numbers = _numbers(loop) if isinstance(loop, scf.ForOp) and variable is loop.index else None
    return (min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1]), frozenset([variable])) if numbers else None


def _numbers(loop: scf.ForOp) -> range | None:
    """The numbers that a loop counts, if they are known."""
    bounds = [arith.constant_of(each) for each in (loop.lower, loop.upper, loop.step)]
    lower, upper, step = (each if type(each) is int else None for each in bounds)
    return None if lower is None or upper is None or not step else range(lower, upper, step)


def _is_certain(op: tile.LoadOp) -> bool:
    """Whether each iteration of the loops around does the read, and nothing afterwards may leave its value unused."""
    around = list(ancestors(op))
    for each in around:
        if isinstance(each, scf.ForOp):
            if not _numbers(each):
                return False
        elif not isinstance(each, (tile.ParallelOp, tile.KernelOp, tile.FuncOp)) or getattr(each, "lockstep", False):
            return False
    users = [user for value in reached([op.out], _computed_from) for user in value.uses]
    return not any(_may_be_left_out(user, around) for user in users)


def _computed_from(value: Value) -> Iterator[Value]:
    return (out for user in value.uses for out in user.results)


def _may_be_left_out(user: Operation, around: list[Operation]) -> bool:
    if isinstance(user, (arith.SelectOp, arith.AndOp, arith.OrOp)):
        return True
    if isinstance(user, (tile.StoreOp, tile.AtomicOp, tile.LoadOp)) and (
        tile.buffer_type(user.buffer).scope == "global" and not _is_inside(user)
    ):
        return True
    return any(each not in around and isinstance(each, (scf.IfOp, scf.WhileOp)) for each in ancestors(user))


def _is_inside(access: tile.StoreOp | tile.AtomicOp | tile.LoadOp) -> bool:
    """Whether an access to a tensor is proven to be within it: what is outside is not done."""
    from tiledsl.analysis.ranges import Ranges

    ranges = Ranges.around(access)
    sizes = tile.buffer_type(access.buffer).shape
    for index, size in zip(access.indices, sizes, strict=True):
        found = ranges.of(index)
        if not isinstance(size, int) or found.lo < 0 or found.hi >= size:
            return False
    return True
