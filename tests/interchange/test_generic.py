"""The generic form: exact text, xDSL's verdict, the way back, and errors with their place."""

from __future__ import annotations

import random

import pytest

import tiledsl
from tests.golden.programs import example_programs, random_programs
from tests.interchange import foreign
from tests.interchange.whole import check, nameless, stages
from tests.ir.test_text import TEXTS
from tests.support.programs import NAMED
from tiledsl.dialects import tile
from tiledsl.errors import TileError
from tiledsl.interchange.parser import GenericParser, read_program
from tiledsl.interchange.printer import print_generic
from tiledsl.ir.core import Operation, Region
from tiledsl.ir.parser import parse_op
from tiledsl.ir.printer import print_op
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.target import Target


def parse_generic(text: str) -> Operation:
    return GenericParser(text, "<ir>").read()


VALUES = {
    "%i": "int32", "%j": "int32", "%u": "uint32", "%l": "int64", "%s": "int8", "%p": "bool", "%q": "bool",
    "%f": "float32", "%g": "float32", "%h": "float16", "%b": "bfloat16", "%e": "float8_e4m3fn", "%a": "*float16",
    "%I": "tensor<4x8xint32>", "%J": "tensor<4x8xint32>", "%F": "tensor<4x8xfloat32>", "%P": "tensor<4x8xbool>",
    "%R": "tensor<1x8xfloat32>", "%H": "tensor<4x8xfloat16>", "%X": "buffer<8*float32, global, strides(4)>",
}  # fmt: skip


def program(*lines: str) -> Operation:
    arguments = ", ".join(f"{name}: {type}" for name, type in VALUES.items())
    body = "\n".join(lines)
    names = ", ".join(f'"{name[1:]}"' for name in VALUES)
    return parse_op(f'tile.func {{sym_name = "f", parameters = ({names})}} ({arguments}) {{\n{body}\nscf.yield\n}}')


