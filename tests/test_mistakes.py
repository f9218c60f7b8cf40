"""Kinds of mistakes: each has a program that makes it and one that does not, and what is said of it is found."""

from __future__ import annotations

import ast
import json
import pickle
import textwrap
from pathlib import Path

import pytest

from tests.support.load_file import load_file
from tests.test_cli import tiledsl
from tiledsl.errors import TileError
from tiledsl.mistakes import PAGE, mistakes

ROOT = Path(__file__).resolve().parents[1]
FRAME = """
import tiledsl
import tiledsl.language as T


@T.prim_func
def f(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
    with T.Kernel(4) as b:
        s = T.alloc_shared((16, 64), "float32")
        x = T.alloc_fragment((16, 64), "float32")
        m = T.alloc_fragment((16,), "float32")
        T.clear(x)
        T.clear(s)
        B[0, 0] = 1.0
%s


tiledsl.compile(f, target="cuda:80")
"""


def run(text: str, folder: Path) -> None:
    program = text if "import" in text else FRAME % textwrap.indent(text, " " * 8)
    file = folder / f"program{len(list(folder.glob('*.py')))}.py"  # byte code is kept by a file's name, time and size
    file.write_text(program)
    load_file(file)


@pytest.mark.parametrize(
    "code", [pytest.param(code, marks=[pytest.mark.slow] * (code == "nothing-works")) for code in mistakes()]
)
def test_programs_do_what_the_page_says(code: str, tmp_path: Path) -> None:
    mistake = mistakes()[code]
    with pytest.raises(TileError) as caught:
        run(mistake.wrong, tmp_path)
    assert caught.value.code == code
    assert str(caught.value).endswith(f"\n  more: tiledsl explain {code}")
    assert pickle.loads(pickle.dumps(caught.value)).code == code
    run(mistake.right, tmp_path)


def test_codes_are_those_of_the_page() -> None:
    assert len(mistakes()) == PAGE.read_text().count("\n## ")
    used = set()
    for file in (path for folder in ("tiledsl", "passes", "autotune") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "code":
                used |= {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
    assert {each for each in used if isinstance(each, str) and "-" in each} == {*mistakes()}


def test_explain_prints_codes_and_operations() -> None:
    listed = tiledsl("explain")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [*mistakes()]
    one = tiledsl("explain", "tile-shapes").stdout
    assert one.startswith("tile-shapes: Tiles whose shapes do not fit\n") and "    T.copy(A[b * 16, 0], x)" in one
    known = json.loads(tiledsl("explain", "tile-shapes", "--json").stdout)["data"]
    assert known["mistakes"][0]["right"] == "T.copy(A[b * 16, 0], x)\n" and known["kernel"] is None
    multiplied = tiledsl("explain", "arith.mul").stdout
    assert "tiledsl.dialects.arith.MulOp\n  operands: lhs, rhs\n  results: out\n" in multiplied
    loaded = json.loads(tiledsl("explain", "tile.gemm", "--json").stdout)["data"]["operation"]
    assert loaded["operands"] == ["a", "b", "c"] and loaded["attributes"]["trans_b"] == "False"
    wrong = tiledsl("explain", "tile-shape")
    assert wrong.exit_code == 1 and "did you mean 'tile-shapes'?" in wrong.stderr


def test_json_has_the_code(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        (FRAME % "        x = x + s").replace('tiledsl.compile(f, target="cuda:80")', "")
    )
    ended = json.loads(tiledsl("lower", f"{tmp_path / 'wrong.py'}:f", "--json").stdout)
    assert ended["error"]["code"] == "whole-tile" and ended["error"]["line"] == 15
    (tmp_path / "none.py").write_text("x = 1")
    assert json.loads(tiledsl("lower", f"{tmp_path / 'none.py'}:f", "--json").stdout)["error"]["code"] == ""
