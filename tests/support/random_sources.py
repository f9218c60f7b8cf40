"""Random tile programs as a user writes them, from a seed: odd shapes, many types, all kinds of statements.

Values stay exact (sums of multiples of 1/4 are floored and clamped before they are used again) and int32 stays small.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.source_writer import SourceWriter

SIZES = (1, 2, 3, 4, 5, 7, 8, 13)
LIMITS = {"float32": 16, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 4}
DTYPES = (*LIMITS, "float32", "int32", "int32", "int8", "uint8", "bool")
OPTIONS: dict[str, tuple[Any, ...]] = {
    "map-grid.group_m": (0, 2), "map-grid.persistent": (0, 1, 2), "split-k.splits": (1, 3), "cse.loads": (True, False),
    "unroll-loops.limit": (0, 4096), "lower-to-triton.index_bits": (0, 64), "peel-loops.mode": ("off", "all"),
}  # fmt: skip


@dataclass
class _Tile:
    name: str
    shape: tuple[int, ...]
    dtype: str
    sums: bool = False  # holds sums, which are larger
    memory: str = ""  # the tile of which this is a view


def random_source(seed: int) -> tuple[str, dict[str, Any]]:
    """A program's source and options for its passes."""
    writer = _Writer(random.Random(seed))
    source = writer.program()
    return source, {key: writer.pick(values) for key, values in OPTIONS.items() if writer.chance(0.4)}


