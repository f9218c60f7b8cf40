"""lazy_rescale: which loops may rescale lazily, and that they mean the same then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tiledsl
import tiledsl.language as T
from tests.passes.gluon.test_merge_softmax_loops import SHAPES, attention, loops_of
from tests.passes.gluon.test_merge_softmax_loops import results as attention_results
from tests.passes.ir_cases import kernel_of, program
from tests.support.executor import run
from tiledsl.dialects import tile
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.passes.gluon.lazy_rescale import _bounded, rescale_lazily
from tiledsl.passes.gluon.merge_softmax_loops import merge_softmax_loops

ROWS, KEYS, TILE, DIM = 16, 64, 8, 16
SCALE = 0.25


def softmax(kind: str, lowest: float = -1e30) -> Any:
    """One head of attention, in which a row sees the keys up to a limit of its own, with its maxima and sums."""

    @T.prim_func
    def softmax(
        Q: T.Tensor((ROWS, DIM), "float16"),
        K: T.Tensor((KEYS, DIM), "float16"),
        V: T.Tensor((KEYS, DIM), "float16"),
        limits: T.Tensor((ROWS,), "int32"),
        tiles: T.Tensor((1,), "int32"),
        O: T.Tensor((ROWS, DIM), "float32"),
        maxima: T.Tensor((ROWS,), "float32"),
        totals: T.Tensor((ROWS,), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            q = T.alloc_shared((ROWS, DIM), "float16")
            k = T.alloc_shared((TILE, DIM), "float16")
            v = T.alloc_shared((TILE, DIM), "float16")
            limit = T.alloc_fragment((ROWS,), "int32")
            s = T.alloc_fragment((ROWS, TILE), "float32")
            weights = T.alloc_fragment((ROWS, TILE), "float16")
            acc = T.alloc_fragment((ROWS, DIM), "float32")
            highest = T.alloc_fragment((ROWS,), "float32")
            previous = T.alloc_fragment((ROWS,), "float32")
            rescale = T.alloc_fragment((ROWS,), "float32")
            total = T.alloc_fragment((ROWS,), "float32")
            more = T.alloc_fragment((ROWS,), "float32")
            T.copy(Q, q)
            T.copy(limits, limit)
            T.clear(acc)
            T.clear(total)
            T.clear(more)
            T.fill(highest, lowest)
            for t in T.Pipelined(tiles[0], num_stages=2):
                T.copy(K[t * TILE, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                T.copy(highest, previous)
                for i, j in T.Parallel(ROWS, TILE):
                    s[i, j] = T.if_then_else(t * TILE + j < limit[i], s[i, j], -T.infinity("float32"))
                if kind == "uncleared":
                    T.reduce_max(s, highest, dim=1, clear=False)
                else:
                    T.reduce_max(s, highest, dim=1)
                for i in T.Parallel(ROWS):
                    if kind == "natural":
                        highest[i] = T.max(previous[i], highest[i] * SCALE)
                        rescale[i] = T.exp(previous[i] - highest[i])
                    elif kind == "difference":
                        highest[i] = T.max(previous[i], highest[i])
                        rescale[i] = T.exp2((previous[i] - highest[i]) * SCALE)
                    elif kind == "other power":
                        highest[i] = T.max(previous[i], highest[i])
                        rescale[i] = T.exp(previous[i] * SCALE - highest[i] * SCALE)
                    elif kind == "other slope":
                        highest[i] = T.max(previous[i], highest[i])
                        rescale[i] = T.exp2(previous[i] - highest[i])
                    elif kind == "guarded":
                        highest[i] = T.max(previous[i], highest[i])
                        rescale[i] = T.if_then_else(highest[i] < -1e20, 1.0, T.exp2((previous[i] - highest[i]) * SCALE))
                    elif kind == "falling":
                        highest[i] = T.max(previous[i], highest[i])
                        rescale[i] = T.exp2(highest[i] * SCALE - previous[i] * SCALE)
                    elif kind == "minimum":
                        highest[i] = T.min(previous[i], highest[i])
                        rescale[i] = T.exp2((previous[i] - highest[i]) * SCALE)
                    else:
                        highest[i] = T.max(highest[i], previous[i])
                        rescale[i] = T.exp2(previous[i] * SCALE - highest[i] * SCALE)
                for i, j in T.Parallel(ROWS, TILE):
                    if kind == "natural":
                        s[i, j] = T.exp(s[i, j] * SCALE - highest[i])
                    elif kind == "negated":
                        s[i, j] = T.exp2(-highest[i] * SCALE + s[i, j] * SCALE)
                    elif kind == "chosen":
                        s[i, j] = T.if_then_else(
                            t * TILE + j < limit[i], T.exp2(s[i, j] * SCALE - highest[i] * SCALE), 0.0
                        )
                    elif kind == "biased":
                        s[i, j] = T.exp2(s[i, j] * SCALE + 12.0 - highest[i] * SCALE)
                    elif kind == "steeper":
                        s[i, j] = T.exp2(s[i, j] * 2 * SCALE - highest[i] * SCALE)
                    elif kind == "falling":
                        s[i, j] = T.exp2(highest[i] * SCALE - s[i, j] * SCALE)
                    elif kind == "masked late":
                        s[i, j] = T.exp2(
                            T.if_then_else(j < 6, s[i, j], -T.infinity("float32")) * SCALE - highest[i] * SCALE
                        )
                    else:
                        s[i, j] = T.exp2(s[i, j] * SCALE - highest[i] * SCALE)
                if kind == "squares":
                    for i, j in T.Parallel(ROWS, TILE):
                        s[i, j] = s[i, j] * s[i, j]
                if kind == "plus one":
                    for i, j in T.Parallel(ROWS, TILE):
                        s[i, j] = s[i, j] + 1
                if kind == "larger weights":
                    for i, j in T.Parallel(ROWS, TILE):
                        s[i, j] = s[i, j] * 200
                if kind == "half":
                    for i, j in T.Parallel(ROWS, TILE):
                        s[i, j] = s[i, j] * 0.5
                if kind == "sums as weights":
                    T.reduce_sum(s, more, dim=1)
                    for i, j in T.Parallel(ROWS, TILE):
                        s[i, j] = s[i, j] + more[i]
                if kind == "weights twice":
                    for i, j in T.Parallel(ROWS, TILE):
                        s[i, j] = s[i, j] + s[i, j]
                T.copy(s, weights)
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(ROWS):
                    total[i] = total[i] * rescale[i] + more[i]
                if kind == "maxima are added":
                    for i in T.Parallel(ROWS):
                        total[i] = total[i] + highest[i]
                if kind == "last total":
                    for i in T.Parallel(ROWS):
                        total[i] = more[i]
                for i, j in T.Parallel(ROWS, DIM):
                    acc[i, j] *= rescale[i]
                T.copy(V[t * TILE, 0], v)
                T.gemm(weights, v, acc)
            T.copy(acc, O)
            T.copy(highest, maxima)
            T.copy(total, totals)

    return softmax


def before_emitter(program: Any) -> tile.FuncOp:
    root = parse_program(tiledsl.compile(program, target="interpret").ir("select-emitter")).root
    assert isinstance(root, tile.FuncOp)
    return root


def results(root: tile.FuncOp, scores: np.ndarray, tiles: int = KEYS // TILE) -> list[np.ndarray]:
    """O, maxima and totals where key number j has this score times SCALE in a row, and a different factor each row."""
    random = np.random.default_rng(0)
    q, k = np.zeros((ROWS, DIM), np.float16), np.zeros((KEYS, DIM), np.float16)
    q[:, 0], k[:, 0] = np.linspace(0.25, 2, ROWS) / SCALE, scores
    v = random.standard_normal((KEYS, DIM)).astype(np.float16)
    limits = np.where(np.arange(ROWS) % 4 == 3, np.arange(ROWS) * 4, KEYS).astype(np.int32)
    limits[5] = 0  # it sees no key
    outputs = [np.full(shape, np.nan, np.float32) for shape in ((ROWS, DIM), (ROWS,), (ROWS,))]
    run(root, [q, k, v, limits, np.array([tiles], np.int32), *outputs])
    return outputs


KEY = np.arange(KEYS)
SCORES = {
    "random": np.random.default_rng(1).standard_normal(KEYS) * 3,
    "slow rise": KEY * 0.25,
    "rise within the limit": KEY * 0.05,
    "jumps": KEY // TILE * 20.0,
    "one jump": np.where(KEY < 40, 0, 12.0),
    "fall": -KEY * 0.5,
    "up and down": 15 * np.sin(KEY / 9.0),
}
LINEAR = ("scaled", "difference", "natural", "negated", "chosen", "uncleared", "half", "last total", "masked late")


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("kind", LINEAR)
def test_the_same_comes_out(kind: str, scores: str) -> None:
    root = before_emitter(softmax(kind))
    expected = results(root, SCORES[scores])
    (loop,) = loops_of(root)
    assert rescale_lazily([loop])
    verify(root)
    out, maxima, totals = results(root, SCORES[scores])
    np.testing.assert_array_equal(maxima, expected[1])
    np.testing.assert_allclose(totals, expected[2], rtol=1e-5)
    np.testing.assert_allclose(out, expected[0], rtol=0, atol=2e-3 * np.abs(expected[0]).max())  # float16 weights


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize(("kind", "unit"), [("scaled", SCALE), ("natural", np.log2(np.e))])
def test_the_reference_moves_where_the_maximum_rose_by_more_than_eight_powers_of_two(
    kind: str, unit: float, scores: str
) -> None:
    root = before_emitter(softmax(kind))
    maxima, of_one_tile = (results(root, SCORES[scores], tiles)[1] for tiles in (KEYS // TILE, 1))
    assert rescale_lazily(loops_of(root))
    (loop,) = loops_of(root)
    loop.results[-1].replace_with(loop.results[0])  # show it in place of the maxima, and the sums as they are for it
    references = results(root, SCORES[scores])[1]
    behind = (maxima - references) * unit
    assert np.all(behind >= 0) and np.all(behind <= 8.0001)
    assert bool(np.any(behind > 0)) == (scores != "fall")
    if scores == "rise within the limit":
        np.testing.assert_array_equal(references, of_one_tile)


@pytest.mark.parametrize("count", [0, 1, KEYS // TILE])
@pytest.mark.parametrize("lowest", [-np.inf, -1e30, 3.0])
def test_what_the_maximum_starts_from(lowest: float, count: int) -> None:
    """Where nothing was seen sums stay 0, or not a number as they were before; 3 may be larger than all scores."""
    root = before_emitter(softmax("scaled", float(lowest)))
    expected = results(root, SCORES["up and down"], count)
    assert rescale_lazily(loops_of(root))
    out, maxima, totals = results(root, SCORES["up and down"], count)
    assert bool(np.isnan(out).any()) == (lowest == -np.inf and count > 0)
    np.testing.assert_array_equal(maxima, expected[1])
    np.testing.assert_allclose(totals, expected[2], rtol=1e-5)
    np.testing.assert_allclose(out, expected[0], rtol=0, atol=2e-3 * np.nanmax(np.abs(expected[0])))


@pytest.mark.parametrize(
    "kind",
    ["other power", "other slope", "guarded", "minimum", "squares", "plus one", "larger weights", "maxima are added",
     "biased", "steeper", "falling", "sums as weights", "weights twice"],
)  # fmt: skip
def test_what_is_no_such_sum_stays(kind: str) -> None:
    root = before_emitter(softmax(kind))
    before = print_op(root)
    assert not rescale_lazily(loops_of(root))
    assert print_op(root) == before


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("merged", [True, False])
def test_chains_of_loops(name: str, merged: bool) -> None:
    shape = SHAPES[name]
    root = attention(**shape)
    expected = attention_results(root, shape["queries"], shape["keys"])
    if merged:
        assert merge_softmax_loops(loops_of(root))
    assert rescale_lazily(loops_of(root))
    verify(root)
    out, lse = attention_results(root, shape["queries"], shape["keys"])
    np.testing.assert_allclose(out, expected[0], rtol=0, atol=2e-3)
    np.testing.assert_allclose(lse, expected[1], rtol=1e-5, atol=1e-5)


ROW = "tensor<4xfloat32>"
LARGEST = f'%m = tensor.reduce %t {{kind = "max", axis = 1}} : {ROW}\n'
OTHERS = f'%n = tensor.reduce %u {{kind = "max", axis = 1}} : {ROW}\n'


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (LARGEST + f"%x = arith.mul %m, %c1.0 : {ROW}", [("t", 1.0)]),
        (LARGEST + f"%x = arith.max %m, %old : {ROW}", [("t", 1.0)]),
        (f"{LARGEST}%h = arith.mul %m, %c0.5 : {ROW}\n{OTHERS}%b = arith.max %h, %n : {ROW}\n"
         f"%x = arith.mul %c3.0, %b : {ROW}", [("t", 1.5), ("u", 3.0)]),
        # Times a number that is not positive the largest is the smallest, or nothing.
        (f"{LARGEST}%b = arith.max %m, %old : {ROW}\n%x = arith.mul %b, %c0.0 : {ROW}", []),
        (f"{LARGEST}%b = arith.max %m, %old : {ROW}\n%x = arith.mul %b, %c-1.0 : {ROW}", []),
        (LARGEST + f"%x = arith.mul %m, %c0.0 : {ROW}", []), (LARGEST + f"%x = arith.mul %m, %c-2.0 : {ROW}", []),
        (f'%x = tensor.reduce %t {{kind = "min", axis = 1}} : {ROW}', []),
        ('%x = tensor.reduce %t {kind = "max", axis = 0} : tensor<8xfloat32>', []),
        (f"%x = arith.min %old, %old : {ROW}", []),
    ],
)  # fmt: skip
def test_which_tiles_do_not_exceed_a_row_of_maxima(body: str, found: list[tuple[str, float]]) -> None:
    head = """%i = tensor.iota {axis = 0} : tensor<4x1xint32>
      %j = tensor.iota {axis = 1} : tensor<1x8xint32>
      %t = tile.load %A[%i, %j] : tensor<4x8xfloat32>
      %u = tile.load %B[%i, %j] : tensor<4x8xfloat32>
      %old = arith.constant {value = 2.0} : tensor<4xfloat32>\n"""
    made = {value.name: value for op in kernel_of(program(head + body)).walk() for value in op.results}
    assert [(tile.name, factor) for tile, factor in _bounded(made["x"])] == found
