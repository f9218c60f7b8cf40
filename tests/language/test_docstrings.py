"""Each name of the language says what it takes (shapes, types) and when it raises; wrong arguments are TileErrors."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from types import FunctionType
from typing import Any

import pytest

import tiledsl.language as T
from tiledsl.errors import TileError
from tiledsl.language import names
from tiledsl.language.dtypes import DType

OBJECTS = [name for name in names.NAMES if not isinstance(getattr(T, name), (FunctionType, DType))]
FUNCTIONS = {name: getattr(T, name) for name in names.NAMES if isinstance(getattr(T, name), FunctionType)}
# Words for shapes and types, of which each docstring has one.
TAKEN = re.compile(r"shape|tile|scalar|element|integer|number|float|bool|string|\d[- ]dimensional|list|None")


def required(function: FunctionType) -> list[str]:
    """The parameters without a default; one stands for `*values`."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_takes(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    signature = inspect.signature(FUNCTIONS[name]).parameters.values()
    unnamed = [
        each.name
        for each in signature
        if each.default is each.empty
        and each.kind is each.POSITIONAL_OR_KEYWORD
        and not re.search(rf"\b{each.name}\b", text)
    ]
    assert not unnamed and TAKEN.search(text) and text.split("\n\n")[0].endswith((".", ":"))


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_says_what_it_is_and_takes(name: str) -> None:
    text = (inspect.getdoc(getattr(T, name)) or "").split("\n\nExample:")[0]
    assert TAKEN.search(text) and text.split("\n\n")[0].endswith((".", ":"))


def broken(x: Any) -> None:
    raise AttributeError


@functools.cache
def outcomes() -> dict[str, type[BaseException] | None]:
    """What each function raises in a kernel if all that it needs is of no use."""
    found: dict[str, type[BaseException] | None] = {}

    def probe() -> None:
        for name, function in {**FUNCTIONS, "broken": broken}.items():
            try:
                function(*(object() for _ in required(function)))
                found[name] = None
            except Exception as error:
                found[name] = type(error)

    @T.prim_func
    def program(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            probe()
            A[0] = 1.0

    assert program.func is not None
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_argument_is_an_error_that_is_documented(name: str) -> None:
    assert outcomes()[name] in (None, TileError)
    if outcomes()[name] is TileError:
        assert "TileError" in (inspect.getdoc(FUNCTIONS[name]) or "")


def test_a_result_has_the_type_that_its_docstring_says() -> None:
    """Of arguments of two types, where the function takes them."""
    claim = re.compile(r"\b(?:its|their) (?:common )?(float )?type\b|gives a bool")
    claims = {name: claim.search((inspect.getdoc(each) or "").split("Raises")[0]) for name, each in FUNCTIONS.items()}
    found: dict[tuple[str, str], tuple[str, str]] = {}

    def probe(x: Any) -> None:
        for narrow, wide in (("int16", "int32"), ("float16", "float32"), ("float32", "float64")):
            for name, said in claims.items():
                arguments = [T.cast(x, narrow), T.cast(x, wide), T.cast(x, wide)][: len(required(FUNCTIONS[name]))]
                if said is None or (name.startswith("ieee_") and wide == "int32"):
                    continue
                dtype = "float32" if said[1] and wide == "int32" else arguments[-1].dtype
                with contextlib.suppress(TileError):
                    made = FUNCTIONS[name](*arguments)
                    found[name, wide] = made.dtype, "bool" if said[0] == "gives a bool" else dtype

    @T.prim_func
    def program(A: T.Tensor((8,), "float64")):
        with T.Kernel(1):
            probe(A[0])
            A[0] = 1.0

    assert program.func is not None
    assert len(found) > 100 and {key: pair for key, pair in found.items() if len(set(pair)) > 1} == {}


def test_the_probe_sees_errors() -> None:
    assert outcomes()["broken"] is AttributeError and outcomes()["gemm"] is TileError
