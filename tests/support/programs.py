"""Programs for tests, named and random, built through the constructors of the operations; and their inputs.

    func = gemm(37, 24, 20, 16, 16, 16)
    check_pass(SomePass(), func, inputs_for(func, seed=0))

    @given(programs(), st.integers(0, 99))
    def test(func, seed): check_pass("some-pass,other", func, inputs_for(func, seed))

Inputs are small multiples of 1/4, so that sums and products of a few are exact: most rewrites keep every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.executor import DTYPES, run
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Operation, Region, Value, verify
from tiledsl.ir.pass_manager import Pass, PassManager, Program, parse_pipeline
from tiledsl.ir.types import ELEMENTS, BufferType, Dim, ScalarType, Type, is_float, is_integer

Index = Value | int


class Author:
    """Writes a program operation by operation. Ints stand for int32 constants where a scalar is expected."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.body = self.region = Region()
        self.parameters: list[str] = []
        self.symbols: list[str] = []
        self.symbol_sources: list[str] = []
        self.outputs: list[int] = []

    # The program

    def parameter(self, name: str, shape: Sequence[Dim], dtype: str, *, output: bool = False) -> Value:
        """A global buffer."""
        return self._parameter(name, BufferType(tuple(shape), dtype, "global"), output)

    def scalar(self, name: str, dtype: str = "int32") -> Value:
        return self._parameter(name, ScalarType(dtype), False)

    def _parameter(self, name: str, type: Type, output: bool) -> Value:
        assert not self.symbols, "parameters come before symbols"
        if output:
            self.outputs.append(len(self.parameters))
        self.parameters.append(name)
        return self.body.add_arg(type, name)

    def symbol(self, name: str, source: str) -> Value:
        """A dynamic dimension; `source` is parameter.axis."""
        self.symbols.append(name)
        self.symbol_sources.append(source)
        return self.body.add_arg(ScalarType("int32"), name)

    def finish(self) -> tile.FuncOp:
        """The verified program."""
        scf.yielding(self.body)
        func = tile.FuncOp(
            sym_name=self.name,
            parameters=tuple(self.parameters),
            symbols=tuple(self.symbols),
            symbol_sources=tuple(self.symbol_sources),
            outputs=tuple(self.outputs),
            regions=[self.body],
        )
        verify(func)
        return func

    @contextmanager
    def _inside(self, region: Region) -> Iterator[None]:
        outer, self.region = self.region, region
        yield
        self.region = outer

    @contextmanager
    def kernel(self, *grid: Index, **attributes: Any) -> Iterator[list[Value]]:
        sizes = [self.value(size) for size in grid]
        region = Region([ScalarType("int32")] * len(grid), ["bx", "by", "bz"])
        with self._inside(region):
            yield region.args
        self.emit(tile.KernelOp(sizes, regions=[scf.yielding(region)], **attributes))

    @contextmanager
    def parallel(self, *extents: int) -> Iterator[list[Value]]:
        region = Region([ScalarType("int32")] * len(extents), ["i", "j", "k", "l"])
        with self._inside(region):
            yield region.args
        self.emit(tile.ParallelOp(extents=tuple(extents), regions=[scf.yielding(region)]))

    @contextmanager
    def loop(self, lower: Index, upper: Index, step: Index = 1, **attributes: Any) -> Iterator[Value]:
        bounds = [self.value(bound) for bound in (lower, upper, step)]
        region = Region([bounds[0].type], ["k"])
        with self._inside(region):
            yield region.args[0]
        self.emit(scf.ForOp(*bounds, regions=[scf.yielding(region)], **attributes))

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        then, orelse = Region(), Region()
        with self._inside(then):
            yield
        regions = [scf.yielding(then), scf.yielding(orelse)]
        self.emit(scf.IfOp(condition, result_types=[], regions=regions))

    def choose(self, condition: Value, then: Callable[[], Value], orelse: Callable[[], Value]) -> Value:
        """A lazy `then if condition else orelse`."""
        regions = []
        for branch in (then, orelse):
            region = Region()
            with self._inside(region):
                scf.yielding(region, [branch()])
            regions.append(region)
        assert regions[0].last is not None
        return self.emit(scf.IfOp(condition, result_types=[regions[0].last.operands[0].type], regions=regions)).result

    # Operations

    def emit(self, op: Operation) -> Operation:
        self.region.insert(op)
        return op

    def value(self, value: Index) -> Value:
        return value if isinstance(value, Value) else self.constant(value)

    def constant(self, number: Any, dtype: str = "int32") -> Value:
        number = arith.as_constant(number, dtype)
        return self.emit(arith.ConstantOp(value=number, result_types=[ScalarType(dtype)])).result

    def binary(self, op_type: type[arith.BinaryOp], lhs: Index, rhs: Index) -> Value:
        return self.emit(op_type(self.value(lhs), self.value(rhs))).result

    def add(self, lhs: Index, rhs: Index) -> Value:
        return self.binary(arith.AddOp, lhs, rhs)

    def mul(self, lhs: Index, rhs: Index) -> Value:
        return self.binary(arith.MulOp, lhs, rhs)

    def sub(self, lhs: Index, rhs: Index) -> Value:
        return self.binary(arith.SubOp, lhs, rhs)

    def floordiv(self, lhs: Index, rhs: Index) -> Value:
        return self.binary(arith.FloorDivOp, lhs, rhs)

    def ceildiv(self, lhs: Index, rhs: int) -> Value:
        return self.floordiv(self.add(lhs, rhs - 1), rhs)

    def cmp(self, predicate: str, lhs: Index, rhs: Index) -> Value:
        return self.emit(arith.CmpOp(self.value(lhs), self.value(rhs), predicate=predicate)).result

    def math(self, function: str, *arguments: Value) -> Value:
        return self.emit(arith.MathOp(list(arguments), function=function)).result

    def cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        return self.emit(arith.CastOp(value, result_types=[ScalarType(dtype)])).result

    def alloc(self, shape: Sequence[Dim], dtype: str, scope: str = "fragment", name: str = "") -> Value:
        type = BufferType(tuple(shape), dtype, scope)
        return self.emit(tile.AllocOp(result_types=[type], names=[name])).result

    def fill(self, target: Value, number: Any) -> None:
        self.emit(tile.FillOp(self.constant(number, target.dtype), target))

    def filled(self, number: Any, shape: Sequence[int], dtype: str, scope: str = "fragment", name: str = "") -> Value:
        made = self.alloc(shape, dtype, scope, name)
        self.fill(made, number)
        return made

    def load(self, buffer: Value, *indices: Index) -> Value:
        return self.emit(tile.LoadOp(buffer, [self.value(index) for index in indices])).result

    def store(self, value: Value, buffer: Value, *indices: Index) -> None:
        self.emit(tile.StoreOp(value, buffer, [self.value(index) for index in indices]))

    def atomic(self, kind: str, value: Value, buffer: Value, *indices: Index) -> Value:
        return self.emit(tile.AtomicOp(value, buffer, [self.value(index) for index in indices], kind=kind)).result

    def copy(
        self,
        source: Value,
        target: Value,
        *,
        at: Sequence[Index] = (),
        to: Sequence[Index] = (),
        shape: Sequence[int] | None = None,
        source_axes: Sequence[int] | None = None,
        target_axes: Sequence[int] | None = None,
        safe_value: float = 0.0,
    ) -> None:
        """A copy from offsets `at` to offsets `to`; the tile is the on-chip side's shape unless given."""
        if shape is None:
            inner = target if target.type.scope != "global" else source
            shape = inner.type.static_shape
        axes = tuple(range(len(shape)))
        self.emit(
            tile.CopyOp(
                source,
                [self.value(offset) for offset in at],
                target,
                [self.value(offset) for offset in to],
                shape=tuple(shape),
                source_axes=axes if source_axes is None else tuple(source_axes),
                target_axes=axes if target_axes is None else tuple(target_axes),
                safe_value=safe_value,
            )
        )

    def gemm(self, a: Value, b: Value, c: Value, **attributes: Any) -> None:
        self.emit(tile.GemmOp(a, b, c, **attributes))

    def reduce(self, source: Value, target: Value, kind: str, axis: int, **attributes: Any) -> None:
        self.emit(tile.ReduceOp(source, target, kind=kind, axis=axis, **attributes))


