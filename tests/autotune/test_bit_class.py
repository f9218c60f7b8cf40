"""What the static signature of a program counts, and what it leaves out: pairs of programs that round alike or not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.autotuner.verifying.bit_class import _advance, _Reader, _trips
from tiledsl.dialects import scf, tile
from tiledsl.ir.kinds import of_kinds

TILE, ROW = "tensor<16x16xfloat32>", "tensor<16xfloat32>"
HEAD = f"""
%i = tensor.iota {{axis = 0}} : tensor<16x1xint32> %j = tensor.iota {{axis = 1}} : tensor<1x16xint32>
%r = tensor.iota {{axis = 0}} : tensor<16xint32> %z = arith.constant {{value = 0.0}} : {TILE}
%x = tile.load %A[%i, %j] : {TILE}
"""
PUT = "tile.store %v, %B[%i, %j]"
PUT_ROW = "tile.store %v, %B[%r, %c0]"


def signature(body: str, simulated: bool = False) -> Any:
    root = program(HEAD + body).root
    reader = _Reader(is_simulated=simulated)
    (kernel,) = of_kinds(list(root.walk()), tile.KernelOp)
    return reader.kernel(kernel)


def doubled(form: str) -> str:
    return f"%v = arith.{form} : {TILE} {PUT}"


def narrowed(dtype: str) -> str:
    return f"%h = arith.cast %x : tensor<16x16x{dtype}> %v = arith.cast %h : {TILE} {PUT}"


def summed(kind: str = "sum", axis: int = 1, source: str = "%x") -> str:
    return f'%v = tensor.reduce {source} {{kind = "{kind}", axis = {axis}}} : {ROW} {PUT_ROW}'


def summed_at(row: str, column: str) -> str:
    """A sum of elements that are read at these places."""
    return f"""%t = arith.mul %bx, %c16 : int32 %u = arith.mul %bx, %c32 : int32 %d = arith.mul %bx, %bx : int32
        %late = arith.add %i, %t : tensor<16x1xint32> %later = arith.add %i, %u : tensor<16x1xint32>
        %host = arith.add %i, %s : tensor<16x1xint32> %odd = arith.add %i, %d : tensor<16x1xint32>
        %apart = arith.mul %i, %c2 : tensor<16x1xint32> %skipping = arith.mul %j, %c2 : tensor<1x16xint32>
        %thrice = arith.mul %j, %c3 : tensor<1x16xint32> %wide = arith.cast %j : tensor<1x16xint64>
        %y = tile.load %A[{row}, {column}] : {TILE} {summed(source="%y")}"""


def product(options: str = "", second: str = "%x", before: str = "") -> str:
    return f"{before} %v = tensor.dot %x, {second}, %z {options} : {TILE} {PUT}"


def loop(body: str, bounds: str = "%c0, %c4, %c1", start: str = "%z") -> str:
    return f"""%v = scf.for {bounds}[{start}] : {TILE} (%k: int32, %acc: {TILE}) {{ {body} scf.yield [%n] }} {PUT}"""


def chain(step: str = "%c16", bounds: str = "%c0, %c4, %c1", second: str = "", total: str = "%n") -> str:
    """acc += A[., k] @ A[k, .]"""
    return loop(
        f"""%o = arith.mul %k, {step} : int32 %q = arith.add %j, %o : tensor<1x16xint32>
        %a = tile.load %A[%i, %q] : {TILE} {second} %n = tensor.dot %a, %x, %acc : {TILE}""",
        bounds,
    )


def branch(condition: str, then: str, orelse: str) -> str:
    return f"""%c = arith.cmp {condition} {{predicate = "lt"}} : bool
        %v = scf.if %c : {TILE} {{ %p = arith.{then} : {TILE} scf.yield [%p] }}
                                {{ %q = arith.{orelse} : {TILE} scf.yield [%q] }} {PUT}"""


def masked(number: str) -> str:
    return (
        f"""%m = arith.cmp %x, {number} {{predicate = "lt"}} : tensor<16x16xbool> tile.store %x, %B[%i, %j] mask=%m"""
    )


def whole(form: str) -> str:
    return f"%n = arith.{form} : int32 tile.store %n, %N[%bx]"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (whole("add %s, %c1"), whole("mul %s, %bx")),  # whole numbers are exact
        (summed_at("%i", "%j"), summed_at("%late", "%j")),  # where a tile begins does not count
        (summed_at("%late", "%j"), summed_at("%later", "%j")),
        (summed_at("%late", "%j"), summed_at("%odd", "%j")),
        (summed_at("%i", "%j"), summed_at("%host", "%j")),
        (summed_at("%i", "%j"), summed_at("%i", "%wide")),
        (summed("sum", 0), summed("sum", 1)),  # of tiles as large
        (chain(bounds="%c0, %c6, %c1"), chain(bounds="%c0, %c7, %c1")),  # beyond A's 96 columns are zeros
        (PUT.replace("%v", "%x"), "%g = arith.add %i, %bx : tensor<16x1xint32> tile.store %x, %B[%g, %j]"),
    ],
)
def test_programs_that_round_alike(one: str, other: str) -> None:
    assert signature(one) == signature(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (doubled("add %x, %x"), doubled("mul %x, %x")),
        (doubled("mul %x, %c0.5"), doubled("mul %x, %c0.25")),
        (doubled("sub %x, %f"), doubled("sub %f, %x")),
        (narrowed("float16"), narrowed("bfloat16")),
        (narrowed("float16"), PUT.replace("%v", "%x")),
        (summed("sum"), summed("max")),
        (summed_at("%i", "%j"), summed_at("%apart", "%j")),
        (summed_at("%i", "%j"), summed_at("%i", "%skipping")),
        (summed_at("%i", "%thrice"), summed_at("%i", "%skipping")),
        (product(), product('{precision = "ieee"}')),
        (product(), product(second="%y", before=f"%y = arith.neg %x : {TILE}")),
        (product(), doubled("mul %x, %x")),
        (branch("%s, %c3", "add %x, %x", "mul %x, %x"), branch("%s, %c3", "mul %x, %x", "add %x, %x")),
        (branch("%f, %c3.0", "add %x, %x", "mul %x, %x"), branch("%f, %c2.0", "add %x, %x", "mul %x, %x")),
        (masked("%c1.0"), masked("%c2.0")),
        (masked("%c1.0"), PUT.replace("%v", "%x")),
        (PUT.replace("%v", "%x"), PUT.replace("%v", "%x").replace("%B", "%A")),
        (chain(), chain(step="%c32")),  # each other tile
        (chain(), chain(bounds="%c1, %c4, %c1")),
        (chain(), chain(bounds="%c0, %c4, %c2")),
        (chain(), chain(bounds="%c0, %c3, %c1")),
        (loop(f"%n = arith.add %acc, %x : {TILE}"), loop(f"%n = arith.add %acc, %x : {TILE}", "%c0, %c5, %c1")),
        (loop(f"%n = arith.add %acc, %x : {TILE}"), loop(f"%n = arith.add %acc, %x : {TILE}", start="%x")),
        (loop(f"%n = arith.add %acc, %x : {TILE}"), loop(f"%n = arith.sub %acc, %x : {TILE}")),
    ],
)
def test_programs_that_do_not(one: str, other: str) -> None:
    assert signature(one) == signature(one) != signature(other)


def test_numpy_computes_tiles_as_a_whole() -> None:
    """Products of all extents, and sums along a dimension that is not the last one, whose lines it adds at once."""
    assert signature(summed("sum", 0), True) != signature(summed("sum", 1), True)
    assert signature(summed("max", 0), True) == signature(summed("max", 0))
    assert signature(summed("sum", 1), True) == signature(summed("sum", 1))
    assert signature(product(), True) != signature(product())
    assert signature(chain(), True) != signature(chain())


@pytest.mark.parametrize(
    ("bounds", "trips"), [("%c0, %c4, %c1", [0, 4, 1]), ("%c2, %c8, %c3", [2, 8, 3]), ("%c0, %s, %c1", "dynamic")]
)
def test_how_often_a_loop_runs(bounds: str, trips: Any) -> None:
    (found,) = of_kinds(list(program(f"scf.for {bounds} (%k: int32) {{ scf.yield }}").root.walk()), scf.ForOp)
    assert _trips(found) == trips


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("arith.add %k, %bx : int32", (1, 1)),
        ("arith.mul %k, %c16 : int32", (16, 1)),
        ("arith.mul %c16, %k : int32", (16, 1)),
        ("arith.mul %k, %k : int32", None),
        ("arith.mul %k, %s : int32", None),
        ("arith.add %k, %k : int32", None),
        ("arith.sub %k, %bx : int32", None),
        ("arith.add %bx, %s : int32", (0, 1)),
        ("tensor.iota {axis = 0} : tensor<8xint32>", (0, 8)),
        ("arith.add %i, %k : tensor<16xint32>", (1, 16)),
        ("arith.add %i, %i : tensor<16xint32>", None),
        ("arith.mul %i, %c2 : tensor<16xint32>", None),
        ("arith.cast %k : int64", (1, 1)),
        ("tensor.broadcast %k : tensor<16xint32>", (1, 1)),
        ("tensor.reshape %i : tensor<16x1xint32>", (0, 16)),
    ],
)
def test_how_an_index_advances(value: str, found: tuple[int, int] | None) -> None:
    body = f"""scf.for %c0, %c4, %c1 (%k: int32) {{
      %i = tensor.iota {{axis = 0}} : tensor<16xint32> %v = {value} scf.yield }}"""
    ops = list(kernel_of(program(body)).walk())
    (made,) = [op.results[0] for op in ops if op.results and op.results[0].name == "v"]
    (around,) = of_kinds(ops, scf.ForOp)
    assert _advance(made, around.index) == found
