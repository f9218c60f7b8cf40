"""Texts that stand for values in keys."""

from __future__ import annotations

import ast
import enum
import functools
import json
import math
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tiledsl.autotuner.storage import fingerprint
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


def test_what_only_looks_like_triton_s_is_told_apart_by_its_type() -> None:
    class Layout:
        def __init__(self, fn: Any, given: Any) -> None:
            self.fn, self.all_kwargs, self.pre_hook = fn, lambda: given, None

    assert canonical(Layout(1, 2)) == canonical(Layout(3, 4)) and canonical(Layout(1, 2)).startswith(OPAQUE)


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
    assert _entry(tmp_path).fields == {}


class Color(enum.Enum):
    RED = 1


class Made:
    """A class of a user's, whose instances print themselves."""

    def __repr__(self) -> str:
        return "made"

    def scale(self, x: Any) -> Any:
        return x


KNOT: list[Any] = [1, []]
KNOT[1].append(KNOT)
KNOT[1].append(KNOT[1])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [1, (2,)]}, "{str:'b'=int:1,str:'a'=list[int:1,tuple[int:2]]}"),
        ({3, 1, 2}, "set{int:1,int:2,int:3}"),
        (frozenset([2.5, 1j]), "set{complex:1j,float:2.5}"),
        (math, "module:math"),
        (ModuleType("users.own"), "module:vague:users.own"),
        (torch.Tensor, "class:torch.Tensor"),
        (torch.float16, "torch.dtype:torch.float16"),
        (functools.partial(max, 1, key=None), "partial:list[builtins.builtin_function_or_method:"
         "<built-in function max>,"
         "tuple[int:1],{str:'key'=NoneType:None}]"),
        (KNOT, "list[int:1,list[#0,#1]]"),
        ([KNOT[1], KNOT[1]], "list[list[list[int:1,#1],#1],list[list[int:1,#1],#1]]"),
        (torch.ones(2, 3), "tensor:(2, 3):(3, 1):torch.float32:cpu"),
        ([torch.ones(2, 3).t()], "list[tensor:vague:(3, 2):(1, 3):torch.float32:cpu]"),
        (type("ProcessGroup", (), {"group_name": "g", "size": lambda self: 4})(), "group of 4"),
        (Color.RED, f"{__name__}.Color:<Color.RED: 1>"),
        (Made(), f"vague:{__name__}.Made:made"),
        ([object()], f"list[{OPAQUE}builtins.object]"),
        (textwrap.dedent, "function:textwrap.dedent"),
        (textwrap.TextWrapper.fill, "function:textwrap.TextWrapper.fill"),
        (Path("/x"), None),
        (..., "builtins.ellipsis:Ellipsis"),
    ],
)  # fmt: skip
def test_texts_of_values(value: Any, text: str | None) -> None:
    assert canonical(value) == text or text is None and VAGUE not in canonical(value)


def test_methods_count_with_what_they_belong_to() -> None:
    one = canonical(Made().scale)
    assert re.fullmatch(rf"method:function:[0-9a-f]+ of vague:{__name__}.Made:made", one)


def members(**given: Any) -> Any:
    return type("Members", (), {"__module__": "user", **given})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.float16, torch.bfloat16), ({1, 2}, {1, 3}), (None, 1), (b"a", b"b"), (int, float), ([1], [2]), (1, 2),
        (functools.cached_property(lambda self: 1), functools.cached_property(lambda self: 2)),
        (property(lambda self: 1), property(lambda self: 2)), (staticmethod(lambda: 1), staticmethod(lambda: 2)),
        (classmethod(lambda cls: 1), classmethod(lambda cls: 2)), (lambda self: 1, lambda self: 2),
    ],
)  # fmt: skip
def test_members_of_classes_count(one: Any, other: Any) -> None:
    first, second = canonical(members(x=one)), canonical(members(x=other))
    assert first == canonical(members(x=one)) != second
    assert VAGUE not in first and re.fullmatch("class:user.Members:[0-9a-f]+", first)


def test_which_members_count() -> None:
    plain = canonical(members())
    assert (
        canonical(members(__slots__=()))
        == canonical(members(__doc__="other"))
        == canonical(members(_x=object()))
        == plain
    )
    assert VAGUE in canonical(members(x=object()))
    changed = [
        members(_x=1),
        members(__call__=lambda self: 1),
        members(_x=lambda self: 1),
        members(__call__=lambda self: 2),
    ]
    assert len({plain, *map(canonical, changed)}) == 5

    class Below(members(x=1)):  # type: ignore[misc]
        pass

    above = canonical(Below)
    Below.__bases__[0].x = 2
    assert canonical(Below) != above and canonical(Color) == canonical(Color)


