"""Legal ways to divide the inner dimension of a product among blocks."""

from __future__ import annotations

from typing import NamedTuple

from tiledsl.errors import TileError

_LEAST_BLOCK = 16  # what the tensor cores take


class SplitK(NamedTuple):
    """`splits` parts of `part` elements each, the last perhaps shorter, walked in steps of `block_K`, which divides
    `part`."""

    splits: int
    part: int
    block_K: int


def split_k(K: int, splits: int, block_K: int) -> SplitK:
    """The division nearest to `splits` parts of K in which each part has at least one whole step and none is empty.

    block_K, a power of two, is halved (down to 16) where K is shorter. Different requests may come to the same
    division: make configurations of the results, so that each is tuned once.
    """
    for name, value in (("K", K), ("splits", splits), ("block_K", block_K)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TileError(f"split_k: {name} is {value!r}; it must be at least 1")
    if block_K & (block_K - 1):
        raise TileError(f"split_k: block_K is {block_K}; it must be a power of two")
    while splits > 1 and -(-K // splits) < block_K:
        splits //= 2
    part = -(-K // splits)
    while block_K > part and block_K > _LEAST_BLOCK:
        block_K //= 2
    part = -(-part // block_K) * block_K
    return SplitK(-(-K // part), part, block_K)
