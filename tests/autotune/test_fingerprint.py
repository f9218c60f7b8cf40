"""Texts that stand for values in keys."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tiledsl.autotuner.fingerprint import OPAQUE, canonical

SCALE = 2


def reads_a_global(x: Any) -> Any:
    return x * SCALE


def calls_another(x: Any) -> Any:
    return [reads_a_global(item) for item in x]


def test_values_that_differ_have_different_texts() -> None:
    values = [1, 1.0, True, "1", None, [1], (1,), {1: 1}, {1}, b"1", int, math, torch.float16, torch.ones(1), lambda: 1]
    assert len({canonical(value) for value in values}) == len(values)
    assert canonical(torch.ones(2, 3)) == canonical(torch.zeros(2, 3)) != canonical(torch.ones(3, 2).T)


def test_globals_of_functions_that_are_called_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = canonical(calls_another)
    assert canonical(calls_another) == before
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert canonical(calls_another) != before


def test_recursion_ends() -> None:
    def forever(x: Any) -> Any:
        return forever(x)

    knot: list[Any] = []
    knot.append(knot)
    assert canonical(forever) == canonical(forever) and canonical(knot)


def test_objects_of_unknown_kind_are_told_apart_by_type_only() -> None:
    assert canonical(object()) == OPAQUE + "builtins.object"


def test_layout_comments_and_decorators_do_not_count(tmp_path: Path) -> None:
    def load(name: str, text: str) -> Any:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        names: dict[str, Any] = {"__name__": "user", "same": lambda configs: lambda f: f}
        exec(compile(path.read_text(), str(path), "exec"), names)
        return names["f"]

    one = load("one", "@same([1, 2])\ndef f(x):\n    return x+1  # one more\n")
    two = load("two", "\n\n@same([1, 2, 3])\ndef f(x):\n    return (x\n        + 1)\n")
    three = load("three", "@same([1, 2])\ndef f(x):\n    return x + 2\n")
    assert canonical(one) == canonical(two) != canonical(three)
