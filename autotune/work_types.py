"""What a launch does, as far as its tile IR says: products, traffic, tiles, pipelined loops. work.py reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tiledsl.runtime.target import Target


@dataclass(frozen=True)
class Dot:
    """A matrix product of m x k by k x n, `times` for each block; sizes as padded to powers of two."""

    m: int
    n: int
    k: int
    dtype: str
    times: float
    k_major: bool  # both operands lie with k innermost
    precision: str = "default"
    useful: float = 0.0  # operations of one product, without padding
    accumulator: str = ""  # the buffer that takes the sums

    @property
    def tile(self) -> int:
        return self.m * self.n


@dataclass(frozen=True)
class Traffic:
    """Elements of a global buffer that a block touches: `bytes` on average, at most `reach`, of the buffer's `size`
    (None: dynamic).

    `axes` are the grid dimensions on which the addresses depend: blocks that differ in others touch the same bytes.
    """

    buffer: str
    bytes: float
    reach: float
    size: int | None
    axes: frozenset[int]
    is_store: bool
    scattered: bool = False  # the address depends on data


@dataclass
class Loop:
    """A loop that Triton pipelines: its depth, iterations, and bytes of the tiles that it keeps in shared memory."""

    stages: int
    trips: float
    staged: dict[str, tuple[int, Dot]] = field(default_factory=dict)  # buffer -> bytes of a tile, and its consumer
    turned: set[str] = field(default_factory=set)  # of these: left operands that lie transposed
    held: dict[str, tuple[int, Dot]] = field(default_factory=dict)  # operands loaded before the loop


@dataclass
class Work:
    """One launch."""

    name: str
    grid: tuple[int | None, ...]
    threads: int
    options: dict[str, Any]
    dots: list[Dot] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    elementwise: float = 0.0  # arithmetic operations a block, outside dots
    special: float = 0.0  # exponentials, logarithms, roots a block
    largest_tile: int = 1
    largest_name: str = ""
    dtypes: set[str] = field(default_factory=set)
    is_static: bool = True  # all sizes and trip counts are known
    panel: int = 0  # rows of blocks visited together (swizzle)

    @property
    def blocks(self) -> int:
        """Blocks of the grid; unknown dimensions count once."""
        return math.prod(each for each in self.grid if each is not None)

    @property
    def operations(self) -> float:
        """Floating-point operations of a block's products, padding included."""
        return sum(2.0 * dot.m * dot.n * dot.k * dot.times for dot in self.dots)

    def warps(self, target: Target) -> int:
        """Warps of a block, as lower-to-triton chooses them."""
        count = int(self.options.get("num_warps") or max(1, self.threads // target.warp_size))
        return 1 << (count.bit_length() - 1)


def padded(size: int) -> int:
    """The next power of two, as Triton's tiles have it."""
    return 1 << max(0, size - 1).bit_length()
