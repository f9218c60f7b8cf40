"""reduce-after-loops: loops carry tiles that are reduced behind them, and mean the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import PARAMETERS, after, body_lines, filecheck, program, stays_in_gluon
from tests.support.programs import check_pass, inputs_for
from tiledsl.passes.reduce_after_loops import ReduceAfterLoops


def loop(
    body: str = "", *, kind: str = "sum", combine: str = "arith.add %s, %r", init: str = "%zero", shape: str = "16x32",
    axis: int = 1, dtype: str = "float32", tail: str = "",
) -> str:  # fmt: skip
    kept = shape.split("x")[1 - axis]
    rows, columns = shape.split("x")
    return f"""
%zero = arith.constant {{value = 0.0}} : tensor<{kept}x{dtype}>
%half = arith.constant {{value = 0.5}} : tensor<{kept}x{dtype}>
%i = tensor.iota {{axis = 0}} : tensor<{rows}x1xint32>
%j = tensor.iota {{axis = 1}} : tensor<1x{columns}xint32>
%w = tensor.iota {{axis = 0}} : tensor<{kept}xint32>
%t = scf.for %c0, %c3, %c1[{init}] : tensor<{kept}x{dtype}> (%k: int32, %s: tensor<{kept}x{dtype}>) {{
  %row = arith.add %k, %i : tensor<{rows}x1xint32>
  %x = tile.load %A[%row, %j] {{guarded = true}} : tensor<{rows}x{columns}x{dtype}>
  %r = tensor.reduce %x {{kind = "{kind}", axis = {axis}}} : tensor<{kept}x{dtype}>
  {body}
  %n = {combine} : tensor<{kept}x{dtype}>
  scf.yield [%n]
}}
{tail}
tile.store %t, %B[%bx, %w] {{guarded = true}}
"""


def lines(text: str) -> list[str]:
    made = program(text, grid=(1,)).root
    check_pass(ReduceAfterLoops(), made, inputs_for(made))
    return after(ReduceAfterLoops(), text, grid=(1,))


def test_what_a_loop_adds_up_is_summed_behind_it() -> None:
    filecheck(
        [line for line in lines(loop(init="%half")) if "tensor.reduce" in line or "arith.add" in line or "scf" in line],
        """
        %t = scf.for %c0, %c3, %c1[[INIT:.*]] : tensor<16x32xfloat32> (%k: int32, %s: tensor<16x32xfloat32>) {
        %row = arith.add %k, %i : tensor<16x1xint32>
        [[SUM:%[a-z0-9_]+]] = arith.add %s, %x : tensor<16x32xfloat32>
        scf.yield {{.*}}
        [[ONE:%[a-z0-9_]+]] = tensor.reduce %t {kind = "sum", axis = 1} : tensor<16xfloat32>
        [[ALL:%[a-z0-9_]+]] = arith.add [[HALF:%[a-z0-9_]+]], [[ONE]] : tensor<16xfloat32>
        """,
    )


OUTSIDE = """%v = tile.load %B[%i, %j] {guarded = true} : tensor<16x32xfloat32>
%q = tensor.reduce %v {kind = "sum", axis = 1} : tensor<16xfloat32>"""
WHOLE = """%l0 = tensor.iota {axis = 0} : tensor<64xint32>
%f1 = tile.load %A[%c0, %l0] {guarded = true} : tensor<64xfloat32>
%g = tensor.reduce %f1 {kind = "sum", axis = 0} : float32"""
MANY = "tile.store %r, %B[%k, %w] {guarded = true}"
PRODUCT = """%y = tensor.transpose %x {permutation = (1, 0)} : tensor<32x16xfloat32>
  %z = arith.constant {value = 0.0} : tensor<16x16xfloat32> %d = tensor.dot %x, %y, %z : tensor<16x16xfloat32>"""
NESTED = """%t = scf.for %c0, %c2, %c1[%half] : tensor<16xfloat32> (%o: int32, %u: tensor<16xfloat32>) {
%v = scf.for"""


@pytest.mark.parametrize(
    "text",
    [
        loop(),
        loop(combine="arith.add %r, %s"),
        loop(axis=0),
        loop(shape="64x128").replace("%A[%row, %j] {guarded = true}", "%A[%row, %j]"),  # 64 elements for each thread
        loop(shape="16x8"),
        loop(kind="max", combine="arith.max %s, %r"),
        loop(kind="min", combine="arith.min %r, %s", init="%half"),
        # the loop around carries the tile on
        loop().replace("%t = scf.for", NESTED)
        .replace("%c1[%zero]", "%c1[%u]").replace("scf.yield [%n]\n}", "scf.yield [%n]\n}\nscf.yield [%v]\n}"),
    ],
)  # fmt: skip
def test_other_forms(text: str) -> None:
    made = lines(text)
    assert not any(line.startswith("%r = ") for line in made)
    assert sum("tensor.reduce" in line for line in made) == 1


@pytest.mark.parametrize(
    "text",
    [
        loop(MANY),  # what is reduced is wanted in each iteration
        loop("tile.store %s, %B[%k, %w] {guarded = true}"),
        loop(combine="arith.mul %s, %r"),
        loop(combine="arith.max %s, %r"),
        loop(combine="arith.sub %s, %r"),
        loop(combine="arith.add %r, %r"),
        loop(kind="max", combine="arith.max %s, %r").replace("axis = 1}", "axis = 1, propagate_nan = true}"),
        loop(kind="abssum"),
        loop(combine="arith.add %s, %half"),
        loop(combine="arith.add %n0, %r").replace("%n =", "%n0 = arith.add %s, %half : tensor<16xfloat32> %n ="),
        loop("tile.store %n, %B[%k, %w] {guarded = true}").replace(
            "tile.store %n, %B[%k, %w] {guarded = true}\n  %n = arith.add %s, %r : tensor<16xfloat32>",
            "%n = arith.add %s, %r : tensor<16xfloat32> tile.store %n, %B[%k, %w] {guarded = true}",
        ),
        loop().replace("%t = scf", f"{OUTSIDE}\n%t = scf").replace("arith.add %s, %r", "arith.add %s, %q"),
        loop(WHOLE).replace("arith.add %s, %r", "arith.add %s, %g"),
        loop(shape="16x4"),  # a thread adds them up by itself
        loop(shape="64x256").replace(
            "%A[%row, %j] {guarded = true}", "%A[%row, %j]"
        ),  # more than 64 elements for each of 128 threads
        loop(PRODUCT),
    ],
)
def test_what_stays(text: str) -> None:
    made = lines(text)
    assert any(line.startswith("%r = tensor.reduce") for line in made)


def both(first: str = "%x", second: str = "%x") -> str:
    """A loop that carries a sum and a maximum."""
    text = loop('%q = tensor.reduce SECOND {kind = "max", axis = 1} : tensor<16xfloat32>'.replace("SECOND", second))
    text = (
        text.replace("%t = scf", "%t, %u = scf")
        .replace("%c1[%zero]", "%c1[%zero, %half]")
        .replace("tensor<16xfloat32> (%k", "tensor<16xfloat32>, tensor<16xfloat32> (%k")
    )
    text = text.replace("%s: tensor<16xfloat32>)", "%s: tensor<16xfloat32>, %m0: tensor<16xfloat32>)")
    text = text.replace("scf.yield [%n]", "%p = arith.max %m0, %q : tensor<16xfloat32>\nscf.yield [%n, %p]")
    return text.replace('reduce %x {kind = "sum"', f'reduce {first} {{kind = "sum"') + (
        "tile.store %u, %B[%c8, %w] {guarded = true}"
    )


def test_two_values_that_a_loop_carries() -> None:
    made = lines(both())
    assert sum(line.startswith(("%u_1 = tensor.reduce %u", "%t_1 = tensor.reduce %t")) for line in made) == 2
    (header,) = [line for line in made if "scf.for" in line]
    assert header.count("tensor<16x32xfloat32>") == 4
    wide = both().replace("16x32", "64x128").replace("16x", "64x").replace("1x32x", "1x128x")
    wide = wide.replace("%A[%row, %j] {guarded = true}", "%A[%row, %j]")
    made = lines(wide)  # a thread holds 64 elements of the first alone
    (header,) = [line for line in made if "scf.for" in line]
    assert header.count("tensor<64x128xfloat32>") == 2
    narrow = both(second="%x2").replace("16x32x", "16x512x").replace("1x32x", "1x512x").replace(
        "%q =", "%j2 = tensor.iota {axis = 1} : tensor<1x8xint32>"
        " %x2 = tile.load %A[%row, %j2] : tensor<16x8xfloat32>\n%q ="
    )  # fmt: skip
    made = lines(narrow.replace("%A[%row, %j] {guarded = true}", "%A[%row, %j]"))
    (header,) = [line for line in made if "scf.for" in line]
    assert header.count("tensor<16x512xfloat32>") == 2 and "tensor<16x8xfloat32>" not in header


def test_many_blocks_exchange_while_others_compute() -> None:
    for blocks, reduces in ((528, False), (529, True), ("%m", True)):
        made = after(ReduceAfterLoops(), loop(), grid=(blocks,))
        assert any(line.startswith("%r = tensor.reduce") for line in made) == reduces

    for multiprocessors, reduces in ((2, True), (3, False)):
        made = program(loop(), grid=(9,), target=SimpleNamespace(multiprocessors=multiprocessors))
        ReduceAfterLoops().run(made)
        assert any(line.startswith("%r = tensor.reduce") for line in body_lines(made)) == reduces


def test_narrow_sums_stay() -> None:
    text = loop(dtype="float16").replace(
        "tile.store %t, %B", "%f = arith.cast %t : tensor<16xfloat32>\ntile.store %f, %B"
    )
    text = text.replace(
        "%A[%row, %j] {guarded = true} : tensor<16x32xfloat16>", "%A[%row, %j] {guarded = true} : tensor<16x32xfloat32>"
    )
    text = text.replace("%x = tile.load", "%l = tile.load").replace(
        "%r = ", "%x = arith.cast %l : tensor<16x32xfloat16>\n%r = "
    )
    assert any(line.startswith("%r = tensor.reduce") for line in lines(text))


@T.prim_func
def row_sums(A: T.Tensor((64, 1024), "float32"), O: T.Tensor((64,), "float32")):
    with T.Kernel(2, threads=128) as b:
        part, s = T.alloc_fragment((32, 128), "float32"), T.alloc_fragment((32,), "float32")
        T.fill(s, 1.0)
        for k in T.serial(8):
            T.copy(A[b * 32, k * 128], part)
            T.reduce_sum(part, s, dim=1, clear=False)
        T.copy(s, O[b * 32])


def test_results() -> None:
    given = np.random.default_rng(0).integers(-8, 9, (64, 1024)).astype(np.float32)  # whose sums are exact in any order
    made = tiledsl.compile(row_sums, target="interpret", out_idx=-1)(torch.from_numpy(given)).numpy()
    np.testing.assert_array_equal(made, given.sum(1) + 1)
    kernel = tiledsl.compile(row_sums, target="cuda:90")
    before, _, behind = kernel.source.partition("tl.sum(")
    assert "for k in range(8)" in before and "    for " not in behind
    certificate = kernel.verify()
    (check,) = [each for each in certificate.checks if each.subject == "reduce-after-loops"]
    assert certificate.ok and check.detail == "equal but for reassociation"
    off = tiledsl.compile(row_sums, target="cuda:90", pass_configs={"reduce-after-loops.enabled": False})
    assert "s = s + " in off.source and off.verify().ok


def test_the_other_order_is_named() -> None:
    parameters = f"{PARAMETERS}, G: 64*96*int32"
    whole = loop(dtype="int32").replace("0.0", "0").replace("0.5", "1")
    for text, names in (
        (loop(), {"reassociation"}),
        (loop(kind="max", combine="arith.max %s, %r"), set()),
        (loop(MANY), set()),
        (both(), {"reassociation"}),
        (whole.replace("%A[", "%G[").replace("%B[", "%G["), set()),
    ):
        assert ReduceAfterLoops().allowances(program(text, grid=(1,), parameters=parameters)) == names
    assert stays_in_gluon(ReduceAfterLoops(), program(loop(), grid=(1,)))
    assert not ReduceAfterLoops(enabled=False).allowances(program(loop(), grid=(1,)))
