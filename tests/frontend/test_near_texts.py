"""Near misses of texts against Python: what is a program, its tree and places, and what an error says of its place."""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from typing import Any

import pytest

from tests.frontend import device
from tests.frontend.comparison import from_python, from_tiledsl
from tests.frontend.device_programs import DEVICE_PROGRAMS
from tests.frontend.host import TooLong, function, in_python, while_built
from tests.frontend.host_programs import HOST_PROGRAMS
from tests.frontend.near_texts import near_misses, tokens
from tests.frontend.test_parser import SNIPPETS
from tiledsl.errors import TileError
from tiledsl.frontend.parser import parse_module

PARTS, EACH, FEW = 12, 80, 30
# What the parser leaves to those who read the tree, or to the program's place in a function.
LATER = (
    "outside loop", "not properly in loop", "outside function", "no binding for nonlocal", "nonlocal declaration",
    "and nonlocal", "nonlocal and", "cannot rebind comprehension",
)  # fmt: skip
# What an error says could have stood there, as text that does.
COULD_STAND = {
    "an expression": "x", "a statement": "pass", "a name": "x", "an operator": "//", "the end of the line": "\n",
    "an indented block": f"\n{' ' * 40}x",
}  # fmt: skip
COULD_STAND |= {f"'{word}'": word for word in (*")]}:,.=(@", "in", "as", "else", "def", "import")}


def python_tree(text: str) -> Any:
    """The tree that Python's parser makes; the message if it refuses the text."""
    try:
        compile(text, "near", "exec", dont_inherit=True)
        return from_python(text)
    except NotImplementedError:
        return "a statement that the language does not have"
    except (SyntaxError, ValueError) as error:
        message = str(error)
        later = any(each in message for each in LATER) and not re.search(r"\b(yield|class|await)\b", text)
        return from_python(text) if later else message


@pytest.mark.skipif(sys.version_info < (3, 11), reason="A[*b] is of Python 3.11")
@pytest.mark.parametrize("part", range(PARTS))
def test_python_agrees(part: int) -> None:
    for text in near_misses(tuple(SNIPPETS), range(part * EACH, (part + 1) * EACH)):
        check_syntax(text)


def check_syntax(text: str) -> None:
    if re.search(r"^[ \t]+\\$|\dx?as\b|\\\s*\Z", text, re.M):
        return  # a line that counts as blank in Python, a number that ends with its letters, an end
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        python = python_tree(text)
    formats = re.search("""[fF][rR]?['"]""", text)  # more is possible in them from Python 3.12 on
    try:
        tree = from_tiledsl(parse_module(text, "near.tile"))
    except TileError as error:
        refused = isinstance(python, str) or re.search("not part of|starred expression", error.message)
        assert refused or formats, text
        check_place(text, error)
        check_expected(text, error)
    else:
        ends = re.search(r";[ \t]*(#.*)?$", text, re.M)  # Python counts that sign to the statement around
        assert tree == python or (formats if isinstance(python, str) else ends), text


def position(text: str, line: int, column: int) -> int:
    """The offset of a place; it is one of the text, or right behind it."""
    lines = text.split("\n")
    assert 1 <= line <= len(lines) and 1 <= column <= len(lines[line - 1]) + 2, (line, column, text)
    return sum(len(each) + 1 for each in lines[: line - 1]) + column - 1


def check_place(text: str, error: TileError) -> None:
    """The range is one of the text, and what the message quotes stands there."""
    loc, message = error.loc, error.message
    assert loc is not None and loc.file == "near.tile"
    start, end = position(text, loc.line, loc.column), position(text, loc.end_line, loc.end_column)
    assert start < end or start == end and "unexpected end of" in message, text
    there = text[start:end]
    quoted = re.match(r"(?:unexpected |the character |f-string: )?'(\S+?)'(?=;| (?:is|does|closes|was)|$)", message)
    if quoted and "'as' inside" not in message:
        word = quoted[1].removesuffix("...") if len(quoted[1]) == 30 else quoted[1]
        assert there.startswith(word) and (there.endswith(word) or "\n" in there or len(word) < len(quoted[1])), text
    opened = [note[1] for note in error.notes if isinstance(note, tuple)]
    if message.startswith("unexpected ") and there not in ")]}" and "#" not in text and "f'''" not in text:
        around = open_bracket(text[:start])
        beside = text.find("\n", around, start) < 0
        assert [position(text, each.line, each.column) for each in opened] == ([] if beside else [around]), text


