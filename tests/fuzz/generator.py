"""Random programs as text, from a seed: what a user might write, masks and ragged ends included."""

from __future__ import annotations

import math
from typing import Any

from tests.fuzz.case import Case, TensorArgument
from tests.fuzz.expressions import DTYPES, Scalar, Tensor, is_float
from tests.fuzz.memory_steps import MemorySteps
from tests.fuzz.order_steps import OrderSteps
from tests.fuzz.thread_steps import ThreadSteps

OPTIONS: dict[str, tuple[Any, ...]] = {
    "map-grid.group_m": (0, 2), "map-grid.persistent": (0, 1, 2), "map-grid.flatten": (True, False),
    "split-k.splits": (1, 2, 3), "split-k.streams": (0, 2), "cse.loads": (True, False), "licm.loads": (True, False),
    "unroll-loops.limit": (0, 8, 4096), "lower-to-triton.index_bits": (0, 64), "lower-to-triton.num_warps": (0, 1, 8),
    "peel-loops.mode": ("off", "causal", "all"), "select-access.mode": ("auto", "pointer", "tma"),
    "pipeline-loops.stages": (0, 1, 3), "parallelize-loops.enabled": (True, False), "pad-tiles.min_dot": (16, 32),
}  # fmt: skip


def generate(seed: int) -> Case:
    """The program of a seed, with inputs and options; always the same."""
    return _Program(seed).program()


class _Program(MemorySteps, OrderSteps, ThreadSteps):
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
        if self.seed % 10 == 9:  # so that the programs of other seeds stay as they are
            self.thread_kernel()
        return self.finish()

    def input(self) -> Tensor:
        shape, sizes = self.dims(self.pick((1, 2, 2, 2, 3)))
        dtype = self.pick(DTYPES)
        return self.parameter("A", shape, sizes, dtype, "wild" if is_float(dtype) and self.chance(0.2) else "any")

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
        if self.seed % 10 == 8 and self.chance(0.2):
            options["parallelize-loops.reductions"] = False
        if self.seed % 10 == 7:
            options["split-tiles.mode"] = "all"  # the tiles here are shorter than those that "auto" divides
        return Case.make(self.seed, text, arguments, {name: (dtype, x) for name, dtype, x in self.arguments}, options)

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
            if self.seed % 10 == 6:
                self.rows_in_memory()
            if self.seed % 10 == 8:
                self.serial_sum()

    def step(self) -> None:
        steps = [
            self.make, self.compute, self.compute, self.masked, self.reduce, self.reduce, self.scan, self.product,
            self.view, self.move, self.variable, self.gather, self.atomic, self.reducer, self.scatter, self.functions,
            self.transpose, self.call_macro, self.local_array, self.assume, self.assume, self.direct, self.rows,
            self.hazard, self.hazard, self.in_memory, self.slices, self.whole, self.dynamic_extent, self.workspace,
            self.nested, self.swap, self.update, self.update, self.digits, self.exchange, self.exchange,
            self.sort, self.topk, self.extreme_place, self.histogram, self.associative_scan,
        ]  # fmt: skip
        if self.depth < 4:
            steps += [self.loop, self.loop, self.branch]
        self.pick(steps)()

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