def generic(*lines: str) -> list[str]:
    """The lines of the program's body; what xDSL verifies and both ways back give is compared on the way."""
    root = program(*lines)
    check(print_op(root, locations=True))
    return [line.strip() for line in print_generic(root).splitlines()[2:-2]]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("%x = arith.add %i, %j : int32", '%x = "arith.addi"(%i, %j) : (i32, i32) -> (i32)'),
        ("%x = arith.add %u, %u : uint32", '%x = "tile.arith.add"(%u, %u) : (ui32, ui32) -> (ui32)'),
        ("%x = arith.sub %f, %g : float32", '%x = "arith.subf"(%f, %g) : (f32, f32) -> (f32)'),
        ("%x = arith.mul %e, %e : float8_e4m3fn", '%x = "tile.arith.mul"(%e, %e) : (f8E4M3FN, f8E4M3FN) -> (f8E4M3FN)'),
        ("%x = arith.max %F, %F : tensor<4x8xfloat32>",
         '%x = "arith.maxnumf"(%F, %F) : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<4x8xf32>)'),
        ("%x = arith.max %F, %R : tensor<4x8xfloat32>",
         '%x = "tile.arith.max"(%F, %R) : (tensor<4x8xf32>, tensor<1x8xf32>) -> (tensor<4x8xf32>)'),
        ("%x = arith.min %p, %q : bool", '%x = "tile.arith.min"(%p, %q) : (i1, i1) -> (i1)'),
        ("%x = arith.truncdiv %i, %j : int32", '%x = "arith.divsi"(%i, %j) : (i32, i32) -> (i32)'),
        ("%x = arith.floormod %i, %j : int32", '%x = "tile.arith.floormod"(%i, %j) : (i32, i32) -> (i32)'),
        ("%x = arith.and %P, %P : tensor<4x8xbool>",
         '%x = "arith.andi"(%P, %P) : (tensor<4x8xi1>, tensor<4x8xi1>) -> (tensor<4x8xi1>)'),
        ("%x = arith.shr %l, %l : int64", '%x = "arith.shrsi"(%l, %l) : (i64, i64) -> (i64)'),
        ("%x = arith.neg %h : float16", '%x = "arith.negf"(%h) : (f16) -> (f16)'),
        ("%x = arith.neg %i : int32", '%x = "tile.arith.neg"(%i) : (i32) -> (i32)'),
        ('%x = arith.cmp %i, %j {predicate = "lt"} : bool',
         '%x = "arith.cmpi"(%i, %j) <{predicate = 2 : i64}> : (i32, i32) -> (i1)'),
        ('%x = arith.cmp %f, %g {predicate = "ne"} : bool',
         '%x = "arith.cmpf"(%f, %g) <{predicate = 13 : i64}> : (f32, f32) -> (i1)'),
        ('%x = arith.cmp %f, %g {predicate = "ge"} : bool',
         '%x = "arith.cmpf"(%f, %g) <{predicate = 3 : i64}> : (f32, f32) -> (i1)'),
        ('%x = arith.cmp %p, %q {predicate = "eq"} : bool',
         '%x = "arith.cmpi"(%p, %q) <{predicate = 0 : i64}> : (i1, i1) -> (i1)'),
        ('%x = arith.cmp %p, %q {predicate = "lt"} : bool',
         '%x = "tile.arith.cmp"(%p, %q) {predicate = "lt"} : (i1, i1) -> (i1)'),
        ('%x = arith.cmp %I, %J {predicate = "lt"} : tensor<4x8xbool>',
         '%x = "tile.arith.cmp"(%I, %J) {predicate = "lt"} : (tensor<4x8xi32>, tensor<4x8xi32>) -> (tensor<4x8xi1>)'),
        ("%x = arith.select %p, %u, %u : uint32", '%x = "arith.select"(%p, %u, %u) : (i1, ui32, ui32) -> (ui32)'),
        ("%x = arith.select %p, %F, %F : tensor<4x8xfloat32>",
         '%x = "tile.arith.select"(%p, %F, %F) : (i1, tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<4x8xf32>)'),
        ("%x = arith.cast %s : int32", '%x = "arith.extsi"(%s) : (i8) -> (i32)'),
        ("%x = arith.cast %l : int8", '%x = "arith.trunci"(%l) : (i64) -> (i8)'),
        ("%x = arith.cast %p : int32", '%x = "arith.extui"(%p) : (i1) -> (i32)'),
        ("%x = arith.cast %p : float32", '%x = "arith.uitofp"(%p) : (i1) -> (f32)'),
        ("%x = arith.cast %i : bool", '%x = "tile.arith.cast"(%i) : (i32) -> (i1)'),
        ("%x = arith.cast %i : uint64", '%x = "tile.arith.cast"(%i) : (i32) -> (ui64)'),
        ("%x = arith.cast %i : float16", '%x = "arith.sitofp"(%i) : (i32) -> (f16)'),
        ("%x = arith.cast %f : int64", '%x = "arith.fptosi"(%f) : (f32) -> (i64)'),
        ("%x = arith.cast %h : bfloat16", '%x = "tile.arith.cast"(%h) : (f16) -> (bf16)'),
        ("%x = arith.cast %b : float32", '%x = "arith.extf"(%b) : (bf16) -> (f32)'),
        ("%x = arith.cast %F : tensor<4x8xfloat16>",
         '%x = "arith.truncf"(%F) : (tensor<4x8xf32>) -> (tensor<4x8xf16>)'),
        ("%x = arith.cast %F : tensor<4x8xint32>",
         '%x = "tile.arith.cast"(%F) : (tensor<4x8xf32>) -> (tensor<4x8xi32>)'),
        ("%x = arith.bitcast %f : int32", '%x = "arith.bitcast"(%f) : (f32) -> (i32)'),
        ("%x = arith.bitcast %u : int32", '%x = "tile.arith.bitcast"(%u) : (ui32) -> (i32)'),
        ('%x = arith.math [%f] {function = "exp2"} : float32',
         '%x = "tile.arith.math"(%f) {function = "exp2"} : (f32) -> (f32)'),
        ("%x = arith.constant {value = 300} : int32", '%x = "arith.constant"() <{value = 300 : i32}> : () -> (i32)'),
        ("%x = arith.constant {value = 3} : uint8", '%x = "tile.arith.constant"() {value = 3 : i64} : () -> (ui8)'),
        ("%x = arith.constant {value = true} : bool", '%x = "arith.constant"() <{value = true}> : () -> (i1)'),
        ("%x = arith.constant {value = -0.0} : float16",
         '%x = "arith.constant"() <{value = -0.0 : f16}> : () -> (f16)'),
        ("%x = arith.constant {value = 0.1} : float16",
         '%x = "arith.constant"() <{value = 0.1 : f16}> {tile.value = 0.1 : f64} : () -> (f16)'),
        ("%x = arith.constant {value = 1e-07} : float64",
         '%x = "arith.constant"() <{value = 1.0e-07 : f64}> : () -> (f64)'),
        ("%x = arith.constant {value = 1e+30} : float16",
         '%x = "tile.arith.constant"() {value = 1.0e+30 : f64} : () -> (f16)'),
        ("%x = arith.constant {value = -inf} : float32",
         '%x = "arith.constant"() <{value = 0xFF800000 : f32}> : () -> (f32)'),
        ("%x = arith.constant {value = nan} : bfloat16",
         '%x = "arith.constant"() <{value = 0x7FC0 : bf16}> : () -> (bf16)'),
        ("%x = arith.constant {value = 7} : tensor<4x8xint32>",
         '%x = "arith.constant"() <{value = dense<7> : tensor<4x8xi32>}> : () -> (tensor<4x8xi32>)'),
        ("%x = arith.constant {value = -inf} : tensor<4x8xfloat32>",
         '%x = "arith.constant"() <{value = dense<"0x000080FF"> : tensor<4x8xf32>}> : () -> (tensor<4x8xf32>)'),
        ("%x = arith.constant {value = nan} : tensor<4x8xfloat16>",
         '%x = "arith.constant"() <{value = dense<"0x007E"> : tensor<4x8xf16>}> : () -> (tensor<4x8xf16>)'),
        ("%x = tensor.iota {axis = 0} : tensor<4xint32>",
         '%x = "tile.tensor.iota"() {axis = 0 : i64} : () -> (tensor<4xi32>)'),
        ("%x = triton.addptr %a, %I : tensor<4x8x*float16>",
         '%x = "triton.addptr"(%a, %I) : (!tile.t<"*float16">, tensor<4x8xi32>) -> (tensor<4x8x!tile.t<"*float16">>)'),
    ],
)  # fmt: skip
def test_an_operation(line: str, wanted: str) -> None:
    assert generic(line) == [wanted]