def test_functions_without_a_text_of_their_own_count_with_their_code() -> None:
    assert canonical(lambda x: x in {0, 8}) == canonical(lambda x: x in {8, 0})  # not as this process orders them
    first, second = [lambda x: x + 1, lambda x: x + 2]
    assert canonical(first) != canonical(second)
    assert canonical(lambda x: [y + 1 for y in x]) != canonical(lambda x: [y + 2 for y in x])
    assert canonical(lambda x: x.real) != canonical(lambda x: x.imag)
    assert canonical(lambda x, y: x - y) != canonical(lambda y, x: y - x)  # their parameters' names, too
    late: Any
    hole = lambda: late
    before = canonical(hole)  # not assigned yet
    late = 3
    assert canonical(hole) != before


def loaded(text: str, **names: Any) -> Any:
    space = {"__name__": "user", **names}
    exec(textwrap.dedent(text), space)
    return space["f"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("def f(x): return x", "def f(x):\n    'Says so.'\n    return x", True),
        ("def f(x):\n    'Says so.'\n    return x", "def f(x):\n    'Says else.'\n    return x", True),
        ("def f(x):\n    def g():\n        'a'\n        return 1", "def f(x):\n    def g():\n        return 1", True),
        ("def f(x):\n    return 'a'", "def f(x):\n    return u'a'", True),
        ("def f(x):\n    return 'a'", "def f(x):\n    return b'a'", False),
        ("def f(x):\n    return None", "def f(x):\n    return", False),
        ("def f(x):\n    return [1, 2]", "def f(x):\n    return [[1, 2]]", False),
        ("def f(x): return x", "async def f(x): return x", False),
        ("def f(x): return x", "def f(y): return y", False),
        ("def f(x): return x", "def f(*x): return x", False),
        ("def f(x=1): return x", "def f(x=2): return x", False),
        ("def f(x, y=1): return x", "def f(x=1, y=1): return x", False),
        ("def f(*, x=1): return x", "def f(*, x=2): return x", False),
    ],
)  # fmt: skip
def test_of_a_function_its_meaning_counts(one: str, other: str, same: bool, tmp_path: Path) -> None:
    def of(text: str) -> str:
        path = tmp_path / f"{abs(hash(text))}.py"
        path.write_text(text)
        names: dict[str, Any] = {"__name__": "user"}
        exec(compile(text, str(path), "exec"), names)
        return canonical(names["f"])

    assert (of(one) == of(other)) == same


def test_a_syntax_tree_shows_what_is_there() -> None:
    """Which fields are empty depends on the Python."""
    (tree,) = ast.parse("def f(x):\n    'Says so.'\n    return x[1:], None").body
    assert fingerprint._dump(tree) == (
        "FunctionDef(name='f',args=arguments(args=[arg(arg='x')]),body=[Return(value=Tuple(elts=[Subscript(value=Name("
        "id='x',ctx=Load()),slice=Slice(lower=Constant(value=1)),ctx=Load()),Constant(value=None)],ctx=Load()))])"
    )


def test_what_a_function_names_counts_once_each() -> None:
    assert canonical(loaded("def f(): return lambda: SIZE", SIZE=1)) != canonical(
        loaded("def f(): return lambda: SIZE", SIZE=2)
    )
    assert canonical(loaded("def f(): return 3", SIZE=1)) == canonical(loaded("def f(): return 3", SIZE=2))
    module = ModuleType("users")
    module.size, module.other = 1, 2  # type: ignore[attr-defined]
    texts = []
    for size, other in ((1, 2), (2, 2), (2, 3)):
        module.size, module.other = size, other  # type: ignore[attr-defined]
        texts.append(canonical(loaded("def f(): return users.size", users=module)))
    assert texts[0] != texts[1] == texts[2]
    assert canonical(loaded("def f(): return math.pi", math=math)) == canonical(
        loaded("def f(): return math.pi", math=math)
    )


def test_containers_have_any_depth_and_functions_eight() -> None:
    nested: Any = 1
    for _ in range(30):
        nested = [nested]
    assert OPAQUE not in canonical(nested)
    outer = lambda inner, _: type("Outer", (), {"__module__": "user", "x": inner})
    classes = [functools.reduce(outer, range(depth), 1) for depth in (7, 8)]
    assert [VAGUE in canonical(each) for each in classes] == [False, True]
