"""Random programs as text, from a seed: what a user might write, masks and ragged ends included."""
# ruff: noqa: E501

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.fuzz.case import Case, TensorArgument
from tests.fuzz.expressions import DTYPES, SIGNED, UNSIGNED, Expressions, Scalar, Tensor, Tile, bits_of, is_float

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9)
MOST_ELEMENTS = 48  # of a tile
OPTIONS: dict[str, tuple[Any, ...]] = {
    "map-grid.group_m": (0, 2), "map-grid.persistent": (0, 1, 2), "map-grid.flatten": (True, False),
    "split-k.splits": (1, 2, 3), "split-k.streams": (0, 2), "cse.loads": (True, False), "licm.loads": (True, False),
    "unroll-loops.limit": (0, 8, 4096), "lower-to-triton.index_bits": (0, 64), "lower-to-triton.num_warps": (0, 1, 8),
    "peel-loops.mode": ("off", "causal", "all"), "select-access.mode": ("auto", "pointer", "tma"),
    "pipeline-loops.stages": (0, 1, 3), "parallelize-loops.enabled": (True, False), "pad-tiles.min_dot": (16, 32),
}  # fmt: skip
# Gemm: types of the operands, and of the sums.
PRODUCTS = (
    ("float16", "float16", "float32"), ("float16", "float16", "float16"), ("bfloat16", "bfloat16", "float32"),
    ("float32", "float32", "float32"), ("float64", "float64", "float64"), ("int8", "int8", "int32"),
    ("float8_e4m3fn", "float8_e4m3fn", "float32"), ("float8_e5m2", "float8_e5m2", "float32"),
    ("float8_e4m3fn", "float8_e5m2", "float32"), ("uint8", "uint8", "int32"), ("int8", "uint8", "int32"),
    ("float16", "float32", "float32"), ("float16", "bfloat16", "float32"), ("bfloat16", "float32", "float32"),
    ("float8_e4m3fn", "float16", "float32"), ("uint8", "int8", "int32"),
)  # fmt: skip


def generate(seed: int) -> Case:
    """The program of a seed, with inputs and options; always the same."""
    return _Writer(seed).program()


