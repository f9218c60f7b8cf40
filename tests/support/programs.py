"""Programs for tests, named and random, built through the constructors of the operations; and their inputs.

    func = gemm(37, 24, 20, 16, 16, 16)
    check_pass(SomePass(), func, inputs_for(func, seed=0))

    @given(programs(), st.integers(0, 99))
    def test(func, seed): check_pass("some-pass,other", func, inputs_for(func, seed))

Inputs are small multiples of 1/4, so that sums and products of a few are exact: most rewrites keep every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.support.author import Author, Index
from tests.support.executor import DTYPES, run
from tests.support.random_programs import programs
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Operation, Region
from tiledsl.ir.pass_manager import Pass, PassManager, Program
from tiledsl.ir.types import ELEMENTS, BufferType
from tiledsl.ir.verifier import verify
from tiledsl.passes.specs import parse_pipeline

__all__ = ["NAMED", "Author", "check_pass", "copy_arguments", "inputs_for", "programs", "same_array"]

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
    """Rows to mean 0 and variance 1, times a weight; a width that is not a power of two."""
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
            same_array(old, new, tolerance, f"{name} after the pass:", program.root)
    assert isinstance(program.root, tile.FuncOp)
    return program.root


def same_array(expected: np.ndarray, actual: np.ndarray, tolerance: float = 0.0, *told: Any) -> None:
    """Fail unless two arrays are equal: exactly, or to `tolerance` of the greatest finite value. `told` is printed."""
    a, b = (each.astype(np.float64) if each.dtype.kind not in "iub" else each for each in (expected, actual))
    assert expected.dtype == actual.dtype and expected.shape == actual.shape
    if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return
    message = "\n".join(map(str, told))  # printing a program takes longer than comparing its results
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
