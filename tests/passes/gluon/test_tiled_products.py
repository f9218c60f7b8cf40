"""Which kernels are one product in one loop, for Gluon."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.gluon.softmax_loops import NotRecognised
from tiledsl.analysis.gluon.tiled_products import find_tiled_product

TILES = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%zero = arith.constant {value = 0.0} : tensor<16x16xfloat32>
%a = tile.load %A[%i, %j] {guarded = true} : tensor<16x16xfloat32>
"""
DOT = "%d = tensor.dot %a, %a, %acc : tensor<16x16xfloat32>\n"
LOOP = "%r = scf.for %c0, %c4, %c1[%zero] : tensor<16x16xfloat32> (%k: int32, %acc: tensor<16x16xfloat32>) {"
STORE = "\nscf.yield [%d] }\ntile.store %r, %A[%i, %j] {guarded = true}"


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        (LOOP + "%d = arith.neg %acc : tensor<16x16xfloat32>", "0 products and 1 loops"),
        (LOOP + DOT.replace("%d", "%e") + DOT.replace("%acc", "%e"), "2 products and 1 loops"),
        ("%p = tensor.dot %a, %a, %zero : tensor<16x16xfloat32>\n" + LOOP + "%d = arith.add %acc, %p : "
         "tensor<16x16xfloat32>", "1 products and 1 loops"),
    ],
)  # fmt: skip
def test_what_is_not_one_product_in_one_loop(loop: str, found: str) -> None:
    kernel = kernel_of(program(TILES + loop + STORE))
    with pytest.raises(NotRecognised, match=f"{found} are not one product in one loop"):
        find_tiled_product(kernel.body)