# Named programs


def gemm(
    m: int = 32,
    n: int = 32,
    k: int = 32,
    bm: int = 16,
    bn: int = 16,
    bk: int = 16,
    *,
    dtype: str = "float16",
    trans_a: bool = False,
    trans_b: bool = False,
    dynamic: bool = False,
    num_stages: int = 2,
) -> tile.FuncOp:
    """C = op(A) @ op(B), any sizes; with `dynamic`, they are the symbols M, N and K."""
    author = Author("gemm")
    rows, columns, inner = ("M", "N", "K") if dynamic else (m, n, k)
    a = author.parameter("A", (inner, rows) if trans_a else (rows, inner), dtype)
    b = author.parameter("B", (columns, inner) if trans_b else (inner, columns), dtype)
    c = author.parameter("C", (rows, columns), dtype, output=True)
    if dynamic:
        rows = author.symbol("M", "C.0")
        columns = author.symbol("N", "C.1")
        inner = author.symbol("K", f"A.{int(not trans_a)}")
    with author.kernel(author.ceildiv(columns, bn), author.ceildiv(rows, bm)) as (bx, by):
        a_shared = author.alloc((bk, bm) if trans_a else (bm, bk), dtype, "shared", "A_shared")
        b_shared = author.alloc((bn, bk) if trans_b else (bk, bn), dtype, "shared", "B_shared")
        c_local = author.filled(0, (bm, bn), "float32", name="C_local")
        row, column = author.mul(by, bm), author.mul(bx, bn)
        with author.loop(0, author.ceildiv(inner, bk), num_stages=num_stages) as step:
            depth = author.mul(step, bk)
            author.copy(a, a_shared, at=(depth, row) if trans_a else (row, depth))
            author.copy(b, b_shared, at=(column, depth) if trans_b else (depth, column))
            author.gemm(a_shared, b_shared, c_local, trans_a=trans_a, trans_b=trans_b)
        author.copy(c_local, c, to=(row, column))
    return author.finish()


