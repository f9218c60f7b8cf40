"""Kernels that say what each thread does: variables, exchanges in a warp, tiles that all share, barriers."""

from __future__ import annotations

import math

from tests.fuzz.expressions import DTYPES, Scalar, is_float
from tests.fuzz.writer import Writer

KINDS = ("int32", "int32", "uint32", "float32", "int64", "float16", "uint8", "int16", "float64")


class ThreadSteps(Writer):
    threads = 0

    def thread_kernel(self) -> None:
        """A kernel whose threads each have values of their own, and write them at the end."""
        self.tiles, self.loops, self.locked, self.accumulators = [], {}, set(), {}
        self.readable = [each for each in self.tensors if each.same_as == "" and not each.written]
        self.scalars = [Scalar(name, dtype, 0, 6) if dtype == "int32" else Scalar(name, dtype)
                        for name, dtype, _ in self.arguments]  # fmt: skip
        self.threads, self.grid = self.pick((4, 8, 16, 32, 32, 64)), [self.pick((1, 2, 3))]
        self.blocks = ["bx"]
        self.scalars.append(Scalar("bx", "int32", 0, self.grid[0]))
        with self.inside_of(f"with T.Kernel({self.grid[0]}, threads={self.threads}) as bx:"):
            self.write("tx = T.get_thread_binding()")
            self.loops["tx"] = self.threads
            if self.chance(0.3):
                self.write("lane = T.get_lane_idx()")
                self.loops["lane"] = min(self.threads, 32)
            self.own_variable()
            steps = [self.own_variable, self.own_array, self.shuffle, self.shuffle, self.in_warp, self.vote, self.share,
                     self.share, self.counted, self.strided, self.store_own]  # fmt: skip
            for _ in range(self.rng.randrange(2, 7)):
                self.pick(steps)()
            for _ in range(3):
                self.store_own()

    def own_variable(self) -> None:
        """A variable of each thread, perhaps changed under a condition or in a loop."""
        x, dtype = self.name("x"), self.pick(KINDS)
        self.write(f"{x} = T.alloc_var('{dtype}', {self.value(dtype, 1)})")
        change = self.converted(self.combined(x, self.value(dtype, 1), dtype), *self.types(dtype))
        form = self.rng.random()
        if form < 0.3:
            self.write(f"if {self.condition(2)}:")
            self.write(f"    {x} = {change}")
            if self.chance(0.4):
                self.write("else:")
                self.write(f"    {x} = {self.value(dtype, 1)}")
        elif form < 0.6:
            k, bound = self.name("k"), self.pick(("2", "(tx) % 3", f"T.min({self.small()}, 3)", "tx // 4 % 3"))
            self.write(f"for {k} in {self.pick(('range', 'T.serial'))}({bound}):")
            if self.chance(0.4):
                self.write(f"    if ({k} + {self.small()}) % 3 == 1:")
                self.write(f"        {self.pick(('continue', 'break'))}")
            self.write(f"    {x} = {change}")
        elif form < 0.75:
            k = self.name("k")
            self.write(f"{k} = T.alloc_var('int32', {self.pick(('0', 'tx % 2'))})")
            self.write(f"while {k} < {self.pick(('3', 'tx % 4', 'tx // 2 % 3'))}:")
            self.write(f"    {k} += {self.pick((1, 2))}")
            self.write(f"    {x} = {change}")
        self.scalars.append(Scalar(x, dtype))

    def own_array(self) -> None:
        """An array of each thread, read at an index that differs."""
        array, size, k, dtype = self.name("l"), self.rng.randrange(1, 5), self.name("k"), self.pick(KINDS)
        self.write(f"{array} = T.alloc_local(({size},), '{dtype}')")
        with self.inside_of(f"for {k} in {self.pick(('range', 'T.unroll', 'T.serial', 'T.vectorized'))}({size}):"):
            self.loops = {**self.loops, k: size}
            self.write(f"{array}[{k}] = {self.value(dtype, 1)}")
        if self.chance(0.4):
            self.write(f"if {self.condition()}:")
            self.write(f"    {array}[{self.inside(size)}] = {self.value(dtype, 1)}")
        x = self.name("x")
        self.write(f"{x} = {array}[{self.pick((f'({self.small()}) % {size}', self.inside(size)))}]")
        self.scalars.append(Scalar(x, dtype))

    def exchanged(self) -> tuple[str, str]:
        dtype = self.pick(KINDS)
        return self.value(dtype, 1), dtype

    def shuffle(self) -> None:
        value, dtype = self.exchanged()
        size = min(self.threads, 32)
        width = self.pick((size, size, size // 2, 4, 2))
        kind = self.pick(("shfl_xor", "shfl_down", "shfl_up", "shfl_sync"))
        deltas = [str(self.rng.randrange(width)), str(self.rng.randrange(size)), "1"]
        if kind in ("shfl_sync", "shfl_down"):
            deltas += [f"({self.small()}) % {width}", "tx % 2"]
        x = self.name("x")
        group = f", {width}" if width < size or self.chance(0.2) else ""
        self.write(f"{x} = T.{kind}({value}, {self.pick(deltas)}{group})")
        self.scalars.append(Scalar(x, dtype))

    def in_warp(self) -> None:
        value, dtype = self.exchanged()
        kinds = ["max", "min"] if is_float(dtype) else ["sum", "max", "min", "bitand", "bitor", "sum"]
        x = self.name("x")
        self.write(f"{x} = T.warp_reduce_{self.pick(kinds)}({value})")
        self.scalars.append(Scalar(x, dtype))

    def vote(self) -> None:
        x, kind = self.name("x"), self.pick(("ballot", "any_sync", "all_sync"))
        self.write(f"{x} = T.{kind}({self.condition(2)})")
        self.scalars.append(Scalar(x, "uint64" if kind == "ballot" else "int32"))

    def share(self) -> None:
        """A tile with an element for each thread, or more, which all read behind a barrier; perhaps changed again."""
        dtype, n = self.pick((*KINDS, "bool")), self.threads
        shape = self.pick(((n,), (n,), (2, n), (n, 2), (n // 4, 4)))
        tile = self.allocate(shape, dtype, "shared")
        rounds = math.prod(shape) // n
        for step in range(rounds):
            forms = {
                (n,): ["tx", "tx", f"{n - 1} - tx", f"(tx + 1) % {n}", "tx ^ 1"], (2, n): [f"{step}, tx"],
                (n, 2): [f"tx, {step}"], (n // 4, 4): ["tx // 4, tx % 4"],
            }  # fmt: skip
            self.write(f"{tile.name}[{self.pick(forms[shape])}] = {self.value(dtype, 1)}")
        if self.chance(0.3):
            self.write("T.sync_threads()")
            with self.inside_of(f"if {self.condition(2)}:"):
                at = {1: "tx", 2: "tx // 4, tx % 4"}[len(shape)] if rounds == 1 else (
                    "0, tx" if shape[0] == 2 and shape[1] == n else "tx, 0"
                )  # fmt: skip
                value = self.converted(
                    self.combined(f"{tile.name}[{at}]", self.value(dtype, 1), dtype), *self.types(dtype)
                )
                self.write(f"{tile.name}[{at}] = {value}")
        self.write("T.sync_threads()")
        self.tiles.append(tile)

    def counted(self) -> None:
        """Atomics on a tile that few threads have initialised."""
        size, dtype = self.pick((1, 2, 3, 4)), self.pick(("int32", "int32", "uint32", "int64"))
        kind = self.pick(("add", "add", "max", "min"))
        tile = self.allocate((size,), dtype, "shared")
        self.write(f"if tx < {size}:")
        self.write(f"    {tile.name}[tx] = {self.pick((0, 1, 'tx'))}")
        self.write("T.sync_threads()")
        call = f"T.atomic_{kind}({tile.name}[{self.inside(size)}], {self.value(dtype, 1)})"
        if self.chance(0.5):
            self.write(f"if {self.condition(2)}:")
            call = f"    {call}"
        self.write(call)
        self.write("T.sync_threads()")
        self.tiles.append(tile)

    def strided(self) -> None:
        """Elements of a tensor that threads take in turn, written to another one."""
        dtype, n = self.pick(DTYPES), self.threads
        size = self.pick((n, n + 3, 2 * n - 1, 2 * n))
        out = self.output([str(self.grid[0]), str(size)], [self.grid[0], size], dtype)
        k = self.name("k")
        with self.inside_of(f"for {k} in T.serial({-(-size // n)}):"):
            self.loops = {**self.loops, k: -(-size // n)}
            value = self.value(dtype, 1)
            if self.chance(0.6):
                self.write(f"if {k} * {n} + tx < {size}:")
                self.write(f"    {out.name}[bx, {k} * {n} + tx] = {value}")
            else:
                self.write(f"{out.name}[bx, {k} * {n} + tx] = {value}")

    def store_own(self) -> None:
        known = [each for each in self.scalars if each.low is None and each.name.startswith("x")]
        value, dtype = self.exchanged()
        if self.tiles and self.chance(0.4):
            tile = self.tiles[-1] if self.chance(0.5) else self.pick(self.tiles)
            value, dtype = self.element(tile), tile.dtype
        elif known and self.chance(0.8):
            scalar = known[-1] if self.chance(0.5) else self.pick(known)
            value, dtype = scalar.name, scalar.dtype
        size = max(1, self.grid[0] * self.threads - self.pick((0, 0, 1, 5)))
        out = self.output([str(size)], [size], dtype)
        place = self.pick(("tx", "tx", f"{self.threads - 1} - tx"))
        if self.chance(0.3):
            self.write(f"if {self.condition(2)}:")
            self.write(f"    {out.name}[bx * {self.threads} + {place}] = {value}")
        else:
            self.write(f"{out.name}[bx * {self.threads} + {place}] = {value}")
