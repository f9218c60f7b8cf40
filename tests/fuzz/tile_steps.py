"""Steps of random programs that compute tiles from others: loops over elements, reductions, products, views."""

from __future__ import annotations

import math

from tests.fuzz.expressions import Scalar, Tensor, Tile, bits_of, is_float
from tests.fuzz.writer import SIZES, Writer

# Gemm: types of the operands, and of the sums.
PRODUCTS = (
    ("float16", "float16", "float32"), ("float16", "float16", "float16"), ("bfloat16", "bfloat16", "float32"),
    ("float32", "float32", "float32"), ("float64", "float64", "float64"), ("int8", "int8", "int32"),
    ("float8_e4m3fn", "float8_e4m3fn", "float32"), ("float8_e5m2", "float8_e5m2", "float32"),
    ("float8_e4m3fn", "float8_e5m2", "float32"), ("uint8", "uint8", "int32"), ("int8", "uint8", "int32"),
    ("float16", "float32", "float32"), ("float16", "bfloat16", "float32"), ("bfloat16", "float32", "float32"),
    ("float8_e4m3fn", "float16", "float32"), ("uint8", "int8", "int32"),
)  # fmt: skip


class TileSteps(Writer):
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

    def serial_sum(self) -> None:
        """A serial loop that adds up rows or columns of a tile, or takes the largest, and may put the totals down."""
        dtype = self.pick(("int32", "float32", "float32", "int64", "float16", "uint8"))
        tile = self.make((self.pick((2, 3, 4, 8)), self.pick((2, 4, 8))), dtype)
        axis, inside, puts = self.rng.randrange(2), self.chance(0.4), self.chance(0.5)
        count, width = tile.shape[axis], tile.shape[1 - axis]
        total, out = self.make((width,), dtype), self.make(tile.shape, dtype)
        k, j = self.name("k"), self.name("i")
        at = f"{k}, {j}" if axis == 0 else f"{j}, {k}"
        start = self.pick((0, 0, 1))
        loop, points = f"for {k} in T.serial({start}, {count}):", f"for {j} in T.Parallel({width}):"
        own, other = f"{total.name}[{j}]", self.pick((f"{tile.name}[{at}]", f"{tile.name}[{at}] * 2"))
        text = self.pick((f"{own} + {other}", f"{other} + {own}", f"T.max({own}, {other})", f"{own} - {other}"))
        with self.inside_of(points if inside else loop):
            if inside and self.chance(0.5):
                self.write(f"{own} = {tile.name}[{at.replace(k, '0')}]")
            with self.inside_of(loop if inside else points):
                self.write(f"{own} = {self.converted(text, *self.types(dtype))}")
                if puts:
                    self.write(f"{out.name}[{at}] = {own}")
            if inside and self.chance(0.5):
                self.write(f"{own} = {self.converted(f'{own} * 2', *self.types(dtype))}")
        for made in (total, out):
            made.rough = made.rough or is_float(dtype)
            self.emit(made)

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
            kind = self.pick(("T.serial", "range", "T.unroll", "T.vectorized", "T.vectorized"))
            with self.inside_of(f"for {k} in {kind}({columns}):"):
                self.loops = {**self.loops, k: columns}
                value = self.value(tile.dtype, 1)
                before = f"{tile.name}[{i}, T.max({k} - 1, 0)]"
                place = f"{tile.name}[{i}, {self.pick((k, k, f'{k} // 2', f'{k} % 2', '0'))}]"
                text = self.converted(self.combined(before, value, tile.dtype), *self.types(tile.dtype))
                self.write(f"{place} = {text if self.chance(0.6) else value}")
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

    def update(self) -> None:
        """Elements that several iterations change: groups of them, or those that a computed index names."""
        dtype, form = self.pick((
            ("int32", "{0} + {1}"), ("int32", "{1} + {0}"), ("int32", "{0} - {1}"), ("float32", "{0} + {1}"),
            ("float32", "T.max({0}, {1})"), ("int32", "T.min({1}, {0})"), ("uint8", "{0} + {1}"),
            ("int16", "T.max({0}, {1})"), ("float16", "{0} + {1}"),
            ("int64", "{0} | {1}"), ("float64", "{0} - {1}"), ("int32", "{0} ^ {1}"),
        ))  # fmt: skip
        source, shape = self.shape(), self.shape(self.pick((1, 1, 2)))
        tile = self.make(shape, dtype)
        with self.parallel(source, tile.memory) as names:
            places = []
            for size in shape:
                name, extent = self.pick(list(zip(names, source)))
                forms = [f"{name} % {size}", f"T.min({size - 1}, {name} // 2)", self.inside(size), str(size - 1)]
                forms += [name] * 3 if extent <= size else [f"{name} // {-(-extent // size)}"] * 3
                places.append(self.pick(forms))
            own = f"{tile.name}[{', '.join(places)}]"
            text = f"{own} = {form.format(own, f'({self.value(dtype, 1)})')}"
            if self.chance(0.3):
                self.write(f"if {self.condition(1)}:")
                text = f"    {text}"
            self.write(text)
        tile.rough = tile.rough or is_float(dtype)

    def exchange(self) -> None:
        """Atomics on the chip, at places that may coincide or lie outside; perhaps what each of them met."""
        dtype, kind = self.pick((
            ("int32", "add"), ("int32", "add"), ("float32", "add"), ("int32", "max"), ("float32", "min"),
            ("uint8", "add"), ("int16", "max"), ("int64", "or"), ("float16", "max"), ("bool", "or"), ("uint32", "min"),
        ))  # fmt: skip
        source, shape = self.shape(), self.shape(self.pick((1, 1, 2)))
        tile = self.make(shape, dtype)
        met = self.make(source, dtype) if self.chance(0.6) else None
        with self.parallel(source, tile.memory) as names:
            self.locked = {*self.locked, *([met.memory] if met is not None else [])}
            outside = met is None and self.chance(0.2)
            places = [self.anywhere(size) if outside else self.inside(size) for size in shape]
            value = self.pick(("1", "3", self.value(dtype, 1))) if dtype == "int32" else self.value(dtype, 1)
            call = f"T.atomic_{kind}({tile.name}[{', '.join(places)}], {value}"
            text = f"{call})" if met is None else f"{met.name}[{', '.join(names)}] = {call}, return_prev=True)"
            if self.chance(0.3):
                self.write(f"if {self.condition(1)}:")
                text = f"    {text}"
            self.write(text)
        for each in (tile, met):
            if each is not None:
                each.rough = each.rough or is_float(dtype)

    def digits(self) -> None:
        """A tile whose places are quotients and remainders of the loops' indices, or a diagonal of blocks of them."""
        groups, size = self.pick((1, 2, 3, 4)), self.pick((2, 3, 4))
        dtype = self.pick(("float32", "int32", "float16", "bool", "int8"))
        if self.chance(0.5):
            tile = self.make((groups, size, size), dtype)
            with self.parallel((groups * size, groups * size), tile.memory) as (i, j):
                self.write(f"if {i} // {size} == {j} // {size}:")
                self.write(f"    {tile.name}[{i} // {size}, {i} % {size}, {j} % {size}] = {self.value(dtype)}")
            return
        source = self.make((groups, size), dtype)
        tile = self.allocate((size, groups), dtype)
        self.tiles.append(tile)
        with self.parallel((groups * size,), tile.memory) as (i,):
            target = self.pick((f"{i} % {size}, {i} // {size}", f"{i} // {groups}, {i} % {groups}"))
            self.write(f"{tile.name}[{target}] = {source.name}[{i} // {size}, {i} % {size}]")
