"""In which of a kernel's tiles an element of its output lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiledsl.autotuner.verifying.bit_class import values_of
from tiledsl.dialects import tile

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel


def tiles_of(kernel: Kernel) -> dict[str, tuple[int, ...]]:
    """The extents of what is stored at once, by the name of the parameter that is stored to; of several the largest.
    Tiles that are stored along computed indices have their index's extent."""
    root = values_of(kernel)
    names = dict(zip(root.body.args, root.parameters))
    tiles: dict[str, tuple[int, ...]] = {}
    for op in root.walk():
        if isinstance(op, (tile.StoreOp, tile.AtomicOp)) and op.buffer in names:
            extents = tuple(max(each.shape, default=1) for each in op.indices)
            name = names[op.buffer]
            tiles[name] = max(tiles.get(name, ()), extents)
    return tiles


def tile_at(extents: Sequence[int], place: Sequence[int]) -> str:
    """`tile [3, 0] of 64 x 64`."""
    number = [at // extent for at, extent in zip(place, extents)]
    return f"tile {number} of {' x '.join(map(str, extents))}"


def in_tiles(kernel: Kernel, name: str, first: Sequence[int], worst: Sequence[int]) -> str:
    """Where two elements of an output lie, for a message; "" where the program does not say."""
    extents = tiles_of(kernel).get(name)
    if extents is None or len(extents) != len(first) or all(extent == 1 for extent in extents):
        return ""
    one, other = tile_at(extents, first), tile_at(extents, worst)
    return f"; both in {one}" if one == other else f"; the first is in {one}, the worst in {other}"
