"""The example in each operation's docstring parses, verifies, prints as it is written, and round-trips."""

from __future__ import annotations

import re

import pytest

import tiledsl.dialects  # noqa: F401
from tiledsl.ir.core import OPERATIONS, Effect, Operation
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.printer import print_op

F32 = "tensor<128x64xfloat32>"
LARGE = "buffer<300*500*float16, global>"
TILE = "buffer<128*64*float16, shared>"
LOOP = "tensor<64x64xfloat32>"

# Types of the free values of an example, where they are not that of its result.
TYPES: dict[str, dict[str, str]] = {
    "arith.cmp": {"a": "int32", "b": "int32"},
    "arith.select": {"c": "bool"},
    "arith.cast": {"x": "float32"},
    "arith.bitcast": {"x": "float32"},
    "arith.field": {"w": "uint16"},
    "scf.yield": {"a": "int32", "b": "int32"},
    "scf.condition": {"c": "bool", "a": "int32"},
    "scf.for": {"lo": "int32", "hi": "int32", "step": "int32"},
    "scf.if": {"c": "bool"},
    "tensor.broadcast": {"x": "tensor<128x1xfloat32>"},
    "tensor.reshape": {"x": "tensor<128x64xfloat32>"},
    "tensor.transpose": {"x": "tensor<128x64xfloat16>"},
    "tensor.reduce": {"x": F32},
    "tensor.dot": {"a": "tensor<128x32xfloat16>", "b": "tensor<32x128xfloat16>"},
    "tensor.gather": {"x": "tensor<128x32xfloat32>", "i": "tensor<128x64xint32>"},
    "tensor.histogram": {"x": "tensor<1024xint32>", "m": "tensor<1024xbool>"},
    "tensor.scatter": {"x": "tensor<256xint32>", "v": "tensor<1024xint32>", "p": "tensor<1024xint32>"},
    "tensor.sort": {"x": "tensor<64x32xfloat32>"},
    "tile.kernel": {"gx": "int32", "gy": "int32"},
    "gluon.longest_first": {"extent": "int32", "others": "int32"},
    "tile.copy": {"A": LARGE, "m": "int32", "k": "int32", "A_shared": TILE},
    "tile.fill": {"zero": "float32", "acc": "buffer<64*64*float32, fragment>"},
    "tile.gemm": {
        "A_shared": TILE,
        "B_shared": "buffer<32*64*float16, shared>",
        "C_local": "buffer<128*32*float32, fragment>",
    },
    "tile.reduce": {"x": "buffer<128*64*float32, fragment>", "m": "buffer<128*float32, fragment>"},
    "tile.scan": {"x": "buffer<128*64*float32, shared>", "y": "buffer<128*64*float32, shared>"},
    "tile.sort": {
        "x": "buffer<128*64*float32, shared>",
        "y": "buffer<128*64*float32, shared>",
        "i": "buffer<128*64*int32, fragment>",
    },
    "tile.read": {"A_shared": TILE},
    "tile.write": {"t": "tensor<128x64xfloat16>", "A_shared": TILE},
    "tile.load": {
        "A": LARGE,
        "rows": "tensor<128x1xint32>",
        "columns": "tensor<1x64xint32>",
        "m": "tensor<128x64xbool>",
    },
    "tile.store": {
        "x": "tensor<128x64xfloat16>",
        "C": LARGE,
        "rows": "tensor<128x1xint32>",
        "columns": "tensor<1x64xint32>",
        "m": "tensor<128x64xbool>",
    },
    "tile.load_block": {"A": LARGE, "m": "int32", "k": "int32"},
    "tile.store_block": {"x": "tensor<128x64xfloat16>", "C": LARGE, "m": "int32", "n": "int32"},
    "tile.atomic": {
        "x": F32,
        "C": "buffer<300*500*float32, global>",
        "rows": "tensor<128x1xint32>",
        "columns": "tensor<1x64xint32>",
    },
    "tile.print": {"x": "float32"},
    "tile.assert": {"c": "bool"},
    "tile.assume": {"c": "bool"},
    "thread.init_barriers": {"full": "buffer<1*uint64, shared>"},
    "thread.arrive": {"full": "buffer<2*uint64, shared>", "i": "int32"},
    "thread.wait": {"full": "buffer<2*uint64, shared>", "i": "int32", "parity": "int32"},
    "thread.async": {"full": "buffer<2*uint64, shared>", "i": "int32"},
    "thread.shuffle": {"lane": "int32"},
    "triton.launch": {"gx": "int32", "A": "buffer<300*float16, global>", "n": "int32"},
    "triton.addptr": {"A": "*float16", "offsets": "tensor<128x64xint32>"},
    "triton.load": {"p": "*int32", "m": "bool"},
    "triton.store": {"p": "tensor<128x*float32>", "x": "tensor<128xfloat32>", "m": "tensor<128xbool>"},
    "triton.descriptor": {"A": "buffer<300*512*float16, global>"},
    "triton.load_block": {"A": "*float16", "m": "int32", "k": "int32"},
    "triton.store_block": {"C": "*float16", "x": "tensor<128x64xfloat16>", "m": "int32", "n": "int32"},
    "gluon.rescale": {"acc": "tensor<64x128xfloat32>", "factor": "tensor<64xfloat32>"},
    "triton.atomic": {"p": "tensor<128x*float32>", "x": "tensor<128xfloat32>", "m": "tensor<128xbool>"},
}
# What stands for `...` in the regions of an example.
BODIES: dict[str, list[str]] = {
    "scf.for": ["scf.yield [%acc]"],
    "scf.if": [
        "%n = arith.constant {value = 1} : int32\nscf.yield [%n]",
        "%o = arith.constant {value = 2} : int32\nscf.yield [%o]",
    ],
    "scf.while": ["%t = arith.constant {value = true} : bool\nscf.condition %t[%a]", "scf.yield [%b]"],
}
AROUND = {
    "scf.yield": ["%f = arith.constant {value = false} : bool", "%x, %y = scf.if %f : int32, int32 {"],
    "scf.condition": ["%w = scf.while [%a] : int32 (%i: int32) {"],
}
BEHIND = {"scf.yield": ["} {", "scf.yield [%b, %a]", "}"], "scf.condition": ["} (%j: int32) {", "scf.yield [%j]", "}"]}