@pytest.mark.parametrize(
    "text", ["0xFF800000", "0xff800000", '"0x000080FF"', "[0xff800000, 0xff800000, 0xff800000, 0xff800000]"]
)
def test_infinities_of_tiles_are_read_as_tools_write_them(text: str) -> None:
    line = f'%x = "arith.constant"() <{{value = dense<{text}> : tensor<4xf32>}}> : () -> tensor<4xf32>'
    assert read_program(HEAD + line + TAIL).root.regions[0].ops[0].attributes["value"] == float("-inf")


def test_numbers_of_tiles_that_are_written_one_by_one() -> None:
    line = '%x = "arith.constant"() <{value = dense<[[0x7e00, 0x7e00]]> : tensor<1x2xf16>}> : () -> tensor<1x2xf16>'
    assert repr(read_program(HEAD + line + TAIL).root.regions[0].ops[0].attributes["value"]) == "nan"


def test_distances_that_only_ours_can_shift_by() -> None:
    lines = generic("%c = arith.constant {value = 32} : int32", "%x = arith.shl %i, %c : int32")
    assert lines[1] == '%x = "tile.arith.shl"(%i, %c) : (i32, i32) -> (i32)'
    lines = generic("%c = arith.constant {value = 31} : int32", "%x = arith.shl %i, %c : int32")
    assert lines[1] == '%x = "arith.shli"(%i, %c) : (i32, i32) -> (i32)'


@pytest.mark.parametrize(
    ("step", "standard"),
    [
        ("%c = arith.constant {value = 2} : int32", True),
        ("%c = arith.constant {value = -2} : int32", False),
        ("", False),
    ],
)
def test_a_loop_is_standard_where_its_step_is_known_to_be_positive(step: str, standard: bool) -> None:
    name = "%c" if step else "%i"
    loop = (
        f"%r = scf.for %i, %j, {name}[%f] {{num_stages = 3}} : float32 (%k: int32, %v: float32) {{\nscf.yield [%v]\n}}"
    )
    lines = generic(*filter(None, [step, loop]))[bool(step) :]
    if standard:
        assert lines == [
            '%r = "scf.for"(%i, %j, %c, %f) ({', "^bb0(%k : i32, %v : f32):", '"scf.yield"(%v) : (f32) -> ()',
            "}) {tile.num_stages = 3 : i64} : (i32, i32, i32, f32) -> (f32)",
        ]  # fmt: skip
    else:
        assert lines[0] == f'%r = "tile.scf.for"(%i, %j, {name}, %f) ({{'
        assert lines[2:] == [
            '"tile.scf.yield"(%v) : (f32) -> ()',
            "}) {num_stages = 3 : i64} : (i32, i32, i32, f32) -> (f32)",
        ]


