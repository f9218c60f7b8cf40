"""The text of a function is found however it is written, and is that of this function."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tiledsl.runtime.python_source import definition

PLAIN = """
def f(a, b=(1,
            2)):
    # größe
    text = '''one
    two'''
    return [
        a
    ], text
"""
VARIANTS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "tabs": lambda text: text.replace("    ", "\t"),
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "no last newline": lambda text: text.rstrip("\n"),
    "decorators": lambda text: text.replace("def f", "@mark(\n    ')',\n)\n@mark()\ndef f"),
    "a comment to the left": lambda text: text.replace("    return", "# left\n    return"),
    "before another": lambda text: text + "def g(): pass\n",
    "in a function": lambda text: "def outer():" + textwrap.indent(text, "    ") + "    return f\nf = outer()\n",
    "in a class": lambda text: "class Outer:" + textwrap.indent(text, "    ") + "f = Outer.f\n",
    "second of its name": lambda text: "def f(): return 1\n" + text,
}


def found(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "program.py"
    file.write_bytes(text.encode())
    scope: dict[str, Any] = {"mark": lambda *_: lambda function: function}
    exec(compile(file.read_bytes(), str(file), "exec"), scope)
    return definition(scope["f"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_text_is_found(variant: str, tmp_path: Path) -> None:
    tree = found(tmp_path, VARIANTS[variant](PLAIN))
    assert isinstance(tree, ast.FunctionDef) and tree.name == "f"
    assert [arg.arg for arg in tree.args.args] == ["a", "b"] and len(tree.body) == 2
    assert len(tree.decorator_list) == 2 * (variant == "decorators")


def test_strings_are_as_they_are_written(tmp_path: Path) -> None:
    """Also in a function that is indented, with a comment and a string that are not."""
    inner = textwrap.indent(PLAIN, "    ").replace("        two", "two").replace("        # größe", "# größe")
    tree = found(tmp_path, f"def outer():{inner}    return f\nf = outer()\n")
    assert tree.body[0].value.value == "one\ntwo"


def test_lambdas_and_functions_without_text_have_none(tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec("def f(): return 1", scope)
    assert definition(scope["f"]) is None
    assert found(tmp_path, "f, g = lambda a: a, lambda a: a + 1\n") is None


def test_what_is_found_is_what_inspect_finds() -> None:
    """On functions that were not written for it."""
    methods = [method for method in vars(textwrap.TextWrapper).values() if isinstance(method, FunctionType)]
    functions = [each for each in vars(inspect).values() if isinstance(each, FunctionType)] + methods
    assert len(functions) > 50
    for function in functions:
        expected = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert _without_space(definition(inspect.unwrap(function))) == _without_space(expected), function


def _without_space(tree: Any) -> str:
    """Both trees differ in how strings of several lines are indented."""
    return "".join(ast.dump(tree).replace("\\n", "").split())