def open_bracket(text: str) -> int:
    """Where the innermost bracket is that a text leaves open; its end if there is none."""
    found: list[int] = []
    at = 0
    for token in tokens(text):
        if token in ("(", "[", "{"):
            found.append(at)
        elif token in (")", "]", "}"):
            found.pop()
        at += len(token)
    return found[-1] if found else len(text)


def check_expected(text: str, error: TileError) -> None:
    """What could have stood there can: behind it the text goes on to the next mistake."""
    assert error.loc is not None
    before = text[: position(text, error.loc.line, error.loc.column)]
    if "; expected " in error.message and "#" not in before.split("\n")[-1]:
        gap = "\n" if "end of the text" in error.message else " " * bool(before.split("\n")[-1].strip())
        said = error.message.partition("; expected ")[2]
        for words in re.findall(r"'\S+'|(?:an?|the) [a-z ]+?(?=, | or |$)", said):
            with pytest.raises(TileError) as caught:
                parse_module(f"{before}{gap}{COULD_STAND[words]}$", "near.tile")
            assert not re.match(r"unexpected (?!end of the block)", caught.value.message), (text, words)


# What the language does not have, beside what the parser says.
REFUSED = r"cannot rebind a name outside|does not call it|calls itself|the only `with`"
REFUSED_TEXT = r"in a text program|imports nothing|^(\w+) is not defined|sum adds numbers|round: too many"
# How Python's exceptions read here, where their text does not stand in the error's.
SAID = {
    NameError: r"is not defined|is read before it is assigned",
    UnboundLocalError: r"is read before it is assigned|is not defined",
    ValueError: r"^\d+ values? for \d+ names$",
    AssertionError: r"^assertion failed",
    ZeroDivisionError: r"division by 0$",
    RuntimeError: r"^raise$",
    TypeError: r"",  # of many kinds
    ImportError: r"has no attribute",
    AttributeError: r"has no attribute",
}


@pytest.mark.parametrize("part", range(PARTS))
def test_what_runs_while_a_program_is_built_does_as_python_does(part: int) -> None:
    for body in near_misses(HOST_PROGRAMS, range(part * FEW, (part + 1) * FEW)):
        check_host(body)


def check_host(body: str) -> None:
    text = function(body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            python = in_python(text)
        except (SyntaxError, ValueError, TooLong):
            return
    if (
        isinstance(python.error, UnboundLocalError)
        and traceback.extract_tb(python.error.__traceback__)[-1].name != "main"
    ):
        return  # a nested function reads here such a name of the function around
    for as_text in (False, True):
        try:
            ours = while_built(text, as_text)
        except TileError:  # of the parser, see above
            return
        if ours.error is None:
            assert python.error is None, (text, python.error)
        elif not re.search(REFUSED if not as_text else f"{REFUSED}|{REFUSED_TEXT}", ours.message):
            said = re.sub(r" at 0x.*", "", str(python.error)), SAID.get(type(python.error), "^$")
            assert "NoneType" not in said[0] or "None" in ours.message, (text, ours.message)
            assert python.error and (said[0] in ours.message or re.search(said[1], ours.message)), (text, ours.message)
        else:
            assert python.notes[: len(ours.notes)] == ours.notes, text
            continue
        assert (ours.notes, ours.names) == (python.notes, python.names), text


@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_do_as_python_does(part: int) -> None:
    for body in near_misses(DEVICE_PROGRAMS, range(part * 40, (part + 1) * 40)):
        check_device(body)


def check_device(body: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            python = device.in_python(body, list)
            known = python == device.in_python(body, lambda each: list(each)[::-1])  # the order is for nobody to say
    except (Exception, TooLong):
        known = False
    try:
        found = device.on_device(body)
    except TileError as error:
        assert error.loc is not None, body
    else:
        # `a or b` of integers is a truth value on the device.
        assert not known or found == python or re.search(r"^ *\w.* = .*\b(or|and)\b", body, re.M), body


def main(seed: int = 1_000_000, count: int = 3000) -> int:
    """Try others: python -m tests.frontend.test_near_texts SEED COUNT."""
    wrong = 0
    checks = ((check_syntax, tuple(SNIPPETS)), (check_host, HOST_PROGRAMS), (check_device, DEVICE_PROGRAMS))
    for edits in (1, 2):
        for check, texts in checks:
            for text in near_misses(texts, range(seed, seed + count), edits):
                try:
                    check(text)
                except Exception as error:  # one that is no TileError is what is looked for, too
                    wrong += 1
                    print(f"{check.__name__}: {type(error).__name__}: {error}\n{text}\n")
            print(f"{check.__name__}: {count} texts of {edits} edits", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
