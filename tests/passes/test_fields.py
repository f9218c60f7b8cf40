"""Small integers that become 16-bit floats: fields of words beside the bits of a power of two."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.passes.ir_cases import after, program
from tests.support.executor import DTYPES
from tests.support.programs import check_pass
from tiledsl.dialects import arith
from tiledsl.passes.dce import Dce
from tiledsl.passes.legalize_arith import LegalizeArith
from tiledsl.runtime.target import Target

HOPPER = Target("cuda", 90)


def body(words: str, steps: str, dtype: str) -> str:
    """y = (a float of a tile of words) - 1, for all words from a start on."""
    return f"""
    %n = tensor.iota {{axis = 0}} : tensor<256xint32>
    %o = arith.mul %bx, %c256 : int32
    %p = arith.add %o, %n : tensor<256xint32>
    %w = tile.load %W[%p] : tensor<256x{words}>
    {steps.replace("TILE", f"tensor<256x{words}>").replace("FLOATS", f"tensor<256x{dtype}>")}
    tile.store %y, %Y[%p]"""


def field(shift: int, mask: int | None, bias: float = 0.0) -> str:
    text = f"%s = arith.constant {{value = {shift}}} : TILE\n%v = arith.shr %w, %s : TILE\n"
    if mask is not None:
        text += f"%k = arith.constant {{value = {mask}}} : TILE\n%m = arith.and %v, %k : TILE\n"
    text += f"%{'f' if bias else 'y'} = arith.cast %{'v' if mask is None else 'm'} : FLOATS\n"
    if bias:
        text += f"%b = arith.constant {{value = {bias}}} : FLOATS\n%y = arith.sub %f, %b : FLOATS"
    return text


def check(words: str, dtype: str, steps: str) -> list[arith.Operation]:
    """Run the pass for an NVIDIA GPU, and both texts on every word; the operations of arithmetic that are left."""
    count = 1 << (8 if words.endswith("int8") else 16)
    made = program(
        body(words, steps, dtype), parameters=f"W: {count}*{words}, Y: {count}*{dtype}", grid=(count // 256,),
        target=HOPPER,
    )  # fmt: skip
    every = np.arange(count, dtype=f"uint{words[-2:] if words.endswith('16') else 8}").view(words)
    result = check_pass([LegalizeArith(), Dce()], made.root, [every, np.zeros(count, DTYPES[dtype])], target=HOPPER)
    return [op for op in result.walk() if isinstance(op, arith.Elementwise) and op.result.dtype == dtype]


@pytest.mark.parametrize(("words", "shift", "mask", "bias", "dtype", "made"), [
    ("uint16", 0, 15, 0.0, "float16", (0, 15, 0x6400)), ("uint16", 4, 15, 8.0, "float16", (0, 240, 0x6400)),
    ("uint16", 8, 15, 8.0, "float16", (8, 15, 0x6400)), ("uint16", 12, None, 8.0, "float16", (8, 240, 0x6400)),
    ("int16", 12, 15, 8.0, "float16", (8, 240, 0x6400)), ("uint8", 4, None, -3.0, "float16", (0, 240, 0x6400)),
    ("uint8", 0, 3, 2.0, "bfloat16", (0, 3, 0x4300)), ("uint16", 4, 15, 8.0, "bfloat16", (4, 15, 0x4300)),
    ("uint16", 3, 127, 64.0, "bfloat16", (3, 127, 0x4300)), ("uint16", 6, 1023, 1024.0, "float16", (6, 1023, 0x6400)),
])  # fmt: skip
def test_field(words: str, shift: int, mask: int | None, bias: float, dtype: str, made: tuple[int, int, int]) -> None:
    left = check(words, dtype, field(shift, mask, bias))
    assert [(op.shift, op.mask, op.bits) for op in left if isinstance(op, arith.FieldOp)] == [made]
    assert not any(isinstance(op, arith.CastOp) for op in left)
    assert sum(isinstance(op, arith.SubOp) for op in left) == 1


@pytest.mark.parametrize(("words", "steps", "dtype"), [
    ("uint16", field(0, 2047), "float16"),  # more than 10 bits
    ("uint16", field(0, 255), "bfloat16"),  # more than 7
    ("uint16", field(4, 10), "float16"),  # bits apart
    *((words, field(shift, None), "float16") for words, shift in (("int16", 4), ("int16", 8), ("int8", 4))),  # a sign
    ("int16", field(8, 255 << 2), "float16"),  # a sign, repeated
    ("uint16", field(0, 15), "float32"),
    ("int32", field(0, 15), "float16"),
])  # fmt: skip
def test_no_field(words: str, steps: str, dtype: str) -> None:
    if words != "int32":
        assert not any(isinstance(op, arith.FieldOp) for op in check(words, dtype, steps))
    else:
        given = body(words, steps, dtype)
        text = after(LegalizeArith(), given, parameters=f"W: 256*{words}, Y: 256*{dtype}", target=HOPPER)
        assert not any("arith.field" in line for line in text)


@pytest.mark.parametrize("bias", [0.5, 1025.0, -1024.5, math.inf, -math.inf])
def test_a_number_that_stays_apart(bias: float) -> None:
    """What may be rounded is subtracted by itself."""
    left = check("uint16", "float16", field(0, 1023, bias))
    assert sum(isinstance(op, arith.SubOp) for op in left) == 2


@pytest.mark.parametrize(("bias", "apart"), [(1024.0, False), (1025.0, True), (-60.0, False), (-64.0, True)])
def test_numbers_up_to_the_power_beside_a_field_are_subtracted_with_it(bias: float, apart: bool) -> None:
    """As integers below 2 ** 11; what is left is not negative. The same number may be added."""
    steps = field(4, 15, bias)
    for each in (steps, steps.replace("arith.sub", "arith.add").replace(f"= {bias}", f"= {-bias}")):
        left = check("uint16", "float16", each)
        assert sum(type(op) in (arith.SubOp, arith.AddOp) for op in left) == 1 + apart


@pytest.mark.parametrize("target", [Target("interpret"), Target("hip", "gfx942")], ids=str)
def test_elsewhere_conversions_stay(target: Target) -> None:
    given = body("uint16", field(4, 15), "float16")
    text = after(LegalizeArith(), given, parameters="W: 256*uint16, Y: 256*float16", target=target)
    assert not any("arith.field" in line for line in text)