def test_branches_and_whiles_are_standard() -> None:
    lines = generic(
        "%r = scf.if %p : int32 {\nscf.yield [%i]\n} {\nscf.yield [%j]\n}",
        "%w = scf.while [%i] : int32 (%m: int32) {\nscf.condition %p[%m]\n} (%n: int32) {\nscf.yield [%n]\n}",
    )
    assert [line.split('"')[1] for line in lines if '"' in line] == [
        "scf.if", "scf.yield", "scf.yield", "scf.while", "scf.condition", "scf.yield",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        0, -1, 2**40, 2**63, -(2**200), True, None, "", 'a "b"\n\\ é',
        "\udc80", "inf", (), (1, ("x", 2.5), (None, True)),
        0.5, -0.0, 1e30, 1e-30, 2.5e-7, float("inf"), float("-inf"), float("nan"),
    ],
)  # fmt: skip
def test_attributes(value: object) -> None:
    root = tile.FuncOp(sym_name="f", parameters=(), regions=[Region()], extra=value)
    text = print_generic(root)
    assert repr(parse_generic(text).attributes["extra"]) == repr(value)
    if value != "\udc80":  # xDSL refuses what is not UTF-8
        assert repr(parse_generic(foreign.text_of(foreign.read(text))).attributes["extra"]) == repr(value)


def test_names_of_any_alphabet() -> None:
    root = parse_op(
        'tile.func {sym_name = "f", parameters = ()} (%größe: int32, %_x: int32, %β2: int32, %1a: int32) {\n}'
    )
    text = print_generic(root)
    assert "^bb0(%gr$f6.$df.e : i32, %_x : i32, %$3b2.2 : i32, %$31.a : i32):" in text
    assert print_op(parse_generic(text)) == print_op(root)
    assert foreign.names(foreign.read(text)) == ["tile.func"]


def test_locations_are_kept() -> None:
    root = parse_op(TEXTS[0])
    places = [op.loc for op in root.walk()]
    assert [op.loc for op in parse_generic(print_generic(root, locations=True)).walk()] == places
    assert not any(op.loc.line for op in parse_generic(print_generic(root)).walk())


@pytest.mark.parametrize("name", NAMED)
def test_named_programs(name: str) -> None:
    check(print_op(NAMED[name]()))


def test_pointers_launches_and_options() -> None:
    check(TEXTS[-1])


def test_programs_at_every_level() -> None:
    """The levels of two examples, and the last of some random programs; `make interchange` does more."""
    for name in ("softmax", "gemm_lazy"):
        golden = next(example_programs(name))
        found = stages(golden)
        assert len(found) > 8
        for text in found[::4]:
            check(text, elsewhere=text in (found[0], found[-1], found[8]))
    for golden in random_programs((3, 11)):
        check(stages(golden)[-1])


def test_a_kernel_goes_on_from_the_generic_form() -> None:
    golden = next(example_programs("softmax"))
    kernel = Kernel(golden.build, Target.parse(golden.target), golden.options)
    for after in ("", "guard-accesses", "lower-to-triton"):
        text = kernel.ir(after, generic=True, locations=True)
        plain = kernel.ir(after, locations=True)
        sources = [
            tiledsl.resume(ir, after=after or "elaborate", target=golden.target, pass_configs=golden.options).source
            for ir in (text, plain)
        ]
        assert sources[0] == sources[1] and "tl.exp2" in sources[0]


# What other tools write


