"""Which sums pick one place of an axis, and which only look as if they did."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.picks import pick_of
from tiledsl.dialects import tensor
from tiledsl.ir.kinds import of_kinds

PICK = """
%x = tile.load_block %A[%c0, %c0] {{axes = (0, 1)}} : tensor<32x64xfloat32>
%rows = tensor.iota {{axis = 0}} : tensor<32x1xint32>
%columns = tensor.iota {{axis = 1}} : tensor<1x64xint32>
{lanes}
%hit = arith.cmp {hit} {{predicate = "{predicate}"}} : tensor<{shape}xbool>

%only = arith.select %hit, %x, {off} : tensor<32x64xfloat32>
{cast}
%row = tensor.reduce {summed} {{kind = "{kind}", axis = 0}} : tensor<64x{dtype}>
"""
USUAL = {
    "lanes": "", "hit": "%rows, %s", "predicate": "eq", "shape": "32x1", "off": "%c0.0", "cast": "",
    "summed": "%only", "kind": "sum", "dtype": "float32",
}  # fmt: skip
NARROW = "%lanes = arith.cast %rows : tensor<32x1x{0}>\n%place = arith.cast %s : {0}"
HALF = "%half = arith.cast %only : tensor<32x64xfloat16>"


@pytest.mark.parametrize(
    ("changed", "is_pick"),
    [
        ({}, True),
        ({"predicate": "ne"}, False),
        ({"predicate": "le"}, False),
        ({"kind": "max"}, False),
        ({"off": "%c1.0"}, False),
        ({"hit": "%columns, %s", "shape": "1x64"}, False),
        ({"hit": "%rows, %columns", "shape": "32x64"}, False),
        ({"lanes": "%lanes = arith.add %rows, %c1 : tensor<32x1xint32>", "hit": "%lanes, %s"}, False),
        ({"kind": "prod", "off": "%c0.0"}, False),
        ({"cast": HALF, "summed": "%half", "dtype": "float16"}, True),
        (
            {
                "cast": HALF + "\n%wide = arith.cast %half : tensor<32x64xfloat32>",
                "summed": "%wide",
            },
            False,  # a conversion of the row to the sum's type would not round it
        ),
        ({"lanes": NARROW.format("int64"), "hit": "%lanes, %place"}, True),
        ({"lanes": NARROW.format("int8"), "hit": "%lanes, %place"}, True),
        ({"lanes": NARROW.format("float16"), "hit": "%lanes, %place"}, False),
    ],
    ids=str,
)
def test_what_is_a_pick(changed: dict[str, str], is_pick: bool) -> None:
    kernel = kernel_of(program(PICK.format(**USUAL | changed)))
    (reduction,) = of_kinds(kernel.walk(), tensor.ReduceOp)
    pick = pick_of(reduction)
    assert (pick is not None) == is_pick
    if pick is not None:
        assert pick.reduction is reduction and pick.tile.name == "x" and not pick.place.shape
        assert pick.place.name == ("place" if changed.get("lanes") else "s")


def by_narrow_numbers(rows: int) -> Any:
    @T.prim_func
    def main(A: T.Tensor((rows, 16), "float32"), W: T.Tensor((1,), "int8"), O: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((rows, 16), "float32")
            only = T.alloc_fragment((rows, 16), "float32")
            total = T.alloc_fragment((16,), "float32")
            T.copy(A, a)
            T.clear(total)
            for _ in T.serial(4):
                for i, j in T.Parallel(rows, 16):
                    only[i, j] = T.if_then_else(T.cast(i, "int8") == W[0], a[i, j], 0)
                T.reduce_sum(only, total, dim=0, clear=False)
            T.copy(total, O)

    return main


@pytest.mark.parametrize("rows", [64, 128, 512])
def test_places_that_are_alike_in_a_narrow_type_all_count(rows: int) -> None:
    """Of 512 rows the numbers 5 and 261 are alike in 8 bits; 128 is none of int8."""
    a = torch.arange(rows * 16, dtype=torch.float32).reshape(rows, 16) % 97
    out = torch.zeros(16)
    tiledsl.compile(by_narrow_numbers(rows), target="interpret")(a, torch.tensor([5], dtype=torch.int8), out)
    torch.testing.assert_close(out, 4 * a[5::256].sum(0), rtol=0, atol=0)
