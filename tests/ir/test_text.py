"""The text form: round trips, names, attributes, locations, and errors with their place."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.programs import NAMED, programs
from tiledsl.dialects import arith, scf, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region
from tiledsl.ir.parser import parse_op
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.printer import attribute_text, print_op, same_attribute
from tiledsl.ir.types import ScalarType
from tiledsl.ir.verifier import verify
from tiledsl.location import UNKNOWN, Loc

I32 = ScalarType("int32")


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("locations", [False, True])
def test_named_programs_round_trip(name: str, locations: bool) -> None:
    root = NAMED[name]()
    for number, op in enumerate(root.walk()):
        if number % 3:
            op.loc = Loc('a "file".py', number, 5, number + 1, 9)
    text = print_op(root, locations=locations)
    twin = parse_op(text)
    verify(twin)
    assert print_op(twin, locations=locations) == text
    expected = [op.loc if locations else UNKNOWN for op in root.walk()]
    assert [op.loc for op in twin.walk()] == expected


@settings(max_examples=25)
@given(programs())
def test_random_programs_round_trip(root: Operation) -> None:
    text = print_op(root)
    assert print_op(parse_op(text)) == text


def test_names_are_kept_and_unique() -> None:
    region = Region([I32, I32, I32], ["x", "x", ""])
    for name in ("x", "", "x_1", "a b", "0"):
        region.insert(arith.AddOp(region.args[0], region.args[1], names=[name]))
    root = tile.FuncOp(sym_name="f", parameters=("x", "y", "z"), regions=[region])
    text = print_op(root)
    defined = [line.split(" = ")[0].strip() for line in text.splitlines()[1:-1]]
    assert "(%x: int32, %x_1: int32, %0: int32)" in text
    assert len({*defined, "%x", "%x_1", "%0"}) == 8 and "%a_b" in defined
    twin = parse_op(text)
    assert print_op(twin) == text
    assert [value.name for value in twin.regions[0].args] == ["x", "x_1", ""]


ATTRIBUTES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


def same(a: object, b: object) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return same_attribute(a, b)


@given(ATTRIBUTES)
def test_attributes_round_trip(value: object) -> None:
    root = tile.FuncOp(sym_name="f", parameters=(), regions=[Region()], extra=value)
    assert same(parse_op(print_op(root)).attributes["extra"], value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"), (1.0, "1.0"),
        (1e-300, "1e-300"), (-0.0, "-0.0"), (True, "true"),
        (None, "none"), ('a "b"\n', r'"a \"b\"\n"'), ((), "()"), ((1,), "(1,)"), ((1, ("x", 2.5)), '(1, ("x", 2.5))'),
    ],
)  # fmt: skip
def test_attribute_text(value: object, text: str) -> None:
    assert attribute_text(value) == text


def test_attributes_with_their_default_are_left_out() -> None:
    region = Region([I32])
    assert "guarded" not in str(tile.AllocOp.name) and attribute_text(0.0) == "0.0"
    loop = scf.ForOp(*[region.args[0]] * 3, regions=[scf.yielding(Region([I32]))], num_stages=3)
    text = print_op(loop)
    assert "num_stages = 3" in text and "unroll" not in text
    assert not same_attribute(0.0, -0.0) and not same_attribute(1, True) and same_attribute(math.nan, math.nan)


def test_comments_and_spacing_do_not_matter() -> None:
    text = """// a program
    tile.func{sym_name="f",parameters=("n",)}(%n:int32){ %x=arith.add %n %n:int32 // no comma
      scf.yield }"""
    root = parse_op(text)
    assert root.regions[0].first is not None and root.regions[0].first.operands[0].name == "n"


def test_repr_is_short() -> None:
    text = repr(NAMED["attention"]())
    assert text.endswith("...") and len(text.splitlines()) <= 5


def wrap(line: str) -> str:
    return f'tile.func {{sym_name = "f", parameters = ("n",)}} (%n: int32) {{\n  {line}\n  scf.yield\n}}'


@pytest.mark.parametrize(
    ("line", "message", "column"),
    [
        ("%x = arith.ad %n, %n : int32", "no operation is named 'arith.ad'", 8),
        ("%x = arith.add %n, %m : int32", "%m is not defined", 22),
        ("%x = arith.add %n : int32", "expected a value but found ':'", 21),
        ("%x = arith.add %n, %n : int33", "no element type is named 'int33'", 27),
        ("%x = arith.add %n, %n", "1 results and types to 0", 8),
        ("%x = arith.add %n, %n {a = ;} : int32", "unexpected character ';'", 30),
        ("%x = arith.constant : int32", "needs the attribute 'value'", 8),
        ("%x = arith.constant {value = } : int32", "expected an attribute", 32),
        ("%x = tile.alloc : buffer<4>", "not a buffer type", 21),
        ("%x = tile.alloc : tensor<4xfloat99>", "no element type", 21),
        ("tile.parallel {extents = (4,)} (%i int32) { }", "expected ':'", 38),
        ("scf.if %n { scf.yield %n } { }", "after a result (lists of operands are written [%a, %b]) but found '}'", 28),
    ],
)
def test_errors_have_their_place(line: str, message: str, column: int) -> None:
    with pytest.raises(TileError) as caught:
        parse_op(wrap(line), "broken.mlir")
    error = caught.value
    assert message in error.message, error.message
    assert error.loc is not None and (error.loc.file, error.loc.line, error.loc.column) == ("broken.mlir", 2, column)
    assert line in str(error) and "^" in str(error)


def test_the_end_is_expected() -> None:
    with pytest.raises(TileError, match="expected the end"):
        parse_op(wrap("") + "}")
    with pytest.raises(TileError, match="the end"):
        parse_op(wrap("")[:-1])


def test_invalid_ir_is_a_user_error_of_parse_program() -> None:
    with pytest.raises(TileError, match="does not fit in int8"):
        parse_program(wrap("%x = arith.constant {value = 300} : int8"))


TEXTS = [print_op(NAMED[name](), locations=name == "gemm") for name in ("gemm", "top_k", "halvings", "gather_rows")]
TEXTS.append(
    """tile.func {sym_name = "f", parameters = ("A",)} (%A: buffer<4*float16, global, strides(1)>) {
  %1 = arith.constant {value = 1} : int32
  triton.launch [%1], [%A] {sym_name = "k", options = (("num_warps", 4),)} (%p: *float16) {
    %i = tensor.iota {axis = 0} : tensor<4xint32>
    %q = triton.addptr %p, %i : tensor<4x*float16>
    %x = triton.load %q : tensor<4xfloat16>
    %t = tensor.reduce %x {kind = "sum", axis = 0} : float16
    %y = arith.math [%x, %x, %x] {function = "fma"} : tensor<4xfloat16>
    triton.store %q, %y {cache = ".cg"}
    scf.yield
  }
  scf.yield
}"""
)
SNIPPETS = [
    *["%", "%x", "(", ")", "{", "}", "[", "]", ",", " : ", "=", "-", "1", "999", "inf", "x", "*", '"', "<", ">", "\\"],
    *["int32", "float16", "true", "none", "tensor<4xint32>", "buffer<M*float16, global>", "scf.yield", "loc("],
    *["tile.copy", "0.5", "\n", "//", "(1, 2)", "axis = 7", "é"],
]


@settings(max_examples=250)
@given(st.sampled_from(TEXTS), st.data())
def test_broken_text_raises_tile_errors_only(text: str, data: st.DataObject) -> None:
    assert parse_program(text)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.sampled_from([0, 1, 2, 5, 20]))
        text = text[:start] + data.draw(st.sampled_from(["", *SNIPPETS])) + text[start + length :]
    try:
        root = parse_program(text).root
    except TileError:
        return
    printed = print_op(root)
    assert print_op(parse_op(printed)) == printed


@settings(max_examples=150)
@given(st.sampled_from(TEXTS), st.data())
def test_broken_tokens_raise_tile_errors_only(text: str, data: st.DataObject) -> None:
    """Whole words are exchanged, so that more of the mutants get past the lexer."""
    words = text.split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        here, there = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
        words[here] = data.draw(st.sampled_from([words[there], "", *SNIPPETS]))
    try:
        root = parse_program(" ".join(words)).root
    except TileError:
        return
    assert print_op(parse_op(print_op(root))) == print_op(root)
