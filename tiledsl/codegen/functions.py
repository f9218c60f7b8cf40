"""Names in Triton: element types, and combining functions that a module defines for itself."""

from __future__ import annotations

import math
import struct

from tiledsl.ir.types import ELEMENTS

SIGNATURE_TYPES = {
    "bool": "i1", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
    "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip
TRITON_TYPES = {
    **{name: f"tl.{name}" for name in ELEMENTS},
    **{name: f"tl.float{short[2:]}" for name, short in SIGNATURE_TYPES.items() if name.startswith("float8")},
    "bool": "tl.int1",
}

TORCH_TYPES = {name: f"torch.{name}" for name in ELEMENTS}

# Functions that combine elements in tl.reduce and tl.associative_scan, by name: their bodies. These combine a with b
# behind it, and of two tiles f and a with g and b.
COMBINE_FUNCTIONS = {
    "_add": "a + b",
    "_multiply": "a * b",
    "_second": "b",
    "_linear": "f * g, g * a + b",
    "_add_two": "f + g, a + b",
    "_and": "a & b",
    "_or": "a | b",
    "_maximum": "tl.maximum(a, b)",
    "_minimum": "tl.minimum(a, b)",
    "_maximum_or_nan": "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "_minimum_or_nan": "tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
}


def combine_function(name: str) -> str:
    """The text of a combining function."""
    arguments = "f, a, g, b" if name in ("_linear", "_add_two") else "a, b"
    return f"@triton.jit\ndef {name}({arguments}):\n    return {COMBINE_FUNCTIONS[name]}"


def field_function(source: str, out: str, shift: int, mask: int, bits: int) -> tuple[str, str]:
    """The name and the text of a function that is arith.field.

    It takes pairs of elements, which neither LLVM nor ptxas finds. A shift of a pair takes bits along from one element
    to the other, but none that the mask has.
    """
    name = f"_field_{shift}_{mask:x}_{bits:x}_{source}_{out}"
    words = 2 if source == "uint8" else 1
    steps = []
    for word in range(words):
        steps.append(f"prmt.b32 t, $2, 0, 0x4{2 * word + 1}4{2 * word};" if words == 2 else "")
        if shift:
            steps.append(f"shr.b32 t, {'t' if words == 2 else '$1'}, {shift};")
        given = "t" if words == 2 or shift else "$1"
        steps.append(f"lop3.b32 ${word}, {given}, {mask * 0x10001:#x}, {bits * 0x10001:#x}, 0xea;")
    text = " ".join(["{ .reg .b32 t;", *filter(None, steps), "}"])
    constraints = ",".join(["=r"] * words + ["r"])
    return (
        name,
        f'''@triton.jit
def {name}(x):
    """((x >> {shift}) & {mask:#x}) | {bits:#x}, as {out}, for each element."""
    return tl.inline_asm_elementwise(
        "{text}",
        "{constraints}", [x], dtype={TRITON_TYPES[out]}, is_pure=True, pack={2 * words},
    )''',
    )


def literal(number: bool | int | float, dtype: str) -> str:
    """A Python literal of this value; short where fewer digits give the same float32."""
    if not isinstance(number, float):
        return repr(number)
    if math.isnan(number):
        return 'float("nan")'
    if math.isinf(number):
        return 'float("inf")' if number > 0 else 'float("-inf")'
    if dtype != "float64":
        for digits in (6, 7, 8, 9):
            text = repr(float(f"{number:.{digits}g}"))
            if _float32(float(text)) == _float32(number):
                return text
    return repr(number)


def _float32(number: float) -> bytes:
    try:
        return struct.pack("f", number)
    except OverflowError:
        return struct.pack("f", math.copysign(math.inf, number))
