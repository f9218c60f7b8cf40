"""The parser against Python's own `ast` (structure and positions), and its errors."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tests.frontend.comparison import from_python, from_tiledsl
from tiledsl.errors import TileError
from tiledsl.frontend import parser, syntax
from tiledsl.frontend.parser import parse_expression, parse_function, parse_module
from tiledsl.frontend.syntax_errors import _expected
from tiledsl.frontend.tree_builder import TreeBuilder
from tiledsl.location import Loc

SNIPPETS = [
    "x = 1; y = 2\n",
    "a, b = i // h, i % h\n(a) = b = c,\n*a, b = c\n[a, (b, *c)] = d\n",
    "x: int = 3\nself.x: 'T.Tensor((M,), dtype)'\n(y): int\nx[0]: float = 1,\n",
    "x += 1; y -= 2; z *= 3; a /= 4; b //= 5; c %= 6; d **= 7; e <<= 8; f >>= 9; g &= 1; h |= 2; i ^= 3; j @= 4,\n",
    "a | b ^ c & d << e + f * -g ** -h // i @ j % k - l >> m\n",
    "a - b - c * d / e - f\n(a + b) * c\na * (b + c)\n((a)) + (b)\n2 ** 3 ** 4\n-2 ** 2\n(-2) ** 2\n~+-x\n",
    "0 <= i < n and not j >= k or l is not None and m not in o and p in q and r is s != t == u\nnot not a\n",
    "a if b else c if d else e\nlambda: 0\nlambda x, y=1, /, *a, z, w=(2), **k: (x, y)\n",
    "lambda *, x: x\nlambda x, /: x\n",
    "f()\nf(a, *b, c, d=1, *e, **g)\nf(x for x in y)\nf((x for x in y), 1)\nf(a)(b)[c].d\nf(a,)\nf(x := 1)\n",
    "A[i]\nA[i, j]\nA[i,]\nA[:]\nA[a:]\nA[:b]\n",
    "A[a:b]\nA[::c]\nA[a:b:c]\nA[a::]\nA[i * 2 : (i + 1) * 2, ..., :, None]\nA[(1, 2)]\n",
    "()\n(a,)\n(a, b)\n(a, b,)\n(a, *b)\n[]\n[a]\n[a, *b,]\n{a}\n{a, *b}\n{}\n{a: b}\n{a: b, **c, 'd': 1,}\n(a := 3)\n",
    "[x for x in y]\n{x for x in y if a if b}\n{k: v for k, v in z}\n",
    "(x for (x, *y), in z for w in x if w)\n[x for x in a or b]\n",
    "0; 00; 0x_ff; 0XAB; 0o17; 0b1_0; 1_000; 1.; .5; 1e5; 1.5E-3_0; 1_0.0_1e+1; 0123.5; 1e400; 0.1; 1if x else 2\n",
    "True, False, None, ...\n",
    "'a' \"b\" '''c\n'd' ''' r'\\n' u'x' R\"\\\"\" \"\\\"\" '\\''\n",
    r"'\n\t\\\'\"\a\b\f\r\v\0\12\777\x41\u00e9\U0001F600\N{BULLET}\d\
'"
    + "\n",
    r"b'\x00\377\u1234' rb'\x' Rb'' B'z'" + "\n",
    "f'a{x}b' f\"{x!r:>{w}}\" f'{x=}' f'{ x + 1 = !s}' 'c' f'{{}}{x:{{y}}}'\n".replace(":{{y}}", ":.{p}f"),
    "f'{a[\"b\"]}{(lambda x: x)(1)}{f\"{y}\"}{x != y}{x == y}{d[1:2]}{x<=y!a}{x,}{x:%H:%M}' rf'\\d{x}' f'{x=:>4}'\n",
    "f'{x==\"a:b\"}' f'{x!=\"}\"}'\n",
    "f'''{\n  x\n}\n {y:\n>3}'''\nf'\\N{BULLET}{x}\\n\\x41'\nf''\nf'{{'\nf'{ {1: 2}[1] }'\nf'{x:>3}}}'\n",
    "if a: b\nelif c:\n  d\nelif e: f; g\nelse:\n  h\n",
    "if a:\n\tif b:\n\t\tc\n\td\nelse:\n        e\n",
    "for i, (j, k) in x: pass\nelse: y\nfor a.b in c, d:\n    continue\nfor x[0], in y:\n    break\n",
    "for i in T.Parallel(4):\n    # comment\n\n  # odd comment\n    a[i] = 0  # more\n# end\nb\n   # tail",
    "while (x := f()) and y:\n  pass\nelse:\n  z\nif y := 2: pass\n",
    "with a: b\nwith a as b, c as d[0]: pass\nwith (a as b, c as (d, e)): pass\nwith (a, b): pass\nwith (a): pass\n",
    "with (a): pass\nwith (a, b) as c: pass\nwith (a, b), c: pass\n",
    "with (a, *b): pass\nwith (a as b,): pass\nwith (a, b as c, d,): pass\n",
    "with (a) as b: pass\nwith (a).b as c: pass\nwith (): pass\n",
    "with ((a, b)): pass\nwith (a,): pass\nwith ((a, b), c): pass\n",
    "with T.Kernel(\n    T.ceildiv(N, bn), threads=128\n) as (bx, by):\n    pass\n",
    "def f(): pass\n",
    "def f(a, b: int, c: 'x | None' = None, /, d=1, *e: int, g, h: T.Tensor((M, K), dtype) = 2, **i: j) -> k: return\n",
    "@a\n@b.c(d)\n@(e)\ndef f(*, x,):\n    '''doc'''\n    return x,\n",
    "def f(x: int | None, *a,):\n  def g():\n    nonlocal x, y\n    global z\n    return *x, y\n  return g\n",
    "import a, b.c, d.e as f\nfrom a.b import c as d, e\nfrom . import x as y\n",
    "from ...y import (z, w as v,)\nfrom ....q import r\n",
    "raise\nraise X(1)\nassert a\nassert a, 'b' + c\nreturn_ = 1\npass\n",
    "x = a + \\\n    b\ny = (a +  # note\n     b)\nz = [\n1,\n\n2]\n",
    "é = 'ü😀' + é.ñ; 変数[é] = é\n",
    "match = type = case = _ = 1\nmatch(x)\nmatch.a\nprint(match[1], type(x))\n",
    "x = 1 # type: int\n\n\n\f\ny = 2",
    "",
    "\n# only a comment",
    "a, b, c = d, e, f,\nA[i, j, k]\nA[i:j, k, l, m,]\nfor x, y, z in a, b, c: pass\n[x for x, y, z in w]\n",
    "def f(a, /, b): pass\ndef g(a, /, b, *c, d=1, **e): pass\nlambda a, b=1, /, c=2, *, d, e=3: 0\n",
    "def f(a, *, b, c): pass\ndef g(*a, b): pass\nlambda *a, **b: 0\nlambda a, *, b: (a,\n  b)\n",
    "f(f'{x}',\n  y, [f'{a + b:>{w}}', 1,\n  2], {k: v,\n  m: (n,\n   o)})\n",
    "\fx = 1\n",
    "x = 1 \\\n\n",
]


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")  # ast's, about `1if` and `'\\d'`
@pytest.mark.parametrize("text", SNIPPETS)
def test_agrees_with_python(text: str) -> None:
    assert from_tiledsl(parse_module(text)) == from_python(text)


def test_agrees_with_python_over_our_own_functions() -> None:
    root = Path(parser.__file__).parents[1]
    count = 0
    for file in sorted(root.rglob("*.py")):
        lines = file.read_text(encoding="utf-8").split("\n")
        for node in ast.walk(ast.parse("\n".join(lines))):
            if not isinstance(node, ast.FunctionDef) or count > 150:
                continue
            body = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            text = body if not node.col_offset else "if 1:\n" + body
            try:
                tree = parse_module(text)
            except TileError as error:
                assert "is not part of the tile language" in error.message, error
                continue
            assert from_tiledsl(tree) == from_python(text)
            count += 1
    assert count > 50


REFUSED = [
    ("x = 1\nclass A: pass\n", "2:1-6", "'class' is not part of the tile language; define classes outside"),
    ("try:\n  pass\nexcept* E: pass\n", "1:1-4", "'try' is not part of the tile language"),
    ("async def f(): pass\n", "1:1-6", "'async' is not part"),
    ("x = await y\n", "1:5-10", "'await' is not part"),
    ("def f():\n    yield 1\n", "2:5-10", "'yield' is not part"),
    ("del x\n", "1:1-4", "'del' is not part"),
    ("match x:\n  case 1: pass\n", "1:1-6", "'match' is not part of the tile language; use `if` and `elif`"),
    ("type X = int\n", "1:1-5", "'type' is not part"),
    ("x = 3 + 1.5j\n", "1:9-13", "complex numbers such as 1.5j are not part"),
    (f"x = 1.{'5' * 27}j\n", "1:5-35", f"such as 1.{'5' * 27}j are not part"),  # 30 characters
    (f"x = 1.{'5' * 28}j\n", "1:5-36", f"such as 1.{'5' * 25}... are not part"),
    ("raise A from b\n", "1:9-13", "'raise ... from' is not part"),
    ("x = (1 +\n     2]\n", "2:7-8", "']' does not close '('"),
    ("x)\n", "1:2-3", "')' closes nothing"),
    ("f(a, [b\n", "1:6-7", "'[' was never closed"),
    ("T.copy(a, b\nfor i in x:\n    pass\n", "2:1-4", "unexpected 'for'; expected ')' or ','"),
    ("x = 'abc\n", "1:5-6", "this string is not closed on its line"),
    ("x = f'abc\n", "1:6-7", "this string is not closed"),
    ("x = '''abc\n\n", "1:5-8", "this triple-quoted string is not closed"),
    ("if a:\nb\n", "2:1-2", "unexpected 'b'; expected an indented block"),
    ("a\n  b\n", "2:1-3", "unexpected indentation"),
    ("  a\n", "1:1-3", "the first line is indented"),
    ("if a:\n    b\n  c\n", "3:1-3", "this line's indentation matches no block"),
    ("if a:\n        b\n\tc\n", "3:1-2", "tabs and spaces are mixed"),
    ("if a:\n        if b:\n\t\tc\n", "3:1-3", "tabs and spaces are mixed"),
    ("x = \0\n", "1:5-6", "null byte"),
    ("\nx\0\n", "2:2-3", "null byte"),
    ("x = " + "9" * 5000 + "\n", "1:5-5005", "this number has 5000 digits"),
    ("x = b'a' 'b'\n", "1:5-13", "bytes and text cannot be joined"),
    ("x = b'a' f''\n", "1:5-13", "bytes and text cannot be joined"),
    ("x = f'{x}' b''\n", "1:5-15", "bytes and text cannot be joined"),
    ("x = 012\n", "1:5-8", "leading zeros"),
    ("x = 1 +\n", "1:8-9", "unexpected end of the line; expected an expression"),
    ("x = é + $\n", "1:9-10", "the character '$' is not part"),
    ("x = 1 \\\n", "1:7-8", "a backslash outside a string"),
    ("x = a \\ b\n", "1:7-8", "a backslash outside a string"),
    ("if a:\n    @d\nb\n", "3:1-1", "unexpected end of the block"),
    ("if x = 1: pass\n", "1:6-7", "unexpected '='; expected"),
    ("for i range(3): pass\n", "1:7-12", "unexpected 'range'; expected"),
    ("f(a=1, b)\n", "1:8-9", "a positional argument cannot follow"),
    ("f(a=1, a=2)\n", "1:8-11", "given twice"),
    ("f(a=1,\n  a=\n (2))\n", "2:3-3:5", "given twice"),
    ("f() = 1\n", "1:1-4", "this cannot be assigned to"),
    ("(a, b) += 1\n", "1:1-7", "this cannot be assigned to"),
    ("for x in *a: pass\n", "1:10-12", "a starred expression"),
    ("for f() in x: pass\n", "1:5-8", "this cannot be assigned to"),
    ("[x for f() in y]\n", "1:8-11", "this cannot be assigned to"),
    ("{x: x for a in y for 1 in a}\n", "1:22-23", "this cannot be assigned to"),
    ("with f() as g(): pass\n", "1:13-16", "this cannot be assigned to"),
    ("f(): int = 1\n", "1:1-4", "this cannot be assigned to"),
    ("x = a, f() = 1\n", "1:8-11", "this cannot be assigned to"),
    ("*a\n", "1:1-3", "a starred expression"),
    ("x = (*a)\n", "1:6-8", "a starred expression"),
    ("*a, *b = c\n", "1:1-7", "only one starred target"),
    ("(a as b)\n", "1:1-9", "'as' inside parentheses"),
    ("with (a as b), c: pass\n", "1:6-14", "'as' inside parentheses"),
    ("def f(a=1, b): pass\n", "1:12-13", "needs a default"),
    ("def f(a, a): pass\n", "1:10-11", "two parameters are called 'a'"),
    ("def f(a, /, b, /): pass\n", "1:16-17", "'/' must follow"),
    ("def f(**a, b): pass\n", "1:12-13", "comes too late"),
    ("def f(*): pass\n", "1:7-8", "a bare '*'"),
    ("lambda /: 0\n", "1:8-9", "'/' must follow"),
    ("def f(x, y, *a, /): pass\n", "1:17-18", "'/' must follow"),
    ("from a import *\n", "1:15-16", "unexpected '*'; expected a name"),
    ("x = f'{}'\n", "1:7-8", "an expression is missing"),
    ("x = f'a}'\n", "1:8-9", "a single '}'"),
    ("x = f'{a b}'\n", "1:10-11", "unexpected 'b'"),
    ("x = f'{a'\n", "1:7-8", "'{' was never closed"),
    ("x = f'{a!z}'\n", "1:9-10", "the conversion"),
    ("x = f'''\n  {1 +}'''\n", "2:7-8", "unexpected end of the text"),
    ("x = '\\x1'\n", "1:5-10", "the escape \\x"),
    ("x = '\\u'\n", "1:5-9", "the escape \\u is incomplete"),
    ("x = '\\N{no such}'\n", "1:5-18", "there is no character named"),
    ("x = b'é'\n", "1:5-9", "bytes can only"),
    ("x = b'a' 'b'\n", "1:5-13", "bytes and text"),
    ("x²\n", "1:1-3", "is not a valid name"),
    ("x = " + "(" * 300 + ")" * 300 + "\n", "1:205-206", "more than 200 brackets"),
    ("".join(" " * i + "if x:\n" for i in range(150)) + " " * 150 + "y\n", "102:1-102", "blocks are nested"),
    ("print 'x'\n", "1:7-10", "unexpected ''x''; expected"),
    ("def f(\n", "1:6-7", "'(' was never closed"),
    ("a " + "b" * 30 + "\n", "1:3-33", f"unexpected '{'b' * 30}'"),
    ("a " + "b" * 31 + "\n", "1:3-34", f"unexpected '{'b' * 27}...'"),
    ("a '''b\nc'''\n", "1:3-2:5", "unexpected ''''b'"),
    ("x = {1 2}\n", "1:8-9", "unexpected '2'; expected '}', ':', ',' or 'in'"),
]


@pytest.mark.parametrize(("text", "place", "message"), REFUSED)
def test_refuses_with_place_and_reason(text: str, place: str, message: str) -> None:
    with pytest.raises(TileError) as caught:
        parse_module(text, "program.tile")
    assert message in caught.value.message
    loc = caught.value.loc
    assert loc is not None
    end = f"{loc.end_line}:" * (loc.end_line > loc.line) + str(loc.end_column)
    assert f"{loc}-{end}" == f"program.tile:{place}"
    assert len(caught.value.message) < 200
    str(caught.value)


def test_error_quotes_the_text_and_the_open_bracket() -> None:
    with pytest.raises(TileError) as caught:
        parse_module("T.copy(a, b\nfor i in x:\n    pass\n", "p.tile")
    shown = str(caught.value)
    assert "     2 | for i in x:\n       | ^^^" in shown
    assert "note: inside '(', which was opened at p.tile:1:7" in shown


def test_a_comparison_with_one_sign_is_told_from_an_assignment() -> None:
    for text, notes in (("if x = 1: pass\n", ["to compare, write '=='"]), ("for x = 1: pass\n", [])):
        with pytest.raises(TileError) as caught:
            parse_module(text)
        assert caught.value.notes == notes


@pytest.mark.parametrize("text", ["def f(x, *, *, y): pass\n", "def f(x, y=1, /, /, z): pass\n"])
def test_an_error_of_a_parameter_list_marks_one_sign(text: str) -> None:
    with pytest.raises(TileError) as caught:
        parse_module(text)
    loc = caught.value.loc
    assert loc is not None and (loc.line, loc.end_line, loc.end_column - loc.column) == (1, 1, 1) and loc.column >= 10


@pytest.mark.parametrize("field", ["a['b']", "a", "a!r", "a:>{w", "a:>4", "", "f('b')"])
def test_quotes_that_end_an_f_string_early_are_told_of(field: str) -> None:
    with pytest.raises(TileError) as caught:
        parse_module(f"x = f'c{{{field}'\n")
    assert caught.value.message == "f-string: '{' was never closed" and caught.value.loc is not None
    assert caught.value.loc.column == 9 + field.rfind("{")  # the innermost one
    assert caught.value.notes == ["inside an f-string's braces, use other quotes than those around it"]


@pytest.mark.parametrize(
    ("accepted", "words"),
    [
        ("", ""),
        ("PLUS", ""),
        ("RPAR", "')'"),
        ("RPAR COMMA", "')' or ','"),
        ("RPAR RSQB RBRACE COLON COMMA IN", "')', ']', '}' or ':'"),
        ("_INDENT NAME NUMBER RETURN", "an indented block"),
        ("RETURN NAME NUMBER", "a statement"),
        ("NAME NUMBER", "an expression"),
        ("NAME NUMBER RPAR", "an expression or ')'"),
        ("NUMBER RPAR", "')'"),
        ("NAME", "a name"),
        ("NAME RPAR", "')' or a name"),
        ("NAME IMPORT _NEWLINE", "the end of the line, a name or 'import'"),
        ("DOT RPAR", "')' or '.'"),
        ("DOT STAR RPAR", "')'"),
        ("DOUBLE_SLASH RPAR", "')' or an operator"),
        ("EQUAL_SIGN AS", "'=' or 'as'"),
        ("EQUAL_SIGN RPAR", "')'"),
    ],
)
def test_what_could_have_stood_there_in_words(accepted: str, words: str) -> None:
    assert _expected(set(accepted.split())) == words


@pytest.mark.parametrize(
    ("text", "place", "message", "opened"),
    [
        ("x from b", "1:3", "unexpected 'from'; expected ':', ',', 'in' or the end of the line", ""),
        ("typed X", "1:7", "unexpected 'X'; expected ':', ',', 'in' or the end of the line", ""),
        ("x = a match b", "1:7", "unexpected 'match'; expected ',', 'in', the end of the line or an operator", ""),
        ("x = 1\n      match y:", "2:1", "unexpected indentation: no block starts on the line before", ""),
        ("if a:\n  match b:\n    c", "2:3", "'match' is not part of the tile language; use `if` and `elif`", ""),
        ("f(a b)", "1:5", "unexpected 'b'; expected ')', ',', 'in' or an operator", ""),
        ("f(a,\n  b c)", "2:5", "unexpected 'c'; expected ')', ',', 'in' or an operator", "'(' 1:2"),
        ("f([a,\n  b c])", "2:5", "unexpected 'c'; expected ']', ',', 'in' or an operator", "'[' 1:3"),
        ("x '''a\nb'''", "1:3", "unexpected ''''a'; expected ':', ',', 'in' or the end of the line", ""),
        ("def f", "1:6", "unexpected end of the line; expected '('", ""),
        ("else: x", "1:1", "unexpected 'else'; expected a statement", ""),
    ],
)
def test_what_is_said_of_an_unexpected_word(text: str, place: str, message: str, opened: str) -> None:
    with pytest.raises(TileError) as caught:
        parse_module(text + "\n", "p.tile")
    assert caught.value.message == message and str(caught.value.loc) == f"p.tile:{place}"
    bracket, _, at = opened.partition(" ")
    notes = [f"inside {bracket}, which was opened at p.tile:{at}"] if opened else []
    assert [f"{note[0]} at {note[1]}" if isinstance(note, tuple) else note for note in caught.value.notes] == notes


@pytest.mark.parametrize("name", ["match", "type"])
def test_words_that_python_has_for_statements_are_names(name: str) -> None:
    parse_module(f"{name}\n{name} = 3\n{name}(x)\n{name}.y = {name}[1]\n")


@pytest.mark.parametrize("length", [30, 31])
def test_long_words_are_shown_in_part(length: int) -> None:
    with pytest.raises(TileError) as caught:
        parse_module(f"x y{'z' * (length - 1)}\n")
    shown = f"y{'z' * 29}" if length == 30 else f"y{'z' * 26}..."
    assert f"unexpected '{shown}';" in caught.value.message


def test_positions_inside_an_f_string() -> None:
    tree = parse_expression("f'é{aa!r:>{w}}' f'''\n {bb}'''")
    assert isinstance(tree, syntax.JoinedString)
    fields = [part for part in tree.parts if isinstance(part, syntax.FormattedValue)]
    assert [str(field.value.loc) for field in fields] == ["<text>:1:5", "<text>:2:3"]
    ranges = [(f.loc.line, f.loc.column, f.loc.end_line, f.loc.end_column) for f in fields]
    assert ranges == [(1, 4, 1, 15), (2, 2, 2, 6)]
    assert fields[0].format is not None
    inner = fields[0].format.parts[1]
    assert isinstance(inner, syntax.FormattedValue) and str(inner.value.loc) == "<text>:1:12"


def test_the_pairs_of_a_comprehension_are_where_key_and_value_are() -> None:
    found = parse_expression("{ab: c for ab in d}", "<text>")
    assert isinstance(found, syntax.Comprehension) and isinstance(found.element, syntax.Tuple)
    assert (found.element.loc.column, found.element.loc.end_column) == (2, 7)


def test_brackets_of_an_earlier_text_are_forgotten() -> None:
    builder = TreeBuilder(lambda *given: None)  # type: ignore[arg-type, return-value]
    node = parse_expression("a")
    builder.groups[node] = node.loc
    builder.with_groups[node] = [node]
    builder.reset("other.tile")
    assert (builder.file, builder.groups, builder.with_groups) == ("other.tile", {}, {})
    with pytest.raises(TileError, match="'as' inside parentheses"):
        parse_module("x = (a as b)\n")
    assert len(parse_module("x = a\n").body) == 1


def test_the_clauses_of_a_comprehension_are_where_they_stand() -> None:
    found = parse_expression("[a for (b), c in (d) if (e) if f for g in h]", "<text>")
    assert isinstance(found, syntax.Comprehension)
    places = [(each.loc.column, each.loc.end_column, len(each.conditions)) for each in found.clauses]
    assert places == [(4, 33, 2), (34, 44, 0)]


def test_items_of_a_with_in_brackets_are_where_the_brackets_are() -> None:
    for text in ("with (ab as c, d):\n    pass\n", "with (ab, d):\n    pass\n"):
        (statement,) = parse_module(text).body
        assert isinstance(statement, syntax.With) and len(statement.items) == 2
        assert [item.loc.column for item, _ in statement.items] == [7, text.index("d)") + 1]


def test_expression() -> None:
    names = (("Name", (2, 2, 2, 3), "a"), ("Name", (3, 2, 3, 3), "b"))
    assert from_tiledsl(parse_expression("\n a,\n b ")) == ("Tuple", (2, 2, 3, 3), names)
    for text in ("", "a b", "x = 1", "a; b", "1 +"):
        with pytest.raises(TileError):
            parse_expression(text)


def decorate(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def make_kernel(n: int) -> Any:
    @decorate
    @decorate
    def kernel(
        a: int,
    ) -> int:
        text = """
  less indented"""
        return a + n + len(text)

    return kernel


def test_a_module_is_where_its_statements_are() -> None:
    places = [(each.loc.line, each.loc.column, each.loc.end_line, each.loc.end_column) for each in map(
        parse_module, ("", "# nothing\n", "x = 1\n", "\nx = 1\ny = [2,\n 3]\n")
    )]  # fmt: skip
    assert places == [(1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 6), (2, 1, 4, 4)]


def test_function_keeps_its_place_in_the_file() -> None:
    kernel = make_kernel(1)
    tree = parse_function(kernel)
    first = inspect_first_line("    @decorate")
    assert tree.loc.file == __file__
    assert (tree.name, tree.loc.line, tree.loc.column) == ("kernel", first + 2, 5)
    assert [str(d.loc) for d in tree.decorators] == [f"{__file__}:{first}:6", f"{__file__}:{first + 1}:6"]
    assert tree.parameters[0].loc.column == 9
    whole = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    node = next(n for n in ast.walk(whole) if isinstance(n, ast.FunctionDef) and n.name == "kernel")
    assert node.end_lineno == tree.loc.end_line and node.end_col_offset == tree.loc.end_column - 1
    text = ("Constant", (first + 5, 16, first + 6, 19), "str", repr("\n  less indented"))
    assert from_tiledsl(tree)[-3][0][-1] == text


def inspect_first_line(text: str) -> int:
    return Path(__file__).read_text(encoding="utf-8").split("\n").index(text) + 1


def test_function_is_parsed_once() -> None:
    assert parse_function(make_kernel(1)) is parse_function(make_kernel(2))


class Holder:
    def method(self, x: int) -> int:
        return x


def test_method() -> None:
    assert parse_function(Holder().method).name == "method"
    assert parse_function(Holder.method) is parse_function(Holder().method)


def test_functions_without_usable_source() -> None:
    nameless = lambda x: x
    line = nameless.__code__.co_firstlineno
    with pytest.raises(TileError, match="a lambda cannot be a kernel") as caught:
        parse_function(nameless)
    assert caught.value.loc == Loc(__file__, line, 1, line, 1)
    space: dict[str, Any] = {}
    exec("def f(x):\n    return x\n", space)
    with pytest.raises(TileError, match=r"put the function in a file or use tiledsl\.parse"):
        parse_function(space["f"])
    with pytest.raises(TileError, match="expected a Python function"):
        parse_function(len)


def test_error_in_a_function_names_its_file() -> None:
    def bad() -> None:
        del Holder.x  # type: ignore[attr-defined]

    with pytest.raises(TileError) as caught:
        parse_function(bad)
    loc = caught.value.loc
    assert loc is not None
    assert (loc.file, loc.line, loc.column) == (__file__, inspect_first_line("    def bad() -> None:") + 1, 9)


def test_changed_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text("z = 2\ndef f(x):\n    return x\n")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    file.write_text("y = 1\ndef g(x):\n    return x\n")
    with pytest.raises(TileError, match="was the file changed") as caught:
        parse_function(space["f"])
    assert caught.value.loc == Loc(str(file), 2, 1, 2, 1)


@pytest.mark.parametrize("state", ["corrupt", "unwritable", "writable by others"])
def test_bad_cache_folder_does_not_matter(tmp_path: Path, state: str) -> None:
    folder = tmp_path / "grammar"
    folder.mkdir(mode=0o700)
    if state == "corrupt":
        probe = "from tiledsl.frontend import parser; print(parser._cache_file())"
        name = run_python(probe, tmp_path).strip()
        Path(name).write_bytes(b"nonsense")
    elif state == "unwritable":
        folder.rmdir()
        folder.write_text("a file where the folder should be")
    else:
        folder.chmod(0o777)
    program = "from tiledsl.frontend.parser import parse_module; print(len(parse_module('x = 1').body))"
    assert run_python(program, tmp_path) == "1\n"
    if state == "writable by others":
        assert not list(folder.iterdir())


@pytest.mark.parametrize(("mode", "kept"), [(0o700, True), (0o755, True), (0o720, False), (0o702, False)])
def test_what_others_may_write_is_not_read(tmp_path: Path, mode: int, kept: bool) -> None:
    folder = tmp_path / "grammar"
    with tiledsl.settings(cache_dir=tmp_path):
        assert parser._cache_file() is not None and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(mode)
    with tiledsl.settings(cache_dir=tmp_path):
        assert (parser._cache_file() is not None) is kept


def test_a_cache_folder_whose_name_is_no_text_does_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    with tiledsl.settings(cache_dir=folder):
        assert parser._cache_file() is None
    program = "from tiledsl.frontend.parser import parse_module; print(len(parse_module('x = 1').body))"
    assert run_python(program, folder) == "1\n"


def run_python(program: str, cache: Path) -> str:
    root = str(Path(parser.__file__).parents[2])
    environment = {"TILEDSL_CACHE_DIR": str(cache), "PYTHONPATH": root, "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_errors_in_an_expression_quote_it() -> None:
    with pytest.raises(TileError) as caught:
        parse_expression("a + ", "expression.tile")
    assert "expression.tile:1:" in str(caught.value) and "| a + " in str(caught.value)


def test_a_byte_order_mark_is_no_text() -> None:
    assert parse_module("\ufeffx = 1").body[0].loc == Loc("<text>", 1, 1, 1, 6)


def test_lines_that_are_indented_less_than_the_first() -> None:
    """As a function's may be, whose source changed after its import."""
    with pytest.raises(TileError, match="this line is indented less than the first one") as caught:
        parser._parse("  x = 1\n y = 2\n", "module", "p.tile", keeps_indent=True)
    assert str(caught.value.loc) == "p.tile:2:1"


def test_the_place_of_a_module_is_all_of_its_statements() -> None:
    assert parse_module("\nx = 1\ny = (2)\n\n").loc == Loc("<text>", 2, 1, 3, 8)
    assert parse_module("# nothing\n").loc == Loc("<text>", 1, 1, 1, 1)


def test_a_starred_index_is_a_tuple() -> None:
    index = parse_expression("a[*b]").index
    assert isinstance(index, syntax.Tuple) and [type(each) for each in index.elements] == [syntax.Starred]
    assert index.loc == Loc("<text>", 1, 3, 1, 5)
