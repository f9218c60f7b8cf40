"""Steps of random programs that reach global memory: stores, atomics, aliases, promises about indices."""
# ruff: noqa: E501

from __future__ import annotations

import math

from tests.fuzz.expressions import DTYPES, SIGNED, UNSIGNED, Scalar, Tile, is_float
from tests.fuzz.tile_steps import TileSteps


class MemorySteps(TileSteps):
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
        starts = ["0" if start in ("-1", "1") and out.sizes[n] == 1 else start for n, start in enumerate(starts)]
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

    def rows_in_memory(self) -> None:
        """A serial loop over rows of a tile and of a tensor: rows are read that were written."""
        dtype, number = self.pick(("float32", "int32", "int32", "uint8")), self.number_of_block()
        rows, columns = self.pick((2, 3, 4)), self.pick((2, 3, 4, 8))
        size = [math.prod(self.grid) * rows, columns]
        out = self.output(list(map(str, size)), size, dtype)
        tile = self.make((rows, columns), dtype)
        further = self.pick((0, 1, 1))  # rows between what is read and what is written
        k, j = self.name("k"), self.name("i")
        with self.inside_of(f"for {k} in T.serial({rows - further}):"):
            row, below = f"({number}) * {rows} + {k}", f"({number}) * {rows} + {k}{f' + {further}' if further else ''}"
            if self.chance(0.3):  # by slices
                line = self.allocate((1, columns), dtype)
                self.write(f"T.copy({out.name}[{row}, 0], {line.name})")
                with self.inside_of(f"for {j} in T.Parallel({columns}):"):
                    self.write(
                        f"{line.name}[0, {j}] = {self.combined(f'{line.name}[0, {j}]', f'{tile.name}[{k}, {j}]', dtype)}"
                    )
                self.write(f"T.copy({line.name}, {out.name}[{below}, 0])")
            else:
                with self.inside_of(f"for {j} in T.Parallel({columns}):"):
                    read = f"{out.name}[{row}, {self.pick((j, f'{columns - 1} - {j}')) if further else j}]"
                    own = f"{tile.name}[{k}, {j}]"
                    if self.chance(0.5):
                        self.write(f"{own} = {self.combined(own, read, dtype)}")
                        read = own
                    self.write(f"{out.name}[{below}, {j}] = {self.combined(own, read, dtype) if read != own else own}")
        self.emit(tile)

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