class _Writer(SourceWriter):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.tiles: list[_Tile] = []
        self.numbers: list[str] = []  # names of int32 scalars: block and loop indices, variables
        self.inputs: list[tuple[str, list[Any], str]] = []

    @contextmanager
    def inside(self, head: str) -> Iterator[None]:
        """A statement with a body, whose names end with it."""
        self.write(head)
        before = self.tiles[:], self.numbers[:]
        self.depth += 1
        yield
        self.depth -= 1
        self.tiles, self.numbers = before

    # The program

    def program(self) -> str:
        dynamic = self.chance(0.4)
        for number in range(self.rng.randrange(1, 4)):
            shape: list[Any] = [self.pick((*SIZES, 20, 33)) for _ in range(self.pick((1, 2, 2, 3)))]
            shape[0] = "M" if dynamic and len(shape) == 2 else shape[0]
            self.inputs.append((f"A{number}", shape, self.pick(DTYPES)))
        if dynamic:
            self.inputs.append(("D", ["M"], "int32"))
        for number in range(self.pick((1, 1, 2))):
            self.kernel(f"Out{number}", dynamic)
        parameters = [f"    {name}: T.Tensor({tuple(shape)!r}, {dtype!r})," for name, shape, dtype in self.inputs]
        head = ['M = T.dynamic("M")', "@T.prim_func", "def main("]
        return "\n".join([*head, *parameters, "):", *self.lines, ""]).replace("'M'", "M")

    def kernel(self, out: str, dynamic: bool) -> None:
        tile = (self.pick(SIZES), self.pick(SIZES))
        sizes: list[Any] = [max(1, self.pick((1, 2, 3)) * size - self.rng.randrange(size)) for size in tile]
        sizes[0] = "M" if dynamic and self.chance(0.5) else sizes[0]
        grid = ", ".join(f"T.ceildiv({size}, {part})" for size, part in zip(sizes, tile, strict=True))
        self.tiles, self.numbers = [], ["bx", "by"]
        with self.inside(f"with T.Kernel({grid}, threads={self.pick((32, 128))}) as (bx, by):"):
            self.make()
            for _ in range(self.rng.randrange(2, 7)):
                self.step()
            with self.inside(f"for i, j in T.Parallel{tile}:"):
                value = self.value(dtype := self.pick(DTYPES), {"i": tile[0], "j": tile[1]})
                self.write(f"{out}[bx * {tile[0]} + i, by * {tile[1]} + j] = {value}")
        self.inputs.append((out, sizes, dtype))  # a kernel that follows may read it

    def step(self) -> None:
        steps = [self.make, self.compute, self.compute, self.reduce, self.scan, self.product, self.view, self.move]
        self.pick([*steps, self.variable, *([self.loop, self.loop, self.branch] if self.depth < 4 else [])])()

    # Values

    def number(self, loops: dict[str, int], but: str = "") -> str:
        """An int32, perhaps read from memory."""
        tiles = [each for each in self.tiles if each.dtype == "int32" and not each.sums and each.memory != but]
        if tiles and self.chance(0.3):
            return self.element(self.pick(tiles), loops, but, plain=True)
        return self.pick([*loops, *loops, *self.numbers])

    def index(self, size: int, loops: dict[str, int], but: str, plain: bool) -> str:
        """An index of a tile's dimension, never outside."""
        forms = [str(self.rng.randrange(size)), f"({self.pick(self.numbers)}) % {size}"]
        for loop, extent in loops.items():
            forms += [
                f"({loop} * 3 + 1) % {size}",
                f"T.min({loop} + 1, {size - 1})",
                f"T.clamp({loop} - 2, 0, {size - 1})",
            ]
            if extent <= size:
                forms += [loop] * 5 + [f"{size - 1} - {loop}", f"{loop} // 2"]
        if not plain:
            forms += [f"T.clamp({self.number(loops, but)}, 0, {size - 1})", f"({self.number(loops, but)}) % {size}"]
        return self.pick(forms)

    def element(self, tile: _Tile, loops: dict[str, int], but: str, plain: bool = False) -> str:
        return f"{tile.name}[{', '.join(self.index(size, loops, but, plain) for size in tile.shape)}]"

    def converted(self, text: str, dtype: str, to: str, sums: bool = False) -> str:
        if sums:
            text = f"T.clamp(T.floor({text}), -16.0, 16.0)" if dtype == "float32" else f"({text} % 97)"
        if dtype == to:
            return text
        if to == "bool":
            return f"({text} > T.cast(0, '{dtype}'))"
        limit = LIMITS.get(to, 0)
        if limit and dtype != "bool" and limit < LIMITS.get(dtype, 999):
            text = f"T.min({text}, T.cast({limit}, '{dtype}'))"
            text = text if dtype == "uint8" else f"T.max({text}, T.cast(-{limit}, '{dtype}'))"
        return f"T.cast({text}, '{to}')"

    def leaf(self, dtype: str, loops: dict[str, int], but: str) -> str:
        kind = self.rng.random()
        tiles = [each for each in self.tiles if each.memory != but]
        if kind < 0.15:
            return f"T.cast({self.pick((0, 1, 2))}, '{dtype}')"
        if kind < 0.3 or (kind < 0.7 and not tiles):
            return self.converted(f"({self.number(loops, but)}) % 9", "int32", dtype)
        if kind < 0.7:
            tile = self.pick(tiles)
            return self.converted(self.element(tile, loops, but), tile.dtype, dtype, tile.sums)
        name, shape, held = self.pick(self.inputs)
        places = [self.pick(("bx + ", "2 * ", "-1 + ")) + self.number(loops, but) for _ in shape]
        return self.converted(f"{name}[{', '.join(places)}]", held, dtype)

    def value(self, dtype: str, loops: dict[str, int], but: str = "", depth: int = 2) -> str:
        if not depth or self.chance(0.25):
            return self.leaf(dtype, loops, but)
        a, b = (self.value(dtype, loops, but, depth - 1) for _ in "ab")
        if self.chance(0.3):
            return f"T.if_then_else({self.condition(loops, but)}, {a}, {b})"
        if dtype == "bool":
            return f"({a} {self.pick(('and', 'or'))} {b})"
        if self.chance(0.3):
            return f"T.{self.pick(('max', 'min'))}({a}, {b})"
        if limit := LIMITS.get(dtype):
            return f"T.clamp({a} {self.pick('+-')} {b}, -{limit}.0, {limit}.0)"
        divided = f"({a} {self.pick(('//', '%'))} T.max({b}, T.cast(1, '{dtype}')))"
        return self.pick((divided, f"(({a} {self.pick('+-*&|^')} {b}) % T.cast(101, '{dtype}'))"))

    def condition(self, loops: dict[str, int], but: str = "") -> str:
        sign = self.pick(("<", "<=", "==", "!=", ">="))
        if self.chance(0.25):
            dtype = self.pick(("float32", "int8", "float16"))
            return f"{self.leaf(dtype, loops, but)} {sign} {self.leaf(dtype, loops, but)}"
        return f"({self.number(loops, but)}) {sign} {self.pick((str(self.rng.randrange(7)), self.number(loops, but)))}"

    # Statements

    def allocate(self, shape: tuple[int, ...], dtype: str, sums: bool = False) -> _Tile:
        tile = _Tile(self.name("t"), shape, dtype, sums)
        tile.memory = tile.name
        self.write(f"{tile.name} = T.alloc_{self.pick(('fragment', 'shared'))}({shape!r}, {dtype!r})")
        return tile

    def make(self, shape: tuple[int, ...] = (), dtype: str = "") -> _Tile:
        """A tile with values: a part of a tensor, or computed."""
        shape = shape or tuple(self.pick(SIZES) for _ in range(self.pick((1, 2, 2, 3))))
        tile = self.allocate(shape, dtype or self.pick(DTYPES))
        tensors = [name for name, sizes, held in self.inputs if len(sizes) == len(shape) and held == tile.dtype]
        if tensors and self.chance(0.7):
            starts = [f"{self.pick(self.numbers)} * {size} + {self.pick((0, 0, -1, 2))}" for size in shape]
            self.write(f"T.copy({self.pick(tensors)}[{', '.join(starts)}], {tile.name})")
        else:
            self.compute(tile)
        self.tiles.append(tile)
        return tile

    def compute(self, made: _Tile | None = None) -> None:
        """All elements of a tile; of one just made, perhaps from the end of its first dimension."""
        tile = made or self.pick(self.tiles)
        loops = {self.name("i"): size for size in tile.shape}
        if self.depth == 2:  # not in a branch or loop, which may not run
            tile.sums = False
        with self.inside(f"for {', '.join(loops)} in T.Parallel({', '.join(map(str, tile.shape))}):"):
            first, *others = loops
            first = f"{tile.shape[0] - 1} - {first}" if made and self.chance(0.5) else first
            write = f"{tile.name}[{', '.join((first, *others))}] = "
            if self.chance(0.3):
                self.write(f"if {self.condition(loops, tile.memory)}:")
                self.write(f"    {write}{self.value(tile.dtype, loops, tile.memory)}")
                self.write("else:")
                write = f"    {write}"
            self.write(write + self.value(tile.dtype, loops, tile.memory))

    def reduce(self) -> None:
        source = self.pick(self.tiles)
        if source.dtype in ("bool", "float8_e4m3fn", "uint8"):
            source = self.make(dtype="float32")
        axis = self.rng.randrange(len(source.shape))
        kind, dtype = self.pick(("max", "min", "absmax")), source.dtype
        sums = source.sums
        if not sums and self.chance(0.5):
            kind, sums, dtype = "sum", True, "int32" if dtype.startswith("int") else "float32"
        target = self.allocate(source.shape[:axis] + source.shape[axis + 1 :] or (1,), dtype, sums)
        self.write(f"T.fill({target.name}, 1)")
        self.write(f"T.reduce_{kind}({source.name}, {target.name}, dim={axis}, clear={self.chance(0.6)})")
        self.tiles.append(target)

    def scan(self) -> None:
        source = self.make(dtype=self.pick(("float32", "int32")))
        kind, axis = self.pick(("cumsum", "cummax")), self.rng.randrange(len(source.shape))
        self.write(f"T.{kind}({source.name}, dim={axis}, reverse={self.chance(0.3)})")
        source.sums = True

    def product(self) -> None:
        m, n, k = (self.pick(SIZES) for _ in range(3))
        dtype, trans_a, trans_b = self.pick(("float16", "float32", "int8")), self.chance(0.3), self.chance(0.5)
        total = self.allocate((m, n), "int32" if dtype == "int8" else "float32", sums=True)
        self.write(f"T.clear({total.name})")
        step = self.name("k")
        with self.inside(f"for {step} in T.Pipelined({self.rng.randrange(4)}, num_stages={self.rng.randrange(4)}):"):
            self.numbers.append(step)
            a = self.make((k, m) if trans_a else (m, k), dtype)
            b = self.make((n, k) if trans_b else (k, n), dtype)
            self.write(f"T.gemm({a.name}, {b.name}, {total.name}, transpose_A={trans_a}, transpose_B={trans_b})")
        self.tiles.append(total)

    def view(self) -> None:
        tile = self.pick(self.tiles)
        rows = self.pick([each for each in range(1, 99) if math.prod(tile.shape) % each == 0])
        seen = _Tile(self.name("v"), (rows, math.prod(tile.shape) // rows), tile.dtype, tile.sums, tile.memory)
        self.write(f"{seen.name} = T.reshape({tile.name}, {seen.shape!r})")
        self.tiles.append(seen)

    def move(self) -> None:
        """A part of a tile into another part of it."""
        tile = self.pick(self.tiles)
        sizes = [self.rng.randrange(1, size + 1) for size in tile.shape]
        parts = []
        for _ in range(2):
            starts = [self.rng.randrange(whole - size + 1) for whole, size in zip(tile.shape, sizes, strict=True)]
            parts.append(", ".join(f"{start}:{start + size}" for start, size in zip(starts, sizes, strict=True)))
        self.write(f"T.copy({tile.name}[{parts[0]}], {tile.name}[{parts[1]}])")

    def variable(self) -> None:
        value = self.value("int32", {}, depth=1)
        self.numbers.append(self.name("x"))
        self.write(f"{self.numbers[-1]} = T.alloc_var('int32', {value})")

    def loop(self) -> None:
        index = self.name("k")
        bound = self.pick(("3", "0", f"({self.number({})}) % 4"))
        kind = self.pick((f"serial({bound})", "unroll(2)", "serial(4, -1, -2)", "while"))
        head = f"for {index} in T.{kind}:"
        if kind == "while":
            self.write(f"{index} = T.alloc_var('int32', 0)")
            head = f"while {index} < {bound}:"
        with self.inside(head):
            self.numbers.append(index)
            if kind == "while":
                self.write(f"{index} += 1")
            elif kind != "unroll(2)" and self.chance(0.4):
                self.write(f"if {self.condition({})}:")
                self.write(f"    {self.pick(('break', 'continue'))}")
            self.make()
            for _ in range(self.rng.randrange(1, 3)):
                self.step()

    def branch(self) -> None:
        with self.inside(f"if {self.condition({})}:"):
            self.step()
        with self.inside("else:"):
            self.step()
