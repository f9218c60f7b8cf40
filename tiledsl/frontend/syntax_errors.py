"""What lark found wrong, said in words: the token that was found, and what could have stood there."""

from __future__ import annotations

import re
from typing import Any

from lark import UnexpectedInput
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from tiledsl.errors import TileError
from tiledsl.frontend.indentation import LineStructure, shortened
from tiledsl.location import Loc

_MAX_EXPECTED = 4
_FOUND = {"_NEWLINE": "end of the line", "_DEDENT": "end of the block", "$END": "end of the text"}
_NAMED = {"_NEWLINE": "the end of the line", "_INDENT": "an indented block", "NAME": "a name", "IMPORT": "'import'"}
_CLOSING = {"RPAR": "')'", "RSQB": "']'", "RBRACE": "'}'", "COLON": "':'", "COMMA": "','", "IN": "'in'", "DOT": "'.'"}
_OTHERS = {"EQUAL_SIGN": "'='", "AS": "'as'", "ELSE": "'else'", "LPAR": "'('", "DEF": "'def'", "AT": "'@'"}
_SOFT_KEYWORD = re.compile(r"\s*(match|type)\s+[^\s=.,(\[:]")


def explain(error: UnexpectedInput, lines: LineStructure, text: str, line_shift: int, column_shift: int) -> TileError:
    """The TileError for an error of lark's lexer or parser; the shifts say where `text` stands in its file."""
    if isinstance(error, UnexpectedCharacters):
        return _unexpected_character(error, lines, text, line_shift, column_shift)
    assert isinstance(error, UnexpectedToken)
    token = error.token
    loc = _token_loc(token, lines, text, line_shift, column_shift)
    line = text.split("\n")[loc.line - line_shift - 1]
    soft = _SOFT_KEYWORD.match(line)
    if soft and token.type != "_INDENT" and not column_shift:
        word = soft.group(1)
        at = Loc(loc.file, loc.line, soft.start(1) + 1, loc.line, soft.end(1) + 1)
        instead = "use `if` and `elif`" if word == "match" else "assign with '='"
        return TileError(f"'{word}' is not part of the tile language; {instead}", at, code="not-in-language")
    if token.type == "_INDENT":
        return TileError("unexpected indentation: no block starts on the line before", loc)
    if token.type == "FROM" and line.lstrip().startswith("raise "):
        return TileError(
            "'raise ... from' is not part of the tile language; raise the exception alone", loc, code="not-in-language"
        )
    found = _FOUND.get(token.type) or f"'{shortened(str(token))}'"
    expected = _expected(set(error.accepts or error.expected))
    message = f"unexpected {found}" + (f"; expected {expected}" if expected else "")
    notes: list[str | tuple[str, Loc]] = []
    around = [each for each in lines.open_brackets if each is not token]
    if around and around[-1].line != loc.line:
        opener = around[-1]
        notes.append((f"inside '{opener}', which was opened", lines.loc(opener)))
    if token == "=" and "EQUAL" in error.expected:
        notes.append("to compare, write '=='")
    return TileError(message, loc, notes)


def _token_loc(token: Any, lines: LineStructure, text: str, line_shift: int, column_shift: int) -> Loc:
    if token.type == "_NEWLINE":
        return Loc(lines.file, token.line, token.column, token.line, token.column + 1)
    if token.type == "$END":
        text = text.rstrip()
        line = text.count("\n") + 1
        column = len(text) - text.rfind("\n") + (column_shift if line == 1 else 0)
        return Loc(lines.file, line + line_shift, column, line + line_shift, column + 1)
    return lines.loc(token)


def _unexpected_character(
    error: UnexpectedCharacters, lines: LineStructure, text: str, line_shift: int, column_shift: int
) -> TileError:
    at = error.pos_in_stream or 0
    char = text[at]
    line = error.line + line_shift
    column = error.column + (column_shift if error.line == 1 else 0)
    if char in "'\"":
        triple = text.startswith(char * 3, at)
        kind = "triple-quoted string" if triple else "string"
        message = f"this {kind} is not closed" + ("" if triple else " on its line")
        return TileError(message, Loc(lines.file, line, column, line, column + (3 if triple else 1)))
    loc = Loc(lines.file, line, column, line, column + 1)
    if char == "\\":
        return TileError("a backslash outside a string must be the last character of its line", loc)
    shown = f"'{char}'" if char.isprintable() else f"U+{ord(char):04X}"
    return TileError(f"the character {shown} is not part of the tile language", loc, code="not-in-language")


def _expected(accepted: set[str]) -> str:
    words: list[str] = []
    if "_INDENT" in accepted:
        return "an indented block"
    if "RETURN" in accepted:
        words.append("a statement")
    elif {"NAME", "NUMBER"} <= accepted:
        words.append("an expression")
    words += [word for name, word in _CLOSING.items() if name in accepted and (name != "DOT" or "STAR" not in accepted)]
    if not words or "NUMBER" not in accepted:
        words += [word for name, word in _NAMED.items() if name in accepted]
    if "DOUBLE_SLASH" in accepted:
        words.append("an operator")
    if not words:
        words = [word for name, word in _OTHERS.items() if name in accepted]
    words = words[:_MAX_EXPECTED]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1] if words else ""
