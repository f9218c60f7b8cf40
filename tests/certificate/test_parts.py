"""Elements in steps as a part of an array, against NumPy's own indices; prefixes against one element after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiledsl.certificate.algebra import prefixes
from tiledsl.certificate.executor.blocks import block_part, load_block, store_block
from tiledsl.certificate.executor.parts import part_at


@pytest.mark.parametrize("seed", range(20))
def test_elements_in_steps_are_those_at_the_indices(seed: int) -> None:
    generator = np.random.default_rng(seed)
    array, shape = np.arange(12 * 40).reshape(12, 40), (3, 4)
    lines = np.ogrid[:3, :4]
    indices: list[Any] = []
    for size in array.shape:
        steps = generator.integers(-1, 3, 2)
        index = sum(int(step) * line for step, line in zip(steps, lines)) + int(generator.integers(0, size))
        indices.append(np.broadcast_to(index, shape) if generator.integers(2) else index)
    inside = all((index >= 0).all() and (index < size).all() for index, size in zip(indices, array.shape))
    found, written = part_at(array, indices, shape), part_at(array, indices, shape, is_written=True)
    assert (found is not None) == inside
    if found is not None:
        assert (found == array[tuple(indices)]).all() and np.shares_memory(found, array)
        assert written is None or len(np.unique(found)) == found.size


def test_what_is_no_part() -> None:
    array, line = np.arange(48).reshape(6, 8), np.arange(3)
    uneven, twice = np.array([0, 1, 3]), np.array([2, 2, 2])
    assert part_at(array, [uneven, line], (3,)) is None
    assert part_at(array, [twice, line], (3,), is_written=True) is not None
    assert part_at(array, [twice, twice], (3,), is_written=True) is None
    assert part_at(array[:, ::2], [line, line], (3,)) is None  # its memory is not in a line


@pytest.mark.parametrize("start", [-16, -3, 0, 4, 14, 30])
@pytest.mark.parametrize("where", [(1, 0, -1), (0, 1, -1), (0, -1, 1)])
def test_blocks_are_clipped(start: int, where: tuple[int, ...]) -> None:
    array = np.arange(1.0, 1 + 20 * 3 * 16).reshape(20, 3, 16).astype(np.float32)
    sizes = [8 if axis >= 0 else 1 for axis in where]
    starts = [start, 1, 8][:2] + ([0] if where[2] >= 0 else [8])
    elements, inside = block_part(array, "float32", starts, sizes, where, 2)
    made = load_block(elements, inside, (8, 8), np.float32(0))
    for point in np.ndindex(8, 8):
        place = [first + (point[axis] if axis >= 0 else 0) for first, axis in zip(starts, where)]
        is_inside = all(0 <= index < size for index, size in zip(place, array.shape))
        assert made[point] == (array[tuple(place)] if is_inside else 0)
    total = array.sum(dtype=np.float64)
    store_block(elements, inside, made, np.add)
    assert array.sum(dtype=np.float64) == total + made.sum(dtype=np.float64)


def test_prefixes_are_of_all_before() -> None:
    values = np.random.default_rng(0).integers(0, 9, (3, 13))
    (last,), (most,) = (prefixes(how, (values,), 1) for how in (lambda a, b: b, lambda a, b: (np.maximum(a[0], b[0]),)))
    assert (last == values).all() and (most == np.maximum.accumulate(values, 1)).all()
