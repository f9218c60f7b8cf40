"""Functions with one small mistake, for tests of what notices mistakes."""

from __future__ import annotations

import inspect
import textwrap
from types import CodeType, FunctionType

import pytest


def mutate(monkeypatch: pytest.MonkeyPatch, function: FunctionType, old: str, new: str) -> None:
    """Replace a text in a function's body, for everybody who has the function."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    while not lines[0].startswith("def "):  # decorators have done their work
        lines.pop(0)
    text = "\n".join(lines)
    assert text.count(old) >= 1, f"{function.__qualname__} has no {old!r}"
    compiled = compile("from __future__ import annotations\n" + text.replace(old, new, 1), "<mutated>", "exec")
    codes = [each for each in compiled.co_consts if isinstance(each, CodeType) and each.co_name == function.__name__]
    assert codes[0].co_freevars == function.__code__.co_freevars
    monkeypatch.setattr(function, "__code__", codes[0])
