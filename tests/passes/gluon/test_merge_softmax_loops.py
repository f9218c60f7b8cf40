"""merge-softmax-loops and row-arithmetic: what becomes of attention's loops, and that it means the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tiledsl
from tests.passes.ir_cases import kernel, program
from tests.support.example_modules import load_example
from tests.support.executor import run
from tests.support.programs import inputs_for
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.printer import print_op
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.ir.verifier import verify
from tiledsl.passes.gluon.lazy_rescale import rescale_lazily
from tiledsl.passes.gluon.merge_softmax_loops import merge_softmax_loops
from tiledsl.passes.gluon.row_arithmetic import compare_columns, divide_rows_once, multiply_rows_once

SHAPES: dict[str, dict[str, Any]] = {
    "causal": {"queries": 48, "keys": 48, "causal": True},
    "ragged": {"queries": 20, "keys": 41, "causal": True},
    "window": {"queries": 64, "keys": 64, "causal": True, "window": 20},
    "more queries": {"queries": 40, "keys": 24, "causal": True},
}


def attention(**shape: Any) -> tile.FuncOp:
    """The attention example as select-emitter sees it."""
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "dim": 16, "block_M": 16, "block_N": 8, **shape}
    compiled = tiledsl.jit(load_example("attention").attention.function, target="interpret").compile(**sizes)
    root = parse_program(compiled.ir("select-emitter")).root
    assert isinstance(root, tile.FuncOp)
    return root


def kernel_of(root: tile.FuncOp) -> tile.KernelOp:
    return next(op for op in root.body if isinstance(op, tile.KernelOp))


def loops_of(root: tile.FuncOp) -> list[scf.ForOp]:
    return [op for op in kernel_of(root).body if isinstance(op, scf.ForOp)]


def results(root: tile.FuncOp, queries: int, keys: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    q = random.standard_normal((1, 2, queries, 16)).astype(np.float16)
    k, v = (random.standard_normal((1, 1, keys, 16)).astype(np.float16) for _ in range(2))
    outputs = [np.full(q.shape, np.nan, np.float16), np.full(q.shape[:3], np.nan, np.float32)]
    run(root, [q, k, v, *outputs])
    return [each.astype(np.float32) for each in outputs]


@pytest.mark.parametrize("name", SHAPES)
def test_loops_of_attention_become_one(name: str) -> None:
    shape = SHAPES[name]
    root = attention(**shape)
    expected = results(root, shape["queries"], shape["keys"])
    before = loops_of(root)
    assert len(before) == (3 if "window" in shape else 2)
    differences = [isinstance(op, arith.SubOp) for op in kernel_of(root).body].count(True)
    assert merge_softmax_loops(before)
    made = [isinstance(op, arith.SubOp) for op in kernel_of(root).body].count(True)
    assert made - differences == (3 if "window" in shape else 0)  # what one loop has, the next one begins with
    verify(root)
    (loop,) = loops_of(root)
    assert [type(op) for op in loop.body].count(scf.IfOp) == 1
    for got, want in zip(results(root, shape["queries"], shape["keys"]), expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("window", [0, 44])
def test_loops_that_do_not_go_on_where_the_last_one_ends(window: int, shift: int) -> None:
    shape = {"queries": 64, "keys": 64, "causal": True, "window": window}
    root = attention(**shape)
    for loop in loops_of(root)[1:]:
        at = Builder.at(loop)
        loop.set_field("lower", [at.insert(arith.AddOp(loop.lower, at.constant(shift, INT32))).result])
    expected = results(root, shape["queries"], shape["keys"])
    assert merge_softmax_loops(loops_of(root))
    verify(root)
    assert len(loops_of(root)) == 1
    for got, want in zip(results(root, shape["queries"], shape["keys"]), expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("lower", [0, 1, 2, 4])
def test_a_first_loop_that_does_not_begin_at_0(lower: int) -> None:
    """It has no iterations in blocks where it would end before it begins, and only there that must be asked."""
    root = attention(queries=64, keys=64, causal=True)
    loops = loops_of(root)
    at = Builder.at(loops[0])
    loops[0].set_field("lower", [at.constant(lower, INT32)])
    expected = results(root, 64, 64)
    maxima = [isinstance(op, arith.MaxOp) for op in kernel_of(root).body].count(True)
    assert merge_softmax_loops(loops)
    verify(root)
    made = [isinstance(op, arith.MaxOp) for op in kernel_of(root).body].count(True)
    assert made - maxima == (1 if lower == 0 else 2)  # one for the second loop
    for got, want in zip(results(root, 64, 64), expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", SHAPES)
def test_columns_are_compared_with_what_is_alike_in_a_row(name: str) -> None:
    shape = SHAPES[name]
    root = attention(**shape)
    expected = results(root, shape["queries"], shape["keys"])
    compare_columns(kernel_of(root).walk())
    verify(root)
    compared = [op for op in kernel_of(root).walk() if isinstance(op, arith.CmpOp) and len(op.out.shape) == 2]
    assert compared
    for op in compared:
        assert op.lhs.op is not None and op.lhs.op.name == "tensor.iota", print_op(op)
        assert op.rhs.shape in ((), (16, 1)), print_op(op)
    for got, want in zip(results(root, shape["queries"], shape["keys"]), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_one_division_for_a_row() -> None:
    root = attention(queries=48, keys=48)
    expected = results(root, 48, 48)
    divide_rows_once(kernel_of(root).walk())
    verify(root)
    divided = [op.result.shape for op in kernel_of(root).walk() if isinstance(op, arith.DivOp)]
    assert (16, 16) not in divided and (16, 1) in divided
    for got, want in zip(results(root, 48, 48), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3)  # two roundings instead of one, then float16


def test_one_multiplication_for_an_element() -> None:
    root = attention(queries=48, keys=48)
    expected = results(root, 48, 48)
    assert rescale_lazily(loops_of(root))
    divide_rows_once(kernel_of(root).body)

    def multiplied() -> list[tuple[int, ...]]:
        return [op.result.shape for op in kernel_of(root).body if isinstance(op, arith.MulOp) and op.result.shape]

    assert multiplied().count((16, 16)) == 2
    multiply_rows_once(kernel_of(root).body)
    verify(root)
    assert multiplied().count((16, 16)) == 1 and multiplied().count((16, 1)) == 1
    for got, want in zip(results(root, 48, 48), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-3)  # the weights are rounded to float16 elsewhere


def test_loops_that_differ_in_more_stay() -> None:
    root = attention(queries=48, keys=48, causal=True)
    loops = loops_of(root)
    scaled = next(op for op in loops[1].body if isinstance(op, arith.MathOp))
    scaled.set_attribute("function", "exp")
    assert not merge_softmax_loops(loops)
    assert len(loops_of(root)) == 2


PLAIN = "%p = arith.cast %y : float16"


@pytest.mark.parametrize(
    ("plain", "other", "merged"),
    [
        (PLAIN, f"{PLAIN} %q = arith.add %p, %h : float16", True),
        (PLAIN, f"{PLAIN} %q = arith.neg %p : float16", True),
        (PLAIN, f"%z = arith.neg %y : float32 {PLAIN} %u = arith.cast %z : float16 %q = arith.add %p, %u : float16",
         True),
        (PLAIN, f"{PLAIN} %q = arith.cast %y : bfloat16", False),  # of another type
        (PLAIN, "%z = arith.neg %y : float32 %q = arith.cast %z : float16", True),  # %z for %y
        (PLAIN, "%q = arith.cast %f : float16", True),  # %f for %y, from outside of the loops
        (PLAIN, "%z = arith.cast %f : bfloat16 %q = arith.cast %z : float16", False),  # of another type
        (PLAIN, "%z = tile.load %A[%c1, %i] : float32 %q = arith.cast %z : float16", False),  # %c1 for %c0
        ("", f"{PLAIN} %q = arith.neg %p : float16", False),  # no value of the plain body
        ("", "%s2 = arith.mul %acc, %c2.0 : float32", False),
        (PLAIN, f"{PLAIN} %q = arith.neg %p : float16 %s2 = arith.mul %acc, %c2.0 : float32", False),  # two differences
    ],
)  # fmt: skip
def test_loops_merge_where_the_plain_value_stands_in_both(plain: str, other: str, merged: bool) -> None:
    def loop(name: str, start: str, body: str) -> str:
        used = next((each for each in ("%q", "%p") if f"{each} = " in body), "%h")
        total = "%s2" if "%s2" in body else "%acc"
        return f"""%{name} = scf.for %c0, %c4, %c1[{start}] : float32 (%i: int32, %acc: float32) {{
            %y = tile.load %A[%c0, %i] : float32 {body}
            %w = arith.cast {used} : float32 %n = arith.add {total}, %w : float32 scf.yield [%n] }}"""

    made = program(f"""%h = arith.cast %f : float16
        {loop("a", "%c0.5", plain)} {loop("b", "%a", other)} tile.store %b, %B[%c0, %c0]""").root
    assert isinstance(made, tile.FuncOp)
    inputs = inputs_for(made)
    before = [each.copy() for each in inputs]
    run(made, before)
    assert merge_softmax_loops(loops_of(made)) is merged
    assert len(loops_of(made)) == (1 if merged else 2)
    verify(made)
    run(made, inputs)
    for got, want in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(got, want)


def test_one_loop_stays() -> None:
    root = attention(queries=48, keys=48)
    assert len(loops_of(root)) == 1
    assert not merge_softmax_loops(loops_of(root))


def test_an_index_that_only_the_other_loop_uses() -> None:
    """Both sum what lies at a carried place; the second adds its index to each."""
    loop = """%n{0}, %sum{0} = scf.for {1}, %c1[{2}, {3}] : int32, float32 (%k: int32, %at: int32, %old: float32) {{
      %x = tile.load %A[%at, %c0] : float32
      %next = arith.add %at, %c2 : int32
      {4}
      %new = arith.add %old, {5} : float32
      scf.yield [%next, %new]
    }}"""
    own = "%f = arith.cast %k : float32\n%more = arith.add %x, %f : float32"
    body = "\n".join([
        loop.format(1, "%c0, %c3", "%c0", "%c0.5", "", "%x"),
        loop.format(2, "%c3, %c8", "%n1", "%sum1", own, "%more"),
        "tile.store %sum2, %B[%c0, %c0]",
    ])  # fmt: skip
    root = kernel("A: 64*96*float32, B: 64*96*float32", body)
    a, b = np.random.default_rng(0).random((2, 64, 96), np.float32)
    assert merge_softmax_loops(loops_of(root))
    verify(root)
    run(root, [a, b])
    np.testing.assert_allclose(b[0, 0], 0.5 + a[0:16:2, 0].sum() + sum(range(3, 8)), rtol=1e-5)


CHAIN = """%sum{0} = scf.for {1}, %c1[{2}] : float32 (%k: int32, %old: float32) {{
  %at = arith.cast %k : float32
  %u = arith.add %f, %c0.5 : float32
  {3}
  %z = arith.mul %y, %u : float32
  %new = arith.add %old, %z : float32
  scf.yield [%new]
}}"""


@pytest.mark.parametrize(
    ("before", "plain", "other", "merged"),
    [
        ("", "%y = arith.add %at, %u : float32", "%y = arith.add %at, %c2.0 : float32", True),
        ("", "%y = arith.add %at, %u : float32",
         "%w = arith.mul %at, %u : float32\n%y = arith.add %at, %w : float32", True),
        # What the other one takes, or the plain one, is computed outside of the loops.
        ("%o = arith.add %g, %c0.5 : float32",
         "%y = arith.add %at, %u : float32", "%y = arith.add %at, %o : float32", True),
        ("%h = arith.mul %g, %g : float32\n%o = arith.add %h, %c0.5 : float32",
         "%x = arith.mul %at, %h : float32\n%y = arith.add %x, %o : float32",
         "%x = arith.mul %at, %h : float32\n%n = arith.sub %at, %x : float32\n%w = arith.add %n, %c0.5 : float32\n"
         "%y = arith.add %x, %w : float32", False),
        # The other loop does not compute what it would choose in the plain one's place, or not of that type.
        ("", "%y = arith.mul %at, %at : float32", "%y = arith.sub %at, %u : float32", False),
        ("", "%i = arith.cast %at : int32\n%a = arith.add %i, %s : int32\n%y = arith.cast %i : float32",
         "%i = arith.cast %at : int32\n%a = arith.add %i, %s : int32\n%l = arith.cast %at : int64\n"
         "%y = arith.cast %l : float32", False),
        # It needs what comes behind the first of two uses; or in front of both.
        ("", "%v = arith.mul %at, %at : float32\n%x = arith.add %v, %u : float32\n%n = arith.sub %at, %u : float32\n"
         "%t = arith.mul %n, %v : float32\n%y = arith.add %x, %t : float32",
         "%v = arith.mul %at, %at : float32\n%n = arith.sub %at, %u : float32\n%w = arith.add %v, %n : float32\n"
         "%x = arith.add %w, %u : float32\n%t = arith.mul %n, %w : float32\n%y = arith.add %x, %t : float32", False),
        ("", "%v = arith.mul %at, %at : float32\n%n = arith.sub %at, %u : float32\n%x = arith.add %v, %u : float32\n"
         "%t = arith.mul %n, %v : float32\n%y = arith.add %x, %t : float32",
         "%v = arith.mul %at, %at : float32\n%n = arith.sub %at, %u : float32\n%w = arith.add %v, %n : float32\n"
         "%x = arith.add %w, %u : float32\n%t = arith.mul %n, %w : float32\n%y = arith.add %x, %t : float32", True),
        # Two differences, of which one is inside of branches.
        ("%is = arith.cmp %f, %g {predicate = \"lt\"} : bool",
         "%x = scf.if %is : float32 { scf.yield [%at] } { scf.yield [%u] }\n%y = arith.mul %x, %u : float32",
         "%x = scf.if %is : float32 { scf.yield [%u] } { scf.yield [%at] }\n%y = arith.mul %x, %c2.0 : float32", False),
        # Two differences.
        ("", "%x = arith.add %at, %u : float32\n%y = arith.mul %x, %f : float32",
         "%x = arith.add %at, %g : float32\n%y = arith.mul %x, %g : float32", False),
    ],
)  # fmt: skip
def test_what_the_loops_differ_in(before: str, plain: str, other: str, merged: bool) -> None:
    body = "\n".join([
        before,
        CHAIN.format(1, "%c0, %c3", "%c0.5", plain),
        CHAIN.format(2, "%c3, %c8", "%sum1", other),
        "tile.store %sum2, %B[%c0]",
    ])  # fmt: skip
    root = kernel("A: 4*float32, B: 4*float32, f: float32, g: float32, s: int32", body)
    given = [np.zeros(4, np.float32), 1.5, -2.25, 3]
    expected, found = np.zeros(4, np.float32), np.zeros(4, np.float32)
    run(root, [given[0], expected, *given[1:]])
    assert merge_softmax_loops(loops_of(root)) is merged
    verify(root)
    run(root, [given[0], found, *given[1:]])
    assert expected.any()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("differ", ["one", "two", "last", "both", "first"])
@pytest.mark.parametrize(
    "bounds",
    [
        "%b0 %b1 %b2 %b3 %b4 %b5", "%b0 %b1 %b1 %b3 %b3 %b5", "%c0 %b1 %b1 %b3 %b3 %b5", "%c0 %c3 %c3 %c5 %c5 %c8",
        "%c0 %b1 %b2 %b3 %b3 %b5", "%c0 %c2 %c1 %c5 %b3 %c8",
    ],
)  # fmt: skip
def test_loops_of_any_bounds_run_one_after_the_other(bounds: str, differ: str) -> None:
    """Also those that do not run at all, or begin before the last one ended."""
    others = {"one": (1,), "two": (1, 2), "last": (2,), "both": (0, 2), "first": (0,)}[differ]
    ends, loops = bounds.split(), []
    for number in range(3):
        body = f"%y = arith.add %at, {'%c2.0' if number in others else '%u'} : float32"
        start = f"%sum{number}" if number else "%c0.5"
        loops.append(CHAIN.format(number + 1, ", ".join(ends[2 * number : 2 * number + 2]), start, body))
    body = "\n".join([*loops, "tile.store %sum3, %B[%c0]"])
    numbers = ", ".join(f"b{number}: int32" for number in range(6))
    for given in ((0, 2, 2, 4, 4, 5), (1, 3, 5, 6, 2, 4), (3, 1, 4, 2, 0, 2), (0, -2, 1, 3, 5, 4), (-2, 0, 0, 0, 0, 3)):
        root = kernel(f"A: 4*float32, B: 4*float32, f: float32, g: float32, {numbers}", body)
        expected, found = np.zeros(4, np.float32), np.zeros(4, np.float32)
        run(root, [expected, expected, 1.5, -2.25, *given])
        assert merge_softmax_loops(loops_of(root))
        verify(root)
        run(root, [found, found, 1.5, -2.25, *given])
        np.testing.assert_array_equal(found, expected)
