"""What Python's own parser would refuse before the language sees it, in a text: named at its place."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
from tiledsl.dialects import tile
from tiledsl.errors import TileError
from tiledsl.frontend.parser import _parse
from tiledsl.ir.kinds import of_kinds

HEAD = '@T.prim_func\ndef main(A: T.Tensor((4, 4), "float32")):\n    with T.Kernel(4) as bx:\n        A[0, 0] = 1.0\n'


@pytest.mark.parametrize(
    ("body", "message", "column"),
    [
        ("break", "`break` outside of a loop", 9),
        ("continue", "`continue` outside of a loop", 9),
        ("if bx == 0:\n            break", "`break` outside of a loop", 13),
        ("x = *A", "a starred expression can only stand in a call, a tuple, a list or a set", 13),
        ("x += *A", "a starred expression can only stand in a call, a tuple, a list or a set", 14),
        ("x: int = *A", "a starred expression can only stand in a call, a tuple, a list or a set", 18),
        ("*A", "a starred expression can only stand in a call, a tuple, a list or a set", 9),
        ("return *A", "a starred expression can only stand in a call, a tuple, a list or a set", 16),
        ("1 = bx", "this cannot be assigned to; a target is a name, an attribute, an element or a tuple of these", 9),
    ],
)
def test_at_its_place(body: str, message: str, column: int) -> None:
    with pytest.raises(TileError) as caught:
        compiled(body)
    loc = caught.value.loc
    assert caught.value.message == message and loc is not None
    assert (loc.line, loc.column) == (5 + body.count("\n"), column)


def compiled(body: str) -> Any:
    return tiledsl.compile(tiledsl.parse(f"{HEAD}        {body}\n"), target="interpret")


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("match x:\n        pass", "'match' is not part of the tile language; use `if` and `elif`", (2, 5, 2, 10)),
        ("type X = int", "'type' is not part of the tile language; assign with '='", (2, 5, 2, 9)),
        ("x = 'abc", "this string is not closed on its line", (2, 9, 2, 10)),
        ('x = """abc', "this triple-quoted string is not closed", (2, 9, 2, 12)),
        ("x = a ? b", "the character '?' is not part of the tile language", (2, 11, 2, 12)),
        ("x = a \x07 b", "the character U+0007 is not part of the tile language", (2, 11, 2, 12)),
        ("x = a \\ b", "a backslash outside a string must be the last character of its line", (2, 11, 2, 12)),
        ("x = a +", "unexpected end of the line; expected an expression", (2, 12, 2, 13)),
        ("x = f(a,\n    y = 2", "'(' was never closed", (2, 10, 2, 11)),
        ("def g(a, *): pass", "a bare '*' must come once, before keyword-only parameters", (2, 14, 2, 15)),
        ("def g(/, a): pass", "'/' must follow at least one parameter and come before any '*'", (2, 11, 2, 12)),
        ("with (a as b).x: pass", "'as' inside parentheses is only possible right after 'with'", (2, 10, 2, 18)),
        ("x = 1\n      y = 2", "unexpected indentation: no block starts on the line before", (3, 1, 3, 7)),
    ],
)
def test_where_a_text_is_no_program(text: str, message: str, place: tuple[int, int, int, int]) -> None:
    check_place(f"def f():\n    {text}\n", "module", 0, 0, message, place)


@pytest.mark.parametrize(
    ("text", "expected", "place"),
    [
        ("@d", "'def' or '@'", (7, 3, 7, 4)),
        ("x = 1\n@d\n\n", "'def' or '@'", (8, 3, 8, 4)),
        ("@d\n# c\n", "'def' or '@'", (8, 4, 8, 5)),
        ("x = 1\nif a:\n", "an indented block", (8, 6, 8, 7)),
    ],
)
def test_a_text_that_ends_too_early_ends_behind_its_last_word(
    text: str, expected: str, place: tuple[int, int, int, int]
) -> None:
    check_place(text, "module", 6, 0, f"unexpected end of the text; expected {expected}", place)


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("a +", "unexpected end of the text; expected an expression", (7, 14, 7, 15)),
        ("a +\n b *", "unexpected end of the text; expected an expression", (8, 5, 8, 6)),
        ("a ? b", "the character '?' is not part of the tile language", (7, 13, 7, 14)),
        ("match x", "unexpected 'x'; expected ',', 'in' or an operator", (7, 17, 7, 18)),
        ("a\n b", "unexpected 'b'; expected ',', 'in' or an operator", (8, 2, 8, 3)),
        ("a +\n ? b", "the character '?' is not part of the tile language", (8, 2, 8, 3)),
        ("a 'b", "this string is not closed on its line", (7, 13, 7, 14)),
        ("a )", "')' closes nothing: no bracket is open here", (7, 13, 7, 14)),
        ("(a +\n b ]", "']' does not close '('", (8, 4, 8, 5)),
    ],
)
def test_where_an_expression_inside_of_a_line_is_none(
    text: str, message: str, place: tuple[int, int, int, int]
) -> None:
    """As in an f-string: it begins at line 7, column 11 of the file; further lines of it begin at column 1."""
    check_place(text, "expression", 6, 10, message, place)