class _Writer(Expressions):
    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(f"tile program {seed}"))
        self.seed = seed
        self.lines: list[str] = []
        self.depth, self.count = 1, 0
        self.symbols: dict[str, int] = {}
        self.symbols_of_strides: dict[str, int] = {}
        self.blocks: list[str] = []
        self.grid: list[int] = []
        self.macros: list[str] = []
        self.workspaces: list[Tensor] = []
        self.arguments: list[tuple[str, str, Any]] = []  # scalars: name, type, value
        self.accumulators: dict[str, str] = {}  # of tensors written atomically in this kernel: the kind

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def write(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

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

    # The program

    def program(self) -> Case:
        if self.chance(0.35):
            self.symbols["M"] = self.pick((3, 5, 7, 8, 11, 13))
            if self.chance(0.3):
                self.symbols["N"] = self.pick((2, 4, 9, 10))
        for _ in range(self.rng.randrange(1, 4)):
            self.input()
        if self.chance(0.5):
            self.index_tensor()
        if self.chance(0.35):
            self.arguments.append(("sx", "int32", self.pick((0, 1, 3, 6))))
        if self.chance(0.25):
            self.arguments.append(("sf", self.pick(("float32", "float64")), self.pick((0.5, -2.0, 1.0, 3.25))))
        if self.chance(0.25):
            self.macro()
        for _ in range(self.pick((1, 1, 1, 2, 2, 3))):
            self.kernel()
        return self.finish()

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

    def input(self) -> Tensor:
        shape, sizes = self.dims(self.pick((1, 2, 2, 2, 3)))
        dtype = self.pick(DTYPES)
        return self.parameter("A", shape, sizes, dtype, "wild" if is_float(dtype) and self.chance(0.2) else "any")

    def index_tensor(self) -> Tensor:
        """Indices of some dimension, up to and beyond its end."""
        shape, sizes = self.dims(1)
        made = self.parameter("I", shape, sizes, self.pick(("int32", "int32", "int64", "int8", "uint8")), "index")
        made.low, made.high = (0 if made.dtype == "uint8" else self.pick((0, 0, -2))), self.pick((2, 5, 8, 12))
        return made

    def macro(self) -> None:
        """Two functions for kernels to call: one changes a variable, one a tile."""
        self.macros = ["bump", "shift"]

    def finish(self) -> Case:
        lines = [f'{name} = T.dynamic("{name}")' for name in (*self.symbols, *self.symbols_of_strides)]
        for symbol in self.symbols:  # each needs a tensor that has it as a dimension
            if not any(symbol in tensor.shape for tensor in self.tensors):
                self.tensors.append(Tensor(f"D{symbol}", [symbol], [self.symbols[symbol]], "int32", "index", 0, 3))
        if self.macros:
            lines += [
                "@T.macro", "def bump(v: T.Ref, by):", "    if v > 3:", "        v -= by", "    else:",
                "        v += by + 1", "@T.macro", "def shift(buf, n, by):", "    for q in T.Parallel(n):",
                "        buf[q] = buf[q] + by",
            ]  # fmt: skip
        lines += ["@T.prim_func", "def main("]
        for tensor in self.tensors:
            shape = f"({', '.join(tensor.shape)},)"
            if tensor.strides:
                lines.append(
                    f"    {tensor.name}: T.StridedTensor({shape}, ({', '.join(tensor.strides)},), '{tensor.dtype}'),"
                )
            else:
                lines.append(f"    {tensor.name}: T.Tensor({shape}, '{tensor.dtype}'),")
        lines += [f"    {name}: T.{dtype}," for name, dtype, _ in self.arguments]
        text = "\n".join([*lines, "):", *self.lines, ""])
        options = {key: self.pick(values) for key, values in OPTIONS.items() if self.chance(0.12)}
        if options.get("split-k.splits", 1) != 1:
            options.pop("split-k.streams", None)
        arguments = [
            TensorArgument(
                each.name, tuple(each.sizes), each.dtype, tuple(each.steps), each.same_as, each.values, each.low,
                each.high, self.pick((0, 0, 0, 8, 8, 2, 4)) if self.chance(0.3) else 0,
            )
            for each in self.tensors
        ]  # fmt: skip
        return Case.make(self.seed, text, arguments, {name: (dtype, x) for name, dtype, x in self.arguments}, options)

    # A kernel

    def kernel(self) -> None:
        self.tiles, self.loops, self.locked, self.accumulators = [], {}, set(), {}
        self.readable = [each for each in self.tensors if each.same_as == ""]
        self.scalars = [Scalar(name, dtype, 0, 6) if dtype == "int32" else Scalar(name, dtype)
                        for name, dtype, _ in self.arguments]  # fmt: skip
        rank = self.pick((1, 1, 2, 2, 3))
        self.grid = []
        parts: list[str] = []
        for axis in range(rank):
            most = 6 // max(math.prod(self.grid), 1)
            symbol = next((each for each in self.symbols if axis == 0), "")
            if symbol and self.chance(0.4):
                tile = self.pick((3, 4, 8))
                self.grid.append(-(-self.symbols[symbol] // tile))
                parts.append(f"T.ceildiv({symbol}, {tile})")
            else:
                self.grid.append(self.rng.randrange(1, max(2, min(most, 4) + 1)))
                parts.append(str(self.grid[-1]))
        self.blocks = ["bx", "by", "bz"][:rank]
        self.scalars += [Scalar(block, "int32", 0, size) for block, size in zip(self.blocks, self.grid)]
        names = self.blocks[0] if rank == 1 else f"({', '.join(self.blocks)})"
        threads = self.pick((32, 64, 128, 128, 128, 256))
        with self.inside_of(f"with T.Kernel({', '.join(parts)}, threads={threads}) as {names}:"):
            if rank > 1 and self.chance(0.1):
                self.write(f"T.use_swizzle({self.pick((1, 2, 3))})")
            if self.readable and self.chance(0.06):
                self.write(f"T.annotate_safe_value({{{self.pick(self.readable).name}: {self.pick((1, 3))}}})")
            self.make()
            for _ in range(self.rng.randrange(1, 5)):
                self.step()
            self.emit(self.tiles[-1])  # what was made last is not for nothing
            for _ in range(self.pick((0, 1, 1, 2))):
                self.emit()
            if self.chance(0.2):
                self.aliased()

    def number_of_block(self) -> str:
        """The linear number of the block, and of how many."""
        text = self.blocks[0]
        for block, size in zip(self.blocks[1:], self.grid[1:]):
            text = f"({text}) * {size} + {block}"
        return text

    def step(self) -> None:
        steps = [
            self.make, self.compute, self.compute, self.masked, self.reduce, self.reduce, self.scan, self.product,
            self.view, self.move, self.variable, self.gather, self.atomic, self.reducer, self.scatter, self.functions,
            self.transpose, self.call_macro, self.local_array, self.assume, self.assume, self.direct, self.rows,
            self.hazard, self.hazard, self.in_memory, self.slices, self.whole, self.dynamic_extent, self.workspace,
            self.nested, self.swap,
        ]  # fmt: skip
        if self.depth < 4:
            steps += [self.loop, self.loop, self.branch]
        self.pick(steps)()

    # Tiles

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

    def compute(self) -> None:
        """New values for some or all elements of a tile, from others and from itself."""
        tile = self.some_tile()
        with self.parallel(tile.shape, tile.memory) as names:
            own = f"{tile.name}[{', '.join(names)}]"
            if self.chance(0.3):
                inner = self.variable_in_loop(tile.dtype)
                self.write(f"{own} = {inner}")
                return
            value = self.value(tile.dtype)
            form = self.rng.random()
            if form < 0.3:
                self.write(f"{own} = {self.converted(self.combined(own, value, tile.dtype), *self.types(tile.dtype))}")
            elif form < 0.6:
                self.write(f"if {self.condition(2)}:")
                self.write(f"    {own} = {value}")
                if self.chance(0.2):
                    self.write(f"    {own} = {self.value(tile.dtype, 1)}")
            elif form < 0.7:
                self.write(f"if {self.condition(2)}:")
                self.write("    continue")
                self.write(f"{own} = {value}")
            else:
                self.write(f"{self.target(tile, names)} = {value}")

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

    def variable_in_loop(self, dtype: str) -> str:
        """A variable of each iteration, changed in a loop; the text of its value as `dtype`."""
        x, kind = self.name("x"), self.pick(("int32", "int32", "float32", "uint8"))
        self.write(f"{x} = T.alloc_var('{kind}', {self.value(kind, 1)})")
        k = self.name("k")
        change = f"{x} * 2 + 1" if kind != "float32" else f"T.clamp({x} * 0.5 + 1.0, -8.0, 8.0)"
        if self.chance(0.5):
            change = f"{x} + {self.value(kind, 1)}" if kind != "float32" else self.value(kind, 1)
        form = self.rng.random()
        if form < 0.35:
            self.write(f"{k} = T.alloc_var('int32', 0)")
            bound = self.pick([f"({self.small()}) % 4", "2", f"{self.small()} // 2"])
            self.write(f"while {k} < {bound}:")
            self.write(f"    {k} += 1")
            self.write(f"    {x} = {change}")
        elif form < 0.7:
            self.write(f"for {k} in range({self.pick([2, 3, f'({self.small()}) % 4'])}):")
            if self.chance(0.3):
                self.write(f"    if ({k} + {self.small()}) % 3 == 1:")
                self.write(f"        {self.pick(('continue', 'break'))}")
            self.write(f"    {x} = {change}")
        else:
            self.write(f"if {self.condition()}:")
            self.write(f"    {x} = {change}")
        return self.converted(x, kind, dtype)

    def functions(self) -> None:
        """A tile of values that implementations round differently; only copied on, scaled and reduced."""
        dtype = self.pick(("float32", "float32", "float16", "bfloat16", "float64"))
        tile = self.allocate(self.shape(), dtype)
        with self.parallel(tile.shape, tile.memory) as names:
            self.write(f"{self.target(tile, names)} = {self.rough(dtype)}")
        tile.rough = True
        self.tiles.append(tile)

    def masked(self) -> None:
        """Elements of a tile under a mask of its own, with a branch inside."""
        tile = self.some_tile()
        with self.parallel(tile.shape, tile.memory) as names:
            own = f"{tile.name}[{', '.join(names)}]"
            self.write(f"if {self.condition(2)}:")
            self.write(f"    if {self.condition(2)}:")
            self.write(f"        {own} = {self.value(tile.dtype)}")
            if self.chance(0.5):
                self.write("    else:")
                self.write(f"        {own} = {self.value(tile.dtype)}")

    def reduce(self) -> None:
        source = self.some_tile(tame=False)
        axis = self.rng.randrange(len(source.shape))
        if source.dtype == "bool" or (is_float(source.dtype) and bits_of(source.dtype) == 8):
            source = self.make(source.shape, self.pick(("float32", "int32", "float16")))
        integral = not is_float(source.dtype)
        kinds = ["sum", "max", "min", "sum", "max", "absmax", "abssum"]
        kind = self.pick([*kinds, "bitand", "bitor", "bitxor"] if integral else kinds)
        if kind.startswith("abs") and source.dtype.startswith(("u", "int")):
            kind = "max"
        dtype = source.dtype
        if kind in ("sum", "abssum") and self.chance(0.6):
            dtype = "float32" if is_float(dtype) and dtype != "float64" else "int32" if bits_of(dtype) < 32 else dtype
        kept = self.chance(0.3)
        shape = tuple(1 if n == axis else size for n, size in enumerate(source.shape)) if kept else (
            source.shape[:axis] + source.shape[axis + 1 :] or (1,)
        )  # fmt: skip
        target = self.allocate(shape, dtype)
        clear = self.chance(0.6)
        if not clear:
            self.write(f"T.fill({target.name}, {self.pick((0, 1, 2))})")
        place, dim = source.name, axis if self.chance(0.7) else axis - len(source.shape)
        nan = ", nan_propagate=True" if kind in ("max", "min", "absmax") and not integral and self.chance(0.2) else ""
        self.write(f"T.reduce_{kind}({place}, {target.name}, dim={dim}, clear={clear}{nan})")
        target.rough, target.wild = source.rough or (not integral and kind in ("sum", "abssum")), source.wild
        self.tiles.append(target)

    def scan(self) -> None:
        source = self.some_tile(tame=False)
        if source.dtype in ("bool", "float8_e4m3fn", "float8_e5m2"):
            source = self.make(source.shape, self.pick(("float32", "int32")))
        axis, kind = self.rng.randrange(len(source.shape)), self.pick(("cumsum", "cumsum", "cummax"))
        target = ""
        if self.chance(0.5):
            made = self.allocate(source.shape, source.dtype)
            made.rough, made.wild = source.rough or is_float(source.dtype), source.wild
            self.tiles.append(made)
            target = f", {made.name}"
        elif is_float(source.dtype):
            for each in self.tiles:
                each.rough = each.rough or each.memory == source.memory
        self.write(f"T.{kind}({source.name}{target}, dim={axis}, reverse={self.chance(0.4)})")

    def product(self) -> None:
        """A matrix product, alone or in a loop over tiles of two tensors."""
        left, right, sums = self.pick(PRODUCTS)
        m, n, k = (self.pick((1, 2, 3, 4, 5, 8)) for _ in range(3))
        k = self.pick((k, 16)) if self.chance(0.2) else k
        trans_a, trans_b = self.chance(0.3), self.chance(0.5)
        total = self.allocate((m, n), sums, "fragment")
        flags = f"transpose_A={trans_a}, transpose_B={trans_b}"
        shapes = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n))
        a_dtype, b_dtype = (left, right) if self.chance(0.7) else (right, left)
        form = self.rng.random()
        if form < 0.4:
            a, b = self.make(shapes[0], a_dtype), self.make(shapes[1], b_dtype)
            if self.chance(0.5):
                self.write(f"T.clear({total.name})")
                self.write(f"T.gemm({a.name}, {b.name}, {total.name}, {flags})")
            else:
                self.write(f"T.gemm({a.name}, {b.name}, {total.name}, {flags}, clear_accum=True)")
        else:
            a, b = self.allocate(shapes[0], a_dtype, "shared"), self.allocate(shapes[1], b_dtype, "shared")
            sources = [self.matrix(a_dtype), self.matrix(b_dtype)]
            self.write(f"T.clear({total.name})")
            step, rounds = self.name("k"), self.rng.randrange(1, 4)
            with self.inside_of(f"for {step} in T.Pipelined({rounds}, num_stages={self.rng.randrange(4)}):"):
                self.scalars.append(Scalar(step, "int32", 0, rounds))
                for tile, source, along in ((a, sources[0], not trans_a), (b, sources[1], trans_b)):
                    start = [self.pick((f"{self.blocks[0]} * {tile.shape[n]}", "0")) for n in (0, 1)]
                    start[1 if along else 0] = f"{step} * {tile.shape[1 if along else 0]}"
                    self.write(f"T.copy({source.name}[{', '.join(start)}], {tile.name})")
                self.write(f"T.gemm({a.name}, {b.name}, {total.name}, {flags})")
                if self.chance(0.15):
                    self.write(f"if {step} == {self.rng.randrange(rounds)}:")
                    self.write(f"    T.fill({total.name}, {self.pick((0, 1))})")
            total.wild = any(source.values == "wild" for source in sources)
        total.rough = is_float(sums)
        self.tiles.append(total)

    def matrix(self, dtype: str) -> Tensor:
        found = [each for each in self.readable if each.dtype == dtype and len(each.sizes) == 2]
        if found and self.chance(0.8):
            return self.pick(found)
        shape, sizes = self.dims(2)
        made = self.parameter("A", shape, sizes, dtype, "wild" if is_float(dtype) and self.chance(0.2) else "any")
        self.readable.append(made)
        return made

    def view(self) -> None:
        tile = self.some_tile(tame=False)
        size = math.prod(tile.shape)
        rows = self.pick([each for each in range(1, size + 1) if size % each == 0])
        shape = self.pick([(rows, size // rows), (size,), (1, rows, size // rows)])
        name = self.name("v")
        self.write(f"{name} = T.{self.pick(('reshape', 'view'))}({tile.name}, {shape!r})")
        self.tiles.append(Tile(name, shape, tile.dtype, tile.memory, tile.rough, tile.wild))

    def move(self) -> None:
        """A part of a tile into another tile."""
        source = self.some_tile(tame=False)
        sizes = [self.rng.randrange(1, size + 1) for size in source.shape]
        target = self.make(tuple(max(size, self.pick(SIZES[:4])) for size in sizes), source.dtype)
        if target.memory == source.memory:
            return
        parts = []
        for shape in (source.shape, target.shape):
            starts = [self.rng.randrange(whole - size + 1) for whole, size in zip(shape, sizes)]
            parts.append(", ".join(f"{start}:{start + size}" for start, size in zip(starts, sizes)))
        self.write(f"T.copy({source.name}[{parts[0]}], {target.name}[{parts[1]}])")
        target.rough, target.wild = target.rough or source.rough, target.wild or source.wild

    def transpose(self) -> None:
        source = self.some_tile(tame=False, rank=2)
        target = self.allocate(source.shape[::-1], source.dtype)
        self.write(f"T.transpose({source.name}, {target.name})")
        target.rough, target.wild = source.rough, source.wild
        self.tiles.append(target)

    def variable(self) -> None:
        """A number of the block."""
        name = self.name("x")
        dtype = self.pick(("int32", "int32", "uint32", "int64", "float32", "uint8", "int16"))
        if self.chance(0.4):
            self.write(f"{name} = {self.value(dtype, 2)}")
            self.scalars.append(Scalar(name, dtype))
            return
        self.write(f"{name} = T.alloc_var('{dtype}', {self.value(dtype, 1)})")
        form = self.rng.random()
        if form < 0.4:
            self.write(f"if {self.condition()}:")
            self.write(f"    {name} = {self.value(dtype, 1)}")
        elif form < 0.6 and dtype == "int32" and self.macros:
            self.write(f"bump({name}, {self.pick((1, 2))})")
        elif form < 0.8 and not is_float(dtype):
            self.write(f"{name} {self.pick(('+=', '-=', '*='))} {self.value(dtype, 1)}")
        self.scalars.append(Scalar(name, dtype))

    def call_macro(self) -> None:
        tiles = [each for each in self.tiles if len(each.shape) == 1 and each.dtype in ("int32", "uint8", "int64")]
        if not self.macros or not tiles:
            self.compute()
            return
        tile = self.pick(tiles)
        self.write(f"shift({tile.name}, {tile.shape[0]}, {self.small()})")

    def gather(self) -> None:
        """Elements of a tile or tensor at indices from another tile."""
        shape = self.shape(self.pick((1, 2)))
        indices = self.make(shape, self.pick(("int32", "int32", "int64", "uint8")))
        source = self.some_tile()
        target = self.allocate(shape, source.dtype)
        with self.parallel(shape, target.memory) as names:
            at = f"{indices.name}[{', '.join(names)}]"
            if self.chance(0.6):
                places = [f"{at} % {size}" if self.chance(0.6) else self.inside(size) for size in source.shape]
                value = f"{source.name}[{', '.join(places)}]"
            else:
                tensors = [each for each in self.readable if each.dtype == source.dtype and each.values != "wild"]
                tensor = self.pick(tensors) if tensors else None
                if tensor is None:
                    value = self.value(source.dtype)
                else:
                    places = [self.pick((at, f"{at} - {names[0]}", self.anywhere(size))) for size in tensor.sizes]
                    value = f"{tensor.name}[{', '.join(places)}]"
            self.write(f"{target.name}[{', '.join(names)}] = {value}")
        self.tiles.append(target)

    def local_array(self) -> None:
        """A small array of each iteration."""
        tile = self.some_tile()
        dtype = self.pick(("int32", "float32", "uint8"))
        with self.parallel(tile.shape, tile.memory) as names:
            array, size, k = self.name("l"), self.rng.randrange(2, 4), self.name("k")
            self.write(f"{array} = T.alloc_local({size}, '{dtype}')")
            loop = self.pick((f"range({size})", f"T.unroll({size})", f"T.serial({size})"))
            self.write(f"for {k} in {loop}:")
            self.loops[k] = size
            self.write(f"    {array}[{k}] = {self.value(dtype, 1)}")
            del self.loops[k]
            value = f"{array}[{self.pick((str(self.rng.randrange(size)), f'({self.small()}) % {size}'))}]"
            self.write(f"{tile.name}[{', '.join(names)}] = {self.converted(value, dtype, tile.dtype)}")

    def rows(self) -> None:
        """A serial loop over rows, each of which may need the one before."""
        tile = self.some_tile(rank=2)
        rows, columns = tile.shape
        k, j = self.name("k"), self.name("i")
        start = self.pick((0, 1)) if rows > 1 else 0
        with self.inside_of(f"for {k} in T.serial({start}, {rows}):"):
            with self.inside_of(f"for {j} in T.Parallel({columns}):"):
                self.loops = {**self.loops, k: rows, j: columns}
                self.locked = {*self.locked, tile.memory}
                value = self.value(tile.dtype, 1)
                self.locked = self.locked - {tile.memory}
                before = f"{tile.name}[{k} - {start}, {j}]"
                text = self.converted(self.combined(before, value, tile.dtype), *self.types(tile.dtype))
                if self.chance(0.3):
                    self.write(f"if {self.condition()}:")
                    self.write(f"    {tile.name}[{k}, {j}] = {text}")
                else:
                    self.write(f"{tile.name}[{k}, {j}] = {text}")

    def assume(self) -> None:
        """A promise with values exactly at its bound, where a mask depends on it."""
        found = [each for each in self.readable if each.values == "index" and len(each.sizes) == 1]
        tensor = self.pick(found) if found else self.index_tensor()
        if tensor not in self.readable:
            self.readable.append(tensor)
        x = self.name("x")
        self.write(f"{x} = {tensor.name}[({self.small()}) % {tensor.sizes[0]}]")
        high, low = tensor.high, tensor.low
        forms = [f"{x} <= {high}", f"{x} < {high + 1}", f"{high} >= {x}", f"T.And({x} >= {low}, {x} <= {high})",
                 f"{low} <= {x} <= {high}", f"{high + 1} > {x}", f"{x} >= {low}"]  # fmt: skip
        self.write(f"T.assume({self.pick(forms)})")
        source = self.parameter("A", [str(high + self.pick((0, 0, 1, 2)))], [0], self.pick(DTYPES))
        source.sizes = [int(source.shape[0])]
        self.readable.append(source)
        tile = self.allocate((self.pick((1, 2, 3)),), source.dtype)
        with self.parallel(tile.shape, tile.memory) as names:
            place = self.pick([x, x, x, f"{x} - {names[0]}", f"{x} + {names[0]}", f"{high} - {x}"])
            self.write(f"{tile.name}[{names[0]}] = {source.name}[{place}]")
        self.tiles.append(tile)
        if self.depth == 2 and self.chance(0.6):
            self.emit(tile)

    def hazard(self) -> None:
        """A tile whose elements are finite, but whose padding would not be; then a product, reduction or scan of it."""
        dtype = self.pick(("float32", "float16", "bfloat16", "float64"))
        found = [each for each in self.readable if each.values == "nonzero" and each.dtype == dtype]
        source = found[0] if found else self.parameter("N", ["9", "9"], [9, 9], dtype, "nonzero")
        if not found:
            self.readable.append(source)
        shape = (self.pick((3, 5, 6, 7)), self.pick((3, 5, 6, 7)))
        tile = self.allocate(shape, dtype)
        self.write(
            f"T.copy({source.name}[{self.rng.randrange(10 - shape[0])}, {self.rng.randrange(10 - shape[1])}], {tile.name})"
        )
        with self.parallel(shape, tile.memory) as names:
            x = f"{tile.name}[{', '.join(names)}]"
            infinite = self.pick(("T.infinity('float32')", "-T.infinity('float32')", "T.infinity('float32') * 0.0"))
            forms = [
                f"T.if_then_else({x} == 0.0, {infinite}, {x})", f"T.if_then_else({x} != 0, {x}, {infinite})",
                f"T.if_then_else({names[1]} < {shape[1]}, {x}, {infinite})",
                f"T.if_then_else({names[0]} * 2 <= {2 * shape[0] - 2}, {x}, {infinite})",
            ]  # fmt: skip
            self.write(
                f"{x} = {self.converted(self.pick(forms), 'float32', dtype) if dtype == 'float64' else self.pick(forms)}"
            )
        form = self.rng.random()
        if form < 0.5:
            other = self.make(
                (shape[1], self.pick((2, 4, 5))) if self.chance(0.5) else (self.pick((2, 4, 5)), shape[1]), dtype
            )
            first = other.shape[0] != shape[1] or (other.shape[1] == shape[1] and self.chance(0.5))
            sums = "float64" if dtype == "float64" else "float32"
            if first:  # other @ tile.T
                total = self.allocate((other.shape[0], shape[0]), sums, "fragment")
                call = f"{other.name}, {tile.name}, {total.name}, transpose_B=True"
            else:
                total = self.allocate((shape[0], other.shape[1]), sums, "fragment")
                call = f"{tile.name}, {other.name}, {total.name}"
            self.write(f"T.gemm({call}, clear_accum=True)")
            total.rough = True
        else:
            axis = self.rng.randrange(2)
            total = self.allocate((shape[1 - axis],), dtype)
            self.write(f"T.reduce_{self.pick(('sum', 'max', 'min', 'absmax'))}({tile.name}, {total.name}, dim={axis})")
            total.rough = True
            if self.chance(0.5):
                self.write(f"T.cumsum({tile.name}, dim={self.rng.randrange(2)}, reverse={self.chance(0.6)})")
                tile.rough = True
        self.tiles += [tile, total]
        if self.depth == 2 and self.chance(0.6):
            self.emit(total)

    def in_memory(self) -> None:
        """A loop that works on elements of a tensor where they are."""
        if self.depth > 2:
            self.compute()
            return
        dtype = self.pick(("int32", "float32", "uint8", "int64"))
        extent, number, blocks = self.pick((1, 2, 4)), self.number_of_block(), math.prod(self.grid)
        size = max(1, blocks * extent - self.pick((0, 0, 1)))
        out = self.output([str(size)], [size], dtype)
        k = self.name("k")
        with self.inside_of(f"for {k} in {self.pick(('T.serial(3)', 'range(2)', 'T.Pipelined(3, num_stages=2)'))}:"):
            self.scalars.append(Scalar(k, "int32", 0, 3))
            with self.parallel((extent,)) as names:
                place = f"{out.name}[({number}) * {extent} + {names[0]}]"
                value = self.combined(place, self.value(dtype, 1), dtype)
                if self.chance(0.4):
                    self.write(f"if {self.condition()}:")
                    self.write(f"    {place} = {value}")
                else:
                    self.write(f"{place} = {value}")

    def slices(self) -> None:
        """A reduction, scan or fill of a part of a tile."""
        tile = self.some_tile(rank=2)
        if tile.dtype not in ("int32", "float32", "int64", "float64", "int16", "uint8"):
            tile = self.make(tile.shape, self.pick(("int32", "float32")))
        rows, columns = tile.shape
        first, last = sorted(self.rng.sample(range(columns + 1), 2))
        part = f"{tile.name}[:, {first}:{last}]"
        form = self.rng.random()
        if form < 0.4:
            made = self.allocate((rows,), tile.dtype)
            self.write(f"T.reduce_{self.pick(('max', 'min', 'sum'))}({part}, {made.name}, dim=1)")
            made.rough = is_float(tile.dtype)
            self.tiles.append(made)
        elif form < 0.6:
            row = self.rng.randrange(rows)
            made = self.allocate((1, columns), tile.dtype)
            self.write(f"T.copy({tile.name}[{row}:{row + 1}, :], {made.name})")
            self.tiles.append(made)
        elif form < 0.8:
            self.write(f"T.fill({part}, {self.pick((0, 1, 3))})")
        else:
            self.write(f"T.cumsum({part}, dim={self.rng.randrange(2)})")
            tile.rough = tile.rough or is_float(tile.dtype)

    def whole(self) -> None:
        """A number from a whole tile."""
        tile = self.some_tile(rank=self.pick((0, 1)))
        x = self.name("x")
        if self.chance(0.5) or len(tile.shape) != 1 or tile.dtype not in ("int32", "int64", "uint32"):
            if is_float(tile.dtype) and bits_of(tile.dtype) == 8:
                tile = self.make(tile.shape, "float32")
            self.write(f"{x} = T.{self.pick(('any_of', 'all_of'))}({tile.name})")
            self.scalars.append(Scalar(x, "bool"))
        else:
            self.write(f"{x} = T.alloc_var('{tile.dtype}', 0)")
            self.write(f"T.reduce_{self.pick(('sum', 'max'))}({tile.name}, {x}, dim=0)")
            self.scalars.append(Scalar(x, tile.dtype))

    def dynamic_extent(self) -> None:
        """A parallel loop whose extent is known only when it runs."""
        tile = self.some_tile()
        i = self.name("i")
        bound = self.pick(
            [f"T.min({self.small()}, {tile.shape[0]})", f"T.clamp({self.small()} + 1, 1, {tile.shape[0]})"]
        )
        others = [self.name("i") for _ in tile.shape[1:]]
        head = f"for {', '.join([i, *others])} in T.Parallel({', '.join([bound, *map(str, tile.shape[1:])])}):"
        locked = self.locked
        self.locked = {*locked, tile.memory}
        with self.inside_of(head):
            self.loops = {**self.loops, **dict(zip([i, *others], tile.shape))}
            self.write(f"{tile.name}[{', '.join([i, *others])}] = {self.value(tile.dtype)}")
        self.locked = locked

    def workspace(self) -> None:
        """An element of a tensor copied to a variable's place, or a whole tensor seen in another shape."""
        tensors = [each for each in self.readable if not each.steps and all(size.isdigit() for size in each.shape)]
        if not tensors or self.depth > 2:
            self.compute()
            return
        tensor = self.pick(tensors)
        size = math.prod(tensor.sizes)
        rows = self.pick([each for each in range(1, size + 1) if size % each == 0])
        name, dtype = self.name("V"), tensor.dtype
        other = {"int32": "uint32", "uint32": "int32", "int8": "uint8", "uint8": "int8", "int64": "uint64"}.get(
            dtype, dtype
        )
        if self.chance(0.4) and tensor.values == "any":
            self.write(f"{name} = T.view({tensor.name}, ({rows}, {size // rows}), '{other}')")
            dtype = other
        else:
            self.write(f"{name} = T.reshape({tensor.name}, ({rows}, {size // rows}))")
        sizes = [rows, size // rows]
        self.readable.append(
            Tensor(name, list(map(str, sizes)), sizes, dtype, tensor.values if tensor.values == "wild" else "any")
        )

    def nested(self) -> None:
        """Each iteration of a parallel loop writes a line of a tile, one element after the other."""
        tile = self.some_tile(rank=2)
        rows, columns = tile.shape
        i, k = self.name("i"), self.name("k")
        locked = self.locked
        self.locked = {*locked, tile.memory}
        with self.inside_of(f"for {i} in T.Parallel({rows}):"):
            self.loops = {**self.loops, i: rows}
            with self.inside_of(
                f"for {k} in {self.pick((f'T.serial({columns})', f'range({columns})', f'T.unroll({columns})'))}:"
            ):
                self.loops = {**self.loops, k: columns}
                value = self.value(tile.dtype, 1)
                before = f"{tile.name}[{i}, T.max({k} - 1, 0)]"
                text = self.converted(self.combined(before, value, tile.dtype), *self.types(tile.dtype))
                self.write(f"{tile.name}[{i}, {k}] = {text if self.chance(0.6) else value}")
        self.locked = locked

    def swap(self) -> None:
        """Variables of the block that are changed in a loop, also one by the other."""
        x, y, k = self.name("x"), self.name("x"), self.name("k")
        dtype = self.pick(("int32", "uint32", "int64"))
        self.write(f"{x} = T.alloc_var('{dtype}', {self.value(dtype, 1)})")
        self.write(f"{y} = T.alloc_var('{dtype}', {self.value(dtype, 0)})")
        with self.inside_of(f"for {k} in range({self.pick(('3', f'({self.small()}) % 4'))}):"):
            old = self.name("x")
            self.write(f"{old} = {x}")
            self.write(f"{x} = {y} + {self.pick(('1', k))}")
            self.write(f"{y} = {old}")
        self.scalars += [Scalar(x, dtype), Scalar(y, dtype)]

    # Control flow

    def loop(self) -> None:
        index = self.name("k")
        bound = self.pick(("3", "2", "1", "0", f"({self.small()}) % 4", f"T.min({self.small()}, 3)"))
        kind = self.pick((
            f"T.serial({bound})", f"range({bound})", "T.unroll(2)", "T.serial(4, -1, -2)", "T.serial(1, 4)", "while",
            f"T.Pipelined({bound}, num_stages={self.rng.randrange(3)})", "grid", "persistent",
        ))  # fmt: skip
        head = f"for {index} in {kind}:"
        if kind == "while":
            self.write(f"{index} = T.alloc_var('int32', 0)")
            head = f"while {index} < {bound}:"
        elif kind == "grid":
            other = self.name("k")
            head = f"for {index}, {other} in T.grid(2, {self.pick((1, 2))}):"
        elif kind == "persistent":
            other = self.name("k")
            wave = self.pick((1, 2, 3))
            head = f"for {index}, {other} in T.Persistent([2, {self.pick((2, 3))}], {wave}, {self.blocks[0]} % {wave}):"
        with self.inside_of(head):
            self.scalars.append(Scalar(index, "int32", 0, 4))
            if kind == "while":
                self.write(f"{index} += 1")
            elif kind != "grid" and not kind.startswith("T.unroll") and self.chance(0.3):
                self.write(f"if {self.condition()}:")
                self.write(f"    {self.pick(('break', 'continue'))}")
            for _ in range(self.rng.randrange(1, 3)):
                self.step()

    def branch(self) -> None:
        if self.chance(0.15):
            with self.inside_of(f"with T.If({self.condition()}):"):
                with self.inside_of("with T.Then():"):
                    self.step()
                if self.chance(0.5):
                    with self.inside_of("with T.Else():"):
                        self.step()
            return
        with self.inside_of(f"if {self.condition()}:"):
            self.step()
        if self.chance(0.5):
            with self.inside_of("else:"):
                self.step()

    # Stores to global memory

    def output(self, shape: Sequence[str], sizes: Sequence[int], dtype: str) -> Tensor:
        made = self.parameter("O", list(shape), list(sizes), dtype, "any")
        made.written = True
        return made

    def emit(self, tile: Tile | None = None) -> None:
        """A tile to a tensor: copied, element by element under masks and beyond its ends, or atomically."""
        tile = tile or self.some_tile(tame=False)
        blocks, number = math.prod(self.grid), self.number_of_block()
        rank, first = len(tile.shape), tile.shape[0]
        others = [max(1, size + self.pick((0, 0, 0, -1, 1, 2))) for size in tile.shape[1:]]
        shift = self.pick((0, 0, 0, -1, 1, 2))
        partition = self.chance(0.6)
        dtype = tile.dtype if self.chance(0.7) else self.wider(tile)
        if partition:
            rows = max(1, blocks * first + self.pick((0, 0, -1, -first, 1, 3)))
            shape, sizes = [str(rows), *map(str, others)], [rows, *others]
            symbol = next(iter(self.symbols), "")
            if symbol and self.chance(0.3):
                shape[0], sizes[0] = symbol, self.symbols[symbol]
            starts = [f"({number}) * {first} + {shift}" if shift else f"({number}) * {first}"]
            starts += [self.pick(("0", "0", "0", "-1", "1")) if self.chance(0.4) else "0" for _ in others]
        else:
            count = max(1, blocks + self.pick((0, 0, 0, -1)))
            rows = max(1, first + self.pick((0, 0, -1, 1)))
            shape, sizes = [str(count), str(rows), *map(str, others)], [count, rows, *others]
            starts = [number, *["0"] * rank]
        out = self.output(shape, sizes, dtype)
        starts = ["0" if start == "-1" and out.sizes[n] == 1 else start for n, start in enumerate(starts)]
        form = self.rng.random()
        if form < 0.35 and "-1" not in starts:
            if self.chance(0.3):
                extents = tile.shape if partition else (1, *tile.shape)
                starts = [f"{start}:{start} + {extent}" for start, extent in zip(starts, extents)]
            self.write(f"T.copy({tile.name}, {out.name}[{', '.join(starts)}])")
            return
        lead = [] if partition else starts[:1]
        with self.parallel(tile.shape) as names:
            at = [f"{start} + {name}" if start != "0" else name for start, name in zip(starts[len(lead) :], names)]
            place = f"{out.name}[{', '.join([*lead, *at])}]"
            own = f"{tile.name}[{', '.join(names)}]"
            value = own if tile.dtype == dtype else f"T.cast({own}, '{dtype}')"
            self.store_in_loop(place, value, dtype, atomic=form > 0.9)

    def wider(self, tile: Tile) -> str:
        """A type that holds a tile's values."""
        if tile.rough or tile.wild:
            return "float32" if tile.dtype in ("float16", "bfloat16") else tile.dtype
        if is_float(tile.dtype):
            return self.pick(("float32", "float64", "float32")) if tile.dtype != "float64" else tile.dtype
        return self.pick((*SIGNED, *UNSIGNED)) if tile.dtype != "bool" else self.pick(("int32", "float32", "uint8"))

    def store_in_loop(self, place: str, value: str, dtype: str, atomic: bool = False) -> None:
        form = self.rng.random()
        if atomic and dtype in ("int32", "float32"):
            self.write(f"T.atomic_add({place}, {value})")
        elif form < 0.4:
            self.write(f"if {self.condition(2)}:")
            self.write(f"    {place} = {value}")
            if self.chance(0.25):
                self.write("else:")
                self.write(f"    {place} = {self.value(dtype, 1)}")
        elif form < 0.5:
            self.write(f"if {self.condition()}:")
            self.write(f"    if {self.condition()}:")
            self.write("        continue")
            self.write(f"    {place} = {value}")
        elif form < 0.6 and not is_float(dtype) and dtype != "bool":
            self.write(f"{place} {self.pick(('+=', '-='))} {value}")
        else:
            self.write(f"{place} = {value}")

    def direct(self) -> None:
        """Values computed and stored at once, masked, by elements of a tensor that each block has its own part of."""
        if any(each.name[0] == "k" for each in self.scalars) and self.depth > 2:
            self.compute()
            return
        dtype = self.pick(DTYPES)
        shape = self.shape(self.pick((1, 2)))
        blocks, number = math.prod(self.grid), self.number_of_block()
        sizes = [max(1, blocks * shape[0] - self.rng.randrange(shape[0] + 1)), *shape[1:]]
        out = self.output(list(map(str, sizes)), sizes, dtype)
        with self.parallel(shape) as names:
            first = f"({number}) * {shape[0]} + {self.pick((names[0], f'{shape[0] - 1} - {names[0]}'))}"
            place = f"{out.name}[{', '.join([first, *names[1:]])}]"
            self.store_in_loop(place, self.value(dtype), dtype)

    def scatter(self) -> None:
        """Elements stored at indices from a tensor that has each index once."""
        if self.depth > 2:
            self.compute()
            return
        blocks, number = math.prod(self.grid), self.number_of_block()
        extent = self.pick((2, 3, 4))
        size = blocks * extent
        places = self.parameter("P", [str(size)], [size], "int32", "permutation")
        self.readable.append(places)
        dtype = self.pick(DTYPES)
        length = max(1, size - self.pick((0, 0, 1, 3)))
        out = self.output([str(length)], [length], dtype)
        with self.parallel((extent,)) as names:
            at = f"{places.name}[({number}) * {extent} + {names[0]}]"
            self.store_in_loop(f"{out.name}[{at}]", self.value(dtype, 1), dtype)

    def atomic(self) -> None:
        dtype = self.pick(("int32", "int32", "float32", "uint32", "int64", "float64"))
        kind = self.pick(("add", "add", "max", "min", "or"))
        if kind == "or" and is_float(dtype):
            kind = "add"
        if kind in ("max", "min") and dtype == "float64":
            dtype = "float32"
        name = next((each for each, held in self.accumulators.items() if held == f"{kind} {dtype}"), "")
        found = [each for each in self.tensors if each.name == name]
        if found:
            out = found[0]
        else:
            shape, sizes = self.dims(self.pick((1, 2)), 60)
            out = self.output(shape, sizes, dtype)
            self.accumulators[out.name] = f"{kind} {dtype}"
        form = self.rng.random()
        tiles = [each for each in self.tiles if each.dtype == dtype and len(each.shape) == len(out.sizes)
                 and not (each.rough or each.wild)]  # fmt: skip
        if form < 0.25 and tiles:
            tile = self.pick(tiles)
            self.write(f"T.atomic_{kind}({out.name}[{', '.join(self.starts(out.sizes, tile.shape))}], {tile.name})")
            return
        if form < 0.4:
            self.write(
                f"T.atomic_{kind}({out.name}[{', '.join(map(self.anywhere, out.sizes))}], {self.value(dtype, 1)})"
            )
            return
        with self.parallel(self.shape()):
            place = f"{out.name}[{', '.join(map(self.anywhere, out.sizes))}]"
            call = f"T.atomic_{kind}({place}, {self.value(dtype, 1)})"
            if self.chance(0.5):
                self.write(f"if {self.condition(2)}:")
                self.write(f"    {call}")
            else:
                self.write(call)

    def reducer(self) -> None:
        dtype, op = self.pick(
            (("int32", "sum"), ("float32", "sum"), ("float32", "max"), ("int32", "min"), ("int32", "bitor"))
        )
        source = self.shape(self.pick((1, 2)))
        size = self.pick((1, source[0]))
        made = self.name("r")
        self.write(f"{made} = T.alloc_reducer(({size},), '{dtype}', op='{op}')")
        self.write(f"T.reducer_init({made}{self.pick(('', ', 1'))})")
        with self.parallel(source) as names:
            place = f"{made}[{names[0] if size > 1 else 0}]"
            call = f"T.reducer_update({place}, {self.value(dtype, 1)})"
            if self.chance(0.4):
                self.write(f"if {self.condition()}:")
                self.write(f"    {call}")
            else:
                self.write(call)
        tile = self.allocate((size,), dtype)
        self.write(f"T.finalize_reducer({made}, {tile.name})")
        tile.rough = dtype == "float32"
        self.tiles.append(tile)

    def aliased(self) -> None:
        """A tensor that is passed twice: read by one name, written by the other, read again."""
        dtype = self.pick(("float32", "int32", "int32", "float16", "uint8"))
        extent, number, blocks = self.pick((2, 3, 4, 8)), self.number_of_block(), math.prod(self.grid)
        size = blocks * extent - self.pick((0, 0, 1))
        one = self.parameter("A", [str(size)], [size], dtype)
        two = self.output([str(size)], [size], dtype)
        out = self.output([str(size)], [size], dtype)
        one.steps, one.strides, two.same_as = [], [], one.name
        with self.parallel((extent,)) as names:
            at = f"({number}) * {extent} + {names[0]}"
            x = self.name("x")
            if self.chance(0.7):
                self.write(f"{x} = {one.name}[{at}]")
                self.write(
                    f"{two.name}[{at}] = {self.converted(self.combined(x, self.value(dtype, 1), dtype), dtype, dtype)}"
                )
                self.write(f"{out.name}[{at}] = {self.combined(x, f'{one.name}[{at}]', dtype)}")
            else:
                self.write(f"{two.name}[{at}] = {self.value(dtype, 1)}")
                self.write(f"{out.name}[{at}] = {one.name}[{at}]")
