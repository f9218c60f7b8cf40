"""How many elements tiles have: sums of few powers of two may be divided into these, others are padded."""

from __future__ import annotations

MAX_PARTS = 3
LEAST_EXTENT = 64
LEAST_GAIN = 8  # what padding would add is at least 1/8 of a tile
LEAST_ROWS = 64  # of a product: with fewer it is none of Hopper's asynchronous ones
LEAST_COLUMNS = 16
LEAST_SUMMED = 16  # of 16-bit elements; twice as many of 8 bits


def padded(size: int) -> int:
    """The next power of two, as Triton's tiles have it."""
    return 1 << max(0, size - 1).bit_length()


def parts_of(size: int) -> list[int]:
    """The powers of two, the greatest first, that a size is the sum of; nothing if it is one itself, or too many."""
    parts = [1 << bit for bit in reversed(range(size.bit_length())) if size >> bit & 1]
    return parts if 1 < len(parts) <= MAX_PARTS else []


def gains(size: int) -> bool:
    """Whether parts of a dimension of products, if it has such, are faster than padding."""
    return size >= LEAST_EXTENT and (padded(size) - size) * LEAST_GAIN >= size


def divided(size: int, least: int = LEAST_COLUMNS) -> int:
    """The elements along a dimension of a product: as they are, if they can be divided into parts that have `least`
    elements or more, else padded."""
    parts = parts_of(size) if gains(size) else []
    return size if parts and parts[-1] >= least else padded(size)