def test_what_other_tools_add_is_read() -> None:
    text = """// from elsewhere
"builtin.module"() ({
  "tile.func"() ({
  ^bb0(%arg0: i32 loc("a.py":1:2), %arg1: f32, %arg2: !tile.t<"buffer<4*int32, global>">):
    %0 = "arith.addi"(%arg0, %arg0) <{overflowFlags = #arith.overflow<nsw, nuw>}> : (i32, i32) -> i32 loc("a.py":3:4)
    %1:2 = "scf.if"(%2x) ({
    }, {
    }) : (i1) -> (i32, i32)
  }) {parameters = ["a", "b", "c"], sym_name = "f"} : () -> () loc(unknown)
}) : () -> ()
"""
    with pytest.raises(TileError, match=r"<ir>:6:21: error: %2 is not defined here"):
        parse_generic(text)
    text = text.replace('"scf.if"(%2x) ({', '"scf.if"(%c) ({\n"scf.yield"(%0, %arg0) : (i32, i32) -> ()')
    text = text.replace("}, {", '}, {\n"scf.yield"(%0, %0) : (i32, i32) -> ()')
    compare = (
        '%c = "arith.cmpf"(%arg1, %arg1) {fastmath = #arith.fastmath<none>, predicate = 4} : (f32, f32) -> i1\n    %1:2'
    )
    text = text.replace("%1:2", compare).replace("}) {para", '"tile.scf.yield"(%1#1) : (i32) -> ()\n}) {para')
    root = read_program(text).root
    assert nameless(root) == (
        'tile.func {sym_name = "f", parameters = ("a", "b", "c")} '
        "(%0: int32, %1: float32, %2: buffer<4*int32, global>) {\n"
        "  %3 = arith.add %0, %0 : int32\n"
        '  %4 = arith.cmp %1, %1 {predicate = "lt"} : bool\n'
        "  %5, %6 = scf.if %4 : int32, int32 {\n    scf.yield [%3, %0]\n  } {\n    scf.yield [%3, %3]\n  }\n"
        "  scf.yield [%6]\n}"
    )
    loc = root.regions[0].ops[0].loc
    assert (loc.file, loc.line, loc.column, loc.end_column) == ("a.py", 3, 4, 5)


HEAD = '"tile.func"() ({\n^bb0(%i : i32, %f : f32, %u : ui32, %F : tensor<4xf32>):\n  '
TAIL = '\n  "tile.scf.yield"() : () -> ()\n}) {sym_name = "f", parameters = ["i", "f", "u", "F"]} : () -> ()'


@pytest.mark.parametrize(
    ("line", "message", "column"),
    [
        ('%x = "arith.addi"(%f, %f) : (f32, f32) -> f32', "arith.addi does not take f32, f32", 8),
        ('%x = "arith.addi"(%u, %u) : (ui32, ui32) -> ui32', "arith.addi does not take ui32, ui32", 8),
        ('%x = "arith.addi"(%i, %i) : (i32, i64) -> i32', "arith.addi: an operand is i32, not i64", 8),
        ('%x = "arith.addi"(%i, %i) : (i32) -> i32', "arith.addi has 2 operands and types for 1", 8),
        ('%x = "arith.ceildivsi"(%i, %i) : (i32, i32) -> i32', "arith.ceildivsi has no counterpart", 8),
        ('%x = "arith.add"(%i, %i) : (i32, i32) -> i32', "arith.add has no counterpart", 8),
        ('%x = "tile.arith.ad"(%i, %i) : (i32, i32) -> i32', "no operation is named 'arith.ad'", 8),
        ('%x = "arith.cmpi"(%i, %i) <{predicate = 6 : i64}> : (i32, i32) -> i1',
         "arith.cmpi of i32, i32 with predicate 6 has no counterpart", 8),
        ('%x = "arith.cmpf"(%f, %f) : (f32, f32) -> i1', "arith.cmpf of f32, f32 with predicate None", 8),
        ('%x = "arith.truncf"(%f) <{roundingmode = 3 : i32}> : (f32) -> f16', "rounded to the nearest only", 8),
        ('%x = "arith.extf"(%f) : (f32) -> f16', "arith.extf from f32 to f16 is none", 8),
        ('%x = "arith.extf"() : () -> f16', "arith.extf from nothing to f16 is none", 8),
        ('%x = "arith.constant"() <{value = 3 : i32}> : () -> f32', "the constant of float32 is 3, without a point", 8),
        ('%x = "arith.constant"() : () -> f32', "arith.constant needs the attribute 'value'", 8),
        ('%x = "arith.constant"() <{value = 3 : f32}> : () -> f32', "3 of f32 is written with a point", 37),
        ('%x = "arith.constant"() <{value = dense<[1, 2]> : tensor<2xi32>}> : () -> tensor<2xi32>',
         "the elements of a tile's constant differ", 37),
        ('"scf.if"(%i) ({}) : (i32) -> ()', "scf.if has 2 regions, not 1", 3),
        ('"scf.if"(%i) ({\n^bb0:\n^bb1:\n}, {}) : (i32) -> ()', "a region has one block here", None),
        ('%x:0 = "arith.addi"(%i, %i) : (i32, i32) -> i32', "expected a name", 3),
        ('%x = "arith.addi"(%i, %y) : (i32, i32) -> i32', "%y is not defined here", 25),
        ('%i = "arith.addi"(%i, %i) : (i32, i32) -> i32', "%i is defined twice", None),
        ("%x = arith.addi %i, %i : i32", "expected an operation's name in quotes, as --mlir-print-op-generic", 8),
        ('%x = "tile.load"(%F) : (tensor<4xf32>) -> f32', "tile.load needs operandSegmentSizes", 8),
        ('%x = "tile.arith.select"(%i) : (i32) -> i32', "arith.select has 3 operand fields, not 1 operands", 8),
        ('%x = "arith.addi"(%i, %i) : (i32, i32) -> index', "there is no type index", 45),
        ('%x = "arith.addi"(%i, %i) {nuw} : (i32, i32) -> i32', "arith.addi has no attribute 'nuw' here", 8),
        ('%x = "arith.addi"(%i, %i) ; : (i32, i32) -> i32', "unexpected character ';'", 29),
    ],
)  # fmt: skip
def test_errors_have_their_place(line: str, message: str, column: int | None) -> None:
    with pytest.raises(TileError) as caught:
        read_program(HEAD + line + TAIL, None, "broken.mlir")
    error = caught.value
    assert message in error.message, error.message
    if column is not None:
        assert error.loc is not None and (error.loc.file, error.loc.line, error.loc.column) == (
            "broken.mlir",
            3,
            column,
        )


