"""lazy_rescale: which loops may rescale lazily, and that they mean the same then."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tiledsl
import tiledsl.language as T
from tests.passes.gluon.test_merge_softmax_loops import SHAPES, attention, loops_of
from tests.passes.gluon.test_merge_softmax_loops import results as attention_results
from tests.passes.ir_cases import kernel_of, program
from tests.support.executor import run
from tiledsl.dialects import gluon, scf, tile
from tiledsl.ir.core import Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.types import INT32, with_shape
from tiledsl.ir.verifier import verify
from tiledsl.passes.gluon.lazy_rescale import _bounded, _Multiple, _row_shape, name_rescaling, rescale_lazily
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
                    elif kind == "masked late":
                        s[i, j] = T.exp2(
                            T.if_then_else(j < 6, s[i, j], -T.infinity("float32")) * SCALE - highest[i] * SCALE
                        )
                    else:
                        s[i, j] = T.exp2(s[i, j] * SCALE - highest[i] * SCALE)
                if kind == "half":
                    for i, j in T.Parallel(ROWS, TILE):
                        s[i, j] = s[i, j] * 0.5
                T.copy(s, weights)
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(ROWS):
                    total[i] = total[i] * rescale[i] + more[i]
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
    assert [(bound.value.name, bound.number) for bound, lift in _bounded(made["x"]) if not lift] == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("%c = arith.mul %m, %r : ROW\n%x = arith.sub %c, %c4.0 : ROW", [("t", 0.5, ("a",), 4.0)]),
        ("%c = arith.mul %r, %m : ROW\n%x = arith.add %c, %c-3.0 : ROW", [("t", 0.5, ("a",), 3.0)]),
        ("%x = arith.add %m, %c3.0 : ROW", [("t", 1.0, (), 0.0)]),
        ("%c = arith.sub %m, %c4.0 : ROW\n%x = arith.mul %c, %c2.0 : ROW", []),  # not written so anywhere
        ("%c = arith.max %m, %old : ROW\n%d = arith.sub %c, %c4.0 : ROW\n%x = arith.max %d, %m : ROW",
         [("t", 1.0, (), 4.0), ("t", 1.0, (), 0.0)]),
        ("%x = arith.mul %m, %f : ROW", []),  # of any sign
        ("%c = arith.mul %m, %r : ROW\n%x = arith.mul %c, %r : ROW", []),  # a square
        ('%b = arith.math [%m] {function = "abs"} : ROW\n%x = arith.mul %m, %b : ROW', []),  # one for each row
    ],
)  # fmt: skip
def test_by_how_much_tiles_exceed_a_row(body: str, found: list[tuple[str, float, tuple[str, ...], float]]) -> None:
    head = """%i = tensor.iota {axis = 0} : tensor<4x1xint32>
      %j = tensor.iota {axis = 1} : tensor<1x8xint32>
      %t = tile.load %A[%i, %j] : tensor<4x8xfloat32>
      %old = arith.constant {value = 2.0} : ROW
      %a = arith.math [%f] {function = "abs"} : float32
      %r = arith.mul %a, %c0.5 : float32\n"""
    text = (head + LARGEST + body).replace("ROW", ROW)
    made = {value.name: value for op in kernel_of(program(text)).walk() for value in op.results}
    bounds = _bounded(made["x"])
    assert [
        (bound.value.name, bound.number, tuple(each.name for each in bound.scalars), lift) for bound, lift in bounds
    ] == found


TILE2 = "tensor<4x8xfloat32>"
# The maximum %m and the sum %s of a row, and how a step changes them.
STEP = f"""%g = tensor.reduce %x {{kind = "max", axis = 1}} : {ROW}
%n = arith.max %m, %g : {ROW}
%nm = arith.mul %n, %c0.25 : {ROW}
%nt = tensor.reshape %nm : tensor<4x1xfloat32>
%xs = arith.mul %x, %c0.25 : {TILE2}
%d = arith.sub %xs, %nt : {TILE2}
%w = arith.math [%d] {{function = "exp2"}} : {TILE2}
%z = arith.neg %w : {TILE2}
%e = arith.sub %m, %n : {ROW}
%es = arith.mul %e, %c0.25 : {ROW}
%r = arith.math [%es] {{function = "exp2"}} : {ROW}
%p = tensor.reduce %w {{kind = "sum", axis = 1}} : {ROW}
%t = arith.mul %s, %r : {ROW}
%u = arith.add %t, %p : {ROW}
"""


def with_line(name: str, text: str) -> str:
    """The step with another line that makes %NAME."""
    lines = [f"%{name} = {text}" if line.startswith(f"%{name} =") else line for line in STEP.splitlines()]
    return "\n".join(lines) + "\n"


def through(name: str, text: str, reader: str) -> str:
    """The step with `text`, which makes %v of %NAME, and %v where `reader` took %NAME."""
    made = []
    for line in STEP.splitlines():
        if line.startswith(f"%{reader} ="):
            made.append(text)
            line = line.replace(f"%{name},", "%v,").replace(f"%{name} ", "%v ").replace(f"[%{name}]", "[%v]")
        made.append(line)
    return "\n".join(made) + "\n"


CARRIED = {"m": "n", "s": "u"}  # and what is handed on
HALF = ROW.replace("32", "16")


def rescales(*steps: str, carried: dict[str, str] = CARRIED, **types: str) -> bool:
    """Whether loops of these steps, one after the other, rescale lazily; carried values are rows, or of `types`."""
    kinds = [types.get(name, ROW) for name in carried]
    text = f"""%i = tensor.iota {{axis = 0}} : tensor<4x1xint32>
      %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
      %q = arith.cmp %i, %j {{predicate = "gt"}} : tensor<4x8xbool>
      %o = arith.constant {{value = 1.0}} : {TILE2}
      %l = arith.constant {{value = -inf}} : {TILE2}
      %r0 = arith.constant {{value = 0.0}} : {ROW}
      %h0 = arith.constant {{value = 1.0}} : tensor<1x1xfloat16>
      %z0 = arith.constant {{value = 0.0}} : tensor<4x1xfloat32>
      %t0 = arith.constant {{value = 0.0}} : {TILE2}
      %e0 = arith.constant {{value = 1.0}} : tensor<8x8xfloat32>
      """
    text += "".join(f"%{name}_0 = arith.constant {{value = 0.0}} : {type}\n" for name, type in zip(carried, kinds))
    for number, step in enumerate(steps):
        inits, names = (", ".join(f"%{name}_{number + place}" for name in carried) for place in (0, 1))
        declared = ", ".join(f"%{name}: {type}" for name, type in zip(carried, kinds))
        body = f"""(%k: int32, {declared}) {{ %x = tile.load %A[%i, %j] : {TILE2}
          %y = tile.load %B[%i, %j] : {TILE2}
          {step} scf.yield [{", ".join("%" + name for name in carried.values())}] }}\n"""
        local = re.sub(
            r"%(?!c-?\d)([a-z]\w*)", lambda each: each[0] if each[1] in OUTSIDE else f"{each[0]}_in{number}", body
        )
        text += f"{names} = scf.for %c0, %c8, %c1[{inits}] : {', '.join(kinds)} {local}"
    made = program(text)
    lazily = rescale_lazily(loops_of(made.root))
    verify(made.root)
    assert not lazily or all(op.is_used for op in made.root.walk() if op.name == "arith.max")
    return lazily


OUTSIDE = {"A", "B", "i", "j", "q", "o", "l", "r0", "h0", "z0", "t0", "e0"}
THRICE = with_line("n", f"arith.max %b, %m : {ROW}").replace(
    "%n =", f"%a = arith.max %m, %g : {ROW}\n%b = arith.max %a, %m : {ROW}\n%n ="
)
HALVES, LESS = TILE2.replace("32", "16"), '{predicate = "lt"} : tensor<4x8xbool>'
HALVED = f"%h = arith.cast %b : {HALVES}\n%v = arith.cast %h : {TILE2}"
SQUARES = """%v = tensor.transpose %w {permutation = (1, 0)} : tensor<8x4xfloat32>
%t4 = arith.constant {value = 0.0} : tensor<4x4xfloat32>
%z = tensor.dot %w, %v, %t4 : tensor<4x4xfloat32>"""
NARROW = f"""%xh = arith.cast %x : tensor<4x8xfloat16>
%g = tensor.reduce %xh {{kind = "max", axis = 1}} : {HALF}
%n = arith.max %m, %g : {HALF}
%nt = tensor.reshape %n : tensor<4x1xfloat16>
%d = arith.sub %xh, %nt : tensor<4x8xfloat16>
%wh = arith.math [%d] {{function = "exp2"}} : tensor<4x8xfloat16>
%w = arith.cast %wh : {TILE2}
%p = tensor.reduce %w {{kind = "sum", axis = 1}} : {ROW}
%e = arith.sub %m, %n : {HALF}
%rh = arith.math [%e] {{function = "exp2"}} : {HALF}
%r = arith.cast %rh : {ROW}
%t = arith.mul %s, %r : {ROW}
%u = arith.add %t, %p : {ROW}
"""
NEGATED = "%v = arith.neg %nt : tensor<4x1xfloat32>\n"


@pytest.mark.parametrize(
    "step",
    [
        STEP,
        with_line("n", f"arith.max %g, %m : {ROW}"),
        with_line("n", f"arith.max %a, %m : {ROW}").replace("%n =", f"%a = arith.max %m, %g : {ROW}\n%n ="),
        through("w", f"%v = arith.select %q, %w, %c0.0 : {TILE2}", "p"),
        through("w", f"%v = arith.select %q, %c0.0, %w : {TILE2}", "p"),
        through("d", f"%v = arith.select %q, %d, %l : {TILE2}", "w"),
        through("x", f"%v = arith.select %q, %x, %l : {TILE2}", "xs"),
        through("w", f"%v = arith.mul %w, %o : {TILE2}", "p"),
        through("w", f"%v = arith.mul %c-1.0, %w : {TILE2}", "p"),
        through("w", f"%v = arith.add %w, %w : {TILE2}", "p"), through("w", f"%v = arith.sub %w, %z : {TILE2}", "p"),
        through("w", f"%h = arith.cast %z : tensor<4x8xfloat16>\n%v = arith.cast %h : {TILE2}", "p"),
        with_line("p", f'tensor.reduce %z {{kind = "sum", axis = 1}} : {ROW}'),
        with_line("t", f"arith.mul %r, %s : {ROW}"), with_line("u", f"arith.sub %p, %t : {ROW}"),
        with_line("e", f"arith.sub %n, %m : {ROW}").replace("arith.mul %e, %c0.25", "arith.mul %e, %c-0.25"),
        with_line("u", f"arith.add %p, %c0.0 : {ROW}"), with_line("u", f"arith.add %c0.0, %p : {ROW}"),
        with_line("n", f"arith.max %m, %b : {ROW}").replace("%n =", f"%b = arith.max %g, %r0 : {ROW}\n%n ="),
        THRICE, STEP.replace("%d =", NEGATED + "%d =").replace("sub %xs, %nt", "add %xs, %v"),
        STEP.replace("%d =", NEGATED + "%d =").replace("sub %xs, %nt", "add %v, %xs"),
        through("d", f"%v = arith.neg %d : {TILE2}", "w").replace("sub %xs, %nt", "sub %nt, %xs"),
        through("w", f"%v = tensor.dot %w, %e0, %t0 : {TILE2}", "p"),
    ],
)  # fmt: skip
def test_steps_that_may_rescale_lazily(step: str) -> None:
    assert rescales(step)


@pytest.mark.parametrize(
    "step",
    [
        with_line("n", f"arith.min %m, %g : {ROW}"), with_line("n", f"arith.max %s, %g : {ROW}"),
        with_line("n", f"arith.max %m, %r0 : {ROW}"),
        with_line("n", f"arith.max %g, %r0 : {ROW}"),  # no maximum of the tile
        with_line("n", f"arith.max %b, %g : {ROW}").replace("%n =", f"%b = arith.max %m, %r0 : {ROW}\n%n ="),
        through("x", f"%v = arith.select %q, %y, %x : {TILE2}", "xs"),
        through("x", f"%v = arith.select %q, %x, %y : {TILE2}", "xs"),
        with_line("g", f'tensor.reduce %y {{kind = "max", axis = 1}} : {ROW}'),  # of another one
        # The tile that is searched depends on the maximum itself.
        f"%mt = tensor.reshape %m : tensor<4x1xfloat32>\n%a = arith.add %x, %mt : {TILE2}\n"
        + with_line("g", f'tensor.reduce %a {{kind = "max", axis = 1}} : {ROW}'),
        # Weights that are larger, or no multiples of a power of the maximum.
        through("w", f"%v = arith.mul %w, %c2.0 : {TILE2}", "p"),
        through("w", f"%v = arith.mul %w, %c-1.5 : {TILE2}", "p"),
        through("w", f"%v = arith.mul %w, %w : {TILE2}", "p"), through("w", f"%v = arith.mul %w, %x : {TILE2}", "p"),
        through("w", f"%v = arith.add %w, %c1.0 : {TILE2}", "p"), through("w", f"%v = arith.max %w, %x : {TILE2}", "p"),
        through("w", f"%v = arith.select %q, %w, %o : {TILE2}", "p"),
        through("w", f"%b = arith.cmp %w, %x {LESS}\n%v = arith.select %b, %o, %o : {TILE2}", "p"),
        through("w", f"%v = arith.select %q, %w, %l : {TILE2}", "p"),
        through("d", f"%v = arith.select %q, %d, %c0.0 : {TILE2}", "w"),
        through("w", f"%b = arith.select %q, %w, %w : {TILE2}\n{HALVED}", "p"),
        with_line("u", f"arith.add %t, %v : {ROW}").replace(
            "%u =", f"%h = arith.cast %p : {HALF}\n%v = arith.cast %h : {ROW}\n%u ="
        ),
        through("w", f"%h = arith.cast %w : tensor<4x8xint32>\n%v = arith.cast %h : {TILE2}", "p"),
        through("w", f"%b = arith.add %w, %w : {TILE2}\n{HALVED}", "p"),
        with_line("p", f'tensor.reduce %w {{kind = "max", axis = 1}} : {ROW}'), STEP.replace("exp2", "sin"),
        through("w", f'%v = arith.math [%w] {{function = "exp2"}} : {TILE2}', "p"), STEP.replace("%c0.25", "%c0.0"),
        with_line("d", f"arith.sub %nt, %xs : {TILE2}").replace("sub %m, %n", "sub %n, %m"),
        through("d", f"%v = arith.add %d, %y : {TILE2}", "w"), through("d", f"%v = arith.sub %y, %d : {TILE2}", "w"),
        # A product of weights with weights, and of sums of them that are too large for float16.
        STEP.replace(f"%z = arith.neg %w : {TILE2}", SQUARES).replace("reduce %w", "reduce %z"),
        with_line("p", f"tensor.reshape %p2 : {ROW}").replace("%p =", f"""%h = arith.cast %w : tensor<4x8xfloat16>
          %hs = tensor.reduce %h {{kind = "sum", axis = 1}} : {HALF}\n%hr = tensor.reshape %hs : tensor<4x1xfloat16>
          %p2 = tensor.dot %hr, %h0, %z0 : tensor<4x1xfloat32>\n%p ="""),
        # Other functions and slopes, a power that falls, more than the tile in the exponent.
        with_line("w", f'arith.math [%d] {{function = "sin"}} : {TILE2}'),
        with_line("w", f'arith.math [%d] {{function = "exp"}} : {TILE2}'),
        with_line("es", f"arith.mul %e, %c0.5 : {ROW}"), with_line("xs", f"arith.mul %x, %c0.5 : {TILE2}"),
        with_line("xs", f"arith.mul %y, %c0.25 : {TILE2}"), with_line("xs", f"arith.mul %x, %x : {TILE2}"),
        with_line("d", f"arith.sub %nt, %xs : {TILE2}"), with_line("d", f"arith.add %xs, %nt : {TILE2}"),
        through("xs", f"%v = arith.add %xs, %y : {TILE2}", "d"),
        with_line("e", f"arith.add %m, %n : {ROW}"), with_line("e", f"arith.sub %n, %m : {ROW}"),
        STEP.replace("%es = arith.mul %e,", f"%v = arith.add %e, %m : {ROW}\n%es = arith.mul %v,"),
        STEP.replace("%es = arith.mul %e,", f"%v = arith.add %e, %c1.0 : {ROW}\n%es = arith.mul %v,"),
        # The sum is not scaled, scaled twice, or scaled by itself.
        with_line("t", f"arith.mul %s, %c0.5 : {ROW}"), with_line("u", f"arith.mul %t, %r : {ROW}"),
        with_line("t", f"arith.mul %r, %r : {ROW}"),
        with_line("u", f"arith.add %t, %n : {ROW}"), with_line("u", f"arith.add %s, %p : {ROW}"),
        with_line("u", f"arith.max %t, %p : {ROW}"),
    ],
)  # fmt: skip
def test_steps_that_must_rescale_at_once(step: str) -> None:
    assert not rescales(step)


def test_multiples_are_the_same_up_to_a_number() -> None:
    a, b, x = (Value(INT32, Region(), name) for name in "abx")
    one = _Multiple(x, 2.0, frozenset({a}))
    assert one.is_close(_Multiple(x, 1.0, frozenset({a})), 2.0) and one.is_close(_Multiple(b, 4.0, frozenset({a})), 0.5)
    assert not one.is_close(_Multiple(x, 1.0, frozenset({a})), 1.0)
    assert not any(one.is_close(_Multiple(x, 1.0, frozenset(each)), 2.0) for each in ((), (b,), (a, b)))


def test_loops_rescale_alike_or_not_at_all() -> None:
    twice = STEP.replace("%c0.25", "%c0.5")
    assert rescales(twice) and rescales(twice, twice) and rescales(STEP, STEP)
    assert not rescales(STEP, twice) and not rescales(STEP, STEP.replace("exp2", "exp"))


def test_what_else_a_loop_carries() -> None:
    assert rescales(STEP, carried={"s": "u", "m": "n"})
    assert rescales(STEP, carried={**CARRIED, "a": "g"}) and rescales(STEP, carried={**CARRIED, "a": "p"})
    assert not rescales(STEP, carried={"m": "n", "s": "n"}) and not rescales(STEP, carried={"m": "m", "s": "u"})
    assert not rescales(STEP, carried={"m": "n", "s": "g"}) and not rescales(STEP, carried={**CARRIED, "a": "m"})
    # There is no sum, or one that is none of rows; the sum, or all of it, is narrow; what is read but not handed on.
    assert not rescales("".join(STEP.splitlines(True)[:2]), carried={"m": "n"})
    columns = STEP + '%a1 = tensor.reduce %w {kind = "sum", axis = 0} : tensor<8xfloat32>\n'
    assert not rescales(columns, carried={**CARRIED, "a": "a1"}, a="tensor<8xfloat32>")
    scaled = f"%rh = arith.cast %r : {HALF}\n%th = arith.mul %a, %rh : {HALF}\n"
    assert not rescales(STEP + scaled, carried={**CARRIED, "a": "th"}, a=HALF)
    assert not rescales(NARROW, m=HALF)
    assert not rescales(STEP + "tile.store %w, %A[%i, %j]\n")
    assert not rescales(THRICE + "%ar = tensor.reshape %a : tensor<4x1xfloat32>\ntile.store %ar, %A[%i, %c0]\n")
    flat = "".join(line for line in STEP.splitlines(True) if line[1] in "gnxdwp").replace("%c0.25", "%c0.0")
    assert not rescales(flat, carried={"m": "n", "s": "p"})  # the maximum is in no exponent
    assert rescales(flat.replace("%c0.0", "%c0.25"), carried={"m": "n", "s": "p"})
    only_rescaled = f"""%g = arith.mul %m, %c0.5 : {ROW}\n%n = arith.max %m, %g : {ROW}\n%e = arith.sub %m, %n : {ROW}
      %r = arith.math [%e] {{function = "exp2"}} : {ROW}\n%u = arith.mul %s, %r : {ROW}\n"""
    assert not rescales(only_rescaled)


@pytest.mark.parametrize(
    ("value", "rows", "shape"),
    [
        ((4,), (4,), (4,)), ((4, 8), (), ()), ((4, 8), (4,), (4, 1)), ((4, 8), (4, 1), (4, 1)), ((4, 1), (4,), (4, 1)),
        ((4,), (4, 1), (4,)), ((4, 8, 2), (4,), None), ((8, 4), (4,), None), ((4, 8), (4, 8), (4, 8)),
        ((4, 8), (4, 2), None), ((), (4,), None), ((8,), (4,), None),
    ],
)  # fmt: skip
def test_the_shape_of_one_number_for_each_row(
    value: tuple[int, ...], rows: tuple[int, ...], shape: tuple[int, ...] | None
) -> None:
    made = Region([with_shape(value, "float32"), with_shape(rows, "float32")])
    assert _row_shape(*made.args) == shape


RESCALED = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%a = tile.load %A[%i, %j] : tensor<16x16xfloat32>
%flat = tensor.iota {axis = 0} : tensor<16xint32>
%rows = tile.load %A[%flat, %c0] : tensor<16xfloat32>
%zero = arith.constant {value = 0.0} : tensor<16x16xfloat32>
%sums = scf.for %c0, %s, %c1[%zero] : tensor<16x16xfloat32> (%k: int32, %acc: tensor<16x16xfloat32>) {
  %column = tensor.reshape %rows : tensor<16x1xfloat32>
  %factor = tensor.broadcast %column : tensor<16x16xfloat32>
  %old = arith.mul %acc, %factor : tensor<16x16xfloat32>
  %new = tensor.dot %a, %a, %old : tensor<16x16xfloat32>
  scf.yield [%new]
}
tile.store %sums, %A[%i, %j]
"""


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "factor"),
    [
        ("", "", "rows"),
        ("mul %acc, %factor", "mul %factor, %acc", "rows"),
        ("mul %acc, %factor", "mul %acc, %column", "rows"),
        ("%column = tensor.reshape %rows :", "%column = arith.cast %i :", "column"),
        ("mul %acc, %factor", "mul %acc, %f", ""),  # one for all rows
        ("mul %acc, %factor", "mul %acc, %j2", ""),  # one for each column
        ("mul %acc, %factor", "mul %acc, %a", ""),
        ("mul %acc, %factor", "mul %acc, %acc", ""),
        ("mul %acc, %factor", "add %acc, %factor", ""),
        ("mul %acc, %factor", "mul %a, %factor", ""),
        ("tensor.dot %a, %a, %old", "tensor.dot %a, %old, %zero", ""),
        ("tensor.dot %a, %a, %old", "arith.add %a, %old", ""),
        ("scf.yield", "tile.print [%old]\nscf.yield", ""),  # it is used twice
        ("scf.yield", "tile.print [%acc]\nscf.yield", ""),
    ],
)
def test_multiplications_of_accumulators_by_rows_are_named(before: str, after: str, factor: str, skip: bool) -> None:
    assert before in RESCALED
    text = RESCALED.replace(before, after) if before else RESCALED
    made = program(text.replace("%sums =", "%j2 = arith.cast %j : tensor<1x16xfloat32>\n%sums ="))
    loops = of_kinds(kernel_of(made).walk(), scf.ForOp)
    name_rescaling(loops, skip)
    verify(made.root)
    named = of_kinds(loops[0].body, gluon.RescaleOp)
    found = [(op.operands[0].name, op.operands[1].name, op.skip, op.result.name) for op in named]
    assert found == ([("acc", factor, skip, "old")] if factor else [])
    products = [op.name for op in loops[0].body if op.name.startswith("arith.mul") or op.name == "gluon.rescale"]
    assert products == ["gluon.rescale"] if factor else "gluon.rescale" not in products
