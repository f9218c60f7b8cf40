"""Sorts, places of extremes, histograms and scans with a function, element by element."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz import numbers
from tests.fuzz.dtypes import INT32, Discard
from tests.fuzz.memory import Buffer, Var
from tests.fuzz.numbers import Number, cast
from tests.fuzz.regions import lines, put_values, region, values_of


def _value(x: Number) -> Any:
    return x.defined("what is put in order")


def _order(a: Number, b: Number) -> int:
    """-1 where a comes before b in ascending order; NaN is greater than all numbers."""
    x, y = _value(a), _value(b)
    if x != x or y != y:
        return int(x != x) - int(y != y)
    return int(x > y) - int(x < y)


def _sorted_places(held: Sequence[Number], line: Sequence[int], descending: bool) -> list[int]:
    """The places in a line in their elements' order; those of equal elements stay in order."""
    sign = -1 if descending else 1
    by_value = functools.cmp_to_key(lambda one, other: sign * _order(held[line[one]], held[line[other]]))
    return sorted(range(len(line)), key=by_value)


def _ordered(src: Any, dim: int, descending: bool, count: int | None = None) -> tuple[list[Number], list[Number]]:
    """The first `count` elements along a dimension in order, and their places, in row-major order."""
    shape, held = values_of(src)
    axis = dim % len(shape)
    kept = shape[axis] if count is None else count
    before, after = _product(shape[:axis]), _product(shape[axis + 1 :])
    values: list[Any] = [None] * (before * kept * after)
    places: list[Any] = list(values)
    for number, line in enumerate(lines(shape, axis)):
        order = _sorted_places(held, line, descending)[:kept]
        outer, inner = divmod(number, after)
        for step, place in enumerate(order):
            at = (outer * kept + step) * after + inner
            values[at], places[at] = held[line[place]], Number(INT32, place)
    return values, places


def _product(sizes: Sequence[int]) -> int:
    return functools.reduce(lambda a, b: a * b, sizes, 1)


def sort(src: Any, dst: Any = None, dim: int = -1, descending: bool = False, indices: Any = None) -> None:
    values, places = _ordered(src, dim, descending)
    put_values(src if dst is None else dst, values)
    if indices is not None:
        put_values(indices, places)


def topk(src: Any, values: Any, indices: Any = None, dim: int = -1, largest: bool = True) -> None:
    place, _ = region(values)
    count = place.extents[dim % len(place.extents)]
    if count is None:
        raise Discard("a number of elements that is an index")
    made, places = _ordered(src, dim, largest, count)
    put_values(values, made)
    if indices is not None:
        put_values(indices, places)


def _extreme_place(largest: bool) -> Callable[..., None]:
    def found(held: Sequence[Number], line: Sequence[int]) -> Number:
        best = -1
        for place in range(len(line)):
            value = _value(held[line[place]])
            if value == value and (best < 0 or _order(held[line[place]], held[line[best]]) == (1 if largest else -1)):
                best = place
        return Number(INT32, max(best, 0))  # of nothing but NaN, the first

    def extreme_place(buffer: Any, out: Any, dim: int = -1) -> None:
        shape, held = values_of(buffer)
        made = [found(held, line) for line in lines(shape, dim % len(shape))]
        if isinstance(out, Var):
            out.store(made[0])
        else:
            put_values(out, made)

    return extreme_place


def histogram(src: Any, dst: Buffer, clear: bool = True) -> None:
    _, held = values_of(src)
    counts = [0] * dst.dims[0]
    for each in held:
        value = _value(each)
        if 0 <= value < len(counts):
            counts[value] += 1
    for place, count in enumerate(counts):
        dst.store((place,), count if clear else numbers.add(dst.load((place,)), cast(count, dst.dtype)))


def associative_scan(
    function: Callable[..., Any], src: Any, dst: Any = None, dim: int = 0, reverse: bool = False
) -> None:
    sources = list(src) if isinstance(src, (list, tuple)) else [src]
    targets = sources if dst is None else list(dst) if isinstance(dst, (list, tuple)) else [dst]
    shapes_and_values = [values_of(each) for each in sources]
    shape = shapes_and_values[0][0]
    held = [values for _, values in shapes_and_values]
    made = [list(values) for values in held]
    for line in lines(shape, dim % len(shape)):
        line = line[::-1] if reverse else line
        for before, here in itertools.pairwise(line):
            found = function(*(each[before] for each in made), *(each[here] for each in held))
            for target, value in zip(made, found if isinstance(found, (list, tuple)) else [found]):
                target[here] = cast(value, target[here].dtype)
    for each, values in zip(targets, made):
        put_values(each, values)


NAMES: dict[str, Callable[..., None]] = {
    "sort": sort, "topk": topk, "argmax": _extreme_place(True), "argmin": _extreme_place(False),
    "histogram": histogram, "associative_scan": associative_scan,
}  # fmt: skip
