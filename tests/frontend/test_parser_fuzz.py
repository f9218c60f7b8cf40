"""Random programs agree with Python's `ast`; random text raises TileError or parses, and nothing else happens."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.frontend.comparison import from_python, from_tiledsl
from tests.frontend.test_parser import SNIPPETS
from tiledsl.errors import TileError
from tiledsl.frontend.parser import parse_expression, parse_module

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

NAMES = st.sampled_from(["a", "b_1", "T", "match", "é", "iff", "in_"])
OPERATORS = [*"+-*/%@&|^<", "//", "**", "<<", ">>", " and ", " or ", " not in ", " is not "]
LITERALS = ["0", "1_0", "0x1f", "1.5e-3", "'s'", "f'{a}b{c!r:>{w}}'", "...", "None", "()"]
ATOMS = st.one_of(NAMES, st.sampled_from(LITERALS))


def expressions() -> st.SearchStrategy[str]:
    """Source text of expressions, with odd spacing and parentheses, such as `ast.unparse` would never write."""

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        listed = st.lists(inner, min_size=1, max_size=3).map(", ".join)
        gap = st.sampled_from(["", " ", "  "])
        return st.one_of(
            st.builds(lambda a, g, o, b: a + g + o + g + " " + b, inner, gap, st.sampled_from(OPERATORS), inner),
            st.builds(lambda o, a: f"{o}({a})", st.sampled_from(["-", "~"]), inner),
            st.builds(lambda o, a: f"({o}{a})", st.sampled_from(["not ", "lambda: ", "lambda x, *y: "]), inner),
            st.builds(lambda a: f"( {a})", inner),
            st.builds(lambda a, b, c: f"({a} if {b} else {c})", inner, inner, inner),
            st.builds(lambda n, a: f"{n}({a}, *{n}, k = ({a}))", NAMES, listed),
            st.builds(lambda n, a, b: f"{n}.{n}[{a}:, :{b}, {a}]", NAMES, inner, inner),
            st.builds(lambda a: f"[{a},]", listed),
            st.builds(lambda a: f"{{{a}}}", listed),
            st.builds(lambda a, b: f"{{{a}: ({b}), **({b})}}", inner.map(lambda t: f"({t})"), inner),
            st.builds(lambda a, n, b: f"[({a}) for {n} in ({b}) if (y := ({a}))]", inner, NAMES, inner),
        )

    return st.recursive(ATOMS, grow, max_leaves=8)


def indent(lines: list[str]) -> list[str]:
    return ["   " + line for line in lines]


def statements() -> st.SearchStrategy[list[str]]:
    """Lines of source text."""
    value = EXPRESSIONS
    simple = st.one_of(
        st.builds(lambda n, v: [f"{n} = {n}[0], {n}.x = {v}"], NAMES, value),
        st.builds(lambda n, v: [f"{n} **= {v}; pass # comment"], NAMES, value),
        st.builds(lambda n, v: [f"{n}: ({v}) = {v}"], NAMES, value),
        st.builds(lambda v: [f"assert ({v}), (", f"  {v})"], value),
    )

    def grow(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
        block = st.lists(inner, min_size=1, max_size=3).map(lambda parts: indent([line for p in parts for line in p]))
        return st.one_of(
            st.builds(lambda v, b, c: [f"if {v}:", *b, f"elif {v}:", *c, "else:", *b], value, block, block),
            st.builds(lambda n, v, b: [f"for {n}, ({n}) in {v}:", "", *b], NAMES, value, block),
            st.builds(lambda v, n, b: [f"with ({v}) as {n}, {n}:", "# comment", *b], value, NAMES, block),
            st.builds(lambda n, v, b: [f"@{n}", f"def f(x, /, y: ({v}), *, z=({v})):", *b], NAMES, value, block),
        )

    return st.recursive(simple, grow, max_leaves=6)


EXPRESSIONS = st.deferred(expressions)
STATEMENTS = st.deferred(statements)


@QUICK
@given(EXPRESSIONS)
def test_random_expressions_agree(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert from_tiledsl(parse_module(text)) == from_python(text)


@settings(QUICK, max_examples=30)
@given(st.lists(STATEMENTS, max_size=3))
def test_random_programs_agree(parts: list[list[str]]) -> None:
    text = "\n".join(line for part in parts for line in part)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = from_python(text)
        assert from_tiledsl(parse_module(text)) == expected
        unparsed = ast.unparse(ast.parse(text))
        assert from_tiledsl(parse_module(unparsed)) == from_python(unparsed)


def parses_or_tile_error(text: str) -> None:
    for parse in (parse_module, parse_expression):
        try:
            parse(text, "fuzz.tile")
        except TileError as error:
            assert error.loc is not None and error.loc.line >= 1 and error.loc.column >= 1, error.loc
            lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            assert error.loc.line <= len(lines) + 1
            str(error)


PIECES = [
    *"()[]{}:,;.=+-*/%@&|^~<>!\\#'\"\n\t $?", "if", "else", "elif", "for", "in", "not", "is", "lambda", "def", "with",
    "as", "import", "from", "yield", "class", "raise", "f'", "{", "}", "'''", '"""', "rb'", "0x", "1_", "1e", "2j",
    "\n    ", "\n\t", "x", "é", "²", "\0", "\r", "\f", "\ud800", ":=", "**", "...", "->", "match x:",
    "\\N{", "\\x", "=}", "!r",
]  # fmt: skip


@QUICK
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=25).map(lambda p: " ".join(p))))
@example("\\")
@example("f'{'")
@example("x\\\n")
@example("f'{a!'")
@example("rf'{\\")
@example("(" * 100_000)
@example("-" * 20_000 + "x")
@example("x" + ".y" * 20_000)
@example("+".join("x" * 20_000))
@example("f'{a:{b:{c:{d}}}}'")
def test_random_text(text: str) -> None:
    parses_or_tile_error(text)


@QUICK
@given(st.data())
def test_damaged_programs(data: Any) -> None:
    text = data.draw(st.sampled_from(SNIPPETS))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(at, min(at + 4, len(text))))
        text = text[:at] + data.draw(st.one_of(st.just(""), st.sampled_from(PIECES))) + text[stop:]
    parses_or_tile_error(text)