def example_of(name: str) -> str:
    found = re.search(r"Example:\s*`([^`]*)`", OPERATIONS[name].__doc__ or "")
    assert found, f"{name} has no example"
    return found[1]


def find(root: Operation, name: str) -> Operation:
    return next(op for op in root.walk() if op.name == name and (op is root or root.name != name))


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_example(name: str) -> None:
    example = example_of(name)
    head = example.split("{ ... }")[0].strip()
    text = example
    for body in BODIES.get(name, ["scf.yield"] * 2):
        text = text.replace("{ ... }", "{\n" + body + "\n}", 1)
    if name == "tile.func":
        source = text
    else:
        bound = re.findall(r"%(\w+)(?=:)", text) + re.findall(r"%(\w+)", text.split(" = ")[0])
        own = bound if " = " in text and text.startswith("%") else re.findall(r"%(\w+)(?=:)", text)
        if name == "triton.launch":
            own = ["A_ptr", "size"]
        free = [value for value in dict.fromkeys(re.findall(r"%(\w+)", example)) if value not in own]
        result = re.search(r" : ([^({]*?(?:<[^>]*>)?)(?: [({].*)?$", example)
        types = {value: TYPES.get(name, {}).get(value) or (result[1].strip() if result else "") for value in free}
        missing = [value for value, type in types.items() if not type]
        assert not missing, f"say in TYPES what {missing} are"
        if name == "scf.while":
            types = {"init": "int32"}
        arguments = ", ".join(f"%{value}: {type}" for value, type in types.items())
        inside = "\n".join([*AROUND.get(name, []), text, *BEHIND.get(name, [])])
        parameters = ", ".join(f'"{value}"' for value in types) + ("," if len(types) == 1 else "")
        bodiless = f'tile.func {{sym_name = "f", parameters = ({parameters})}}'
        source = (
            f"{bodiless} ({arguments}) {{\n{inside}\nscf.yield\n}}"
            if types
            else f"{bodiless} {{\n{inside}\nscf.yield\n}}"
        )
    root = parse_program(source).root
    printed = print_op(root)
    assert print_op(parse_program(printed).root) == printed
    assert any(line.strip().startswith(head) for line in printed.splitlines()), f"{head}\nprints as\n{printed}"
    clone = root.clone({})
    assert print_op(clone) == printed


def test_every_field_of_a_class_is_documented_by_its_type() -> None:
    for name, op_type in OPERATIONS.items():
        assert op_type.__doc__ and op_type.__doc__ != Operation.__doc__, name
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", name)


@pytest.mark.parametrize(
    "kind", [each for each in OPERATIONS.values() if each.region_fields], ids=lambda each: each.name
)
def test_what_has_regions_has_their_effects(kind: type[Operation]) -> None:
    """So that what has no effects at all has no regions either."""
    assert Effect.REGION in kind.effects and kind.has_effects