SNIPPETS = [
    *[
        "%",
        "%i",
        "%i#1",
        "%i:2",
        "(",
        ")",
        "({",
        "})",
        "<{",
        "}>",
        "^bb0",
        "[",
        "]",
        ",",
        " : ",
        "=",
        "->",
        "-1",
        "0x7F",
    ],
    *['"', "<", ">", "\\", "i32", "f16", "ui8", "index", "true", "unit", "dense<1>", "array<i32: 1>", "array<i32>"],
    *[
        "tensor<4xi32>",
        'tensor<4x!tile.t<"*int8">>',
        '!tile.t<"buffer<4*int8, local>">',
        '!tile.t<"\\FF">',
        "loc(",
        "\n",
    ],
    *[
        'loc("a":1:2)',
        "loc(fused[])",
        "#arith.fastmath<fast>",
        '"scf.yield"',
        '"builtin.module"',
        "1.0e5",
        "é",
        "9" * 40,
    ],
]


@pytest.mark.parametrize("seed", range(4))
def test_broken_text_raises_tile_errors_only(seed: int) -> None:
    rng = random.Random(seed)
    texts = [print_generic(parse_op(text), locations=number == 0) for number, text in enumerate(TEXTS)]
    texts = ["\n".join(text.splitlines()[:25]) if len(text) > 6000 else text for text in texts]
    read, refused = 0, 0
    for _ in range(60):
        text = rng.choice(texts)
        for _ in range(rng.randint(0, 3)):
            if rng.random() < 0.5:
                start, length = rng.randrange(len(text)), rng.choice([0, 1, 2, 5, 20])
                text = text[:start] + rng.choice(["", *SNIPPETS]) + text[start + length :]
            else:
                words = text.split(" ")
                words[rng.randrange(len(words))] = rng.choice([*words, *SNIPPETS])
                text = " ".join(words)
        try:
            root = read_program(text if text.lstrip().startswith('"') else '"' + text).root
        except TileError as error:
            assert error.loc is not None and error.loc.line > 0
            refused += 1
            continue
        again = print_generic(root)
        assert print_generic(parse_generic(again)) == again
        read += 1
    assert refused > 20 and read > 0


def test_deep_nesting_ends() -> None:
    for text in ('"f"() {a = ' + "[" * 20_000, '"scf.if"() (' + '{"scf.if"() (' * 5_000, '"' * 50_001, "%a" * 20_000):
        with pytest.raises(TileError):
            parse_generic(text)
