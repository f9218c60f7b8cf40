"""widen-loops: pieces of rows that lie side by side are loaded as one, and mean the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import PARAMETERS, after, filecheck, program, stays_in_gluon
from tests.support.programs import check_pass, inputs_for
from tiledsl.dialects import tensor
from tiledsl.passes.widen_loops import WidenLoops, _before

HEAD = """
%zero = arith.constant {value = 0.0} : tensor<8x16xfloat32>
%low = arith.constant {value = -inf} : tensor<8x16xfloat32>
%half = arith.constant {value = 0.5} : tensor<8x16xfloat32>
%i = tensor.iota {axis = 0} : tensor<8x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%w = tensor.iota {axis = 0} : tensor<8xint32>
%y = tile.load %B[%i, %j] {guarded = true} : tensor<8x16xfloat32>
%t = scf.for LOWER, %c4, %c1[INIT] OPTIONS : tensor<8x16xfloat32> (%k: int32, %s: tensor<8x16xfloat32>) {
  %a = arith.mul %k, FACTOR : int32
  %column = arith.add %a, %j : tensor<1x16xint32>
  %x = tile.load %A[%i, %column] ACCESS : tensor<8x16xfloat32>
  BODY
  %n = COMBINE : tensor<8x16xfloat32>
  scf.yield [%n]
}
%r = tensor.reduce %t {kind = "KIND", axis = AXIS} : tensor<8xfloat32>
tile.store %r, %B[%bx, %w] {guarded = true}
"""


def loop(
    body: str = "%z = arith.mul %x, %x : tensor<8x16xfloat32>", *, combine: str = "arith.add %s, %z", kind: str = "sum",
    init: str = "%zero", lower: str = "%c0", factor: str = "%c16", access: str = "{guarded = true}", options: str = "",
) -> str:  # fmt: skip
    text = HEAD.replace("BODY", body).replace("COMBINE", combine).replace("KIND", kind).replace("INIT", init)
    text = text.replace("LOWER", lower).replace("FACTOR", factor).replace("ACCESS", access).replace("OPTIONS", options)
    return text.replace("AXIS", "1")


def lines(text: str) -> list[str]:
    made = program(text, grid=(1,)).root
    check_pass(WidenLoops(), made, inputs_for(made))
    return after(WidenLoops(), text, grid=(1,))


def test_pieces_of_rows_are_loaded_as_one() -> None:
    filecheck(
        lines(loop())[4:],
        """
        [[WIDE:%[0-9]+]] = tensor.iota {axis = 1} : tensor<1x64xint32>
        %x = tile.load %A[%i, [[WIDE]]] {guarded = true} : tensor<8x64xfloat32>
        %z = arith.mul %x, %x : tensor<8x64xfloat32>
        %r = tensor.reduce %z {kind = "sum", axis = 1} : tensor<8xfloat32>
        tile.store %r, %B[%bx, %w] {guarded = true}
        """,
    )


def two(second: str, body: str = "", init: str = "%low", kind: str = "max", axis: int = 1, behind: str = "") -> str:
    """A loop that carries a sum, and something else."""
    text = loop(f"%z = arith.mul %x, %x : tensor<8x16xfloat32> {body} %n2 = {second} : tensor<8x16xfloat32>")
    kept = (16, 8)[axis]
    reduced = (
        f'%r2 = tensor.reduce %t2 {{kind = "{kind}", axis = {axis}}} : tensor<{kept}xfloat32>'
        f"%w2 = tensor.iota {{axis = 0}} : tensor<{kept}xint32> tile.store %r2, %B[%c8, %w2] {{guarded = true}}"
    )
    return (
        text.replace("%t = scf.for", "%t, %t2 = scf.for").replace("[%zero]", f"[%zero, {init}]")
        .replace(": tensor<8x16xfloat32> (%k", ": tensor<8x16xfloat32>, tensor<8x16xfloat32> (%k")
        .replace("%s: tensor<8x16xfloat32>)", "%s: tensor<8x16xfloat32>, %s2: tensor<8x16xfloat32>)")
        .replace("scf.yield [%n]", "scf.yield [%n, %n2]")
    ) + (behind or reduced)  # fmt: skip


def typed(dtype: str) -> str:
    return loop().replace("float32", dtype).replace("%A[", f"%{dtype}[").replace("%B[", f"%{dtype}[")


def before(ops: str, text: str) -> str:
    """With operations in front of the loop."""
    return text.replace("\n%t", f"\n{ops}\n%t", 1)


TYPED = f"{PARAMETERS}, float16: 64*96*float16, float64: 64*96*float64, int32: 64*96*int32, int8: 64*96*int8"
ONE_MORE = """%e = tile.load %int8[%c0, %column] {guarded = true} : tensor<1x16xint8>
              %e1 = arith.cast %e : tensor<1x16xfloat32> %z = arith.mul %x, %e1 : tensor<8x16xfloat32>"""
ROWS_ONLY = "%u = tile.load %A[%i, %c0] {guarded = true} : tensor<8x1xfloat32>"
ROWS = """%u = tile.load %N[%i] {guarded = true} : tensor<8x1xint32> %f = arith.cast %u : tensor<8x1xfloat32>
          %z = arith.mul %x, %f : tensor<8x16xfloat32>"""


@pytest.mark.parametrize(
    "text",
    [
        loop(combine="arith.add %z, %s"),
        loop(kind="max", combine="arith.max %s, %z", init="%low"),
        loop("%z = arith.add %x, %c0.5 : tensor<8x16xfloat32>"),
        loop(ROWS),  # what all pieces have
        loop(access="{guarded = true}").replace("%A[%i, %col", "%A[%h, %col").replace(
            "%column =", "%h = arith.add %i, %c1 : tensor<8x1xint32> %column ="
        ),
        loop("%z = arith.mul %x, %f : tensor<8x16xfloat32>"),
        loop("%z = arith.mul %x, %half : tensor<8x16xfloat32>"),
        before(
            '%p = tensor.reduce %y {kind = "max", axis = 1} : tensor<8xfloat32>'
            "%q = tensor.reshape %p : tensor<8x1xfloat32>",
            loop("%z = arith.mul %x, %q : tensor<8x16xfloat32>"),
        ),
        before("%u = tile.load %N[%c0] : int32", loop()).replace("%k, FACTOR : int32", "").replace(
            "%column = arith.add %a", "%b1 = arith.add %a, %u : int32 %column = arith.add %b1"
        ),
        two("arith.max %x, %s2"),
        loop().replace("%c4, %c1[", "%c1, %c1["),
        loop().replace("%c4, %c1[", "%c2, %c1["),
        loop().replace("8x", "64x"),  # 128 bytes for each thread
        loop("%u = tile.load %D[%c0] : float32 %z = arith.mul %x, %u : tensor<8x16xfloat32>"),
        loop("%o = arith.add %column, %c8 : tensor<1x16xint32>"
             "%y2 = tile.load %A[%i, %o] {guarded = true} : tensor<8x16xfloat32>"
             "%z = arith.mul %x, %y2 : tensor<8x16xfloat32>"),
    ],
)  # fmt: skip
def test_other_forms(text: str) -> None:
    assert not any("scf.for" in line for line in lines(text))


@pytest.mark.parametrize(
    "text",
    [
        loop(init="%half"),
        loop(lower="%c2"),
        loop().replace("%c4, %c1[", "%c0, %c1["),  # no turn, and no power of two
        loop().replace("%c4, %c1[", "%c3, %c1["),
        loop().replace("%c4, %c1[", "%c4, %c2["),
        loop(factor="%c8"),  # pieces that overlap
        loop(factor="%c20"),  # and that leave something out
        loop(options="{num_stages = 2}"),
        loop(combine="arith.sub %s, %z"),
        loop(kind="max"),
        loop("%z = arith.mul %x, %y : tensor<8x16xfloat32>"),  # the same columns for each piece
        loop("%g = arith.cast %k : float32 %z = arith.mul %x, %g : tensor<8x16xfloat32>"),
        loop("%g = arith.cast %j : tensor<1x16xfloat32> %z = arith.mul %x, %g : tensor<8x16xfloat32>"),
        loop("%z = arith.mul %x, %x : tensor<8x16xfloat32> tile.store %z, %B[%i, %j] {guarded = true}"),
        loop("%z = arith.mul %x, %s : tensor<8x16xfloat32>"),
        loop().replace("axis = 1} : tensor<8xfloat32>", "axis = 0} : tensor<16xfloat32>").replace(
            "%w = tensor.iota {axis = 0} : tensor<8xint32>", "%w = tensor.iota {axis = 0} : tensor<16xint32>"
        ),
        loop().replace("%A[%i, %column]", "%A[%column, %i]"),  # down the columns
        loop().replace("%A[%i, %column]", "%A[%h, %column]").replace(
            "%column =", "%q = arith.floordiv %k, %c2 : int32 %h = arith.add %q, %i : tensor<8x1xint32> %column ="
        ),
        loop().replace("x16x", "x32x").replace("FACTOR", "").replace("%c16", "%c32").replace("%c4, %c1", "%c2, %c1"),
        loop(access="%m = arith.cmp %column, %c50").replace("%x = tile.load %A[%i, %column] %m =", "%m =").replace(
            "%c50 : tensor<8x16xfloat32>",
            '%c50 {predicate = "lt"} : tensor<1x16xbool>'
            " %x = tile.load %A[%i, %column] mask=%m {guarded = true} : tensor<8x16xfloat32>",
        ),
        loop(access="other=%c0.5").replace("%A[%i,", "%A[%h,").replace(
            "%column =", "%h = arith.add %i, %c60 : tensor<8x1xint32> %column ="
        ),
        loop().replace("%column = arith.add %a", "%q = arith.floordiv %k, %c2 : int32 %b1 = arith.add %a, %q : int32"
                       "%column = arith.add %b1"),
        before("%v = tile.load %N[%j] : tensor<1x16xint32>", loop()).replace(
            "%column = arith.add %a", "%b1 = arith.add %a, %v : tensor<1x16xint32> %column = arith.add %b1"
        ),
        loop().replace("x16x", "x1x").replace("[%i, %column]", "[%i, %j]"),  # the same place in each turn
        loop().replace("%column]", "%wide]").replace(
            "%x =", "%o1 = tensor.broadcast %c3 : tensor<8x16xint32>"
            "%wide = arith.add %o1, %c0 : tensor<8x16xint32> %x ="
        ),
        loop("%v = tile.load %D[%j] : tensor<1x16xfloat32> %z = arith.mul %x, %v : tensor<8x16xfloat32>"),
        loop("%v = tile.load %D[%c0] : float32 %z = arith.mul %x, %x : tensor<8x16xfloat32>"),  # another load
        loop("%v = tensor.transpose %x {permutation = (0, 1)} : tensor<8x16xfloat32>"
             "%z = arith.mul %x, %v : tensor<8x16xfloat32>"),
        loop("%y2 = tile.load %A[%i, %column] {guarded = true} : tensor<8x16xfloat32>"
             "%z = arith.mul %x, %y2 : tensor<8x16xfloat32>").replace("8x", "64x"),  # 256 bytes for each thread
        loop().replace("%c4, %c1[", "%bx, %c1["),
        loop(combine="arith.add %x, %x"),
        loop(ONE_MORE).replace("8x", "64x"),  # 64 bytes more than 128 for each thread
        before(
            "%u = tile.load %A[%i, %c0] {guarded = true} : tensor<8x1xfloat32>"
            "%q = tensor.broadcast %u : tensor<8x16xfloat32>",
            two("arith.add %q, %s2", init="%zero", kind="sum"),
        ),
        before("%v = tile.load %N[%j] : tensor<1x16xint32>", loop()).replace("add %a, %j", "add %a, %v"),
        typed("float16"),  # whose sums are rounded too much
        typed("float64"),  # a line for each row
        loop("%e = tile.load %float64[%i, %column] {guarded = true} : tensor<8x16xfloat64>"
             "%f1 = arith.cast %e : tensor<8x16xfloat32> %z = arith.mul %x, %f1 : tensor<8x16xfloat32>"),
        two("arith.add %s2, %half", init="%zero", kind="sum"),
        two("arith.add %s2, %y", init="%zero", kind="sum"),
        two("arith.add %s2, %u", ROWS_ONLY, init="%zero", kind="sum"),
        two("arith.mul %s2, %x"),
        two("arith.max %s2, %x", axis=0),
        two("arith.max %s2, %x", behind="tile.store %t2, %B[%i, %j] {guarded = true}"),
        two("arith.max %s2, %x") + "tile.store %t2, %B[%i, %j] {guarded = true}",
        two("arith.max %s2, %x").replace('"max", axis = 1', '"max", axis = 1, propagate_nan = true'),
        two("arith.add %s2, %x", init="%zero", kind="abssum"),
    ],
)  # fmt: skip
def test_what_stays(text: str) -> None:
    assert any("scf.for" in line for line in after(WidenLoops(), text, grid=(1,), parameters=TYPED))


DOWN = """
%zero = arith.constant {value = 0.0} : tensor<8x16xfloat32>
%i = tensor.iota {axis = 0} : tensor<8x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%w = tensor.iota {axis = 0} : tensor<16xint32>
%p = tensor.iota {axis = 0} : tensor<8xint32>
%t = scf.for %c0, %c4, %c1[%zero] : tensor<8x16xfloat32> (%k: int32, %s: tensor<8x16xfloat32>) {
  %a = arith.mul %k, %c8 : int32
  %row = arith.add %a, %i : tensor<8x1xint32>
  %x = tile.load %A[%row, %j] {guarded = true} : tensor<8x16xfloat32>
  %place = arith.add %a, %p : tensor<8xint32>
  %f = tile.load %B[%place, %c2] {guarded = true} : tensor<8xfloat32>
  %g = tensor.reshape %f : tensor<8x1xfloat32>
  %z = arith.mul %x, %g : tensor<8x16xfloat32>
  %n = arith.add %s, %z : tensor<8x16xfloat32>
  scf.yield [%n]
}
%r = tensor.reduce %t {kind = "sum", axis = 0} : tensor<16xfloat32>
tile.store %r, %B[%bx, %w] {guarded = true}
"""


def test_rows_of_one_tile_after_the_other_are_loaded_as_one() -> None:
    filecheck(
        lines(DOWN),
        """
        CHECK-NOT: scf.for
        CHECK: [[ROWS:%[0-9]+]] = tensor.iota {axis = 0} : tensor<32x1xint32>
        CHECK: %x = tile.load %A[[[ROWS]], %j] {guarded = true} : tensor<32x16xfloat32>
        CHECK: [[PLACES:%[0-9]+]] = tensor.iota {axis = 0} : tensor<32xint32>
        CHECK: %f = tile.load %B[[[PLACES]], %{{.*}}] {guarded = true} : tensor<32xfloat32>
        CHECK: %g = tensor.reshape %f : tensor<32x1xfloat32>
        CHECK: %z = arith.mul %x, %g : tensor<32x16xfloat32>
        CHECK: %r = tensor.reduce %z {kind = "sum", axis = 0} : tensor<16xfloat32>
        """,
    )


WIDE = DOWN.replace("x16xfloat32", "x64xfloat32").replace("1x16xint32", "1x64xint32").replace("<16x", "<64x")


def test_rows_of_more_than_a_line_and_a_diagonal_are_loaded_as_one() -> None:
    diagonal = DOWN.replace("%B[%place, %c2]", "%A[%place, %place]")
    turned = DOWN.replace("%A[%row, %j]", "%A[%j, %row]")
    for text in (WIDE, diagonal, turned):
        assert not any("scf.for" in line for line in lines(text))


def test_pieces_of_rows_of_a_tile_of_three_dimensions_are_loaded_as_one() -> None:
    text = loop().replace("8x16xf", "2x4x16xf").replace("axis = 1} : tensor<1x", "axis = 2} : tensor<1x1x")
    text = text.replace("tensor<1x16x", "tensor<1x1x16x").replace("axis = 1} : tensor<8x", "axis = 2} : tensor<2x4x")
    rows = """%h = tensor.iota {axis = 0} : tensor<2x1x1xint32>
    %l = tensor.iota {axis = 1} : tensor<1x4x1xint32>
    %g = arith.mul %h, %c4 : tensor<2x1x1xint32>
    %i = arith.add %g, %l : tensor<2x4x1xint32>"""
    text = text.replace("%i = tensor.iota {axis = 0} : tensor<8x1xint32>", rows)
    text = text.replace("%w = tensor.iota {axis = 0} : tensor<8xint32>", "%w = tensor.reshape %i : tensor<2x4xint32>")
    assert not any("scf.for" in line for line in lines(text))


@pytest.mark.parametrize(
    "text",
    [
        DOWN.replace("%k, %c8", "%k, %c4"),  # rows that overlap
        DOWN.replace("%B[%place, %c2]", "%B[%p, %c2]"),  # the same factors for each tile
        DOWN.replace("%g = tensor.reshape %f : tensor<8x1xfloat32>", "%q = tensor.reshape %f : tensor<2x4xfloat32>"
                     "%g = tensor.reshape %q : tensor<8x1xfloat32>"),
        DOWN.replace("<8xint32>", "<16xint32>").replace("<8xfloat32>", "<16xfloat32>").replace(
            "<8x1xfloat32>", "<1x16xfloat32>"
        ),  # factors of columns, which move
        DOWN.replace("axis = 0} : tensor<16xf", "axis = 1} : tensor<8xf").replace(
            "%w = tensor.iota {axis = 0} : tensor<16xint32>", "%w = tensor.iota {axis = 0} : tensor<8xint32>"
        ),  # what is reduced does not move
        WIDE.replace("%c4, %c1", "%c8, %c1"),  # 64 rows of 256 bytes, and a factor for each
    ],
)  # fmt: skip
def test_rows_that_stay(text: str) -> None:
    assert any("scf.for" in line for line in lines(text))


@T.prim_func
def row_products(A: T.Tensor((64, 128), "float16"), B: T.Tensor((64, 128), "float16"), O: T.Tensor((64,), "float32")):
    with T.Kernel(2, threads=128) as b:
        x, y = T.alloc_fragment((32, 32), "float16"), T.alloc_fragment((32, 32), "float16")
        acc, s = T.alloc_fragment((32, 32), "float32"), T.alloc_fragment((32,), "float32")
        T.clear(acc)
        for k in range(4):
            T.copy(A[b * 32, k * 32], x)
            T.copy(B[b * 32, k * 32], y)
            for i, j in T.Parallel(32, 32):
                acc[i, j] += x[i, j] * y[i, j]
        T.reduce_sum(acc, s, 1)
        T.copy(s, O[b * 32])


def test_results() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-8, 9, (64, 128)).astype(np.float16) for _ in range(2))  # sums are exact in any order
    made = tiledsl.compile(row_products, target="interpret", out_idx=-1)(torch.from_numpy(a), torch.from_numpy(b))
    np.testing.assert_array_equal(made.numpy(), (a.astype(np.float32) * b).sum(1))
    kernel = tiledsl.compile(row_products, target="cuda:90")
    assert "    for " not in kernel.source and "tl.arange(0, 128)[None, :]" in kernel.source
    certificate = kernel.verify()
    assert certificate.ok and "widen-loops: equal but for reassociation" in " ".join(str(certificate).split())
    off = tiledsl.compile(row_products, target="cuda:90", pass_configs={"widen-loops.enabled": False})
    assert "for k in range(4)" in off.source and off.verify().ok


def test_the_other_order_is_named() -> None:
    most = loop(kind="max", combine="arith.max %s, %z", init="%low")
    whole = typed("int32").replace(" = 0.0", " = 0").replace(" = -inf", " = -5").replace(" = 0.5", " = 1")
    for text, names in (
        (loop(), {"reassociation"}),
        (two("arith.max %x, %s2"), {"reassociation"}),
        (most, set()),
        (whole, set()),
        (loop(init="%half"), set()),
    ):
        assert WidenLoops().allowances(program(text, grid=(1,), parameters=TYPED)) == names
    assert stays_in_gluon(WidenLoops(), program(loop(), grid=(1,)))
    assert not WidenLoops(enabled=False).allowances(program(loop(), grid=(1,)))


@pytest.mark.parametrize(
    ("before", "after", "axes"),
    [
        ("2x8", "2x1x8", {-1: -1, -2: 0, -3: -2}),
        ("2x1x8", "2x8", {-1: -1, -2: -3}),
        ("8", "1x8", {-1: -1, -2: 0}),
        ("8x1", "8", {-1: -2}),
        ("2x4", "8", {-1: 0}),
        ("8x2", "2x8", {-1: 0, -2: 0}),
        ("2x3x4", "2x3x1x4", {-1: -1, -2: 0, -3: -2, -4: -3}),
    ],
)
def test_axes_beside_dimensions_of_one(before: str, after: str, axes: dict[int, int]) -> None:
    tile = f"%x = arith.constant {{value = 0.5}} : tensor<{before}xfloat32>"
    made = program(f"{tile}\n%y = tensor.reshape %x : tensor<{after}xfloat32>")
    (op,) = (op for op in made.root.walk() if isinstance(op, tensor.ReshapeOp))
    assert {axis: _before(op, axis) for axis in axes} == axes
