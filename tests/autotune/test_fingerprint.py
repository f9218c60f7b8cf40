"""Texts that stand for values in keys."""

from __future__ import annotations

import functools
import json
import math
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tiledsl.autotuner.storage.cache import _entry
from tiledsl.autotuner.storage.fingerprint import OPAQUE, VAGUE, canonical, program_text
from tiledsl.autotuner.storage.key import difference_lines

SCALE = 2


def reads_a_global(x: Any) -> Any:
    return x * SCALE


def calls_another(x: Any) -> Any:
    return [reads_a_global(item) for item in x]


def test_values_that_differ_have_different_texts() -> None:
    values = [1, 1.0, True, "1", None, [1], (1,), {1: 1}, {1}, b"1", int, math, torch.float16, torch.ones(1), lambda: 1]
    assert len({canonical(value) for value in values}) == len(values)
    assert canonical(torch.ones(2, 3)) == canonical(torch.zeros(2, 3)) != canonical(torch.ones(3, 2).T)


def test_plain_values_are_their_type_and_text() -> None:
    """Kept results are found by these texts."""
    texts = [canonical(value) for value in (None, True, 1, 0.5, "a", b"a")]
    assert texts == ["NoneType:None", "bool:True", "int:1", "float:0.5", "str:'a'", "bytes:b'a'"]


def test_what_has_strides_and_no_shape_is_no_tensor() -> None:
    class Layout:
        stride, dtype = 2, "float32"

        def __repr__(self) -> str:
            return "every second"

    assert canonical(Layout()).endswith("Layout:every second")


def test_globals_of_functions_that_are_called_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = canonical(calls_another)
    assert canonical(calls_another) == before
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert canonical(calls_another) != before


def test_calls_are_followed_to_a_depth_of_eight() -> None:
    """What lies deeper may differ although the texts are equal, which is marked."""

    def called_from(function: Any) -> Any:
        return lambda x: function(x)

    def text(depth: int, innermost: Any) -> str:
        for _ in range(depth - 1):
            innermost = called_from(innermost)
        return canonical(innermost)

    def one(x: Any) -> Any:
        return x

    def other(x: Any) -> Any:
        return -x

    assert text(8, one) != text(8, other) and VAGUE not in text(8, one)
    assert text(9, one) == text(9, other) and VAGUE in text(9, one)


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


class Choices:
    BLOCK = 64

    @staticmethod
    def of(x: Any) -> Any:
        return x


def uses_a_class(x: Any) -> Any:
    return Choices.of(x) * Choices.BLOCK


def test_classes_count_with_their_methods_and_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program_text(uses_a_class)
    monkeypatch.setattr(Choices, "BLOCK", 32)
    changed = program_text(uses_a_class)
    monkeypatch.setattr(Choices, "of", staticmethod(lambda x: -x))
    assert len({before, changed, program_text(uses_a_class)}) == 3 and VAGUE not in before


def test_what_a_function_uses_of_a_module_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    helper = ModuleType("some_helper")
    vars(helper).update(twice=calls_another, other=1)

    def builder(x: Any) -> Any:
        return helper.twice(x)

    before = program_text(builder)
    helper.other = 2
    assert program_text(builder) == before and VAGUE not in before
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert program_text(builder) != before


def test_defaults_of_tuned_parameters_do_not_count() -> None:
    def load(signature: str) -> Any:
        names: dict[str, Any] = {"__name__": "user"}
        exec(f"def f({signature}):\n    return a, b, c", names)
        return names["f"]

    texts = [program_text(load(text), ["b"]) for text in ("a, b=1, *, c=2", "a, b=64, *, c=2", "a, b=1, *, c=3")]
    assert texts[0] == texts[1] != texts[2]
    assert program_text(load("a, b=1, *, c=2")) != program_text(load("a, b=64, *, c=2"))


class Thing:
    def __repr__(self) -> str:
        return "thing"


@pytest.mark.parametrize(
    "value", [Thing(), object(), torch.ones(1), [Thing()], lambda: Thing(), functools.partial(Thing)]
)
def test_what_the_text_may_not_tell_is_marked(value: Any) -> None:
    def builder() -> Any:
        return value

    assert (VAGUE in program_text(builder)) == (not callable(value))
    assert VAGUE not in program_text(calls_another)


def test_kernels_of_triton_count_with_their_text_and_configurations() -> None:
    import triton

    def kernel(number: int) -> Any:
        def scale(x_ptr, BLOCK):  # type: ignore[no-untyped-def]
            return x_ptr * number

        return triton.jit(scale)

    def tuned(number: int, block: int) -> Any:
        return triton.autotune([triton.Config({"BLOCK": block})], key=["x_ptr"])(kernel(number))

    assert canonical(kernel(1)) == canonical(kernel(1)) != canonical(kernel(2))
    assert canonical(tuned(1, 2)) == canonical(tuned(1, 2))
    assert len({canonical(each) for each in (tuned(1, 2), tuned(1, 3), tuned(2, 2), kernel(1))}) == 4
    assert canonical(triton.Config({"BLOCK": 2})) == canonical(triton.Config({"BLOCK": 2}))
    assert canonical(triton.Config({"BLOCK": 2})) != canonical(triton.Config({"BLOCK": 2}, num_stages=7))


def test_what_differs_between_keys_is_told_with_both_values() -> None:
    stored = {"a": None, "b": "", "c": 3, "d": {"x": 1, "y": "k" * 60}, "same": [1]}
    wanted = {"a": "sm_90", "b": 0, "c": [3], "d": {"x": 2, "y": "l" * 61}, "same": [1]}
    assert difference_lines(stored, wanted) == [
        "a: nothing, now sm_90",
        'b: "", now 0',
        "c: 3, now [3]",
        "d.x: 1, now 2",
        f"d.y: {'k' * 60}, now {'l' * 57}...",
    ]


@pytest.mark.parametrize("change", [{"schema": 1}, {"fields": 3}, {"kernel": None}])
def test_a_key_of_another_form_has_no_fields(change: dict[str, Any], tmp_path: Path) -> None:
    right = {"schema": 2, "fields": {"target": "cuda:90"}, "kernel": "gemm"}
    (tmp_path / "key.json").write_text(json.dumps(right))
    assert _entry(tmp_path).fields == {"target": "cuda:90"}
    (tmp_path / "key.json").write_text(json.dumps({**right, **change}))
    assert _entry(tmp_path).fields is None