def check_place(text: str, start: str, lines: int, columns: int, message: str, place: tuple[int, ...]) -> None:
    with pytest.raises(TileError) as caught:
        _parse(text, start, "f.tile", lines, columns)
    loc = caught.value.loc
    assert caught.value.message == message and loc is not None and loc.file == "f.tile"
    assert (loc.line, loc.column, loc.end_line, loc.end_column) == place


@pytest.mark.parametrize("text", ['f"{bx"', 'f"{bx!z}"', 'f"{bx:{bx"', 'f"{\'a}"', 'f"{}"', 'f"}"', r'f"\N{DASH"'])
def test_format_texts(text: str) -> None:
    with pytest.raises(TileError) as caught:
        compiled(f"x = {text}")
    assert caught.value.loc is not None and caught.value.loc.line == 5


def test_out_idx_counts_from_both_ends() -> None:
    """-2 to 1 for two parameters."""
    text = HEAD.replace("A: ", 'B: T.Tensor((4, 4), "float32"), A: ')
    program = tiledsl.parse(text)
    for index, name in ((1, "A"), (-1, "A")):
        (output,) = tiledsl.compile(program, out_idx=index, target="interpret").outputs
        assert tiledsl.compile(program, target="interpret").params[output].name == name
    for index in (2, -3):
        with pytest.raises(TileError, match=f"out_idx {index}, but main has 2 parameters"):
            tiledsl.compile(program, out_idx=index, target="interpret")
    for index in (0, -2):
        with pytest.raises(TileError, match="the output B of main is never written"):
            tiledsl.compile(program, out_idx=index, target="interpret")
    with pytest.raises(TileError, match=r"out_idx names a parameter of main twice: \[1, -1\]"):
        tiledsl.compile(program, out_idx=[1, -1], target="interpret")


def test_a_view_of_an_output_is_no_write_to_it() -> None:
    text = "@T.prim_func\ndef main(A: T.Tensor((8,), 'int32')):\n    with T.Kernel(1):\n        v = T.view(A, (2, 4))\n"
    with pytest.raises(TileError, match="main writes none of its tensors"):
        tiledsl.parse(text).build(())
    tiledsl.parse(f"{text}        v[0, 0] = 1\n").build(())


@pytest.mark.parametrize(
    ("body", "may_be_unwritten"),
    [
        ("if k:\n            B[0] = 1", True),
        ("if k:\n            pass\n        else:\n            x, y = 1, [B[0]]", True),
        ("for i in (1,):\n            if k:\n                T.fill(B, 0)", True),
        ("x = B[0]", False),
        ("if k:\n            C = 1", False),
        ("pass", False),
    ],
)
def test_an_output_that_a_configuration_does_not_write_stands_in_a_branch(body: str, may_be_unwritten: bool) -> None:
    head = 'k = 0\n@T.prim_func\ndef main(A: T.Tensor((4,), "int32"), B: T.Tensor((4,), "int32")):\n'
    program = tiledsl.parse(f"{head}    with T.Kernel(1):\n        A[0] = 1\n        {body}\n")
    if may_be_unwritten:
        (kernel,) = of_kinds(program.build((1,)).walk(), tile.KernelOp)
        assert kernel.remarks == ("the output B of main is never written: it is returned as zeros",)
    else:
        with pytest.raises(TileError, match="the output B of main is never written"):
            program.build((1,))
