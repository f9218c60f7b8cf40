"""What a launch does, as far as its tile IR says: products, traffic, tiles, pipelined loops. work.py reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tiledsl.runtime.target import Target


@dataclass(frozen=True)
class Dot:
    """A matrix product of m x k by k x n, `times` for each block; sizes as tiles have them, in parts or padded."""

    m: int
    n: int
    k: int
    dtype: str
    times: float
    k_major: bool  # both operands lie with k innermost
    precision: str = "default"
    useful: float = 0.0  # operations of one product, without padding
    accumulator: str = ""  # the buffer that takes the sums
    number: int = 0  # of the product in the program's text
    is_computed: bool = False  # the left operand is not loaded but computed, as attention's weights

    @property
    def tile(self) -> int:
        return self.m * self.n


@dataclass(frozen=True)
class Reduction:
    """A reduction of `lines` lines of `length` elements to one each, `times` for each block.

    `of_sums`: what is reduced are a product's sums.
    """

    lines: int
    length: int
    times: float
    of_sums: bool


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
    """A loop that loads: its depth (1: not pipelined), its iterations, bytes of the tiles that it keeps in shared
    memory, and how often a block runs it."""

    stages: int
    trips: float
    staged: dict[str, tuple[int, Dot]] = field(default_factory=dict)  # buffer -> bytes of a tile, and its consumer
    turned: set[str] = field(default_factory=set)  # of these: left operands that lie transposed
    held: dict[str, tuple[int, Dot]] = field(default_factory=dict)  # operands loaded before the loop
    times: float = 1.0

    @property
    def iterations(self) -> float:
        """Of a block."""
        return self.trips * self.times


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
    reductions: list[Reduction] = field(default_factory=list)
    live_bytes: int = 0  # of tiles in registers, where most of them are in use
    longest: float = 1.0  # iterations of the block that has most, over the average
    largest_tile: int = 1
    largest_name: str = ""
    dtypes: set[str] = field(default_factory=set)
    is_static: bool = True  # all sizes and trip counts are known
    panel: int = 0  # rows of blocks visited together (swizzle)
    persistent: int = 0  # programs a multiprocessor that take the blocks one after the other; 0: one for each block
    emitter: str = "auto"  # what select-emitter.backend asks for
    is_skewed: bool = True  # in Gluon, products may wait for the next turn
    has_one_group: bool = False  # in Gluon, of all warps; else each has rows of its own

    @property
    def blocks(self) -> int:
        """Blocks of the grid; unknown dimensions count once."""
        return math.prod(each for each in self.grid if each is not None)

    @property
    def consumers(self) -> int:
        """Groups of warps with rows of their own that could take the products in Gluon; 0 if there are none."""
        rows = max((dot.m for dot in self.dots), default=0)
        most = 1 if self.has_one_group else 3
        return min(most, rows // 64) if rows in (64, 128, 192) and self.threads in (128, 256) else 0

    @property
    def is_chain(self) -> bool:
        """Whether what a product is multiplied by is computed from others, as attention's weights are."""
        return any(dot.is_computed for dot in self.dots)

    @property
    def operations(self) -> float:
        """Floating-point operations of a block's products, padding included."""
        return sum(2.0 * dot.m * dot.n * dot.k * dot.times for dot in self.dots)

    def warps(self, target: Target) -> int:
        """Warps of a block, as lower-to-triton chooses them."""
        count = int(self.options.get("num_warps") or max(1, self.threads // target.warp_size))
        return 1 << (count.bit_length() - 1)
