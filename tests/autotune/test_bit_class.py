"""What the static signature of a program counts, and what it leaves out: pairs of programs that round alike or not."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.autotune.kernels import gemm
from tests.passes.ir_cases import kernel_of, program
from tiledsl.autotuner.verifying import where
from tiledsl.autotuner.verifying.bit_class import _advance, _bounds, _Reader, _shapes, _strip, program_class
from tiledsl.autotuner.verifying.where import in_tiles, tile_at, tiles_of
from tiledsl.dialects import scf, tile
from tiledsl.digests import short_digest
from tiledsl.ir.kinds import of_kinds
from tiledsl.runtime.target import Target

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


TURN = "arith.floormod %k, %c4"
CHOSEN = """%t = arith.cmp %s, %c1 {{predicate = "lt"}} : bool %l = arith.sub %c3, %k : int32
    %q = scf.if %t : int32 {{ scf.yield [{}] }} {{ scf.yield [{}] }}"""


def added(kind: str, total: str) -> str:
    return f"%n = tensor.dot %a, %x, {total} : {TILE}" if kind == "dot" else f"%n = arith.add {total}, %a : {TILE}"


def turned(which: str, value: str = "%q", kind: str = "add", bounds: str = "%c0, %c4, %c1") -> str:
    """Tiles that come in the order which %q says."""
    return loop(
        f"""{which} %o = arith.mul {value}, %c16 : int32 %w = arith.add %j, %o : tensor<1x16xint32>
        %a = tile.load %A[%i, %w] : {TILE} {added(kind, "%acc")}""",
        bounds,
    )


def walk(kind: str, start: str, how: str) -> str:
    """A loop that carries the place to load from."""
    return f"""%v, %last = scf.for %c0, %c4, %c1[%z, {start}] : {TILE}, int32 (%k: int32, %acc: {TILE}, %at: int32) {{
      %q = arith.add %j, %at : tensor<1x16xint32> %a = tile.load %A[%i, %q] : {TILE} {added(kind, "%acc")}
      %p = arith.{how} %at, %c16 : int32 scf.yield [%n, %p] }} {PUT}"""


def walk_while(start: str, how: str, step: str = "%c16") -> str:
    return f"""%v, %last = scf.while [%z, {start}] : {TILE}, int32 (%y: {TILE}, %b: int32) {{
      %go = arith.cmp %b, %c64 {{predicate = "lt"}} : bool scf.condition %go [%y, %b] }} (%acc: {TILE}, %at: int32) {{
      %q = arith.add %j, %at : tensor<1x16xint32> %a = tile.load %A[%i, %q] : {TILE} {added("add", "%acc")}
      %p = arith.{how} %at, {step} : int32 scf.yield [%n, %p] }} {PUT}"""


def branch(condition: str, then: str, orelse: str) -> str:
    return f"""%c = arith.cmp {condition} {{predicate = "lt"}} : bool
        %v = scf.if %c : {TILE} {{ %p = arith.{then} : {TILE} scf.yield [%p] }}
                                {{ %q = arith.{orelse} : {TILE} scf.yield [%q] }} {PUT}"""


def masked(number: str) -> str:
    return (
        f"""%m = arith.cmp %x, {number} {{predicate = "lt"}} : tensor<16x16xbool> tile.store %x, %B[%i, %j] mask=%m"""
    )


def whole_product(of: str) -> str:
    """Of integers that are made of floats."""
    return f"""%w = arith.add %x, {of} : {TILE} %h = arith.cast %w : tensor<16x16xint8>
        %n = arith.constant {{value = 0}} : tensor<16x16xint32>
        %d = tensor.dot %h, %h, %n : tensor<16x16xint32> %v = arith.cast %d : {TILE} {PUT}"""


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
        *((each, each.replace("%at", "%other")) for each in (walk("add", "%c0", "add"), walk_while("%c0", "add"))),
        (chain(bounds="%c0, %c6, %c1"), chain(bounds="%c0, %c7, %c1")),  # beyond A's 96 columns are zeros
        (turned(f"%q = {TURN} : int32"), turned(f"%q = {TURN} : int32 %p = arith.add %q, %bx : int32", "%p")),
        (
            loop(f"%n = arith.add %acc, %x : {TILE}"),
            loop(f"%u = arith.add %acc, %acc : {TILE} %n = arith.add %acc, %x : {TILE}"),
        ),
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
        (whole_product("%x"), whole_product("%z")),
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
        # the same places in another order
        *((walk(each, "%c0", "add"), walk(each, "%c48", "sub")) for each in ("dot", "add")),
        (walk("add", "%c0", "add"), walk("add", "%c16", "add")),
        (walk_while("%c0", "add"), walk_while("%c48", "sub")),
        (walk_while("%c0", "add"), walk_while("%c0", "add", "%c32")),
        (turned("%q = arith.add %k, %c0 : int32"), turned("%q = arith.sub %c3, %k : int32")),
        (
            turned(f"%q = {TURN} : int32"),
            turned(f"%p = arith.add %k, %c2 : int32 %q = {TURN.replace('%k', '%p')} : int32"),
        ),
        (
            turned(f"%q = {TURN} : int32"),
            turned(f"%p = arith.add %k, %bx : int32 %q = {TURN.replace('%k', '%p')} : int32"),
        ),
        (turned(CHOSEN.format("%k", "%k")), turned(CHOSEN.format("%k", "%l"))),
        (turned(CHOSEN.format("%k", "%l")), turned(CHOSEN.format("%l", "%k"))),
        (
            turned("%q = arith.add %k, %c0 : int32", bounds="%c0, %s, %c1"),
            turned("%q = arith.add %k, %c0 : int32", bounds="%s, %c0, %c-1"),
        ),
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
    ("bounds", "trips"), [("%c0, %c4, %c1", [0, 4, 1]), ("%c2, %c8, %c3", [2, 8, 3]), ("%c0, %s, %c1", [0, None, 1])]
)
def test_how_often_a_loop_runs(bounds: str, trips: Any) -> None:
    (found,) = of_kinds(list(program(f"scf.for {bounds} (%k: int32) {{ scf.yield }}").root.walk()), scf.ForOp)
    assert _bounds(found) == trips


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


# The forms of values

X = ("load", "A#0", "float32", (), ("at",))
X_AT = ("load", "A#0", "float32", (), ("at", "tile", "tile"))
ZERO, CONSTANT = ("constant", "0.0", "float32"), ("constant", "1.0", "float32")
SUM = (("in_fours", "False"), ("kind", "'sum'"), ("propagate_nan", "False"), ("relaid", "False"))
MAX = (("in_fours", "False"), ("kind", "'max'"), ("propagate_nan", "False"), ("relaid", "False"))
INT = ("int",)
WHOLE_TILE = "tensor<16x16xint32>"
LOOPED = "%v = scf.for %c0, %c4, %c1[{}] : {} (%k: int32, %acc: {}) {{ {} scf.yield [%n] }}"


def looped(body: str, start: str = "%z", type: str = TILE) -> str:
    return LOOPED.format(start, type, type, body).replace("{{", "{").replace("}}", "}")


def read(body: str, simulated: bool = False) -> tuple[_Reader, Any, Any]:
    """What was read, with the form of %v and what was stored."""
    root = program(HEAD + body).root
    reader = _Reader(is_simulated=simulated)
    (kernel,) = of_kinds(list(root.walk()), tile.KernelOp)
    stores = reader.kernel(kernel)
    assert reader._depth == 0
    (value,) = [each for op in kernel.walk() for each in op.results if each.name == "v"] or [None]
    return reader, None if value is None else reader.form(value), stores


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (f"%v = arith.add %x, %x : {TILE}", ("arith.add", (), "float32", X, X)),
        ("%v = arith.cast %x : tensor<16x16xfloat16>", ("arith.cast", (), "float16", X)),
        (
            '%v = arith.cmp %x, %c1.0 {predicate = "lt"} : tensor<16x16xbool>',
            ("arith.cmp", (("predicate", "'lt'"),), "bool", X, CONSTANT),
        ),
        ("%v = arith.add %i, %c1 : tensor<16x1xint32>", INT),
        ("%v = arith.cast %s : float32", ("arith.cast", (), "float32", INT)),
        ("%v = arith.cast %f : int32", ("arith.cast", (), "int32", ("host", "float32"))),
        ("%v = arith.add %f, %f : float32", ("arith.add", (), "float32", ("host", "float32"), ("host", "float32"))),
        ("%v = arith.add %l, %l : int64", INT),
        ("%v = arith.constant {value = 2} : int32", INT),
        ("%v = arith.constant {value = 2.5} : float64", ("constant", "2.5", "float64")),
        ("%v = tile.load %N[%bx] : int32", INT),
        # an operation that only moves elements
        ("%v = tensor.transpose %x {permutation = (1, 0)} : tensor<16x16xfloat32>", X),
        ("%v = tensor.reshape %x : tensor<256xfloat32>", X),
        ("%v = tensor.broadcast %f : tensor<16x16xfloat32>", ("host", "float32")),
        (
            f"%p = arith.add %i, %j : {WHOLE_TILE} %v = tensor.gather %x, %p {{axis = 1}} : {TILE}",
            ("gather", 1, X, INT),
        ),
        (f"%p = arith.add %i, %j : {WHOLE_TILE} %v = tensor.gather %p, %p {{axis = 1}} : {WHOLE_TILE}", INT),
        # sums
        (f'%v = tensor.reduce %x {{kind = "sum", axis = 0}} : {ROW}', ("tensor.reduce", SUM, 16, X_AT)),
        (f'%v = tensor.reduce %x {{kind = "max", axis = 1}} : {ROW}', ("tensor.reduce", MAX, 16, X_AT)),
        (
            f'%p = arith.add %i, %j : {WHOLE_TILE} %v = tensor.reduce %p {{kind = "sum", axis = 1}} : tensor<16xint32>',
            INT,
        ),
        (f"%v = tensor.dot %x, %x, %z : {TILE}", ("dot", "default", "float32", (16,), X_AT, X_AT, ZERO)),
        (
            f"%p = arith.add %i, %j : {WHOLE_TILE} %q = arith.cast %p : tensor<16x16xint8> %v = tensor.dot %q, %q, "
            f"%p : {WHOLE_TILE}",
            INT,
        ),
        # what was stored before, by the same kernel
        (
            f"tile.store %z, %A[%i, %j] %v = tile.load %A[%i, %j] : {TILE}",
            ("load", "A#0", "float32", ((), "dd8bf7d8"), ("at",)),
        ),
        (
            '%o = tile.atomic %s, %N[%bx] {kind = "add"} : int32 %v = tile.load %N[%bx] : int32',
            ("load", "N#1", "int32", ((), ("atomic", "add", INT)), ("at", "tile")),
        ),
        ('%v = tile.atomic %s, %N[%bx] {kind = "add"} : int32', INT),
        ('%v = tile.atomic %f, %A[%bx, %bx] {kind = "max"} : float32', ("atomic", "max", ("host", "float32"))),
        # branches and loops
        (
            branch("%s, %c3", "add %x, %x", "mul %x, %x"),
            ("if", INT, ("arith.add", (), "float32", X, X), ("arith.mul", (), "float32", X, X)),
        ),
        (
            branch("%f, %c1.0", "add %x, %x", "mul %x, %x"),
            (
                "if",
                ("arith.cmp", (("predicate", "'lt'"),), "bool", ("host", "float32"), CONSTANT),
                ("arith.add", (), "float32", X, X),
                ("arith.mul", (), "float32", X, X),
            ),
        ),
        (
            looped(f"%n = arith.add %acc, %x : {TILE}"),
            (0, ("loop", [0, 4, 1], [ZERO], [("arith.add", (), "float32", ("carried", 0, 0), X_AT)], [])),
        ),
        (looped("%n = arith.add %acc, %k : int32", "%s", "int32"), INT),
        (
            looped("%u = arith.cast %f : int32 %n = arith.add %acc, %u : int32", "%s", "int32"),
            (
                0,
                (
                    "loop",
                    [0, 4, 1],
                    [INT],
                    [("arith.add", (), "int32", INT, ("arith.cast", (), "int32", ("host", "float32")))],
                    [],
                ),
            ),
        ),
        (
            "%t = arith.cast %f : int32 " + looped("%n = arith.add %acc, %k : int32", "%t", "int32"),
            (
                0,
                (
                    "loop",
                    [0, 4, 1],
                    [("arith.cast", (), "int32", ("host", "float32"))],
                    [("arith.add", (), "int32", ("carried", 0, 0), INT)],
                    [],
                ),
            ),
        ),
        (chain(), ("chain", ZERO, "dot", "default", "float32", X, X, 64)),
        (chain(bounds="%c0, %c7, %c1"), ("chain", ZERO, "dot", "default", "float32", X, X, 96)),  # A's width
        (chain(bounds="%c0, %s, %c1"), ("chain", ZERO, "dot", "default", "float32", X, X, None)),
        (looped(f"%n = tensor.dot %x, %x, %acc : {TILE}"), ("chain", ZERO, "dot", "default", "float32", X, X, 64)),
    ],
)
def test_forms_of_values(body: str, form: Any) -> None:
    found = read(body)[1]
    if form[:1] == ("load",) and form[3] and isinstance(form[3][1], str):  # of what was stored the hash
        assert found[3][0] == () and re.fullmatch("[0-9a-f]{24}", found[3][1])
        found = (*found[:3], form[3], *found[4:])
    assert found == form


@pytest.mark.parametrize(
    "body",
    [
        looped(f"%u = arith.add %acc, %x : {TILE} %n = tensor.dot %x, %x, %acc : {TILE}"),  # another use
        looped(f"%n = tensor.dot %x, %acc, %acc : {TILE}"),
        looped(f"%n = tensor.dot %x, %x, %z : {TILE}"),
        looped(f"%n = tensor.dot %acc, %x, %z : {TILE}"),  # its only use, but not to be added to
        looped(f"%m = tensor.dot %x, %x, %acc : {TILE} %n = arith.add %m, %x : {TILE}"),
        looped(
            f'%c = arith.cmp %k, %c3 {{predicate = "lt"}} : bool %n = scf.if %c : {TILE} {{ %m = tensor.dot %x, %x, '
            f"%acc : {TILE} scf.yield [%m] }} {{ scf.yield [%acc] }}"
        ),
        chain(bounds="%c1, %c4, %c1"),
        chain(bounds="%c0, %c4, %c2"),
        chain(step="%c8"),
        chain(step="%s"),
        # both dimensions move
        looped(
            f"%o = arith.mul %k, %c16 : int32 %p = arith.add %i, %o : tensor<16x1xint32> %q = arith.add %j, %o : "
            f"tensor<1x16xint32> %a = tile.load %A[%p, %q] : {TILE} %n = tensor.dot %a, %x, %acc : {TILE}"
        ),
        # in one of two loads of a side
        looped(
            f"%o = arith.mul %k, %c8 : int32 %q = arith.add %j, %o : tensor<1x16xint32> %a = tile.load %B[%i, %q] : "
            f"{TILE} %b = arith.mul %a, %x : {TILE} %n = tensor.dot %x, %b, %acc : {TILE}"
        ),
    ],
)
def test_what_is_no_chain(body: str) -> None:
    form = read(body)[1]
    assert form[0] == 0 and form[1][0] in ("loop", "hash")
    assert read(body, simulated=True)[1][0] == 0
    assert read(chain(), simulated=True)[1][0] == 0  # of NumPy's products none is


def test_stores_in_order_with_masks_and_what_else_they_are() -> None:
    body = """%m = arith.cmp %i, %j {predicate = "lt"} : tensor<16x16xbool> tile.store %x, %B[%i, %j] mask=%m
        %old = tile.atomic %f, %A[%bx, %bx] {kind = "max"} : float32 tile.store %z, %B[%i, %j]"""
    reader, _, stores = read(body)
    digest = short_digest(repr(X_AT))
    zero = short_digest(repr(ZERO))
    atomic = ("atomic", "max", ("host", "float32"))
    assert stores == [("B#1", digest, INT), ("A#0", atomic), ("B#1", zero)]
    assert reader.stored == {"B#1": (((), digest), zero), "A#0": ((), atomic)}
    assert reader.ordered and reader.varies == ""  # as all atomics


@pytest.mark.parametrize(
    ("body", "ordered"),
    [
        (doubled("add %x, %x"), False),
        (summed(), True),
        (product(), True),
        (loop(f"%n = arith.add %acc, %x : {TILE}"), True),
        (branch("%s, %c3", "add %x, %x", "mul %x, %x"), False),
        (walk_while("%c0", "add"), True),
        ('%o = tile.atomic %s, %N[%bx] {kind = "add"} : int32', True),
        (f'%v = tensor.scan %x {{kind = "sum", axis = 1}} : {TILE}', True),
    ],
)
def test_what_adds_up(body: str, ordered: bool) -> None:
    assert read(body)[0].ordered == ordered


def test_long_forms_are_hashed() -> None:
    reader = _Reader(is_simulated=False)
    short, long = ("a", "b" * 380), ("a", "b" * 400)
    assert reader._small(short) is short
    assert reader._small(long) == ("hash", short_digest(repr(long)))
    assert reader._small((*long, ("at", "tile"))) == (*long, ("at", "tile"))  # which a chain may leave out
    for length in (19_980, 19_981):  # 20000 and 20001 characters
        of_places = ("b" * length, ("at", "tile"))
        assert (reader._small(of_places) is of_places) == (length == 19_980)
    longest = ("b" * 20_000, ("at", "tile"))
    assert reader._small(longest) == ("hash", short_digest(repr(longest)), ("at",))
    for length in (399, 400, 401):
        text = "b" * (length - len(repr(("",))))
        assert len(repr((text,))) == length and (reader._small((text,)) == (text,)) == (length <= 400)
    for length in (20_000, 20_001):
        form = ("b" * (length - len(repr(("", ("at",))))), ("at",))
        assert len(repr(form)) == length and (reader._small(form) == form) == (length <= 20_000)
    assert _strip(("x", ("at", "tile", ("y",)), [1], (("at", 1), "z"))) == ("x", ("at",), [1], (("at",), "z"))


def test_indices_of_indices_are_hashed() -> None:
    squares = "".join(f"%q{n + 1} = arith.mul %q{n}, %q{n} : int32 " for n in range(12))
    root = program(f"%q0 = arith.add %bx, %s : int32 {squares} tile.store %c1, %N[%q12]").root
    (store,) = of_kinds(list(root.walk()), tile.StoreOp)
    assert len(repr(_Reader(is_simulated=False).exactly(store.indices[0]))) <= 400


LOOP, BLOCK, HOST, COUNTED = ("loop", 0), ("block",), ("host",), ("tile",)
K16 = ("arith.mul", LOOP, "16")


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("arith.add %bx, %c1 : int32", BLOCK),
        ("arith.mul %bx, %s : int32", BLOCK),
        ("arith.add %s, %c1 : int32", BLOCK),
        ("arith.floordiv %s, %c2 : int32", BLOCK),
        ("arith.cast %s : int64", HOST),
        ("arith.cast %k : int64", LOOP),
        ("arith.add %i, %bx : tensor<16x1xint32>", COUNTED),
        ("tensor.broadcast %k : tensor<16xint32>", LOOP),
        ("tensor.reshape %i : tensor<16xint32>", COUNTED),
        ("arith.mul %i, %c2 : tensor<16x1xint32>", ("arith.mul", COUNTED, "2")),
        ("arith.floordiv %i, %c2 : tensor<16x1xint32>", ("arith.floordiv", COUNTED, "2")),
        ("arith.add %k, %bx : int32", LOOP),
        ("arith.add %k, %c2 : int32", LOOP),
        ("arith.add %i, %k : tensor<16x1xint32>", LOOP),
        ("arith.add %k, %at : int32", ("add", ("carried", 0, 0), LOOP)),
        ("arith.add %at, %k : int32", ("add", ("carried", 0, 0), LOOP)),
        ("arith.sub %s, %k : int32", ("arith.sub", HOST, LOOP)),
        ("arith.mul %k, %c16 : int32", K16),
        ("arith.mul %k, %s : int32", ("arith.mul", LOOP, HOST)),
        # what begins elsewhere turns elsewhere
        ("arith.mul %k, %k : int32", ("arith.mul", (), LOOP, LOOP)),
        ("arith.floormod %k, %c4 : int32", ("arith.floormod", (), LOOP, "4")),
        ("arith.floormod %late, %c4 : int32", ("arith.floormod", (), ("arith.add", (), LOOP, "2"), "4")),
        ("arith.floormod %later, %c4 : int32", ("arith.floormod", (), ("arith.add", (), LOOP, ("block", 0)), "4")),
        (
            "arith.mul %i, %k : tensor<16x1xint32>",
            ("arith.mul", (), ("tensor.iota", (("axis", "0"), ("in_fours", "False"))), LOOP),
        ),
        ("arith.min %late, %s : int32", ("arith.min", (), ("arith.add", (), LOOP, "2"), ("host", "s"))),
        ("scf.if %b : int32 { scf.yield [%c1] } { scf.yield [%bx] }", BLOCK),
        ("scf.if %b : int32 { scf.yield [%k] } { scf.yield [%c3] }", ("scf.if", (), ("host", "b"), LOOP, "3")),
        ("scf.if %b : tensor<16x1xint32> { scf.yield [%i] } { scf.yield [%i] }", ("scf.if", HOST, COUNTED, COUNTED)),
    ],
)
def test_forms_of_indices(value: str, form: Any) -> None:
    value = value.replace("%i", "%rows")
    body = f"""%rows = tensor.iota {{axis = 0}} : tensor<16x1xint32>
        %last = scf.for %c0, %c4, %c1[%s] : int32 (%k: int32, %at: int32) {{
        %late = arith.add %k, %c2 : int32 %later = arith.add %k, %bx : int32
        %v = {value} %next = arith.add %at, %c1 : int32 scf.yield [%next] }}"""
    reader, _, _ = read(body)
    (found,) = [each for op in program_ops(reader) for each in op.results if each.name == "v"]
    assert reader.index(found) == form == reader.index(found)


def program_ops(reader: _Reader) -> Any:
    """The operations that a reader has read, found from a value that it knows."""
    region = next(value.owner for value, form in reader._index.items() if form == BLOCK and value.op is None)
    return region.parent.walk()


def test_along_what_extents_a_loop_adds() -> None:
    body = f"""%v = scf.for %c0, %c4, %c1[%z] : {TILE} (%k: int32, %acc: {TILE}) {{
        %w = tensor.broadcast %f : tensor<16x32xfloat32> %d = tensor.dot %x, %w, %w2 : tensor<16x32xfloat32>
        %e = tensor.reduce %d {{kind = "max", axis = 1}} : {ROW}
        %g = tensor.scan %d {{kind = "sum", axis = 0}} : tensor<16x32xfloat32>
        scf.yield [%acc] }}"""
    body = "%w2 = arith.constant {value = 0.0} : tensor<16x32xfloat32> " + body
    (found,) = of_kinds(list(program(HEAD + body).root.walk()), scf.ForOp)
    assert _shapes(found) == [16, 32, 16]


# Kernels


def class_of(target: str = "cuda:90", configs: Any = None, **changed: Any) -> Any:
    values = {"M": 64, "N": 64, "K": 128, "block_M": 32, "block_N": 32, "block_K": 32, "num_stages": 2, "threads": 128}
    options = {} if configs is None else {"pass_configs": configs}
    return program_class(gemm.kernel_for(gemm._bind((), {**values, **changed}), options, Target.parse(target)))


def test_options_that_move_the_same_values_do_not_count() -> None:
    harmless = {
        "map-grid.group_m": 4,
        "select-access.mode": "pointer",
        "lower-to-triton.num_warps": 8,
        "lower-to-triton.num_stages": 3,
        "lower-to-triton.maxnreg": 128,
        "lower-to-triton.index_bits": 64,
    }
    own = class_of()
    assert all(class_of(configs={name: value}) == own for name, value in harmless.items())
    assert class_of(configs=harmless) == own == class_of(threads=256)
    fast = [class_of(configs={"select-emitter.fast_math": each}) for each in (True, False)]
    assert len({own.signature, *(each.signature for each in fast)}) == 3


def test_parts_of_sums_count_with_their_extents() -> None:
    split = [class_of(configs={"split-k.splits": n}) for n in (1, 2, 4)]
    assert split[0].signature != split[1].signature != split[2].signature
    assert class_of(configs={"split-k.splits": 2}, block_K=64).signature != split[1].signature
    assert class_of(configs={"split-k.splits": 2}, block_M=64).signature == split[1].signature
    for shared in ({"split-k.streams": 8}, {"split-last-wave.programs": 8}):
        own = class_of(configs=shared)
        assert own.by_rows == "sums are split where the number of blocks says" and not split[1].by_rows
        changes = ({"block_M": 64}, {"block_N": 64}, {"M": 128}, {"N": 128})
        assert own.signature not in {class_of(configs=shared, **each).signature for each in changes}


def test_of_amd_the_warps_count_where_something_adds_up() -> None:
    warps = [class_of("hip:gfx942", {"lower-to-triton.num_warps": each}).signature for each in (4, 8)]
    threads = [class_of("hip:gfx942", threads=each).signature for each in (128, 256)]
    assert len({*warps, *threads}) == 4 and class_of("hip:gfx942").signature == threads[0]

    def builder(threads):
        @T.prim_func
        def doubled(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
            with T.Kernel(4, threads=threads) as bx:
                for i in T.Parallel(16):
                    B[bx * 16 + i] = A[bx * 16 + i] * 2.0

        return doubled

    function = tiledsl.jit(out_idx=-1)(builder)
    kernels = [
        function.kernel_for(function._bind((), {"threads": each}), {}, Target.parse("hip:gfx942")) for each in (64, 128)
    ]
    assert program_class(kernels[0]) == program_class(kernels[1])
    assert tiles_of(kernels[0]) == {"B": (16,)}


def test_where_elements_lie() -> None:
    kernel = gemm.kernel_for(
        gemm._bind(
            (),
            {"M": 64, "N": 64, "K": 64, "block_M": 16, "block_N": 32, "block_K": 32, "num_stages": 2, "threads": 128},
        ),
        {},
    )
    assert tiles_of(kernel) == {"C": (16, 32)}
    assert tile_at((16, 32), (47, 63)) == "tile [2, 1] of 16 x 32"
    assert in_tiles(kernel, "C", (16, 0), (31, 31)) == "; both in tile [1, 0] of 16 x 32"
    assert (
        in_tiles(kernel, "C", (15, 0), (16, 32))
        == "; the first is in tile [0, 0] of 16 x 32, the worst in tile [1, 1] of 16 x 32"
    )
    assert in_tiles(kernel, "A", (0, 0), (1, 1)) == in_tiles(kernel, "C", (0,), (1,)) == ""


def test_of_several_stores_the_largest_tile_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiles(body: str) -> Any:
        root = program(HEAD + body).root
        monkeypatch.setattr(where, "values_of", lambda kernel: root)
        return tiles_of(None)  # type: ignore[arg-type]

    big, row = "tile.store %x, %B[%i, %j]", f'%v = tensor.reduce %x {{kind = "sum", axis = 1}} : {ROW} {PUT_ROW}'
    one = '%o = tile.atomic %s, %N[%bx] {kind = "add"} : int32'
    assert tiles(big + row) == tiles(row + big) == {"B": (16, 16)}
    assert tiles(row + one) == {"B": (16, 1), "N": (1,)}
    assert where.in_tiles(None, "N", (3,), (4,)) == ""  # type: ignore[arg-type]
    assert (
        where.in_tiles(None, "B", (3, 0), (20, 0))
        == "; the first is in tile [0, 0] of 16 x 1, the worst in tile [1, 0] of 16 x 1"
    )  # type: ignore[arg-type]
