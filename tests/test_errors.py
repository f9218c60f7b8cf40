"""Errors show the place in the user's text, whatever is written there."""

from __future__ import annotations

import linecache
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import tiledsl
import tiledsl.language as T
from tiledsl.cli import main
from tiledsl.errors import TileError, brief, meant, register_source, source_line, user_loc
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


def test_what_was_meant_is_one_of_those_known_or_all_of_them() -> None:
    known = ["pad-tiles", "cse", "dce", "cse"]
    assert meant("pad-tile", known) == "did you mean 'pad-tiles'?"
    assert meant("xyz", known) == "there are pad-tiles, cse, dce"
    assert meant("xyz", known, "it has") == "it has pad-tiles, cse, dce"


def test_values_in_messages_are_short() -> None:
    assert brief(torch.zeros(3, 4)) == "a torch Tensor of shape (3, 4) and torch.float32"
    assert brief(torch.zeros(3, dtype=torch.int8)) == "a torch Tensor of shape (3,) and torch.int8"
    assert brief(np.zeros(())) == "a numpy ndarray of shape () and float64"
    assert brief("a" * 78) == repr("a" * 78) and brief(list(range(100))) == repr(list(range(100)))[:77] + "..."
    assert brief(None) == "None"


def test_names_of_passes_are_guessed_wherever_they_are_given(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text(
        "import tiledsl.language as T\n\n\n@T.prim_func\ndef one(X: T.Tensor((8,), 'float32')):\n"
        "    with T.Kernel(1) as _:\n        X[0] = 1.0\n"
    )
    guess = "did you mean 'pad-tiles'?"
    for options in (
        ["--after", "pad-tile"], ["--pass-config", "pad-tile.x=1"], ["--pass-config", "after:pad-tile=cse"],
        ["--pass-config", "after:cse=pad-tile"],
    ):  # fmt: skip
        done = CliRunner().invoke(main, ["lower", str(file), "--target", "cuda:90", *options])
        assert done.exit_code == 1 and guess in done.output, done.output
    done = CliRunner().invoke(main, ["lower", str(file), "-D", "M=37,53"])
    assert (done.exit_code, done.output) == (
        1,
        "'M=37,53' is a list of values: this command takes one\n  note: write -D M=37 or -D 'M=(37,53)' for a tuple\n",
    )
