"""Places in buffers as operations on whole tiles take them: their elements, in order, and lines of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tests.fuzz import memory
from tests.fuzz.dtypes import Discard
from tests.fuzz.memory import INNER, Buffer, Region
from tests.fuzz.numbers import Number


def region(x: Any) -> tuple[Region, bool]:
    """A place, and whether it is a whole buffer."""
    if isinstance(x, Buffer):
        return Region(x, ()), True
    if isinstance(x, Region):
        return x, False
    raise Discard(f"a place is needed, not {type(x).__name__}")


def pairs(source: Any, target: Any) -> Iterator[tuple[list[int], list[int]]]:
    """The places that a copy walks over, in both: extents other than 1 are matched in order, or aligned at the right.

    The extents are those of the innermost memory.
    """
    (a, _), (b, _) = region(source), region(target)
    ours, theirs = list(a.extents), list(b.extents)
    if a.is_element:
        ours = _fitted(len(ours), theirs)
    elif b.is_element:
        theirs = _fitted(len(theirs), ours)
    x = {axis: extent for axis, extent in enumerate(ours) if extent not in (None, 1)}
    y = {axis: extent for axis, extent in enumerate(theirs) if extent not in (None, 1)}
    if len(x) != len(y):
        raise Discard("a copy between different numbers of dimensions")
    inner_is_source = INNER[a.buffer.scope] >= INNER[b.buffer.scope]
    sizes = [(m if inner_is_source else n) for m, n in zip(x.values(), y.values())]
    for point in memory.machine.iterations(itertools.product(*map(range, sizes))):
        yield a.at(dict(zip(x, point))), b.at(dict(zip(y, point)))


def _fitted(rank: int, other: Sequence[int | None]) -> list[int | None]:
    sizes = [1 if extent is None else extent for extent in other]
    if any(size != 1 for size in sizes[: max(len(sizes) - rank, 0)]):
        sizes = [size for size in sizes if size != 1]
        if len(sizes) > rank:
            raise Discard("a copy that drops dimensions")
    return [*[1] * (rank - len(sizes)), *sizes[max(len(sizes) - rank, 0) :]]


def values_of(x: Any, drop: bool = False) -> tuple[list[int], list[Number]]:
    """Shape and elements of a buffer or slice; a single index counts as a dimension of 1, or not if `drop`."""
    place, _ = region(x)
    axes = [axis for axis, extent in enumerate(place.extents) if extent is not None or not drop]
    sizes = [1 if place.extents[axis] is None else int(place.extents[axis] or 0) for axis in axes]
    held = [place.buffer.load(place.at(dict(zip(axes, point)))) for point in itertools.product(*map(range, sizes))]
    return sizes, held


def put_values(x: Any, values: Sequence[Number]) -> None:
    place, _ = region(x)
    axes = [axis for axis, extent in enumerate(place.extents) if extent is not None]
    sizes = [int(place.extents[axis] or 0) for axis in axes]
    points = list(itertools.product(*map(range, sizes)))
    if len(points) != len(values):
        raise Discard("a tile of another size")
    for point, value in zip(points, values):
        place.buffer.store(place.at(dict(zip(axes, point))), value)


def lines(shape: Sequence[int], axis: int) -> Iterator[list[int]]:
    """The positions in each line along an axis, in row-major order of the other axes."""
    strides = memory.contiguous(shape)
    others = [range(size) if number_ != axis else range(1) for number_, size in enumerate(shape)]
    for point in itertools.product(*others):
        start = sum(place * stride for place, stride in zip(point, strides))
        yield [start + step * strides[axis] for step in range(shape[axis])]
