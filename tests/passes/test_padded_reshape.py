"""Which reshapes of padded tiles leave the padding where it belongs, against NumPy."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest

from tiledsl.passes.pad_tiles.reshape import keeps_order


def padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def factorisations(count: int) -> list[tuple[int, ...]]:
    found = {(count,), (1, count), (count, 1)}
    for first in range(2, count):
        if count % first == 0:
            found |= {(first, *rest) for rest in factorisations(count // first)}
    return sorted(found)


def reshapes_well(source: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether reshaping the padded tile puts each element where the padded result has it."""
    outer, inner = tuple(map(padded, source)), tuple(map(padded, target))
    if prod(outer) != prod(inner):
        return False
    tile = np.full(outer, -1)
    tile[tuple(map(slice, source))] = np.arange(prod(source)).reshape(source)
    found = tile.reshape(inner)[tuple(map(slice, target))]
    return bool((found == np.arange(prod(source)).reshape(target)).all())


@pytest.mark.parametrize("count", [1, 2, 4, 6, 8, 12, 15, 24, 30, 48])
def test_every_reshape(count: int) -> None:
    for source, target in itertools.product(factorisations(count), repeat=2):
        assert keeps_order(source, target, padded) is reshapes_well(source, target), (source, target)
