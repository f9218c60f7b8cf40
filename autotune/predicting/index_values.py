"""Integers of a program before lowering: constants, trip counts over the grid, divisors, what they depend on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from tiledsl.analysis.dependence import operands_of, reached
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Region, Value

_SAMPLES = 16  # block indices at which a trip count is evaluated, along each grid dimension it depends on


def constant(value: Value) -> float | None:
    """The number a value has, computed from constants; None if it depends on anything else."""
    return evaluate(value, {})


def evaluate(value: Value, numbers: Mapping[Value, float]) -> float | None:
    """The number a scalar has when others are known; None if that cannot be told."""
    if value in numbers:
        return numbers[value]
    number = arith.constant_of(value)
    if number is not None:
        return number
    op = value.op
    if not isinstance(op, arith.Elementwise):
        return None
    values = []
    for each in op.operands:
        found = evaluate(each, numbers)
        if found is None:
            return None
        values.append(found)
    try:
        if isinstance(op, arith.BinaryOp):
            return op.compute(*values)  # type: ignore[no-any-return]
        if isinstance(op, arith.CmpOp):
            return arith.PREDICATES[op.predicate](*values)
        if isinstance(op, arith.SelectOp):
            return values[1] if values[0] else values[2]
        if isinstance(op, arith.CastOp):
            return values[0]
        if isinstance(op, arith.NegOp):
            return -values[0]
    except (ZeroDivisionError, OverflowError, ValueError, TypeError):
        return None
    return None


def trip_counts(loop: scf.ForOp, axes: Mapping[Value, int], grid: Sequence[int | None]) -> tuple[float, float] | None:
    """Iterations of a loop: the average over the grid where its bounds depend on block indices, and the most; None if
    unknown.

    An enclosing loop's index stands at the middle of its range.
    """
    bounds = (loop.lower, loop.upper, loop.step)
    inputs = {leaf for bound in bounds for leaf in leaves(bound)}
    choices: list[list[tuple[Value, float]]] = []
    for leaf in inputs:
        axis = axes.get(leaf)
        if axis is not None:
            extent = grid[axis]
            if extent is None:
                return None
            count = min(extent, _SAMPLES)
            choices.append([(leaf, float(int((i + 0.5) * extent / count))) for i in range(count)])
            choices[-1].append((leaf, float(extent - 1)))  # for the most; not part of the average
        elif (
            isinstance(leaf.owner, Region) and isinstance(outer := leaf.owner.parent, scf.ForOp) and leaf is outer.index
        ):
            first, last = (evaluate(bound, {}) for bound in (outer.lower, outer.upper))
            if first is None or last is None:
                return None
            choices.append([(leaf, float(int((first + last) // 2)))])
        else:
            return None
    if len(choices) > 2 or not all(choices):
        return None
    total, count, most = 0.0, 0, 0.0
    for chosen in itertools.product(*choices):
        known = {value: int(number) for value, number in chosen}
        lower, upper, step = (evaluate(bound, known) for bound in bounds)
        if lower is None or upper is None or not step:
            return None
        trips = max(0, math.ceil((upper - lower) / step))
        most = max(most, trips)
        if all(each is not options[-1] or len(options) == 1 for each, options in zip(chosen, choices)):
            total, count = total + trips, count + 1
    return total / count, most


def leaves(value: Value) -> set[Value]:
    """Values without an operation that computes them, such as indices, and results of loads."""
    sources = reached([value], lambda source: operands_of(source) if isinstance(source.op, arith.Elementwise) else [])
    return {source for source in sources if not isinstance(source.op, (arith.ConstantOp, arith.Elementwise))}


def grid_axes(value: Value, axes: Mapping[Value, int]) -> set[int]:
    """The grid dimensions that an index depends on."""
    return {axes[leaf] for leaf in leaves(value) if leaf in axes}


def is_data_dependent(value: Value) -> bool:
    """Whether an index is computed from what a kernel has loaded."""
    return any(isinstance(leaf.op, (tile.LoadOp, tile.AtomicOp, tile.ReadOp)) for leaf in leaves(value))
