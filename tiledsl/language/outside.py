"""Accesses to on-chip tiles beyond their extent: those that are proven to take place are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from tiledsl.analysis.dependence import ancestors, reached
from tiledsl.dialects import arith, scf, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds

# The least and the greatest number that an index takes, and the variables of loops that it is made of.
Taken = tuple[int, int, Set[Value]]


def refuse_accesses_outside(func: tile.FuncOp, of_tiles: Set[Operation | None] = frozenset()) -> None:
    """Raise TileError for the first access to an element of an on-chip tile that is certainly outside of the tile.

    Certain is what no condition keeps from being done, at an index that takes its least and its greatest number. A read
    whose value a condition, a logical operation or the bounds of a tensor may leave unused stays, and so does each read
    of code for one thread, which may use the value in some threads only. Atomics leave out what is outside.
    """
    accesses: list[tile.LoadOp | tile.StoreOp | tile.CopyOp] = of_kinds(
        func.walk(), tile.LoadOp, tile.StoreOp, tile.CopyOp
    )
    for op in accesses:
        if isinstance(op, tile.CopyOp):
            _check(op, op.target, op.target_offsets, _sizes(op, op.target, op.target_axes), "write")
            _check(op, op.source, op.source_offsets, _sizes(op, op.source, op.source_axes), "read")
        elif op not in of_tiles:
            does = "read" if isinstance(op, tile.LoadOp) else "write"
            _check(op, op.buffer, op.indices, (1,) * len(op.indices), does)


def _sizes(op: tile.CopyOp, buffer: Value, axes: Sequence[int]) -> list[int]:
    """How many elements a copy walks along each dimension of a buffer."""
    sizes = [1] * len(tile.buffer_type(buffer).shape)
    for axis, size in zip(axes, op.shape, strict=True):
        sizes[axis] = size
    return sizes


def _check(
    op: Operation,
    buffer: Value,
    indices: Sequence[Value],
    sizes: Sequence[int],
    does: str,
) -> None:
    """Refuse an access at the indices, of that many elements along each dimension."""
    if not tile.is_on_chip(buffer) or 0 in sizes:
        return
    for axis, (index, size, dim) in enumerate(zip(indices, sizes, tile.buffer_type(buffer).static_shape)):
        if size == 1 and index.op is not None and arith.constant_of(index) is not None:
            continue  # a number of the program's text is checked there
        taken = _taken(index)
        if taken is None:
            continue
        low, high = taken[0], taken[1] + size - 1
        if (low >= 0 and high < dim) or high < 0 or not _is_certain(op, does):
            continue
        worst, inside = (high, f"< {dim}") if high >= dim else (low, ">= 0")
        name = buffer.name or "the tile"
        guard = (
            f"guard the read, T.if_then_else(index {inside}, {name}[...], 0)"
            if does == "read"
            else f"put the write under a condition, if index {inside}:"
        )
        if isinstance(op, tile.CopyOp):
            guard = f"copy in a T.Parallel, under a condition, if index {inside}:"
        raise TileError(
            f"index {worst} is outside dimension {axis} of {name}, which has {dim}: the index goes from {low} to "
            f"{high}",
            op.loc,
            notes=[f"{guard}, or make the loop shorter"],
            code="index-outside",
        )


def _taken(index: Value) -> Taken | None:
    """What an index takes that is made of variables of loops, each once; None where that is not known."""
    op = index.op
    if op is None:
        return _of_loop(index)
    if isinstance(op, arith.ConstantOp):
        return (int(op.value), int(op.value), frozenset())
    if isinstance(op, arith.CastOp):
        return _taken(op.source) if op.out.dtype in ("int32", "int64") else None
    if not isinstance(op, (arith.AddOp, arith.SubOp, arith.MulOp, arith.FloorDivOp, arith.MinOp, arith.MaxOp)):
        return None
    left, right = _taken(op.lhs), _taken(op.rhs)
    if left is None or right is None or left[2] & right[2]:
        return None
    variables = left[2] | right[2]
    if isinstance(op, arith.AddOp):
        ends = left[0] + right[0], left[1] + right[1]
    elif isinstance(op, arith.SubOp):
        ends = left[0] - right[1], left[1] - right[0]
    elif isinstance(op, arith.MinOp):
        ends = min(left[0], right[0]), min(left[1], right[1])
    elif isinstance(op, arith.MaxOp):
        ends = max(left[0], right[0]), max(left[1], right[1])
    elif isinstance(op, arith.FloorDivOp):
        if right[2] or right[0] <= 0:
            return None
        ends = left[0] // right[0], left[1] // right[0]
    elif left[2] and right[2]:
        return None
    else:
        corners = [a * b for a in left[:2] for b in right[:2]]
        ends = min(corners), max(corners)
    fits = ends[0] >= -(1 << 31) and ends[1] < 1 << 31
    return (*ends, variables) if fits else None


def _of_loop(variable: Value) -> Taken | None:
    loop = getattr(variable.owner, "parent", None)
    if isinstance(loop, tile.ParallelOp):
        return 0, loop.extents[loop.body.args.index(variable)] - 1, frozenset([variable])
    if isinstance(loop, tile.KernelOp):
        blocks = arith.constant_of(loop.grid[loop.body.args.index(variable)])
        return (0, blocks - 1, frozenset([variable])) if type(blocks) is int and blocks > 0 else None
    numbers = _numbers(loop) if isinstance(loop, scf.ForOp) and variable is loop.index else None
    return (min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1]), frozenset([variable])) if numbers else None


def _numbers(loop: scf.ForOp) -> range | None:
    """The numbers that a loop counts, if they are known."""
    bounds = [arith.constant_of(each) for each in (loop.lower, loop.upper, loop.step)]
    lower, upper, step = (each if type(each) is int else None for each in bounds)
    return None if lower is None or upper is None or not step else range(lower, upper, step)


def _is_certain(op: Operation, does: str) -> bool:
    """Whether each iteration of the loops around does the access, and nothing may leave unused what it reads."""
    around = list(ancestors(op))
    for each in around:
        if isinstance(each, scf.ForOp):
            if not _numbers(each):
                return False
        elif isinstance(each, tile.ParallelOp):
            if each.lockstep and does == "read" or 0 in each.extents:
                return False
        elif isinstance(each, tile.KernelOp):
            if not all(type(count := arith.constant_of(size)) is int and count > 0 for size in each.grid):
                return False
        elif not isinstance(each, tile.FuncOp):
            return False
    if does == "write":
        return True
    if isinstance(op, tile.CopyOp):
        return _is_inside(op, op.target, op.target_offsets, _sizes(op, op.target, op.target_axes))
    users = [user for value in reached(op.results, _computed_from) for user in value.uses]
    return not any(_may_be_left_out(user, around) for user in users)


def _computed_from(value: Value) -> Iterator[Value]:
    return (out for user in value.uses for out in user.results)


def _may_be_left_out(user: Operation, around: list[Operation]) -> bool:
    if isinstance(user, (arith.SelectOp, arith.AndOp, arith.OrOp)):
        return True
    if isinstance(user, (tile.StoreOp, tile.AtomicOp, tile.LoadOp)) and (
        not _is_inside(user, user.buffer, user.indices, [1] * len(user.indices))
    ):
        return True
    return any(each not in around and isinstance(each, (scf.IfOp, scf.WhileOp)) for each in ancestors(user))


def _is_inside(op: Operation, buffer: Value, indices: Sequence[Value], sizes: Sequence[int]) -> bool:
    """Whether an access is not one to elements of a tensor that may not exist, and which is not done there."""
    from tiledsl.analysis.ranges import Ranges

    if tile.is_on_chip(buffer):
        return True
    ranges = Ranges.around(op)
    for index, size, dim in zip(indices, sizes, tile.buffer_type(buffer).shape):
        found = ranges.of(index)
        if not isinstance(dim, int) or found.lo < 0 or found.hi + size > dim:
            return False
    return all(isinstance(dim, int) for dim in tile.buffer_type(buffer).shape)
