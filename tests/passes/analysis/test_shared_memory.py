"""What kernels need of shared memory: a table of small ones."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.shared_memory import Needs, bytes_beside
from tiledsl.dialects import tile

TILE = 16 * 16 * 4
INDICES = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%zero = arith.constant {value = 0.0} : tensor<16x16xfloat32>
"""
ADDED = "%h = arith.add %r, %f : tensor<16x16xfloat32>\n"
LOAD = "%{name} = tile.load %{buffer}[%i, %j] : tensor<16x16xfloat32>\n"


def loop(stages: int, products: bool = True, vector: bool = False, result: str = "r") -> str:
    body = LOAD.format(name=f"a_{result}", buffer="A") + LOAD.format(name=f"b_{result}", buffer="B")
    if vector:  # which passes through registers
        body += f"%k_{result} = tensor.iota {{axis = 0}} : tensor<16xint32>\n"
        body += f"%v_{result} = tile.load %D[%k_{result}] : tensor<16xfloat32>\n"
    made = f"tensor.dot %a_{result}, %b_{result}, %acc" if products else f"arith.add %a_{result}, %acc"
    return f"""
    %{result} = scf.for %c0, %c8, %c1[%zero] {{num_stages = {stages}}} : tensor<16x16xfloat32>
        (%n_{result}: int32, %acc: tensor<16x16xfloat32>) {{
      {body}
      %d_{result} = {made} : tensor<16x16xfloat32>
      scf.yield [%d_{result}]
    }}
    """


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", Needs(0, 0, 0)),
        (LOAD.format(name="x", buffer="A"), Needs(0, 0, TILE)),
        (LOAD.format(name="x", buffer="A") + "tile.store %x, %B[%i, %j]", Needs(0, TILE, TILE)),
        (loop(3), Needs(3 * 2 * TILE, 0, 0)),
        (loop(3, vector=True), Needs(3 * 2 * TILE, 0, 0)),
        (loop(1), Needs(0, 0, TILE)), (loop(3, products=False), Needs(0, 0, TILE)),
        (loop(2) + LOAD.format(name="x", buffer="A"), Needs(2 * 2 * TILE, 0, TILE)),
        (loop(2) + loop(4, result="q"), Needs(4 * 2 * TILE, 0, 0)),
        # The sums themselves are copied while the operands are there; what is computed of them comes later.
        (loop(2) + "tile.store %r, %B[%i, %j]", Needs(4 * TILE, TILE, 0)),
        (loop(2) + ADDED + "tile.store %h, %B[%i, %j]", Needs(4 * TILE, TILE, 0)),
        (loop(2) + "tile.store %r, %B[%i, %j]\ntile.store %r, %A[%i, %j]", Needs(4 * TILE, 2 * TILE, 0)),
        (loop(2) + ADDED + "tile.store %h, %B[%i, %j]\ntile.store %h, %A[%i, %j]", Needs(4 * TILE, TILE, 0)),
        (loop(2) + "%h = arith.cast %r : tensor<16x16xfloat16>\n%w = arith.cast %h : tensor<16x16xfloat32>\n"
         "tile.store %w, %B[%i, %j]\ntile.store %r, %A[%i, %j]", Needs(4 * TILE, 2 * TILE, 0)),
    ],
)  # fmt: skip
def test_needs(body: str, expected: Needs) -> None:
    kernel = kernel_of(program(INDICES + body))
    assert isinstance(kernel, tile.KernelOp)
    found = Needs.of(kernel)
    assert found == expected
    assert found.flattened == expected.loop + expected.stored + expected.read + 1024


@pytest.mark.parametrize(
    ("value", "stages", "beside"),
    [
        ("%y = tensor.reshape %r : tensor<256xfloat32>", 2, 4 * TILE),
        ("%t = tensor.reshape %r : tensor<4x64xfloat32>\n"
         "%y = tensor.transpose %t {permutation = (1, 0)} : tensor<64x4xfloat32>",
         3, 6 * TILE),
        ("%y = arith.mul %r, %f : tensor<16x16xfloat32>", 2, 0), ("%y = tensor.reshape %r : tensor<256xfloat32>", 1, 0),
    ],
)  # fmt: skip
def test_what_lies_beside_a_stored_tile(value: str, stages: int, beside: int) -> None:
    kernel = kernel_of(program(INDICES + loop(stages) + value))
    (stored,) = [each for op in kernel.walk() for each in op.results if each.name == "y"]
    assert bytes_beside(stored) == beside