def ragged_gemm() -> tile.FuncOp:
    """A GEMM of which no size is a multiple of its tile."""
    return gemm(37, 29, 43, 16, 16, 16, trans_b=True)


def split_k(m: int = 20, n: int = 24, k: int = 100, splits: int = 3, block: int = 16) -> tile.FuncOp:
    """C += A @ B, each split of K adding its part atomically."""
    author = Author("split_k")
    a = author.parameter("A", (m, k), "float16")
    b = author.parameter("B", (k, n), "float16")
    c = author.parameter("C", (m, n), "float32", output=True)
    steps = -(-k // (block * splits))
    with author.kernel(-(-n // block), -(-m // block), splits) as (bx, by, bz):
        a_shared = author.alloc((block, block), "float16", "shared", "A_shared")
        b_shared = author.alloc((block, block), "float16", "shared", "B_shared")
        c_local = author.filled(0, (block, block), "float32", name="C_local")
        row, column, start = author.mul(by, block), author.mul(bx, block), author.mul(bz, steps * block)
        with author.loop(0, steps, num_stages=2) as step:
            depth = author.add(start, author.mul(step, block))
            author.copy(a, a_shared, at=(row, depth))
            author.copy(b, b_shared, at=(depth, column))
            author.gemm(a_shared, b_shared, c_local)
        with author.parallel(block, block) as (i, j):
            author.atomic("add", author.load(c_local, i, j), c, author.add(row, i), author.add(column, j))
    return author.finish()


def attention(sequence: int = 40, dim: int = 24, bm: int = 16, bn: int = 16, *, causal: bool = True) -> tile.FuncOp:
    """Softmax attention of two heads with the online softmax; ragged lengths are masked."""
    author = Author("attention")
    q, k, v = (author.parameter(name, (2, sequence, dim), "float16") for name in "QKV")
    out = author.parameter("O", (2, sequence, dim), "float16", output=True)
    with author.kernel(-(-sequence // bm), 2) as (bx, by):
        q_shared = author.alloc((bm, dim), "float16", "shared", "Q_shared")
        k_shared = author.alloc((bn, dim), "float16", "shared", "K_shared")
        v_shared = author.alloc((bn, dim), "float16", "shared", "V_shared")
        scores = author.alloc((bm, bn), "float32", name="scores")
        weights = author.alloc((bm, bn), "float16", name="weights")
        acc = author.filled(0, (bm, dim), "float32", name="acc")
        previous = author.alloc((bm,), "float32", name="previous_max")
        top = author.filled(float("-inf"), (bm,), "float32", name="row_max")
        rescale = author.alloc((bm,), "float32", name="rescale")
        row_sum = author.alloc((bm,), "float32", name="row_sum")
        total = author.filled(0, (bm,), "float32", name="total")
        start = author.mul(bx, bm)
        slab = {"shape": (bm, dim), "source_axes": (1, 2)}
        author.copy(q, q_shared, at=(by, start, 0), **slab)
        blocks: Index = -(-sequence // bn)
        if causal:
            reach = author.ceildiv(author.mul(author.add(bx, 1), bm), bn)
            blocks = author.binary(arith.MinOp, reach, blocks)
        with author.loop(0, blocks, num_stages=1) as step:
            first = author.mul(step, bn)
            author.copy(k, k_shared, at=(by, first, 0), shape=(bn, dim), source_axes=(1, 2))
            with author.parallel(bm, bn) as (i, j):
                row, column = author.add(start, i), author.add(first, j)
                visible = author.cmp("lt", column, sequence)
                if causal:
                    visible = author.binary(arith.AndOp, visible, author.cmp("ge", row, column))
                zero = lambda: author.constant(0, "float32")
                author.store(
                    author.choose(visible, zero, lambda: author.constant(float("-inf"), "float32")), scores, i, j
                )
            author.gemm(q_shared, k_shared, scores, trans_b=True, policy="FullRow")
            author.copy(top, previous)
            author.reduce(scores, top, "max", 1, clear=False)
            with author.parallel(bm) as (i,):
                difference = author.sub(author.load(previous, i), author.load(top, i))
                author.store(author.math("exp2", difference), rescale, i)
            with author.parallel(bm, bn) as (i, j):
                author.store(
                    author.math("exp2", author.sub(author.load(scores, i, j), author.load(top, i))), scores, i, j
                )
            author.reduce(scores, row_sum, "sum", 1)
            with author.parallel(bm) as (i,):
                old = author.mul(author.load(total, i), author.load(rescale, i))
                author.store(author.add(old, author.load(row_sum, i)), total, i)
            author.copy(scores, weights)
            with author.parallel(bm, dim) as (i, j):
                author.store(author.mul(author.load(acc, i, j), author.load(rescale, i)), acc, i, j)
            author.copy(v, v_shared, at=(by, first, 0), shape=(bn, dim), source_axes=(1, 2))
            author.gemm(weights, v_shared, acc, policy="FullRow")
        with author.parallel(bm, dim) as (i, j):
            author.store(author.binary(arith.DivOp, author.load(acc, i, j), author.load(total, i)), acc, i, j)
        author.copy(acc, out, to=(by, start, 0), shape=(bm, dim), target_axes=(1, 2))
    return author.finish()


def layer_norm(rows: int = 7, columns: int = 229, block: int = 4) -> tile.FuncOp:
    """Rows to mean 0 and variance 1, times a weight; a width that is no power of two."""
    author = Author("layer_norm")
    x = author.parameter("X", (rows, columns), "float16")
    weight = author.parameter("W", (columns,), "float32")
    y = author.parameter("Y", (rows, columns), "float16", output=True)
    with author.kernel(-(-rows // block)) as (bx,):
        data = author.alloc((block, columns), "float32", name="data")
        square = author.alloc((block, columns), "float32", name="square")
        mean = author.alloc((block,), "float32", name="mean")
        variance = author.alloc((block,), "float32", name="variance")
        start = author.mul(bx, block)
        author.copy(x, data, at=(start, 0))
        author.reduce(data, mean, "sum", 1)
        width = lambda: author.constant(columns, "float32")
        with author.parallel(block, columns) as (i, j):
            average = author.binary(arith.DivOp, author.load(mean, i), width())
            centred = author.sub(author.load(data, i, j), average)
            author.store(centred, data, i, j)
            author.store(author.mul(centred, centred), square, i, j)
        author.reduce(square, variance, "sum", 1)
        with author.parallel(block, columns) as (i, j):
            spread = author.binary(arith.DivOp, author.load(variance, i), width())
            scale = author.math("rsqrt", author.add(spread, author.constant(1e-5, "float32")))
            scaled = author.mul(author.mul(author.load(data, i, j), scale), author.load(weight, j))
            author.store(scaled, data, i, j)
        author.copy(data, y, to=(start, 0))
    return author.finish()


def gather_rows(rows: int = 19, table: int = 11, columns: int = 12, block: int = 8) -> tile.FuncOp:
    """Y[r] = T[I[r]]: rows whose index lies outside of the table become 0."""
    author = Author("gather_rows")
    indices = author.parameter("I", (rows,), "int32")
    source = author.parameter("T", (table, columns), "float16")
    y = author.parameter("Y", (rows, columns), "float16", output=True)
    with author.kernel(-(-rows // block)) as (bx,):
        start = author.mul(bx, block)
        with author.parallel(block, columns) as (i, j):
            row = author.add(start, i)
            author.store(author.load(source, author.load(indices, row), j), y, row, j)
    return author.finish()


def top_k(rows: int = 6, columns: int = 21, k: int = 3) -> tile.FuncOp:
    """The k greatest of each row with their columns: each round takes the maximum and removes it."""
    author = Author("top_k")
    x = author.parameter("X", (rows, columns), "float32")
    values = author.parameter("V", (rows, k), "float32", output=True)
    places = author.parameter("P", (rows, k), "int32", output=True)
    with author.kernel(rows) as (bx,):
        data = author.alloc((1, columns), "float32", name="data")
        top = author.alloc((1,), "float32", name="top")
        column = author.alloc((1, columns), "int32", name="column")
        first = author.alloc((1,), "int32", name="first")
        author.copy(x, data, at=(bx, 0))
        with author.loop(0, k) as step:
            author.reduce(data, top, "max", 1)
            with author.parallel(1, columns) as (i, j):
                hit = author.cmp("eq", author.load(data, i, j), author.load(top, i))
                author.store(author.choose(hit, lambda: j, lambda: author.constant(columns)), column, i, j)
            author.reduce(column, first, "min", 1)
            with author.parallel(1, columns) as (i, j), author.when(author.cmp("eq", j, author.load(first, i))):
                author.store(author.constant(float("-inf"), "float32"), data, i, j)
            author.store(author.load(top, 0), values, bx, step)
            author.store(author.load(first, 0), places, bx, step)
    return author.finish()


def halvings(rows: int = 10) -> tile.FuncOp:
    """How often each number can be halved before it is odd or 0: a while loop over local variables."""
    author = Author("halvings")
    x = author.parameter("X", (rows,), "int32")
    y = author.parameter("Y", (rows,), "int32", output=True)
    with author.kernel(rows) as (bx,):
        number = author.alloc((1,), "int32", "local", "number")
        count = author.filled(0, (1,), "int32", "local", "count")
        author.store(author.load(x, bx), number, 0)
        before, after = Region(), Region()
        with author._inside(before):
            now = author.load(number, 0)
            even = author.cmp("eq", author.binary(arith.FloorModOp, now, 2), 0)
            go_on = author.binary(arith.AndOp, even, author.cmp("ne", now, 0))
            author.emit(scf.ConditionOp(go_on, []))
        with author._inside(after):
            author.store(author.floordiv(author.load(number, 0), 2), number, 0)
            author.store(author.add(author.load(count, 0), 1), count, 0)
        author.emit(scf.WhileOp([], regions=[before, scf.yielding(after)]))
        author.store(author.load(count, 0), y, bx)
    return author.finish()


NAMED: dict[str, Callable[[], tile.FuncOp]] = {
    "gemm": gemm,
    "dynamic_gemm": lambda: gemm(bm=16, bn=12, bk=8, dynamic=True, trans_a=True),
    "ragged_gemm": ragged_gemm,
    "split_k": split_k,
    "attention": attention,
    "layer_norm": layer_norm,
    "gather_rows": gather_rows,
    "top_k": top_k,
    "halvings": halvings,
}


# Random programs

SIZES = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
FLOATS = ("float16", "float32", "float32", "bfloat16")
DATA_TYPES = (*FLOATS, "int32", "int8")


class _Draw:
    """Writes one kernel. Keeps what tiles there are; every tile is initialised when it is made."""

    def __init__(self, draw: Any, author: Author) -> None:
        self.draw, self.author = draw, author
        self.tiles: list[Value] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.blocks: list[Value] = []
        self.tile_shape: tuple[int, ...] = ()

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def offset(self, axis: int, size: int) -> Index:
        """Where this block's tile starts along an axis, now and then shifted out of range."""
        start = self.author.mul(self.blocks[axis % len(self.blocks)], size)
        shift = self.pick([0, 0, 0, 1, -2, 5])
        return self.author.add(start, shift) if shift else start

    def scope(self) -> str:
        return str(self.pick(["fragment", "shared"]))

    def make(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Value:
        """A tile with data: copied in (perhaps transposed) or filled."""
        author = self.author
        shape = shape or self.tile_shape
        dtype = dtype or self.pick(DATA_TYPES)
        made = author.alloc(shape, dtype, self.scope(), f"t{len(self.tiles)}")
        sources = [each for each in self.inputs if len(each.type.shape) == len(shape)]
        kinds = [each for each in sources if is_float(each.dtype) or not is_float(dtype)]
        if kinds and self.chance():
            source = self.pick(kinds)
            axes = list(range(len(shape)))
            if len(shape) == 2 and self.pick([False, False, True]):
                axes.reverse()
            sizes = [shape[axes.index(axis)] for axis in range(len(shape))]
            at = [self.offset(axis, size) for axis, size in enumerate(sizes)]
            safe = self.pick([0.0, 0.0, 1.0])
            author.copy(source, made, at=at, shape=shape, source_axes=axes, safe_value=safe)
        else:
            author.fill(made, self.pick([0, 1, -2, 3]))
        self.tiles.append(made)
        return made

    def any_tile(self, *, rank: int | None = None, dtype: str | None = None) -> Value:
        fitting = [
            each
            for each in self.tiles
            if (rank is None or len(each.type.shape) == rank) and (dtype is None or each.dtype == dtype)
        ]
        if fitting and self.pick([True, True, False]):
            return self.pick(fitting)
        shape = self.tile_shape if rank in (None, len(self.tile_shape)) else self.tile_shape[:1]
        return self.make(dtype, shape)

    def operand(self, shape: tuple[int, ...], indices: list[Value], dtype: str) -> Value:
        """An element for one point of a parallel loop: of a tile, of a global buffer, an index or a number."""
        author = self.author
        choices: list[Callable[[], Value]] = [
            lambda: author.constant(self.pick([1, 2, -1, 3]), dtype),
            lambda: author.cast(self.pick(indices), dtype),
        ]
        for each in self.tiles:
            their = each.type.static_shape
            if their == shape:
                choices += [lambda each=each: author.load(each, *indices)] * 3
            if their == shape[::-1] and len(shape) == 2:
                choices.append(lambda each=each: author.load(each, *reversed(indices)))
            for axis, size in enumerate(shape):
                if their == (size,):
                    choices.append(lambda each=each, axis=axis: author.load(each, indices[axis]))
            if len(their) == len(shape) and their[-1] >= (shape[-1] + 1) // 2 and their[:-1] == shape[:-1]:
                half = lambda each=each: author.load(each, *indices[:-1], author.floordiv(indices[-1], 2))
                choices.append(half)
        for each in self.inputs:
            if len(each.type.shape) == len(shape):
                choices.append(lambda each=each: self.global_element(each, shape, indices))
        return author.cast(self.pick(choices)(), dtype)

    def global_element(self, source: Value, shape: tuple[int, ...], indices: list[Value]) -> Value:
        places = [self.author.add(self.offset(axis, shape[axis]), index) for axis, index in enumerate(indices)]
        numbers = [each for each in self.inputs if each.dtype == "int32" and len(each.type.shape) == 1]
        if numbers and self.chance():
            places[0] = self.author.load(self.pick(numbers), places[0])
        return self.author.load(source, *places)

    def expression(self, shape: tuple[int, ...], indices: list[Value], dtype: str) -> Value:
        value = self.operand(shape, indices, dtype)
        for _ in range(self.draw(st.integers(0, 2))):
            op_type = self.pick([arith.AddOp, arith.SubOp, arith.MulOp, arith.MaxOp, arith.MinOp])
            value = self.author.binary(op_type, value, self.operand(shape, indices, dtype))
        return value

    # Steps

    def elementwise(self) -> None:
        author, target = self.author, self.any_tile()
        shape = target.type.static_shape
        # A new target, so that no iteration reads what another one writes.
        fresh = author.filled(0, shape, target.dtype, self.scope(), f"t{len(self.tiles)}")
        with author.parallel(*shape) as indices:
            form = self.pick(["plain", "plain", "if", "choose"])
            condition = lambda: author.cmp(
                self.pick(["lt", "ge", "ne"]), self.pick(indices), self.pick([1, 2, max(shape) // 2])
            )
            if form == "if":
                with author.when(condition()):
                    author.store(self.expression(shape, indices, target.dtype), fresh, *indices)
            elif form == "choose":
                branch = lambda: self.expression(shape, indices, target.dtype)
                author.store(author.choose(condition(), branch, branch), fresh, *indices)
            else:
                author.store(self.expression(shape, indices, target.dtype), fresh, *indices)
        self.tiles.append(fresh)

    def in_place(self) -> None:
        author, target = self.author, self.any_tile()
        with author.parallel(*target.type.static_shape) as indices:
            other = author.constant(self.pick([1, 2, 3]), target.dtype)
            made = author.binary(self.pick([arith.AddOp, arith.MulOp]), author.load(target, *indices), other)
            author.store(made, target, *indices)

    def reduction(self) -> None:
        author, source = self.author, self.any_tile(rank=2)
        axis = self.pick([0, 1])
        kinds = ["sum", "max", "min", "absmax", "abssum"]
        kind = self.pick([*kinds, "or", "xor"] if is_integer(source.dtype) else kinds)
        shape = source.type.static_shape
        kept = self.chance()
        reduced = tuple(size for dim, size in enumerate(shape) if dim != axis)
        if kept:
            reduced = tuple(1 if dim == axis else size for dim, size in enumerate(shape))
        target = author.filled(self.pick([0, 1]), reduced, source.dtype, name=f"t{len(self.tiles)}")
        author.reduce(source, target, kind, axis, clear=self.chance())
        self.tiles.append(target)

    def scan(self) -> None:
        source = self.any_tile(rank=2)
        kind, axis = self.pick(["sum", "max"]), self.pick([0, 1])
        self.author.emit(tile.ScanOp(source, source, kind=kind, axis=axis, reverse=self.chance()))

    def matmul(self) -> None:
        author = self.author
        m, n = self.tile_shape if len(self.tile_shape) == 2 else (4, 3)
        k, trans_a, trans_b = self.draw(SIZES), self.chance(), self.chance()
        dtype = self.pick(["float16", "float32", "int8"])
        a = self.make(dtype, (k, m) if trans_a else (m, k))
        b = self.make(dtype, (n, k) if trans_b else (k, n))
        c = author.filled(0, (m, n), "int32" if dtype == "int8" else "float32", name=f"t{len(self.tiles)}")
        author.gemm(a, b, c, trans_a=trans_a, trans_b=trans_b, clear=self.chance())
        self.tiles.append(c)

    def loop(self) -> None:
        """Accumulates over tiles copied in, or repeats a step."""
        author, shape = self.author, self.tile_shape
        sources = [each for each in self.inputs if len(each.type.shape) == len(shape)]
        acc = author.filled(0, shape, "float32", name=f"t{len(self.tiles)}")
        bounds = self.pick([(0, 3, 1), (2, -1, -1), (0, 0, 1), (1, 6, 2)])
        known = list(self.tiles)
        with author.loop(*bounds, num_stages=self.pick([0, 2])) as step:
            if sources:
                source = self.pick(sources)
                staged = author.alloc(shape, source.dtype, "shared", "staged")
                at = [self.offset(axis, size) for axis, size in enumerate(shape)]
                at[-1] = author.add(at[-1], author.mul(step, shape[-1]))
                author.copy(source, staged, at=at)
                with author.parallel(*shape) as indices:
                    element = author.cast(author.load(staged, *indices), "float32")
                    author.store(author.add(author.load(acc, *indices), element), acc, *indices)
            else:
                with author.parallel(*shape) as indices:
                    element = author.cast(step, "float32")
                    author.store(author.add(author.load(acc, *indices), element), acc, *indices)
            if self.chance():
                self.step(nested=True)
        self.tiles = [*known, acc]  # what the loop made is not visible behind it

    def local(self) -> None:
        """A mutable scalar, changed under a condition, then used everywhere."""
        author, target = self.author, self.any_tile()
        variable = author.filled(1, (1,), target.dtype, "local", "variable")
        with author.when(author.cmp(self.pick(["eq", "gt"]), self.blocks[0], 0)):
            author.store(author.constant(3, target.dtype), variable, 0)
        with author.parallel(*target.type.static_shape) as indices:
            made = author.add(author.load(target, *indices), author.load(variable, 0))
            author.store(made, target, *indices)

    def step(self, nested: bool = False) -> None:
        steps = [self.elementwise, self.elementwise, self.in_place, self.reduction, self.matmul, self.local, self.make]
        if len(self.tile_shape) == 1:
            steps = [self.elementwise, self.elementwise, self.in_place, self.local, self.make, self.matmul]
        else:
            steps.append(self.scan)
        if not nested:
            steps += [self.loop, self.loop]
        self.pick(steps)()

    def write(self, out: Value) -> None:
        """The last step: a tile to global memory, by a copy, element by element or atomically."""
        author = self.author
        fitting = [each for each in self.tiles if each.type.static_shape == self.tile_shape]
        source = self.pick(fitting) if fitting else self.make()
        at = [self.offset(axis, size) for axis, size in enumerate(self.tile_shape)]
        how = self.pick(["copy", "copy", "store", "atomic"])
        if how == "copy":
            author.copy(source, out, to=at)
            return
        with author.parallel(*self.tile_shape) as indices:
            places = [author.add(start, index) for start, index in zip(at, indices, strict=True)]
            value = author.cast(author.load(source, *indices), out.dtype)
            if how == "store":
                author.store(value, out, *places)
            else:
                author.atomic(self.pick(["add", "max"]), value, out, *places)


@st.composite
def programs(draw: Any, *, max_steps: int = 4) -> tile.FuncOp:
    """Random valid programs of buffer level: one or two kernels, ragged and shifted tiles, dynamic sizes."""
    author = Author("random")
    rank = draw(st.sampled_from([2, 2, 1]))
    tile_shape = tuple(draw(SIZES) for _ in range(rank))
    dynamic = draw(st.booleans())
    sizes: tuple[Dim, ...] = tuple(draw(st.integers(1, 19)) for _ in range(rank))
    names = ("M", "N")[:rank]
    writer = _Draw(draw, author)
    writer.tile_shape = tile_shape
    for number in range(draw(st.integers(1, 3))):
        shape = names if dynamic else sizes
        made = author.parameter(f"A{number}", shape, draw(st.sampled_from(DATA_TYPES)))
        writer.inputs.append(made)
    if draw(st.booleans()):
        writer.inputs.append(author.parameter("I", (draw(st.integers(1, 19)),), "int32"))
    kernels = draw(st.sampled_from([1, 1, 2]))
    for number in range(kernels):
        shape = names if dynamic else sizes
        dtype = draw(st.sampled_from(["float32", "float32", "int32"]))
        writer.outputs.append(author.parameter(f"O{number}", shape, dtype, output=True))
    extents: list[Index] = list(sizes)  # type: ignore[arg-type]
    if dynamic:
        extents = [author.symbol(name, f"A0.{axis}") for axis, name in enumerate(names)]
    for out in writer.outputs:
        grid = [author.ceildiv(extent, size) for extent, size in zip(extents, tile_shape, strict=True)]
        writer.tiles = []
        with author.kernel(*grid) as writer.blocks:
            writer.make()
            for _ in range(draw(st.integers(0, max_steps))):
                writer.step()
            writer.write(out)
        writer.inputs.append(out)  # the next kernel may read it
    return author.finish()


# Inputs and comparison


def inputs_for(func: Operation, seed: int = 0, sizes: dict[str, int] | None = None) -> list[Any]:
    """Random arguments for all parameters, outputs included. `sizes` gives the symbols; others are drawn from 1..24.

    Floats are multiples of 1/4 from -2 to 2; 32-bit integers lie around 0, some out of range as indices.
    """
    assert isinstance(func, tile.FuncOp)
    generator = np.random.default_rng(seed)
    dims = {str(name): int(generator.integers(1, 25)) for name in func.symbols} | (sizes or {})
    arguments: list[Any] = []
    for value in func.body.args[: len(func.parameters)]:
        if not isinstance(value.type, BufferType):
            arguments.append(_numbers(generator, value.dtype, ())[()])
            continue
        shape = tuple(dims[dim] if isinstance(dim, str) else dim for dim in value.type.shape)
        if value.type.strides is None:
            arguments.append(_numbers(generator, value.dtype, shape))
            continue
        strides = [dims.get(step, 1) if isinstance(step, str) else step for step in value.type.strides]
        room = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        whole = _numbers(generator, value.dtype, (max(room, 1),))
        steps = [step * whole.itemsize for step in strides]
        arguments.append(np.lib.stride_tricks.as_strided(whole, shape, steps))
    return arguments


def _numbers(generator: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = ELEMENTS[dtype].kind
    if kind == "float":
        return (generator.integers(-8, 9, shape) / 4).astype(DTYPES[dtype])
    if kind == "bool":
        return np.asarray(generator.integers(0, 2, shape)).astype(bool)
    low, high = (0, 12) if kind == "uint" else (-3, 21) if dtype in ("int32", "int64") else (-4, 5)
    return np.asarray(generator.integers(low, high, shape)).astype(DTYPES[dtype])


def copy_arguments(arguments: Sequence[Any]) -> list[Any]:
    """Copies of the arrays that keep their strides."""
    made = []
    for each in arguments:
        if isinstance(each, np.ndarray) and not each.flags.c_contiguous:
            last = sum(
                (size - 1) * (step // each.itemsize) for size, step in zip(each.shape, each.strides, strict=True)
            )
            flat = np.lib.stride_tricks.as_strided(each, (last + 1,), (each.itemsize,)).copy()
            made.append(np.lib.stride_tricks.as_strided(flat, each.shape, each.strides))
        else:
            made.append(each.copy() if isinstance(each, np.ndarray) else each)
    return made


def check_pass(
    passes: str | Pass | Sequence[Pass] | Callable[[Program], Any],
    func: Operation,
    inputs: Sequence[Any],
    *,
    tolerance: float = 0.0,
    uninitialised: str = "nan",
    target: Any = None,
) -> tile.FuncOp:
    """Run passes on a copy of `func`, verify it after each, and compare the results of both; return the copy.

    `passes` is a pass, a list, a pipeline's spec or a function on a Program. Every buffer among the arguments is
    compared: exactly (NaN equals NaN, 0 equals -0), or to `tolerance`, relative to the greatest value.
    """
    twin = func.clone({})
    program = Program(twin, target)
    if isinstance(passes, str):
        passes = parse_pipeline(passes)
    if isinstance(passes, Pass):
        passes = [passes]
    if callable(passes):
        passes(program)
        verify(program.root)
    else:
        PassManager(passes).run(program)
    before, after = copy_arguments(inputs), copy_arguments(inputs)
    run(func, before, uninitialised=uninitialised)
    run(program.root, after, uninitialised=uninitialised)
    names = func.attributes["parameters"]
    for name, old, new in zip(names, before, after, strict=True):
        if isinstance(old, np.ndarray):
            same_array(old, new, tolerance, f"{name} after the pass:\n{program.root}")
    assert isinstance(program.root, tile.FuncOp)
    return program.root


def same_array(expected: np.ndarray, actual: np.ndarray, tolerance: float = 0.0, message: str = "") -> None:
    """Fail unless two arrays are equal: exactly, or to `tolerance` of the greatest finite value."""
    a, b = (each.astype(np.float64) if each.dtype.kind not in "iub" else each for each in (expected, actual))
    assert expected.dtype == actual.dtype and expected.shape == actual.shape
    if tolerance:
        finite = np.abs(a[np.isfinite(a)])
        scale = float(finite.max()) if finite.size else 1.0
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * scale, equal_nan=True, err_msg=message)
    else:
        np.testing.assert_array_equal(b, a, err_msg=message)


__all__ = [
    "Author", "NAMED", "attention", "check_pass", "copy_arguments", "gather_rows", "gemm", "halvings", "inputs_for",
    "layer_norm", "programs", "ragged_gemm", "same_array", "split_k", "top_k",
]  # fmt: skip
