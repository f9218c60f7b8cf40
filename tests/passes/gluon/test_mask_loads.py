"""Selects between loaded rows and 0 become masks of loads that products read; others stay."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.ir_cases import body_lines, kernel_of, program
from tests.support import executor
from tiledsl.ir.verifier import verify
from tiledsl.passes.gluon.mask_loads import mask_loads

TILE, HALF = "tensor<16x16xfloat32>", "tensor<16x16xfloat16>"
START = f"""
%i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
%j = tensor.iota {{axis = 1}} : tensor<1x16xint32>
%place = tile.load %N[%i] : tensor<16x1xint32>
%kept = arith.cmp %place, %c4 {{predicate = "ge"}} : tensor<16x1xbool>
%other = arith.cmp %place, %c9 {{predicate = "lt"}} : tensor<16x1xbool>
%a = tile.load %A[%i, %j] : {TILE}
"""
END = f"""
%zero = arith.constant {{value = 0.0}} : {TILE}
%product = tensor.dot %a, %b, %zero : {TILE}
tile.store %product, %B[%i, %j]
"""


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (f"%l = tile.load %A[%place, %j] : {TILE}\n%b = arith.select %kept, %l, %c0.0 : {TILE}", "mask=%kept"),
        (f"%l = tile.load %A[%place, %j] mask=%other : {TILE}\n%b = arith.select %kept, %l, %c0.0 : {TILE}", "and %ot"),
        (f"%l = tile.load %A[%place, %j] : {TILE}\n%b = arith.select %kept, %l, %c1.0 : {TILE}", ""),
        (f"%l = tile.load %A[%place, %j] : {TILE}\n%s = arith.select %kept, %l, %c0.0 : {TILE}\n"
         f"%b = arith.add %s, %l : {TILE}", ""),
        (f"%l = tile.load %A[%place, %j] : {TILE}\n%h = arith.cast %l : {HALF}\n%g = arith.cast %h : {TILE}\n"
         f"%b = arith.select %kept, %g, %c0.0 : {TILE}", ""),
        (f"%l = tile.load %A[%place, %j] : {TILE}\n%late = arith.and %kept, %other : tensor<16x1xbool>\n"
         f"%b = arith.select %late, %l, %c0.0 : {TILE}", "mask=%late"),
        (f"%l = tile.load %A[%place, %j] : {TILE}\ntile.store %a, %A[%place, %j]\n"
         f"%late = arith.and %kept, %other : tensor<16x1xbool>\n%b = arith.select %late, %l, %c0.0 : {TILE}", ""),
    ],
    ids=["a row", "of some", "other than 0", "read twice", "rounded", "known behind it", "known behind a write"],
)  # fmt: skip
def test_masks(body: str, wanted: str) -> None:
    made = program(START + body + END, grid=(1,))
    arrays = lambda: [
        np.random.default_rng(0).uniform(0.5, 2, (64, 96)).astype(np.float32), np.zeros((64, 96), np.float32),
        np.arange(1000, dtype=np.int32), np.ones(5, np.float32), 3, 1.0, True, 1,
    ]  # fmt: skip
    expected, found = arrays(), arrays()
    executor.run(made.root, expected)
    mask_loads(kernel_of(made).regions[0])
    verify(made.root)
    executor.run(made.root, found)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)  # type: ignore[arg-type]
    after = "\n".join(body_lines(made))
    assert wanted in after and ("arith.select" in after) is not bool(wanted)
