"""Elements of an array that lie in steps along each of its dimensions, as a part of it: what NumPy copies at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

Shape = tuple[int, ...]


def _steps(place: Any, rank: int) -> tuple[int, list[int]] | None:
    """The first index, and how far apart those along each of `rank` axes are, if all along an axis are equally far."""
    if not np.ndim(place):
        return int(place), [0] * rank
    first, steps = int(place[(0,) * place.ndim]), [0] * rank
    expected: Any = first
    for axis, size in enumerate(place.shape):
        if size > 1:
            step = int(place[(0,) * axis + (1,) + (0,) * (place.ndim - axis - 1)]) - first
            steps[rank - place.ndim + axis] = step
            if step:
                expected = expected + _counted(size, place.ndim - axis - 1) * step
    return (first, steps) if np.equal(place, expected).all() else None


@cache
def _counted(size: int, after: int) -> np.ndarray:
    return np.arange(size).reshape((-1,) + (1,) * after)


def part_at(array: np.ndarray, indices: Sequence[Any], shape: Shape, is_written: bool = False) -> np.ndarray | None:
    """The elements at some indices as a view of this shape. None where one lies outside, the steps along an axis
    differ, the array itself is one in steps, or, if it `is_written`, where some may be the same element."""
    if not array.flags.c_contiguous or 0 in shape:
        return None
    offset, strides = 0, [0] * len(shape)
    for index, size, stride in zip(indices, array.shape, array.strides, strict=True):
        found = _steps(index, len(shape))
        if found is None:
            return None
        low = high = found[0]
        offset += low * stride
        for axis, step in enumerate(found[1]):
            if step:
                strides[axis] += step * stride
                reach = step * (shape[axis] - 1)
                low, high = (low + reach, high) if reach < 0 else (low, high + reach)
        if low < 0 or high >= size:
            return None
    if is_written:
        reach = 0
        for step, extent in sorted((abs(step), extent) for step, extent in zip(strides, shape) if extent > 1):
            if step <= reach:
                return None
            reach += step * (extent - 1)
    return np.ndarray(shape, array.dtype, array, offset, strides)


def is_everywhere(mask: Any) -> bool:
    """Whether a mask, or None, leaves nothing out."""
    return mask is None or mask is np.True_ or bool(np.all(mask))
