"""select-emitter: what it makes of attention and of loops in order, as text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.passes.ir_cases import body_lines, kernel_of
from tests.passes.ir_cases import program as ir_program
from tiledsl.ir.verifier import verify
from tiledsl.passes.select_emitter import (
    SelectEmitter,
)
from tiledsl.runtime.target import Target

WIDE, COLUMN, ROWS = "tensor<128x64xfloat32>", "tensor<128x1xfloat32>", "tensor<128xfloat32>"
ATTENTION = f"""
%i = tensor.iota {{axis = 0}} : tensor<128x1xint32>
%p = tensor.iota {{axis = 0}} : tensor<64x1xint32>
%j = tensor.iota {{axis = 1}} : tensor<1x64xint32>
%first = arith.mul %bx, %c128 : int32
%rows = arith.add %first, %i : tensor<128x1xint32>
%zero = arith.constant {{value = 0.0}} : {WIDE}
%none = arith.constant {{value = 0.0}} : {ROWS}
%low = arith.constant {{value = -inf}} : {ROWS}
%q = tile.load %Q[%rows, %j] : tensor<128x64xfloat16>
%o, %m, %l = scf.for %c0, %c8, %c1[%zero, %low, %none] {{num_stages = 3}} : {WIDE}, {ROWS}, {ROWS}
    (%k: int32, %acc: {WIDE}, %top: {ROWS}, %sum: {ROWS}) {{
  %ks = arith.mul %k, %c64 : int32
  %ps = arith.add %p, %ks : tensor<64x1xint32>
  %key = tile.load %K[%ps, %j] : tensor<64x64xfloat16>
  %kt = tensor.transpose %key {{permutation = (1, 0)}} : tensor<64x64xfloat16>
  %s = tensor.dot %q, %kt, %zero : {WIDE}
  %most = tensor.reduce %s {{kind = "max", axis = 1}} : {ROWS}
  %new = arith.max %top, %most : {ROWS}
  %newc = tensor.reshape %new : {COLUMN}
  %apart = arith.sub %s, %newc : {WIDE}
  %e = arith.math [%apart] {{function = "exp2"}} : {WIDE}
  %fall = arith.sub %top, %new : {ROWS}
  %f = arith.math [%fall] {{function = "exp2"}} : {ROWS}
  %fc = tensor.reshape %f : {COLUMN}
  %old = arith.mul %acc, %fc : {WIDE}
  %part = tensor.reduce %e {{kind = "sum", axis = 1}} : {ROWS}
  %less = arith.mul %sum, %f : {ROWS}
  %next = arith.add %less, %part : {ROWS}
  %w = arith.cast %e : tensor<128x64xfloat16>
  %v = tile.load %V[%ps, %j] : tensor<64x64xfloat16>
  %d = tensor.dot %w, %v, %old : {WIDE}
  scf.yield [%d, %new, %next]
}}
%lc = tensor.reshape %l : {COLUMN}
%out = arith.div %o, %lc : {WIDE}
%h = arith.cast %out : tensor<128x64xfloat16>
tile.store %h, %O[%rows, %j]
"""
OPERANDS = "Q: 1024*64*float16, K: 512*64*float16, V: 512*64*float16, O: 1024*64*float16"


@pytest.mark.parametrize(
    ("options", "has", "lacks"),
    [
        ({}, ["{num_stages = 3}", "arith.mul %o, %inverse", "%q = tile.load_block %Q[", "tile.store_block %h"],
         ["arith.div %o", "gluon.rescale", "tile.load "]),
        ({"fast_math": False}, ["%out = arith.div %o, %lc"], ["%inverse"]),
        ({"stages": 5}, ["{num_stages = 5}"], []),
        ({"rescale": "each"}, [], ["gluon.rescale"]),
        ({"rescale": "late"}, ["gluon.rescale"], ["skip = true"]),
        ({"rescale": "lazy"}, ["gluon.rescale", "skip = true", "arith.mul %o, %inverse"], ["arith.div %o"]),
        ({"backend": "auto"}, ["%q = tile.load_block"], []),
        ({"backend": "triton"}, ["%q = tile.load "], ["load_block", "%part = gluon.warp_group_id"]),
    ],
    ids=str,
)  # fmt: skip
def test_attention_as_text(options: dict[str, Any], has: list[str], lacks: list[str]) -> None:
    made = ir_program(ATTENTION, parameters=OPERANDS, target=Target("cuda", 90))
    SelectEmitter(**{"backend": "gluon", **options}).run(made)
    verify(made.root)
    text = "\n".join(body_lines(made))
    assert all(each in text for each in has) and not any(each in text for each in lacks), text
    gluon_rows = re.search(r"%part = gluon.warp_group_id {parts = 2}", text) is not None
    assert gluon_rows is (options.get("backend") != "triton")


THREE = [
    ("128", "64"), ("%most =", "%s2 = tensor.dot %q, %kt, %s : tensor<64x64xfloat32> %most ="),
    ("reduce %s ", "reduce %s2 "), ("sub %s,", "sub %s2,"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "options", "has", "lacks"),
    [
        ([], {}, ["{num_stages = 3}", "skip = true", "arith.mul %o, %inverse", "tile.store_block %h"], ["div %o"]),
        ([], {"stages": 4}, ["{num_stages = 4}"], []),
        ([], {"rescale": "each"}, ["arith.mul %o, %inverse", "%old = arith.mul %acc, %fc"], ["gluon.rescale"]),
        ([], {"rescale": "late"}, ["arith.mul %o, %inverse", "%old = arith.mul %acc, %fc"], ["gluon.rescale"]),
        ([], {"fast_math": False}, ["%out = arith.div %o, %lc", "%old = arith.mul %acc, %fc"], ["gluon.rescale"]),
        ([], {"fast_math": False, "rescale": "lazy"}, ["%out = arith.div %o_1, %lc", "gluon.rescale"], []),
        ([("tensor.transpose %key", "tensor.transpose %v"), ("%v = tile.load %V[%ps, %j] : tensor<64x64xfloat16>", ""),
          ("%kt =", "%v = tile.load %V[%ps, %j] : tensor<64x64xfloat16> %kt =")], {},
         ["%v = tile.load_block %V[%ks, %c0] {axes = (0, 1)}"], ["load_block %K["]),
    ],
    ids=str,
)  # fmt: skip
def test_loops_in_order_as_text(
    changes: list[tuple[str, str]], options: dict[str, Any], has: list[str], lacks: list[str]
) -> None:
    """Three products of 64 rows, which one group of eight warps computes."""
    text = ATTENTION
    for before, after in [*THREE, *changes]:
        assert before in text, before
        text = text.replace(before, after)
    made = ir_program(text, parameters=OPERANDS, target=Target("cuda", 90))
    kernel_of(made).set_attribute("threads", 256)
    SelectEmitter(**{"backend": "gluon", **options}).run(made)
    verify(made.root)
    lines = body_lines(made)
    found = "\n".join(lines)
    assert all(each in found for each in has) and not any(each in found for each in lacks), found
    assert "%q = tile.load_block %Q[%first, %c0] {axes = (0, 1)} : tensor<64x64xfloat16>" in lines


CAUSAL = [
    ("%zero = arith", "%nought = arith.constant {value = 0.0} : float32\n"
     "%under = arith.constant {value = -inf} : float32\n%zero = arith"),
    ("%s = tensor.dot %q, %kt, %zero", "%at = arith.add %j, %ks : tensor<1x64xint32>\n"
     '%seen = arith.cmp %at, %rows {predicate = "le"} : tensor<128x64xbool>\n'
     f"%mask = arith.select %seen, %nought, %under : {WIDE}\n%s = tensor.dot %q, %kt, %mask"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("three", "options", "has", "lacks"),
    [
        (False, {}, ["%seen = arith.cmp %j,", "arith.cmp %k, %full", "= arith.select %seen_1, %s"], ["%mask"]),
        (False, {"fast_math": False}, ["%seen = arith.cmp %j,", "%s = tensor.dot %q, %kt, %mask"], []),
        (True, {}, ["%seen = arith.cmp %at, %rows", "%s = tensor.dot %q, %kt, %mask"], []),
    ],
)
def test_masks_of_scores_as_text(three: bool, options: dict[str, Any], has: list[str], lacks: list[str]) -> None:
    """Columns are compared with a number for each row, and masks come behind products, where consumers divide rows."""
    text = ATTENTION
    for before, after in [*CAUSAL, *(THREE if three else [])]:
        assert before in text, before
        text = text.replace(before, after)
    made = ir_program(text, parameters=OPERANDS, target=Target("cuda", 90))
    if three:
        kernel_of(made).set_attribute("threads", 256)
    SelectEmitter(**{"backend": "gluon", **options}).run(made)
    verify(made.root)
    found = "\n".join(body_lines(made))
    assert all(each in found for each in has) and not any(each in found for each in lacks), found
    assert "load_block" in found
