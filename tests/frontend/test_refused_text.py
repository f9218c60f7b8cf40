"""What Python's own parser would refuse before the language sees it, in a text: named at its place."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
from tiledsl.errors import TileError

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


@pytest.mark.parametrize("text", ['f"{bx"', 'f"{bx!z}"', 'f"{bx:{bx"', 'f"{\'a}"', 'f"{}"', 'f"}"'])
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
