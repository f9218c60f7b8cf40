"""Errors show the place in the user's text, whatever is written there."""

from __future__ import annotations

import linecache

import pytest

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError, register_source, source_line, user_loc
from tiledsl.location import Loc


@pytest.mark.parametrize(
    ("line", "marked", "shown"),
    [
        ("a = b + c", "b", "    ^"),
        ("\tif b:\t# c", "b", "\t   ^"),
        ("größe = wert", "wert", "        ^^^^"),
        ('s = "日本語"; t = wert', "wert", " " * 18 + "^^^^"),
        ("名前 = 1", "名前", "^^^^"),
        ("e\N{COMBINING ACUTE ACCENT} = b", "b", "    ^"),
        ("a = b", "", "     ^"),  # the end of the line
    ],
)
def test_the_caret_stands_below_what_it_marks(line: str, marked: str, shown: str) -> None:
    register_source("<carets>", line)
    column = line.index(marked) + 1 if marked else len(line) + 1
    error = TileError("no", Loc("<carets>", 1, column, 1, column + len(marked)))
    assert str(error).splitlines()[-1] == "       | " + shown


def test_lines_end_where_the_parser_ends_them() -> None:
    register_source("<lines>", "a\r\nb\x0cc\u2028d\re\nf")
    assert [source_line("<lines>", line) for line in range(1, 6)] == ["a", "b\x0cc\u2028d", "e", "f", ""]


def test_a_place_in_host_code_counts_characters() -> None:
    """Python counts bytes of UTF-8."""
    text = 'größe, namen = 1, "日本語"; found = place()\n'
    linecache.cache["<cell>"] = (len(text), None, [text], "<cell>")
    scope = {"place": user_loc}
    exec(compile(text, "<cell>", "exec"), scope)
    loc = scope["found"]
    assert isinstance(loc, Loc) and text[loc.column - 1 : loc.end_column - 1] in ("place()", text.strip())


@pytest.mark.parametrize("style", ["lazy", "eager"])
def test_functions_without_text_are_refused_by_name(style: str) -> None:
    body = "with T.Kernel(1):\n            X[0] = 1.0"
    text = {
        "lazy": f"""
def build(N):
    @T.prim_func
    def program(X: T.Tensor((N,), "float32")):
        {body}
    return program
""",
        "eager": f"""
def program(X):
        {body}
""",
    }[style]
    scope = {"T": T}
    exec(text, scope)
    function = tiledsl.jit(scope["build" if style == "lazy" else "program"])
    with pytest.raises(TileError, match="the source of 'program' is not available"):
        function(3)
