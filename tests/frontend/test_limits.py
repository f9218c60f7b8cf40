"""Limits of texts and programs: what is just possible, and what is one too many."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tiledsl
from tests.frontend.host import function, while_built
from tiledsl.errors import TileError
from tiledsl.frontend import expressions
from tiledsl.frontend.parser import parse_module


def program(body: str, as_text: bool) -> None:
    error = while_built(function(body), as_text).error
    if error is not None:
        raise error


def in_text(body: str) -> None:
    program(body, True)


def in_function(body: str) -> None:
    program(body, False)


def whole(text: str) -> None:
    head = "@T.prim_func\ndef main(A: T.Tensor((4,), 'int32')):\n    with T.Kernel(1): A[0] = 1\n#"
    tiledsl.parse(head + "x" * (int(text) - len(head)))


@pytest.mark.parametrize(
    ("check", "text", "limit", "message"),
    [
        (in_function, "*x, = range({})", 100_000, "does not end after 100000 rounds"),
        (in_text, "x = 'a' * {}", 99_965, "takes more than 100000 steps"),
        (in_text, "x = (1,) * {}", 49_981, "takes more than 100000 steps"),
        (in_text, "x = range({})", 99_965, "takes more than 100000 steps"),
        (in_text, "x = range(8, 8 + 3 * {}, 3)", 99_957, "takes more than 100000 steps"),
        (in_text, "x = range(5, 5 - {}, -1)", 99_958, "takes more than 100000 steps"),
        (in_text, "for i in (0,) * {}: i", 24_990, "takes more than 100000 steps"),
        (in_text, "x = 1 << {}", 4095, "an integer of 4097 bits; at most 4096 are possible"),
        (in_text, "x = -1 << {}", 4095, "an integer of 4097 bits; at most 4096 are possible"),
        (in_text, "x = round(1, {})", 400, "round: too many digits"),
        (in_text, "x = round(1, -{})", 400, "round: too many digits"),
        (in_text, "x = round(1, ndigits={})", 400, "round: too many digits"),
        (in_text, "x = f'{{1:{}}}'", 99, "the format '100' is not possible for an int"),
        (whole, "{}", 1_000_000, "the text has 1000001 characters; at most 1000000 are possible"),
    ],
)
def test_one_more_is_too_many(check: Callable[[str], None], text: str, limit: int, message: str) -> None:
    check(text.format(limit))
    with pytest.raises(TileError, match=message):
        check(text.format(limit + 1))


@pytest.mark.parametrize(
    "body", ["for i in range({}): pass", "i = 0\nwhile i < {}: i += 1", "x = [0 for i in range({})]"]
)
def test_loops_that_run_while_a_program_is_built_end(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MAX_HOST_ITERATIONS", 50)
    in_function(body.format(50))
    with pytest.raises(TileError, match="does not end after 50 rounds"):
        in_function(body.format(51))


@pytest.mark.parametrize(
    "value", ["'a' * 50001 * 2", "range(100001)", "[(1,) * 20000] * 5", "range(10 ** 30)", "{1: [2] * 99999}"]
)
def test_values_are_of_a_size(value: str) -> None:
    with pytest.raises(TileError, match="of more than 100000 items is not possible in a text program") as caught:
        in_text(f"x = {value}")
    assert caught.value.loc is not None and caught.value.loc.column == (13 if ":" in value else 9)  # of the value


@pytest.mark.parametrize(
    ("make", "limit", "message"),
    [
        (lambda n: "(" * n + "1" + ")" * n, 200, "more than 200 brackets are open at once"),
        (lambda n: "".join(" " * k + "if x:\n" for k in range(n)) + " " * n + "y", 100, "nested more than 100 deep"),
        (lambda n: f"f'{'{x:' * n}{'}' * n}'", 2, "format specifications are nested too deep"),
        (lambda n: "x = " + "9" * n, 4300, "this number has 4301 digits"),
    ],
)
def test_one_level_more_is_too_many(make: Callable[[int], str], limit: int, message: str) -> None:
    parse_module(make(limit))
    with pytest.raises(TileError, match=message):
        parse_module(make(limit + 1))


def test_depth_of_calls() -> None:
    def chain(depth: int) -> str:
        functions = (f"def f{n}():\n    return f{n + 1}()" for n in range(1, depth))
        return "\n".join([*functions, f"def f{depth}():\n    return 1", "x = f1()"])

    in_text(chain(32))
    with pytest.raises(TileError, match="f33 calls itself"):
        in_text(chain(33))


@pytest.mark.parametrize("length", [198, 199])
def test_what_python_says_is_shown_in_part(length: int) -> None:
    with pytest.raises(TileError) as caught:
        in_function(f"x = {{}}['{'k' * length}']")
    assert caught.value.message == "KeyError: " + f"'{'k' * length}'"[:200]
