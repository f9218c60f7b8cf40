"""Steps of random programs that put elements in order, count them, or scan them with a function."""

from __future__ import annotations

from tests.fuzz.expressions import Scalar, Tile, is_float
from tests.fuzz.tile_steps import TileSteps

# Scans: an element type, and an associative function of it, for one tile or for two.
FUNCTIONS = (
    ("int32", "lambda a, b: a + b"), ("uint32", "lambda a, b: a * b"), ("int64", "lambda a, b: a ^ b"),
    ("int8", "lambda a, b: a + b"), ("uint8", "lambda a, b: T.max(a, b)"), ("float32", "lambda a, b: T.min(a, b)"),
    ("int32", "lambda a, b: T.if_then_else(b != 0, b, a)"), ("float16", "lambda a, b: T.if_then_else(b > 0.0, b, a)"),
    ("bool", "lambda a, b: a and b"), ("int32", "lambda a, b: b"), ("float32", "lambda a, b: a"),
    ("uint16", "lambda a, b: a & b"),
)  # fmt: skip
PAIRS = (
    ("int32", "lambda a, b, c, d: (a * c, b * c + d)"), ("uint8", "lambda a, b, c, d: (a + c, b ^ d)"),
    ("int32", "lambda a, b, c, d: (T.if_then_else(c > a, c, a), T.if_then_else(c > a, d, b))"),
    ("int64", "lambda a, b, c, d: (T.if_then_else(d > 0, c, a + c), T.max(b, d))"),
)  # fmt: skip


class OrderSteps(TileSteps):
    def ordered(self) -> Tile:
        """A tile to put in order; NaN and infinities may be in it."""
        found = [each for each in self.tiles if not each.rough]
        return self.pick(found) if found else self.make()

    def part(self, tile: Tile) -> tuple[str, tuple[int, ...]]:
        """A tile, or a slice of it, and its shape."""
        if not self.chance(0.25):
            return tile.name, tile.shape
        ends = [sorted(self.rng.sample(range(size + 1), 2)) for size in tile.shape]
        text = ", ".join(f"{low}:{high}" for low, high in ends)
        return f"{tile.name}[{text}]", tuple(high - low for low, high in ends)

    def places(self, shape: tuple[int, ...]) -> Tile:
        made = self.allocate(shape, self.pick(("int32", "int32", "int64", "uint32")))
        self.tiles.append(made)
        return made

    def sort(self) -> None:
        tile = self.ordered()
        source, shape = self.part(tile)
        axis = self.rng.randrange(len(shape))
        arguments = [source]
        if self.chance(0.6):
            made = self.allocate(shape, tile.dtype)
            made.wild = tile.wild
            arguments.append(made.name)
            self.tiles.append(made)
        if self.chance(0.8):
            arguments.append(f"dim={axis if self.chance(0.7) else axis - len(shape)}")
            arguments += [f"descending={self.chance(0.5)}"] * self.chance(0.7)
        if self.chance(0.5):
            arguments.append(f"indices={self.places(shape).name}")
        self.write(f"T.sort({', '.join(arguments)})")

    def topk(self) -> None:
        tile = self.ordered()
        source, shape = self.part(tile)
        axis = self.rng.randrange(len(shape))
        kept = (*shape[:axis], self.rng.randrange(1, shape[axis] + 1), *shape[axis + 1 :])
        made = self.allocate(kept, tile.dtype)
        made.wild = tile.wild
        self.tiles.append(made)
        arguments = [source, made.name]
        if self.chance(0.6):
            arguments.append(self.places(kept).name)
        self.write(f"T.topk({', '.join(arguments)}, dim={axis}, largest={self.chance(0.6)})")

    def extreme_place(self) -> None:
        tile = self.ordered()
        if tile.dtype == "bool":
            tile = self.make(tile.shape, self.pick(("int32", "float16", "uint8")))
        kind = self.pick(("argmax", "argmin"))
        if len(tile.shape) == 1 and self.chance(0.4):
            x = self.name("x")
            self.write(f"{x} = T.alloc_var('int32', 0)")
            self.write(f"T.{kind}({tile.name}, {x}, dim=0)")
            self.scalars.append(Scalar(x, "int32", 0, tile.shape[0]))
            return
        source, shape = self.part(tile)
        axis = self.rng.randrange(len(shape))
        kept = (*shape[:axis], *([1] if self.chance(0.3) else []), *shape[axis + 1 :]) or (1,)
        self.write(f"T.{kind}({source}, {self.places(kept).name}, dim={axis})")

    def histogram(self) -> None:
        found = [each for each in self.tiles if not is_float(each.dtype) and each.dtype != "bool"]
        tile = self.pick(found) if found and self.chance(0.5) else None
        if tile is None:
            tile = self.make((), self.pick(("int32", "int32", "uint8", "int8", "int64", "uint16")))
        if self.chance(0.5):  # so that most are counted
            with self.parallel(tile.shape, tile.memory) as names:
                own = f"{tile.name}[{', '.join(names)}]"
                self.write(f"{own} = {own} & T.cast({self.pick((3, 7))}, '{tile.dtype}')")
        bins = self.make((self.pick((1, 2, 3, 5, 8)),), self.pick(("int32", "int32", "uint8", "int64", "int16")))
        source, _ = self.part(tile)
        self.write(f"T.histogram({source}, {bins.name}{self.pick(('', '', ', clear=False'))})")

    def associative_scan(self) -> None:
        two = self.chance(0.35)
        dtype, function = self.pick(PAIRS if two else FUNCTIONS)
        shape = self.shape()
        tiles = [self.make(shape, dtype) for _ in range(1 + two)]
        for tile in tiles:
            if tile.wild:
                self.write(f"T.fill({tile.name}, {self.pick((0, 1, 2))})")
                tile.wild = False
        targets = tiles
        if self.chance(0.5):
            targets = [self.allocate(shape, dtype) for _ in tiles]
            self.tiles += targets
        texts = [[each.name for each in group] for group in (tiles, targets)]
        source, target = (f"[{', '.join(names)}]" if two else names[0] for names in texts)
        into = f", {target}" if targets is not tiles else ""
        axis = self.rng.randrange(len(shape))
        self.write(f"T.associative_scan({function}, {source}{into}, dim={axis}, reverse={self.chance(0.4)})")
