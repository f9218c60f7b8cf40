"""Random programs as text: lines, tensors and tiles, which the steps of a program write, read and make."""
# ruff: noqa: E501

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.fuzz.expressions import DTYPES, Expressions, Tensor, Tile, bits_of, is_float

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9)
MOST_ELEMENTS = 48  # of a tile


class Writer(Expressions):
    """What the steps of a program share: its lines, and what is visible where they stand."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(f"tile program {seed}"))
        self.seed = seed
        self.symbols: dict[str, int] = {}
        self.symbols_of_strides: dict[str, int] = {}
        self.blocks: list[str] = []
        self.grid: list[int] = []
        self.macros: list[str] = []
        self.workspaces: list[Tensor] = []
        self.arguments: list[tuple[str, str, Any]] = []  # scalars: name, type, value
        self.accumulators: dict[str, str] = {}  # of tensors written atomically in this kernel: the kind

    @contextmanager
    def inside_of(self, head: str) -> Iterator[None]:
        """A statement with a body, whose names end with it."""
        self.write(head)
        before = self.tiles[:], self.scalars[:], dict(self.loops)
        self.depth += 1
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.write("pass")
        self.depth -= 1
        self.tiles, self.scalars, self.loops = before

    def dims(self, rank: int, most: int = 200) -> tuple[list[str], list[int]]:
        while True:
            shape, sizes = [], []
            for axis in range(rank):
                if self.symbols and self.chance(0.35 if axis == 0 else 0.15):
                    symbol = self.pick(list(self.symbols))
                    factor = self.pick((1, 1, 1, 2))
                    shape.append(symbol if factor == 1 else f"{symbol} * {factor}")
                    sizes.append(self.symbols[symbol] * factor)
                else:
                    sizes.append(self.pick((*SIZES, 12, 16, 17, 24, 33)))
                    shape.append(str(sizes[-1]))
            if math.prod(sizes) <= most:
                return shape, sizes

    def parameter(self, prefix: str, shape: list[str], sizes: list[int], dtype: str, values: str = "any") -> Tensor:
        made = Tensor(self.name(prefix), shape, sizes, dtype, values)
        if len(sizes) > 1 and self.chance(0.12):  # strided: rows further apart, perhaps by a number of the call
            gap = self.pick((1, 3, 8))
            steps = [1]
            for size in reversed(sizes[1:]):
                steps.insert(0, steps[0] * size)
            steps[0] += gap
            made.steps, made.strides = steps, [str(step) for step in steps]
            if self.chance(0.4):
                symbol = f"S{self.count}"
                self.symbols_of_strides[symbol] = steps[0]
                made.strides[0] = symbol
        self.tensors.append(made)
        return made

    def output(self, shape: Sequence[str], sizes: Sequence[int], dtype: str) -> Tensor:
        made = self.parameter("O", list(shape), list(sizes), dtype, "any")
        made.written = True
        return made

    def index_tensor(self) -> Tensor:
        """Indices of some dimension, up to and beyond its end."""
        shape, sizes = self.dims(1)
        made = self.parameter("I", shape, sizes, self.pick(("int32", "int32", "int64", "int8", "uint8")), "index")
        made.low, made.high = (0 if made.dtype == "uint8" else self.pick((0, 0, -2))), self.pick((2, 5, 8, 12))
        return made

    def number_of_block(self) -> str:
        """The linear number of the block, and of how many."""
        text = self.blocks[0]
        for block, size in zip(self.blocks[1:], self.grid[1:]):
            text = f"({text}) * {size} + {block}"
        return text

    def shape(self, rank: int = 0) -> tuple[int, ...]:
        while True:
            made = tuple(self.pick(SIZES) for _ in range(rank or self.pick((1, 2, 2, 2, 3))))
            if math.prod(made) <= MOST_ELEMENTS:
                return made

    def allocate(self, shape: tuple[int, ...], dtype: str, scope: str = "") -> Tile:
        name = self.name("t")
        scope = scope or self.pick(("fragment", "fragment", "shared"))
        self.write(f"{name} = T.alloc_{scope}({shape!r}, '{dtype}')")
        return Tile(name, shape, dtype, name)

    def make(self, shape: tuple[int, ...] = (), dtype: str = "") -> Tile:
        """A tile with values in all elements: a part of a tensor, one number, or computed."""
        shape = shape or self.shape()
        tile = self.allocate(shape, dtype or self.pick(DTYPES))
        kind = self.rng.random()
        sources = [
            each for each in self.readable
            if len(each.sizes) >= len(shape) and (each.dtype == tile.dtype or each.values == "any")
            and not (bits_of(each.dtype) > 8 >= bits_of(tile.dtype) and is_float(tile.dtype))
            and (is_float(each.dtype) or not is_float(tile.dtype)) and not (is_float(each.dtype) and not is_float(tile.dtype))
        ]  # fmt: skip
        if sources and kind < 0.5:
            self.load(self.pick(sources), tile)
        elif kind < 0.6:
            self.write(
                f"T.fill({tile.name}, {self.pick((0, 1, 2, 3))})" if self.chance(0.7) else f"T.clear({tile.name})"
            )
        else:
            self.fill_by_loop(tile)
        self.tiles.append(tile)
        return tile

    def starts(self, sizes: Sequence[int], shape: Sequence[int]) -> list[str]:
        """Where a tile starts in a tensor: aligned, shifted, or from a number; perhaps partly outside."""
        made = []
        for size, extent in zip(sizes, shape):
            forms = ["0", "0", f"{self.small()} * {extent}", f"{self.small()} * {extent}", f"{self.small()} * {extent} - 1",
                     f"{self.small()} * {extent} + 2", str(self.rng.randrange(size)), self.small()]  # fmt: skip
            made.append(self.pick(forms))
        return made

    def load(self, tensor: Tensor, tile: Tile) -> None:
        lead = len(tensor.sizes) - len(tile.shape)
        places = [self.anywhere(size) for size in tensor.sizes[:lead]]
        starts = self.starts(tensor.sizes[lead:], tile.shape)
        if self.chance(0.25):
            starts = [f"{start}:{start} + {extent}" for start, extent in zip(starts, tile.shape)]
        self.write(f"T.copy({tensor.name}[{', '.join([*places, *starts])}], {tile.name})")
        tile.wild = tensor.values == "wild"

    @contextmanager
    def parallel(self, shape: Sequence[int], writes: str = "") -> Iterator[list[str]]:
        """`for i, j in T.Parallel(...)`: sometimes in another order of the dimensions than the tile's."""
        names = [self.name("i") for _ in shape]
        order = list(range(len(shape)))
        if self.chance(0.15):
            self.rng.shuffle(order)
        head = f"for {', '.join(names[n] for n in order)} in T.Parallel({', '.join(str(shape[n]) for n in order)}):"
        locked = self.locked
        self.locked = {*locked, writes}
        with self.inside_of(head):
            self.loops = {**self.loops, **dict(zip(names, shape))}
            yield names
        self.locked = locked

    def target(self, tile: Tile, names: Sequence[str]) -> str:
        """The element of a tile for each iteration: all of them, in some order."""
        places = [
            f"{extent - 1} - {name}" if self.chance(0.12) else f"({name} + 1) % {extent}" if self.chance(0.06) else name
            for name, extent in zip(names, tile.shape)
        ]
        return f"{tile.name}[{', '.join(places)}]"

    def any_value(self, tile: Tile) -> str:
        """A value of a tile's type; of a wild tile's, anything."""
        if tile.wild and self.chance(0.7):
            return self.wild(tile.dtype)
        return self.value(tile.dtype)

    def fill_by_loop(self, tile: Tile) -> None:
        wild = is_float(tile.dtype) and bits_of(tile.dtype) > 8 and self.chance(0.12)
        tile.wild = wild
        with self.parallel(tile.shape, tile.memory) as names:
            place = self.target(tile, names)
            if self.chance(0.3):
                self.write(f"if {self.condition()}:")
                self.write(f"    {place} = {self.any_value(tile)}")
                if self.chance(0.3):
                    self.write(f"elif {self.condition()}:")
                    self.write(f"    {place} = {self.any_value(tile)}")
                self.write("else:")
                self.write(f"    {place} = {self.any_value(tile)}")
            else:
                self.write(f"{place} = {self.any_value(tile)}")

    def some_tile(self, tame: bool = True, rank: int = 0) -> Tile:
        found = [
            each for each in self.tiles
            if not (tame and (each.rough or each.wild)) and (not rank or len(each.shape) == rank)
        ]  # fmt: skip
        return self.pick(found) if found else self.make(self.shape(rank) if rank else ())

    def types(self, dtype: str) -> tuple[str, str]:
        return ("float32" if bits_of(dtype) == 8 and is_float(dtype) else dtype, dtype)

    def combined(self, own: str, value: str, dtype: str) -> str:
        work, _ = self.types(dtype)
        if work != dtype:
            own, value = f"T.cast({own}, '{work}')", f"T.cast({value}, '{work}')"
        if dtype == "bool":
            return f"({own} {self.pick(('and', 'or'))} {value})"
        if is_float(dtype):
            return f"T.clamp({own} {self.pick('+-*')} {value}, -16.0, 16.0)"
        return f"({own} {self.pick('+-*&|^')} {value})"
